"""What the steps of a training compute on: rows of each split, their conversion to batches, and the forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from reservoir import devices
from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, ReservoirOptions
from reservoir.plan import BATCH_TOKENS
from reservoir.random import random_key
from reservoir.tasks.source import fresh_rows
from reservoir.tasks.task import Split
from reservoir.training.groups import trained_layer
from reservoir.training.rows import Rows, StoredRows, TrainingBatch, TrainingRows, raw_rows, to_batch
from reservoir.training.steps import FPTSteps
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.training.job import Job


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What the steps compute on: the rows of a split by its name, their conversion, and the forward pass.

    ``forward`` maps a converted batch (batch, tokens, ...) and its lengths to logits.
    """

    split: Callable[[str], Split]
    convert: Callable[[Split], TrainingBatch]
    forward: Callable[[Tensor, Tensor], Tensor]


def make_steps(job: Job) -> FPTSteps:
    """Return the steps of a training; flags that do not fit the model or its device raise `InputError`."""
    _check_flags(job)
    options = job.options
    model = job.model
    inputs = _cached_inputs(job) if options.from_cache else _raw_inputs(job)
    rows = TrainingRows(
        train=_training_rows(job, inputs),
        valid=inputs.split("valid"),
        test=inputs.split("test"),
        convert=inputs.convert,
        scored=max(1, BATCH_TOKENS[devices.kind(model.device)] // model.fpt.task.max_tokens),
    )
    if options.compiled:
        devices.compile_blocks(model.fpt.backbone.blocks)
    return FPTSteps(
        model.fpt,
        inputs.forward,
        rows,
        options,
        job.learning_rate,
        model.settings.seed,
        job.ranks,
        keeps_last=job.keeps_last,
    )


def _check_flags(job: Job) -> None:
    """Refuse flags that do not fit the task, the model or its device."""
    options = job.options
    if options.compiled and not devices.on_gpu(job.model.device):
        raise InputError("--compile: a compiled model is faster on GPUs only", "remove the flag")
    trains_below = trained_layer(job.model.fpt) != "final"
    drops_below = bool(options.dropout) and job.variant.drops_in_frozen_layers
    if options.from_cache and (trains_below or drops_below):
        raise InputError(
            "--from-cache: cached states fit only the output layer, and no dropout in frozen layers",
            "pass --train output, and --dropout 0 if frozen layers have dropout, or remove the flag",
        )
    if options.patience and job.keeps_last:
        raise InputError(
            f"--patience: the test rows of {job.task} are its validation rows, which must not decide when to stop",
            "remove the flag",
        )


def _raw_inputs(job: Job) -> _Inputs:
    """Return the prepared sequences, which go through the whole model."""

    def split(name: str) -> Split:
        return job.standardised(job.prepared.split(name).take(job.rows[name]))

    return _Inputs(split=split, convert=raw_rows(job.model, job.prepared.scaling), forward=job.model.fpt)


def _cached_inputs(job: Job) -> _Inputs:
    """Return the inputs of the output layer, from an entry of the cache; extract them if it has none."""
    model = job.model
    extract_options = ExtractOptions(
        **vars(as_group(model.settings, ReservoirOptions)),
        **vars(job.source),
        layers="final",
        pool="last",
        store=job.options.store or "float16",
        cache=job.place.cache,
        device=str(model.device),
        compute=model.compute,
    )
    with job.ranks.first_alone():
        store = extract(job.task, extract_options).store

    def split(name: str) -> Split:
        cached = store[name]
        # PyTorch takes class numbers as int64 only; targets of a regression stay floating-point numbers.
        is_regression = cached.labels.dtype.kind == "f"
        y = cached.labels if is_regression else cached.labels.astype(np.int64)
        return job.standardised(Split(x=cached.read("final/last"), y=y, lengths=cached.lengths))

    def output_layer(x: Tensor, _lengths: Tensor) -> Tensor:
        return model.fpt.logits(x)

    return _Inputs(split=split, convert=partial(to_batch, device=model.device), forward=output_layer)


def _training_rows(job: Job, inputs: _Inputs) -> Rows:
    """Return what draws the rows of a step."""
    seed = job.model.settings.seed
    if job.row_kind == "fresh":
        return fresh_rows(job.generator, seed)
    stored = inputs.split("train")
    # The task's own way to draw rows needs their symbols, which cached hidden states do not have.
    if not job.options.from_cache:
        own_rows = job.generator.training_rows(stored, seed, job.options.batch)
        if own_rows:
            return own_rows

    def augment(x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        key = random_key(seed, "view", epoch, size=8)
        return job.generator.augmented(x, job.rows["train"][rows], key)

    return StoredRows(stored, seed, augment if job.row_kind == "augmented" else None)
