"""Options as dataclass fields with a help line and a check, and functions on groups of options."""

from __future__ import annotations

import inspect
import re
import reprlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import Field, asdict, dataclass, field, fields
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeVar, dataclass_transform

from reservoir.errors import InputError

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MAX_SPAN = 36_500 * SECONDS["d"]  # a century: spans are subtracted from dates, which begin in the year 1
SEEDS = 2**63  # seeds of torch's generators have 63 bits
MAX_SHOWN = 200  # characters of a value in a message

StrPath = str | PathLike[str]
G = TypeVar("G", bound="Options")

# The names of the options declared with ``where=True``, which say where work runs or files are; `Options` adds them.
_where: set[str] = set()

KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "None": (NoneType, ""),
    "bool": (bool, "True or False"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a string"),
    "Path": (Path, "a path"),
    "Sequence[str]": ((list, tuple), "a list of strings"),
    "Mapping[str, Any]": (Mapping, "names with values"),
}
"""The types that each annotation of an option accepts, and their name in messages."""

Check = Callable[[Any], str | None]  # returns what to do about an invalid value, or None


def option(
    default: Any,
    text: str,
    check: Check | None = None,
    *,
    flag: str = "",
    shown: str = "",
    where: bool = False,
) -> Any:
    """Return a field of a group of options; its default is None if it depends on the data.

    ``text`` is one line of help. ``check`` returns what to do about an invalid value, or None. In the
    help, ``flag`` and ``shown`` replace the name and the default. ``where`` marks a folder, a device,
    a process or a network address, which no file may set (see `without_where`).
    """
    return field(default=default, metadata=_metadata(text, check, flag, shown, where))


def as_path(value: StrPath | None) -> Path | None:
    """Return a path; any other value stays as it is, for the check of types to refuse."""
    return Path(value) if isinstance(value, str | PathLike) else value


def path_option(
    text: str,
    *,
    default: None,
    converter: Callable[[StrPath | None], Path | None],
    shown: str = "",
) -> Any:
    """Return a field for a path, which callers may give as text, and which no file may set (``where=True``).

    Type checkers read ``default`` and ``converter`` where the field is declared, so each declaration repeats
    ``default=None, converter=as_path``.
    """
    metadata = _metadata(text, shown=shown, where=True, converter=converter)
    return field(default=default, metadata=metadata)


def argument(text: str, *, kw_only: Literal[False] = False) -> Any:
    """Return a field for what a function works on, such as its task: it is required, and may be positional."""
    return field(kw_only=kw_only, metadata=_metadata(text))


def required(text: str) -> Any:
    """Return a field for a keyword without a default."""
    return field(metadata=_metadata(text))


def _metadata(
    text: str,
    check: Check | None = None,
    flag: str = "",
    shown: str = "",
    where: bool = False,
    converter: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Return what the field of an option keeps besides its default.

    `option` describes the items; ``converter``, if it is not None, is applied to the value of a path.
    """
    return {
        "help": text,
        "check": check,
        "flag": flag,
        "shown": shown,
        "where": where,
        "converter": converter,
    }


def _must(accepts: Callable[[Any], object], remedy: str) -> Check:
    """Return a check that returns None if ``accepts(value)`` is true, else the remedy."""
    return lambda value: None if accepts(value) else remedy


def at_least(low: int) -> Check:
    """Return a check that a number is whole, at least ``low``, and fits in 31 bits."""
    check_low = _must(
        lambda value: value == int(value) and value >= low, f"give a whole number of at least {low}"
    )
    check_high = _must(lambda value: value < 2**31, "give a smaller number")
    return lambda value: check_low(value) or check_high(value)  # the first remedy, if any


def one_of(*names: str) -> Check:
    """Return a check that a value is one of ``names``."""
    return _must(names.__contains__, f"choose among {', '.join(names)}")


def within(low: float, high: float) -> Check:
    """Return a check that a number is neither below ``low`` nor above ``high``."""
    return _must(lambda value: low <= value <= high, f"give a number from {low:g} to {high:g}")


positive = _must(lambda value: 0 < value < float("inf"), "give a positive number")
share = _must(lambda value: 0 <= value < 1, "give a number of at least 0 and below 1")
seed_number = _must(lambda value: 0 <= value < SEEDS, f"give a whole number from 0 to {SEEDS - 1}")
dilation_list = _must(  # each dilation adds a window to every token
    re.compile(r"auto|0*[1-9]\d{0,8}(,0*[1-9]\d{0,8}){0,999}").fullmatch,
    "give auto, or up to 1,000 positive whole numbers such as 1,2,4",
)
_is_span = re.compile(r"(?=.*[1-9])\d+(\.\d+)?[smhd]").fullmatch  # the look-ahead refuses a length of zero
span = _must(  # of time
    lambda text: _is_span(text) and seconds_of(text) <= MAX_SPAN,
    "give a time such as 90s, 10m, 1h or 30d, at most 36500d",
)


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as ``90s``, which `span` has checked."""
    return float(text[:-1]) * SECONDS[text[-1]]


def only(*names: str) -> Check:
    """Return a check that a mapping has values for some of ``names``, and for nothing else."""

    def accepts(value: Mapping[str, Any]) -> bool:
        """Return whether there is at least one name, all are allowed, and each has a value."""
        has_valid_names = value.keys() <= {*names}
        return len(value) > 0 and has_valid_names and [] not in value.values()

    return _must(accepts, f"give values of {', '.join(names)}")


# `option` is not a field specifier, because a type checker sees a default only in an argument of that
# name: it takes any assigned value for a default, and shows the call, with its line of help, in the
# signature.
@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(path_option, argument, required)
)
@dataclass(frozen=True, kw_only=True)
class Options:
    """A group of options, checked when it is created. Each subclass becomes a frozen dataclass.

    ``panel`` is the heading of its own options in the help of commands. ``shown`` has other words for the
    defaults of inherited options, by name, where None stands for another default than in the other groups.
    """

    def __init_subclass__(
        cls, panel: str = "Options", shown: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Make each subclass a frozen dataclass, and register its options."""
        # The options that this group declares get its heading, and names of those with ``where=True`` are collected.
        declared = {name: item for name, item in vars(cls).items() if isinstance(item, Field)}
        for item in declared.values():
            item.metadata = MappingProxyType({**item.metadata, "panel": panel})
        _where.update(name for name, item in declared.items() if item.metadata.get("where"))
        # An inherited option to which this group only assigns a new default keeps its check and its help.
        inherited = getattr(cls, "__dataclass_fields__", {})
        for name in vars(cls).keys() & inherited.keys() - declared.keys():
            setattr(cls, name, field(default=vars(cls)[name], metadata=inherited[name].metadata))
        dataclass(frozen=True, kw_only=True)(cls)
        # The other groups keep their words for the default, because the fields here are copies.
        own_fields = cls.__dataclass_fields__
        for name, text in shown.items():
            own_fields[name] = copy(own_fields[name])
            own_fields[name].metadata = MappingProxyType({**own_fields[name].metadata, "shown": text})

    def __post_init__(self) -> None:
        """Convert each option to a plain value, or to a path, and check its type and its value."""
        for item in fields(self):
            kinds = str(item.type).split(" | ")  # such as ["int", "None"]: annotations are stored as text
            is_option = KINDS.keys() >= {*kinds}
            if not is_option:
                continue  # an argument such as a task or an entry, which its function checks
            value = _plain(getattr(self, item.name))
            is_empty = isinstance(value, str) and not value  # as a variable of the shell that is not set
            if is_empty and item.default != "":
                raise InputError(f"{flag_of(item)}: it is empty", "give a value, or leave the option out")
            if convert := item.metadata.get("converter"):
                value = convert(value)
            object.__setattr__(self, item.name, value)  # the dataclass is frozen
            _check(item, kinds, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain JSON values."""
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()
        }


def _check(item: Field[Any], kinds: Sequence[str], value: Any) -> None:
    """Raise `InputError` if a value of an option fails its check, or has none of the types ``kinds`` (see `KINDS`)."""
    has_other_items = isinstance(value, list | tuple) and not all(isinstance(text, str) for text in value)
    is_bool_for_number = isinstance(value, bool) and "bool" not in kinds  # Python counts True as a number
    has_type = any(isinstance(value, KINDS[kind][0]) for kind in kinds)
    if has_other_items or is_bool_for_number or not has_type:
        expected = " or ".join(KINDS[kind][1] for kind in kinds if kind != "None")
        shown = " ".join(reprlib.repr(value).split())  # shortened, on one line
        raise InputError(
            f"{flag_of(item)} {shown}: give {expected}. {item.metadata.get('help', '')}".strip()
        )
    check = item.metadata.get("check")
    if check is None or value is None:  # None stands for the default
        return
    if remedy := check(value):
        shown = str(value) if len(str(value)) <= MAX_SHOWN else f"{str(value)[:MAX_SHOWN]} ..."
        raise InputError(f"{flag_of(item)} {shown}: {remedy}")


def _plain(value: Any) -> Any:
    """Return a value with paths as text and NumPy numbers as Python numbers, because files hold plain values."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(inner) for inner in value)
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def without_where(values: Mapping[str, Any], source: str = "") -> dict[str, Any]:
    """Return the options that a file, such as an entry, a recipe or a run, may set.

    Only a person may set where work runs and where results are written: a file could name a scheduler
    that sends harmful code. With ``source``, the file's name, such options raise `InputError`;
    without it, they are dropped.
    """
    forbidden = sorted(_where & values.keys())
    if forbidden and source:
        raise InputError(
            f"{source}: {forbidden[0]!r} says where work runs or files are, which a file may not decide",
            f"remove it, or pass --{forbidden[0].replace('_', '-')} yourself",
        )
    return {name: value for name, value in values.items() if name not in _where}


def refuse_modules(values: Mapping[str, Any], source: str) -> None:
    """Raise `InputError` if the readout that a file names would import a module other than scikit-learn's."""
    # A module is imported only if a person types its name in the same command or Python call. A readout is a name, or
    # a path such as sklearn.svm.LinearSVC:C=1, whose parameters stand after the colon.
    path, _, _ = str(values.get("readout") or "").partition(":")
    is_path = "." in path
    if is_path and not path.startswith("sklearn."):
        raise InputError(
            f"{source}: the readout {values['readout']!r} would import a module, which a file may not do",
            "if you trust the module, type it on the command line",
        )


def as_group(options: Options | Mapping[str, Any], kind: type[G]) -> G:
    """Return a group of the type ``kind`` with the values that another group, or a mapping, has for its options.

    The others get their defaults.
    """
    values = vars(options) if isinstance(options, Options) else options
    return kind(**{item.name: values[item.name] for item in fields(kind) if item.name in values})


def keyword(name: str, default: Any, annotation: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a keyword-only parameter of a signature."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def flag_of(item: Any) -> str:
    """Return the flag of a dataclass field that declares an option, such as ``--learning-rate``."""
    return "--" + (item.metadata.get("flag") or item.name.replace("_", "-"))


def typed(name: str, arguments: Sequence[str], *groups: Options) -> str:
    """Return the command line of the command ``name`` with the options that differ from their defaults."""
    words = ["reservoir", name, *arguments]
    for group in groups:
        for item in fields(group):
            value = getattr(group, item.name)
            is_default = value == item.default or value is None
            if not is_default:
                words += flag_words(flag_of(item), value)
    return shlex.join(words)


def flag_words(flag: str, value: Any) -> list[str]:
    """Return the words of a command line that give an option a value."""
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, Mapping):  # the flag is repeated for each name
        return [
            word for name, inner in value.items() for word in (flag, f"{name}={_comma_separated(inner)}")
        ]
    return [flag, _comma_separated(value)]


def _comma_separated(value: Any) -> str:
    """Return the items of a list separated by commas, or any other value as text."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
