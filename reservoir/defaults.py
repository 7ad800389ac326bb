"""What is meant where nothing is said: windows, layers and poolings by the kind of data.

Found on GunPoint, OSULeaf, ItalyPowerDemand, JapaneseVowels, ACSF1, PLAID and generated sets, see
``benchmarks/series.py``; for symbols on the generated sets of ``benchmarks/symbols.py``. Named tasks keep the paper's
way: each value or pixel one token, ``last`` and ``mean``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reservoir.inputs.text import has_tokenizer
from reservoir.options import ReservoirOptions
from reservoir.pooling import WIDEST_TOKENS
from reservoir.reservoir import MOST_SYMBOLS, Reservoir, full_name
from reservoir.tasks import TASKS
from reservoir.tasks.own.each import TOKEN
from reservoir.tasks.own.letters import are_words
from reservoir.tasks.own.sounds import holds_samples
from reservoir.tasks.task import Task, Tokens, Vectors

if TYPE_CHECKING:
    from reservoir.inputs import Reader

TAPS = 9  # of each window, as in MiniRocket
LETTERS = 5  # of each window of symbols: a motif
MOST_WINDOWS = 1024  # of a row, and the positions of GPT-2 and mini
MOST_TOKENS = 2**21  # of all rows together: about a minute per block of mini on two cores

TEXTURE = ("quantiles9", "shares13", "max", "min")
"""Which values a channel takes, wherever in the sequence."""

COUNTS = ("shares13", "max", "min")
"""The same of windows of symbols."""

SEGMENTS = "segments8"


def is_series(task: Task) -> bool:
    """Whether these are one's own float sequences, each with a label of its own."""
    return (
        task.name not in TASKS
        and not task.pictures
        and isinstance(task.form, Vectors)
        and task.readout_tokens == 1
        and task.max_tokens >= TAPS
    )


def is_letters(task: Task) -> bool:
    """Whether these are one's own sequences of few symbols, each with a label of its own."""
    return (
        task.name not in TASKS
        and isinstance(task.form, Tokens)
        and task.form.vocabulary <= MOST_SYMBOLS
        and task.readout_tokens == 1
        and task.max_tokens >= LETTERS
    )


def default_windows(task: Task, rows: int) -> dict[str, Any]:
    """Return those fields of `ReservoirOptions` that a task's kind decides, for all its ``rows``.

    Where every token has a label, each is the middle of a window.
    One's own series go through random kernels of 9 values at dilations 1, 2, 4 ... up to the length, at every value or,
    of long or many rows, at every so-and-so-many-th: values on the scale of the channel and that of the row, and their
    differences; one's own symbols through kernels of 5 neighbours. Everything else keeps its tokens.
    """
    if task.each == TOKEN and not (isinstance(task.form, Tokens) and task.form.vocabulary > MOST_SYMBOLS):
        around = {"stride": 1, "pad": "same", "patch": TAPS}
        if isinstance(task.form, Tokens):
            return around | {"input": "orthogonal"}  # of which a readout has the letters around each themselves
        return around | {"input": "kernels", "dilations": "auto", "normalise": "both"}
    most = max(1, min(MOST_WINDOWS, MOST_TOKENS // max(rows, 1)))
    kernels = {"input": "kernels", "stride": -(-task.max_tokens // most), "pad": "same"}
    if is_series(task):
        return kernels | {"patch": TAPS, "dilations": "auto", "normalise": "differences"}
    return kernels | {"patch": LETTERS} if is_letters(task) else {}


def default_store(task: Task, *, native: bool = False) -> str:
    """Return the precision on disk: of one's own series and letters float32, else float16.

    Many shares are 0 in all rows but a few. Two bytes leave rounding of the blocks in them, which a readout would scale
    up to deviation 1 where its rows lack those few.
    """
    return "float32" if not native and (is_series(task) or is_letters(task)) else "float16"


def choose_reservoir(options: ReservoirOptions, task: Task, rows: int, *, published: bool = False) -> Reservoir:
    """Fill in what was not said, for a task of so many rows: a model's own way in where it reads such, else windows."""
    plain = Reservoir.choose(options, published=published)
    if options.input is None and is_native(task, plain):
        return replace(plain, input="native")
    return Reservoir.choose(options, default_windows(task, rows), published=published)


def is_native(task: Task, settings: Reservoir) -> bool:
    """Return whether a model is given what it was pretrained on: words, pictures, sounds, or letters."""
    other = "pixels" if task.pictures else "sounds" if holds_samples(task) else ""
    if settings.init != "pretrained" or not (task.alphabet or other) or not settings.windows(task).plain:
        return False
    from reservoir.backbones import find

    family, _ = find(settings.backbone)
    if other:
        return family.reads == other
    fits = family.reads == "letters" or (family.reads == "text" and are_words(task.alphabet))
    return fits and has_tokenizer(settings.backbone)


def hears_samples(options: ReservoirOptions) -> bool:
    """Whether the backbone that is named reads the samples of sounds."""
    if options.input not in {None, "native"} or options.init not in {None, "pretrained"}:
        return False
    from reservoir.backbones import find

    family, _ = find(full_name(str(options.backbone)))
    return family.reads == "sounds"


def default_layers(task: Task, *, native: bool = False) -> str:
    """Return the layers that are kept: all; of own sequences the first ones; deeper ones cost more than they add."""
    if native:
        return "all"
    if task.each or is_series(task) or is_letters(task):
        return "embed,block01"
    return "embed,block01,block02" if task.name not in TASKS and isinstance(task.form, Tokens) else "all"


def default_pools(task: Task, width: int, reader: Reader | None = None) -> str:
    """Return the poolings that are kept of a task in a backbone of this width, or one that has a ``reader`` of its own.

    Of sounds mean and deviation, of what else such reads the class token, or else the last one, and the mean; of own
    sequences what the channels take, and eight stretches, and of symbols, where they fit, all tokens side by side; of
    named tasks the last token and the mean.
    """
    if task.each:
        return "all"
    if holds_samples(task) and reader:
        return "mean,std"
    if reader:
        return "cls,mean" if reader.has_cls else "last,mean"
    if is_series(task):
        return ",".join([*TEXTURE, SEGMENTS])
    if task.name in TASKS or task.readout_tokens > 1:
        return "last,mean"
    aligned = isinstance(task.form, Tokens) and task.max_tokens * width <= WIDEST_TOKENS
    whole = COUNTS if is_letters(task) else ("last", "mean")
    return ",".join([*whole, SEGMENTS, *(["tokens"] if aligned else [])])


def default_columns(task: Task) -> tuple[str, ...]:
    """Return the columns that a readout of one's own sequences is chosen among, ``a+b`` side by side; else none.

    Without and with the stretches, which tell where in the sequence something is; and these beside the raw input. Of
    symbols also each layer's tokens, where they are kept.
    """
    if task.each:
        whole = "+".join(f"{layer}/all" for layer in default_layers(task).split(","))
        return ("raw", whole, f"{whole}+raw")
    if not (is_series(task) or is_letters(task)):
        return ()
    layers = default_layers(task).split(",")
    texture = [f"{layer}/{pooling}" for layer in layers for pooling in (TEXTURE if is_series(task) else COUNTS)]
    whole = [*texture, *(f"{layer}/{SEGMENTS}" for layer in layers)]
    tokens = [] if is_series(task) else [f"{layer}/tokens" for layer in layers]
    return ("raw", "+".join(texture), "+".join(whole), "+".join([*whole, "raw"]), *tokens)
