"""The reservoirs that ``tune`` tries: drawn around the default, from a space that depends on the kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir.plan import (
    SEGMENTS,
    SERIES_KERNEL,
    SYMBOL_KERNEL,
    VALUE_POOLINGS,
    default_layers,
    default_windows,
    kind_of,
)
from reservoir.pooling import WIDEST_TOKENS
from reservoir.random import generator
from reservoir.reservoir import DEFAULT_BACKBONE
from reservoir.tasks.task import Task, Vectors

Draw = np.random.Generator
RECURRENT_TOKENS = 64
SCALES = "channel", "series", "both", "differences", "differences"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A reservoir, its layers and its poolings: options of `extract` that differ from the defaults."""

    number: int
    reservoir: Mapping[str, Any] = field(default_factory=dict)
    layers: str
    pool: str

    @property
    def title(self) -> str:
        """The options that differ from the defaults, in short."""
        options = [
            f"{value}" if name in ("backbone", "init", "input") else f"{name} {value}"
            for name, value in self.reservoir.items()
            if name != "pad"
        ]
        return f"{', '.join(options) or 'the default'}; {self.layers}"


def draw_candidate(number: int, task: Task, rows: int, width: int, *, seed: int, backbone: str | None) -> Candidate:
    """Return a candidate by its number from 1, which is always the same for the same data and seed."""
    named = {"backbone": backbone} if backbone else {}
    draw = generator(seed, f"tune-{number}")
    if kind_of(task) == "series":
        reservoir, layers, pool = _series(draw, task, rows)
    elif isinstance(task.form, Vectors):
        reservoir, layers, pool = _vectors(draw, task, width)
    else:
        reservoir, layers, pool = _symbols(draw, task, rows, width)
    if "backbone" in reservoir and backbone:
        del reservoir["backbone"]
    return Candidate(number=number, reservoir={**reservoir, **named, "seed": seed + number}, layers=layers, pool=pool)


def _series(draw: Draw, task: Task, rows: int) -> tuple[dict[str, Any], str, str]:
    """Draw windows, gain and weights for series: three in four candidates use random kernels, as the default does."""
    stride = default_windows(task, rows, task.max_tokens)["stride"]
    found: dict[str, Any] = {"stride": stride, "pad": "same", "normalise": _one(draw, *SCALES)}
    if draw.random() < 0.75:
        found |= {
            "input": "kernels",
            "patch": _one(draw, 5, 7, SERIES_KERNEL, SERIES_KERNEL, 11, 15),
            "dilations": "auto",
        }
        found["gain"] = _one(draw, 2.0, 4.0, 6.0, 9.0, 15.0)
    else:
        found |= {"input": "orthogonal", "patch": _one(draw, 4, 8, 16, 32), "dilations": _one(draw, "1", "1,4", "auto")}
        found["gain"] = _one(draw, 1.41, 3.0, 6.0)
    found |= _weights(draw, -(-task.max_tokens // stride))
    layers = _one(draw, "embed", "embed", "embed,block01", "embed,block01", "embed,block01,block02")
    if found.get("backbone", DEFAULT_BACKBONE) != DEFAULT_BACKBONE:
        layers = "embed,block01"
    return found, layers, ",".join([*VALUE_POOLINGS, _one(draw, "segments4", SEGMENTS, SEGMENTS, "segments16")])


def _vectors(draw: Draw, task: Task, width: int) -> tuple[dict[str, Any], str, str]:
    """Draw gain, weights and poolings for vectors that are tokens themselves, such as the rows of an image."""
    found: dict[str, Any] = {"gain": _one(draw, 0.3, 0.7, 1.41, 3.0, 6.0), **_weights(draw, task.max_tokens)}
    if task.readout_tokens > 1:
        return found, "all", "last"
    pools = ["last,mean", "mean,max,min", "last,mean,segments4", "mean,segments8", "quantiles5,segments4"]
    return found, "all", _one(draw, *pools, *_side_by_side(task, width))


def _symbols(draw: Draw, task: Task, rows: int, width: int) -> tuple[dict[str, Any], str, str]:
    """Draw windows of several symbols or single symbols, with gain, weights and poolings."""
    if kind_of(task) == "symbols" and draw.random() < 0.6:
        found: dict[str, Any] = {
            **default_windows(task, rows, task.max_tokens),
            "patch": _one(draw, 3, SYMBOL_KERNEL, 7, 9),
        }
        found["gain"] = _one(draw, 3.0, 6.0, 9.0)
        pools = ["shares13,max,min,segments8", "shares13,max,min,segments16", "quantiles9,max,min,segments4"]
    else:
        found = {"input": "gaussian", "patch": 1, "gain": _one(draw, 0.35, 0.7, 1.41, 2.8, 5.6)}
        pools = ["last,mean,segments8", "mean,max,min,segments4", "mean,segments8,segments16"]
    found |= _weights(draw, task.max_tokens)
    layers, _ = default_layers(kind_of(task))
    if task.readout_tokens > 1:
        return found, layers, "last"
    return found, layers, _one(draw, *pools, *_side_by_side(task, width))


def _side_by_side(task: Task, width: int) -> list[str]:
    """Return poolings that keep every token, if they fit: aligned sequences need their positions."""
    return ["mean,tokens", "mean,segments8,tokens"] if task.max_tokens * width <= WIDEST_TOKENS else []


def _weights(draw: Draw, tokens: int) -> dict[str, Any]:
    """Draw a backbone that comes with this package and its weights; recurrent ones are too slow for long sequences."""
    share = draw.random()
    if share < 0.1 and tokens <= RECURRENT_TOKENS:
        return {"backbone": "esn"}
    return {"init": "random"} if share < 0.35 else {}


def _one(draw: Draw, *values: Any) -> Any:
    return values[int(draw.integers(len(values)))]
