"""Pictures of results, as PNG files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir_pipelines.workspace import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reservoir_pipelines.fitting.results import Result

INK, GRID = "#222222", "#dddddd"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MOST_LEVEL = 14  # names of layers that fit side by side


def plot_sweep(path: Path, results: Sequence[Result], best: Result, raw: Result | None, title: str) -> None:
    """Draw validation accuracy (R^2 for regression) over layers and settings of the readout.

    Left: for each pooling, the best accuracy of every layer, with the raw input's as a dashed line. Right: every layer
    under every setting, for the pooling of the best readout, which is ringed. Joined columns are a line of their own.

    Parameters
    ----------
    path : Path
        The PNG to write.
    results : sequence of Result
        Every readout.
    best : Result
        The chosen one, scored on test.
    raw : Result, optional
        The raw input's best readout.
    title : str
        Heading of the picture.
    """
    from matplotlib.figure import Figure

    table: dict[str, dict[str, dict[str, float]]] = {}
    for result in results:
        if len(result.columns) == 1:
            layer, _, pooling = result.columns[0].partition("/")
            table.setdefault(pooling, {}).setdefault(layer, {})[_setting(result)] = result.valid_accuracy
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    if table:
        lines, heat = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_layers(lines, table, best, raw)
        pooling = best.columns[0].partition("/")[2]
        _draw_settings(heat, pooling, table.get(pooling) or next(iter(table.values())), best)
    figure.suptitle(title, fontsize=11, color=INK)
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=130))


def plot_curve(path: Path, points: Sequence[tuple[int, float, float]], best: Result, title: str) -> None:
    """Draw a learning curve: accuracy on valid and test over the number of training rows.

    Parameters
    ----------
    path : Path
        The PNG to write.
    points : sequence of (int, float, float)
        Rows, validation accuracy, test accuracy.
    best : Result
        The chosen readout, which says what the accuracies are.
    title : str
        Heading of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    scale, measure = _measure(best)
    rows = [point[0] for point in points]
    for number, name in ((1, "valid"), (2, "test")):
        values = [scale * point[number] for point in points]
        axes.plot(rows, values, "o-", color=COLOURS[number - 1], label=name, markersize=4)
    axes.set_xscale("log")
    axes.set_xticks(rows, [f"{count:,}" for count in rows], fontsize=8, minor=False)
    axes.minorticks_off()
    axes.set_xlabel("training rows")
    axes.set_ylabel(measure.removeprefix("validation "))
    _plain(axes)
    axes.legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11, color=INK)
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=130))


def _draw_layers(axes: Axes, table: dict[str, dict[str, dict[str, float]]], best: Result, raw: Result | None) -> None:
    scale, measure = _measure(best)
    names = _apart(sorted({layer for layers in table.values() for layer in layers}, key=_depth))
    for colour, (pooling, layers) in zip(COLOURS, table.items(), strict=False):
        values = [scale * max(layers[name].values()) if name in layers else np.nan for name in names]
        axes.plot(range(len(names)), values, "o-", color=colour, label=pooling, markersize=4, linewidth=1.5)
    if len(best.columns) > 1:
        label = f"{len(best.columns)} columns joined"
        axes.axhline(scale * best.valid_accuracy, color=INK, linewidth=1, label=label)
    if raw:
        axes.axhline(scale * raw.valid_accuracy, color=INK, linestyle="--", linewidth=1, label="raw input")
    ticks = {place: name.replace("block", "") for place, name in enumerate(names) if name}
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8, rotation=90 if len(ticks) > MOST_LEVEL else 0)
    axes.set_xlabel("layer")
    axes.set_ylabel(f"{measure}, best setting")
    _plain(axes)
    axes.legend(frameon=False, fontsize=9)


def _draw_settings(axes: Axes, pooling: str, layers: dict[str, dict[str, float]], best: Result) -> None:
    names = sorted(layers, key=_depth)
    settings = list(layers[names[0]])
    scale, measure = _measure(best)
    values = scale * np.array([[layers[name].get(setting, np.nan) for setting in settings] for name in names])
    # The worst settings would swallow the colours: show what lies within the upper part of the range.
    top, middle = np.nanmax(values), np.nanmedian(values)
    low = max(np.nanmin(values), top - 2 * (top - middle) - scale / 100)
    image = axes.imshow(values, aspect="auto", origin="lower", cmap="viridis", vmin=low, vmax=top)
    layer = best.columns[0].partition("/")[0]
    ringed = len(best.columns) == 1 and layer in names
    if ringed:
        place = settings.index(_setting(best)), names.index(layer)
        axes.plot(*place, "o", markersize=11, fillstyle="none", color="white", markeredgewidth=2)
    ticks = range(0, len(settings), max(1, (len(settings) - 1) // 4))
    axes.set_xticks(ticks, [settings[i].replace(", ", "\n") for i in ticks], fontsize=8)
    if best.alpha is None:  # parameters are words, which do not fit side by side
        axes.tick_params("x", rotation=30)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("penalty" if best.alpha is not None else "setting")
    note = ", chosen readout ringed" if ringed else ""
    axes.set_title(f"{pooling}: {measure}{note}", fontsize=9, color=INK)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, shrink=0.9)


def _setting(result: Result) -> str:
    """Return what tells a readout from others of its column: the penalty as a power of ten, or its parameters."""
    if result.alpha is not None:
        return f"$10^{{{np.log10(result.alpha):.3g}}}$"
    return result.readout.partition("(")[2].rstrip(")") or result.readout.rpartition(".")[2]


def _measure(best: Result) -> tuple[float, str]:
    """Return the factor and the name of what results are measured by: only shares of right labels have intervals."""
    return (100, "validation accuracy (%)") if best.test_interval else (1, "validation $R^2$")


def _apart(layers: Sequence[str]) -> list[str]:
    """Return sorted layers with an empty name wherever those of another entry begin: no line may join the two."""
    groups = [list(group) for _, group in itertools.groupby(layers, lambda layer: layer.rpartition(":")[0])]
    return groups[0] + [name for group in groups[1:] for name in ("", *group)]


def _depth(layer: str) -> tuple[str, int, str]:
    entry, _, name = layer.rpartition(":")
    return entry, {"embed": 0, "final": 2}.get(name, 1), name


def _plain(axes: Axes) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
