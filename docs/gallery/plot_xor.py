"""
Attention learns to add bits
============================

In the task bit-xor of Lu et al. (2021) a model reads two strings of five bits and answers where they differ. The
authors trained only the input layer, the output layer, the positions and the layer norms of a transformer. Its
attention nevertheless moved to the two bits that each answer needs, although no weight of the attention layers changed.
This example shows the same with the first blocks of ``mini``.
"""

import matplotlib.pyplot as plt
from reservoir_pipelines import attention, train

# %%
# Train three blocks on newly generated rows at every step.
STEPS = 300
run = train("bit-xor", depth=3, steps=STEPS, eval_every=STEPS, batch=16)
print(f"bit accuracy {run.test_score:.1%} after {STEPS} steps with {run.trained:,} trained parameters")

# %%
# Compare the attention in the first block before and after training, averaged over 64 rows. A row of a map is a query
# token, and a column is a key token. Rings mark the two bits whose sum is the label of that token.
maps = {"before": attention("bit-xor", depth=3), "after": attention("bit-xor", run=run.run)}

figure, panels = plt.subplots(2, 4, figsize=(10, 5.6), layout="constrained", sharex=True, sharey=True)
for (when, maps_of_run), line in zip(maps.items(), panels, strict=True):
    for head, panel in enumerate(line):
        shown = panel.imshow(maps_of_run.mean[head], cmap="magma", vmin=0, vmax=1)
        for query in range(5, 10):
            panel.plot(
                [query - 5, query], [query, query], "o", ms=9, mfc="none", mec="deepskyblue", mew=1.2
            )
        panel.set_title(f"{when}, head {head + 1}", fontsize=10)
        panel.set_xticks(range(10), maps_of_run.labels, fontsize=7, rotation=90)
        panel.set_yticks(range(10), maps_of_run.labels, fontsize=7)
figure.colorbar(shown, ax=panels, label="attention", shrink=0.8)
plt.show()
