"""The options that several commands share, and the configuration file that gives their defaults."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir.errors import InputError


def read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Take a command's settings from its table of a TOML file; flags on the command line win.

    Raises
    ------
    InputError
        If the file is not readable, or sets what the command does not have.
    """
    if file is None:
        return None
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {file}: not readable ({error})") from error
    command = str(context.info_name)
    values = tables.get(command, {})
    if not isinstance(values, dict):
        raise InputError(f"--config {file}: write the settings of {command} below a line [{command}]")
    names = {p.name for p in context.command.params if p.param_type_name == "option" and p.name != "config"}
    values = {str(name).replace("-", "_"): value for name, value in values.items()}
    for name in values:
        if name not in names:
            raise InputError(f"--config {file}: {command} has no setting {name!r}; it has {', '.join(sorted(names))}")
    context.default_map = values
    return file


def task_parameters(
    param: list[str] | None, views: int | None, protocol: str | None, standardise: bool
) -> dict[str, Any]:
    """Return a task's own parameters from the flags that give them.

    Raises
    ------
    InputError
        If one is not of the form NAME=VALUE.
    """
    given: dict[str, Any] = {}
    for text in param or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--param {text}: write NAME=VALUE, such as n=5")
        try:
            given[name.strip().replace("-", "_")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name.strip().replace("-", "_")] = value
    flags = {"views": views, "protocol": protocol, "standardise": None if standardise else False}
    return given | {name: value for name, value in flags.items() if value is not None}


Param = Annotated[
    list[str] | None, typer.Option(help="A parameter of the task, NAME=VALUE; repeat for more.", metavar="NAME=VALUE")
]
Views = Annotated[int | None, typer.Option(help="Augmented copies of each training row (cifar10).")]
Standardise = Annotated[
    bool,
    typer.Option("--standardise/--no-standardise", help="Your own floats: mean 0, deviation 1 per channel."),
]
Protocol = Annotated[str | None, typer.Option(help="paper: as the authors' code did it (listops, homology).")]
Data = Annotated[Path | None, typer.Option(help="Folder of the publisher's files [default: RESERVOIR_DATA]")]
Cache = Annotated[Path | None, typer.Option(help="Root of the cache [default: RESERVOIR_CACHE, else the user's cache]")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Workers = Annotated[int, typer.Option(help="Local processes; 0 for none.")]
Scheduler = Annotated[str | None, typer.Option(help="A dask.distributed scheduler, tcp://host:port.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with the settings in a table named like the command.", callback=read_config, is_eager=True
    ),
]
