"""What the steps of a training compute on: rows of each split, their conversion to batches, and the forward pass."""

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
from reservoir_cache import FeatureStore, untracked
from torch import Tensor

from reservoir import devices
from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, ReservoirOptions
from reservoir.plan.precision import BATCH_TOKENS
from reservoir.random import random_key
from reservoir.tasks.source import fresh_rows
from reservoir.tasks.task import Split
from reservoir.training.rows import (
    EndlessRows,
    StoredRows,
    TrainingBatch,
    TrainingRows,
    raw_batch,
    to_batch,
)
from reservoir.training.steps import FPTSteps, capture_on_gpu
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.output import notify
from reservoir_pipelines.training.job import Job


def inputs_of(job: Job) -> "Inputs":
    """Return the inputs of a training, from the cache or from the prepared rows."""
    return CachedInputs(job) if job.options.from_cache else PreparedInputs(job)


def check_flags(job: Job) -> None:
    """Raise `InputError` for flags that do not fit the task, the model or its device."""
    options = job.options
    if options.compiled and not devices.on_gpu(job.model.device):
        raise InputError("--compile: a compiled model is faster on GPUs only", "remove the flag")
    # Cached hidden states stay the same only if nothing below the output layer changes, or drops values.
    trains_other_groups = set(options.train or ()) != {"output"}
    drops_in_frozen_layers = bool(options.dropout) and job.variant.drops_in_frozen_layers
    if options.from_cache and (trains_other_groups or drops_in_frozen_layers):
        raise InputError(
            "--from-cache: cached states fit only the output layer, and no dropout in frozen layers",
            "pass --train output, and --dropout 0 if frozen layers have dropout, or remove the flag",
        )
    if options.patience and job.keeps_last:
        raise InputError(
            f"--patience: the test rows of {job.task} are its validation rows, which must not decide when to stop",
            "remove the flag",
        )


class Inputs(ABC):
    """The rows of each split, their conversion to batches on the host, and the forward pass."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def split(self, name: str) -> Split:
        """Return the rows of a split; targets of a regression are standardised."""

    @abstractmethod
    def convert(self, rows: Split) -> TrainingBatch:
        """Return rows as a batch, on the host."""

    @abstractmethod
    def forward(self, x: Tensor, lengths: Tensor, is_full: bool | None) -> Tensor:
        """Return the logits of a batch (batch, tokens, ...) on the device.

        ``lengths`` (batch,) are the real tokens of each row. ``is_full`` says whether all tokens are real, None if that
        is not known.
        """

    def own_rows(self, stored: Split) -> EndlessRows | None:
        """Return the task's own way to draw the rows of a step from the stored ones, None if it has none."""
        return None

    def steps(self) -> FPTSteps:
        """Return the steps of the training; with ``--compile``, compile the blocks of the model first."""
        options = self.job.options
        model = self.job.model
        rows = TrainingRows(
            train=self._training_rows(),
            valid=self.split("valid"),
            convert=self.convert,
            # As many rows of the greatest length are scored at a time as fit into a batch of an extraction.
            scored=max(1, BATCH_TOKENS[devices.kind(model.device)] // model.fpt.task.max_tokens),
        )
        if options.compiled:
            devices.compile_blocks(model.fpt.backbone.blocks)
        return FPTSteps(
            model.fpt,
            self.forward,
            rows,
            options,
            self.job.learning_rate,
            model.settings.seed,
            self.job.ranks,
            keeps_last=self.job.keeps_last,
            capture=capture_on_gpu(model, options, self.job.ranks, notify),
        )

    def _training_rows(self) -> EndlessRows:
        """Return the rows that training reads, as `job.row_kind` says: generated, augmented or stored."""
        job = self.job
        seed = job.model.settings.seed
        if job.row_kind == "fresh":
            return fresh_rows(job.generator, seed)
        stored = self.split("train")
        # A task that draws its own rows decides which of them share a batch, and how far they are padded, as the loader
        # of the publication that it follows does. No task whose rows are augmented draws its own.
        own_rows = self.own_rows(stored)
        if own_rows:
            return own_rows

        def augment(x: np.ndarray, positions: np.ndarray, epoch: int) -> np.ndarray:
            """Return views of the rows ``x``, which have these positions among the training rows, in an epoch."""
            # A view depends on the number of its row in the whole task, not on its position among the rows drawn
            # for this training (`--limit`).
            row_numbers = job.rows["train"][positions]
            key = random_key(seed, "view", epoch, size=8)
            return job.generator.augmented(x, row_numbers, key)

        return StoredRows(stored, seed, augment if job.row_kind == "augmented" else None)


class PreparedInputs(Inputs):
    """The prepared sequences, which go through the whole model."""

    def split(self, name: str) -> Split:
        """Return the sequences of a split; targets of a regression are standardised."""
        return self.job.standardised(self.job.prepared.split(name).take(self.job.rows[name]))

    def convert(self, rows: Split) -> TrainingBatch:
        """Return sequences as a batch for the input layer."""
        return raw_batch(self.job.model, self.job.prepared.scaling, rows)

    def forward(self, x: Tensor, lengths: Tensor, is_full: bool | None) -> Tensor:
        """Return the logits of the whole model."""
        return self.job.model.fpt(x, lengths, is_full)

    def own_rows(self, stored: Split) -> EndlessRows | None:
        """Return the task's own way to draw the rows of a step, which needs their symbols."""
        return self.job.generator.training_rows(
            stored, self.job.model.settings.seed, self.job.options.batch
        )


class CachedInputs(Inputs):
    """The inputs of the output layer, from an entry of the cache, which is extracted if it does not exist."""

    @cached_property
    def _store(self) -> FeatureStore:
        """The last hidden states of all sequences, cached with the model and the precision of the training."""
        job = self.job
        extract_options = ExtractOptions(
            **vars(as_group(job.model.settings, ReservoirOptions)),
            **vars(job.source),
            layers="final",
            pool="last",
            store=job.options.store or "float16",
            cache=job.place.cache,
            device=str(job.model.device),
            compute=job.model.compute,
        )
        # The first process extracts what the cache lacks, and the others then find it there. The entry does not become
        # the last one of its task, which other commands read by default.
        with job.ranks.first_alone(), untracked():
            return extract(job.task, extract_options).store

    def split(self, name: str) -> Split:
        """Return the hidden states of a split; targets of a regression are standardised."""
        cached = self._store[name]
        # PyTorch takes class numbers as int64 only; targets of a regression stay floating-point numbers.
        is_regression = cached.labels.dtype.kind == "f"
        y = cached.labels if is_regression else cached.labels.astype(np.int64)
        return self.job.standardised(Split(x=cached.read("final/last"), y=y, lengths=cached.lengths))

    def convert(self, rows: Split) -> TrainingBatch:
        """Return hidden states as a batch."""
        return to_batch(rows, self.job.model.device)

    def forward(self, x: Tensor, lengths: Tensor, is_full: bool | None) -> Tensor:
        """Return the logits of the output layer."""
        return self.job.model.fpt.logits(x)
