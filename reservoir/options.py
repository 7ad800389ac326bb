"""Every option, declared once: its name, type, default, check and one line of help.

These fields become the keywords of a Python call, the flags of the command line, the keys of a configuration file, the
parameters of the estimators, and the record of how an entry or a run was made. The options of data are in
`reservoir.data_options`. ``panel`` is the heading under which ``--help`` lists a group's own options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir import option_fields as of
from reservoir.data_options import CorpusOptions, DownloadOptions, OwnDataOptions, RowOptions, TaskOptions  # noqa: F401
from reservoir.option_fields import Options, at_least, dilation_list, one_of, option, positive, seed_number, share, span

SERIES = "{} for your own series, else {}"
OWN = "{} for your own series and symbols, else {}"
"""Data-dependent defaults, as the help shows them."""


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(Options, panel="Model"):
    """The backbone, and the seed of all random numbers."""

    backbone: str | None = option(
        None, "Frozen model: mini, gpt2, bert-base-uncased, lstm, a model folder or a hub name.", shown="mini"
    )
    seed: int = option(0, "Seed of random weights, of the input layer and of the order of rows.", seed_number)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ShapeOptions, panel="Model"):
    """A backbone with its weights."""

    init: str | None = option(
        None,
        "Source of the weights: pretrained, random, random-scaled, random-flat, statistics (random with the pretrained "
        "means and deviations), or a folder that pretrain wrote.",
        shown="pretrained, or random for families without published weights",
    )
    depth: int | None = option(None, "Number of blocks to keep, from the first; the final norm is kept too.")

    @property
    def title(self) -> str:
        """Short name for folders and tables, such as ``gpt2-random`` or ``gpt2-depth6-random``."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(self.backbone or "").name).strip("-.")
        depth = f"-depth{self.depth}" if self.depth else ""
        return f"{name or 'backbone'}{depth}-{self.init}"


@dataclass(frozen=True, kw_only=True)
class ReservoirOptions(ModelOptions, panel="Model"):
    """A reservoir: a frozen backbone behind a fixed input layer."""

    input: str | None = option(
        None,
        "Input layer: native (the model's own tokenizer or processor and embeddings), or random: gaussian for symbols, "
        "orthogonal or kernels for vectors.",
        one_of("native", "gaussian", "orthogonal", "kernels"),
        shown="native if the model reads such data, else " + OWN.format("kernels", "gaussian or orthogonal"),
    )
    long: str = option(
        "cut",
        "Texts longer than the model reads: cut them, or read windows and average their features.",
        one_of("cut", "windows"),
    )
    gain: float | None = option(None, "Scale of the input layer.", positive, shown="6 for kernels, else 1.41")
    patch: int | None = option(
        None, "Values per token (window length).", at_least(1), shown="9 for your own series, 5 for symbols, else 1"
    )
    stride: int | None = option(
        None,
        "Values from one window to the next.",
        at_least(1),
        shown=OWN.format("as for up to 1024 windows", "the patch"),
    )
    dilations: str | None = option(
        None,
        "Steps between the values of a window, such as 1,2,4, read side by side; auto: 1, 2, 4 ... up to the length.",
        dilation_list,
        shown=SERIES.format("auto", 1),
    )
    pad: str | None = option(
        None,
        "valid: windows inside the sequence; same: a window centred on each stride, zeros outside.",
        one_of("valid", "same"),
        shown=OWN.format("same", "valid"),
    )
    normalise: str | None = option(
        None,
        "Scaling of floats: per channel over all rows, per series, both side by side, or both and differences.",
        one_of("channel", "series", "both", "differences"),
        shown=SERIES.format("differences", "channel"),
    )


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options, panel="Output"):
    """Where everything is stored."""

    cache: Path | None = option(
        None, "Root folder of the cache.", shown="RESERVOIR_CACHE, else the user's cache folder", where=True
    )


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options, panel="Run"):
    """Where the arithmetic runs."""

    device: str = option("auto", "cpu, cuda, or auto: a GPU if there is one.", where=True)


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(CacheOptions, DeviceOptions):
    """Where everything is stored, and where the arithmetic runs."""


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Options, panel="Run"):
    """The precision in which a model runs."""

    compute: str = option(
        "auto",
        "Precision: float32, bfloat16, or auto: bfloat16 if the device multiplies it natively.",
        one_of("auto", "float32", "bfloat16"),
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(ComputeOptions, panel="Features"):
    """The precision in which a model runs and its features are stored."""

    store: str | None = option(
        None,
        "Precision on disk: float16, bfloat16 or float32.",
        one_of("float16", "bfloat16", "float32"),
        shown=OWN.format("float32", "float16"),
    )


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(PrecisionOptions, panel="Features"):
    """Which hidden states are stored, and how they are pooled."""

    layers: str | Sequence[str] | None = option(
        None, "Layers, comma-separated: embed, block01 ..., final, or all.", shown=OWN.format("embed,block01", "all")
    )
    pool: str | Sequence[str] | None = option(
        None,
        "Poolings over the tokens, comma-separated: last, mean, std, min, max, first, cls, segmentsK, quantilesK, "
        "sharesK, tokens, all.",
        shown="last,mean for named tasks; quantiles9,shares13,max,min,segments8 for your own series; "
        "shares13,max,min,segments8,tokens for symbols; mean and cls or last for texts with native input",
    )
    batch_rows: int | None = option(None, "Rows of full length per batch, for a new entry.", at_least(1))


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(PlaceOptions, FeatureOptions, RowOptions, ReservoirOptions):
    """The rows, the reservoir they go through, the stored features and their place."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options, panel="Run"):
    """Other processes that share the work."""

    workers: int = option(0, "Number of local worker processes; 0 for none.", at_least(0), where=True)
    scheduler: str | None = option(None, "Address of a dask.distributed scheduler: tcp://host:port.", where=True)


@dataclass(frozen=True, kw_only=True)
class OutOptions(Options, panel="Output"):
    """Where results are written."""

    out: Path | None = option(None, "Folder or file of the results.", shown="in the cache", where=True)


@dataclass(frozen=True, kw_only=True)
class FitOptions(OutOptions, ClusterOptions, panel="Readout"):
    """Which readouts are tried, and how one is chosen."""

    columns: str | Sequence[str] = option(
        "all",
        "Columns to try, comma-separated; a+b joins two; best:4 adds up to four greedily; all: each, and each layer.",
    )
    readout: str = option(
        "ridge", "ridge, logistic, or the import path of an estimator, such as sklearn.svm.LinearSVC:C=0.1,1."
    )
    alphas: str | None = option(None, "Penalties to try, LO:HI:N, on standardised features.")
    select: str = option(
        "auto",
        "Choose by valid (the validation split), by cvK (K folds of train and valid), or auto (by the number of rows).",
    )
    one_standard_error: bool = option(False, "Choose the largest penalty within one standard error of the best.")
    class_weight: str | None = option(None, "balanced: every class has the same weight.", one_of("balanced"))
    curve: str | None = option(None, "Draw a learning curve at these numbers of training rows, such as 100,1000.")


@dataclass(frozen=True, kw_only=True)
class TuneOptions(Options, panel="Search"):
    """How long reservoirs are searched for, and how many may be joined."""

    budget: str = option("5m", "Total time, such as 90s, 10m or 1h.", span)
    trials: int | None = option(None, "Most reservoirs to try.", at_least(1), shown="as many as the budget allows")
    join: int = option(4, "Most reservoirs to read side by side.", at_least(1))


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options, panel="Training"):
    """The steps of train and of pretrain."""

    steps: int | None = option(None, "Total optimizer steps.", at_least(1), shown="5000, or 2000 for pretrain")
    learning_rate: float | None = option(
        None,
        "Learning rate of Adam.",
        positive,
        shown="train: 1e-3, 3e-4 for LSTMs, 1e-4 for homology; pretrain: 2e-3, 5e-4 for bit-memory",
    )
    eval_every: int = option(500, "Steps between validations; each writes a checkpoint.", at_least(1))
    compiled: bool = option(False, "Compile the model: on a GPU, and for pretrain also on a CPU.", flag="compile")
    resume: bool = option(False, "Resume from the last checkpoint.")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options, panel="Output"):
    """The folder of a run of train."""

    run: Path | None = option(None, "Folder of a run of train.", shown="in the cache", where=True)


@dataclass(frozen=True, kw_only=True)
class TrustOptions(Options, panel="Run"):
    """Whether files that can run code are loaded."""

    trust: bool = option(False, "Load a readout that can run code: any estimator that is not linear.")


RECIPE = ("batch", "accumulate", "learning_rate", "clip", "dropout")
"""The options of a training that change its result, besides the trained groups and the rows."""


@dataclass(frozen=True, kw_only=True)
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
    clip: float = option(1.0, "Largest norm of the gradients; larger ones are scaled down.", positive)
    rows: str = option(
        "auto", "Training rows: fresh (generated), augmented, stored, or auto: the first of these that the task has."
    )
    from_cache: bool = option(False, "Read the layers below the lowest trained one from the cache.")
    recompute: bool = option(False, "Recompute each block in the backward pass, which saves memory.")
    on_divergence: str = option(
        "stop", "If the loss diverges: stop with an error, or report the best checkpoint.", one_of("stop", "report")
    )
    bound: float = option(1e4, "A loss above this value counts as diverged.", positive)
    sweep: Mapping[str, Any] | None = option(
        None,
        "Train with several values of learning_rate, dropout, clip, batch or accumulate, such as "
        "learning_rate=1e-4,1e-3; repeat for a grid. Validation data choose; test is scored once.",
        of.number_lists(*RECIPE),
    )
    track: str | None = option(None, "Also log to tensorboard, wandb or mlflow.", where=True)


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(StepOptions, ComputeOptions, panel="Training"):
    """How a language model is pretrained."""

    vocabulary: int = option(
        256, "Number of tokens: 256 for the bytes of a text, more to train a tokenizer; any number for a stream."
    )
    batch_tokens: int = option(4096, "Tokens per optimizer step.")
    context: int | None = option(None, "Context length in tokens.", at_least(2), shown="1024, or the model's maximum")
    short: int | None = option(None, "Context length in the first steps.", at_least(1), shown="a quarter of context")
    short_share: float = option(
        0.6, "Share of the steps with the short context, which is doubled afterwards.", of.within(0, 1)
    )
    warm_up: int = option(200, "Steps of linear warm-up; a cosine schedule follows.", at_least(0))
    weight_decay: float = option(0.1, "Weight decay of AdamW on matrices.", of.within(0, 1e9))


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(RunOptions, OutOptions, panel="Attention"):
    """Which attention maps are drawn."""

    layer: int = option(1, "Number of the block, from 1.")
    average: int = option(64, "Rows to average over; the first is also drawn alone.", at_least(1))
    split: str = option("test", "Split from which the rows are taken.")
    top: float | None = option(None, "Attention at the top of the colour scale, to compare pictures.", positive)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(OutOptions, panel="Tables"):
    """Which part of a table is reproduced, and at what size."""

    scale: str = option(
        "smoke",
        "smoke: minutes; hour: an hour or two; day: 20 core-hours; full: all rows; paper: for a GPU.",
        one_of("smoke", "hour", "day", "full", "paper"),
    )
    only: str | Sequence[str] | None = option(None, "Only these tasks, rows or columns, comma-separated.")
    seeds: int | None = option(None, "Number of seeds, from 0.", at_least(1), shown="3 for day, full and paper, else 1")
    override: Mapping[str, Any] | None = option(
        None, "Replace a value of the scale, such as backbone=bert-base-uncased."
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options, panel="Model"):
    """A foreign file whose weights become a backbone."""

    foreign: Path | None = option(
        None,
        "Convert an ONNX, GGUF or pytorch_model.bin file to a model folder, --out FOLDER.",
        flag="import",
        where=True,
    )


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(OutOptions, panel="Output"):
    """Which sequences are explained."""

    first: int = option(4, "Number of sequences to explain, from the first of the file.", at_least(1))
