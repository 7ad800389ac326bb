"""Commands: functions whose flags come from groups of options, and the configuration file that sets them."""

import ast
import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from reservoir.errors import InputError, as_input_error
from reservoir.option_fields import flag_of, keyword, refuse_modules
from reservoir_pipelines.output import print_json
from reservoir_pipelines.signatures import parameter_fields
from reservoir_pipelines.tables import Shown, print_shown, record_facts

HELP = {"help_option_names": ["-h", "--help"]}  # the flags that print the help

_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "Path": Path}

SECTIONS = (
    *("Arguments", "Data", "Model", "Features", "Readout", "Search"),
    *("Training", "Attention", "Tables", "Output", "Run", "Options"),
)
"""The sections of a command's help, in their order."""


class SectionedCommand(TyperCommand):
    """A command whose help lists its flags in sections."""

    # Typer's own panels are not used, because they import rich, which takes a third of a second.

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the flags by section."""
        # A record is a flag and its help; hidden parameters have none.
        records_by_section: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                section = getattr(parameter, "rich_help_panel", None) or "Options"
                if parameter.param_type_name == "argument":
                    section = "Arguments"
                records_by_section.setdefault(section, []).append(record)
        for section in sorted(records_by_section, key=SECTIONS.index):
            with formatter.section(section):
                formatter.write_dl(records_by_section[section])


@dataclass(frozen=True)
class Answer:
    """Result of a command."""

    value: Any  # for programs: printed with --json
    tables: Sequence[Shown] | None = None  # for people; None stands for the fields of the value
    wrong: bool = False  # whether the exit code is 1: a check found something, or all cells failed


def command(app: typer.Typer, function: Callable[..., Answer], *groups: Any) -> None:
    """Register a function that returns an answer, with its own arguments and the options of some groups.

    The function has the parameter ``options``, a dict of the options that were set, and perhaps ``json``. A group is
    a class of options, or a tuple of such a class and the names of some of its options.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    own_parameters = [
        parameter for name, parameter in parameters.items() if name not in ("options", "json")
    ]
    # A parameter of the function's own replaces the option of that name.
    fields_of_options = {
        item.name: item for group in groups for item in _fields(group) if item.name not in parameters
    }
    takes_json = "json" in parameters

    def answer_of(arguments: Mapping[str, Any], options: dict[str, Any], json: bool) -> Answer:
        json_keyword = {"json": json} if takes_json else {}
        return function(**arguments, options=options, **json_keyword)

    _register(app, function, function.__doc__ or "", own_parameters, fields_of_options, answer_of)


def public_command(
    app: typer.Typer, function: Callable[..., Any], show: Callable[[Any], Answer | None] = Answer
) -> None:
    """Register a public function as a command, whose answer ``show`` makes of the function's result.

    Parameters without a default become arguments, and the others options. If ``show`` returns None, it has printed
    the result itself.
    """
    declared = parameter_fields(vars(function)["arguments"])  # `takes` stores them in the function
    own_parameters = [_required(item) for item in declared if item.default is MISSING]
    fields_of_options = {item.name: item for item in declared if item.default is not MISSING}

    def answer_of(arguments: Mapping[str, Any], options: dict[str, Any], _json: bool) -> Answer | None:
        return show(function(**arguments, **options))

    _register(app, function, vars(function)["summary"], own_parameters, fields_of_options, answer_of)


def _register(
    app: typer.Typer,
    function: Callable[..., Any],
    help_text: str,
    own_parameters: Sequence[inspect.Parameter],
    fields_of_options: Mapping[str, Field[Any]],
    answer_of: Callable[[Mapping[str, Any], dict[str, Any], bool], Answer | None],
) -> None:
    """Register a command with the name of a function, its own parameters, its options, --json and --config.

    ``answer_of`` makes the answer of three values: the arguments for the own parameters, the options that were set,
    and whether the answer will be printed as JSON. It returns None if it has printed the answer itself.
    """

    def run(config: Path | None = None, json: bool = False, **values: Any) -> None:
        """Call the function and print its answer; its signature and its docstring are replaced below."""
        # The values are those of options and of own parameters; an option that is None was not set. `_read_config` has
        # read the file ``config`` already.
        options = {name: value for name in fields_of_options if (value := values.pop(name)) is not None}
        arguments = values
        for name, value in options.items():
            if _type_name(fields_of_options[name]).startswith("Mapping"):
                options[name] = parse_parameters(value, flag_of(fields_of_options[name]))
        check_names({**arguments, **options}, arguments)
        answer = answer_of(arguments, options, json)
        if answer is not None:
            _print(answer, json=json)

    # Typer makes the flags from the signature, and the help from the docstring. In the docstring of a public function
    # an option is named like its keyword; the help has its flag.
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own_parameters]
    flags = [_parameter(item) for item in fields_of_options.values()]
    vars(run)["__signature__"] = inspect.Signature([*parameters, *flags, *_COMMON])
    for item in fields_of_options.values():
        help_text = help_text.replace(f"``{item.name}``", flag_of(item))
    run.__doc__ = help_text.replace("`", "")
    # Functions whose name would hide a builtin end with "_", such as `list_`.
    app.command(function.__name__.rstrip("_").replace("_", "-"), cls=SectionedCommand)(run)


def _print(answer: Answer, *, json: bool) -> None:
    """Print an answer as JSON or as tables; exit with code 1 if it says that something is wrong."""
    if json:
        print_json(answer.value)
    else:
        tables = [record_facts(answer.value)] if answer.tables is None else answer.tables
        for table in tables:
            print_shown(table)
    if answer.wrong:
        raise typer.Exit(1)


def check_names(values: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise `InputError` for an unknown task or backbone, or a missing file, before anything heavy is imported.

    ``arguments`` are the command's own arguments, and ``values`` these and the options that were set. Only an argument
    called ``readout`` is a folder: the option of that name is a kind of readout.
    """
    if backbone := values.get("backbone"):
        from reservoir.backbone_names import check_backbone_name

        check_backbone_name(backbone)
    if task := values.get("task"):
        from reservoir.tasks import TASKS
        from reservoir_pipelines.data.formats import source_files
        from reservoir_pipelines.data.hub import is_hub
        from reservoir_pipelines.preparation.prepare import open_source

        open_source(task)  # raises InputError for an unknown name
        if task not in TASKS and not is_hub(task):
            source_files(Path(task))  # raises InputError if the path has no data
    for name, expected in (("readout", "a folder that fit or train wrote"), ("file", "your data")):
        if path := arguments.get(name):
            from reservoir_pipelines.data.table import data_exists

            if not data_exists(Path(path)):
                raise InputError(f"{path}: no such file or folder", f"name {expected}")


def parse_parameters(texts: Sequence[str], flag: str = "--param") -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` texts by name; raise `InputError` for a text of another form.

    A value in the form of a Python literal, such as ``5``, ``1e-3`` or ``[1, 2]``, is read as one; others are texts.
    """
    parameters: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"{flag} {text}: not of the form NAME=VALUE", "write it as in n=5")
        parameter = name.strip().replace("-", "_")
        if parameter in parameters:
            raise InputError(
                f"{flag} {name}: given twice", f"give one value, or several as in {flag} {name}=1,2"
            )
        try:
            parameters[parameter] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parameters[parameter] = value
    return parameters


def _fields(group: Any) -> list[Field[Any]]:
    """Return the fields of a group of options, which is a class or a tuple of a class and names of its fields."""
    kind, *names = group if isinstance(group, tuple) else (group,)
    return [item for item in fields(kind) if not names or item.name in names]


def _required(item: Field[Any]) -> inspect.Parameter:
    """Return the parameter for a field without a default: an argument, or a flag if callers have to name the field."""
    declare = typer.Option if item.kw_only else typer.Argument
    annotation = Annotated[str, declare(help=item.metadata["help"])]
    return keyword(item.name, inspect.Parameter.empty, annotation)


def _type_name(item: Field[Any]) -> str:
    """Return the annotation of a field up to its first ``|``, such as "int" of ``int | None``."""
    # An annotation is text, because the files that declare options import `annotations` from `__future__`.
    return str(item.type).partition(" |")[0]


def _parameter(item: Field[Any]) -> inspect.Parameter:
    """Return the flag of a field. Its default is None, which distinguishes a missing value from a given one."""
    type_name = _type_name(item)
    # A flag for several values is given once for each of them.
    is_mapping = type_name.startswith("Mapping")
    is_repeated = is_mapping or type_name.startswith("Sequence")
    value_type = list[str] if is_repeated else _TYPES.get(type_name, str)
    # The help shows no default of a boolean: the flag itself does, as --name/--no-name if it is True, else as --name.
    default_text: str | None = None
    if item.metadata["shown"]:  # the declaration has words for the default
        default_text = item.metadata["shown"]
    elif item.default is not None and not isinstance(item.default, bool):
        default_text = str(item.default)
    flag = flag_of(item)
    reading: dict[str, Any] = {"metavar": "NAME=VALUE"} if is_mapping else {}
    if value_type is Path:
        reading = {"metavar": "<path>", "parser": _given_path}
    info = typer.Option(
        f"{flag}/--no-{flag[2:]}" if item.default is True else flag,
        help=item.metadata["help"] + ("" if default_text is None else f" [default: {default_text}]"),
        show_default=False,
        rich_help_panel=item.metadata["panel"],
        **reading,
    )
    return keyword(item.name, None, Annotated[value_type | None, info])


def _given_path(text: str) -> Path:
    """Return a path; refuse an empty one, as of a variable of the shell that is not set, which would be this folder."""
    if not text:
        raise typer.BadParameter("it is empty; give a path, or leave the option out")
    return Path(str(text))  # a configuration file may give a number


def _read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Read a command's settings from its table of a TOML file; flags on the command line take precedence.

    Typer calls this function for ``--config``, before it reads the other flags. The settings become their defaults.
    """
    if file is None:
        return None
    with as_input_error(f"--config {file}: not readable", "correct the file"):
        tables = tomllib.loads(file.read_text())
    # One file may have settings of several commands, so every key must be the name of a command.
    name = str(context.info_name)
    commands = {name, *_command_names(context.find_root().command)}
    for key, value in tables.items():
        if key not in commands or not isinstance(value, dict):
            raise InputError(
                f"--config {file}: {key!r} is not a table named after a command",
                f"write the settings of {name} below a line [{name}]",
            )
    settings = _settings_of_command(
        context.command.params, tables.get(name, {}), f"--config {file}: {name}"
    )
    _refuse_code(settings, file)
    context.default_map = settings
    return file


def _settings_of_command(parameters: Sequence[Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values in a command's table by the names of its parameters.

    Raise `InputError`, whose message begins with ``where``, for a key that is not the name of a flag.
    """
    # The options by the names of their flags, which may be written with _ or -. A file may not name another file.
    options: dict[str, Any] = {
        parameter.opts[0].removeprefix("--").replace("-", "_"): parameter
        for parameter in parameters
        if parameter.param_type_name == "option" and parameter.name != "config"
    }
    settings: dict[str, Any] = {}
    for key, value in table.items():
        option = options.get(str(key).replace("-", "_"))
        if option is None:
            raise InputError(
                f"{where} has no setting {key!r}", f"its settings are {', '.join(sorted(options))}"
            )
        # A flag that is given once takes several values as one text, with commas.
        is_joined = isinstance(value, list) and not option.multiple
        settings[option.name] = ",".join(map(str, value)) if is_joined else value
    return settings


def _command_names(root: Any) -> Iterator[str]:
    """Yield the names of all commands; for a group of commands, such as ``cache``, those of its commands instead."""
    for name, member in getattr(root, "commands", {}).items():
        yield from getattr(member, "commands", [name])


def _refuse_code(settings: Mapping[str, Any], file: Path) -> None:
    """Raise `InputError` if settings of a file would decide which code runs: a module, or a trusted readout."""
    refuse_modules(settings, f"--config {file}")
    overrides = settings.get("override")  # of `reproduce`, a list of NAME=VALUE texts
    if isinstance(overrides, list):
        refuse_modules(parse_parameters(overrides, "--override"), f"--config {file}")
    if settings.get("trust"):
        raise InputError(
            f"--config {file}: 'trust' lets a readout run code, which a file must not decide",
            "remove the setting, and pass --trust on the command line if you trust the author of the readout",
        )


_JSON = typer.Option("--json", help="Print one JSON value and nothing else on stdout.")
_CONFIG = typer.Option(
    help="TOML file with settings, in a table named after the command.",
    callback=_read_config,
    is_eager=True,
)
_COMMON = (
    keyword("json", False, Annotated[bool, _JSON]),
    keyword("config", None, Annotated[Path | None, _CONFIG]),
)
