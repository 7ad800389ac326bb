"""Output for people and programs: results on stdout, progress and messages on stderr."""

import json
import math
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, TextIO

clock = time.monotonic

SECONDS = 30.0  # longest silence on stderr, in seconds, if it is not a terminal


class Record:
    """Base class of the results of stages: dataclasses whose fields can be printed as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return as_json(vars(self))


def as_json(value: Any) -> Any:
    """Convert records and mappings to dicts, tuples to lists, paths to text, and NaN and infinities to None."""
    if isinstance(value, Mapping):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else value


def on_one_terminal() -> bool:
    """Return whether a person reads both stdout and stderr, so that what is on one need not be on the other."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def print_json(value: Any) -> None:
    """Print one value as JSON on one line of stdout, in ASCII."""
    sys.stdout.write(json.dumps(as_json(value)) + "\n")
    sys.stdout.flush()


def printable(text: object) -> str:
    r"""Return a text with escapes for the characters that a terminal or a plot would not show literally.

    Labels, column names and file names come from data. Control characters (such as the escape
    sequences of terminals), line breaks, marks that change the direction of writing, invisible
    characters, and lone surrogates become ``\x1b``, ``\u202e`` and the like. All other text stays as
    it is.
    """
    text = str(text)
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    """Return a character, or its escape if a terminal would not show it literally."""
    # Control and format characters, surrogates, and separators of lines and paragraphs; but zero-width joiners are part
    # of the spelling of several languages and of emoji.
    is_invisible = (
        unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\u200c\u200d"
    )
    return char.encode("unicode_escape").decode("ascii") if is_invisible else char


def value_text(value: Any, name: str = "") -> str:
    """Return the value of a field as text; "" for objects of any other type.

    The ``name`` of the field tells durations (``seconds``) and sizes (``...bytes``, ``...memory``) from other numbers.
    """
    if isinstance(value, bool | str | Path):  # a bool before the integers, of which it is one
        return str(value)
    if isinstance(value, int):
        return size_text(value) if name.endswith(("bytes", "memory")) else f"{value:,}"
    if isinstance(value, float):
        return time_text(value) if name == "seconds" else f"{value:,.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text}" for key, inner in value.items() if (text := value_text(inner)))
    if not isinstance(value, list | tuple):
        return ""
    # Long lists are shown as their length, their first and their last value.
    texts = [value_text(inner) for inner in value]
    return ", ".join(texts) if len(texts) < 4 else f"{len(texts)}: {texts[0]} ... {texts[-1]}"


def percent(accuracy: float | None) -> str:
    """Return an accuracy as ``94.5%``, or a dash for None."""
    return "-" if accuracy is None else f"{100 * accuracy:.1f}%"


def score_text(score: float | None, metric: str) -> str:
    """Return a score as text: an accuracy as ``94.5%``, any other metric as a number."""
    return percent(score) if score is None or is_share(metric) else f"{score:.3f}"


def difference_text(difference: float, metric: str) -> str:
    """Return a difference of two scores as text: of accuracies in points."""
    return f"{100 * difference:.1f} points" if is_share(metric) else f"{difference:.3f}"


def signed_difference(difference: float, metric: str) -> str:
    """Return a difference of two scores with its sign: in percentage points without a unit, or as a number."""
    return f"{100 * difference:+.1f}" if is_share(metric) else f"{difference:+.3f}"


def is_share(metric: str) -> bool:
    """Return whether a metric is a share of labels, which is shown in percent."""
    return metric in ("accuracy", "balanced_accuracy")


def size_text(size: int) -> str:
    """Return a number of bytes as text: ``72.4 MB``."""
    from rich.filesize import decimal

    return decimal(size)


def count_text(number: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def time_text(seconds: float) -> str:
    """Return a duration as text: ``40 s``, ``12 min``, ``3 h 20 min``, ``11.3 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{seconds / 86400:.1f} days"


_silenced: ContextVar[bool] = ContextVar("silenced", default=False)


@contextmanager
def silenced() -> Iterator[None]:
    """Hide the messages and the progress of stages within the context; the caller shows its own."""
    token = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(token)


class _Screen:
    """What a person sees now, shared by all parts of this program in one process."""

    last_line = 0.0  # when a line was printed on ``stream``, by `clock`
    stream: ClassVar[TextIO | None] = None  # where the heartbeat prints
    meters: ClassVar[list["Meter"]] = []  # those that are shown now, the innermost last


def notify(*lines: str) -> None:
    """Print lines for a person to stderr, unless they are silenced; stdout is reserved for results."""
    if not _silenced.get():
        for line in lines:
            _write(sys.stderr, line)


def _write(stream: TextIO, text: str) -> None:
    """Print a line at once, and note the time if the heartbeat prints to the same stream."""
    stream.write(printable(text) + "\n")
    stream.flush()
    if stream is _Screen.stream:
        _Screen.last_line = clock()


@contextmanager
def heartbeat(name: str) -> Iterator[None]:
    """Print the progress, or the running time of ``name``, after `SECONDS` of silence, unless stderr is a terminal."""
    if sys.stderr.isatty():
        yield
        return
    has_ended = threading.Event()
    started = _Screen.last_line = clock()
    # This stream, because `reproduce` redirects sys.stderr while a cell runs.
    stream = _Screen.stream = sys.stderr

    def print_while_silent() -> None:
        while not has_ended.wait(min(1.0, SECONDS / 2)):
            if clock() - _Screen.last_line < SECONDS:
                continue
            # A copy, because the other thread may end a meter meanwhile.
            meters = list(_Screen.meters)
            running_time = f"{name}: running for {time_text(clock() - started)}"
            _write(stream, meters[-1].line() if meters else running_time)

    thread = threading.Thread(target=print_while_silent, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


class Meter:
    """Progress with its rate: a line that changes on a terminal, elsewhere a new line every `SECONDS`."""

    def __init__(self, title: str, total: int, unit: str, finished: int, units_per_step: int) -> None:
        self._title = title
        self._total = total  # steps
        self._unit = unit
        self._units_per_step = units_per_step
        self._finished_before = self._finished = finished  # steps; those before do not count in the rate
        self._text = ""  # what the caller adds to the line
        self._started = self._last_line = clock()
        self.display: Callable[[str], None] | None = None  # shows a line on a terminal; None elsewhere

    def show(self, finished: int, text: str = "") -> None:
        """Show how many steps are finished; without a terminal, only if the last line is old enough."""
        self._finished = finished
        self._text = text
        if self.display:
            self.display(self.line())
        elif clock() - self._last_line >= SECONDS and finished < self._total:
            notify(self.line())

    def advance(self, rows: int, written: int | None = None) -> None:
        """Count ``rows`` more as finished; ``written`` is the number of bytes so far, None if it is unchanged."""
        self.show(self._finished + rows, self._text if written is None else f"{written / 1e9:.2f} GB")

    def line(self) -> str:
        """Return a line with the work done, its rate, and the time left, which the caller has to print."""
        self._last_line = clock()
        seconds = max(self._last_line - self._started, 1e-9)  # not 0 if the clock has not moved
        steps_per_second = (self._finished - self._finished_before) / seconds
        rate = f"{self._units_per_step * steps_per_second:,.3g} {self._unit}/s"
        time_left = ""
        if steps_per_second:
            time_left = f", {time_text((self._total - self._finished) / steps_per_second)} left"
        share = f"{self._finished:,} of {self._total:,} ({100 * self._finished / self._total:.0f}%)"
        text = f"  {self._text}" if self._text else ""
        return f"{self._title}: {share}, {rate}{text}{time_left}"


@contextmanager
def meter(
    title: str, total: int, unit: str = "rows", finished: int = 0, *, units_per_step: int = 1
) -> Iterator[Meter]:
    """Yield a `Meter` of ``total`` steps of ``units_per_step`` units, of which ``finished`` are finished already."""
    new_meter = Meter(title, total, unit, finished, units_per_step)
    # On a terminal one line changes, which rich draws; elsewhere the meter prints lines, or the heartbeat does.
    live_line = nullcontext()
    if sys.stderr.isatty() and not _silenced.get():
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        # `Text` has no markup: a name in the data such as [red] is shown literally.
        spinner = Spinner("dots", Text(printable(title)))
        # Results that are printed meanwhile must not be redirected to stderr.
        live_line = Live(spinner, console=Console(stderr=True), transient=True, redirect_stdout=False)
        new_meter.display = lambda line: spinner.update(text=Text(printable(line)))
    _Screen.meters.append(new_meter)
    try:
        with live_line:
            yield new_meter
    finally:
        _Screen.meters.remove(new_meter)


@contextmanager
def training_meter(
    steps: int, finished: int, text: str, *, units_per_step: int = 1, unit: str = "steps"
) -> Iterator[Callable[..., None]]:
    """Yield ``show(step, *numbers)``, which shows running means of the numbers in the format ``text``."""
    means: list[float] = []  # empty before the first step
    with meter("train", steps, unit, finished, units_per_step=units_per_step) as progress:

        def show(step: int, *numbers: float) -> None:
            # Each mean is an exponential one, over about the last 20 steps, and begins with the first number.
            pairs = zip(means or numbers, numbers, strict=True)
            means[:] = [0.95 * mean + 0.05 * number for mean, number in pairs]
            progress.show(step, text.format(*means))

        yield show
