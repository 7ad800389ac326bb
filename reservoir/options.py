"""Every option once: its name, type, default, one line of help and check.

The parameters of a Python call, the flags of the command line, the keys of a configuration file, what an entry or a run
keeps of how it was asked for, and the parameters of the estimators are all made from these fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir import option_fields as of
from reservoir.data_options import CorpusOptions, DownloadOptions, OwnDataOptions, RowOptions, TaskOptions  # noqa: F401
from reservoir.option_fields import Options, at_least, dilation_list, one_of, option, positive, seed_number, share, span

SERIES = "your own series: {}, else {}"
OWN = "your own series and symbols: {}, else {}"
"""How the help shows a default that goes by the data."""


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(Options):
    """Which backbone, and the seed of what is drawn."""

    backbone: str | None = option(None, "gpt2, bert-base-uncased, lstm, a model folder, a hub name ...", shown="mini")
    seed: int = option(0, "Seed of drawn weights, of the input layer, and of the order of rows.", seed_number)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ShapeOptions):
    """A backbone with its weights."""

    init: str | None = option(
        None,
        "pretrained, random (GPT-2's: random-scaled; with --protocol paper random-flat), statistics, or a folder",
        shown="pretrained, where anybody publishes such weights",
    )
    depth: int | None = option(None, "Keep only the first so many blocks, and the final norm.")

    @property
    def title(self) -> str:
        """Short name for folders and tables, such as ``gpt2-random`` or ``gpt2-depth6-random``."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(self.backbone or "").name).strip("-.")
        depth = f"-depth{self.depth}" if self.depth else ""
        return f"{name or 'backbone'}{depth}-{self.init}"


@dataclass(frozen=True, kw_only=True)
class ReservoirOptions(ModelOptions):
    """A frozen map: a backbone with its weights behind a fixed input layer."""

    input: str | None = option(
        None,
        "native: the model's own tokenizer or processor and embeddings; or drawn: gaussian for symbols, of vectors "
        "orthogonal or kernels, each of one dilation.",
        one_of("native", "gaussian", "orthogonal", "kernels"),
        shown="native where the model reads such data; " + OWN.format("kernels", "drawn"),
    )
    long: str = option(
        "cut",
        "Texts of more tokens than a model reads by itself: cut, or windows, whose features are averaged.",
        one_of("cut", "windows"),
    )
    gain: float | None = option(None, "Scale of the input layer.", positive, shown="1.41; of kernels 6")
    patch: int | None = option(None, "Values per token.", at_least(1), shown="your own series: 9, symbols: 5, else 1")
    stride: int | None = option(
        None, "Values from one window to the next.", at_least(1), shown=OWN.format("up to 1024 windows", "the patch")
    )
    dilations: str | None = option(
        None,
        "Steps between a window's values, such as 1,2,4, side by side; auto: 1, 2, 4 ... up to the length.",
        dilation_list,
        shown=SERIES.format("auto", 1),
    )
    pad: str | None = option(
        None,
        "valid: windows inside the sequence; same: one around every stride-th value, zeros outside.",
        one_of("valid", "same"),
        shown=OWN.format("same", "valid"),
    )
    normalise: str | None = option(
        None,
        "Scale of floats: of the channel in all rows, of each series, both side by side, or these and differences.",
        one_of("channel", "series", "both", "differences"),
        shown=SERIES.format("differences", "channel"),
    )


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options):
    """Where everything is kept."""

    cache: Path | None = option(None, "Root of the cache.", shown="RESERVOIR_CACHE, else the user's cache", where=True)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where the arithmetic runs."""

    device: str = option("auto", "cpu, cuda, or auto: a GPU where there is one.", where=True)


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(CacheOptions, DeviceOptions):
    """Where everything is kept, and where the arithmetic runs."""


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Options):
    """In which precision a model runs."""

    compute: str = option("auto", "float32, bfloat16; auto: as is native.", one_of("auto", "float32", "bfloat16"))


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(ComputeOptions):
    """In which precision a model runs, and its features are kept."""

    store: str | None = option(
        None,
        "float16, bfloat16 or float32 on disk.",
        one_of("float16", "bfloat16", "float32"),
        shown=OWN.format("float32", "float16"),
    )


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(PrecisionOptions):
    """What is kept of the hidden states."""

    layers: str | Sequence[str] | None = option(
        None, "embed, block01 ..., final, comma-separated, or all.", shown=OWN.format("embed,block01", "all")
    )
    pool: str | Sequence[str] | None = option(
        None,
        "last, mean, std, min, max, first, cls, segmentsK, quantilesK, sharesK, tokens, all; comma-separated.",
        shown="named tasks: last,mean; your own series: quantiles9,shares13,max,min,segments8; symbols: "
        "shares13,max,min,segments8,tokens; texts in a model's own tokens: cls or last, and mean",
    )
    batch_rows: int | None = option(None, "Rows of the greatest length per batch of a new entry.", at_least(1))


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(PlaceOptions, FeatureOptions, RowOptions, ReservoirOptions):
    """Which rows go through which reservoir, what is kept of them, and where."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """Which other processes share the work."""

    workers: int = option(0, "Local processes; 0 for none.", at_least(0), where=True)
    scheduler: str | None = option(None, "A dask.distributed scheduler, tcp://host:port.", where=True)


@dataclass(frozen=True, kw_only=True)
class OutOptions(Options):
    """Where results are written."""

    out: Path | None = option(None, "Folder or file of the results.", shown="in the cache", where=True)


@dataclass(frozen=True, kw_only=True)
class FitOptions(OutOptions, ClusterOptions):
    """Which readouts are tried, and how one is chosen."""

    columns: str | Sequence[str] = option(
        "all", "Columns to try, comma-separated; a+b for two side by side; all, alone and by layer; best:4 greedily."
    )
    readout: str = option("ridge", "ridge, logistic, or an import path such as sklearn.svm.LinearSVC:C=0.1,1")
    alphas: str | None = option(None, "Penalties LO:HI:N on standardised features.")
    select: str = option("auto", "valid, fitted to train; cvK: K folds of train and valid; auto: by rows, to both.")
    one_standard_error: bool = option(False, "Take the largest penalty within one standard error of the best.")
    class_weight: str | None = option(None, "balanced: all classes count the same.", one_of("balanced"))
    curve: str | None = option(None, "Training rows of a learning curve, such as 100,1000.")


@dataclass(frozen=True, kw_only=True)
class TuneOptions(Options):
    """How long reservoirs are searched for, and how many may be read together."""

    budget: str = option("5m", "Time in all, such as 90s, 10m or 1h.", span)
    trials: int | None = option(None, "At most so many reservoirs.", at_least(1), shown="as the time allows")
    join: int = option(4, "At most so many reservoirs side by side.", at_least(1))


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """The steps of a training, end to end or of a language model."""

    steps: int | None = option(None, "Steps in all.", at_least(1), shown="5000; of pretrain 2000")
    learning_rate: float | None = option(
        None, "Of Adam.", positive, shown="train: 1e-3, LSTMs 3e-4, homology 1e-4; pretrain: 2e-3, bit-memory 5e-4"
    )
    eval_every: int = option(500, "Steps between validations, each with a checkpoint.", at_least(1))
    compiled: bool = option(False, "Compile the model, on a GPU; pretrain's on a CPU too.", flag="compile")
    resume: bool = option(False, "Go on from the last checkpoint.")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Which run of train."""

    run: Path | None = option(None, "Folder of a run of train.", shown="in the cache", where=True)


@dataclass(frozen=True, kw_only=True)
class TrustOptions(Options):
    """Whether files that can run code are loaded."""

    trust: bool = option(False, "Load a readout that can run code: one whose estimator is not linear.")


RECIPE = ("batch", "accumulate", "learning_rate", "clip", "dropout")
"""The options of a training that change its result, besides what is trained and on which rows."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StepOptions, PrecisionOptions, RunOptions):
    """What is trained end to end, and how."""

    train: str | Sequence[str] | None = option(
        None,
        "Groups that are trained, comma-separated: input, output, positions, layernorm, attention, feedforward, "
        "recurrent, last-attention, or all",
        shown="input,layernorm,positions,output",
    )
    batch: int = option(8, "Rows of one forward pass in one process.", at_least(1))
    accumulate: int = option(1, "Forward passes per step.", at_least(1))
    dropout: float = option(0.1, "Share of values dropped above the lowest trained one; 0: none.", share)
    clip: float = option(1.0, "Most that the norm of the gradients may be.", positive)
    rows: str = option("auto", "fresh, augmented or stored rows; auto: as the task allows.")
    from_cache: bool = option(False, "Take what lies below the lowest trained layer from the cache.")
    recompute: bool = option(False, "Compute each block again in the backward pass: less memory.")
    on_divergence: str = option("stop", "stop, or report the best checkpoint before.", one_of("stop", "report"))
    bound: float = option(1e4, "A loss above it counts as diverged.", positive)
    sweep: Mapping[str, Any] | None = option(
        None,
        "Values of learning_rate, dropout, clip, batch or accumulate to train with, such as learning_rate=1e-4,1e-3; "
        "repeat for a grid. Validation chooses; test is scored once.",
        of.number_lists(*RECIPE),
    )
    track: str | None = option(None, "tensorboard, wandb or mlflow, besides metrics.jsonl.", where=True)


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(StepOptions, ComputeOptions):
    """The recipe of a language model."""

    vocabulary: int = option(256, "Of text 256 for bytes, more for a tokenizer; of a stream: any.")
    batch_tokens: int = option(4096, "Tokens of a step.")
    context: int | None = option(None, "Tokens read at a time.", at_least(2), shown="1024, or the model's")
    short: int | None = option(None, "... in the first steps.", at_least(1), shown="a quarter of it")
    short_share: float = option(0.6, "Share of the steps that read short windows; then they double.", of.within(0, 1))
    warm_up: int = option(200, "Steps up to the highest learning rate; then it falls along a cosine.", at_least(0))
    weight_decay: float = option(0.1, "Of AdamW, for matrices.", of.within(0, 1e9))


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(RunOptions, OutOptions):
    """Which attention maps are drawn."""

    layer: int = option(1, "The block whose attention is drawn, from 1.")
    average: int = option(64, "Rows of the mean; the first is drawn alone too.", at_least(1))
    split: str = option("test", "Split of the rows.")
    top: float | None = option(None, "Attention at the top of the colours, for pictures to compare.", positive)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(OutOptions):
    """Which part of a table is reproduced, and at what size."""

    scale: str = option(
        "smoke",
        "smoke: minutes; hour: an hour or two; day: 20 core-hours; full: all rows; paper: for a GPU.",
        one_of("smoke", "hour", "day", "full", "paper"),
    )
    only: str | Sequence[str] | None = option(None, "Tasks, rows or columns, comma-separated; all of them if left out.")
    seeds: int | None = option(None, "So many seeds from 0.", at_least(1), shown="3 for day, full and paper, else 1")
    override: Mapping[str, Any] | None = option(
        None, "In place of the scale's value, such as backbone=bert-base-uncased."
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Which weights are brought into the form of a backbone."""

    foreign: Path | None = option(
        None, "Write an ONNX, GGUF or pytorch_model.bin file as --out FOLDER for --backbone.", flag="import", where=True
    )


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(OutOptions):
    """Which sequences are explained."""

    first: int = option(4, "So many sequences of the file, from its first.", at_least(1))
