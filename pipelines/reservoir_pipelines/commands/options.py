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
        If the file is not readable, holds what no command reads, or sets what the command does not have.
    """
    if file is None:
        return None
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {file}: not readable ({error})") from error
    command = str(context.info_name)
    _refuse_unread(file, command, tables, _command_names(command, context.find_root().command))
    values = tables.get(command, {})
    if not isinstance(values, dict):
        raise InputError(f"--config {file}: write the settings of {command} below a line [{command}]")
    options: dict[str, Any] = {str(p.name): p for p in context.command.params if p.param_type_name == "option"}
    del options["config"]
    values = {str(name).replace("-", "_"): value for name, value in values.items()}
    for name, value in values.items():
        if name not in options:
            raise InputError(f"--config {file}: {command} has no setting {name!r}; it has {', '.join(sorted(options))}")
        if isinstance(value, list) and not options[name].multiple:
            values[name] = ",".join(str(part) for part in value)
    context.default_map = values
    return file


def _refuse_unread(file: Path, command: str, tables: dict[str, Any], commands: set[str]) -> None:
    """Refuse settings outside of tables, and a table of no command's name where the command's own is not there."""
    for name, value in tables.items():
        table = isinstance(value, dict)
        if name not in commands and (command not in tables or not table):
            what = f"a table [{name}], which is no command's name" if table else f"{name!r} outside of a table"
            raise InputError(
                f"--config {file}: it has {what}; write the settings of {command} below a line [{command}]"
            )


def _command_names(name: str, command: Any) -> set[str]:
    """Return the name of a command, or those of the commands of a group."""
    if not hasattr(command, "commands"):
        return {name}
    return {found for inner, member in command.commands.items() for found in _command_names(inner, member)}


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


Readout = Annotated[
    Path,
    typer.Argument(metavar="READOUT|RUN", help="Folder or JSON file that fit wrote, or the folder of a run of train."),
]
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
