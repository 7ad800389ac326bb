"""The stage ``explain``: how far the score of a label falls when a position of its sequence is hidden."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reservoir import InputError
from reservoir.errors import writing
from reservoir.options import ExplainOptions
from reservoir.sequence_model import occlusion
from reservoir.tasks.pictures import as_patches
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.texts import to_symbols
from reservoir_pipelines.data.formats import check_columns, read_new, refuse_source
from reservoir_pipelines.data.values import encode_values
from reservoir_pipelines.files import check_out_file
from reservoir_pipelines.output import Record, notify, printable
from reservoir_pipelines.plots import COLOURS, break_lines, saved_figure, shorten, style
from reservoir_pipelines.prediction.export import build
from reservoir_pipelines.prediction.load import notify_skipped, open_readout

MAX_LETTERS = 120  # letters that are legible in one row
MAX_COLUMNS = 32  # names of columns that are legible below a plot


@dataclass(frozen=True, kw_only=True)
class Explained(Record):
    """How far the score of a sequence's label falls when a position of the sequence is hidden."""

    row: int  # number of the sequence in the file, from 0
    label: Any  # predicted class, or predicted value
    score: float  # the logit of the class minus the mean of all logits, or the predicted value
    # For each position, the drop of the score if the stretch around it is hidden, divided by the stretch's positions.
    occluded: list[float]


@dataclass(frozen=True, kw_only=True)
class Explanation(Record):
    """Explanations of sequences, the unit of their scores and drops, the columns and the path of their plot."""

    rows: tuple[Explained, ...]
    unit: str  # logits for classes, the unit of the label for a regression
    columns: tuple[str, ...]  # the table column of each position; empty if positions are no columns
    plot: Path


def explain(readout: Path, file: Path, options: ExplainOptions) -> Explanation:
    """Plot how far the score of the labels of a file's first sequences falls when a position is hidden."""
    check_out_file(options.out, ".png")
    if options.out:
        refuse_source(options.out, file)
    bundle = open_readout(readout, linear=True)
    task = bundle.task
    if task.readout_tokens * task.outputs > 1:
        raise InputError(f"readout {readout}: it gives each row several labels", "explain needs one")
    # 1. The first rows of the file.
    new = read_new(file, task)
    notify_skipped(file, new.skipped, len(new))
    first_rows = slice(options.first)
    new_lengths = None if new.lengths is None else new.lengths[first_rows]
    x, lengths = encode_values(task, new.x[first_rows], new_lengths, str(file), new.names[first_rows])
    check_columns(task, lengths, str(file))
    columns = task.position_columns
    if columns and isinstance(task.form, Vectors) and bundle.position_means is None:
        notify(
            f"readout {readout}: it does not hold the means of the columns, so the mean of the row replaces a hidden "
            "value, which means nothing if columns have different units; fit or train again"
        )
    # As the model reads them: patches of images, numbers of symbols.
    if task.pictures:
        x = as_patches(x)
    if task.alphabet:
        x = to_symbols(x, lengths, task.alphabet)
    # 2. The model, and the limits of what it reads.
    model = build(bundle, readout)
    if model.reader:
        raise InputError(
            f"readout {readout}: explain does not support the model's own {model.reader.kind}",
            "fit features made with --input gaussian or kernels",
        )
    # The number of each row in the file, where rows that cannot be read count, too.
    numbers_in_file = [row for row in range(len(new) + len(new.skipped)) if row not in new.skipped]
    _check_lengths(file, lengths, numbers_in_file, fewest=model.shortest, most=task.max_tokens)
    # 3. The explanation of each row.
    rows = [
        replace(explained, row=numbers_in_file[explained.row])
        for explained in explain_rows(model, task, x, lengths, bundle.position_means)
    ]
    overflows = [explained.row for explained in rows if not np.isfinite(explained.score)]
    if overflows:
        raise InputError(
            f"{file}: the model overflows in row {overflows[0]}, whose values are too large",
            "correct or remove it",
        )
    # 4. The plot, by default beside the readout.
    readout_folder = readout if readout.is_dir() else readout.parent
    plot = options.out or readout_folder / "explained.png"
    unit = "logits" if task.classes else "the unit of the label"
    with writing(plot):
        plot.parent.mkdir(parents=True, exist_ok=True)
        _plot(plot, task, x, lengths, rows, unit)
    return Explanation(rows=tuple(rows), unit=unit, columns=columns, plot=plot)


def _check_lengths(
    file: Path, lengths: np.ndarray, numbers_in_file: Sequence[int], *, fewest: int, most: int
) -> None:
    """Raise `InputError` for the first row that has fewer or more tokens than the readout's model reads."""
    misfits = np.flatnonzero((lengths < fewest) | (lengths > most))
    if not len(misfits):
        return
    row = misfits[0]
    limit = f"at least {fewest:,}" if lengths[row] < fewest else f"at most the {most:,} of the fit"
    raise InputError(
        f"{file}, row {numbers_in_file[row]}: {lengths[row]:,} tokens, but explain reads {limit}",
        "leave the row out, or give one of another length",
    )


@torch.no_grad()
def explain_rows(
    model: Any, task: Task, x: np.ndarray, lengths: np.ndarray, means: np.ndarray | None = None
) -> list[Explained]:
    """Return the explanation of each sequence of ``x`` (rows, tokens, ...); the rows are numbered from 0.

    ``model`` returns the logits of sequences and their lengths, such as a `SequenceModel`. ``means`` (positions,
    channels) replace hidden values; by default, the mean of the row does.
    """
    vocabulary = task.form.vocabulary if isinstance(task.form, Tokens) else 0  # 0: the tokens are vectors
    inputs = torch.from_numpy(x.astype(np.int64 if vocabulary else np.float32))
    sizes = torch.from_numpy(lengths.astype(np.int64))
    logits = model(inputs, sizes).flatten(1).double()  # (rows, classes), or (rows, 1) for a regression
    replacement = None if means is None else torch.from_numpy(means)
    drops = occlusion(model, inputs, sizes, vocabulary, replacement)  # (rows, positions, classes)
    # Only differences between the logits of classes mean something, so their mean is subtracted.
    if task.classes:
        logits = logits - logits.mean(-1, keepdim=True)
        drops = drops - drops.mean(-1, keepdim=True)
    explanations = []
    for row, length in enumerate(lengths):
        output = int(logits[row].argmax())  # the predicted class; 0 for a regression
        score = float(logits[row, output])
        label = task.label(output) if task.classes else score
        occluded = drops[row, :length, output].tolist()
        explanations.append(Explained(row=row, label=label, score=score, occluded=occluded))
    return explanations


def _plot(
    path: Path, task: Task, x: np.ndarray, lengths: np.ndarray, rows: Sequence[Explained], unit: str
) -> None:
    """Save two plots for each row, one above the other: its values, and the drop of its score by position.

    ``x`` (rows, tokens, ...) and ``lengths`` (rows,) are the sequences that ``rows`` explains, and ``unit`` is that of
    the drops.
    """
    draw_style = "steps-mid" if isinstance(task.form, Tokens) else "default"
    height = 2.9 * len(rows) + 0.4  # inches: two plots for each row, and the title
    title = f"{task.name}: how far the score falls if a position is hidden"
    with saved_figure(path, 9, height, title) as figure:
        heights = [1.0, 1.6] * len(rows)
        panels = figure.subplots(2 * len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
        for number, row in enumerate(rows):
            # The values of the row above, and below how much each position matters for its score.
            values = x[number, : lengths[number]]
            above, below = panels[2 * number : 2 * number + 2]
            prediction = f"class {row.label}" if task.classes else f"value {row.label:.4g}"
            above.plot(values, linewidth=1, drawstyle=draw_style)
            row_title = above.set_title(f"row {row.row}: {prediction}, score {row.score:+.2f}", fontsize=10)
            break_lines(row_title, above.bbox.width)
            style(above, "", "input")
            above.tick_params(labelbottom=False)  # the plot below has the labels of both
            below.sharex(above)
            _draw_drops(below, row)
            if task.alphabet and int(lengths.max()) <= MAX_LETTERS:
                letters = [printable(task.alphabet[int(symbol)]) for symbol in values]
                below.set_xticks(range(len(values)), letters, fontsize=8)
            elif len(task.position_columns) in range(1, MAX_COLUMNS + 1):
                names = [shorten(printable(name), 20) for name in task.position_columns[: len(values)]]
                below.set_xticks(range(len(values)), names, fontsize=8, rotation=45, ha="right")
            is_last = row is rows[-1]
            style(below, "position" if is_last else "", f"drop in\n{unit}")


def _draw_drops(axes: Any, explained: Explained) -> None:
    """Draw how far the score of a row falls per hidden position, falls in one colour and rises in another."""
    positions = range(len(explained.occluded))
    axes.bar(positions, np.maximum(explained.occluded, 0), width=1.0, color=COLOURS[0])
    axes.bar(positions, np.minimum(explained.occluded, 0), width=1.0, color=COLOURS[1])
