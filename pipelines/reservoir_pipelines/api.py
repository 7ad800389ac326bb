"""The public functions: one per stage, every option a keyword.

Each function fills its stage's groups of options with the keywords and calls the stage. The decorator
`takes` adds the options to its signature and docstring; ``__init__.pyi`` is a stub for editors and
type checkers.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reservoir import options as opt
from reservoir.errors import nearest, require_path
from reservoir.option_fields import Options, as_group, keyword, option

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    import reservoir_pipelines as results  # the stub of this package exports the result classes

    StrPath = str | PathLike[str]
    Features = results.Extraction | FeatureStore | Path | str

COMMON = {
    "task": "Name of a task, or the path of your own data.",
    "readout": "Folder or JSON file that fit wrote, or the folder of a run of train.",
    "file": "New sequences: any file that a task can be made from, with or without labels, or an idx file of images.",
}
"""The descriptions of parameters that several functions have."""

KINDS = {
    "StrPath": "str or path-like",
    "Path": "path-like",
    "Sequence[str]": "sequence of str",
    "Sequence[StrPath]": "sequence of path-like",
    "Mapping[str, Any]": "mapping",
}
"""The words of documentation for the types of parameters."""

FIRST_SECTION = re.compile(r"^\w+\n---", re.MULTILINE)

F = TypeVar("F", bound=Callable[..., Any])


def takes(*groups: type[Options], **own: str) -> Callable[[F], F]:
    """Decorate a function: replace ``**options`` in its signature by the options of some groups, and describe them.

    ``own`` has the descriptions of its other parameters. Commands show the same descriptions.
    """

    def document(function: F) -> F:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]
        first = [_as_option(p, (COMMON | own)[p.name]) for p in parameters]
        items = [item for group in groups for item in fields(group)]
        options = [keyword(item.name, item.default, str(item.type)) for item in items]
        returned = function.__annotations__["return"].removeprefix("results.")
        signature = inspect.Signature([*parameters, *options], return_annotation=returned)
        text = inspect.getdoc(function) or ""
        section = FIRST_SECTION.search(text)
        assert section, f"{function.__name__} has no example"
        summary, rest = text[: section.start()], text[section.start() :]
        added = ["Parameters", "----------", *map(described, [*first, *items]), ""]
        if not rest.startswith("Returns\n"):
            added += ["Returns", "-------", returned, ""]
        added += [
            "Raises",
            "------",
            "InputError",
            "    If an option, a name or a file is wrong; the message says what to do.",
            "",
        ]
        vars(function).update(groups=groups, own=first, summary=summary, __signature__=signature)
        function.__doc__ = "\n".join([summary, *added, rest])
        return function

    return document


def _as_option(parameter: inspect.Parameter, text: str) -> Field[Any]:
    item = option(parameter.default, text)
    item.name, item.type = parameter.name, str(parameter.annotation)
    return item


def described(item: Field[Any]) -> str:
    """Return the description of an option in the form of numpydoc."""
    kinds = [KINDS.get(kind, kind) for kind in str(item.type).split(" | ") if kind != "None"]
    required = item.default is inspect.Parameter.empty
    default = "" if required else ", optional" if item.default is None else f", default={item.default!r}"
    shown, text = item.metadata["shown"], item.metadata["help"]
    text += ("" if text.endswith(".") else ".") + (f" Default: {shown}." if shown else "")
    below = textwrap.fill(text, 108, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return f"{item.name} : {' or '.join(kinds)}{default}\n{below}"


def groups_of(function: Callable[..., Any], given: Mapping[str, Any]) -> list[Any]:
    """Return a function's groups of options with the given values; raise `TypeError` for an unknown keyword."""
    known = inspect.signature(function).parameters
    for name in given.keys() - known.keys():
        raise TypeError(f"{function.__name__}() has no keyword {name!r}{nearest(name, known)}")
    return [as_group(given, group) for group in vars(function)["groups"]]


@takes(opt.TaskOptions, opt.ClusterOptions, opt.DownloadOptions, opt.CacheOptions)
def prepare(task: StrPath, **options: Any) -> results.Prepared:
    """Read a task's files into arrays, and split them.

    The other stages do this themselves when they need the data. The prepared data is in a cache
    folder that is named after the task's parameters and the contents of the source files. If a source
    file changes, another is written.

    Examples
    --------
    >>> from reservoir_pipelines import prepare
    >>> digits = prepare("digits")
    >>> len(digits.split("train")), digits.task.classes
    (1078, 10)
    """
    from reservoir_pipelines.preparation.prepare import prepare as run

    chosen, cluster, files, place = groups_of(prepare, options)
    return run(require_path(task, "prepare: task"), chosen, cache=place.cache, cluster=cluster, files=files)


@takes(opt.ExtractOptions, opt.ClusterOptions, splits="Compute only these splits; all by default.")
def extract(task: StrPath, *, splits: Sequence[str] | None = None, **options: Any) -> results.Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states.

    Cached features are reused: a finished extraction computes nothing, an interrupted one continues,
    and a new column is added without computing the others again. ``batch_rows`` applies to new
    entries only, because it changes the last bits. A larger ``limit`` includes the rows of a smaller
    one.

    Returns
    -------
    Extraction
        ``extraction["train"]["block06/mean"]`` is an array (rows, width).

    Examples
    --------
    >>> from reservoir_pipelines import extract
    >>> features = extract("digits", limit=60, layers="block01", pool="mean")
    >>> features["train"]["block01/mean"].shape
    (60, 256)
    """
    from reservoir_pipelines.extraction.extract import extract as run

    return run(require_path(task, "extract: task"), *groups_of(extract, options), splits=splits)


@takes(
    opt.TaskOptions,
    opt.CacheOptions,
    file="An .npz, .h5, .parquet or .safetensors file of the features, or a folder of export-features.",
    task="The task whose rows have these features; not needed for a folder, which has labels of its own.",
    name="Name of the entry, such as the model that computed the features; a folder names it.",
)
def import_features(
    file: StrPath, *, task: StrPath | None = None, name: str | None = None, **options: Any
) -> results.Extraction:
    """Cache features that another program computed.

    They become an entry of a task, which `fit` reads like any other entry. The file holds one array
    (rows, width) per split, named ``train``, ``valid`` and ``test``, with the rows of the prepared
    task in their order. With several columns, the arrays are named ``train/COLUMN`` and so on. In a
    Parquet file, the column ``split`` names the split of each row, and the features are columns of
    lists or of floats (joined).

    A folder that `export_features` wrote is compared with its checksums first. With ``task`` its rows
    must be those of the task; without, the entry has no raw input, and `fit` tries no baselines.

    Returns
    -------
    Extraction
        An array whose name has no ``COLUMN`` is the column ``imported/mean``.

    Examples
    --------
    >>> from safetensors.numpy import save_file
    >>> from reservoir_pipelines import fit, import_features, prepare
    >>> digits = prepare("digits")
    >>> rows = {split: digits.split(split).read(0, n).x.reshape(n, -1) for split, n in digits.rows.items()}
    >>> save_file(rows, "pixels.safetensors")
    >>> fit(import_features("pixels.safetensors", task="digits", name="pixels")).best.columns
    ('imported/mean',)
    """
    from reservoir_pipelines.extraction.import_features import import_features as run

    chosen = groups_of(import_features, options)
    named = None if task is None else require_path(task, "import_features: task")
    return run(Path(require_path(file, "import_features: file")), named, name, *chosen)


@takes(
    opt.CacheOptions,
    entry="A task (its last extraction), a key or a folder; in Python also the result of extract.",
    to="Folder to write, which must be empty or not exist.",
    columns="Columns to write, comma-separated, or all.",
    format="parquet, safetensors, or npy (an array per file, for np.load with mmap_mode). Default: parquet if pyarrow "
    "is installed, else safetensors.",
)
def export_features(
    entry: Features,
    *,
    to: StrPath,
    columns: str | Sequence[str] = "all",
    format: str | None = None,
    **options: Any,
) -> results.ExportedFeatures:
    """Write the features of an entry for other programs.

    Each split becomes a file with features, labels and row ids, or with ``npy`` a folder. Values are
    float32, exactly as `extract` and `fit` read them from the cache; the memory needed does not
    depend on the number of rows. The folder has a dataset card, ``README.md``, and appears when it is
    complete. `import_features` reads it again.

    Examples
    --------
    >>> from reservoir_pipelines import export_features, extract, import_features
    >>> features = extract("digits", limit=60, layers="block01", pool="mean")
    >>> export_features(features, to="digits-features", format="npy", columns="block01/mean").rows
    {'train': 60, 'valid': 60, 'test': 60}
    >>> import_features("digits-features").columns
    ('block01/mean',)
    """
    from reservoir_pipelines.extraction.export_features import export_features as run

    (place,) = groups_of(export_features, options)
    return run(entry, Path(require_path(to, "export_features: to")), columns, format, place)


@takes(
    opt.ExtractOptions,
    rows="Total number of rows; by default all rows of the task, or --limit per split.",
    workers="Processes or GPUs like this one that share the work.",
)
def plan(task: StrPath, *, rows: int | None = None, workers: int = 1, **options: Any) -> results.Forecast:
    """Estimate time, disk and memory of an extraction.

    A trial of a few seconds measures this machine. Only the prepared data is kept. A sample of the
    data is enough if ``rows`` gives the number of all rows.

    Examples
    --------
    >>> from reservoir_pipelines import plan
    >>> plan("digits", rows=1_000_000, layers="block01", pool="mean").rows
    1000000
    """
    from reservoir_pipelines.extraction.forecast import plan as run

    return run(require_path(task, "plan: task"), *groups_of(plan, options), rows=rows, workers=workers)


@takes(
    opt.FitOptions,
    opt.DeviceOptions,
    features="What `extract` returned, or the folder of an entry. Several entries of the same rows are fitted "
    "together; their columns are named 1:block06/mean, 2:block06/mean and so on.",
)
def fit(features: Features | Sequence[Features], **options: Any) -> results.Fit:
    """Fit a readout to every column under every setting and choose one by validation.

    With ``columns="all"``, `fit` tries each column alone, all columns of each layer concatenated, and
    columns that are known to suit the data. On data of your own, a baseline (the raw input, or a
    statistic of it) is saved instead if it is better by more than a standard error on the held-out
    rows. ``a+b`` concatenates two columns. A readout chosen on the validation split is then fitted to
    train and valid.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> found.best.metric, found.best.test_score > 0.5
    ('accuracy', True)
    """
    from reservoir_pipelines.fitting.fit import fit as run

    return run(features, *groups_of(fit, options))


@takes(
    first="Folder that fit or train wrote.",
    second="Folder that is compared with it.",
)
def compare(first: StrPath, second: StrPath, **options: Any) -> results.Comparison:
    """Compare two fits or runs on the same test rows.

    Rows are paired by their ids in ``predictions.csv``; rows that only one of them has are counted
    and left out. The difference of the scores has a paired 95% interval and a p-value, over groups if
    the rows have groups. Two checkpoints, models or columns are compared by a fit of each.

    Examples
    --------
    >>> from reservoir_pipelines import compare, extract, fit
    >>> features = extract("digits", limit=60, layers="embed,block01", pool="mean")
    >>> folders = [fit(features, columns=f"{layer}/mean", out=layer).saved.parent for layer in ("block01", "embed")]
    >>> compare(*folders).rows
    60
    """
    from reservoir_pipelines.comparison.compare import compare as run

    folders = (Path(require_path(first, "compare: first")), Path(require_path(second, "compare: second")))
    return run(*folders, *groups_of(compare, options))


@takes(opt.DeviceOptions, opt.TrustOptions, opt.CoverageOptions, opt.LabelsOptions)
def predict(readout: StrPath, file: StrPath, **options: Any) -> results.Predictions:
    """Apply a saved readout to the sequences of a file.

    Returns
    -------
    Predictions
        An iterator over one `Prediction` per sequence, in order; each block of rows is computed when it is reached.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import extract, fit, predict
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"), out="digits")
    >>> np.savez("new.npz", x=np.zeros((3, 8, 8)))
    >>> len([each.label for each in predict("digits", "new.npz")])
    3
    """
    from reservoir_pipelines.prediction.predict import predict as run

    readout, file = require_path(readout, "predict: readout"), require_path(file, "predict: file")
    return run(Path(readout), Path(file), *groups_of(predict, options))


@takes(opt.ExplainOptions)
def explain(readout: StrPath, file: StrPath, **options: Any) -> results.Explanation:
    """Plot which positions of a sequence its label depends on.

    The readout has to be linear, with one label per sequence. ``out`` is ``explained.png`` in the
    readout's folder by default.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import explain, extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"), out="digits")
    >>> np.savez("new.npz", x=np.zeros((3, 8, 8)))
    >>> [len(row.occluded) for row in explain("digits", "new.npz", first=2).rows]
    [16, 16]
    """
    from reservoir_pipelines.prediction.explain import explain as run

    readout, file = require_path(readout, "explain: readout"), require_path(file, "explain: file")
    return run(Path(readout), Path(file), *groups_of(explain, options))


@takes(opt.OutOptions, to="Form of the file: torch (for torch.export.load) or onnx.")
def export(readout: StrPath, *, to: str = "torch", **options: Any) -> results.Export:
    """Write a readout with its model as one file.

    The file maps raw sequences to logits and runs without this program. ``torch`` writes a program
    for ``torch.export.load``, in the precision that the readout was fitted in, so that its results
    equal those of `predict`. ``onnx`` writes a float32 graph, because runtimes have few bfloat16
    operators. ``out`` is ``model.pt2`` or ``model.onnx`` in the readout's folder by default. A model
    that reads texts or images by its own tokenizer or processor is exported without these: the
    inputs are then ``input_ids`` and ``attention_mask``, or ``pixel_values``, and the file of the
    tokenizer or processor is written as ``reader``.

    Examples
    --------
    >>> from reservoir_pipelines import export, extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"), columns="block01/mean", out="digits")
    >>> export("digits").model.name
    'model.pt2'
    """
    from reservoir_pipelines.prediction.export import export as run

    return run(Path(require_path(readout, "export: readout")), *groups_of(export, options), to=to)


@takes(opt.ReservoirOptions, opt.RowOptions, opt.TrainOptions, opt.PlaceOptions)
def train(task: StrPath, **options: Any) -> results.Training:
    """Train groups of parameters with the rest frozen.

    The best checkpoint is chosen by validation and scored on test once. On a CPU the same settings
    give the same weights, even if the run was stopped and resumed. If ``accelerate launch`` starts
    several processes, each process takes ``batch`` times ``accumulate`` rows per step.

    ``seed`` also determines the order of the rows and the dropout masks. ``steps`` includes earlier
    steps of the run. Without ``run``, the folder is in the cache, and its name contains a hash of all
    settings that affect the result. With ``sweep``, every run is kept, and the run with the best
    validation score is returned.

    Examples
    --------
    >>> from reservoir_pipelines import train
    >>> train("bit-xor", depth=1, steps=2, eval_every=2).steps
    2
    """
    from reservoir_pipelines.training.train import train as run

    return run(require_path(task, "train: task"), *groups_of(train, options))


@takes(
    opt.ShapeOptions,
    opt.PretrainOptions,
    opt.PlaceOptions,
    corpus="Text file (also .gz), folder, stream (nesting, zipf, uniform), several (zipf,nesting), or bit-memory.",
    out="Folder of the new model, for --backbone; transformers can load it.",
)
def pretrain(corpus: StrPath, *, out: StrPath, **options: Any) -> results.Pretraining:
    """Pretrain a backbone from random weights.

    The model learns to predict the next token, so it has to be causal: GPT-2, Llama and its
    relatives. ``vocabulary`` is the number of tokens of a stream, or for bit-memory the size of the
    token embeddings, which are not trained.

    Examples
    --------
    >>> from reservoir_pipelines import pretrain
    >>> pretrain("zipf", out="zipf", backbone="mini:n_layer=1,n_embd=16,n_positions=64", steps=2).unit
    'token'
    """
    from reservoir_pipelines.paper.pretrain import pretrain as run

    folder = Path(require_path(out, "pretrain: out"))
    return run(require_path(corpus, "pretrain: corpus"), *groups_of(pretrain, options), out=folder)


@takes(opt.ReservoirOptions, opt.TaskOptions, opt.AttentionOptions, opt.PlaceOptions)
def attention(task: StrPath, **options: Any) -> results.Attention:
    """Plot which tokens attend to which in one block.

    The maps are those of the first rows of a split, and their mean. If ``run`` is the folder of a run
    of `train`, the model, the task's parameters and the scaling come from that run.

    Returns
    -------
    Attention
        Its ``one`` and ``mean`` are arrays (heads, tokens, tokens).

    Examples
    --------
    >>> from reservoir_pipelines import attention
    >>> attention("digits", average=20, out="maps.png").mean.shape
    (4, 16, 16)
    """
    from reservoir_pipelines.paper.attention_maps import attention as run

    return run(require_path(task, "attention: task"), *groups_of(attention, options))


@takes(
    opt.ReproduceOptions,
    opt.ClusterOptions,
    opt.TaskOptions,
    opt.PlaceOptions,
    names="Names of recipes, or paths of TOML files. An empty sequence means all recipes of the package.",
    confirm="Called with the cells to run, and the folders and the device that they use, before any of them runs. "
    "Nothing runs if it returns False.",
)
def reproduce(
    names: StrPath | Sequence[StrPath], *, confirm: Callable[[Any, Any], bool] | None = None, **options: Any
) -> results.Reproduction:
    """Run the unfinished cells of recipes, and fill in the tables that the recipes describe.

    Examples
    --------
    >>> from reservoir_pipelines import reproduce
    >>> reproduce(["figure6"]).failed
    {}
    """
    from reservoir_pipelines.paper.reproduce import reproduce as run

    return run(_several(names, "reproduce: names"), *groups_of(reproduce, options), confirm=confirm)


@takes(
    opt.OutOptions,
    opt.CacheOptions,
    sources="The folders. An empty sequence means all reproductions and the latest fits of the cache.",
    markdown="Write only the tables, as Markdown.",
)
def report(
    sources: StrPath | Sequence[StrPath], *, markdown: bool = False, **options: Any
) -> results.Report:
    """Write a page with the results in folders of `reproduce`, `fit` and `train`.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit, report
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> report([found.saved.parent], out="page.html").parts
    1
    """
    from reservoir_pipelines.paper.page import REPRODUCTIONS
    from reservoir_pipelines.reports.report import report as run

    folders = _several(sources, "report: sources")
    return run(folders, *groups_of(report, options), markdown=markdown, kinds=(REPRODUCTIONS,))


def _several(values: StrPath | Sequence[StrPath], what: str) -> list[str]:
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    return [require_path(value, what) for value in listed]
