"""The command line. Each command is a thin function that calls a stage; heavy imports stay inside functions."""

import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir import options as opt
from reservoir_pipelines import api
from reservoir_pipelines.command import HELP, command, public_command
from reservoir_pipelines.commands import cache_commands, doctor
from reservoir_pipelines.commands import stage_commands as stages
from reservoir_pipelines.output import heartbeat, printable
from reservoir_pipelines.paper.commands import reproduce

# Exit codes besides 0; 130 is the code of shells for a program that Ctrl-C ended.
FAILED, INVALID, INTERRUPTED = 1, 2, 130
MAX_COMMANDS = 3  # commands in a message that have an option

# Since 0.20 typer has its own copy of click; before, it used the package. Import the copy whose errors typer raises.
UsageError: Any = typer.BadParameter.__base__
NoSuchOption: Any = sys.modules[UsageError.__module__].NoSuchOption

app = typer.Typer(
    name="reservoir",
    help="Run a frozen transformer once, cache its hidden states, and fit linear readouts in seconds.",
    context_settings=HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
caches = typer.Typer(
    help="List, check, copy and remove what is stored.", context_settings=HELP, rich_markup_mode=None
)

# The commands, in the order in which the help lists them, each with its groups of options; a public function has its
# own. A tuple is a part of a group: the options of these names.
_DATA = (opt.TaskOptions, "data")
_MODEL = (opt.ModelOptions, "init", "seed", "depth")
command(app, stages.tasks, _DATA, opt.CacheOptions)
command(app, doctor.doctor, _DATA, opt.CacheOptions)
public_command(app, api.prepare, show=stages.prepared_answer)
command(app, stages.extract, opt.ExtractOptions, opt.ClusterOptions)
public_command(app, api.plan, show=stages.plan_answer)
public_command(app, api.import_features)
public_command(app, api.export_features)
command(
    app,
    stages.fit,
    opt.FitOptions,
    opt.DeviceOptions,
    opt.CacheOptions,
    opt.ReservoirOptions,
    opt.RowOptions,
)
public_command(app, api.compare, show=stages.comparison_answer)
public_command(app, api.twin, show=stages.twin_answer)
command(app, stages.predict, opt.PredictOptions)
public_command(app, api.explain, show=stages.explanation_answer)
public_command(app, api.export, show=stages.export_answer)
command(app, stages.backbone, _MODEL, _DATA, opt.VariantOptions, opt.OutOptions, opt.CacheOptions)
public_command(app, api.attention)
public_command(app, api.train, show=stages.training_answer)
public_command(app, api.pretrain)
command(app, reproduce, opt.ReproduceOptions, opt.ClusterOptions, _DATA, opt.PlaceOptions)
command(app, stages.report, opt.ReportOptions)
for _name in ("list_", "show", "verify", "repair", "remove", "prune", "copy"):
    command(caches, getattr(cache_commands, _name), opt.CacheOptions)
app.add_typer(caches, name="cache")


def _print_version(requested: bool) -> None:
    """Print the version and end the program, if ``--version`` is given."""
    if requested:
        from importlib.metadata import version

        sys.stdout.write(f"reservoir {version('reservoir-features')}\n")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    # typer calls this function before each command. It exists for its option, which has its own callback.
    pass


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 invalid input, 130 interrupted."""
    # joblib and torch.compile start Python processes, which must not import modules from the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; invalid input is reported in one line on stderr."""
    from reservoir_cache import CacheError

    from reservoir.errors import FailedError, InputError

    try:
        with heartbeat("reservoir"):
            # typer returns what the command returns: an exit code, or None.
            code = _tree()(arguments or ["--help"], prog_name="reservoir", standalone_mode=False)
    except SystemExit as end:
        # If the reader of our output, such as head, has ended, typer ends with code 1. That is no fault of the command.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = 0
    except UsageError as error:
        return _print_fault(_usage_message(error), INVALID)
    except (InputError, CacheError, FailedError) as error:
        return _print_fault(str(error), FAILED if isinstance(error, FailedError) else INVALID)
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        return _print_fault("interrupted", INTERRUPTED)
    except (OSError, MemoryError, RuntimeError) as error:
        fault = _system_fault(error) if isinstance(error, OSError) else _memory_fault(error)
        if fault is None:  # a bug, which needs its traceback
            raise
        return _print_fault(*fault)
    if code == INTERRUPTED:  # Ctrl-C; typer itself prints nothing
        flag = " with --resume" if arguments[0] in ("train", "pretrain") else ""
        return _print_fault(f"interrupted; run the same command again{flag} to continue", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _usage_message(error: Any) -> str:
    """Return one line about a wrong command line, which names the command whose help to read."""
    from reservoir_cache import without_credentials

    # An option of another command is not a typing mistake, so the similar options that typer lists would mislead.
    owners = _commands_with(error.option_name) if isinstance(error, NoSuchOption) else ""
    text = f"{error.message}, which is for reservoir {owners}" if owners else error.format_message()
    # typer repeats arguments that it did not expect, which may be URLs
    message = without_credentials(text.replace("\n", " ").rstrip("."))
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context else message


def _commands_with(option: str) -> str:
    """Return the names of the first commands that have an option, or "" if none has."""
    names = [
        name
        for name, command in _tree().commands.items()
        if any(option in (*parameter.opts, *parameter.secondary_opts) for parameter in command.params)
    ]
    return ", ".join(names[:MAX_COMMANDS])


@cache
def _tree() -> Any:
    """Return the commands with their flags, built once: building takes longer than many commands."""
    return typer.main.get_command(app)


def _print_fault(message: str, code: int) -> int:
    """Write the line about an error to stderr, and return the exit code ``code``."""
    sys.stderr.write(f"reservoir: {printable(message)}\n")
    return code


# The user can correct the path: exit code 2. Numbers of system errors.
_WRONG_PATH = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR),
    *(errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
}
# The machine lacks a resource or is faulty: exit code 1. Numbers of system errors with the remedy for each; such an
# error may have no path, because that of a failed write names none.
_MACHINE_FAULTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some disk space"),
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def _system_fault(error: OSError) -> tuple[str, int] | None:
    """Return one line and the exit code for an error that no command handled, or None for a bug."""
    # An error that names no path, or has no number, is not about a file of the user.
    has_path = error.filename is not None
    if error.errno is None or not (has_path or error.errno in _MACHINE_FAULTS):
        return None
    if error.errno in _WRONG_PATH:
        code = INVALID
        remedy = "check the path and its permissions, or name another path"
    else:
        code = FAILED
        first_step = _MACHINE_FAULTS.get(error.errno, "fix the cause")
        remedy = (
            f"{first_step}, then run the same command again to continue (train and pretrain: with --resume)"
        )
    path = Path(str(error.filename or ""))
    # The name of a temporary file means nothing to the user; its folder does.
    is_temporary = path.name.startswith(".") and path.suffix == ".tmp"
    named_path = path.parent if is_temporary else error.filename
    where = "" if named_path is None else f"{named_path}: "
    return f"{where}{error.strerror}; {remedy}", code


def _memory_fault(error: MemoryError | RuntimeError) -> tuple[str, int] | None:
    """Return one line and the exit code if the host or a GPU has no memory left, or None for a bug."""
    from reservoir.errors import first_line

    if not isinstance(error, MemoryError):
        from reservoir.devices import is_out_of_memory  # imports torch

        if not is_out_of_memory(error):
            return None
    remedy = (
        "take smaller batches (--batch-rows of extract, --batch of train), shorter rows or another --device"
    )
    return f"out of memory ({first_line(error)}); {remedy}", FAILED
