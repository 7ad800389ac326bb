"""The stage ``explain``: what each position of a sequence adds to the score of its label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reservoir import InputError
from reservoir.options import ExplainOptions
from reservoir.sequence_model import contributions, occlusion
from reservoir.tasks import encode, read_new
from reservoir.tasks.own.images import as_patches
from reservoir.tasks.own.texts import to_symbols
from reservoir.tasks.task import Task, Tokens
from reservoir_pipelines.output import Record
from reservoir_pipelines.plots import COLOURS, INK, saved_figure, shorten, style
from reservoir_pipelines.prediction.export import build
from reservoir_pipelines.prediction.load import notify_skipped, open_readout

MAX_LETTERS = 120  # letters that are legible in one row


@dataclass(frozen=True, kw_only=True)
class Explained(Record):
    """What each position of a sequence adds to the score of its label."""

    row: int  # its number in the file, from 0
    label: Any
    score: float  # the logit of the class minus the mean of all logits, or the predicted value
    added: list[float]  # what each position adds, compared with the mean token of the explained sequences
    elsewhere: float  # the rest of the score: the intercept, and poolings that are not sums over positions
    occluded: list[float]  # drop of the score if positions are hidden, divided by their number


@dataclass(frozen=True, kw_only=True)
class Explanation(Record):
    """The explanations of some sequences, the unit of all their scores and shares, and the path of their plot."""

    rows: tuple[Explained, ...]
    unit: str  # logits for classes, the unit of the label for a regression
    plot: Path


def explain(readout: Path, file: Path, options: ExplainOptions) -> Explanation:
    """Plot what each position of some sequences adds to the score of their predicted class."""
    bundle = open_readout(readout, linear=True)
    if bundle.task.readout_tokens * bundle.task.outputs > 1:
        problem = f"readout {readout}: it gives each sequence several labels"
        raise InputError(f"{problem}; explain needs a readout of one label")
    new, first = read_new(file, bundle.task), options.first
    notify_skipped(file, new.skipped, len(new.x))
    x, lengths = encode(bundle.task, new.x[:first], None if new.lengths is None else new.lengths[:first], str(file))
    if lengths.max() > bundle.task.max_tokens:
        row, most = int(np.argmax(lengths)), bundle.task.max_tokens
        problem = f"{file}, row {row}: {lengths[row]:,} tokens, but explain supports at most the {most:,} of the fit"
        raise InputError(f"{problem}; shorten the row, or use predict")
    if bundle.task.pictures:
        x = as_patches(x)
    if bundle.task.alphabet:
        x = to_symbols(x, lengths, bundle.task.alphabet)
    model = build(bundle, readout)
    if model.reader:
        problem = f"its input goes through the model's own {model.reader.kind}, which explain does not support"
        remedy = "fit a readout of features made with --input gaussian or kernels"
        raise InputError(f"readout {readout}: {problem}; {remedy}")
    numbers = [row for row in range(len(new.x) + len(new.skipped)) if row not in new.skipped]
    rows = [replace(one, row=numbers[one.row]) for one in explain_rows(model, bundle.task, x, lengths)]
    plot = options.out or (readout if readout.is_dir() else readout.parent) / "explained.png"
    unit = "logits" if bundle.task.classes else "the unit of the label"
    _plot(plot, bundle.task, x, lengths, rows, unit)
    return Explanation(rows=tuple(rows), unit=unit, plot=plot)


@torch.no_grad()
def explain_rows(model: Any, task: Task, x: np.ndarray, lengths: np.ndarray) -> list[Explained]:
    """Return the explanation of each encoded sequence."""
    symbols = task.form.vocabulary if isinstance(task.form, Tokens) else 0
    given = torch.from_numpy(x.astype(np.int64 if symbols else np.float32))
    sizes = torch.from_numpy(lengths.astype(np.int64))
    logits = model(given, sizes).flatten(1).double()
    parts = [contributions(model, given, sizes), occlusion(model, given, sizes, symbols)]
    if task.classes:
        logits, *parts = (part - part.mean(-1, keepdim=True) for part in (logits, *parts))
    found = []
    for row, length in enumerate(lengths):
        of = int(logits[row].argmax())
        added, occluded = (part[row, :length, of].tolist() for part in parts)
        score = float(logits[row, of])
        label = task.label(of) if task.classes else score
        parts_of_row = {"added": added, "elsewhere": score - sum(added), "occluded": occluded}
        found.append(Explained(row=row, label=label, score=score, **parts_of_row))
    return found


def _plot(path: Path, task: Task, x: np.ndarray, lengths: np.ndarray, rows: Sequence[Explained], unit: str) -> None:
    letters = bool(task.alphabet) and int(lengths.max()) <= MAX_LETTERS
    heights = [0.35 if letters else 1.0, 1.6]
    height = 1.1 * sum(heights) * len(rows) + 0.4
    with saved_figure(path, 9, height, f"{task.name}: what each position adds to the score") as figure:
        panels = figure.subplots(2 * len(rows), 1, squeeze=False, height_ratios=heights * len(rows))[:, 0]
        _draw(panels, letters, task, x, lengths, rows, unit)


def _draw(
    panels: np.ndarray,
    letters: bool,
    task: Task,
    x: np.ndarray,
    lengths: np.ndarray,
    rows: Sequence[Explained],
    unit: str,
) -> None:
    for number, row in enumerate(rows):
        above, below = panels[2 * number : 2 * number + 2]
        positions, values = np.arange(lengths[number]), x[number, : lengths[number]]
        above.tick_params(labelbottom=False)
        if letters:
            above.axis("off")
            for place, symbol in enumerate(values):
                above.text(place, 0.0, shorten(task.alphabet[int(symbol)]), ha="center", fontsize=8, color=INK)
        else:
            above.spines[["top", "right"]].set_visible(False)
            symbols = isinstance(task.form, Tokens)
            above.plot(values, linewidth=1, drawstyle="steps-mid" if symbols else "default")
            above.set_ylabel("symbol" if symbols else "input")
        what = f"class {row.label}" if task.classes else f"value {row.label:.4g}"
        above.set_title(f"row {row.row}: {what}, score {row.score:+.2f}", fontsize=10, color=INK)
        signs = np.where(np.array(row.added) >= 0, COLOURS[0], COLOURS[1])
        first = number == 0
        below.bar(positions, row.added, width=1.0, color=signs)
        below.bar(0, 0, color=COLOURS[0], label="raises the score" if first else None)
        below.bar(0, 0, color=COLOURS[1], label="lowers the score" if first else None)
        below.step(
            positions, row.occluded, "k", where="mid", lw=1.2, label="drop if hidden, per position" if first else None
        )
        below.sharex(above)
        style(below, "position" if row is rows[-1] else "", f"score in\n{unit}")
