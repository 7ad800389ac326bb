"""One extraction: its plan and model, the key of its entry, and the missing blocks, which processes may share."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reservoir_cache import (
    STORES,
    Arrays,
    Encoded,
    Entry,
    Layout,
    ShardWriter,
    Spec,
    ahead,
    check_space,
    repair,
    required_bytes,
    rows_per_block,
    verify,
    write_targets,
)
from torch import nn

from reservoir import devices
from reservoir.backbones import describe_weights
from reservoir.errors import InputError
from reservoir.features import Loaded, forward, launch, load
from reservoir.inputs.native import TextReader
from reservoir.option_fields import as_group
from reservoir.options import ClusterOptions, ExtractOptions, FeatureOptions, RowOptions
from reservoir.plan import Plan, resolve
from reservoir.reservoir import LoadedModel, load_model
from reservoir.tasks.task import Tokens
from reservoir_pipelines.cluster import REMEDY, UnfitWorker
from reservoir_pipelines.extraction.encoding import start_encoding
from reservoir_pipelines.files import versions
from reservoir_pipelines.output import count_text, notify, silenced, size_text
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.weight_files import weight_stamps
from reservoir_pipelines.workers import map_pieces, process_number, this_worker

Load = Callable[[str, int, int], Iterable[Any]]
"""Function of a split and a range of rows that yields them in parts, in a separate thread."""

Compute = Callable[[Any, Sequence[str], Callable[[int], None]], Callable[[], Arrays]]
"""Function that starts to compute columns of a part; calling its result returns their values, encoded or not.

It may call its third argument with the number of rows of each batch, which counts them for the progress.
"""

Advance = Callable[[int, int | None], None]
"""Function that counts rows for the progress, with the number of bytes written so far, or None between blocks."""

PADDING = "right, masked"
MAX_TOKENS = 2**17  # tokens of a block of several parts: a minute of GPT-2 on two cores
MIN_BLOCKS = 8  # blocks of an entry of several parts, so that workers can share them
LOADED_AHEAD = 2  # parts of a block that are loaded before the model needs them
CHECKED_ROWS = 256  # texts that are tokenized at a time before an extraction
POLL = 0.5  # seconds between checks of the blocks that other processes have claimed

MAX_TASKS = 512  # pieces of work that are sent to workers
PROBE_ROWS = 2  # rows that each worker of a cluster computes first
PROBE_VALUES = 4096  # most values of a column that are sent to each worker, evenly spaced
# Largest difference of a value, in standard deviations of its column without its largest and smallest hundredth.
# The same program in bfloat16 on AVX-512 and on AVX2 differed by up to 0.032 (in float32 by 0.011). Shares, which
# count values between limits, differed by more in 1.6% of the values of rows of 8 tokens.
PROBE_TOLERANCE = 0.1
PROBE_OUTLIERS = 0.05  # largest share of the values that may differ by more than that

_runs: dict[str, "Run"] = {}
_one_pass = threading.Lock()  # a forward pass changes the blocks of the backbone


def plan_of(prepared: Prepared, options: ExtractOptions, rows: Mapping[str, int] | None = None) -> Plan:
    """Return the plan of an extraction of prepared data, or of a similar task with ``rows`` in each split."""
    options = replace(options, limit=None) if rows else options
    return resolve(
        prepared.task, options, rows or prepared.rows, int(prepared.split("train").lengths.max())
    )


def start_run(
    options: ExtractOptions,
    prepared: Prepared,
    root: Path,
    splits: Sequence[str] | None = None,
    planned: Mapping[str, int] | None = None,
) -> "Run":
    """Resolve the plan and load the model; ``planned`` is the third argument of `plan_of`."""
    plan = plan_of(prepared, options, planned)
    model = load_model(prepared.task, plan.reservoir, plan.device, plan.compute)
    if model.reader:
        notify(f"{prepared.task.name}: read by {model.reader.description}")
    notify(*filter(None, (plan.input_note, plan.precision_note(model.compute), plan.note)))
    rows = draw_rows(prepared, options.limit)
    for split, index in rows.items():
        model.windows.checked_counts(prepared.split(split).lengths[index])
    spec = make_spec(prepared, rows, model, plan.store)
    # A file holds several blocks of the plan if they are small and quick to compute.
    row_bytes = STORES[plan.store] * sum(tokens * width for tokens, width in plan.shapes.values())
    most = min(MAX_TOKENS // prepared.task.max_tokens, sum((planned or spec.rows).values()) // MIN_BLOCKS)
    block_rows = rows_per_block(row_bytes, plan.block_rows, most)
    layout = Layout(block_rows=block_rows, batch_rows=plan.batch_rows, offset_rows=plan.block_rows)
    settings = plan.reservoir.to_dict()
    settings |= as_group(options, FeatureOptions).to_dict() | as_group(options, RowOptions).to_dict()
    settings |= {"layers": ",".join(plan.layers), "pool": ",".join(plan.poolings)}
    settings["waveform"] = bool(prepared.task.parameters.get("waveform"))
    shares = splits or list(rows)
    shapes = {str(column): shape for column, shape in plan.shapes.items()}  # the cache knows names only
    return Run(root, prepared, plan.title, shapes, layout, model, rows, spec, settings, shares)


@dataclass
class Run:
    """An extraction that is ready to be computed."""

    root: Path
    prepared: Prepared
    title: str  # first part of the name of the entry
    shapes: Mapping[str, tuple[int, int]]  # (tokens, width) of each column
    layout: Layout  # for a new entry; an existing entry keeps its own
    model: LoadedModel
    rows: dict[str, np.ndarray]
    spec: Spec
    settings: dict[str, Any]  # options that the entry records
    splits: Sequence[str]

    def open(self, call: Mapping[str, Any]) -> tuple[Entry, list[tuple[str, int]]]:
        """Create or open the entry, which records the call; return it and the blocks that it lacks."""
        model = self.model
        made_with = {
            "call": {**call, "settings": self.settings},
            "reservoir": model.settings.to_dict(),
            "weights": describe_weights(model.fpt.backbone, model.settings.init),
            "weight_files": weight_stamps(model.settings),
            "device": str(model.device),
            "instructions": devices.describe(model.device),
            "versions": versions("torch", "transformers", "h5py", "numpy"),
            **data_record(self.prepared),
        }
        label = partial(write_labels, prepared=self.prepared, rows=self.rows)
        if not _entry_folder(self.root, self.title, self.spec).is_dir():
            self._refuse_long_texts()
        cut = self.layout, self.shapes, self.splits
        return start_entry(self.root, self.title, self.spec, *cut, made_with, label)

    def _refuse_long_texts(self) -> None:
        """Refuse texts of too many tokens before the first batch, if every token has a label."""
        reader = self.model.reader
        if not (self.prepared.task.each and isinstance(reader, TextReader)):
            return
        for name in self.splits:
            split = self.prepared.split(name)
            index = self.rows[name][reader.may_be_long(split.lengths[self.rows[name]])]
            for start in range(0, len(index), CHECKED_ROWS):
                part = split.take(index[start : start + CHECKED_ROWS])
                reader.check_places(part.x, part.lengths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, layer by layer."""
        return tuple(self.shapes)

    def compute(self, entry: Entry, advance: Advance = lambda rows, written: None) -> int:
        """Compute all missing blocks; return the number of rows computed by this process."""
        computed = compute_missing(entry, self.splits, self.columns, *self.steps(entry), advance)
        if note := self.model.reader.note if self.model.reader else "":
            notify(f"{self.spec.task['name']}: {note}")
        return computed

    def steps(self, entry: Entry) -> tuple[Load, Compute]:
        """Return two functions for `compute_blocks`; values do not depend on blocks, only on `Layout.offset_rows`."""
        layout, store = entry.layout, entry.spec.store

        def read(split: str, low: int, high: int) -> Iterator[tuple[int, Loaded]]:
            for start in range(low, high, layout.offset_rows):
                rows = self.rows[split][start : min(start + layout.offset_rows, high)]
                part = self.prepared.split(split).take(rows)
                loaded = load(self.model, self.prepared.scaling, part.x, part.lengths, layout.batch_rows)
                yield start, loaded

        def compute(
            part: tuple[int, Loaded], columns: Sequence[str], count: Callable[[int], None]
        ) -> Callable[[], Arrays]:
            return start_encoding(launch(self.model, part[1], columns, count), store, part[0])

        return read, compute


def data_record(prepared: Prepared) -> dict[str, Any]:
    """Return what an entry records of its prepared data, which is not part of the key."""
    return {
        "prepared": str(prepared.path),
        "kept": {split: prepared.kept(split) for split in prepared.rows},
        "scaling": scaling_to_json(prepared.scaling),
    }


def start_entry(
    root: Path,
    title: str,
    spec: Spec,
    layout: Layout,
    shapes: Mapping[str, tuple[int, int]],
    splits: Sequence[str],
    made_with: Mapping[str, Any],
    label: Callable[[Entry], None],
) -> tuple[Entry, list[tuple[str, int]]]:
    """Create or open an entry, call ``label`` to write its labels, and drop damaged blocks.

    Return the entry and the blocks that it lacks.
    """
    if not _entry_folder(root, title, spec).is_dir():
        check_space(root, required_bytes(spec, layout, spec.rows, shapes))
    entry = Entry.create(root, title, spec, layout, made_with)
    repair(entry, verify(entry, contents=False))
    label(entry)
    todo = missing_blocks(entry, splits, tuple(shapes))
    if todo:
        left, whole = row_count(entry, todo), sum(spec.rows.values())
        lacking = {column for split, block in todo for column in entry.lacking(split, block, shapes)}
        space = (
            required_bytes(spec, layout, spec.rows, {column: shapes[column] for column in lacking})
            * left
            // whole
        )
        count = f"{left:,} rows, {count_text(len(lacking), 'column')}"
        notify(f"{spec.task['name']} x {title}: {count}, {size_text(space)} on disk")
        check_space(root, space)
    return entry, todo


def _entry_folder(root: Path, title: str, spec: Spec) -> Path:
    return root / "features" / spec.task["name"] / f"{title}-{spec.key[:16]}"


def write_labels(entry: Entry, prepared: Prepared, rows: Mapping[str, np.ndarray]) -> None:
    """Write labels, lengths, groups and ids of the rows of an entry, unless it has them."""
    for split, index in rows.items():
        whole = prepared.split(split)
        targets = {"y": whole.y, "lengths": whole.lengths, "ids": whole.ids}
        targets |= {} if whole.groups is None else {"groups": whole.groups}
        if len(index) < len(whole):
            targets = {name: array[index] for name, array in targets.items()}
        if np.array_equal(targets["ids"], index):
            del targets["ids"]
        write_targets(entry, split, targets | {"index": index})


def draw_rows(prepared: Prepared, limit: int | None) -> dict[str, np.ndarray]:
    """Return the numbers of the rows to use in each split, ascending: all, or ``limit`` drawn with a fixed seed."""
    drawn = {}
    for split, count in prepared.rows.items():
        drawn[split] = np.arange(count)
        if limit is not None and limit < count:
            drawn[split] = np.sort(np.random.default_rng(0).permutation(count)[:limit])
    return drawn


def data_digest(prepared: Prepared, rows: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the prepared data and of the row numbers used."""
    digest = hashlib.sha256(prepared.digest.encode())
    for split, index in sorted(rows.items()):
        digest.update(json.dumps([split, len(index)]).encode())
        digest.update(index.astype("<i8", copy=False).data)
    return digest.hexdigest()


def make_spec(prepared: Prepared, rows: Mapping[str, np.ndarray], model: LoadedModel, store: str) -> Spec:
    """Return the specification: everything that changes a number in the entry, and nothing else."""
    data = {
        "digest": data_digest(prepared, rows),
        "rows": {split: len(index) for split, index in rows.items()},
    }
    return Spec(task=prepared.task.to_dict(), data=data, **frozen_fields(model), store=store)


def frozen_fields(model: LoadedModel) -> dict[str, Any]:
    """Return the fields of a specification that describe a frozen model, for any data."""
    settings, windows, backbone = model.settings, model.windows, model.fpt.backbone
    # Keys of features from CPUs have no device, as in old versions. GELU with tanh changes the last
    # bits of features.
    device = {"device": "cuda"} if devices.on_gpu(model.device) else {}
    tanh = any(isinstance(part, nn.GELU) and part.approximate == "tanh" for part in backbone.modules())
    gelu = {"gelu": "one step"} if tanh else {}
    if model.reader:
        long = {} if settings.long == "cut" else {"long": settings.long}
        inputs = {
            "kind": "native",
            "seed": 0,
            "gain": 1.0,
            "patch": 1,
            "stride": 1,
            **model.input_digests,
            **long,
        }
    else:
        # These fields are part of the key only if they differ from the defaults, because old versions lacked them.
        further = {"dilations": list(windows.dilations), "pad": windows.pad, "normalise": windows.normalise}
        plain = {"dilations": [1], "pad": "valid", "normalise": "channel"}
        inputs = {name: getattr(settings, name) for name in ("seed", "gain", "patch", "stride")}
        inputs["kind"] = "gaussian" if isinstance(model.fpt.task.form, Tokens) else settings.input
        inputs |= {name: value for name, value in further.items() if value != plain[name]}
    return {
        "backbone": {"family": backbone.family.name, "digest": model.digest, **gelu, **device},
        "init": {"kind": settings.init, "seed": 0 if settings.init == "pretrained" else settings.seed},
        "input": inputs,
        "padding": PADDING,
        "compute": model.compute,
    }


def missing_blocks(entry: Entry, splits: Sequence[str], columns: Sequence[str]) -> list[tuple[str, int]]:
    """Return the split and the number of every block that lacks one of the columns."""
    return [(split, block) for split in splits for block in sorted(entry.missing(split, columns))]


def row_count(entry: Entry, blocks: Sequence[tuple[str, int]]) -> int:
    """Return the number of rows of some blocks."""
    ranges = (entry.layout.block(entry.spec.rows[split], block) for split, block in blocks)
    return sum(high - low for low, high in ranges)


def compute_blocks(
    entry: Entry,
    blocks: Sequence[tuple[str, int]],
    columns: Sequence[str],
    read: Load,
    compute: Compute,
    advance: Advance = lambda rows, written: None,
) -> int:
    """Compute the blocks that no other process has claimed; return the number of rows computed."""
    # Loading, encoding and writing run in three other threads, so that a GPU need not wait.
    computed, layout = 0, entry.layout
    with devices.exact_products(), ShardWriter(entry) as writer:

        def claimed() -> Iterator[tuple[tuple[str, int], tuple[str, ...], Any]]:
            for split, block in blocks:
                lacking = writer.claim(split, block, columns)
                parts = read(split, *layout.block(entry.spec.rows[split], block)) if lacking else (None,)
                yield from (((split, block), lacking, part) for part in parts)

        with closing(ahead(claimed(), LOADED_AHEAD)) as loaded:
            for (split, block), parts in groupby(loaded, itemgetter(0)):
                low, high = layout.block(entry.spec.rows[split], block)
                left = high - low  # rows that the progress has not counted

                def count(rows: int) -> None:
                    nonlocal left
                    left -= rows
                    advance(rows, None)

                launched = [compute(part, lacking, count) for _, lacking, part in parts if lacking]
                if launched:
                    writer.put(split, block, partial(_joined, launched))
                    computed += high - low
                advance(left, writer.bytes_written)
    return computed


def _joined(launched: Sequence[Callable[[], Any]]) -> Arrays:
    """Return the columns of a block from those of its parts, which are encoded if there are several."""
    parts = [fetch() for fetch in launched]
    if len(parts) == 1:
        return parts[0]
    return {column: Encoded.joined([part[column] for part in parts]) for column in parts[0]}


def compute_missing(
    entry: Entry,
    splits: Sequence[str],
    columns: Sequence[str],
    read: Load,
    compute: Compute,
    advance: Advance = lambda rows, written: None,
) -> int:
    """Compute the missing blocks, and wait for those of other processes; return the number of rows computed here."""
    computed = 0
    while todo := missing_blocks(entry, splits, columns):
        rows = compute_blocks(entry, todo, columns, read, compute, advance)
        computed += rows
        if not rows and missing_blocks(entry, splits, columns):
            time.sleep(POLL)
    return computed


@dataclass(frozen=True)
class Share:
    """The arguments with which a worker repeats a call of extract; the worker's cache key must equal ``key``."""

    options: ExtractOptions
    prepared: Path
    key: str
    threads: int | None = None
    probe: Mapping[str, np.ndarray] = field(default_factory=dict)
    state: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # that of the prepared data, verified


def share_blocks(
    run: Run,
    entry: Entry,
    todo: Sequence[tuple[str, int]],
    options: ExtractOptions,
    cluster: ClusterOptions,
    advance: Callable[[int], None],
) -> int:
    """Let other processes compute the blocks ``todo`` of an entry; return their number of rows."""
    # Full paths, for processes that were started in another folder.
    settings, root = run.model.settings, run.root.absolute()
    full = replace(options, backbone=settings.backbone, init=settings.init, cache=root)
    share = Share(
        options=full,
        prepared=run.prepared.path.absolute(),
        key=entry.key,
        threads=max(1, torch.get_num_threads() // cluster.workers) if cluster.workers else None,
        probe=probe(run) if cluster.scheduler else {},
        state=run.prepared.state,
    )
    _runs[entry.key] = run  # so that this process does not load the model twice
    size = -(-len(todo) // MAX_TASKS)
    parts = [todo[start : start + size] for start in range(0, len(todo), size)]
    tasks = [(share, entry.path.resolve(), run.columns, part) for part in parts]
    try:
        return sum(
            map_pieces(work, tasks, workers=cluster.workers, scheduler=cluster.scheduler, done=advance)
        )
    finally:
        del _runs[entry.key]


def work(share: Share, path: Path, columns: tuple[str, ...], blocks: Sequence[tuple[str, int]]) -> int:
    """Compute and publish some blocks of an entry; return the number of their rows."""
    with _one_pass, silenced():
        run, entry = _runs.get(share.key) or _open(share), Entry.open(path)
        return compute_blocks(entry, blocks, columns, *run.steps(entry))


def _open(share: Share) -> Run:
    """Load the model in this process, once; raise `UnfitWorker` if it differs from the caller's."""
    options = share.options
    if share.threads:  # this is one of several processes on a machine
        torch.set_num_threads(share.threads)
        options = replace(options, device=devices.of_worker(options.device, process_number()))
    assert share.options.cache
    try:
        prepared = Prepared.open(share.prepared, verify=False)  # the caller has verified it
        if share.state and prepared.state != share.state:
            raise InputError(
                f"the prepared data in {share.prepared} has changed since the command began",
                "run the command again",
            )
        run = start_run(options, prepared, share.options.cache)
    except InputError as error:  # the caller has read the same files
        raise UnfitWorker(f"{this_worker()}: {error}") from None
    problem = ""
    if run.spec.key != share.key:
        problem = f"cache key is {run.spec.key} there, but {share.key} where the command was started"
    elif share.probe and (column := different_column(share.probe, probe(run))):
        problem = f"its features of {column} differ from those where the command was started"
    if problem:
        raise UnfitWorker(f"{this_worker()}: {problem}; {REMEDY}")
    _runs.clear()
    _runs[share.key] = run
    return run


def probe(run: Run) -> dict[str, np.ndarray]:
    """Return up to `PROBE_VALUES` values of each column over the first `PROBE_ROWS` rows."""
    split, index = next(iter(run.rows.items()))
    part = run.prepared.split(split).take(index[:PROBE_ROWS])
    values = forward(run.model, run.prepared.scaling, part.x, part.lengths, run.columns, len(part.lengths))
    samples = {}
    for column, array in values.items():
        places = np.linspace(0, array.size - 1, min(array.size, PROBE_VALUES)).astype(np.int64)
        samples[column] = array.reshape(-1)[places]
    return samples


def different_column(expected: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> str:
    """Return the first column whose values differ by more than rounding; empty if there is none."""
    for column, reference in expected.items():
        # Single channels of some transformers are a thousand times larger than the others, hence the clipping.
        scale = np.clip(reference, *np.quantile(reference, [0.01, 0.99])).std()
        differs = np.abs(values[column] - reference) > PROBE_TOLERANCE * max(scale, 1e-6)
        if differs.mean() > PROBE_OUTLIERS:
            return column
    return ""
