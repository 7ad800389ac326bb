"""Training data: stored rows, augmented rows, fresh rows of a generated task, or cached hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir.errors import InputError
from reservoir.plan import BATCH_TOKENS
from reservoir.random import random_key
from reservoir.reservoir import LoadedModel
from reservoir.tasks.fresh import FreshRows
from reservoir.tasks.source import Source
from reservoir.tasks.task import Split
from reservoir.training.groups import UpperPart
from reservoir.training.rows import Rows, StoredRows, TargetScale, TrainingRows, hidden_rows, raw_rows
from reservoir_pipelines.output import size_text
from reservoir_pipelines.preparation.prepared import Prepared

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore, SplitFeatures

ROW_KINDS = ("auto", "fresh", "augmented", "stored")


def choose_kind(kind: str, source: Source, name: str, *, from_cache: bool) -> str:
    """Return the kind of rows of a step: ``fresh`` (generated), ``augmented`` (images) or ``stored``."""
    if kind not in ROW_KINDS:
        raise InputError(f"--rows {kind}: choose among {', '.join(ROW_KINDS)}")
    if from_cache:
        if kind in ("fresh", "augmented"):
            raise InputError(
                f"--rows {kind} --from-cache: the cache holds stored rows only; remove one of the two flags"
            )
        return "stored"
    can = {"fresh": source.endless, "augmented": source.augments, "stored": True}
    if kind == "auto":
        return next(name for name, possible in can.items() if possible)
    if not can[kind]:
        raise InputError(f"--rows {kind}: task {name!r} does not have them; use --rows stored")
    return kind


def sequences(
    model: LoadedModel,
    prepared: Prepared,
    numbers: Mapping[str, np.ndarray],
    source: Source,
    kind: str,
    targets: TargetScale | None,
) -> TrainingRows:
    """Return the rows with some numbers of each split; with kind ``fresh`` the task generates those of ``train``."""
    seed = model.settings.seed

    def augment(x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        return source.augmented(x, numbers["train"][rows], random_key(seed, "view", epoch, size=8))

    def read(split: str) -> Split:
        found = prepared.split(split).take(numbers[split])
        return targets.apply(found) if targets else found

    if kind == "fresh":
        train: Rows = FreshRows(source, seed)
    else:
        train = StoredRows(read("train"), seed, augment if kind == "augmented" else None)
    convert = raw_rows(model, prepared.scaling)
    return TrainingRows(train=train, valid=read("valid"), test=read("test"), convert=convert, scored=_batch_rows(model))


def hidden_states(
    model: LoadedModel, upper: UpperPart, store: FeatureStore, targets: TargetScale | None
) -> TrainingRows:
    """Return the cached hidden states that the trained upper part of a model reads, in memory."""
    column = f"{upper.layer}/{upper.pooling}"
    read = {split: _hidden(store[split], column, model) for split in ("train", "valid", "test")}
    if targets:
        read = {name: targets.apply(split) for name, split in read.items()}
    return TrainingRows(
        train=StoredRows(read["train"], model.settings.seed),
        valid=read["valid"],
        test=read["test"],
        convert=hidden_rows(model.device, cut=upper.pooling == "all"),
        scored=_batch_rows(model),
    )


def _batch_rows(model: LoadedModel) -> int:
    """Return the batch size of validation."""
    kind = "cuda" if model.device.type == "cuda" else "cpu"
    return max(1, BATCH_TOKENS[kind] // model.fpt.task.max_tokens)


def _hidden(split: SplitFeatures, column: str, model: LoadedModel) -> Split:
    tokens, width = split.shape(column)
    size = 4 * split.rows * tokens * width
    free = _free_memory()
    if free is not None and size > 0.9 * free:
        raise InputError(
            f"--from-cache: {split.rows:,} rows of {column} take {size_text(size)} of memory, and {size_text(free)} "
            "are free; use --limit, or train without --from-cache"
        )
    lengths = split.lengths if model.windows.plain else model.windows.counts(split.lengths)
    task = model.fpt.task
    y = split.y if split.y.dtype.kind == "f" else split.y.astype(np.int64)
    y = y.reshape(split.rows, task.readout_tokens, task.outputs)  # the cache drops axes of length 1
    return Split(x=split[column].reshape(split.rows, tokens, width), y=y, lengths=lengths)


def _free_memory() -> int | None:
    """Return the free memory in bytes, or None where the system has no /proc/meminfo."""
    try:
        with Path("/proc/meminfo").open() as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
