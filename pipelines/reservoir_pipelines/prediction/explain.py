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
from reservoir_pipelines.output import Record, printable
from reservoir_pipelines.plots import COLOURS, break_lines, saved_figure, style
from reservoir_pipelines.prediction.export import build
from reservoir_pipelines.prediction.load import notify_skipped, open_readout

MAX_LETTERS = 120  # letters that are legible in one row
LEGEND = ("raises the score", "lowers the score", "drop if hidden, per position")


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
    """Explanations of sequences, the unit of their scores and shares, and the path of their plot."""

    rows: tuple[Explained, ...]
    unit: str  # logits for classes, the unit of the label for a regression
    plot: Path


def explain(readout: Path, file: Path, options: ExplainOptions) -> Explanation:
    """Plot what each position of some sequences adds to the score of their predicted class."""
    bundle = open_readout(readout, linear=True)
    task, most = bundle.task, bundle.task.max_tokens
    if task.readout_tokens * task.outputs > 1:
        raise InputError(f"readout {readout}: it gives each row several labels; explain needs one")
    new, first = read_new(file, task), options.first
    notify_skipped(file, new.skipped, len(new.x))
    x, lengths = encode(
        task, new.x[:first], None if new.lengths is None else new.lengths[:first], str(file)
    )
    if lengths.max() > most:
        row = np.argmax(lengths)
        problem = f"{file}, row {row}: {lengths[row]:,} tokens, but explain supports at most the {most:,} of the fit"
        raise InputError(f"{problem}; shorten the row")
    x = as_patches(x) if task.pictures else x
    x = to_symbols(x, lengths, task.alphabet) if task.alphabet else x
    model = build(bundle, readout)
    if model.reader:
        problem = f"readout {readout}: explain does not support the model's own {model.reader.kind}"
        raise InputError(f"{problem}; fit features made with --input gaussian or kernels")
    numbers = [row for row in range(len(new.x) + len(new.skipped)) if row not in new.skipped]
    rows = [replace(one, row=numbers[one.row]) for one in explain_rows(model, task, x, lengths)]
    if wrong := [one.row for one in rows if not np.isfinite(one.score)]:
        row = f"row {wrong[0]}, whose values are too large"
        raise InputError(f"{file}: the model overflows in {row}; correct or remove it")
    plot = options.out or (readout if readout.is_dir() else readout.parent) / "explained.png"
    unit = "logits" if task.classes else "the unit of the label"
    _plot(plot, task, x, lengths, rows, unit)
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


def _plot(
    path: Path, task: Task, x: np.ndarray, lengths: np.ndarray, rows: Sequence[Explained], unit: str
) -> None:
    """Save two plots for each row, one above the other: its values, and what each position adds to the score."""
    line = "steps-mid" if isinstance(task.form, Tokens) else "default"
    height = 2.9 * len(rows) + 0.4
    with saved_figure(path, 9, height, f"{task.name}: what each position adds to the score") as figure:
        panels = figure.subplots(2 * len(rows), 1, squeeze=False, height_ratios=[1.0, 1.6] * len(rows))[
            :, 0
        ]
        for number, row in enumerate(rows):
            values = x[number, : lengths[number]]
            above, below = panels[2 * number : 2 * number + 2]
            what = f"class {row.label}" if task.classes else f"value {row.label:.4g}"
            above.plot(values, linewidth=1, drawstyle=line)
            title = above.set_title(f"row {row.row}: {what}, score {row.score:+.2f}", fontsize=10)
            break_lines(title, above.bbox.width)
            style(above, "", "input")
            above.tick_params(labelbottom=False)
            below.sharex(above)
            _draw_parts(below, row, (None, None, None) if number else LEGEND)
            if task.alphabet and int(lengths.max()) <= MAX_LETTERS:
                letters = [printable(task.alphabet[int(symbol)]) for symbol in values]
                below.set_xticks(range(len(values)), letters, fontsize=8)
            style(below, "position" if row is rows[-1] else "", f"score in\n{unit}")


def _draw_parts(axes: Any, row: Explained, legend: Sequence[str | None]) -> None:
    """Draw what each position adds to the score of a row, and how much the score drops if the position is hidden."""
    positions = range(len(row.added))
    axes.bar(positions, np.maximum(row.added, 0), width=1.0, color=COLOURS[0], label=legend[0])
    axes.bar(positions, np.minimum(row.added, 0), width=1.0, color=COLOURS[1], label=legend[1])
    axes.step(positions, row.occluded, "k", where="mid", lw=1.2, label=legend[2])
