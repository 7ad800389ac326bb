"""Made by docs/stub.py from reservoir/options.py and api.py; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from reservoir_cache import FeatureStore

from reservoir_pipelines.comparison.compare import Comparison as Comparison
from reservoir_pipelines.estimators.estimators import ReservoirClassifier as ReservoirClassifier
from reservoir_pipelines.estimators.estimators import ReservoirRegressor as ReservoirRegressor
from reservoir_pipelines.estimators.estimators import ReservoirTransformer as ReservoirTransformer
from reservoir_pipelines.extraction.export_features import ExportedFeatures as ExportedFeatures
from reservoir_pipelines.extraction.extract import Extraction as Extraction
from reservoir_pipelines.extraction.forecast import Forecast as Forecast
from reservoir_pipelines.fitting.results import Fit as Fit
from reservoir_pipelines.fitting.results import LayerScore as LayerScore
from reservoir_pipelines.fitting.results import Result as Result
from reservoir_pipelines.foreign_backbone import Imported as Imported
from reservoir_pipelines.foreign_backbone import import_backbone as import_backbone
from reservoir_pipelines.paper.attention_maps import Attention as Attention
from reservoir_pipelines.paper.pretrain import Pretraining as Pretraining
from reservoir_pipelines.paper.reproduce import Reproduction as Reproduction
from reservoir_pipelines.prediction.explain import Explanation as Explanation
from reservoir_pipelines.prediction.export import Export as Export
from reservoir_pipelines.prediction.predict import Prediction as Prediction
from reservoir_pipelines.prediction.predict import Predictions as Predictions
from reservoir_pipelines.preparation.prepared import Prepared as Prepared
from reservoir_pipelines.reports.report import Report as Report
from reservoir_pipelines.training.run_folder import Training as Training

__all__ = [
    "Attention",
    "Comparison",
    "Explanation",
    "Export",
    "ExportedFeatures",
    "Extraction",
    "Fit",
    "Forecast",
    "Imported",
    "LayerScore",
    "Prediction",
    "Predictions",
    "Prepared",
    "Pretraining",
    "Report",
    "Reproduction",
    "ReservoirClassifier",
    "ReservoirRegressor",
    "ReservoirTransformer",
    "Result",
    "Training",
    "attention",
    "compare",
    "explain",
    "export",
    "export_features",
    "extract",
    "fit",
    "import_backbone",
    "import_features",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "report",
    "reproduce",
    "train",
]

StrPath = str | PathLike[str]
Features = Extraction | FeatureStore | Path | str

def attention(
    task: StrPath,
    *,
    backbone: str | None = None,
    seed: int = 0,
    init: str | None = None,
    depth: int | None = None,
    input: str | None = None,
    long: str = 'cut',
    gain: float | None = None,
    patch: int | None = None,
    stride: int | None = None,
    dilations: str | None = None,
    pad: str | None = None,
    normalise: str | None = None,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    out: StrPath | None = None,
    run: StrPath | None = None,
    layer: int = 1,
    average: int = 64,
    split: str = 'test',
    top: float | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Attention:
    """Plot which tokens attend to which in one block.

    The maps are those of the first rows of a split, and their mean. If ``run`` is the folder of a run
    of `train`, the model, the task's parameters and the scaling come from that run.


    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    backbone : str, optional
        Frozen model: mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name. Default: mini.
    seed : int, default=0
        Seed of random weights, the input layer and the order of rows.
    init : str, optional
        Source of the weights: pretrained, random, random-scaled, random-flat, statistics (random with the
        pretrained means and standard deviations), or a folder that pretrain wrote. Default: pretrained if
        published, else random.
    depth : int, optional
        Blocks to keep, from the first; the final norm is kept too.
    input : str, optional
        Input layer: native (the model's own), gaussian, orthogonal or kernels (vectors), edges (images).
        Default: depends on the data; extract --dry-run prints it.
    long : str, default='cut'
        Texts longer than the model's context: cut, or windows (mean over windows).
    gain : float, optional
        Scale of the input layer. Default: 6 for kernels, else 1.41.
    patch : int, optional
        Values per token (window length). Default: depends on the data; extract --dry-run prints it.
    stride : int, optional
        Values from one window to the next. Default: depends on the data; extract --dry-run prints it.
    dilations : str, optional
        Steps between the values of a window; 1,2,4 concatenates three windows, auto as many as fit. Default:
        depends on the data; extract --dry-run prints it.
    pad : str, optional
        valid: windows inside the sequence; same: centred at each step, with zeros beyond the ends. Default:
        depends on the data; extract --dry-run prints it.
    normalise : str, optional
        Scaling of floats: channel (over all rows), series (each alone), both, or differences (added to both).
        Default: depends on the data; extract --dry-run prints it.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    run : path-like, optional
        Folder of a run of train. Default: in the cache.
    layer : int, default=1
        Number of the block, from 1.
    average : int, default=64
        Rows to average; the first is also plotted alone.
    split : str, default='test'
        Split from which the rows are taken.
    top : float, optional
        Upper end of the colour scale; set it to compare plots.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

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

def compare(
    first: StrPath,
    second: StrPath,
) -> Comparison:
    """Compare two fits or runs on the same test rows.

    Rows are paired by their ids in ``predictions.csv``; rows that only one of them has are counted
    and left out. The difference of the scores has a paired 95% interval and a p-value, over groups if
    the rows have groups. Two checkpoints, models or columns are compared by a fit of each.


    Parameters
    ----------
    first : str or path-like
        Folder that fit or train wrote.
    second : str or path-like
        Folder that is compared with it.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import compare, extract, fit
    >>> features = extract("digits", limit=60, layers="embed,block01", pool="mean")
    >>> folders = [fit(features, columns=f"{layer}/mean", out=layer).saved.parent for layer in ("block01", "embed")]
    >>> compare(*folders).rows
    60
    """

def explain(
    readout: StrPath,
    file: StrPath,
    *,
    out: StrPath | None = None,
    first: int = 4,
) -> Explanation:
    """Plot which positions of a sequence its label depends on.

    The readout has to be linear, with one label per sequence. ``out`` is ``explained.png`` in the
    readout's folder by default.


    Parameters
    ----------
    readout : str or path-like
        Folder or JSON file that fit wrote, or the folder of a run of train.
    file : str or path-like
        New sequences: any file that a task can be made from, with or without labels, or an idx file of images.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    first : int, default=4
        Number of sequences to explain, from the first.

    Returns
    -------
    Explanation

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import explain, extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"), out="digits")
    >>> np.savez("new.npz", x=np.zeros((3, 8, 8)))
    >>> [len(row.occluded) for row in explain("digits", "new.npz", first=2).rows]
    [16, 16]
    """

def export(
    readout: StrPath,
    *,
    to: str = 'torch',
    out: StrPath | None = None,
) -> Export:
    """Write a readout with its model as one file.

    The file maps raw sequences to logits and runs without this program. ``torch`` writes a program
    for ``torch.export.load``, in the precision that the readout was fitted in, so that its results
    equal those of `predict`. ``onnx`` writes a float32 graph, because runtimes have few bfloat16
    operators. ``out`` is ``model.pt2`` or ``model.onnx`` in the readout's folder by default. A model
    that reads texts or images by its own tokenizer or processor is exported without these: the
    inputs are then ``input_ids`` and ``attention_mask``, or ``pixel_values``, and the file of the
    tokenizer or processor is written as ``reader``.


    Parameters
    ----------
    readout : str or path-like
        Folder or JSON file that fit wrote, or the folder of a run of train.
    to : str, default='torch'
        Form of the file: torch (for torch.export.load) or onnx.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.

    Returns
    -------
    Export

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import export, extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"), columns="block01/mean", out="digits")
    >>> export("digits").model.name
    'model.pt2'
    """

def export_features(
    entry: Features,
    *,
    to: StrPath,
    columns: str | Sequence[str] = 'all',
    format: str | None = None,
    cache: StrPath | None = None,
) -> ExportedFeatures:
    """Write the features of an entry for other programs.

    Each split becomes a file with features, labels and row ids, or with ``npy`` a folder. Values are
    float32, exactly as `extract` and `fit` read them from the cache; the memory needed does not
    depend on the number of rows. The folder has a dataset card, ``README.md``, and appears when it is
    complete. `import_features` reads it again.


    Parameters
    ----------
    entry : Features
        A task (its last extraction), a key or a folder; in Python also the result of extract.
    to : str or path-like
        Folder to write, which must be empty or not exist.
    columns : str or sequence of str, default='all'
        Columns to write, comma-separated, or all.
    format : str, optional
        parquet, safetensors, or npy (an array per file, for np.load with mmap_mode). Default: parquet if
        pyarrow is installed, else safetensors.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    ExportedFeatures

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import export_features, extract, import_features
    >>> features = extract("digits", limit=60, layers="block01", pool="mean")
    >>> export_features(features, to="digits-features", format="npy", columns="block01/mean").rows
    {'train': 60, 'valid': 60, 'test': 60}
    >>> import_features("digits-features").columns
    ('block01/mean',)
    """

def extract(
    task: StrPath,
    *,
    splits: Sequence[str] | None = None,
    backbone: str | None = None,
    seed: int = 0,
    init: str | None = None,
    depth: int | None = None,
    input: str | None = None,
    long: str = 'cut',
    gain: float | None = None,
    patch: int | None = None,
    stride: int | None = None,
    dilations: str | None = None,
    pad: str | None = None,
    normalise: str | None = None,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    limit: int | None = None,
    compute: str = 'auto',
    store: str | None = None,
    layers: str | Sequence[str] | None = None,
    pool: str | Sequence[str] | None = None,
    batch_rows: int | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
    workers: int = 0,
    scheduler: str | None = None,
) -> Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states.

    Cached features are reused: a finished extraction computes nothing, an interrupted one continues,
    and a new column is added without computing the others again. ``batch_rows`` applies to new
    entries only, because it changes the last bits. A larger ``limit`` includes the rows of a smaller
    one.


    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    splits : sequence of str, optional
        Compute only these splits; all by default.
    backbone : str, optional
        Frozen model: mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name. Default: mini.
    seed : int, default=0
        Seed of random weights, the input layer and the order of rows.
    init : str, optional
        Source of the weights: pretrained, random, random-scaled, random-flat, statistics (random with the
        pretrained means and standard deviations), or a folder that pretrain wrote. Default: pretrained if
        published, else random.
    depth : int, optional
        Blocks to keep, from the first; the final norm is kept too.
    input : str, optional
        Input layer: native (the model's own), gaussian, orthogonal or kernels (vectors), edges (images).
        Default: depends on the data; extract --dry-run prints it.
    long : str, default='cut'
        Texts longer than the model's context: cut, or windows (mean over windows).
    gain : float, optional
        Scale of the input layer. Default: 6 for kernels, else 1.41.
    patch : int, optional
        Values per token (window length). Default: depends on the data; extract --dry-run prints it.
    stride : int, optional
        Values from one window to the next. Default: depends on the data; extract --dry-run prints it.
    dilations : str, optional
        Steps between the values of a window; 1,2,4 concatenates three windows, auto as many as fit. Default:
        depends on the data; extract --dry-run prints it.
    pad : str, optional
        valid: windows inside the sequence; same: centred at each step, with zeros beyond the ends. Default:
        depends on the data; extract --dry-run prints it.
    normalise : str, optional
        Scaling of floats: channel (over all rows), series (each alone), both, or differences (added to both).
        Default: depends on the data; extract --dry-run prints it.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    limit : int, optional
        Maximum rows per split, a fixed random sample.
    compute : str, default='auto'
        Precision: float32, bfloat16, or auto (the faster one).
    store : str, optional
        Precision on disk: float16, bfloat16 or float32. Default: depends on the data; extract --dry-run prints
        it.
    layers : str or sequence of str, optional
        Layers, comma-separated: embed, block01 ..., final, or all. Default: depends on the data; extract --dry-
        run prints it.
    pool : str or sequence of str, optional
        Poolings over the tokens, comma-separated: last, mean, words (mean without special tokens), std, min,
        max, first, cls, segmentsK, quantilesK, sharesK, gridK, tokens, all. Default: depends on the data;
        extract --dry-run prints it.
    batch_rows : int, optional
        Rows of full length per batch of a new entry.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.
    workers : int, default=0
        Local worker processes; 0 for none.
    scheduler : str, optional
        Address of a dask scheduler: tcp://host:port.

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

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

def fit(
    features: Features | Sequence[Features],
    *,
    out: StrPath | None = None,
    columns: str | Sequence[str] = 'all',
    readout: str = 'ridge',
    alphas: str | None = None,
    select: str = 'auto',
    class_weight: str | None = None,
    curve: str | None = None,
    device: str = 'auto',
) -> Fit:
    """Fit a readout to every column under every setting and choose one by validation.

    With ``columns="all"``, `fit` tries each column alone, all columns of each layer concatenated, and
    columns that are known to suit the data. On data of your own, a baseline (the raw input, or a
    statistic of it) is saved instead if it is better by more than a standard error on the held-out
    rows. ``a+b`` concatenates two columns. A readout chosen on the validation split is then fitted to
    train and valid.


    Parameters
    ----------
    features : Features or Sequence[Features]
        What `extract` returned, or the folder of an entry. Several entries of the same rows are fitted
        together; their columns are named 1:block06/mean, 2:block06/mean and so on.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    columns : str or sequence of str, default='all'
        Columns to try, comma-separated: one column, a+b (concatenated), or all (each alone, and each layer
        whole).
    readout : str, default='ridge'
        ridge, logistic, or an estimator's path: sklearn.svm.LinearSVC:C=0.1,1.
    alphas : str, optional
        Penalties to try, LO:HI:N, on standardised features.
    select : str, default='auto'
        Choose readouts by valid (the split), cvK (K folds of train and valid), or auto (by rows).
    class_weight : str, optional
        balanced: every class has the same weight.
    curve : str, optional
        Numbers of training rows of a learning curve, such as 100,1000.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> found.best.metric, found.best.test_score > 0.5
    ('accuracy', True)
    """

def import_features(
    file: StrPath,
    *,
    task: StrPath | None = None,
    name: str | None = None,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    cache: StrPath | None = None,
) -> Extraction:
    """Cache features that another program computed.

    They become an entry of a task, which `fit` reads like any other entry. The file holds one array
    (rows, width) per split, named ``train``, ``valid`` and ``test``, with the rows of the prepared
    task in their order. With several columns, the arrays are named ``train/COLUMN`` and so on. In a
    Parquet file, the column ``split`` names the split of each row, and the features are columns of
    lists or of floats (joined).

    A folder that `export_features` wrote is compared with its checksums first. With ``task`` its rows
    must be those of the task; without, the entry has no raw input, and `fit` tries no baselines.


    Parameters
    ----------
    file : str or path-like
        An .npz, .h5, .parquet or .safetensors file of the features, or a folder of export-features.
    task : str or path-like, optional
        The task whose rows have these features; not needed for a folder, which has labels of its own.
    name : str, optional
        Name of the entry, such as the model that computed the features; a folder names it.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

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

def plan(
    task: StrPath,
    *,
    rows: int | None = None,
    workers: int = 1,
    backbone: str | None = None,
    seed: int = 0,
    init: str | None = None,
    depth: int | None = None,
    input: str | None = None,
    long: str = 'cut',
    gain: float | None = None,
    patch: int | None = None,
    stride: int | None = None,
    dilations: str | None = None,
    pad: str | None = None,
    normalise: str | None = None,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    limit: int | None = None,
    compute: str = 'auto',
    store: str | None = None,
    layers: str | Sequence[str] | None = None,
    pool: str | Sequence[str] | None = None,
    batch_rows: int | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Forecast:
    """Estimate time, disk and memory of an extraction.

    A trial of a few seconds measures this machine. Only the prepared data is kept. A sample of the
    data is enough if ``rows`` gives the number of all rows.


    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    rows : int, optional
        Total number of rows; by default all rows of the task, or --limit per split.
    workers : int, default=1
        Processes or GPUs like this one that share the work.
    backbone : str, optional
        Frozen model: mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name. Default: mini.
    seed : int, default=0
        Seed of random weights, the input layer and the order of rows.
    init : str, optional
        Source of the weights: pretrained, random, random-scaled, random-flat, statistics (random with the
        pretrained means and standard deviations), or a folder that pretrain wrote. Default: pretrained if
        published, else random.
    depth : int, optional
        Blocks to keep, from the first; the final norm is kept too.
    input : str, optional
        Input layer: native (the model's own), gaussian, orthogonal or kernels (vectors), edges (images).
        Default: depends on the data; extract --dry-run prints it.
    long : str, default='cut'
        Texts longer than the model's context: cut, or windows (mean over windows).
    gain : float, optional
        Scale of the input layer. Default: 6 for kernels, else 1.41.
    patch : int, optional
        Values per token (window length). Default: depends on the data; extract --dry-run prints it.
    stride : int, optional
        Values from one window to the next. Default: depends on the data; extract --dry-run prints it.
    dilations : str, optional
        Steps between the values of a window; 1,2,4 concatenates three windows, auto as many as fit. Default:
        depends on the data; extract --dry-run prints it.
    pad : str, optional
        valid: windows inside the sequence; same: centred at each step, with zeros beyond the ends. Default:
        depends on the data; extract --dry-run prints it.
    normalise : str, optional
        Scaling of floats: channel (over all rows), series (each alone), both, or differences (added to both).
        Default: depends on the data; extract --dry-run prints it.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    limit : int, optional
        Maximum rows per split, a fixed random sample.
    compute : str, default='auto'
        Precision: float32, bfloat16, or auto (the faster one).
    store : str, optional
        Precision on disk: float16, bfloat16 or float32. Default: depends on the data; extract --dry-run prints
        it.
    layers : str or sequence of str, optional
        Layers, comma-separated: embed, block01 ..., final, or all. Default: depends on the data; extract --dry-
        run prints it.
    pool : str or sequence of str, optional
        Poolings over the tokens, comma-separated: last, mean, words (mean without special tokens), std, min,
        max, first, cls, segmentsK, quantilesK, sharesK, gridK, tokens, all. Default: depends on the data;
        extract --dry-run prints it.
    batch_rows : int, optional
        Rows of full length per batch of a new entry.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    Forecast

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import plan
    >>> plan("digits", rows=1_000_000, layers="block01", pool="mean").rows
    1000000
    """

def predict(
    readout: StrPath,
    file: StrPath,
    *,
    device: str = 'auto',
    trust: bool = False,
    coverage: float | None = None,
    abstain: bool = False,
    labels: str | None = None,
) -> Predictions:
    """Apply a saved readout to the sequences of a file.


    Parameters
    ----------
    readout : str or path-like
        Folder or JSON file that fit wrote, or the folder of a run of train.
    file : str or path-like
        New sequences: any file that a task can be made from, with or without labels, or an idx file of images.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    trust : bool, default=False
        Load a readout that can run code: any that is not linear.
    coverage : float, optional
        Probability that an added set or interval has the true value.
    abstain : bool, default=False
        With --coverage: no label unless the set has exactly one class.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

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

def prepare(
    task: StrPath,
    *,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    fetch: bool = False,
    cache: StrPath | None = None,
) -> Prepared:
    """Read a task's files into arrays, and split them.

    The other stages do this themselves when they need the data. The prepared data is in a cache
    folder that is named after the task's parameters and the contents of the source files. If a source
    file changes, another is written.


    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    workers : int, default=0
        Local worker processes; 0 for none.
    scheduler : str, optional
        Address of a dask scheduler: tcp://host:port.
    fetch : bool, default=False
        Download the files that are missing.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    Prepared

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import prepare
    >>> digits = prepare("digits")
    >>> len(digits.split("train")), digits.task.classes
    (1078, 10)
    """

def pretrain(
    corpus: StrPath,
    *,
    out: StrPath,
    backbone: str | None = None,
    seed: int = 0,
    compute: str = 'auto',
    steps: int | None = None,
    learning_rate: float | None = None,
    eval_every: int = 500,
    compiled: bool = False,
    resume: bool = False,
    vocabulary: int = 256,
    batch_tokens: int = 4096,
    context: int | None = None,
    short: int | None = None,
    short_share: float = 0.6,
    warm_up: int = 200,
    weight_decay: float = 0.1,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Pretraining:
    """Pretrain a backbone from random weights.

    The model learns to predict the next token, so it has to be causal: GPT-2, Llama and its
    relatives. ``vocabulary`` is the number of tokens of a stream, or for bit-memory the size of the
    token embeddings, which are not trained.


    Parameters
    ----------
    corpus : str or path-like
        Text file (also .gz), folder, stream (nesting, zipf, uniform), several (zipf,nesting), or bit-memory.
    out : str or path-like
        Folder of the new model, for --backbone; transformers can load it.
    backbone : str, optional
        Frozen model: mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name. Default: mini.
    seed : int, default=0
        Seed of random weights, the input layer and the order of rows.
    compute : str, default='auto'
        Precision: float32, bfloat16, or auto (the faster one).
    steps : int, optional
        Total optimizer steps. Default: 5000, or 2000 for pretrain.
    learning_rate : float, optional
        Learning rate of Adam. Default: by model and task, about 1e-3; 2e-3 for pretrain.
    eval_every : int, default=500
        Steps between validations; each writes a checkpoint.
    compiled : bool, default=False
        Compile the model (on a CPU, only for pretrain).
    resume : bool, default=False
        Resume from the last checkpoint.
    vocabulary : int, default=256
        Vocabulary size of generated corpora; that of texts is 256.
    batch_tokens : int, default=4096
        Tokens per optimizer step.
    context : int, optional
        Context length in tokens. Default: 1024, or the model's maximum.
    short : int, optional
        Context in the first steps. Default: a quarter of context.
    short_share : float, default=0.6
        Share of the steps with the short context.
    warm_up : int, default=200
        Steps of linear warm-up before a cosine schedule.
    weight_decay : float, default=0.1
        Weight decay of AdamW on matrices.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    Pretraining

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import pretrain
    >>> pretrain("zipf", out="zipf", backbone="mini:n_layer=1,n_embd=16,n_positions=64", steps=2).unit
    'token'
    """

def report(
    sources: StrPath | Sequence[StrPath],
    *,
    markdown: bool = False,
    out: StrPath | None = None,
    cache: StrPath | None = None,
) -> Report:
    """Write a page with the results in folders of `reproduce`, `fit` and `train`.


    Parameters
    ----------
    sources : str or path-like or sequence of path-like
        The folders. An empty sequence means all reproductions and the latest fits of the cache.
    markdown : bool, default=False
        Write only the tables, as Markdown.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit, report
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> report([found.saved.parent], out="page.html").parts
    1
    """

def reproduce(
    names: StrPath | Sequence[StrPath],
    *,
    confirm: Callable[[Any, Any], bool] | None = None,
    out: StrPath | None = None,
    scale: str = 'smoke',
    only: str | Sequence[str] | None = None,
    seeds: int | None = None,
    override: Mapping[str, Any] | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Reproduction:
    """Run the unfinished cells of recipes, and fill in the tables that the recipes describe.


    Parameters
    ----------
    names : str or path-like or sequence of path-like
        Names of recipes, or paths of TOML files. An empty sequence means all recipes of the package.
    confirm : Callable[[Any, Any], bool], optional
        Called with the cells to run, and the folders and the device that they use, before any of them runs.
        Nothing runs if it returns False.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    scale : str, default='smoke'
        smoke: minutes; hour: an hour or two; day: 20 core-hours; full: all rows; paper: for a GPU.
    only : str or sequence of str, optional
        Only these tasks, rows or columns, comma-separated.
    seeds : int, optional
        Number of seeds, from 0. Default: 3 for day, full and paper, else 1.
    override : mapping, optional
        Replace a value of the scale, such as backbone=gpt2.
    workers : int, default=0
        Local worker processes; 0 for none.
    scheduler : str, optional
        Address of a dask scheduler: tcp://host:port.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    Reproduction

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import reproduce
    >>> reproduce(["figure6"]).failed
    {}
    """

def train(
    task: StrPath,
    *,
    backbone: str | None = None,
    seed: int = 0,
    init: str | None = None,
    depth: int | None = None,
    input: str | None = None,
    long: str = 'cut',
    gain: float | None = None,
    patch: int | None = None,
    stride: int | None = None,
    dilations: str | None = None,
    pad: str | None = None,
    normalise: str | None = None,
    labels: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    decimal: str = 'auto',
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    skip_bad_rows: bool = False,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    limit: int | None = None,
    run: StrPath | None = None,
    compute: str = 'auto',
    store: str | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    eval_every: int = 500,
    compiled: bool = False,
    resume: bool = False,
    train: str | Sequence[str] | None = None,
    batch: int = 8,
    accumulate: int = 1,
    dropout: float = 0.1,
    clip: float = 1.0,
    rows: str = 'auto',
    from_cache: bool = False,
    on_divergence: str = 'stop',
    sweep: Mapping[str, Any] | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Training:
    """Train groups of parameters with the rest frozen.

    The best checkpoint is chosen by validation and scored on test once. On a CPU the same settings
    give the same weights, even if the run was stopped and resumed. If ``accelerate launch`` starts
    several processes, each process takes ``batch`` times ``accumulate`` rows per step.

    ``seed`` also determines the order of the rows and the dropout masks. ``steps`` includes earlier
    steps of the run. Without ``run``, the folder is in the cache, and its name contains a hash of all
    settings that affect the result. With ``sweep``, every run is kept, and the run with the best
    validation score is returned.


    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    backbone : str, optional
        Frozen model: mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name. Default: mini.
    seed : int, default=0
        Seed of random weights, the input layer and the order of rows.
    init : str, optional
        Source of the weights: pretrained, random, random-scaled, random-flat, statistics (random with the
        pretrained means and standard deviations), or a folder that pretrain wrote. Default: pretrained if
        published, else random.
    depth : int, optional
        Blocks to keep, from the first; the final norm is kept too.
    input : str, optional
        Input layer: native (the model's own), gaussian, orthogonal or kernels (vectors), edges (images).
        Default: depends on the data; extract --dry-run prints it.
    long : str, default='cut'
        Texts longer than the model's context: cut, or windows (mean over windows).
    gain : float, optional
        Scale of the input layer. Default: 6 for kernels, else 1.41.
    patch : int, optional
        Values per token (window length). Default: depends on the data; extract --dry-run prints it.
    stride : int, optional
        Values from one window to the next. Default: depends on the data; extract --dry-run prints it.
    dilations : str, optional
        Steps between the values of a window; 1,2,4 concatenates three windows, auto as many as fit. Default:
        depends on the data; extract --dry-run prints it.
    pad : str, optional
        valid: windows inside the sequence; same: centred at each step, with zeros beyond the ends. Default:
        depends on the data; extract --dry-run prints it.
    normalise : str, optional
        Scaling of floats: channel (over all rows), series (each alone), both, or differences (added to both).
        Default: depends on the data; extract --dry-run prints it.
    labels : str, optional
        Table with the labels of a folder's files or of FASTA records, joined by name.
    label : str, optional
        Column of the labels; for FASTA, a regular expression for the header.
    id : str, optional
        Column of row names; in long form, of sequence names.
    time : str, optional
        Column that orders the rows of a sequence, in long form.
    group : str, optional
        Column of groups, each in one split; for FASTA, see --label.
    drop : str or sequence of str, optional
        Columns to ignore, comma-separated.
    text : str, optional
        Column of texts, or of letter sequences.
    decimal : str, default='auto'
        Decimal mark: . or , or auto (that of most numbers).
    values : bool, default=False
        Read whole numbers as values.
    symbols : bool, default=False
        Read whole numbers as symbols.
    regression : bool, default=False
        Read whole-number labels as regression targets.
    classes : bool, default=False
        Read whole-number labels as classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).
    standardise : bool, default=True
        Scale each channel to mean 0 and standard deviation 1.
    skip_bad_rows : bool, default=False
        Leave out rows that cannot be read, and count them.
    rate : int, optional
        Sampling rate of sounds, in Hz. Default: 16000.
    waveform : bool, default=False
        Read samples of sounds, not spectra; default for models of samples.
    data : path-like, optional
        Folder of the data set's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        Parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, random weights and training as in the authors' code.
    limit : int, optional
        Maximum rows per split, a fixed random sample.
    run : path-like, optional
        Folder of a run of train. Default: in the cache.
    compute : str, default='auto'
        Precision: float32, bfloat16, or auto (the faster one).
    store : str, optional
        Precision on disk: float16, bfloat16 or float32. Default: depends on the data; extract --dry-run prints
        it.
    steps : int, optional
        Total optimizer steps. Default: 5000, or 2000 for pretrain.
    learning_rate : float, optional
        Learning rate of Adam. Default: by model and task, about 1e-3; 2e-3 for pretrain.
    eval_every : int, default=500
        Steps between validations; each writes a checkpoint.
    compiled : bool, default=False
        Compile the model (on a CPU, only for pretrain).
    resume : bool, default=False
        Resume from the last checkpoint.
    train : str or sequence of str, optional
        Parameter groups to train, comma-separated: input, output, positions, layernorm, attention, feedforward,
        recurrent, last-attention, or all. Default: input,layernorm,positions,output.
    batch : int, default=8
        Rows per forward pass and process.
    accumulate : int, default=1
        Forward passes per optimizer step.
    dropout : float, default=0.1
        Dropout above the lowest trained layer; 0 for none.
    clip : float, default=1.0
        Largest norm of the gradients.
    rows : str, default='auto'
        Training rows: fresh (generated), augmented, stored, or auto (the first that the task has).
    from_cache : bool, default=False
        With --train output: read the hidden states from the cache.
    on_divergence : str, default='stop'
        If the loss diverges: stop, or report the best checkpoint.
    sweep : mapping, optional
        Values of learning_rate, dropout, clip, batch or accumulate to try, as in dropout=0,0.1; repeat for a
        grid.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU if there is one.
    cache : path-like, optional
        Root folder of the cache. Default: RESERVOIR_CACHE, else the user's.

    Returns
    -------
    Training

    Raises
    ------
    InputError
        If an option, a name or a file is wrong; the message says what to do.

    Examples
    --------
    >>> from reservoir_pipelines import train
    >>> train("bit-xor", depth=1, steps=2, eval_every=2).steps
    2
    """
