"""Charts as inline SVG: they take the page's colours, light or dark, and have their text in words as well."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup, escape

from reservoir_pipelines.drawing import own_style

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 22, 10, 36
SERIES = 8
"""Colours of the page's style, ``s0`` and on."""

Points = Sequence[tuple[float, float]]


def line_chart(lines: Mapping[str, Points], x: str, y: str, says: str, *, log: bool = False) -> Markup:
    """Draw lines over one another; a line of a single point is a dot."""
    lines = {name: [p for p in points if p[1] is not None] for name, points in lines.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return Markup("")
    frame = _Frame([p for points in lines.values() for p in points], log=log)
    parts = [frame.axes(x, y)]
    for number, points in enumerate(lines.values()):
        places = [(frame.x(a), frame.y(b)) for a, b in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="line s{number % SERIES}" points="{path}"/>')
        parts += [_dot(*place, number) for place in (places if len(places) <= 12 else places[-1:])]
    return _figure("".join(parts), says, list(lines))


def scatter(points: Mapping[str, tuple[float, float] | None], x: str, y: str, says: str) -> Markup:
    """Draw one dot each over a logarithmic axis; a name without one keeps its colour, which `legend` tells."""
    places = [point for point in points.values() if point]
    frame = _Frame(places, log=True)
    dots = [
        _dot(frame.x(point[0]), frame.y(point[1]), number, 5.5) for number, point in enumerate(points.values()) if point
    ]
    return _figure(frame.axes(x, y) + "".join(dots), says, [])


def bar_chart(groups: Sequence[str], bars: Mapping[str, Sequence[float | None]], y: str, says: str) -> Markup:
    """Draw bars of several names side by side in each group."""
    top = max([v for values in bars.values() for v in values if v is not None], default=0.0)
    frame = _Frame([(0.0, 0.0), (float(len(groups)), top or 1.0)], width=WIDTH * 2, plain=True)
    parts = [frame.axes("", y)]
    wide = 0.8 * (frame.x(1) - frame.x(0)) / max(1, len(bars))
    for number, values in enumerate(bars.values()):
        for group, value in enumerate(values):
            if value is not None:
                left, high = frame.x(group + 0.1) + number * wide, frame.y(value)
                size = f'width="{wide * 0.92:.1f}" height="{max(frame.y(0) - high, 0.5):.1f}"'
                parts.append(f'<rect class="bar s{number % SERIES}" x="{left:.1f}" y="{high:.1f}" {size}/>')
    for group, name in enumerate(groups):
        parts.append(_text(frame.x(group + 0.5), HEIGHT - BOTTOM + 16, name, "middle"))
    return _figure("".join(parts), says, list(bars), width=WIDTH * 2)


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    says: str,
    x: str = "",
    y: str = "",
    diagonals: Sequence[int] = (),
) -> Markup:
    """Draw a matrix as an image, NaN left out, with names beside it, and diagonals so far below the main one marked."""
    high, wide = values.shape
    left, side = (110 if rows else 40), max(180, min(300, 14 * high))
    width = left + (side if high == wide else 300) + RIGHT
    image = (
        f'<image x="{left}" y="{TOP}" width="{width - left - RIGHT}" height="{side}" preserveAspectRatio="none" '
        f'href="{image_uri(values)}" style="image-rendering:pixelated"/>'
    )
    parts = [image]
    step = side / high
    for back in (back for back in diagonals if back < high):
        start, end = f'x1="{left}" y1="{TOP + back * step:.1f}"', f'y2="{TOP + side}"'
        parts.append(f'<line class="mark" {start} x2="{left + (high - back) * step:.1f}" {end}/>')
    for places, names in (("y", rows), ("x", columns)):
        every = max(1, math.ceil(len(names) / (side / 12 if places == "y" else 6)))
        for number in range(0, len(names), every):
            share = (number + 0.5) / len(names)
            if places == "y":
                parts.append(_text(left - 5, TOP + share * side + 4, _short(names[number]), "end"))
            else:
                parts.append(_text(left + share * (width - left - RIGHT), TOP + side + 14, names[number], "middle"))
    parts.append(_text((left + width) / 2, TOP + side + 30, x, "middle"))
    parts.append(_text(left - 5, TOP - 1, y, "end"))
    low, top = np.nanmin(values), np.nanmax(values)
    legend = f"dark {low:.3g} to bright {top:.3g}"
    return _figure("".join(parts), f"{says}; {legend}", [], width=width, height=TOP + side + 36, caption=legend)


def image_uri(values: np.ndarray) -> str:
    """Return a matrix as a small PNG in a data URI; what is NaN is transparent."""
    picture = io.BytesIO()
    with own_style():
        from matplotlib.image import imsave  # which takes longer to import than the page to write

        imsave(picture, np.ma.masked_invalid(values), cmap="viridis", format="png")
    return "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()


class _Frame:
    """Scales from numbers to places, and the axes with their ticks."""

    def __init__(self, points: Points, *, log: bool = False, width: int = WIDTH, plain: bool = False) -> None:
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        self.log, self.width, self.plain = log, width, plain
        low, high = min(xs), max(xs)
        if log:
            low, high = math.log10(max(low, 1e-3)), math.log10(max(high, 1e-3))
            low, high = math.floor(low), max(math.ceil(high), math.floor(low) + 1)
        self.low, self.high = low, high if high > low else low + 1
        bottom, top = (0.0 if min(ys) >= 0 else min(ys)), max(ys)
        self.ticks = _ticks(bottom, top if top > bottom else bottom + 1)
        self.bottom, self.top = self.ticks[0], self.ticks[-1]

    def x(self, value: float) -> float:
        """Return the place of a number on the axis across."""
        value = math.log10(max(value, 1e-3)) if self.log else value
        return LEFT + (value - self.low) / (self.high - self.low) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the place of a number on the axis upwards."""
        return HEIGHT - BOTTOM - (value - self.bottom) / (self.top - self.bottom) * (HEIGHT - BOTTOM - TOP)

    def axes(self, x: str, y: str) -> str:
        """Return lines and names of the axes."""
        parts = []
        for tick in self.ticks:
            place = self.y(tick)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
            )
            parts.append(_text(LEFT - 5, place + 4, f"{tick:g}", "end"))
        across = (
            [10.0**n for n in range(int(self.low), int(self.high) + 1)] if self.log else _ticks(self.low, self.high)
        )
        shown = [t for t in across if self.low <= (math.log10(t) if self.log else t) <= self.high and not self.plain]
        parts += [_text(self.x(tick), HEIGHT - BOTTOM + 15, f"{tick:,.10g}", "middle") for tick in shown]
        parts.append(_text((LEFT + self.width) / 2, HEIGHT - 4, x, "middle"))
        turn = f'transform="rotate(-90 11 {HEIGHT / 2 - 12})"'
        return "".join(parts) + f'<text x="11" y="{HEIGHT / 2 - 12}" text-anchor="middle" {turn}>{escape(y)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return four to seven round numbers from one not above ``low`` to one not below ``high``."""
    step = 10 ** math.floor(math.log10((high - low) / 4 or 1))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 5)
    first = math.floor(low / step + 1e-9)
    return [round(n * step, 10) for n in range(first, math.ceil(high / step - 1e-9) + 1)]


def _dot(x: float, y: float, number: int, radius: float = 2.5) -> str:
    return f'<circle class="dot s{number % SERIES}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _text(x: float, y: float, text: object, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(name: object) -> str:
    text = str(name)
    return text if len(text) <= 16 else f"{text[:15]}…"


def legend(names: Sequence[str]) -> Markup:
    """Return the names with their colours: of one chart, or of several that share them."""
    keys = (
        f'<span class="key"><span class="box s{number % SERIES}"></span>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return Markup("".join(keys))


def _figure(
    inside: str, says: str, names: Sequence[str], *, width: float = WIDTH, height: float = HEIGHT, caption: str = ""
) -> Markup:
    below = f"<figcaption>{legend(names)}{escape(caption)}</figcaption>" if names or caption else ""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    svg = f'<svg role="img" aria-label="{escape(says)}" {size}>{inside}</svg>'
    return Markup(f'<figure style="max-width:{width:g}px">{svg}{below}</figure>')
