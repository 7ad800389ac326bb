"""Pictures of models, as PNG files: the spread of their weights and their attention maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_pipelines.plots import COLOURS, GRID, INK
from reservoir_pipelines.workspace import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from reservoir_pipelines.attention import Attention

MOST_TICKS = 32


def plot_deviations(path: Path, deviations: Mapping[str, np.ndarray], title: str) -> None:
    """Draw the standard deviation of each kind of tensor over the blocks: weights on the left, biases on the right.

    Parameters
    ----------
    path : Path
        The PNG to write.
    deviations : mapping of str to ndarray, (depth,)
        By the tensor's name inside its block.
    title : str
        Heading of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for axes, kind in zip(panels, ("weight", "bias"), strict=True):
        names = [name for name in deviations if (("bias" in name) == (kind == "bias"))]
        for number, name in enumerate(names):
            values = deviations[name]
            style = ("-", "--", ":")[number // len(COLOURS) % 3]
            axes.plot(
                np.arange(1, len(values) + 1),
                values,
                style,
                marker="o",
                markersize=3.5,
                linewidth=1.4,
                color=COLOURS[number % len(COLOURS)],
                label=name.removesuffix(f".{kind}"),
            )
        axes.set_ylim(bottom=0)
        axes.set_title(f"{kind}s" if kind == "weight" else "biases", fontsize=10, color=INK)
        axes.set_xlabel("block")
        axes.set_ylabel("standard deviation")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if names:
            axes.legend(frameon=False, fontsize=8)
        else:
            axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=INK)
    figure.suptitle(title, fontsize=11, color=INK)
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=130))


def plot_attention(done: Attention) -> None:
    """Draw the maps of one sequence and their mean over many, averaged over the heads, and each head's mean below.

    Where the paper saw the readout tokens of a bit task attend, dashed lines lie over the maps.
    """
    from matplotlib.figure import Figure

    heads = len(done.mean)
    columns = min(heads, 6)
    figure = Figure(figsize=(12, 6.4 + 2.1 * -(-heads // columns)), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(6, 2.1 * -(-heads // columns)))
    large, small = parts
    one, mean = large.subplots(1, 2)
    _draw(one, done.one.mean(axis=0), done.labels, done)
    one.set_title("one sequence", fontsize=10, color=INK)
    _draw(mean, done.mean.mean(axis=0), _places(done), done)
    mean.set_title(f"mean over {done.rows} sequences", fontsize=10, color=INK)
    for number, axes in enumerate(small.subplots(-(-heads // columns), columns, squeeze=False).flat):
        if number < heads:
            axes.imshow(done.mean[number], cmap="magma", vmin=0, vmax=_top(done.mean[number]))
            axes.set_title(f"head {number + 1}", fontsize=8, color=INK)
        axes.set_axis_off()
    figure.suptitle(f"{done.task}, {done.backbone}: attention of block {done.layer}", fontsize=11, color=INK)
    replace_file(done.plot, lambda part: figure.savefig(part, format="png", dpi=130))


def _places(done: Attention) -> list[str]:
    """Return what names a token in every sequence: its place in a bit string, else its number."""
    if done.diagonals:
        return done.labels
    return [str(number + 1) for number in range(len(done.mean[0]))]


def _draw(axes: Axes, values: np.ndarray, labels: Sequence[str], done: Attention) -> None:
    image = axes.imshow(values, cmap="magma", vmin=0, vmax=_top(values))
    figure: Any = axes.get_figure()
    figure.colorbar(image, ax=axes, shrink=0.8, extend="max")
    step = -(-len(labels) // MOST_TICKS)
    ticks = range(0, len(labels), step)
    axes.set_xticks(ticks, [labels[i] for i in ticks], fontsize=7, rotation=90)
    axes.set_yticks(ticks, [labels[i] for i in ticks], fontsize=7)
    axes.set_xlabel("attends to token")
    axes.set_ylabel("token")
    first = len(values) - _readout(done)
    for number, (back, what) in enumerate(sorted(done.diagonals.items())):
        ends = np.array([first - 0.5, len(values) - 0.5])
        colour = COLOURS[(number + 2) % len(COLOURS)]
        axes.plot(ends - back, ends, "--", color=colour, linewidth=1, alpha=0.7, label=f"its place in {what}")
    if done.diagonals:
        axes.legend(fontsize=7, loc="upper right", framealpha=0.8)


def _top(values: np.ndarray) -> float:
    # A causal model's first tokens have few others to attend to, and would outshine all that is worth seeing.
    return float(np.nanquantile(values[values > 0], 0.97))


def _readout(done: Attention) -> int:
    steps = [back for back in done.diagonals if back]
    return min(steps) if steps else 0
