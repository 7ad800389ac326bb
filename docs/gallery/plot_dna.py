"""
Find a motif in DNA
===================

Half of these DNA reads contain a TATA box. The labels say which reads contain one, but not where; ``explain`` finds
the position.
"""

import csv
import random

import matplotlib.pyplot as plt
import numpy as np
from reservoir_pipelines import explain, extract, fit

# %%
# The data are a table with a column of letters and a column of labels. Each letter gets a random embedding.
draw = random.Random(0)


def read(motif: str) -> str:
    """Return sixty letters: a motif at a random position among random letters."""
    letters = "".join(draw.choice("ACGT") for _ in range(60))
    place = draw.randrange(60 - len(motif))
    return letters[:place] + motif + letters[place + len(motif) :]


with open("reads.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["sequence", "label"])
    table.writerows([read(motif), label] for motif, label in 300 * [("TATAAA", "promoter"), ("", "other")])

result = fit(extract("reads.csv"), out="reads-readout")
print(f"test accuracy {result.best.test_score:.1%}; with the raw letters alone {result.raw.test_score:.1%}")

# %%
# Explain new reads. The colour of a letter shows how far the score falls when that letter is hidden.
reads = [read("TATAAA") for _ in range(6)]
with open("new.fasta", "w") as file:
    file.writelines(f">{number}\n{letters}\n" for number, letters in enumerate(reads))
why = explain("reads-readout", "new.fasta", first=6)

figure, panel = plt.subplots(figsize=(11, 3.2), layout="constrained")
panel.axis("off")
panel.set(
    xlim=(-1, 60),
    ylim=(-6, 1.5),
    title="How much the readout relies on each letter (the motif is underlined)",
)
for line, (letters, explained) in enumerate(zip(reads, why.rows, strict=True)):
    falls = np.clip(explained.occluded, 0, None) / max(*explained.occluded, 1e-9)
    start = letters.find("TATAAA")
    panel.plot([start - 0.5, start + 5.5], [-line - 0.42] * 2, color="0.2", lw=1.5)
    for place, (letter, fall) in enumerate(zip(letters, falls, strict=True)):
        panel.text(
            place, -line, letter, ha="center", va="center", family="monospace", fontsize=11,
            bbox={"facecolor": plt.get_cmap("Oranges")(0.7 * fall), "edgecolor": "none", "pad": 2},
        )  # fmt: skip
plt.show()
