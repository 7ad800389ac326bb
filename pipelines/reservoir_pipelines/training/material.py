"""What a training reads: rows from the prepared data, fresh, augmented, or hidden states from the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from reservoir import InputError
from reservoir.reservoir import LoadedModel
from reservoir.tasks.fresh import FreshRows, augment_sequences, is_augmented, is_generated
from reservoir.tasks.source import Source
from reservoir.tasks.task import Split, Tokens
from reservoir.tasks.windows import window_counts
from reservoir.training.rows import Convert, Rows, StoredRows, hidden_rows, random_key, raw_rows
from reservoir.training.target_scale import TargetScale
from reservoir.training.upper import UpperPart
from reservoir_pipelines.output import size_text
from reservoir_pipelines.preparation.prepare import Prepared

if TYPE_CHECKING:
    from reservoir_cache import FeatureStore, SplitFeatures

KINDS = ("auto", "fresh", "augmented", "stored")


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a training reads, and the part of the model that reads it.

    Parameters
    ----------
    forward : Module
        ``forward(x, lengths) -> logits``: the whole model, or its upper part over cached hidden states.
    rows : callable
        The endless sequence of training rows.
    convert : callable
        From rows to a batch on the device.
    valid, test : Split
        Rows that are scored.
    """

    forward: nn.Module
    rows: Rows
    convert: Convert
    valid: Split
    test: Split


def choose_kind(kind: str, source: Source, name: str, *, from_cache: bool) -> str:
    """Return which rows a step trains on: ``fresh`` ones that no other step has, ``augmented`` or ``stored`` ones.

    ``auto`` takes fresh rows of tasks that are generated, augments cifar10's images, and stores all others.

    Raises
    ------
    InputError
        If the task has no such rows, or they cannot come from the cache.
    """
    if kind not in KINDS:
        raise InputError(f"--rows {kind}: choose among {', '.join(KINDS)}")
    if from_cache:
        if kind in ("fresh", "augmented"):
            raise InputError(f"--rows {kind} --from-cache: the cache holds stored rows only; leave out one of the two")
        return "stored"
    can = {"fresh": is_generated(source), "augmented": is_augmented(source), "stored": True}
    if kind == "auto":
        return next(name for name, possible in can.items() if possible)
    if not can[kind]:
        raise InputError(f"--rows {kind}: task {name!r} has no such rows; use --rows stored")
    return kind


def raw_material(
    model: LoadedModel,
    prepared: Prepared,
    drawn: Mapping[str, np.ndarray],
    source: Source,
    kind: str,
    seed: int,
    targets: TargetScale | None,
) -> Material:
    """Return the material of a training on sequences.

    Parameters
    ----------
    model : LoadedModel
        The whole model.
    prepared : Prepared
    drawn : mapping of str to ndarray of int
        Row numbers that are used of each split.
    source : Source
        Where fresh rows come from.
    kind : {"fresh", "augmented", "stored"}
    seed : int
        Chooses fresh rows, views and the order of stored ones.
    targets : TargetScale or None
        Of a regression.
    """

    def augment(x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
        return augment_sequences(source, x, drawn["train"][rows], random_key(seed, "view", epoch))

    def read(split: str) -> Split:
        found = read_split(prepared, split, drawn[split])
        return targets.apply(found) if targets else found

    if kind == "fresh":
        rows: Rows = FreshRows(source, seed)
    else:
        rows = StoredRows(read("train"), seed, augment if kind == "augmented" else None)
    return Material(
        forward=model.fpt,
        rows=rows,
        convert=raw_rows(model, prepared.scaling),
        valid=read("valid"),
        test=read("test"),
    )


def read_split(prepared: Prepared, name: str, rows: np.ndarray) -> Split:
    """Return some rows of a prepared split, in memory."""
    split = prepared.split(name)
    if len(rows) == len(split):
        return split.read(0, len(split))
    whole = split.read(0, int(rows[-1]) + 1)
    return Split(x=whole.x[rows], y=whole.y[rows], lengths=whole.lengths[rows])


def cached_material(
    model: LoadedModel, store: FeatureStore, layer: str, seed: int, targets: TargetScale | None
) -> Material:
    """Return the material of a training on cached hidden states, which are read into memory.

    Parameters
    ----------
    model : LoadedModel
        The whole model; its blocks up to the layer are passed by from now on.
    store : FeatureStore
        Where the layer's hidden states are.
    layer : str
        The layer up to which nothing is trained.
    seed : int
        Chooses the order of the rows.
    targets : TargetScale or None
        Of a regression.
    """
    upper = UpperPart(model.fpt, layer)
    column = f"{layer}/{upper.pooling}"
    read = {split: _hidden(store[split], column, model) for split in ("train", "valid", "test")}
    if targets:
        read = {name: targets.apply(split) for name, split in read.items()}
    return Material(
        forward=upper,
        rows=StoredRows(read["train"], seed),
        convert=hidden_rows(model.device, cut=upper.pooling == "all"),
        valid=read["valid"],
        test=read["test"],
    )


def _hidden(split: SplitFeatures, column: str, model: LoadedModel) -> Split:
    tokens, width = split.shape(column)
    size = 4 * split.rows * tokens * width
    free = _free_memory()
    if free is not None and size > 0.9 * free:
        raise InputError(
            f"--from-cache: {split.rows:,} rows of {column} take {size_text(size)} of memory, and {size_text(free)} "
            "are free; use --limit, or train without the cache"
        )
    lengths, settings = split.lengths, model.settings
    if not isinstance(model.fpt.task.form, Tokens) and (settings.patch, settings.stride) != (1, 1):
        lengths = window_counts(lengths, settings.patch, settings.stride).astype(np.int32)
    y = split.y if split.y.dtype.kind == "f" else split.y.astype(np.int64)
    return Split(x=split[column].reshape(split.rows, tokens, width), y=y, lengths=lengths)


def _free_memory() -> int | None:
    """Return the bytes of memory that are free, where the system says so."""
    try:
        with Path("/proc/meminfo").open() as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
