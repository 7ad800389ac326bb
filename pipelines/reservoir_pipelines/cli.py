"""The command line. Each command is a thin function over the stage of the same name; heavy imports wait inside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from reservoir_pipelines.commands import (
    cache_commands,
    compare_commands,
    export_commands,
    model_commands,
    pretrain_commands,
    train_commands,
)
from reservoir_pipelines.commands.model_commands import Depth, Init, Seed
from reservoir_pipelines.commands.options import (
    Cache,
    Config,
    Data,
    Device,
    Json,
    Param,
    Protocol,
    Readout,
    Scheduler,
    Standardise,
    Views,
    Workers,
    task_parameters,
)
from reservoir_pipelines.faults import Interruptible, system_fault

# Typer carries its own copy of click since 0.20 and used the package before; this is the one it raises.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="reservoir",
    cls=Interruptible,
    help="Run a frozen transformer once, cache its hidden states, fit linear readouts in seconds.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cache_commands.app, name="cache")
model_commands.register(app)
app.command()(export_commands.export)
train_commands.register(app)
pretrain_commands.register(app)
compare_commands.register(app)


@app.command()
def tasks(data: Data = None, cache: Cache = None, json: Json = False, config: Config = None) -> None:
    """List the tasks, their shapes, and whether their data is here."""
    from reservoir_pipelines.output import print_json, print_table
    from reservoir_pipelines.preparation.task_table import task_table

    rows = task_table(data=data, cache=cache)
    if json:
        print_json(rows)
        return
    headings = ("task", "a token", "#tokens", "#labels", "#classes", "splits", "data")
    print_table(
        headings,
        [
            (r["task"], r["input"], f"{r['tokens']:,}", r["labels_per_row"], f"{r['classes']:,}", _splits(r), r["data"])
            for r in rows
        ],
    )
    missing = [(r["task"], r["remedy"]) for r in rows if r["remedy"]]
    if missing:
        print_table(("missing", "what to do"), missing)


def _splits(row: dict[str, Any]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in row["splits"].items()) if row["splits"] else "-"


@app.command()
def prepare(
    task: Annotated[str, typer.Argument(help="A task's name, the path of your own data, or module:function.")],
    data: Data = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the publisher's files where missing.")] = False,
    mirror: Annotated[list[str] | None, typer.Option(help="Other places of the files; tried first.")] = None,
    param: Param = None,
    views: Views = None,
    protocol: Protocol = None,
    standardise: Standardise = True,
    workers: Workers = 0,
    scheduler: Scheduler = None,
    cache: Cache = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Read a task's files into typed arrays, split once and for all; extract does it by itself where needed."""
    from reservoir_pipelines.output import print_json, print_table, say
    from reservoir_pipelines.preparation.prepare import prepare as stage

    prepared = stage(
        task,
        data=data,
        cache=cache,
        workers=workers,
        scheduler=scheduler,
        parameters=task_parameters(param, views, protocol, standardise),
        fetch=download,
        mirrors=mirror or (),
    )
    for note in prepared.notes():
        say(note)
    if json:
        print_json({"prepared": str(prepared.path), "rows": prepared.rows, "digest": prepared.digest})
    else:
        print_table(
            ("split", "#rows"), [(name, f"{rows:,}") for name, rows in prepared.rows.items()], str(prepared.path)
        )


@app.command()
def extract(
    task: Annotated[str, typer.Argument(help="A task's name, or the path of your own .npz or .h5 file.")],
    backbone: Annotated[
        str | None, typer.Option(help="gpt2, bert-base-uncased, lstm, a model folder, a hub name ... [default: mini]")
    ] = None,
    init: Init = None,
    seed: Seed = 0,
    gain: Annotated[float, typer.Option(help="Scale of the input layer.")] = 1.41,
    depth: Depth = None,
    patch: Annotated[int, typer.Option(help="Values per token: windows of a float sequence.")] = 1,
    stride: Annotated[int | None, typer.Option(help="Values from one window to the next [default: the patch]")] = None,
    layers: Annotated[str, typer.Option(help="embed, block01 ..., final, comma-separated, or all.")] = "all",
    pool: Annotated[str, typer.Option(help="last, mean, max, first, segments8, all; comma-separated.")] = "last,mean",
    limit: Annotated[int | None, typer.Option(help="At most so many rows of each split, a fixed draw.")] = None,
    param: Param = None,
    views: Views = None,
    protocol: Protocol = None,
    standardise: Standardise = True,
    data: Data = None,
    cache: Cache = None,
    device: Device = "auto",
    compute: Annotated[str, typer.Option(help="float32, bfloat16, or auto: bfloat16 where it is native.")] = "auto",
    store: Annotated[str, typer.Option(help="float16, bfloat16 or float32 on disk.")] = "float16",
    batch_rows: Annotated[int | None, typer.Option(help="Rows per batch of a new entry.")] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Run a frozen transformer over a task once and cache its hidden states."""
    from reservoir_pipelines.extraction.extract import extract as stage
    from reservoir_pipelines.output import print_json, print_table, size_text

    done = stage(
        task,
        backbone=backbone,
        init=init,
        seed=seed,
        gain=gain,
        depth=depth,
        patch=patch,
        stride=stride,
        layers=layers,
        pool=pool,
        limit=limit,
        parameters=task_parameters(param, views, protocol, standardise),
        data=data,
        cache=cache,
        device=device,
        compute=compute,
        store=store,
        batch_rows=batch_rows,
    )
    if json:
        print_json(done.to_dict())
        return
    rows = ", ".join(f"{count:,} {split}" for split, count in done.rows.items())
    forward = "none, reused" if done.reused else f"{done.computed_rows:,} rows"
    print_table(
        ("extracted", ""),
        [
            ("entry", done.entry),
            ("rows", rows),
            ("columns", f"{len(done.columns)}: {done.columns[0]} ... {done.columns[-1]}"),
            ("on disk", size_text(done.bytes)),
            ("forward pass", forward),
            ("time", f"{done.seconds:.1f} s"),
        ],
    )


@app.command()
def fit(
    entries: Annotated[
        list[str],
        typer.Argument(metavar="TASK|ENTRY...", help="A task (its last extraction), or keys or folders of entries."),
    ],
    columns: Annotated[
        str, typer.Option(help="Columns to try, comma-separated; a+b for two side by side; all; best:4 greedily.")
    ] = "all",
    readout: Annotated[
        str, typer.Option(help="ridge, logistic, or an import path such as sklearn.svm.LinearSVC:C=0.1,1")
    ] = "ridge",
    alphas: Annotated[str | None, typer.Option(help="Penalties LO:HI:N on standardised features.")] = None,
    select: Annotated[str, typer.Option(help="valid, or cvK: K-fold cross-validation over train and valid.")] = "valid",
    class_weight: Annotated[str | None, typer.Option(help="balanced: all classes count the same.")] = None,
    curve: Annotated[str | None, typer.Option(help="Training rows of a learning curve, such as 100,1000.")] = None,
    seeds: Annotated[int, typer.Option(help="So many reservoirs, from seed 0; extracted where they are not.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="Among a task's entries, the last with this backbone.")] = None,
    init: Annotated[str | None, typer.Option(help="The last with these weights.")] = None,
    seed: Annotated[int | None, typer.Option(help="The last with this seed.")] = None,
    gain: Annotated[float | None, typer.Option(help="The last with this gain.")] = None,
    limit: Annotated[int | None, typer.Option(help="The last with this limit.")] = None,
    device: Device = "auto",
    workers: Workers = 0,
    scheduler: Scheduler = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.")] = None,
    cache: Cache = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Fit a linear readout to every cached column under every penalty; choose on valid, score test once."""
    from reservoir_pipelines.commands import report_fit
    from reservoir_pipelines.extraction.entries import find_entry
    from reservoir_pipelines.fitting.fit import fit as stage
    from reservoir_pipelines.fitting.seeds import fit_seeds
    from reservoir_pipelines.workspace import cache_root

    flags = {"backbone": backbone, "init": init, "seed": seed, "gain": gain, "limit": limit}
    found = [find_entry(cache_root(cache), entry, **flags) for entry in entries]
    settings = {
        "columns": columns,
        "readout": readout,
        "alphas": alphas,
        "select": select,
        "class_weight": class_weight,
        "curve": curve,
        "device": device,
        "workers": workers,
        "scheduler": scheduler,
    }
    if seeds:
        report_fit.show_seeds(fit_seeds(found, seeds, out=out, named=entries[0], **settings), json=json)
    else:
        report_fit.show(stage([entry.path for entry in found], out=out, **settings), json=json)


@app.command()
def predict(
    readout: Readout,
    file: Annotated[Path, typer.Argument(help="New sequences: .npz or .h5 with x, or an idx file of images.")],
    device: Device = "auto",
    json: Json = False,
    config: Config = None,
) -> None:
    """Print one JSON line per sequence with its label and the probabilities of the classes."""
    from reservoir_pipelines.output import print_json
    from reservoir_pipelines.prediction import predict as stage

    for prediction in stage(readout, file, device=device):
        print_json(prediction.to_dict())


def main() -> None:
    """Run the command line: 0 done, 1 failed, 2 the input was at fault, 130 interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; the user's own mistakes are told in one line on stderr."""
    from reservoir_cache import CacheError

    from reservoir.errors import InputError

    try:
        code = app(arguments or ["--help"], prog_name="reservoir", standalone_mode=False)
    except UsageError as error:
        where = getattr(error, "ctx", None)
        hint = f"; see {where.command_path} --help" if where else ""
        return _fault(error.format_message().replace("\n", " ").rstrip(".") + hint)
    except (InputError, CacheError) as error:
        return _fault(str(error))
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if (fault := system_fault(error)) is None:
            raise
        return _fault(*fault)
    return code if isinstance(code, int) else 0


def _fault(message: str, code: int = 2) -> int:
    sys.stderr.write(f"reservoir: {message}\n")
    return code
