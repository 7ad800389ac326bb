"""Draw plots with matplotlib: one style, all text literal, and a warning if a plot fails.

``draw_...`` draws arrays into axes, also for the page of `report`; ``plot_...`` saves a PNG file.
"""

from __future__ import annotations

import base64
import io
import itertools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import numpy as np

from reservoir_pipelines.files import replace_file
from reservoir_pipelines.output import is_share, notify, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from reservoir.readouts.evaluation import Evaluation

PAGE_SIZE = 4.8, 3.4  # inches of most plots on the page; also legible on a phone
INK, GRID = "#222222", "#dddddd"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MAX_LEVEL = 14  # names of layers that fit on the axis horizontally
MAX_TICKS = 32
MAX_COUNTS = 20  # classes of a confusion matrix whose counts can be read

P = ParamSpec("P")

_importing = threading.Lock()


@contextmanager
def own_style() -> Iterator[None]:
    """Use matplotlib's defaults within the context, not its configuration files, and draw all text literally."""
    exists = os.path.exists
    with _importing:
        # Matplotlib first reads ./matplotlibrc, which may come with downloaded data, and no option prevents that.
        # During its import, this relative name is reported as missing; other files are found as usual.
        os.path.exists = lambda path: path != "matplotlibrc" and exists(path)
        try:
            import matplotlib
        finally:
            os.path.exists = exists
    # A label in a script that the font lacks is drawn as boxes; a warning for each of its characters would not help.
    with warnings.catch_warnings(action="ignore", category=UserWarning), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False  # a class named $x_{$ is not a formula
        # Text is saved as text, not as paths: browsers have fonts of every script. The fixed salt gives equal files.
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "reservoir"})
        yield


def saved_plot(draw: Callable[Concatenate[Path, P], None]) -> Callable[Concatenate[Path, P], None]:
    """Decorate a function that saves a plot: use `own_style`, and warn instead of raising if it fails."""

    @wraps(draw)
    def draw_or_warn(path: Path, *arguments: P.args, **options: P.kwargs) -> None:
        try:
            with own_style():
                draw(path, *arguments, **options)
        except Exception as error:
            path.unlink(missing_ok=True)  # an older plot shows other data
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            notify(f"{path}: the plot could not be drawn ({reason}); the results are saved")

    return draw_or_warn


def page_plot(size: tuple[float, float], draw: Callable[..., None], *arguments: Any) -> str:
    """Return the data URI of an SVG image by ``draw(axes, ...)`` with a size in inches; empty if drawing fails."""
    # Inside an image, no text of the SVG can run code or load anything.
    buffer = io.BytesIO()
    try:
        with own_style():
            figure = figure_of(*size)
            draw(figure.subplots(), *arguments)
            _escape_texts(figure)
            figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    except Exception as error:
        notify(f"a plot of the page could not be drawn ({error})")
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure_of(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure with its width and height in inches, and a heading."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def style(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Label the axes, and give them a pale grid, two spines, and a legend if any line has a label."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10, color=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, which is replaced atomically."""
    _escape_texts(figure)
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=130))


@saved_plot
def plot(path: Path, size: tuple[float, float], title: str, draw: Callable[..., None], *arguments: Any) -> None:
    """Save the output of ``draw(axes, ...)`` with a size in inches and a title."""
    figure = figure_of(*size, title)
    draw(figure.subplots(), *arguments)
    save(figure, path)


def _escape_texts(figure: Figure) -> None:
    """Escape characters that cannot be drawn: fonts have no lone surrogates, and draw control characters as boxes."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            # This formatter sets the texts of named ticks again when they are drawn, so its output is escaped too.
            if isinstance(formatter := axis.get_major_formatter(), FuncFormatter):
                axis.set_major_formatter(FuncFormatter(lambda value, n, inner=formatter: _literal(inner(value, n))))
    for text in figure.findobj(Text):
        text.set_text(_literal(text.get_text()))


def _literal(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))  # our own titles have line breaks


def in_unit(metric: str) -> tuple[float, str]:
    """Return the factor and the name with which scores are drawn; accuracies are drawn in percent."""
    name = metric.replace("_", " ")
    return (100.0, f"{name} (%)") if is_share(metric) else (1.0, name)


def curve_points(history: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0) -> np.ndarray:
    """Return an array (lines, 2): step, and value times ``factor``, of each line that has the value."""
    found = [(line["step"], factor * line[name]) for line in history if line.get(name) is not None]
    return np.array(found, float).reshape(-1, 2)


def draw_course(axes: Axes, train: np.ndarray, valid: np.ndarray, y: str, best: int | None = None) -> None:
    """Draw the (step, value) pairs of training, smoothed over 1% of them, and of validation; mark the best step."""
    if len(train):
        width = max(1, len(train) // 100)
        smooth = np.convolve(train[:, 1], np.full(width, 1 / width), mode="valid")
        line = "o-" if len(train) == 1 else "-"
        axes.plot(train[width - 1 :, 0], smooth, line, color=COLOURS[0], markersize=3, linewidth=1, label="train")
    if len(valid):
        axes.plot(*valid.T, "o-", color=COLOURS[1], markersize=3, linewidth=1.5, label="valid")
    if best is not None:
        axes.axvline(best, color=INK, linestyle="--", linewidth=1, label="best")
    style(axes, "step", y)


@saved_plot
def plot_training(
    path: Path, history: Sequence[dict[str, Any]], best_step: int | None, title: str, *, metric: str = "accuracy"
) -> None:
    """Draw training and validation loss and score over the steps, with the best step marked; accuracies in percent."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = figure_of(10, 4, title)
    panels = figure.subplots(1, 2)
    factor, unit = in_unit(metric)
    losses = [curve_points(history, name) for name in ("loss", "valid_loss")]
    scores = [curve_points(history, name, factor) for name in ("accuracy", "valid_score")]
    for axes, (train, valid), name in zip(panels, (losses, scores), ("loss", unit), strict=True):
        draw_course(axes, train, valid, name, best_step)
        axes.set_xlim(0, 1.03 * max([1, *(line["step"] for line in history)]))
        axes.xaxis.set_major_locator(MaxNLocator(9, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panels[0].set_ylim(bottom=0)
    save(figure, path)


@saved_plot
def plot_pretraining(
    path: Path, history: Sequence[dict[str, Any]], unit: str, entropy: float | None, title: str
) -> None:
    """Draw training and validation loss over the steps, with the lowest possible loss."""
    figure = figure_of(7, 4, title)
    axes = figure.subplots()
    if entropy is not None:
        axes.axhline(entropy, color=INK, linestyle="--", linewidth=1, label="lowest possible")
    draw_course(axes, curve_points(history, "bits"), curve_points(history, "valid_bits"), f"bits per {unit}")
    save(figure, path)


def draw_layers(
    axes: Axes, columns: Sequence[str], scores: np.ndarray, best: int, raw: float | None, metric: str
) -> None:
    """Draw the best validation score of every layer, a line for each pooling, and the score of the raw input.

    ``scores`` (columns, settings) are NaN if not tried. If ``best`` joins several columns, it is a horizontal line.
    """
    factor, unit = in_unit(metric)
    places = _places(columns)
    tops = factor * np.nanmax(scores, axis=1)
    names = _with_gaps(sorted({layer for layer, _ in places.values()}, key=layer_order))
    for colour, pooling in zip(COLOURS, dict.fromkeys(pooling for _, pooling in places.values()), strict=False):
        found = {layer: tops[i] for i, (layer, kind) in places.items() if kind == pooling}
        values = [found.get(name, np.nan) for name in names]
        axes.plot(range(len(names)), values, "o-", color=colour, label=pooling, markersize=4, linewidth=1.5)
    if best not in places:
        axes.axhline(tops[best], color=INK, linewidth=1, label=shorten(columns[best]))
    if raw is not None:
        axes.axhline(factor * raw, color=INK, linestyle="--", linewidth=1, label="raw input")
    ticks = {place: shorten(name).replace("block", "") for place, name in enumerate(names) if name}
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8, rotation=90 if len(ticks) > MAX_LEVEL else 0)
    style(axes, "layer", f"validation {unit}, best setting")


def draw_settings(
    axes: Axes, columns: Sequence[str], settings: Sequence[str], scores: np.ndarray, best: tuple[int, int], metric: str
) -> None:
    """Draw the validation score of every layer under every setting, for the pooling of the chosen readout.

    ``best`` (column, setting) is circled. If it joins columns, the pooling of the best single column is shown.
    """
    factor, unit = in_unit(metric)
    places = _places(columns)
    shown = places.get(best[0], places[max(places, key=np.nanmax(scores, axis=1).__getitem__)])[1]
    rows = sorted((i for i in places if places[i][1] == shown), key=lambda i: layer_order(places[i][0]))
    # The grid is extended for some columns only; settings that few layers have would show as gaps and are left out.
    counts = (~np.isnan(scores[rows])).sum(axis=0)
    tried = [j for j in np.flatnonzero(counts).tolist() if 2 * counts[j] >= counts.max() or j == best[1]]
    values = factor * scores[rows][:, tried]
    # The worst settings would use up most colours, so only the upper part of the range is shown.
    top, middle = np.nanmax(values), np.nanmedian(values)
    low = max(np.nanmin(values), top - 2 * (top - middle) - 0.01 * abs(top))
    image = axes.imshow(values, aspect="auto", origin="lower", cmap="viridis", vmin=low, vmax=top)
    note = ""
    if best[0] in places:
        note, place = ", chosen readout circled", (tried.index(best[1]), rows.index(best[0]))
        axes.plot(*place, "o", markersize=11, fillstyle="none", color="white", markeredgewidth=2)
    ticks = range(0, len(tried), max(1, (len(tried) - 1) // 4))
    axes.set_xticks(ticks, [settings[tried[i]].replace(", ", "\n") for i in ticks], fontsize=8)
    penalties = all(settings[i][:1].isdigit() for i in tried)
    axes.set_xlabel("penalty" if penalties else "setting")
    axes.tick_params("x", rotation=0 if penalties else 30)  # words do not fit side by side
    axes.set_yticks(range(len(rows)), shorten_all([places[i][0] for i in rows]), fontsize=8)
    axes.set_title(f"{shown}: validation {unit}{note}".removeprefix(": "), fontsize=9, color=INK)
    figure: Any = axes.get_figure()
    figure.colorbar(image, ax=axes, shrink=0.9)


@saved_plot
def plot_sweep(
    path: Path,
    columns: Sequence[str],
    settings: Sequence[str],
    scores: np.ndarray,
    best: tuple[int, int],
    raw: float | None,
    *,
    metric: str,
    title: str,
) -> None:
    """Save `draw_layers` and `draw_settings` side by side."""
    figure = figure_of(11, 4.6, title)
    lines, heat = figure.subplots(1, 2, width_ratios=(1.15, 1))
    draw_layers(lines, columns, scores, best[0], raw, metric)
    draw_settings(heat, columns, settings, scores, best, metric)
    save(figure, path)


def draw_curve(axes: Axes, curve: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Draw a learning curve: mean scores on valid and test, and their ranges, over the number of training rows."""
    factor, unit = in_unit(metric)
    rows = [point["rows"] for point in curve]
    for colour, name in zip(COLOURS, ("valid", "test"), strict=False):
        scores, ranges = (factor * np.array([p[f"{name}_{of}"] for p in curve]) for of in ("score", "range"))
        axes.plot(rows, scores, "o-", color=colour, label=name, markersize=4)
        axes.fill_between(rows, *ranges.T, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_xticks(rows, [f"{count:,}" for count in rows], fontsize=8, minor=False)
    axes.minorticks_off()
    style(axes, "training rows", unit)


def draw_confusion(axes: Axes, counts: np.ndarray, classes: Sequence[str]) -> None:
    """Draw ``counts`` of each class (rows) predicted as each class (columns), coloured by their share of the row."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure: Any = axes.get_figure()
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the class")
    for row, column in itertools.product(range(len(classes)), repeat=2) if len(classes) <= MAX_COUNTS else ():
        if counts[row, column]:
            ink = "white" if shares[row, column] > 0.5 else INK
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=7, color=ink)
    _name_ticks(axes, classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("class")


def plot_confusion(path: Path, found: Evaluation | None, title: str) -> None:
    """Save the plot of `draw_confusion`; do nothing for a regression, or without an evaluation."""
    if not found or not found.classes:
        return
    side, heading = confusion_side(found.classes), f"{title}: test accuracy {found.scores['accuracy']:.1%}"
    plot(path, (side + 1, side), heading, draw_confusion, found.confusion, found.classes)


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
    """Return a name, without its middle if it is longer than ``most``: names of columns differ at their ends."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def shorten_all(names: Sequence[str]) -> list[str]:
    """Return short names; if two would look alike, return only the words in which the names differ."""
    short = [shorten(name) for name in names]
    if len(set(short)) == len(set(names)):
        return short
    parts = [re.findall(r"\w+|\W+", name) for name in names]
    before, after = (
        len([*itertools.takewhile(lambda words: len(set(words)) == 1, zip(*rows, strict=False))])
        for rows in (parts, [part[::-1] for part in parts])
    )
    return [f"…{shorten(''.join(part[before : len(part) - after]))}…" for part in parts]


def _places(columns: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Return layer and pooling of each single column by its number, or of each joined column if all are joined."""
    places = {}
    for i in [i for i, name in enumerate(columns) if "/" in name and "+" not in name] or range(len(columns)):
        layer, _, pooling = columns[i].partition("/")  # joined columns count as one layer
        places[i] = (columns[i].replace("+", "\n+"), "concatenated") if "+" in columns[i] else (layer, pooling)
    return places


def _with_gaps(layers: Sequence[str]) -> list[str]:
    """Return sorted layers with an empty name between entries, which leaves a gap in the lines."""
    groups = [list(group) for _, group in itertools.groupby(layers, lambda layer: layer.rpartition(":")[0])]
    return groups[0] + [name for group in groups[1:] for name in ("", *group)]


def layer_order(column: str) -> tuple[str, int, str]:
    """Return the sort key of a layer or column: by entry, then in the order in which the model computes the layers."""
    entry, _, name = column.rpartition(":")
    return entry, {"embed": 0, "final": 2}.get(name.partition("/")[0], 1), name


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    ticks = range(0, len(names), -(-len(names) // MAX_TICKS))
    shown = shorten_all([str(names[i]) for i in ticks])
    axes.set_xticks(ticks, shown, fontsize=7, rotation=90)
    axes.set_yticks(ticks, shown, fontsize=7)


def draw_deviations(axes: Axes, deviations: Mapping[str, Sequence[float | None]], kind: str) -> None:
    """Draw the standard deviations of one kind of tensor, ``weight`` or ``bias``, over the blocks, (depth,) each."""
    from matplotlib.ticker import MaxNLocator

    names = [name for name in deviations if ("bias" in name) == (kind == "bias")]
    for number, name in enumerate(names):
        colour, line = COLOURS[number % len(COLOURS)], ("-", "--", ":")[number // len(COLOURS) % 3]
        look: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.4, "color": colour}
        values = np.array(deviations[name], float)
        axes.plot(np.arange(1, len(values) + 1), values, line, label=name.removesuffix(f".{kind}"), **look)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style(axes, "block", "standard deviation", "weights" if kind == "weight" else "biases")
    if not names:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=INK)


@saved_plot
def plot_deviations(path: Path, deviations: Mapping[str, np.ndarray], title: str) -> None:
    """Save `draw_deviations` of weights and biases side by side."""
    figure = figure_of(11, 4.2, title)
    for axes, kind in zip(figure.subplots(1, 2, sharex=True), ("weight", "bias"), strict=True):
        draw_deviations(axes, {name: values.tolist() for name, values in deviations.items()}, kind)
    save(figure, path)


@saved_plot
def plot_attention(
    path: Path,
    one: np.ndarray,
    mean: np.ndarray,
    labels: Sequence[str],
    diagonals: Mapping[int, str],
    *,
    rows: int,
    title: str,
    top: float,
) -> None:
    """Save the attention maps (heads, tokens, tokens) of one sequence and their mean over rows.

    The large maps are means over the heads; the small ones show each head. Maps share one colour scale, up to ``top``.
    """
    heads = len(mean)
    columns, lines = min(heads, 6), -(-heads // 6)
    figure = figure_of(12, 6.4 + 2.1 * lines, title)
    parts: Any = figure.subfigures(2, 1, height_ratios=(6, 2.1 * lines))
    large, small = parts
    # Only tokens of bit strings, which are named by their position, have the same names in every sequence.
    places = labels if diagonals else [str(number + 1) for number in range(mean.shape[1])]
    shown = ((one, labels, "one sequence"), (mean, places, f"mean over {rows} sequences"))
    for axes, (maps, names, what) in zip(large.subplots(1, 2), shown, strict=True):
        draw_map(axes, maps.mean(axis=0), names, diagonals, top)
        axes.set_title(what, fontsize=10, color=INK)
    for number, axes in enumerate(small.subplots(lines, columns, squeeze=False).flat):
        if number < heads:
            axes.imshow(mean[number], cmap="magma", vmin=0, vmax=top)
            axes.set_title(f"head {number + 1}", fontsize=8, color=INK)
        axes.set_axis_off()
    save(figure, path)


def draw_map(axes: Axes, values: np.ndarray, labels: Sequence[str], diagonals: Mapping[int, str], top: float) -> None:
    """Draw an attention map (tokens, tokens) with the names of its tokens and lines at some diagonals."""
    image = axes.imshow(values, cmap="magma", vmin=0, vmax=top)
    figure: Any = axes.get_figure()
    figure.colorbar(image, ax=axes, shrink=0.8, extend="max")
    _name_ticks(axes, labels)
    axes.set_xlabel("attends to token")
    axes.set_ylabel("token")
    first = len(values) - min((back for back in diagonals if back), default=0)
    for number, (back, what) in enumerate(sorted(diagonals.items())):
        ends = np.array([first - 0.5, len(values) - 0.5])
        colour = COLOURS[(number + 2) % len(COLOURS)]
        axes.plot(ends - back, ends, "--", color=colour, linewidth=1, alpha=0.7, label=f"same bit of {what}")
    if diagonals:
        axes.legend(fontsize=7, loc="upper right", framealpha=0.8)


def attention_top(values: np.ndarray) -> float:
    """Return the top of the colour scale of maps (heads, tokens, tokens): the 97% quantile of their positive values."""
    # The first tokens of a causal model attend to few tokens, so their large weights would hide all other values.
    return float(np.nanquantile(values[values > 0], 0.97))
