"""Write ``__init__.pyi`` of ``reservoir_pipelines``: python docs/stub.py.

Editors and type checkers read this file. It has every public function with each option as a keyword, its type, its
default and its help, made from the dataclasses in ``reservoir/options.py`` and the functions in ``api.py``.
"""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

STUB = Path(__file__).resolve().parents[1] / "pipelines" / "reservoir_pipelines" / "__init__.pyi"
HEAD = '''\
"""Made by docs/stub.py from reservoir/options.py and api.py; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from reservoir_cache import FeatureStore

'''
ALIASES = """
StrPath = str | PathLike[str]
Features = Extraction | FeatureStore | Path | str
"""


def stub() -> str:
    """Return the text of the stub."""
    import reservoir_pipelines as package

    classes = [
        f"from reservoir_pipelines.{place} import {name} as {name}"
        for name, place in package.PLACES.items()
    ]
    listed = "".join(f'    "{name}",\n' for name in sorted(package.__all__))
    functions = "\n".join(_function(getattr(package, name)) for name in package.FUNCTIONS)
    return f"{HEAD}{chr(10).join(sorted(classes, key=_order))}\n\n__all__ = [\n{listed}]\n{ALIASES}\n{functions}"


def _order(line: str) -> tuple[str, ...]:
    """Return the sort key that isort uses for an import."""
    _, module, _, name, *_ = line.split()
    return module, name


def _function(function: object) -> str:
    """Return the definition of a function, with each parameter on its own line and with the docstring."""
    signature = inspect.signature(function)  # pyright: ignore[reportArgumentType]
    lines, named = [], False
    for parameter in signature.parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and not named:
            lines.append("*,")
            named = True
        lines.append(_parameter(parameter))
    text = inspect.getdoc(function) or ""
    body = textwrap.indent(f'"""{text}\n"""', "    ", lambda line: bool(line.strip()))
    head = "\n".join(f"    {line}" for line in lines)
    return f"def {function.__name__}(\n{head}\n) -> {signature.return_annotation}:\n{body}\n"  # pyright: ignore


def _parameter(parameter: inspect.Parameter) -> str:
    # A path may be given as text, and the stages convert it.
    kind = str(parameter.annotation).replace("StrPath", "Path").replace("Path", "StrPath")
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {kind}{default},"


if __name__ == "__main__":
    STUB.write_text(stub())
