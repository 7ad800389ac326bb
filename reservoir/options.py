"""Every option, declared once: its name, type, default, check and one line of help.

They become keywords of Python, flags, keys of a configuration file, and the record of an entry or a
run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.option_fields import (
    Options,
    as_group,
    as_path,
    at_least,
    dilation_list,
    flag_of,
    flag_words,
    one_of,
    only,
    option,
    path_option,
    positive,
    seed_number,
    share,
    within,
)
from reservoir.pooling import pooling_help

BY_DATA = "depends on the data; extract --dry-run prints it"
# The words of the help of train, whose defaults do not depend on the data: each value or symbol is a token.
TRAIN_DEFAULTS = {
    "backbone": "mini",
    "input": "orthogonal; native for models that read samples",
    "patch": "1; 8 with --input patches",
    "stride": "--patch; 1 with --input patches",
    "dilations": "1",
    "pad": "valid",
    "normalise": "channel",
    "store": "float16; used with --from-cache",
}
PRECISIONS = ("float32", "bfloat16", "bfloat16-all")
"""Precisions in which a model runs; see `Backbone.set_compute`."""
GAIN = 1.41  # of orthogonal input and output layers, as published (about the square root of 2)
KERNEL_GAIN = 6.0  # of kernels: makes the learned positions small compared with the values
# Of patches, whose responses have a standard deviation of about 1, as poolings expect; and of the one-hot vectors of
# the counter.
UNIT_GAIN = 1.0


def flag_instead(parameters: Mapping[str, Any]) -> str | None:
    """Return what to write instead of a task parameter that has a flag of its own; None if no parameter has one.

    This is the check of ``--param``.
    """
    # These options are parameters of named tasks as well: ``window`` is the side of windows of images.
    also_parameters = {"views", "window", *(item.name for item in fields(VariantOptions))}
    flags = {item.name: flag_of(item) for item in fields(TaskOptions) if item.name not in also_parameters}
    for name, value in parameters.items():
        if name in flags:
            return f"write {shlex.join(flag_words(flags[name], value))}"
    return None


class LabelsOptions(Options, panel="Data"):
    """Where the labels are, if not in the data."""

    labels: str | None = option(
        None, "Table with the labels of a folder's files or of FASTA records, joined by name."
    )


class OwnDataOptions(LabelsOptions, panel="Data"):
    """How your own files are read."""

    label: str | None = option(
        None,
        "Column of labels, else label, target, class, y, ner_tags or tags; for FASTA, a regular expression for the "
        "header.",
    )
    id: str | None = option(None, "Column of row names, else id; in long form, of sequence names.")
    time: str | None = option(
        None,
        "Column of times, else time or timestamp (with --forecast also date, datetime or year), which order the rows "
        "of an id (long form) or of a log (--window).",
    )
    group: str | None = option(
        None, "Column of groups, each in one split, else group, subject or patient; for FASTA, see --label."
    )
    drop: str | Sequence[str] | None = option(None, "Columns to ignore, comma-separated.")
    text: str | None = option(
        None, "Column of texts or sequences, else x, sequence, text, tokens or words."
    )
    chat: bool = option(
        False,
        "Read the column --text, else messages or conversation, as chats, which the model's chat template renders.",
    )
    span: str | None = option(
        None,
        "Columns START,END of the first letter of a span of each text and of the one after it, or a column of lists "
        "[START, END], else span.",
    )
    decimal: str = option(".", "Decimal mark of the numbers in a text table: . or ,", one_of(".", ","))
    values: bool = option(False, "Read whole numbers as values.")
    symbols: bool = option(False, "Read whole numbers as symbols.")
    channels_first: bool = option(
        False, "Read an array as (rows, channels, steps), or images with channels first."
    )
    pixels: int | None = option(
        None,
        "Read the values of a row as a square image, or arrays as images, from black (0) to this value of white.",
        at_least(1),
    )
    regression: bool = option(False, "Read whole-number labels as regression targets.")
    classes: bool = option(False, "Read whole-number labels as classes.")
    missing: str = option(
        "refuse",
        "NaN and empty cells: refuse, interpolate, or mask (0, with a further channel for the gaps).",
        one_of("refuse", "interpolate", "mask"),
    )
    forecast: int | None = option(
        None,
        "Read the rows of a table as steps in time; a label is the next values of the column --label, this many.",
        at_least(1),
    )
    past: int | None = option(
        None,
        "With --forecast: steps before the first forecast value that are read.",
        at_least(1),
        shown=BY_DATA,
    )
    standardise: bool = option(True, "Scale each channel to mean 0 and standard deviation 1.")
    skip_bad_rows: bool = option(False, "Leave out rows that cannot be read, and count them.")
    rate: int | None = option(None, "Sampling rate of sounds, in Hz.", at_least(1000), shown="16000")
    waveform: bool = option(
        False, "Read sounds as samples, not spectra; the default for models that read samples."
    )
    resample: int | None = option(
        None, "Resample each recording to this number of steps, before --window cuts it.", at_least(2)
    )
    window: int | None = option(
        None,
        "Cut each recording into windows of this number of steps, which stay in one split.",
        at_least(2),
    )
    step: int | None = option(
        None, "Steps from one window of a recording to the next.", at_least(1), shown="--window"
    )

    def __post_init__(self) -> None:
        """Check each option, then their combinations; store a list of columns to drop as one text."""
        super().__post_init__()
        exclusive = (
            ("values", "symbols"),
            ("regression", "classes"),
            ("resample", "symbols"),
            ("chat", "span"),
            ("chat", "symbols"),
            ("chat", "values"),
            ("forecast", "window"),
            ("forecast", "resample"),
            ("pixels", "values"),
            ("pixels", "symbols"),
            ("pixels", "window"),
            ("pixels", "resample"),
        )
        for first, second in exclusive:
            if getattr(self, first) and getattr(self, second):
                raise InputError(f"--{first} --{second}: give one of the two")
        if self.step and not self.window:
            raise InputError(f"--step {self.step}: no --window", "pass --window, the steps of a window")
        if self.past is not None and self.forecast is None:
            raise InputError(f"--past {self.past} needs --forecast", "add the number of values to forecast")
        if self.drop is not None and not isinstance(self.drop, str):
            object.__setattr__(self, "drop", ",".join(self.drop))  # the dataclass is frozen

    @property
    def explicit(self) -> dict[str, Any]:
        """The options of how files are read that differ from their defaults."""
        values = {item.name: getattr(self, item.name) for item in fields(OwnDataOptions)}
        defaults = {item.name: item.default for item in fields(OwnDataOptions)}
        return {name: value for name, value in values.items() if value != defaults[name]}


class VariantOptions(Options, panel="Data"):
    """The variant of a named task, with its initial weights and its training."""

    protocol: str | None = option(
        None,
        "With paper: data, random weights and training as in the authors' code.",
        one_of("ours", "paper"),
    )


class TaskOptions(VariantOptions, OwnDataOptions, panel="Data"):
    """The files of a task and its parameters, or how your own files are read."""

    data: Path | None = path_option(
        "Folder of the data set's files.", default=None, converter=as_path, shown="RESERVOIR_DATA"
    )
    parameters: Mapping[str, Any] | None = option(
        None, "Parameter of the task, NAME=VALUE; repeat for more.", flag_instead, flag="param"
    )
    views: int | None = option(None, "Augmented copies of each training row (cifar10).")

    @property
    def given(self) -> dict[str, Any]:
        """The parameters of the task that the user has set: those of ``--param``, and those that are options."""
        options = {"views": self.views, **vars(as_group(self, VariantOptions))}
        set_options = {name: value for name, value in options.items() if value is not None}
        return dict(self.parameters or {}) | set_options | self.explicit


class RowOptions(TaskOptions, panel="Data"):
    """Which data are read, and how many rows."""

    limit: int | None = option(None, "Maximum rows per split, a fixed random sample.", at_least(1))


class DownloadOptions(Options, panel="Data"):
    """Whether the data set's files are downloaded."""

    fetch: bool = option(False, "Download the files that are missing.", flag="download", where=True)


class CorpusOptions(Options, panel="Data"):
    """The corpus of a recipe's language model."""

    corpus: str | None = option(
        None, "A text file or a folder of them, nesting, zipf, uniform, several of these, or bit-memory."
    )


class ShapeOptions(Options, panel="Model"):
    """The backbone, and the seed of all random numbers."""

    backbone: str | None = option(
        None,
        "Frozen model: kernels (no transformer), mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name.",
        shown="kernels for your own series, else mini",
    )
    seed: int = option(0, "Seed of random weights, the input layer and the order of rows.", seed_number)


class ModelOptions(ShapeOptions, panel="Model"):
    """A backbone with its weights."""

    init: str | None = option(
        None,
        "Source of the weights: pretrained, random, random-scaled, random-flat, statistics (random with the pretrained "
        "means and standard deviations), tied (random, but keys equal queries), or a folder that pretrain wrote.",
        shown="pretrained if published, else random",
    )
    depth: int | None = option(None, "Blocks to keep, from the first; the final norm is kept too.")

    @property
    def title(self) -> str:
        """Short name for folders and tables, such as ``gpt2-random`` or ``gpt2-depth6-random``."""
        # The last part of a path or of a name on the hub, with other characters replaced; it may be empty, as of "..".
        letters = Path(self.backbone or "").name
        name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in letters)
        name = name.strip("-.") or "backbone"
        depth = f"-depth{self.depth}" if self.depth else ""
        return f"{name}{depth}-{self.init}"


class ReservoirOptions(ModelOptions, panel="Model"):
    """A reservoir: a frozen backbone behind a fixed input layer."""

    input: str | None = option(
        None,
        "Input layer: native (the model's own), gaussian, orthogonal or kernels (vectors), edges (images), patches "
        "(of training images), counter (symbols with their level in brackets).",
        one_of("native", "gaussian", "orthogonal", "kernels", "edges", "patches", "counter"),
        shown=BY_DATA,
    )
    long: str = option(
        "cut",
        "Texts longer than the model's context: cut, or windows (mean over windows).",
        one_of("cut", "windows"),
    )
    gain: float | None = option(
        None,
        "Scale of the input layer.",
        positive,
        shown=f"{KERNEL_GAIN:g} for kernels, {UNIT_GAIN:g} for patches and counter, else {GAIN}",
    )
    patch: int | None = option(None, "Values per token (window length).", at_least(1), shown=BY_DATA)
    stride: int | None = option(None, "Values from one window to the next.", at_least(1), shown=BY_DATA)
    dilations: str | None = option(
        None,
        "Steps between the values of a window; 1,2,4 concatenates three windows, auto as many as fit.",
        dilation_list,
        shown=BY_DATA,
    )
    pad: str | None = option(
        None,
        "valid: windows inside the sequence; same: centred at each step, with zeros beyond the ends.",
        one_of("valid", "same"),
        shown=BY_DATA,
    )
    normalise: str | None = option(
        None,
        "Scaling of floats: channel (over all rows), series (each alone), both, or differences (added to both).",
        one_of("channel", "series", "both", "differences"),
        shown=BY_DATA,
    )


class CacheOptions(Options, panel="Output"):
    """The root folder of the cache."""

    cache: Path | None = path_option(
        "Root folder of the cache.",
        default=None,
        converter=as_path,
        shown="RESERVOIR_CACHE, else the user's",
    )


class DeviceOptions(Options, panel="Run"):
    """The device to compute on."""

    device: str = option("auto", "cpu, cuda, or auto: a GPU if there is one.", where=True)


class PlaceOptions(CacheOptions, DeviceOptions):
    """The root folder of the cache, and the device to compute on."""


class ComputeOptions(Options, panel="Run"):
    """The precision in which a model runs."""

    compute: str = option(
        "auto",
        "Precision: float32, bfloat16 (of products), bfloat16-all (of all), or auto (float32 or bfloat16, the faster).",
        one_of("auto", *PRECISIONS),
    )


class PrecisionOptions(ComputeOptions, panel="Features"):
    """The precision in which a model runs and its features are stored."""

    store: str | None = option(
        None,
        "Precision on disk: float16, bfloat16 or float32.",
        one_of("float16", "bfloat16", "float32"),
        shown=BY_DATA,
    )


class LayerOptions(Options, panel="Features"):
    """Which hidden states are stored, and how they are pooled."""

    layers: str | Sequence[str] | None = option(
        None, "Layers, comma-separated: embed, block01 ..., final, or all.", shown=BY_DATA
    )
    pool: str | Sequence[str] | None = option(
        None,
        f"Poolings over the tokens, comma-separated: {pooling_help()}.",
        shown=BY_DATA,
    )


class FeatureOptions(LayerOptions, PrecisionOptions, panel="Features"):
    """Which hidden states are computed and stored, and in which batches and precision."""

    each_token: bool = option(
        False, "Texts: store every token as a row of its own, with the label of its text if there is one."
    )
    batch_rows: int | None = option(None, "Rows of full length per batch of a new entry.", at_least(1))
    compile_blocks: bool = option(
        False, "Compile the blocks of the model and its poolings; for long extractions on a GPU."
    )


class StreamOptions(Options, panel="Run"):
    """Whether a model is larger than memory."""

    stream: str = option(
        "auto",
        "Read the blocks of the model from its file while they run: always, never, or auto (if memory is too small).",
        one_of("auto", "always", "never"),
        where=True,
    )


class ExtractOptions(StreamOptions, PlaceOptions, FeatureOptions, RowOptions, ReservoirOptions):
    """Which rows pass through which reservoir, which features are stored, and where."""


class ClusterOptions(Options, panel="Run"):
    """Other processes that share the work."""

    workers: int = option(0, "Local worker processes; 0 for none.", at_least(0), where=True)
    scheduler: str | None = option(None, "Address of a dask scheduler: tcp://host:port.", where=True)

    def __post_init__(self) -> None:
        """Check each option, and that at most one of them is given."""
        super().__post_init__()
        if self.workers and self.scheduler:
            raise InputError(
                "--workers and --scheduler: the workers are those of the scheduler", "pass one of them"
            )


class OutOptions(Options, panel="Output"):
    """Where results are written."""

    out: Path | None = path_option(
        "Folder or file of the results.", default=None, converter=as_path, shown="in the cache"
    )


class FitOptions(OutOptions, panel="Readout"):
    """Which readouts are tried, and how one is chosen."""

    columns: str | Sequence[str] = option(
        "all",
        "Columns to try, comma-separated: one column, a+b (concatenated), or all (each alone, and each layer whole).",
    )
    readout: str = option(
        "ridge",
        "ridge, logistic, arccos (ridge with the arc-cosine kernel, an infinitely wide layer), or an estimator's "
        "path: sklearn.svm.LinearSVC:C=0.1,1.",
    )
    alphas: str | None = option(None, "Penalties to try, LO:HI:N, on standardised features.")
    select: str = option(
        "auto", "Choose readouts by valid (the split), cvK (K folds of train and valid), or auto (by rows)."
    )
    class_weight: str | None = option(
        None, "balanced: every class has the same weight.", one_of("balanced")
    )
    curve: str | None = option(None, "Numbers of training rows of a learning curve, such as 100,1000.")
    control: bool = option(
        False, "Fit random labels, too, and show each score minus theirs (selectivity of a probe)."
    )
    mdl: bool = option(
        False, "Show the minimum description length of the training labels (prequential code, in bits)."
    )


class StepOptions(Options, panel="Training"):
    """The steps of train and of pretrain."""

    steps: int | None = option(
        None, "Total optimizer steps.", at_least(1), shown="5000, or 2000 for pretrain"
    )
    learning_rate: float | None = option(
        None, "Learning rate of Adam.", positive, shown="by model and task, about 1e-3; 2e-3 for pretrain"
    )
    eval_every: int = option(500, "Steps between validations; each writes a checkpoint.", at_least(1))
    compiled: bool = option(False, "Compile the model (on a CPU, only for pretrain).", flag="compile")
    resume: bool = option(False, "Resume from the last checkpoint.")


class RunOptions(Options, panel="Output"):
    """The folder of a run of train."""

    run: Path | None = path_option(
        "Folder of a run of train.", default=None, converter=as_path, shown="in the cache"
    )


class TrustOptions(Options, panel="Run"):
    """Whether files that can run code are loaded."""

    trust: bool = option(False, "Load a readout that can run code: any that is not linear.")


RECIPE = ("batch", "accumulate", "learning_rate", "clip", "dropout")
"""The options of train that change its result, besides the parameter groups and the training rows."""


class CoverageOptions(Options, panel="Output"):
    """Prediction sets and intervals."""

    coverage: float | None = option(
        None, "Probability that an added set or interval has the true value.", within(0.01, 0.9999)
    )
    abstain: bool = option(False, "With --coverage: no label unless the set has exactly one class.")

    def __post_init__(self) -> None:
        """Check each option, and that an abstaining readout has sets to abstain by."""
        super().__post_init__()
        if self.abstain and self.coverage is None:
            raise InputError("--abstain needs --coverage", "add --coverage 0.9")


class WindowsOptions(Options, panel="Output"):
    """What is printed of recordings that are cut into windows."""

    windows: bool = option(
        False, "Print a prediction of each window, not one of each recording (extract --window)."
    )


class PredictOptions(LabelsOptions, WindowsOptions, CoverageOptions, TrustOptions, DeviceOptions):
    """How a readout is applied to new sequences."""


class TrainOptions(StepOptions, PrecisionOptions, RunOptions, panel="Training"):
    """Which parameters are trained, and how."""

    train: str | Sequence[str] | None = option(
        None,
        "Parameter groups to train, comma-separated: input, output, positions, layernorm, attention, feedforward, "
        "recurrent, last-attention, or all.",
        shown="input,layernorm,positions,output",
    )
    batch: int = option(8, "Rows per forward pass and process.", at_least(1))
    accumulate: int = option(1, "Forward passes per optimizer step.", at_least(1))
    dropout: float = option(0.1, "Dropout above the lowest trained layer; 0 for none.", share)
    clip: float = option(1.0, "Largest norm of the gradients.", positive)
    rows: str = option(
        "auto",
        "Training rows: fresh (generated), augmented, stored, or auto (the first that the task has).",
        one_of("auto", "fresh", "augmented", "stored"),
    )
    from_cache: bool = option(False, "With --train output: read the hidden states from the cache.")
    patience: int | None = option(
        None,
        "Stop after this many validations without a better score, or an equal score with a lower loss.",
        at_least(1),
        shown="never",
    )
    on_divergence: str = option(
        "stop", "If the loss diverges: stop, or report the best checkpoint.", one_of("stop", "report")
    )
    sweep: Mapping[str, Any] | None = option(
        None,
        "Values of learning_rate, dropout, clip, batch or accumulate to try, as in dropout=0,0.1; repeat for a grid.",
        only(*RECIPE),
    )


class PretrainOptions(StepOptions, ComputeOptions, panel="Training"):
    """How a language model is pretrained."""

    vocabulary: int = option(
        256, "Vocabulary size of generated corpora; that of texts is 256.", within(2, 10**6)
    )
    batch_tokens: int = option(4096, "Tokens per optimizer step.")
    context: int | None = option(
        None, "Context length in tokens.", at_least(2), shown="1024, or the model's maximum"
    )
    short: int | None = option(
        None, "Context in the first steps.", at_least(1), shown="a quarter of context"
    )
    short_share: float = option(0.6, "Share of the steps with the short context.", within(0, 1))
    warm_up: int = option(200, "Steps of linear warm-up before a cosine schedule.", at_least(0))
    weight_decay: float = option(0.1, "Weight decay of AdamW on matrices.", within(0, 1e9))


class AttentionOptions(RunOptions, OutOptions, panel="Attention"):
    """Which attention maps are plotted."""

    layer: int = option(1, "Number of the block, from 1.")
    average: int = option(64, "Rows to average; the first is also plotted alone.", at_least(1))
    split: str = option("test", "Split from which the rows are taken.")
    top: float | None = option(None, "Upper end of the colour scale; set it to compare plots.", positive)


class ReproduceOptions(OutOptions, panel="Tables"):
    """Which part of a table is reproduced, and at what size."""

    scale: str = option(
        "smoke",
        "smoke: minutes; hour: an hour or two; day: 20 core-hours; full: all rows; paper: for a GPU.",
        one_of("smoke", "hour", "day", "full", "paper"),
    )
    only: str | Sequence[str] | None = option(None, "Only these tasks, rows or columns, comma-separated.")
    seeds: int | None = option(
        None, "Number of seeds, from 0.", at_least(1), shown="3 for day, full and paper, else 1"
    )
    override: Mapping[str, Any] | None = option(
        None, "Replace a value of the scale, such as backbone=gpt2."
    )


class ExplainOptions(OutOptions, panel="Output"):
    """Which sequences are explained."""

    first: int = option(4, "Number of sequences to explain, from the first.", at_least(1))


class ReportOptions(CacheOptions, OutOptions, panel="Options"):
    """Which page is written, and where."""

    markdown: bool = option(False, "Write only the tables, as Markdown.")
