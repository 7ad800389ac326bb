"""The stage ``explain``: how far the score of a label falls when a position of its sequence is hidden."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reservoir import InputError
from reservoir.options import ExplainOptions
from reservoir.sequence_model import occlusion
from reservoir.tasks.pictures import as_patches
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.words import to_symbols
from reservoir_pipelines.data.formats import read_new
from reservoir_pipelines.data.values import encode
from reservoir_pipelines.output import Record, printable
from reservoir_pipelines.plots import COLOURS, break_lines, saved_figure, style
from reservoir_pipelines.prediction.export import build
from reservoir_pipelines.prediction.load import notify_skipped, open_readout

MAX_LETTERS = 120  # letters that are legible in one row


@dataclass(frozen=True, kw_only=True)
class Explained(Record):
    """How far the score of a sequence's label falls when a position of the sequence is hidden."""

    row: int  # its number in the file, from 0
    label: Any
    score: float  # the logit of the class minus the mean of all logits, or the predicted value
    occluded: list[float]  # drop of the score if positions are hidden, divided by their number


@dataclass(frozen=True, kw_only=True)
class Explanation(Record):
    """Explanations of sequences, the unit of their scores and shares, and the path of their plot."""

    rows: tuple[Explained, ...]
    unit: str  # logits for classes, the unit of the label for a regression
    plot: Path


def explain(readout: Path, file: Path, options: ExplainOptions) -> Explanation:
    """Plot how far the score of some sequences' labels falls when a position is hidden."""
    bundle = open_readout(readout, linear=True)
    task, most = bundle.task, bundle.task.max_tokens
    if task.readout_tokens * task.outputs > 1:
        raise InputError(f"readout {readout}: it gives each row several labels", "explain needs one")
    # Read the first rows of the file, as the model's input.
    new, first = read_new(file, task), options.first
    notify_skipped(file, new.skipped, len(new))
    x, lengths = encode(
        task, new.x[:first], None if new.lengths is None else new.lengths[:first], str(file)
    )
    if lengths.max() > most:
        row = np.argmax(lengths)
        raise InputError(
            f"{file}, row {row}: {lengths[row]:,} tokens, but explain supports at most the {most:,} of the fit",
            "shorten the row",
        )
    # As the model reads them: patches of images, numbers of symbols.
    x = as_patches(x) if task.pictures else x
    x = to_symbols(x, lengths, task.alphabet) if task.alphabet else x
    model = build(bundle, readout)
    if model.reader:
        raise InputError(
            f"readout {readout}: explain does not support the model's own {model.reader.kind}",
            "fit features made with --input gaussian or kernels",
        )
    # The number of each row in the file, where rows that cannot be read count, too.
    numbers = [row for row in range(len(new) + len(new.skipped)) if row not in new.skipped]
    rows = [replace(row, row=numbers[row.row]) for row in explain_rows(model, task, x, lengths)]
    overflows = [row.row for row in rows if not np.isfinite(row.score)]
    if overflows:
        raise InputError(
            f"{file}: the model overflows in row {overflows[0]}, whose values are too large",
            "correct or remove it",
        )
    plot = options.out or (readout if readout.is_dir() else readout.parent) / "explained.png"
    unit = "logits" if task.classes else "the unit of the label"
    _plot(plot, task, x, lengths, rows, unit)
    return Explanation(rows=tuple(rows), unit=unit, plot=plot)


@torch.no_grad()
def explain_rows(model: Any, task: Task, x: np.ndarray, lengths: np.ndarray) -> list[Explained]:
    """Return the explanation of each encoded sequence."""
    symbols = task.form.vocabulary if isinstance(task.form, Tokens) else 0
    inputs = torch.from_numpy(x.astype(np.int64 if symbols else np.float32))
    sizes = torch.from_numpy(lengths.astype(np.int64))
    logits = model(inputs, sizes).flatten(1).double()
    drops = occlusion(model, inputs, sizes, symbols)
    # Only differences between the logits of classes mean something, so their mean is subtracted.
    if task.classes:
        logits = logits - logits.mean(-1, keepdim=True)
        drops = drops - drops.mean(-1, keepdim=True)
    explanations = []
    for row, length in enumerate(lengths):
        output = int(logits[row].argmax())
        score = float(logits[row, output])
        label = task.label(output) if task.classes else score
        occluded = drops[row, :length, output].tolist()
        explanations.append(Explained(row=row, label=label, score=score, occluded=occluded))
    return explanations


def _plot(
    path: Path, task: Task, x: np.ndarray, lengths: np.ndarray, rows: Sequence[Explained], unit: str
) -> None:
    """Save two plots for each row, one above the other: its values, and the drop of its score by position."""
    line = "steps-mid" if isinstance(task.form, Tokens) else "default"
    height = 2.9 * len(rows) + 0.4
    with saved_figure(
        path, 9, height, f"{task.name}: how far the score falls if a position is hidden"
    ) as figure:
        panels = figure.subplots(2 * len(rows), 1, squeeze=False, height_ratios=[1.0, 1.6] * len(rows))[
            :, 0
        ]
        for number, row in enumerate(rows):
            # The values of the row above, and below how much each position matters for its score.
            values = x[number, : lengths[number]]
            above, below = panels[2 * number : 2 * number + 2]
            what = f"class {row.label}" if task.classes else f"value {row.label:.4g}"
            above.plot(values, linewidth=1, drawstyle=line)
            title = above.set_title(f"row {row.row}: {what}, score {row.score:+.2f}", fontsize=10)
            break_lines(title, above.bbox.width)
            style(above, "", "input")
            above.tick_params(labelbottom=False)
            below.sharex(above)
            _draw_drops(below, row)
            if task.alphabet and int(lengths.max()) <= MAX_LETTERS:
                letters = [printable(task.alphabet[int(symbol)]) for symbol in values]
                below.set_xticks(range(len(values)), letters, fontsize=8)
            style(below, "position" if row is rows[-1] else "", f"drop in\n{unit}")


def _draw_drops(axes: Any, row: Explained) -> None:
    """Draw how far the score of a row falls per hidden position, falls in one colour and rises in another."""
    positions = range(len(row.occluded))
    axes.bar(positions, np.maximum(row.occluded, 0), width=1.0, color=COLOURS[0])
    axes.bar(positions, np.minimum(row.occluded, 0), width=1.0, color=COLOURS[1])
