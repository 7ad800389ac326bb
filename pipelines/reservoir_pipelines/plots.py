"""Draw plots with matplotlib: one style, all text literal, and a warning if a plot fails.

``draw_...`` draws arrays into axes, also for the page of `report`; ``plot_...`` saves a PNG file.
"""

from __future__ import annotations

import base64
import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from reservoir_cache import replace_file

from reservoir.column import entry_of, layer_order, parse_columns, place_of, single_column
from reservoir.errors import InputError
from reservoir_pipelines.output import is_share, notify, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from reservoir.readouts.evaluation import Evaluation

PAGE_SIZE = 4.8, 3.4  # width and height in inches of most plots on the page; also legible on a phone
INK, GRID = "#222222", "#dddddd"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MAX_TICKS = 32  # labels of an axis that can be read
MAX_NAMED_ROWS = 16  # columns whose names are legible beside a plot of settings
MAX_COUNTS = 20  # classes of a confusion matrix whose counts can be read


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure, sized in inches, in matplotlib's own style; all text is literal."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except UnicodeDecodeError as error:
        raise InputError("matplotlibrc: not a text file", "remove it from this folder") from error

    # A label in a script that the font lacks is drawn as boxes; a warning for each of its characters would not help.
    with warnings.catch_warnings(action="ignore", category=UserWarning), matplotlib.rc_context():
        # While it is imported, matplotlib reads ./matplotlibrc, which may come with downloaded data. No
        # setting of it is used: the defaults replace all that have to do with drawing, and a figure
        # without pyplot never looks up the backend.
        matplotlib.rcdefaults()
        # A class named $x_{$ is not a formula. Text is saved as text, because browsers have fonts of every script.
        matplotlib.rcParams.update(
            {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "reservoir"}
        )
        yield Figure(figsize=(width, height), layout="constrained")


@contextmanager
def saved_figure(path: Path, width: float, height: float, title: str = "") -> Iterator[Figure]:
    """Save the figure drawn within the context, sized in inches, as PNG; only warn if it cannot be drawn."""
    image = io.BytesIO()
    try:
        with new_figure(width, height) as figure:
            break_lines(figure.suptitle(printable(title), fontsize=11, color=INK), figure.bbox.width)
            yield figure
            figure.savefig(image, format="png", dpi=130)
    except InputError:
        raise
    # matplotlib may fail in many ways, for example for unusual labels, and no result depends on a plot.
    except Exception as error:
        path.unlink(missing_ok=True)  # an older plot shows other data
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        notify(f"{path}: the plot could not be drawn ({reason}); nothing else is missing")
        return
    # Outside the block, because a file that cannot be written is a fault of the path or the disk.
    replace_file(path, lambda temporary: temporary.write_bytes(image.getvalue()))


def break_lines(title: Text, width: float) -> None:
    """Break a title into lines of at most ``width`` pixels, within words if necessary, so that none is cut."""
    text = title.get_text()
    characters = len(text)  # largest number of characters in a line
    # Characters differ in width, so shorten the lines until the drawn title is narrow enough.
    while title.get_window_extent().width > 0.96 * width and characters > 1:
        characters = max(1, characters * 9 // 10)
        title.set_text("\n".join(textwrap.wrap(text, characters)))


@dataclass(frozen=True)
class PagePlot:
    """A plot for the page of `report`: ``draw(axes, *arguments)`` is called when the page shows it."""

    text: str  # description, for those who cannot see the plot
    draw: Callable[..., None]
    arguments: tuple[Any, ...]
    size: tuple[float, float] = PAGE_SIZE  # width and height in inches
    name: str = ""  # heading; empty for a plot without one

    @cached_property
    def image(self) -> str:
        """The SVG image as a data URI, empty if drawing fails."""
        buffer = io.BytesIO()
        try:
            with new_figure(*self.size) as figure:
                self.draw(figure.subplots(), *self.arguments)
                # Without a date, equal plots are equal bytes.
                figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
        except Exception as error:  # the page is complete without the plot
            notify(f"a plot of the page could not be drawn ({error})")
            return ""
        # Inside an image, no text of the SVG can run code or load anything.
        return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def style(axes: Axes, x: str, y: str) -> None:
    """Label the axes, and give them a pale grid, two spines, and a legend if any line has a label."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def plot(
    path: Path, size: tuple[float, float], title: str, draw: Callable[..., None], *arguments: Any
) -> None:
    """Save a PNG file of what ``draw(axes, *arguments)`` draws, with a title; ``size`` is in inches."""
    with saved_figure(path, *size, title) as figure:
        draw(figure.subplots(), *arguments)


def in_unit(metric: str) -> tuple[float, str]:
    """Return the factor and the axis label with which scores of a metric are drawn: accuracies in percent."""
    name = metric.replace("_", " ")
    return (100.0, f"{name} (%)") if is_share(metric) else (1.0, name)


def curve_points(history: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0) -> np.ndarray:
    """Return an array (lines, 2): step, and value times ``factor``, of each line that has the value."""
    points = [(line["step"], factor * line[name]) for line in history if line.get(name) is not None]
    return np.array(points, float).reshape(-1, 2)


def draw_course(axes: Axes, curves: Sequence[np.ndarray], y_label: str, best: int | None = None) -> None:
    """Draw the curves of training and of validation, and a line at the best step, if there is one.

    Each curve is an array (points, 2) of steps and values. That of training is smoothed over 1% of its points.
    """
    train, valid = curves
    if len(train):
        width = max(1, len(train) // 100)
        # Each mean is over ``width`` points, and is drawn at the step of the last of them.
        means = np.convolve(train[:, 1], np.full(width, 1 / width), mode="valid")
        steps = train[width - 1 :, 0]
        line = "o-" if len(train) == 1 else "-"  # a line of one point would not be seen
        axes.plot(steps, means, line, color=COLOURS[0], markersize=3, linewidth=1, label="train")
    if len(valid):
        axes.plot(*valid.T, "o-", color=COLOURS[1], markersize=3, linewidth=1.5, label="valid")
    if best is not None:
        axes.axvline(best, color=INK, linestyle="--", linewidth=1, label="best")
    style(axes, "step", y_label)


def plot_training(
    path: Path,
    history: Sequence[dict[str, Any]],
    best_step: int | None,
    title: str,
    *,
    metric: str = "accuracy",
) -> None:
    """Draw training and validation loss and score over the steps; accuracies in percent."""
    factor, unit = in_unit(metric)
    losses = [curve_points(history, name) for name in ("loss", "valid_loss")]
    scores = [curve_points(history, name, factor) for name in ("accuracy", "valid_score")]
    with saved_figure(path, 10, 4, title) as figure:
        left, right = figure.subplots(1, 2)
        draw_course(left, losses, "loss", best_step)
        draw_course(right, scores, unit, best_step)
        left.set_ylim(bottom=0)


def draw_bits(axes: Axes, history: Sequence[dict[str, Any]], unit: str, entropy: float | None) -> None:
    """Draw training and validation loss of a pretraining over the steps, with the lowest possible loss."""
    if entropy is not None:
        axes.axhline(entropy, color=INK, linestyle="--", linewidth=1, label="lowest possible")
    curves = [curve_points(history, name) for name in ("bits", "valid_bits")]
    draw_course(axes, curves, f"bits per {unit}")


class ScoreGrid(NamedTuple):
    """The validation scores of all readouts that `fit` tried."""

    columns: Sequence[str]  # names
    settings: Sequence[str]  # such as penalties
    scores: np.ndarray  # (columns, settings), NaN if not tried
    best: tuple[int, int]  # numbers of the chosen column and setting


def draw_layers(axes: Axes, grid: ScoreGrid, raw: float | None, metric: str) -> None:
    """Draw the best validation score of every layer, a line for each pooling, and the score of the raw input.

    If the chosen readout joins several columns, it is a horizontal line. If all readouts do, each is a
    point.
    """
    factor, unit = in_unit(metric)
    best_scores = dict(zip(grid.columns, factor * np.nanmax(grid.scores, axis=1), strict=True))
    # The name of each single column by its layer and pooling; names of several columns are left out, unless all are.
    name_at: dict[tuple[str, str], str] = {}
    for name in best_scores:
        column = single_column(name)  # None for several columns
        if column:
            name_at[column.place, column.pooling] = name
    if not name_at:
        name_at = {(name, "concatenated"): name for name in best_scores}
    layers = _with_gaps(sorted({layer for layer, _ in name_at}, key=column_order))
    # One line for each pooling, with NaN where a layer has no such column. Poolings beyond the colours are left out.
    for colour, pooling in zip(COLOURS, dict.fromkeys(pooling for _, pooling in name_at), strict=False):
        values = [best_scores.get(name_at.get((layer, pooling), ""), np.nan) for layer in layers]
        line = "o" if pooling == "concatenated" else "o-"
        axes.plot(
            range(len(layers)), values, line, color=colour, label=pooling, markersize=4, linewidth=1.5
        )
    chosen = grid.columns[grid.best[0]]
    if chosen not in name_at.values():
        axes.axhline(best_scores[chosen], color=INK, linewidth=1, label=shorten(chosen))
    if raw is not None:
        axes.axhline(factor * raw, color=INK, linestyle="--", linewidth=1, label="raw input")
    axes.set_ylim(top=min(axes.get_ylim()[1], 1.005 * factor))  # no score is above 1
    _name_ticks(axes.xaxis, layers, rotation=90)
    style(axes, "layer", f"validation {unit}, best setting")


def draw_settings(axes: Axes, grid: ScoreGrid, metric: str) -> None:
    """Draw the validation scores of the best columns under every setting, and circle the chosen readout."""
    best_column, best_setting = grid.best
    factor, unit = in_unit(metric)
    # The rows of the image: numbers of the `MAX_NAMED_ROWS` best columns, the chosen one among them, by layer.
    ranked: list[int] = np.argsort(-np.nanmax(grid.scores, axis=1), kind="stable").tolist()
    rows = sorted({best_column, *ranked[: MAX_NAMED_ROWS - 1]}, key=lambda i: column_order(grid.columns[i]))
    # Its columns: numbers of the settings that at least half of the rows have. Further settings, tried because an end
    # of the grid was best, would be gaps in most rows.
    is_common = (~np.isnan(grid.scores[rows])).mean(axis=0) >= 0.5
    settings = [j for j in range(len(grid.settings)) if is_common[j] or j == best_setting]
    values = factor * grid.scores[rows][:, settings]
    # The worst settings would use up most colours: scores below the median share the darkest one.
    low, high = float(np.nanmedian(values)), float(np.nanmax(values))
    low = min(low, high - 0.01 * factor)  # equal ends would be extended beyond 100%
    image = axes.imshow(values, aspect="auto", origin="lower", cmap="viridis", vmin=low, vmax=high)
    axes.figure.colorbar(image, ax=axes, shrink=0.9)
    x, y = settings.index(best_setting), rows.index(best_column)
    for colour, width in ((INK, 4), ("white", 2)):  # a white ring on a dark one is seen on any cell
        axes.plot(x, y, "o", color=colour, markeredgewidth=width, markersize=11, fillstyle="none")
    _name_ticks(axes.xaxis, [grid.settings[j] for j in settings], rotation=90, most=16)
    _name_ticks(axes.yaxis, [grid.columns[i] for i in rows])
    axes.set_xlabel("penalty or setting")
    title = axes.set_title(f"validation {unit}, chosen readout circled", fontsize=9, color=INK)
    break_lines(title, axes.bbox.width)


def plot_sweep(path: Path, grid: ScoreGrid, raw: float | None, metric: str, title: str) -> None:
    """Save `draw_layers` and `draw_settings` side by side."""
    with saved_figure(path, 11, 4.6, title) as figure:
        lines, heat = figure.subplots(1, 2)
        draw_layers(lines, grid, raw, metric)
        draw_settings(heat, grid, metric)


def draw_curve(axes: Axes, curve: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Draw mean scores on valid and test, and their ranges, over the number of training rows."""
    factor, unit = in_unit(metric)
    rows = [point["rows"] for point in curve]
    for colour, name in zip(COLOURS, ("valid", "test"), strict=False):
        scores = factor * np.array([point[f"{name}_score"] for point in curve])
        lowest, highest = factor * np.array([point[f"{name}_range"] for point in curve]).T
        axes.plot(rows, scores, "o-", color=colour, label=name, markersize=4)
        axes.fill_between(rows, lowest, highest, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks(rows, [f"{count:,}" for count in rows], fontsize=8, minor=False)
    axes.minorticks_off()
    style(axes, "training rows", unit)


def draw_twin(
    axes: Axes, layers: Sequence[str], models: Mapping[str, np.ndarray], raw: float | None, metric: str
) -> None:
    """Draw the test scores of models by layer with their 95% intervals, and the score of the raw input.

    ``models`` has an array (layers, 3) by the name of the model: the score, and the ends of its interval.
    """
    factor, unit = in_unit(metric)
    positions = range(len(layers))
    for colour, (name, values) in zip(COLOURS, models.items(), strict=False):
        scores, lowest, highest = factor * values.T
        axes.plot(positions, scores, "o-", color=colour, label=name, markersize=4)
        axes.fill_between(positions, lowest, highest, color=colour, alpha=0.2, linewidth=0)
    if raw is not None:
        axes.axhline(factor * raw, color=INK, linestyle="--", linewidth=1, label="raw input")
    _name_ticks(axes.xaxis, layers, rotation=90)
    style(axes, "layer", f"test {unit}")


def draw_confusion(axes: Axes, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Draw ``counts`` of each class (rows) predicted as each class (columns), coloured by their share of the row."""
    # A class without rows has the share 0.
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="share of the class")
    if len(classes) <= MAX_COUNTS:
        for row, column in np.argwhere(counts).tolist():  # cells with a count
            ink = "white" if shares[row, column] > 0.5 else INK
            count = f"{counts[row, column]:,}"
            axes.text(column, row, count, ha="center", va="center", fontsize=7, color=ink)
    _name_both_axes(axes, classes, "predicted", "class")


def plot_confusion(path: Path, evaluation: Evaluation | None, title: str) -> None:
    """Save the plot of `draw_confusion`; do nothing for a regression, or without an evaluation."""
    if not evaluation or not evaluation.classes:
        return
    side = confusion_side(evaluation.classes)
    heading = f"{title}: test accuracy {evaluation.scores['accuracy']:.1%}"
    plot(path, (side + 1, side), heading, draw_confusion, evaluation.confusion, evaluation.classes)


def draw_values(axes: Axes, values: np.ndarray) -> None:
    """Draw the predicted values of a regression against the true ones; ``values`` (2, n) has both."""
    axes.scatter(*values, s=12, alpha=0.6, color=COLOURS[0])
    ends = [values.min(), values.max()]
    axes.plot(ends, ends, color=INK, linewidth=1, label="predicted = true")
    style(axes, "true value", "predicted value")


def confusion_side(classes: Sequence[str]) -> float:
    """Return the height of a confusion matrix's plot, in inches."""
    return min(9.0, 3.5 + 0.3 * len(classes))


def shorten(name: str, most: int = 32) -> str:
    """Return a name with control characters escaped, and with … for its middle if it has over ``most`` characters."""
    name = printable(name)
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def shorten_all(names: Sequence[str]) -> list[str]:
    """Return short names; if two would look alike, return only the words in which the names differ."""
    short_names = [shorten(name) for name in names]
    if len(set(short_names)) == len(set(names)):
        return short_names
    # Words, and what is between words, so that a name is all of its parts joined.
    parts_of_names = [re.findall(r"\w+|\W+", name) for name in names]
    shared = set.intersection(*map(set, parts_of_names))
    different = ["".join(part for part in parts if part not in shared) for parts in parts_of_names]
    return [f"…{shorten(text)}…" for text in different]


def _with_gaps(layers: Sequence[str]) -> list[str]:
    """Return layers, sorted by entry, with an empty name between two entries, which leaves a gap in the lines."""
    names: list[str] = []
    for _, layers_of_entry in itertools.groupby(layers, entry_of):
        names += ["", *layers_of_entry]
    return names[1:]  # no gap before the first entry


def column_order(column: str) -> tuple[tuple[bool, str, bool, str], str]:
    """Return the sort key of a layer or column: by entry, then in the order in which the model computes the layers."""
    place = place_of(parse_columns(column)[0])  # of joined columns, that of the first one
    return layer_order(place), column


def _name_ticks(axis: Axis, names: Sequence[str], rotation: float = 0, most: int = MAX_TICKS) -> None:
    """Label the positions 0, 1, ... of an axis with short names, at most ``most`` of them at equal distances."""
    distance = max(1, -(-len(names) // most))
    ticks = range(0, len(names), distance)
    axis.set_ticks(ticks, shorten_all([names[i] for i in ticks]), fontsize=7, rotation=rotation)


def _name_both_axes(axes: Axes, names: Sequence[str], x: str, y: str) -> None:
    """Label the rows and the columns of a square matrix with the same names; ``x`` and ``y`` are the axes' titles."""
    _name_ticks(axes.xaxis, names, rotation=90)
    _name_ticks(axes.yaxis, names)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def draw_deviations(axes: Axes, deviations: Mapping[str, Sequence[float | None]], kind: str) -> None:
    """Draw the standard deviation over the blocks of each tensor of one kind, ``weight`` or ``bias``.

    ``deviations`` has the values of all blocks, None for a block without the tensor, by the tensor's name.
    """
    names = [name for name in deviations if ("bias" in name) == (kind == "bias")]
    for number, name in enumerate(names):
        # There may be more tensors than colours: the line style changes after each round of colours.
        colour = COLOURS[number % len(COLOURS)]
        line = ("o-", "o--", "o:")[number // len(COLOURS) % 3]
        values = np.array(deviations[name], float)
        label = name.removesuffix(f".{kind}")
        axes.plot(np.arange(1, len(values) + 1), values, line, color=colour, label=label, markersize=3.5)
    axes.set_ylim(bottom=0)
    axes.locator_params("x", integer=True)
    style(axes, "block", f"standard deviation of each {kind}")


def plot_deviations(path: Path, deviations: Mapping[str, Sequence[float | None]], title: str) -> None:
    """Save `draw_deviations` of weights and biases side by side."""
    with saved_figure(path, 11, 4.2, title) as figure:
        for axes, kind in zip(figure.subplots(1, 2, sharex=True), ("weight", "bias"), strict=True):
            draw_deviations(axes, deviations, kind)


def draw_map(
    axes: Axes, values: np.ndarray, labels: Sequence[str], diagonals: Mapping[int, str], top: float
) -> None:
    """Draw an attention map (queries, keys) with the names of its tokens and lines at some diagonals.

    ``diagonals`` has the name of each string of a bit task, by how many tokens before a readout token the string
    has the bit that the token asks for. ``top`` is the value at the top of the colour scale.
    """
    image = axes.imshow(values, cmap="magma", vmin=0, vmax=top)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, extend="max")
    _name_both_axes(axes, labels, "attends to token", "token")
    # A line covers the readout tokens, which are the last ones. Their number is the shortest distance to another
    # string; the distance 0 is that of a token to itself.
    readout_tokens = min((distance for distance in diagonals if distance > 0), default=0)
    # The edges of the rows of the image that show these tokens.
    ends = np.array([len(values) - readout_tokens - 0.5, len(values) - 0.5])
    for number, (distance, string_name) in enumerate(sorted(diagonals.items())):
        colour = COLOURS[(number + 2) % len(COLOURS)]
        label = f"same bit of {string_name}"
        axes.plot(ends - distance, ends, "--", color=colour, linewidth=1, alpha=0.7, label=label)
    if diagonals:
        axes.legend(fontsize=7, loc="upper right", framealpha=0.8)


def attention_top(values: np.ndarray) -> float:
    """Return the top of the colour scale of maps, of any shape: the 97% quantile of their positive values."""
    # The first tokens of a causal model attend to few tokens, so their large weights would hide all other values.
    return float(np.nanquantile(values[values > 0], 0.97))
