"""The reservoirs that ``tune`` tries: drawn around the default, from a space that depends on the kind of data."""

from typing import Any

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
from reservoir.tasks.task import Task, Vectors

RECURRENT_TOKENS = 64
SCALES = "channel", "series", "both", "differences", "differences"


def draw_candidate(
    number: int, task: Task, rows: int, width: int, *, seed: int, backbone: str | None
) -> dict[str, Any]:
    """Return a candidate by its number from 1, as options of `extract`: always the same for the same data and seed."""
    draw = generator(seed, f"tune-{number}")
    kind, tokens = kind_of(task), task.max_tokens
    found: dict[str, Any]

    def one(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    def weights(tokens: int) -> dict[str, Any]:
        """Draw a backbone that comes with this package; recurrent ones are too slow for long sequences."""
        share = draw.random()
        if share < 0.1 and tokens <= RECURRENT_TOKENS:
            return {"backbone": "esn"}
        return {"init": "random"} if share < 0.35 else {}

    # Aligned sequences need their positions, so poolings that keep every token are among these if they fit.
    aligned = ["mean,tokens", "mean,segments8,tokens"] if tokens * width <= WIDEST_TOKENS else []
    if kind == "series":
        stride = default_windows(task, rows, tokens)["stride"]
        found = {"stride": stride, "pad": "same", "normalise": one(*SCALES)}
        if draw.random() < 0.75:
            patch = one(5, 7, SERIES_KERNEL, SERIES_KERNEL, 11, 15)
            found |= {"input": "kernels", "patch": patch, "dilations": "auto", "gain": one(2.0, 4.0, 6.0, 9.0, 15.0)}
        else:
            found |= {"input": "orthogonal", "patch": one(4, 8, 16, 32), "dilations": one("1", "1,4", "auto")}
            found["gain"] = one(1.41, 3.0, 6.0)
        found |= weights(-(-tokens // stride))
        layers = one("embed", "embed", "embed,block01", "embed,block01", "embed,block01,block02")
        layers = "embed,block01" if "backbone" in found else layers
        pool = ",".join([*VALUE_POOLINGS, one("segments4", SEGMENTS, SEGMENTS, "segments16")])
    else:
        if isinstance(task.form, Vectors):  # tokens themselves, such as the rows of an image
            found, layers = {"gain": one(0.3, 0.7, 1.41, 3.0, 6.0)}, "all"
            pools = ["last,mean", "mean,max,min", "last,mean,segments4", "mean,segments8", "quantiles5,segments4"]
        elif kind == "symbols" and draw.random() < 0.6:
            found, layers = default_windows(task, rows, tokens), default_layers(kind)[0]
            found |= {"patch": one(3, SYMBOL_KERNEL, 7, 9), "gain": one(3.0, 6.0, 9.0)}
            pools = ["shares13,max,min,segments8", "shares13,max,min,segments16", "quantiles9,max,min,segments4"]
        else:
            found, layers = {"input": "gaussian", "patch": 1}, default_layers(kind)[0]
            found["gain"] = one(0.35, 0.7, 1.41, 2.8, 5.6)
            pools = ["last,mean,segments8", "mean,max,min,segments4", "mean,segments8,segments16"]
        found |= weights(tokens)
        pool = "last" if task.readout_tokens > 1 else one(*pools, *aligned)
    if backbone:
        found.pop("backbone", None)
        found["backbone"] = backbone
    return found | {"seed": seed + number, "layers": layers, "pool": pool}


def title_of(candidate: dict[str, Any]) -> str:
    """Return the options of a candidate that differ from the defaults, in short."""
    options = [
        f"{value}" if name in ("backbone", "init", "input") else f"{name} {value}"
        for name, value in candidate.items()
        if name not in ("pad", "layers", "pool")
    ]
    return f"{', '.join(options) or 'the default'}; {candidate['layers']}"
