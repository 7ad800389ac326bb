"""Made by docs/stub.py from reservoir/options.py and api.py; do not edit."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from reservoir_cache import FeatureStore

from reservoir_pipelines.attention_maps import Attention as Attention
from reservoir_pipelines.estimators.classifier import ReservoirClassifier as ReservoirClassifier
from reservoir_pipelines.estimators.regressor import ReservoirRegressor as ReservoirRegressor
from reservoir_pipelines.estimators.transformer import ReservoirTransformer as ReservoirTransformer
from reservoir_pipelines.extraction.extract import Extraction as Extraction
from reservoir_pipelines.extraction.forecast import Forecast as Forecast
from reservoir_pipelines.fitting.results import Fit as Fit
from reservoir_pipelines.fitting.results import Result as Result
from reservoir_pipelines.foreign_backbone import Imported as Imported
from reservoir_pipelines.prediction.explain import Explanation as Explanation
from reservoir_pipelines.prediction.export import Export as Export
from reservoir_pipelines.prediction.predict import Prediction as Prediction
from reservoir_pipelines.prediction.predict import Predictions as Predictions
from reservoir_pipelines.preparation.prepared import Prepared as Prepared
from reservoir_pipelines.pretraining.outcome import Pretraining as Pretraining
from reservoir_pipelines.reports.report import Report as Report
from reservoir_pipelines.reproduction.reproduce import Reproduction as Reproduction
from reservoir_pipelines.training.training_result import Training as Training
from reservoir_pipelines.tuning.tune import Tuning as Tuning

__all__ = [
    "Attention",
    "Explanation",
    "Export",
    "Extraction",
    "Fit",
    "Forecast",
    "Imported",
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
    "Tuning",
    "attention",
    "explain",
    "export",
    "extract",
    "fit",
    "import_backbone",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "report",
    "reproduce",
    "train",
    "tune",
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
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
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
    """Draw and save the attention maps of one block over the first rows of a split.

    With ``run``, the folder of a run of `train`, the model, the task's parameters and the scaling are the run's.

    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    backbone : str, optional
        gpt2, bert-base-uncased, lstm, a model folder, a hub name ... Default: mini.
    seed : int, default=0
        Seed of drawn weights, of the input layer, and of the order of rows.
    init : str, optional
        pretrained, random (GPT-2's: random-scaled; with --protocol paper random-flat), statistics, or a folder.
        Default: pretrained, where anybody publishes such weights.
    depth : int, optional
        Keep only the first so many blocks, and the final norm.
    input : str, optional
        native: the model's own tokenizer or processor and embeddings; or drawn: gaussian for symbols, of
        vectors orthogonal or kernels, each of one dilation. Default: native where the model reads such data;
        your own series and symbols: kernels, else drawn.
    long : str, default='cut'
        Texts of more tokens than a model reads by itself: cut, or windows, whose features are averaged.
    gain : float, optional
        Scale of the input layer. Default: 1.41; of kernels 6.
    patch : int, optional
        Values per token. Default: your own series: 9, symbols: 5, else 1.
    stride : int, optional
        Values from one window to the next. Default: your own series and symbols: up to 1024 windows, else the
        patch.
    dilations : str, optional
        Steps between a window's values, such as 1,2,4, side by side; auto: 1, 2, 4 ... up to the length.
        Default: your own series: auto, else 1.
    pad : str, optional
        valid: windows inside the sequence; same: one around every stride-th value, zeros outside. Default: your
        own series and symbols: same, else valid.
    normalise : str, optional
        Scale of floats: of the channel in all rows, of each series, both side by side, or these and
        differences. Default: your own series: differences, else channel.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    run : path-like, optional
        Folder of a run of train. Default: in the cache.
    layer : int, default=1
        The block whose attention is drawn, from 1.
    average : int, default=64
        Rows of the mean; the first is drawn alone too.
    split : str, default='test'
        Split of the rows.
    top : float, optional
        Attention at the top of the colours, for pictures to compare.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

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

def explain(
    readout: StrPath,
    file: StrPath,
    *,
    out: StrPath | None = None,
    first: int = 4,
) -> Explanation:
    """Draw what each position of some sequences adds to the score of the predicted class.

    Parameters
    ----------
    readout : str or path-like
        Folder or JSON file of a linear readout that `fit` wrote.
    file : str or path-like
        New sequences, in any form that `predict` reads.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    first : int, default=4
        So many sequences of the file, from its first.

    Returns
    -------
    Explanation

    Raises
    ------
    InputError
        If the readout is not linear or has several labels per sequence, or the file is not readable.

    Notes
    -----
    ``out`` is ``explained.png`` in the readout's folder by default.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import explain, extract, fit
    >>> x = np.sin(np.arange(40)[:, None] * np.arange(1, 31) / 20)
    >>> np.savez("waves.npz", x=x.T[:, :, None], y=np.arange(30) // 15)
    >>> found = fit(extract("waves.npz"), out="waves-readout")
    >>> [len(row.occluded) for row in explain("waves-readout", "waves.npz", first=2).rows]
    [40, 40]
    """

def export(
    readout: StrPath,
    *,
    to: str = 'torch',
    out: StrPath | None = None,
) -> Export:
    """Write a saved readout and its frozen model as one file, from a raw sequence to logits.

    ``torch`` writes a program for ``torch.export.load``, in the precision that the readout was fitted in, so that it
    gives what `predict` gives. ``onnx`` writes a float32 graph, because runtimes have few bfloat16 operators.

    Parameters
    ----------
    readout : str or path-like
        Folder or JSON file of a linear readout that `fit` wrote, or the folder of a run of `train`.
    to : {"torch", "onnx"}, default="torch"
        Form of the file.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.

    Returns
    -------
    Export

    Notes
    -----
    ``out`` is ``model.pt2`` or ``model.onnx`` in the readout's folder by default.

    Examples
    --------
    >>> from reservoir_pipelines import export, extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"), columns="block01/mean", out="digits")
    >>> export("digits").model.name
    'model.pt2'
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
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
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

    Whatever is cached already is reused: a finished extraction runs nothing, an interrupted one goes on, and a new
    column is added without computing the others again. The same settings give the same bytes, however often the
    extraction was stopped.

    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    splits : sequence of str, optional
        Compute only these splits; a later call adds the others. All by default.
    backbone : str, optional
        gpt2, bert-base-uncased, lstm, a model folder, a hub name ... Default: mini.
    seed : int, default=0
        Seed of drawn weights, of the input layer, and of the order of rows.
    init : str, optional
        pretrained, random (GPT-2's: random-scaled; with --protocol paper random-flat), statistics, or a folder.
        Default: pretrained, where anybody publishes such weights.
    depth : int, optional
        Keep only the first so many blocks, and the final norm.
    input : str, optional
        native: the model's own tokenizer or processor and embeddings; or drawn: gaussian for symbols, of
        vectors orthogonal or kernels, each of one dilation. Default: native where the model reads such data;
        your own series and symbols: kernels, else drawn.
    long : str, default='cut'
        Texts of more tokens than a model reads by itself: cut, or windows, whose features are averaged.
    gain : float, optional
        Scale of the input layer. Default: 1.41; of kernels 6.
    patch : int, optional
        Values per token. Default: your own series: 9, symbols: 5, else 1.
    stride : int, optional
        Values from one window to the next. Default: your own series and symbols: up to 1024 windows, else the
        patch.
    dilations : str, optional
        Steps between a window's values, such as 1,2,4, side by side; auto: 1, 2, 4 ... up to the length.
        Default: your own series: auto, else 1.
    pad : str, optional
        valid: windows inside the sequence; same: one around every stride-th value, zeros outside. Default: your
        own series and symbols: same, else valid.
    normalise : str, optional
        Scale of floats: of the channel in all rows, of each series, both side by side, or these and
        differences. Default: your own series: differences, else channel.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    limit : int, optional
        At most so many rows of each split, a fixed draw.
    compute : str, default='auto'
        float32, bfloat16; auto: as is native.
    store : str, optional
        float16, bfloat16 or float32 on disk. Default: your own series and symbols: float32, else float16.
    layers : str or sequence of str, optional
        embed, block01 ..., final, comma-separated, or all. Default: your own series and symbols: embed,block01,
        else all.
    pool : str or sequence of str, optional
        last, mean, std, min, max, first, cls, segmentsK, quantilesK, sharesK, tokens, all; comma-separated.
        Default: named tasks: last,mean; your own series: quantiles9,shares13,max,min,segments8; symbols:
        shares13,max,min,segments8,tokens; texts in a model's own tokens: cls or last, and mean.
    batch_rows : int, optional
        Rows of the greatest length per batch of a new entry.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.
    workers : int, default=0
        Local processes; 0 for none.
    scheduler : str, optional
        A dask.distributed scheduler, tcp://host:port.

    Returns
    -------
    Extraction
        ``extraction["train"]["block06/mean"]`` is an array (rows, width).

    Notes
    -----
    ``batch_rows`` holds for a new entry. An existing entry keeps its own, because the batch size changes the last bits.
    A larger ``limit`` contains the rows of a smaller one. Workers share the blocks and need access to the cache.

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
    workers: int = 0,
    scheduler: str | None = None,
    out: StrPath | None = None,
    columns: str | Sequence[str] = 'all',
    readout: str = 'ridge',
    alphas: str | None = None,
    select: str = 'auto',
    one_standard_error: bool = False,
    class_weight: str | None = None,
    curve: str | None = None,
    device: str = 'auto',
) -> Fit:
    """Fit a readout to every column under every setting and choose one by validation.

    Parameters
    ----------
    features : Extraction, FeatureStore or path-like, or a sequence of these
        What `extract` returned, or the folder of an entry. Several entries of the same rows are fitted together; their
        columns are named ``1:block06/mean``, ``2:block06/mean`` and so on.
    workers : int, default=0
        Local processes; 0 for none.
    scheduler : str, optional
        A dask.distributed scheduler, tcp://host:port.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    columns : str or sequence of str, default='all'
        Columns to try, comma-separated; a+b for two side by side; all, alone and by layer; best:4 greedily.
    readout : str, default='ridge'
        ridge, logistic, or an import path such as sklearn.svm.LinearSVC:C=0.1,1.
    alphas : str, optional
        Penalties LO:HI:N on standardised features.
    select : str, default='auto'
        valid, fitted to train; cvK: K folds of train and valid; auto: by rows, to both.
    one_standard_error : bool, default=False
        Take the largest penalty within one standard error of the best.
    class_weight : str, optional
        balanced: all classes count the same.
    curve : str, optional
        Training rows of a learning curve, such as 100,1000.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.

    Returns
    -------
    Fit

    Raises
    ------
    InputError, CacheError
        If a column is not cached, an entry is incomplete, or settings contradict each other.

    Notes
    -----
    With ``columns="all"`` each column is tried alone, the columns of each layer side by side, and the raw input, which
    is chosen if nothing scores better. ``a+b`` reads two columns side by side; ``best:4`` adds up to four greedily by
    validation. A readout chosen on the validation split is then fitted to train and valid together.

    Examples
    --------
    >>> from reservoir_pipelines import extract, fit
    >>> found = fit(extract("digits", limit=60, layers="block01", pool="mean"))
    >>> found.best.metric, found.best.test_score > 0.5
    ('accuracy', True)
    """

def import_backbone(
    source: StrPath,
    out: StrPath,
) -> Imported:
    """Write the weights of a foreign file as a folder that ``backbone=`` takes; no code of the file is run.

    Parameters
    ----------
    source : str or path-like
        An ONNX file of a ViT or DINOv2 whose tensors have transformers' names; a GGUF file; or a ``pytorch_model.bin``
        beside its ``config.json``, or their folder.
    out : str or path-like
        A new folder.

    Returns
    -------
    Imported
        The folder, and the tensors that were left out.

    Raises
    ------
    InputError
        If the weights cannot be read without running code, or no backbone can be loaded from them.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2Model
    >>> from reservoir_pipelines import import_backbone
    >>> model = GPT2Model(GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=64, vocab_size=50))
    >>> model.config.save_pretrained("old")
    >>> torch.save(model.state_dict(), "old/pytorch_model.bin")
    >>> imported = import_backbone("old", "new")
    >>> sorted(path.name for path in imported.folder.iterdir())
    ['config.json', 'model.safetensors']
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
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
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
    """Measure a few seconds of an extraction and estimate the time, disk and memory of all of it.

    Nothing is written but the prepared data.

    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data; a sample of the future data is enough.
    rows : int, optional
        Rows in all. The task's own by default, or ``limit`` per split.
    workers : int, default=1
        Processes or GPUs like this one that will share the work.
    backbone : str, optional
        gpt2, bert-base-uncased, lstm, a model folder, a hub name ... Default: mini.
    seed : int, default=0
        Seed of drawn weights, of the input layer, and of the order of rows.
    init : str, optional
        pretrained, random (GPT-2's: random-scaled; with --protocol paper random-flat), statistics, or a folder.
        Default: pretrained, where anybody publishes such weights.
    depth : int, optional
        Keep only the first so many blocks, and the final norm.
    input : str, optional
        native: the model's own tokenizer or processor and embeddings; or drawn: gaussian for symbols, of
        vectors orthogonal or kernels, each of one dilation. Default: native where the model reads such data;
        your own series and symbols: kernels, else drawn.
    long : str, default='cut'
        Texts of more tokens than a model reads by itself: cut, or windows, whose features are averaged.
    gain : float, optional
        Scale of the input layer. Default: 1.41; of kernels 6.
    patch : int, optional
        Values per token. Default: your own series: 9, symbols: 5, else 1.
    stride : int, optional
        Values from one window to the next. Default: your own series and symbols: up to 1024 windows, else the
        patch.
    dilations : str, optional
        Steps between a window's values, such as 1,2,4, side by side; auto: 1, 2, 4 ... up to the length.
        Default: your own series: auto, else 1.
    pad : str, optional
        valid: windows inside the sequence; same: one around every stride-th value, zeros outside. Default: your
        own series and symbols: same, else valid.
    normalise : str, optional
        Scale of floats: of the channel in all rows, of each series, both side by side, or these and
        differences. Default: your own series: differences, else channel.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    limit : int, optional
        At most so many rows of each split, a fixed draw.
    compute : str, default='auto'
        float32, bfloat16; auto: as is native.
    store : str, optional
        float16, bfloat16 or float32 on disk. Default: your own series and symbols: float32, else float16.
    layers : str or sequence of str, optional
        embed, block01 ..., final, comma-separated, or all. Default: your own series and symbols: embed,block01,
        else all.
    pool : str or sequence of str, optional
        last, mean, std, min, max, first, cls, segmentsK, quantilesK, sharesK, tokens, all; comma-separated.
        Default: named tasks: last,mean; your own series: quantiles9,shares13,max,min,segments8; symbols:
        shares13,max,min,segments8,tokens; texts in a model's own tokens: cls or last, and mean.
    batch_rows : int, optional
        Rows of the greatest length per batch of a new entry.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

    Returns
    -------
    Forecast

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
) -> Predictions:
    """Apply a saved readout to the sequences of a file.

    Parameters
    ----------
    readout : str or path-like
        Folder or JSON file that `fit` wrote, or the folder of a run of `train`.
    file : str or path-like
        Any file that a task can be made from, with or without labels, or an idx file of images.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    trust : bool, default=False
        Load a readout that can run code: one whose estimator is not linear.

    Returns
    -------
    Predictions
        An iterator over one `Prediction` per sequence, in order; each block of rows is computed when it is reached.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import extract, fit, predict
    >>> x = np.sin(np.arange(40)[:, None] * np.arange(1, 31) / 20)
    >>> np.savez("waves.npz", x=x.T[:, :, None], y=np.arange(30) // 15)
    >>> found = fit(extract("waves.npz"), out="waves-readout")
    >>> len([each.label for each in predict("waves-readout", "waves.npz")])
    30
    """

def prepare(
    task: StrPath,
    *,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    fetch: bool = False,
    mirrors: Sequence[str] = (),
    cache: StrPath | None = None,
) -> Prepared:
    """Prepare a task's data, or open it if that has been done.

    The data lies in the cache, named after the task's parameters and the contents of the source files. It is written
    whole or not at all and never changes; changed source files are prepared again beside it.

    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    workers : int, default=0
        Local processes; 0 for none.
    scheduler : str, optional
        A dask.distributed scheduler, tcp://host:port.
    fetch : bool, default=False
        Fetch the publisher's files where missing.
    mirrors : sequence of str, default=()
        Other places of the files; tried first.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

    Returns
    -------
    Prepared

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
    """Pretrain a backbone on a corpus.

    Causal models learn to predict the next token; models that see both directions learn to predict hidden tokens.

    Parameters
    ----------
    corpus : str or path-like
        Path of a text file (also ``.gz``) or of a folder of them; the name of a stream of tokens (``nesting``,
        ``zipf``, ``uniform``); or ``bit-memory``, the task itself, on which all parameters are trained.
    out : str or path-like
        Folder of the model. transformers loads it, and so does ``backbone=``.
    backbone : str, optional
        gpt2, bert-base-uncased, lstm, a model folder, a hub name ... Default: mini.
    seed : int, default=0
        Seed of drawn weights, of the input layer, and of the order of rows.
    compute : str, default='auto'
        float32, bfloat16; auto: as is native.
    steps : int, optional
        Steps in all. Default: 5000; of pretrain 2000.
    learning_rate : float, optional
        Of Adam. Default: train: 1e-3, LSTMs 3e-4, homology 1e-4; pretrain: 2e-3, bit-memory 5e-4.
    eval_every : int, default=500
        Steps between validations, each with a checkpoint.
    compiled : bool, default=False
        Compile the model, on a GPU; pretrain's on a CPU too.
    resume : bool, default=False
        Go on from the last checkpoint.
    vocabulary : int, default=256
        Of text 256 for bytes, more for a tokenizer; of a stream: any.
    batch_tokens : int, default=4096
        Tokens of a step.
    context : int, optional
        Tokens read at a time. Default: 1024, or the model's.
    short : int, optional
        ... in the first steps. Default: a quarter of it.
    short_share : float, default=0.6
        Share of the steps that read short windows; then they double.
    warm_up : int, default=200
        Steps up to the highest learning rate; then it falls along a cosine.
    weight_decay : float, default=0.1
        Of AdamW, for matrices.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

    Returns
    -------
    Pretraining

    Notes
    -----
    ``vocabulary`` is 256 for the bytes of a text, more for a tokenizer that is trained on it, and the number of tokens
    of a stream. For bit-memory it is the size of the token embeddings, which are not trained. Bit-memory has neither a
    context nor a learning rate schedule.

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
    """Write a page about folders of `reproduce`, `fit` and `train`.

    Parameters
    ----------
    sources : str, path-like or a sequence of these
        The folders. All reproductions and fits in the cache for an empty sequence.
    markdown : bool, default=False
        Write only the tables, as Markdown.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        If a folder is none of these, or nothing is cached yet.

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
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Reproduction:
    """Run the cells of recipes that have not finished yet, and fill their tables.

    Parameters
    ----------
    names : str, path-like or a sequence of these
        Names of recipes, or paths of TOML files. An empty sequence means all recipes of the package.
    confirm : callable, optional
        Called before anything runs with the cells to run and the folders and device they use. Nothing runs if it
        returns False.
    out : path-like, optional
        Folder or file of the results. Default: in the cache.
    scale : str, default='smoke'
        smoke: minutes; hour: an hour or two; day: 20 core-hours; full: all rows; paper: for a GPU.
    only : str or sequence of str, optional
        Tasks, rows or columns, comma-separated; all of them if left out.
    seeds : int, optional
        So many seeds from 0. Default: 3 for day, full and paper, else 1.
    override : mapping, optional
        In place of the scale's value, such as backbone=bert-base-uncased.
    workers : int, default=0
        Local processes; 0 for none.
    scheduler : str, optional
        A dask.distributed scheduler, tcp://host:port.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

    Returns
    -------
    Reproduction

    Raises
    ------
    InputError
        If a recipe, or something in it, does not exist. A cell that fails does not end the run.

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
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
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
    recompute: bool = False,
    on_divergence: str = 'stop',
    bound: float = 10000.0,
    sweep: Mapping[str, Any] | None = None,
    track: str | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
) -> Training:
    """Train some groups of a model's parameters on a task, with everything else frozen.

    The same settings give the same weights on a CPU, however often the run was stopped and resumed. Started by
    ``accelerate launch`` with several processes, each process takes ``batch * accumulate`` rows of a step.

    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    backbone : str, optional
        gpt2, bert-base-uncased, lstm, a model folder, a hub name ... Default: mini.
    seed : int, default=0
        Seed of drawn weights, of the input layer, and of the order of rows.
    init : str, optional
        pretrained, random (GPT-2's: random-scaled; with --protocol paper random-flat), statistics, or a folder.
        Default: pretrained, where anybody publishes such weights.
    depth : int, optional
        Keep only the first so many blocks, and the final norm.
    input : str, optional
        native: the model's own tokenizer or processor and embeddings; or drawn: gaussian for symbols, of
        vectors orthogonal or kernels, each of one dilation. Default: native where the model reads such data;
        your own series and symbols: kernels, else drawn.
    long : str, default='cut'
        Texts of more tokens than a model reads by itself: cut, or windows, whose features are averaged.
    gain : float, optional
        Scale of the input layer. Default: 1.41; of kernels 6.
    patch : int, optional
        Values per token. Default: your own series: 9, symbols: 5, else 1.
    stride : int, optional
        Values from one window to the next. Default: your own series and symbols: up to 1024 windows, else the
        patch.
    dilations : str, optional
        Steps between a window's values, such as 1,2,4, side by side; auto: 1, 2, 4 ... up to the length.
        Default: your own series: auto, else 1.
    pad : str, optional
        valid: windows inside the sequence; same: one around every stride-th value, zeros outside. Default: your
        own series and symbols: same, else valid.
    normalise : str, optional
        Scale of floats: of the channel in all rows, of each series, both side by side, or these and
        differences. Default: your own series: differences, else channel.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    limit : int, optional
        At most so many rows of each split, a fixed draw.
    run : path-like, optional
        Folder of a run of train. Default: in the cache.
    compute : str, default='auto'
        float32, bfloat16; auto: as is native.
    store : str, optional
        float16, bfloat16 or float32 on disk. Default: your own series and symbols: float32, else float16.
    steps : int, optional
        Steps in all. Default: 5000; of pretrain 2000.
    learning_rate : float, optional
        Of Adam. Default: train: 1e-3, LSTMs 3e-4, homology 1e-4; pretrain: 2e-3, bit-memory 5e-4.
    eval_every : int, default=500
        Steps between validations, each with a checkpoint.
    compiled : bool, default=False
        Compile the model, on a GPU; pretrain's on a CPU too.
    resume : bool, default=False
        Go on from the last checkpoint.
    train : str or sequence of str, optional
        Groups that are trained, comma-separated: input, output, positions, layernorm, attention, feedforward,
        recurrent, last-attention, or all. Default: input,layernorm,positions,output.
    batch : int, default=8
        Rows of one forward pass in one process.
    accumulate : int, default=1
        Forward passes per step.
    dropout : float, default=0.1
        Share of values dropped above the lowest trained one; 0: none.
    clip : float, default=1.0
        Most that the norm of the gradients may be.
    rows : str, default='auto'
        fresh, augmented or stored rows; auto: as the task allows.
    from_cache : bool, default=False
        Take what lies below the lowest trained layer from the cache.
    recompute : bool, default=False
        Compute each block again in the backward pass: less memory.
    on_divergence : str, default='stop'
        stop, or report the best checkpoint before.
    bound : float, default=10000.0
        A loss above it counts as diverged.
    sweep : mapping, optional
        Values of learning_rate, dropout, clip, batch or accumulate to train with, such as
        learning_rate=1e-4,1e-3; repeat for a grid. Validation chooses; test is scored once.
    track : str, optional
        tensorboard, wandb or mlflow, besides metrics.jsonl.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.

    Returns
    -------
    Training

    Notes
    -----
    ``seed`` also chooses the order of the rows and the dropped values. ``steps`` includes those of an earlier part of
    the run. Without ``run``, the folder lies in the cache and is named by everything that changes a number. With
    ``sweep``, every run is kept, an interrupted one goes on, and the best on the validation split is returned.

    Examples
    --------
    >>> from reservoir_pipelines import train
    >>> train("bit-xor", depth=1, steps=2, eval_every=2).steps
    2
    """

def tune(
    task: StrPath,
    *,
    show: Callable[[Any], None] | None = None,
    budget: str = '5m',
    trials: int | None = None,
    join: int = 4,
    backbone: str | None = None,
    seed: int = 0,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    group: str | None = None,
    drop: str | Sequence[str] | None = None,
    text: str | None = None,
    values: bool = False,
    symbols: bool = False,
    regression: bool = False,
    classes: bool = False,
    missing: str = 'refuse',
    standardise: bool = True,
    rate: int | None = None,
    waveform: bool = False,
    data: StrPath | None = None,
    parameters: Mapping[str, Any] | None = None,
    views: int | None = None,
    protocol: str | None = None,
    limit: int | None = None,
    device: str = 'auto',
    cache: StrPath | None = None,
    workers: int = 0,
    scheduler: str | None = None,
) -> Tuning:
    """Search for the reservoirs that suit some data, and fit a readout to the best of them side by side.

    The default reservoir and random variations of it are extracted and judged by cross-validation on train and valid.
    The best are joined as long as held-out rows gain by more than noise. Test rows are scored once, by the winner.
    Features stay in the cache, and a search that was stopped goes on, also with a larger budget.

    Parameters
    ----------
    task : str or path-like
        Name of a task, or the path of your own data.
    show : callable, optional
        Called with each trial as it ends, or is found in the file of an earlier call.
    budget : str, default='5m'
        Time in all, such as 90s, 10m or 1h.
    trials : int, optional
        At most so many reservoirs. Default: as the time allows.
    join : int, default=4
        At most so many reservoirs side by side.
    backbone : str, optional
        gpt2, bert-base-uncased, lstm, a model folder, a hub name ... Default: mini.
    seed : int, default=0
        Seed of drawn weights, of the input layer, and of the order of rows.
    label : str, optional
        Column of the labels; of FASTA the pattern of the label in the header.
    id : str, optional
        Column that names the rows, or in long form the sequences.
    time : str, optional
        Column that orders the rows of a sequence in long form.
    group : str, optional
        Column of what rows have in common that are never on both sides of a split.
    drop : str or sequence of str, optional
        Columns that are left out, comma-separated.
    text : str, optional
        Column of texts, whose letters are the symbols, or of whole sequences.
    values : bool, default=False
        Whole numbers are values.
    symbols : bool, default=False
        Whole numbers are symbols.
    regression : bool, default=False
        Whole-number labels are targets.
    classes : bool, default=False
        Whole-number labels are classes.
    missing : str, default='refuse'
        NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.
    standardise : bool, default=True
        Floats: mean 0, deviation 1 per channel.
    rate : int, optional
        Samples per second that sounds are brought to. Default: 16000.
    waveform : bool, default=False
        Sounds are their samples, not frames of a spectrum; so of models that read them.
    data : path-like, optional
        Folder of the publisher's files. Default: RESERVOIR_DATA.
    parameters : mapping, optional
        A parameter of the task, NAME=VALUE; repeat for more.
    views : int, optional
        Augmented copies of each training row (cifar10).
    protocol : str, optional
        paper: data, untrained weights and training as in the authors' code.
    limit : int, optional
        At most so many rows of each split, a fixed draw.
    device : str, default='auto'
        cpu, cuda, or auto: a GPU where there is one.
    cache : path-like, optional
        Root of the cache. Default: RESERVOIR_CACHE, else the user's cache.
    workers : int, default=0
        Local processes; 0 for none.
    scheduler : str, optional
        A dask.distributed scheduler, tcp://host:port.

    Returns
    -------
    Tuning

    Notes
    -----
    ``budget`` includes the trials of earlier calls. If ``backbone`` is given, no other is tried. Workers share the
    reservoirs and find what one process would find.

    Examples
    --------
    >>> import numpy as np
    >>> from reservoir_pipelines import tune
    >>> x = np.sin(np.arange(40)[:, None] * np.arange(1, 31) / 20)
    >>> np.savez("waves.npz", x=x.T[:, :, None], y=np.arange(30) // 15)
    >>> found = tune("waves.npz", budget="5s", trials=1)
    >>> found.metric
    'accuracy'
    """
