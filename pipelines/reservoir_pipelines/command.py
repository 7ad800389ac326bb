"""Commands: functions whose flags are made from groups of options, and the configuration file with their values."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from reservoir.errors import InputError
from reservoir.option_fields import Options, flag_of, keyword, panels, refuse_modules
from reservoir_pipelines.early import check_names
from reservoir_pipelines.output import print_json, print_table

HELP = {"help_option_names": ["-h", "--help"]}
"""The flags that print the help."""

Group = type[Options] | tuple[Any, ...]
"""A class of options, or a class followed by the names of the options that a command has."""

_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "Path": Path}

OwnTask = Annotated[str, typer.Argument(help="A task's name, or the path of your own data.")]

SECTIONS = (
    "Arguments",
    "Data",
    "Model",
    "Features",
    "Readout",
    "Search",
    "Training",
    "Attention",
    "Tables",
    "Output",
    "Run",
    "Options",
)
"""The sections of a command's help, in their order."""

Table = tuple[Any, ...]
"""Headings, rows and perhaps a title, as `print_table` takes them."""


class SectionedCommand(TyperCommand):
    """A command whose help lists its flags in sections."""

    # Not typer's own panels: they import rich, which takes a third of a second.

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the flags by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                argument = parameter.param_type_name == "argument"
                panel = "Arguments" if argument else getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(panel, []).append(record)
        for panel in sorted(sections, key=SECTIONS.index):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])


@dataclass(frozen=True)
class Answer:
    """Result of a command: a value for programs, tables for people, and whether the exit code is 1."""

    value: Any
    tables: Sequence[Table] = ()
    wrong: bool = False


def command(app: typer.Typer, *groups: Group, name: str | None = None) -> Callable[[Callable[..., Answer | None]], Any]:
    """Register a function as a command with its own arguments, the options of some groups, --json and --config.

    The function is called with its own arguments and ``given``, a dict of the options that were set; also with ``json``
    if it has such a parameter. Its answer is printed as JSON or as tables; for None nothing is printed.
    """

    def register(function: Callable[..., Answer | None]) -> Callable[..., Answer | None]:
        parameters = inspect.signature(function, eval_str=True).parameters
        own = [p for p in parameters.values() if p.name not in ("given", "json")]
        wants_json = {"json"} & parameters.keys()
        items = [item for group in groups for item in _fields(group)]
        pairs = {item.name: flag_of(item) for item in items if str(item.type).startswith("Mapping")}

        def run(config: Path | None = None, json: bool = False, **values: Any) -> None:
            given = {item.name: value for item in items if (value := values.pop(item.name)) is not None}
            for pair in pairs.keys() & given.keys():
                given[pair] = parse_parameters(given[pair], pairs[pair])
            check_names({**values, **given})
            answer = function(**values, given=given, **dict.fromkeys(wants_json, json))
            if answer and json:
                print_json(answer.value)
            for table in answer.tables if answer and not json else ():
                print_table(*table)
            if answer and answer.wrong:
                raise typer.Exit(1)

        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        run.__signature__ = inspect.Signature([*own, *map(_parameter, items), *_COMMON])  # pyright: ignore
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        app.command(name, cls=SectionedCommand)(run)
        return function

    return register


def parse_parameters(texts: Sequence[str], flag: str = "--param") -> dict[str, Any]:
    """Return values by name from ``NAME=VALUE``; raises `InputError` if one is not of that form."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"{flag} {text}: write NAME=VALUE, such as n=5")
        try:
            given[name.strip().replace("-", "_")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name.strip().replace("-", "_")] = value
    return given


def _fields(group: Group) -> list[Field[Any]]:
    kind, *names = group if isinstance(group, tuple) else (group,)
    return [item for item in fields(kind) if not names or item.name in names]


def _parameter(item: Field[Any]) -> inspect.Parameter:
    """Return the flag of a field. Its default is None, so that a given value differs from a missing one."""
    kind = str(item.type).partition(" |")[0]
    several = kind.startswith(("Mapping", "Sequence"))
    plain = item.default is not None and not isinstance(item.default, bool | tuple)
    shown = item.metadata["shown"] or (item.default if plain else "")
    text = item.metadata["help"] + (f" [default: {shown}]" if shown != "" else "")
    flag = flag_of(item)
    flags = [f"{flag}/--no-{flag[2:]}"] if item.default is True else [flag]
    more: dict[str, Any] = {"metavar": "NAME=VALUE"} if kind.startswith("Mapping") else {}
    annotation = (list[str] if several else _TYPES.get(kind, str)) | None
    return keyword(
        item.name,
        None,
        Annotated[
            annotation, typer.Option(*flags, help=text, show_default=False, rich_help_panel=panels[item.name], **more)
        ],
    )


def _read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Read a command's settings from its table of a TOML file; flags on the command line take precedence."""
    if file is None:
        return None
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--config {file}: not readable ({error})") from error
    name = str(context.info_name)
    _refuse_unread(file, name, tables, _command_names(name, context.find_root().command))
    values = tables.get(name, {})
    if not isinstance(values, dict):
        raise InputError(f"--config {file}: write the settings of {name} below a line [{name}]")
    options: dict[str, Any] = {}
    for parameter in context.command.params:
        if parameter.param_type_name == "option" and parameter.name != "config":
            flag = parameter.opts[0].removeprefix("--").replace("-", "_")
            options[flag] = parameter
    found: dict[str, Any] = {}
    for key, value in values.items():
        flag = str(key).replace("-", "_")
        if flag not in options:
            raise InputError(f"--config {file}: {name} has no setting {key!r}; it has {', '.join(sorted(options))}")
        joined = isinstance(value, list) and not options[flag].multiple
        found[options[flag].name] = ",".join(map(str, value)) if joined else value
    _refuse_code(file, found)
    context.default_map = found
    return file


def _refuse_code(file: Path, found: Mapping[str, Any]) -> None:
    """Refuse settings that would import a module or load a readout that can run code."""
    pairs = found.get("override")
    for values in (found, parse_parameters(pairs, "--override") if isinstance(pairs, list) else {}):
        refuse_modules(values, f"--config {file}")
    if found.get("trust"):
        raise InputError(
            f"--config {file}: 'trust' lets a readout run code, and a file cannot decide that; remove it, and pass "
            "--trust on the command line if you trust whoever made the readout"
        )


def _refuse_unread(file: Path, name: str, tables: Mapping[str, Any], commands: set[str]) -> None:
    """Refuse settings outside of tables, and tables that are not named after a command: nothing would read them."""
    for key, value in tables.items():
        table = isinstance(value, dict)
        if key not in commands:
            what = f"the table [{key}] is not named after a command" if table else f"{key!r} stands outside of a table"
            raise InputError(f"--config {file}: {what}; write the settings of {name} below a line [{name}]")


def _command_names(name: str, found: Any) -> set[str]:
    """Return the name of a command, or those of the commands of a group."""
    if not hasattr(found, "commands"):
        return {name}
    return {inner for key, member in found.commands.items() for inner in _command_names(key, member)}


_JSON = typer.Option("--json", help="Print one JSON object and nothing else on stdout.")
_CONFIG = typer.Option(
    help="TOML file with settings, in a table named after the command.", callback=_read_config, is_eager=True
)
_COMMON = (
    keyword("json", False, Annotated[bool, _JSON]),
    keyword("config", None, Annotated[Path | None, _CONFIG]),
)
