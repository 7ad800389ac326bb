"""Share the blocks of an entry among processes: what a worker is sent, and how it makes sure to compute the same.

A worker of a cluster passes three checks: `Crew` in workers.py compares the checksums of its packages and the versions
of its libraries before it is sent anything; `open_share` compares the cache key, then the features of two rows.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from reservoir_cache import Entry

from reservoir import devices
from reservoir.errors import InputError
from reservoir.features import launch
from reservoir.options import ClusterOptions, ExtractOptions
from reservoir_pipelines.extraction.entries import compute_blocks
from reservoir_pipelines.extraction.extractor import Extractor, load_extractor
from reservoir_pipelines.output import silenced
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.workers import SAME_MACHINES, UnfitWorker, map_pieces, process_number, this_worker

MAX_TASKS = 512  # most pieces of work that are sent to workers
PROBE_ROWS = 2  # rows that each worker of a cluster computes first
PROBE_VALUES = 4096  # most values of a column that are sent to each worker, evenly spaced
# Largest difference of a value, in standard deviations of its column without its largest and smallest hundredth.
# The same program in bfloat16 on AVX-512 and on AVX2 differed by up to 0.032 (in float32 by 0.011). Shares, which
# count values between limits, differed by more in 1.6% of the values of rows of 8 tokens.
PROBE_TOLERANCE = 0.1
PROBE_OUTLIERS = 0.05  # largest share of the values that may differ by more than that

# The extractors of this process by cache key and names of columns: a worker loads the model once for all pieces of a
# command, and the process that started the command does not load it twice. The columns decide which masks of tokens
# are made and what is compiled, and the key does not contain them: the next command may add columns to the same entry.
_extractors: dict[tuple[str, tuple[str, ...]], Extractor] = {}
# One forward pass at a time, because it changes the blocks of the backbone.
_forward_lock = threading.Lock()


@dataclass(frozen=True)
class Share:
    """The arguments with which a worker repeats a call of extract; the worker's cache key must equal ``key``."""

    options: ExtractOptions
    prepared: Path  # folder of the prepared data
    key: str  # cache key of the entry
    threads: int | None = None  # of each of several processes on one machine; None for workers of a cluster
    probe: Mapping[str, np.ndarray] = field(default_factory=dict)  # see `probe`; empty on one machine
    # State of the prepared data when the caller verified it (see `Prepared.state`); if empty, it is not compared.
    state: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ComputedPiece:
    """What a worker reports of a piece of work."""

    rows: int  # rows that it has computed
    text_counts: Counter[str]  # what `TextReader.counts` counted meanwhile


def share_blocks(
    extractor: Extractor,
    entry: Entry,
    blocks: Sequence[tuple[str, int]],
    options: ExtractOptions,
    cluster: ClusterOptions,
    advance: Callable[[int], None],
) -> int:
    """Let other processes compute some blocks of an entry, given by split and number; return how many rows they have.

    ``advance`` gets the rows of each piece of work that has ended.
    """
    text_counts = extractor.text_counts  # before the probe, which reads texts that are read again
    # Full paths, for processes that were started in another folder.
    settings, root = extractor.model.settings, extractor.root.absolute()
    share = Share(
        options=replace(options, backbone=settings.backbone, init=settings.init, cache=root),
        prepared=extractor.prepared.path.absolute(),
        key=entry.key,
        # Processes on this machine divide its threads; the workers of a cluster have their own machines.
        threads=max(1, torch.get_num_threads() // cluster.workers) if cluster.workers else None,
        probe=probe(extractor) if cluster.scheduler else {},
        state=extractor.prepared.state,
    )
    # Several blocks become one piece of work if there are more blocks than a scheduler takes pieces.
    piece_blocks = math.ceil(len(blocks) / MAX_TASKS)
    pieces = [blocks[start : start + piece_blocks] for start in range(0, len(blocks), piece_blocks)]
    arguments = [(share, entry.path.resolve(), extractor.columns, piece) for piece in pieces]
    identity = entry.key, extractor.columns
    _extractors[identity] = extractor  # for the pieces that this process computes
    try:
        computed_pieces: list[ComputedPiece] = map_pieces(
            work,
            arguments,
            workers=cluster.workers,
            scheduler=cluster.scheduler,
            on_result=lambda piece: advance(piece.rows),
        )
        # The counts of this process, of the texts of its own pieces and of the probe, are replaced.
        for piece in computed_pieces:
            text_counts.update(piece.text_counts)
        extractor.set_text_counts(text_counts)
        return sum(piece.rows for piece in computed_pieces)
    finally:
        del _extractors[identity]


def work(
    share: Share, path: Path, columns: tuple[str, ...], blocks: Sequence[tuple[str, int]]
) -> ComputedPiece:
    """Compute and publish some blocks of the entry at ``path``, one piece of work, and report it."""
    with (
        _forward_lock,
        silenced(),
    ):  # the process that started the command prints the progress of all workers
        extractor = _extractors.get((share.key, columns)) or open_share(share)
        entry = Entry.open(path)
        extractor.make_ready(entry)
        read, compute = extractor.steps(entry)
        counts_before = extractor.text_counts
        rows = compute_blocks(entry, blocks, columns, read, compute)
        return ComputedPiece(rows, text_counts=extractor.text_counts - counts_before)


def open_share(share: Share) -> Extractor:
    """Load the model in this process, keep it for further pieces of work, and return its extractor.

    Raise `UnfitWorker` if the data, the cache key or the features of the first rows differ from the caller's.
    """
    options = share.options
    if share.threads:  # this is one of several processes on a machine
        torch.set_num_threads(share.threads)
        options = replace(options, device=devices.of_worker(options.device, process_number()))
    assert share.options.cache  # `share_blocks` sets it
    try:
        prepared = Prepared.open(share.prepared, verify=False)  # the caller has verified it
        if share.state and prepared.state != share.state:
            raise InputError(
                f"the prepared data in {share.prepared} has changed since the command began",
                "run the command again",
            )
        extractor = load_extractor(options, prepared, share.options.cache)
    except InputError as error:  # the caller has read the same files
        raise UnfitWorker(f"{this_worker()}: {error}") from None
    problem = ""
    if extractor.spec.key != share.key:
        problem = f"cache key is {extractor.spec.key} there, but {share.key} where the command was started"
    elif share.probe and (column := different_column(share.probe, probe(extractor))):
        problem = f"its features of {column} differ from those where the command was started"
    if problem:
        raise UnfitWorker(f"{this_worker()}: {problem}; {SAME_MACHINES}")
    _extractors.clear()  # the model of an earlier command would take memory
    _extractors[share.key, extractor.columns] = extractor
    return extractor


def probe(extractor: Extractor) -> dict[str, np.ndarray]:
    """Return up to `PROBE_VALUES` values of each column over the first `PROBE_ROWS` rows, (values,) by column."""
    first_split, count = next(iter(extractor.spec.rows.items()))
    rows = min(PROBE_ROWS, count)
    with devices.exact_products():
        loaded = extractor.load(first_split, 0, rows, batch_rows=rows)
        features = launch(extractor.model, loaded, extractor.columns)()
    samples = {}
    for column, array in features.items():
        positions = np.linspace(0, array.size - 1, min(array.size, PROBE_VALUES)).astype(np.int64)
        samples[column] = array.reshape(-1)[positions]
    return samples


def different_column(expected: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> str:
    """Return the name of the first column whose values differ from the expected ones by more than rounding.

    The name is empty if there is no such column. Both mappings are those of `probe`.
    """
    for column, reference in expected.items():
        # Single channels of some transformers are a thousand times larger than the others, so the largest and smallest
        # hundredth of the values are clipped.
        low, high = np.quantile(reference, [0.01, 0.99])
        scale = np.clip(reference, low, high).std()
        tolerance = PROBE_TOLERANCE * max(scale, 1e-6)  # a constant column has no scale
        differs = np.abs(values[column] - reference) > tolerance
        if differs.mean() > PROBE_OUTLIERS:
            return column
    return ""
