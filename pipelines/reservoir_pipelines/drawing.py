"""How any picture is drawn: matplotlib with one style, all text literal, and a warning where a picture fails."""

from __future__ import annotations

import base64
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from reservoir_pipelines.files import replace_file
from reservoir_pipelines.output import notify, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

PAGE_SIZE = 4.8, 3.4  # inches of most pictures on the page: legible on a telephone too
INK, GRID = "#222222", "#dddddd"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

P = ParamSpec("P")

_importing = threading.Lock()


@contextmanager
def own_style() -> Iterator[None]:
    """Draw with matplotlib's defaults, whatever a matplotlibrc file or the environment says, and all text literally."""
    with _importing:
        matplotlib = _import_matplotlib()
    # A label in a script that the font lacks is drawn as boxes; a warning for each of its characters helps nobody.
    with warnings.catch_warnings(action="ignore", category=UserWarning), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False  # a class named $x_{$ is no formula
        # Texts stay texts: a browser has fonts of every script, and the same input gives the same file.
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "reservoir"})
        yield


def _import_matplotlib() -> Any:
    """Import matplotlib without reading ./matplotlibrc, which may have come with somebody's data.

    Matplotlib looks there first, and offers no way to turn that off. For the time of its import the relative name
    does not exist; all other names are looked up as always.
    """
    exists = os.path.exists
    os.path.exists = lambda path: path != "matplotlibrc" and exists(path)
    try:
        import matplotlib
    finally:
        os.path.exists = exists
    return matplotlib


def picture(draw: Callable[Concatenate[Path, P], None]) -> Callable[Concatenate[Path, P], None]:
    """Make a function that draws a picture to a path draw with `own_style`, and warn instead of raise if it fails.

    A picture never costs a result: stages save their results first, and a picture that cannot be drawn is one line on
    stderr. An older picture at that path is removed then, as it shows something else.
    """

    @wraps(draw)
    def draw_or_warn(path: Path, *arguments: P.args, **options: P.kwargs) -> None:
        try:
            with own_style():
                draw(path, *arguments, **options)
        except Exception as error:
            path.unlink(missing_ok=True)
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            notify(f"{path}: the picture could not be drawn ({reason}); the results are saved")

    return draw_or_warn


def page_picture(
    size: tuple[float, float], draw: Callable[Concatenate[Axes, P], None], *arguments: P.args, **options: P.kwargs
) -> str:
    """Return what ``draw(axes, ...)`` draws, of a size in inches, as a data URI of an SVG image; empty if it fails.

    As an image, whatever its texts hold can neither run nor reach anything.
    """
    buffer = io.BytesIO()
    try:
        with own_style():
            figure = figure_of(*size)
            draw(figure.subplots(), *arguments, **options)
            _escape_texts(figure)
            figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    except Exception as error:
        notify(f"a picture of the page could not be drawn ({error})")
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure_of(width: float, height: float, title: str = "") -> Figure:
    """Return an empty figure of so many inches with a heading."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def style(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Name the axes, and give them a pale grid, two spines, and a legend where anything has a label."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10, color=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file; it is replaced whole."""
    _escape_texts(figure)
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=130))


def _escape_texts(figure: Figure) -> None:
    """Escape what cannot be drawn: fonts have no lone surrogates, and control characters would be boxes."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            # The texts of ticks with names are set anew while they are drawn, by such a formatter.
            if isinstance(formatter := axis.get_major_formatter(), FuncFormatter):
                axis.set_major_formatter(FuncFormatter(_literal_names(formatter)))
    for text in figure.findobj(Text):
        text.set_text(_literal(text.get_text()))


def _literal_names(formatter: FuncFormatter) -> Callable[[float, int | None], str]:
    return lambda value, place: _literal(formatter(value, place))


def _literal(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))  # our own titles have line breaks
