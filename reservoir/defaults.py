"""What is meant where nothing is said: windows, layers and poolings by the kind of data.

Found on GunPoint, OSULeaf, ItalyPowerDemand, JapaneseVowels, ACSF1, PLAID and generated sets, see
``benchmarks/series.py``. Named tasks keep the paper's way: each value or pixel one token, ``last`` and ``mean``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reservoir.inputs.text import has_tokenizer
from reservoir.pooling import WIDEST_TOKENS
from reservoir.tasks import TASKS
from reservoir.tasks.own.letters import are_words
from reservoir.tasks.task import Task, Tokens, Vectors

if TYPE_CHECKING:
    from reservoir.inputs import TextReader
    from reservoir.reservoir import Reservoir

TAPS = 9  # of each window, as in MiniRocket
MOST_WINDOWS = 1024  # of a row, and the positions of GPT-2 and mini
MOST_TOKENS = 2**21  # of all rows together: about a minute per block of mini on two cores

TEXTURE = ("quantiles9", "shares13", "max", "min")
"""Which values a channel takes, wherever in the sequence."""

SEGMENTS = "segments8"


def is_series(task: Task) -> bool:
    """Whether these are one's own float sequences, each with a label of its own."""
    return (
        task.name not in TASKS
        and isinstance(task.form, Vectors)
        and task.readout_tokens == 1
        and task.max_tokens >= TAPS
    )


def default_windows(task: Task, rows: int) -> dict[str, Any]:
    """Return those fields of `ReservoirOptions` that a task's kind decides, for all its ``rows``.

    One's own series go through random kernels of 9 values at dilations 1, 2, 4 ... up to the length, at every value or,
    of long or many rows, at every so-and-so-many-th, on the scale of the channel and that of the row. Everything else
    keeps its tokens.
    """
    if not is_series(task):
        return {}
    most = max(1, min(MOST_WINDOWS, MOST_TOKENS // max(rows, 1)))
    return {
        "input": "kernels",
        "patch": TAPS,
        "stride": -(-task.max_tokens // most),
        "dilations": "auto",
        "pad": "same",
        "normalise": "both",
    }


def default_store(task: Task) -> str:
    """Return the precision on disk: of one's own series float32, else float16.

    Many shares are 0 in all rows but a few. Two bytes leave rounding of the blocks in them, which a readout would scale
    up to deviation 1 where its rows lack those few.
    """
    return "float32" if is_series(task) else "float16"


def is_native(task: Task, settings: Reservoir) -> bool:
    """Return whether a model is given what it was pretrained on: words, and of a model of letters any letters."""
    if settings.init != "pretrained" or not task.alphabet or not settings.windows(task).plain:
        return False
    from reservoir.backbones import find

    family, _ = find(settings.backbone)
    fits = family.reads == "letters" or (family.reads == "text" and are_words(task.alphabet))
    return fits and has_tokenizer(settings.backbone)


def default_layers(task: Task, *, native: bool = False) -> str:
    """Return the layers that are kept: all; of own sequences the first ones; deeper ones cost more than they add."""
    if native:
        return "all"
    if is_series(task):
        return "embed,block01"
    return "embed,block01,block02" if task.name not in TASKS and isinstance(task.form, Tokens) else "all"


def default_pools(task: Task, width: int, reader: TextReader | None = None) -> str:
    """Return the poolings that are kept of a task in a backbone of this width, or one that has a ``reader`` of texts.

    Of texts the class token, or else the last one, and the mean; of one's own series what the channels take, and eight
    stretches; of one's own symbols the mean, eight stretches and, where they fit, all tokens side by side; of named
    tasks the last token and the mean.
    """
    if reader:
        return "cls,mean" if reader.has_cls else "last,mean"
    if is_series(task):
        return ",".join([*TEXTURE, SEGMENTS])
    if task.name in TASKS or task.readout_tokens > 1:
        return "last,mean"
    aligned = isinstance(task.form, Tokens) and task.max_tokens * width <= WIDEST_TOKENS
    return ",".join(["last", "mean", SEGMENTS, *(["tokens"] if aligned else [])])


def default_columns(task: Task) -> tuple[str, ...]:
    """Return the columns that a readout of one's own series is chosen among, ``a+b`` side by side; else none.

    Without and with the stretches, which tell where in the sequence something is; and these beside the raw values.
    """
    if not is_series(task):
        return ()
    layers = default_layers(task).split(",")
    texture = [f"{layer}/{pooling}" for layer in layers for pooling in TEXTURE]
    whole = [*texture, *(f"{layer}/{SEGMENTS}" for layer in layers)]
    return ("raw", "+".join(texture), "+".join(whole), "+".join([*whole, "raw"]))
