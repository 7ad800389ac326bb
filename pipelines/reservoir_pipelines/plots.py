"""Pictures of results, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir_pipelines.bundle import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reservoir_pipelines.fitting import Result

INK, GRID = "#222222", "#dddddd"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot_sweep(path: Path, results: Sequence[Result], best: Result, raw: Result | None, title: str) -> None:
    """Draw validation accuracy over layers and penalties.

    Left: for each pooling, the best accuracy of every layer, with the raw input's as a dashed line. Right: every layer
    under every penalty for the pooling of the best readout, which is ringed.

    Parameters
    ----------
    path : Path
        The PNG to write.
    results : sequence of Result
        Every readout of single columns.
    best : Result
        The chosen one.
    raw : Result, optional
        The raw input's best readout.
    title : str
        Heading of the picture.
    """
    from matplotlib.figure import Figure

    table: dict[str, dict[str, dict[float, float]]] = {}
    for result in results:
        layer, _, pooling = result.columns[0].partition("/")
        table.setdefault(pooling, {}).setdefault(layer, {})[result.alpha] = result.valid_accuracy
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    lines, heat = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_layers(lines, table, raw)
    _draw_penalties(heat, table[best.columns[0].partition("/")[2]], best)
    figure.suptitle(title, fontsize=11, color=INK)
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=130))


def _draw_layers(axes: Axes, table: dict[str, dict[str, dict[float, float]]], raw: Result | None) -> None:
    names = sorted({layer for layers in table.values() for layer in layers}, key=_depth)
    for colour, (pooling, layers) in zip(COLOURS, table.items(), strict=False):
        values = [100 * max(layers[name].values()) if name in layers else np.nan for name in names]
        axes.plot(range(len(names)), values, "o-", color=colour, label=pooling, markersize=4, linewidth=1.5)
    if raw:
        axes.axhline(100 * raw.valid_accuracy, color=INK, linestyle="--", linewidth=1, label="raw input")
    axes.set_xticks(range(len(names)), [name.removeprefix("block") for name in names], fontsize=8)
    axes.set_xlabel("layer")
    axes.set_ylabel("validation accuracy (%), best penalty")
    axes.grid(color=GRID, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_penalties(axes: Axes, layers: dict[str, dict[float, float]], best: Result) -> None:
    names = sorted(layers, key=_depth)
    alphas = sorted(layers[names[0]])
    values = 100 * np.array([[layers[name][alpha] for alpha in alphas] for name in names])
    # The worst penalties would swallow the colours: show what lies within the upper part of the range.
    low = max(values.min(), values.max() - 2 * (values.max() - np.median(values)) - 1)
    image = axes.imshow(values, aspect="auto", origin="lower", cmap="viridis", vmin=low, vmax=values.max())
    layer, _, pooling = best.columns[0].partition("/")
    axes.plot(
        alphas.index(best.alpha),
        names.index(layer),
        "o",
        markersize=11,
        fillstyle="none",
        color="white",
        markeredgewidth=2,
    )
    step = max(1, (len(alphas) - 1) // 4)
    ticks = range(0, len(alphas), step)
    axes.set_xticks(ticks, [f"$10^{{{np.log10(alphas[i]):.3g}}}$" for i in ticks], fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("penalty")
    axes.set_title(f"{pooling}: validation accuracy (%), chosen readout ringed", fontsize=9, color=INK)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, shrink=0.9)


def _depth(layer: str) -> tuple[int, str]:
    return ({"embed": 0, "final": 2}.get(layer, 1), layer)
