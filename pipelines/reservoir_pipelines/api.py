"""The public functions, one per stage; the fields of the dataclass in front of each are its parameters.

Each function is called with its dataclass, whose options have been checked, and calls the stage. The
decorator `takes` gives it the signature of the dataclass, for type checkers, editors and ``help``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir import options as opt
from reservoir.errors import InputError, require_path
from reservoir.option_fields import Options, argument, as_group, option, required
from reservoir_pipelines.signatures import takes

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore

    from reservoir_pipelines.comparison import Comparison
    from reservoir_pipelines.extraction.estimate import Estimate
    from reservoir_pipelines.extraction.export_features import ExportedFeatures
    from reservoir_pipelines.extraction.extract import Extraction
    from reservoir_pipelines.fitting.results import Fit
    from reservoir_pipelines.paper.attention_maps import Attention
    from reservoir_pipelines.paper.pretrain import Pretraining
    from reservoir_pipelines.paper.reproduce import Reproduction
    from reservoir_pipelines.prediction.explain import Explanation
    from reservoir_pipelines.prediction.export import Export
    from reservoir_pipelines.prediction.predictions import Predictions
    from reservoir_pipelines.preparation.prepared import Prepared
    from reservoir_pipelines.reports.report import Report
    from reservoir_pipelines.training.result import Training
    from reservoir_pipelines.untrained import Twin

    StrPath = str | PathLike[str]
    Features = Extraction | FeatureStore | Path | str

TASK = "Name of a task, or the path of your own data."
READOUT = "Folder or JSON file that fit wrote, or the folder of a run of train."
NEW_FILE = "New sequences: any file that a task can be made from, with or without labels, or an idx file of images."
# Commands show the same descriptions.


class TaskArgument(Options):
    """What is read."""

    task: StrPath = argument(TASK)


class ReadoutArguments(Options):
    """A readout, and what it is applied to."""

    readout: StrPath = argument(READOUT)
    file: StrPath = argument(NEW_FILE)


class PrepareArguments(
    opt.CacheOptions, opt.DownloadOptions, opt.ClusterOptions, opt.TaskOptions, TaskArgument
):
    """The arguments of `prepare`."""


@takes(PrepareArguments)
def prepare(arguments: PrepareArguments) -> Prepared:
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

    task = require_path(arguments.task, "prepare: task")
    # The arguments are options of a task, of the cluster and of downloads at once, which `run` takes one by one.
    return run(task, arguments, cache=arguments.cache, cluster=arguments, files=arguments)


class ExtractArguments(opt.ClusterOptions, opt.ExtractOptions, TaskArgument):
    """The arguments of `extract`."""

    splits: Sequence[str] | None = option(None, "Compute only these splits; all by default.")


@takes(ExtractArguments)
def extract(arguments: ExtractArguments) -> Extraction:
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

    task = require_path(arguments.task, "extract: task")
    options = as_group(arguments, opt.ExtractOptions)
    return run(task, options, cluster=arguments, splits=arguments.splits)


class ImportFeaturesArguments(opt.CacheOptions, opt.LayerOptions, opt.TaskOptions):
    """The arguments of `import_features`; ``layers``, ``pool`` and ``revision`` are those of an engine's folder."""

    file: StrPath = argument(
        "An .npz, .h5, .parquet or .safetensors file of the features, a folder of export-features, or one of an "
        "inference engine (a .safetensors file for each request)."
    )
    task: StrPath | None = option(
        None,
        "The task whose rows have these features; a folder of export-features has labels of its own.",
    )
    name: str | None = option(
        None, "The model that computed the features, which names the entry; exported folders name it."
    )
    revision: str | None = option(None, "Revision of the model of an engine's folder, a part of the key.")


@takes(ImportFeaturesArguments)
def import_features(arguments: ImportFeaturesArguments) -> Extraction:
    """Cache features that another program computed.

    They become an entry of a task, which `fit` reads like any other entry. The file holds one array
    (rows, width) per split, named ``train``, ``valid`` and ``test``, with the rows of the prepared
    task in their order. With several columns, the arrays are named ``train/COLUMN`` and so on. In a
    Parquet file, the column ``split`` names the split of each row, and the features are columns of
    lists or of floats (joined).

    A folder that `export_features` wrote is compared with its checksums first. With ``task`` its rows
    must be those of the task; without, the entry has no raw input, and `fit` tries no baselines.

    A folder that vLLM or speculators wrote has the hidden states of each request in a file, which is
    named by the id of its row in the task, or by the number of the row. ``layers`` are the numbers
    in the settings of the engine: 0 is the input of the first block, k the output of block k before the
    final norm. Each file is read alone and pooled, and an interrupted import goes on.

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
    from reservoir_pipelines.extraction.engine_folder import is_engine_folder

    # An inference engine's folder has layers, of which columns are made; a file or an exported folder has columns.
    file = Path(require_path(arguments.file, "import_features: file"))
    task = None if arguments.task is None else require_path(arguments.task, "import_features: task")
    options = as_group(arguments, opt.TaskOptions)
    if is_engine_folder(file):
        from reservoir_pipelines.extraction.import_requests import import_requests

        return import_requests(
            file,
            task,
            arguments.name,
            arguments.revision,
            columns=arguments,
            options=options,
            place=arguments,
        )
    from reservoir_pipelines.extraction.import_features import import_features as run

    for flag in ("layers", "pool", "revision"):
        if getattr(arguments, flag) is not None:
            raise InputError(f"{file}: --{flag} is for the folder of an inference engine", "leave it out")
    return run(file, task, arguments.name, options, place=arguments)


class ExportFeaturesArguments(opt.CacheOptions, panel="Output"):
    """The arguments of `export_features`."""

    entry: Features = argument(
        "A task (its last extraction), a key or a folder; in Python also the result of extract."
    )
    to: StrPath = required("Folder to write, which must be empty or not exist.")
    columns: str | Sequence[str] = option("all", "Columns to write, comma-separated, or all.")
    format: str | None = option(
        None,
        "parquet, safetensors, or npy (an array per file, for np.load with mmap_mode). "
        "Default: parquet if pyarrow is installed, else safetensors.",
    )


@takes(ExportFeaturesArguments)
def export_features(arguments: ExportFeaturesArguments) -> ExportedFeatures:
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

    folder = Path(require_path(arguments.to, "export_features: to"))
    return run(arguments.entry, folder, arguments.columns, arguments.format, arguments)


class PlanArguments(opt.ExtractOptions, TaskArgument, panel="Data"):
    """The arguments of `plan`."""

    rows: int | None = option(
        None, "Total number of rows; by default all rows of the task, or --limit per split."
    )
    workers: int = option(1, "Processes or GPUs like this one that share the work.")


@takes(PlanArguments)
def plan(arguments: PlanArguments) -> Estimate:
    """Estimate time, disk and memory of an extraction.

    A trial of a few seconds measures this machine. Only the prepared data is kept. A sample of the
    data is enough if ``rows`` gives the number of all rows.

    Examples
    --------
    >>> from reservoir_pipelines import plan
    >>> plan("digits", rows=1_000_000, layers="block01", pool="mean").rows
    1000000
    """
    from reservoir_pipelines.extraction.estimate import plan as run

    task = require_path(arguments.task, "plan: task")
    return run(
        task, as_group(arguments, opt.ExtractOptions), rows=arguments.rows, workers=arguments.workers
    )


class FitArguments(opt.DeviceOptions, opt.FitOptions):
    """The arguments of `fit`."""

    features: Features | Sequence[Features] = argument(
        "What `extract` returned, or the folder of an entry. Several entries of the same rows are fitted "
        "together; their columns are named 1:block06/mean, 2:block06/mean and so on."
    )


@takes(FitArguments)
def fit(arguments: FitArguments) -> Fit:
    """Fit a readout to every column under every setting and choose one by validation.

    With ``columns="all"``, `fit` tries each column alone, all columns of each layer concatenated, and
    columns that are known to suit the data. On data of your own, a baseline (the raw input, or a
    statistic of it) is saved instead if it is better by more than a standard error on the held-out
    rows. ``a+b`` concatenates two columns. A readout of ridge or ``arccos`` that the validation split has
    chosen is then fitted to train and valid, unless ``select`` is ``valid``.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit
    >>> result = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> result.best.metric, result.best.test_score > 0.5
    ('accuracy', True)
    """
    from reservoir_pipelines.fitting.fit import fit as run

    return run(arguments.features, as_group(arguments, opt.FitOptions), arguments)


class CompareArguments(Options):
    """The arguments of `compare`."""

    first: StrPath = argument("Folder that fit or train wrote.")
    second: StrPath = argument("Folder that is compared with it.")


@takes(CompareArguments)
def compare(arguments: CompareArguments) -> Comparison:
    """Compare two fits or runs on the same test rows.

    Rows are paired by their ids in ``predictions.csv``; rows that only one of them has are counted
    and left out. The difference of the scores has a paired 95% interval and a p-value, over groups if
    the rows have groups. Two checkpoints, models or columns are compared by a fit of each. If a fit
    saved a baseline, its best readout of the reservoir is compared, and a line says so.

    Examples
    --------
    >>> from reservoir_pipelines import compare, extract, fit
    >>> features = extract("digits", limit=60, layers="embed,block01", pool="mean")
    >>> folders = [fit(features, columns=f"{layer}/mean", out=layer).saved.parent for layer in ("block01", "embed")]
    >>> compare(*folders).rows
    60
    """
    from reservoir_pipelines.comparison import compare as run

    first = require_path(arguments.first, "compare: first")
    second = require_path(arguments.second, "compare: second")
    return run(Path(first), Path(second))


class TwinArguments(opt.FitOptions, opt.ExtractOptions, TaskArgument):
    """The arguments of `twin`."""


@takes(TwinArguments)
def twin(arguments: TwinArguments) -> Twin:
    """Compare a trained model with its untrained twin.

    Both are also compared with the raw input. The task is extracted with the pretrained model and with
    the same model of random weights, unless both are cached, and every column of both is fitted. For
    each layer, and for the readouts that validation chose, the result has the test scores of both
    models and their differences, also to the best readout of the raw input, with 95% intervals that
    are paired over rows. The same call later returns the saved result.

    Examples
    --------
    >>> from reservoir_pipelines import twin
    >>> result = twin("digits", backbone="mini", limit=60, layers="block01,block02", pool="mean")
    >>> [contrast.layer for contrast in result.layers]
    ['block01', 'block02']
    """
    from reservoir_pipelines.untrained import twin as run

    return run(
        require_path(arguments.task, "twin: task"),
        as_group(arguments, opt.ExtractOptions),
        as_group(arguments, opt.FitOptions),
        as_group(arguments, opt.DeviceOptions),
    )


class PredictArguments(opt.PredictOptions, ReadoutArguments):
    """The arguments of `predict`."""


@takes(PredictArguments)
def predict(arguments: PredictArguments) -> Predictions:
    """Apply a saved readout to the sequences of a file.

    Returns
    -------
    Predictions
        An iterator over one `Prediction` per sequence, in order; each block of rows is computed when it is reached.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import extract, fit, predict
    >>> result = fit(extract("digits", limit=60, layers="block01", pool="mean"), out="digits")
    >>> np.savez("new.npz", x=np.zeros((3, 8, 8)))
    >>> len([prediction.label for prediction in predict("digits", "new.npz")])
    3
    """
    from reservoir_pipelines.prediction.predict import predict as run

    readout = require_path(arguments.readout, "predict: readout")
    file = require_path(arguments.file, "predict: file")
    return run(Path(readout), Path(file), arguments)


class ExplainArguments(opt.ExplainOptions, ReadoutArguments):
    """The arguments of `explain`."""


@takes(ExplainArguments)
def explain(arguments: ExplainArguments) -> Explanation:
    """Plot which positions of a sequence its label depends on.

    The readout has to be linear, with one label per sequence. ``out`` is ``explained.png`` in the
    readout's folder by default.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import explain, extract, fit
    >>> result = fit(extract("digits", limit=60, layers="block01", pool="mean"), out="digits")
    >>> np.savez("new.npz", x=np.zeros((3, 8, 8)))
    >>> [len(row.occluded) for row in explain("digits", "new.npz", first=2).rows]
    [16, 16]
    """
    from reservoir_pipelines.prediction.explain import explain as run

    readout = require_path(arguments.readout, "explain: readout")
    file = require_path(arguments.file, "explain: file")
    return run(Path(readout), Path(file), arguments)


class ExportArguments(opt.OutOptions, panel="Output"):
    """The arguments of `export`."""

    readout: StrPath = argument(READOUT)
    to: str = option("torch", "Form of the file: torch (for torch.export.load) or onnx.")


@takes(ExportArguments)
def export(arguments: ExportArguments) -> Export:
    """Write a readout with its model as one file.

    The file maps raw sequences to logits and runs without this program. ``torch`` writes a program
    for ``torch.export.load``, in the precision that the readout was fitted in, so that its results
    equal those of `predict`; only texts that ``long="windows"`` reads in pieces are cut here.
    ``onnx`` writes a float32 graph, because runtimes have few bfloat16 operators. ``out`` is
    ``model.pt2`` or ``model.onnx`` in the readout's folder by default. A model that reads texts or
    images by its own tokenizer or processor is exported without these: the inputs are then
    ``input_ids`` and ``attention_mask``, or ``pixel_values``, and the file of the tokenizer or
    processor is written as ``reader``. Chats are rendered by the model's chat template before the
    tokenizer reads them.

    Examples
    --------
    >>> from reservoir_pipelines import export, extract, fit
    >>> result = fit(extract("digits", limit=60, layers="block01", pool="mean"), columns="block01/mean", out="digits")
    >>> export("digits").model.name
    'model.pt2'
    """
    from reservoir_pipelines.prediction.export import export as run

    return run(Path(require_path(arguments.readout, "export: readout")), arguments, to=arguments.to)


class TrainArguments(
    opt.PlaceOptions,
    opt.TrainOptions,
    opt.RowOptions,
    opt.ReservoirOptions,
    TaskArgument,
    shown=opt.TRAIN_DEFAULTS,
):
    """The arguments of `train`."""


@takes(TrainArguments)
def train(arguments: TrainArguments) -> Training:
    """Train groups of parameters with the rest frozen.

    The best checkpoint is chosen by validation and scored on test once. On a CPU the same settings
    give the same weights, even if the run was stopped and resumed. If ``accelerate launch`` starts
    several processes, each process takes ``batch`` times ``accumulate`` rows per step.

    ``seed`` also determines the order of the rows and the dropout masks. ``steps`` includes earlier
    steps of the run. Without ``run``, the folder is in the cache, and its name contains a hash of all
    settings that affect the weights of a step; ``eval_every`` and ``patience`` decide which step is
    best. With ``sweep``, every run is kept, and the run with the best validation score is returned.

    Examples
    --------
    >>> from reservoir_pipelines import train
    >>> train("bit-xor", depth=1, steps=2, eval_every=2).steps
    2
    """
    from reservoir_pipelines.training.train import train as run

    return run(
        require_path(arguments.task, "train: task"),
        reservoir=as_group(arguments, opt.ReservoirOptions),
        source=as_group(arguments, opt.RowOptions),
        options=as_group(arguments, opt.TrainOptions),
        place=as_group(arguments, opt.PlaceOptions),
    )


class PretrainArguments(
    opt.PlaceOptions,
    opt.PretrainOptions,
    opt.ShapeOptions,
    panel="Output",
    shown={"backbone": opt.TRAIN_DEFAULTS["backbone"]},
):
    """The arguments of `pretrain`."""

    corpus: StrPath = argument(
        "Text file (also .gz), folder, stream (nesting, zipf, uniform), several (zipf,nesting), or bit-memory."
    )
    out: StrPath = required("Folder of the new model, for --backbone; transformers can load it.")


@takes(PretrainArguments)
def pretrain(arguments: PretrainArguments) -> Pretraining:
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

    return run(
        require_path(arguments.corpus, "pretrain: corpus"),
        shape=as_group(arguments, opt.ShapeOptions),
        options=as_group(arguments, opt.PretrainOptions),
        place=as_group(arguments, opt.PlaceOptions),
        out=Path(require_path(arguments.out, "pretrain: out")),
    )


class AttentionArguments(
    opt.PlaceOptions, opt.AttentionOptions, opt.TaskOptions, opt.ReservoirOptions, TaskArgument
):
    """The arguments of `attention`."""


@takes(AttentionArguments)
def attention(arguments: AttentionArguments) -> Attention:
    """Plot which tokens attend to which in one block.

    The maps are those of the first row of a split, and their mean over the first ``average`` rows. The model reads
    rows as in `extract` with the same options; the default backbone is mini for all data. If ``run`` is the folder
    of a run of `train`, the model, the task's parameters and the scaling come from that run.

    Returns
    -------
    Attention
        Its ``first_row`` (heads, queries, keys) covers the real tokens of the first row, and its ``mean``
        (heads, tokens, tokens) is the mean over rows.

    Examples
    --------
    >>> from reservoir_pipelines import attention
    >>> attention("digits", average=20, out="maps.png").mean.shape
    (4, 16, 16)
    """
    from reservoir_pipelines.paper.attention_maps import attention as run

    return run(
        require_path(arguments.task, "attention: task"),
        reservoir=as_group(arguments, opt.ReservoirOptions),
        source=as_group(arguments, opt.TaskOptions),
        options=arguments,
        place=arguments,
    )


class ReproduceArguments(opt.PlaceOptions, opt.TaskOptions, opt.ClusterOptions, opt.ReproduceOptions):
    """The arguments of `reproduce`."""

    names: StrPath | Sequence[StrPath] = argument(
        "Names of recipes, or paths of TOML files. An empty sequence means all recipes of the package."
    )
    confirm: Callable[[Any, Any], bool] | None = option(
        None,
        "Called with the cells to run, and the folders and the device that they use, before any of them runs. "
        "Nothing runs if it returns False.",
    )


@takes(ReproduceArguments)
def reproduce(arguments: ReproduceArguments) -> Reproduction:
    """Run the unfinished cells of recipes, and fill in the tables that the recipes describe.

    Examples
    --------
    >>> from reservoir_pipelines import reproduce
    >>> reproduce(["figure6"]).failed
    {}
    """
    from reservoir_pipelines.paper.reproduce import reproduce as run

    names = _list_of_paths(arguments.names, "reproduce: names")
    return run(
        names,
        options=arguments,
        cluster=arguments,
        source=arguments,
        place=arguments,
        confirm=arguments.confirm,
    )


class ReportArguments(opt.ReportOptions):
    """The arguments of `report`."""

    sources: StrPath | Sequence[StrPath] = argument(
        "The folders. An empty sequence means all reproductions and the latest fits of the cache."
    )


@takes(ReportArguments)
def report(arguments: ReportArguments) -> Report:
    """Write a page with the results in folders of `reproduce`, `fit` and `train`.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit, report
    >>> result = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> report([result.saved.parent], out="page.html").parts
    1
    """
    from reservoir_pipelines.paper.page import REPRODUCTIONS
    from reservoir_pipelines.reports.report import report as run

    folders = _list_of_paths(arguments.sources, "report: sources")
    # `reports` knows the folders of `fit` and `train` alone. How a page shows another kind of folder, that of
    # `reproduce`, is described in `paper`, which `reports` does not import.
    return run(folders, arguments, kinds=(REPRODUCTIONS,))


def _list_of_paths(values: StrPath | Sequence[StrPath], argument_name: str) -> list[str]:
    """Return one path or several as strings; raise an `InputError` that names the argument for other values."""
    # A text is a sequence, too, but of letters. Other values that are no sequences are refused by `require_path`.
    if isinstance(values, str) or not isinstance(values, Sequence):
        return [require_path(values, argument_name)]
    return [require_path(path, argument_name) for path in values]
