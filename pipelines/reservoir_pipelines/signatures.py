"""Public functions whose parameters are the fields of one dataclass: their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from reservoir.errors import nearest
from reservoir.option_fields import Options

KINDS = {
    "StrPath": "str or path-like",
    "Path": "path-like",
    "Sequence[str]": "sequence of str",
    "Sequence[StrPath]": "sequence of path-like",
    "Mapping[str, Any]": "mapping",
}
"""The words of documentation for the types of parameters."""

RAISES = """\
Raises
------
InputError
    If an option, a name or a file is wrong; the message says what to do.
"""

FIRST_SECTION = re.compile(r"^\w+\n---", re.MULTILINE)

P = ParamSpec("P")  # the parameters of the dataclass's constructor
A = TypeVar("A")  # the dataclass
R = TypeVar("R")  # what the function returns


def takes(arguments: Callable[P, A]) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Decorate a function of one dataclass ``arguments``, so that callers pass its fields instead.

    Type checkers and editors take the signature from the constructor of the dataclass, and
    `inspect.signature`, ``help`` and Sphinx from ``__signature__`` and the docstring, which describes
    each field. The attributes ``arguments`` and ``summary`` are for the command line.
    """
    kind = cast(type[Options], arguments)

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        """Return the function with the signature and the docstring that its dataclass gives it."""
        name = function.__name__
        returned = function.__annotations__["return"]
        parameters = {item.name: _parameter(item) for item in parameter_fields(kind)}
        signature = inspect.Signature([*parameters.values()], return_annotation=returned)
        summary, sections = _summary_and_sections(function)

        @wraps(function)
        def call(*values: P.args, **options: P.kwargs) -> R:
            # The error of the constructor would name the dataclass, which callers do not know.
            for unknown in options.keys() - parameters.keys():
                raise TypeError(f"{name}() has no keyword {unknown!r}{nearest(unknown, parameters)}")
            try:
                signature.bind(*values, **options)
            except TypeError as error:  # an argument is missing, or there are too many
                raise TypeError(f"{name}(): {error}") from None
            return function(arguments(*values, **options))

        call.__doc__ = _docstring(summary, kind, returned, sections)
        vars(call).update(arguments=kind, summary=summary, __signature__=signature)
        return call

    return decorate


def parameter_fields(kind: type[Options]) -> list[Field[Any]]:
    """Return the fields in the order of the signature: the arguments, the function's own keywords, its options."""
    own_names = vars(kind).get("__annotations__", {})  # without those of the groups that the class inherits
    # False sorts before True, and fields with equal keys keep their order.
    return sorted(fields(kind), key=lambda item: (item.kw_only, item.name not in own_names))


def _parameter(item: Field[Any]) -> inspect.Parameter:
    """Return the parameter of a signature that stands for a field."""
    kind = inspect.Parameter.KEYWORD_ONLY if item.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = inspect.Parameter.empty if item.default is MISSING else item.default
    return inspect.Parameter(item.name, kind, default=default, annotation=str(item.type))


def _summary_and_sections(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the docstring of a function before its first section, and its sections."""
    text = inspect.getdoc(function) or ""
    section = FIRST_SECTION.search(text)
    assert section, f"{function.__name__} has no example"
    return text[: section.start()], text[section.start() :]


def _docstring(summary: str, kind: type[Options], returned: str, sections: str) -> str:
    """Return a numpydoc docstring in which each parameter is described.

    ``returned`` is the type that the function returns, for a section Returns, unless ``sections`` begin with one.
    """
    lines = [summary, "Parameters", "----------", *map(described, parameter_fields(kind)), ""]
    if not sections.startswith("Returns\n"):
        lines += ["Returns", "-------", returned, ""]
    return "\n".join([*lines, RAISES, sections])


def described(item: Field[Any]) -> str:
    """Return the description of a parameter in the form of numpydoc: a line with its type, and its help below."""
    kinds = [KINDS.get(kind, kind) for kind in str(item.type).split(" | ") if kind != "None"]
    # An argument without a default says nothing; None stands for a default that is decided later.
    if item.default is MISSING:
        default = ""
    elif item.default is None:
        default = ", optional"
    else:
        default = f", default={item.default!r}"
    shown_default, text = item.metadata["shown"], item.metadata["help"]
    text += ("" if text.endswith(".") else ".") + (f" Default: {shown_default}." if shown_default else "")
    indented = textwrap.fill(text, 108, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return f"{item.name} : {' or '.join(kinds)}{default}\n{indented}"
