"""The stage ``extract``: one frozen forward pass over a task, its pooled hidden states cached to HDF5."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import (
    Entry,
    FeatureStore,
    Layout,
    ShardWriter,
    Spec,
    check_space,
    entry_bytes,
    repair,
    required_bytes,
    write_targets,
)

from reservoir import InputError
from reservoir_pipelines.forward import column_shapes, forward
from reservoir_pipelines.frozen import GAIN, FrozenModel, Reservoir, load_frozen
from reservoir_pipelines.plan import check_windows, choose_columns, choose_layout, draw_rows, make_spec
from reservoir_pipelines.preparation import Prepared, prepare
from reservoir_pipelines.prepared import scaling_to_json
from reservoir_pipelines.progress import Meter, meter, say, size_text
from reservoir_pipelines.root import cache_root

if TYPE_CHECKING:
    from reservoir_cache import SplitFeatures

POOLS = "last,mean"


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What `extract` made or found.

    Parameters
    ----------
    entry : Path
        Folder of the entry.
    rows : dict of str to int
        Rows of each split.
    columns : tuple of str
        Every column that was asked for.
    bytes : int
        Size of the entry on disk.
    seconds : float
        Wall time of the call.
    reused : bool
        True if everything was there already and no forward pass ran.
    computed_rows : int
        Rows that went through the model in this call.
    """

    entry: Path
    rows: dict[str, int]
    columns: tuple[str, ...]
    bytes: int
    seconds: float
    reused: bool
    computed_rows: int

    @property
    def store(self) -> FeatureStore:
        """The cached features."""
        return FeatureStore(self.entry)

    def __getitem__(self, split: str) -> SplitFeatures:
        return self.store[split]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "entry": str(self.entry),
            "rows": self.rows,
            "columns": list(self.columns),
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "reused": self.reused,
            "computed_rows": self.computed_rows,
        }


def extract(
    task: str,
    *,
    backbone: str | None = None,
    init: str | None = None,
    seed: int = 0,
    gain: float = GAIN,
    depth: int | None = None,
    patch: int = 1,
    stride: int | None = None,
    layers: str | Sequence[str] = "all",
    pool: str | Sequence[str] = POOLS,
    limit: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    compute: str = "auto",
    store: str = "float16",
    batch_rows: int | None = None,
) -> Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states.

    Whatever is cached already is reused: a finished extraction runs nothing, an interrupted one goes on, a new column
    is added without computing the others again. The same settings give the same bytes, however often it was stopped.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    backbone : str, optional
        A known name (``gpt2`` …), a model folder or a hub name; by default ``mini``, whose weights come with this
        package.
    init : {"pretrained", "random", "statistics"} or str, optional
        Where the frozen weights come from, also a folder; by default ``pretrained``, or ``random`` where nobody
        publishes weights of its kind.
    seed : int, default 0
        Seed of random weights and of the input layer.
    gain : float, default 1.41
        Scale of the input layer.
    depth : int, optional
        Keep only the first so many blocks of the backbone.
    patch : int, default 1
        Values per token: windows of a float sequence.
    stride : int, optional
        Values from one window to the next; by default the patch.
    layers : str or sequence of str, default "all"
        Layers to keep: ``embed``, ``block01`` …, ``final``, comma-separated, or ``all``.
    pool : str or sequence of str, default "last,mean"
        Poolings to keep of each layer.
    limit : int, optional
        At most so many rows of each split, a fixed draw; a larger limit contains the rows of a smaller one.
    parameters : mapping, optional
        The task's own parameters, such as ``{"n": 5}`` for bit-xor.
    data : Path, optional
        Folder of the publisher's files; else the environment's ``RESERVOIR_DATA``.
    cache : Path, optional
        Root of the cache; else ``RESERVOIR_CACHE``, else the user's cache folder.
    device, compute : str, default "auto"
        Where and in which precision the forward pass runs; see `load_frozen`.
    store : {"float16", "bfloat16", "float32"}, default "float16"
        How values are kept on disk.
    batch_rows : int, optional
        Rows per batch of a new entry; an existing entry keeps its own, because the batch size changes the last bits.

    Returns
    -------
    Extraction
        ``extraction["train"]["block06/mean"]`` is an array (rows, width).

    Raises
    ------
    InputError, CacheError
        For input that cannot be used, before anything is computed wherever that can be known.
    """
    started = time.monotonic()
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: give at least 1 row")
    if batch_rows is not None and batch_rows < 1:
        raise InputError(f"--batch-rows {batch_rows}: give at least 1 row")
    settings = Reservoir.choose(backbone, init, seed, gain, depth, patch, stride)
    root = cache_root(cache)
    prepared = prepare(task, data=data, cache=root, parameters=parameters)
    for note in prepared.notes():
        say(note)
    model = load_frozen(prepared.task, settings, device, compute)
    columns = choose_columns(model, layers, pool)
    rows = draw_rows(prepared, limit)
    check_windows(prepared, rows, patch)
    spec = make_spec(prepared, rows, model, store)
    layout = choose_layout(model, columns, batch_rows)
    call = {
        "task": str(Path(task).resolve()) if Path(task).is_file() else task,
        "settings": {
            "backbone": settings.backbone,
            "init": settings.init,
            "gain": gain,
            "depth": depth,
            "patch": patch,
            "stride": stride,
            "layers": list(dict.fromkeys(column.partition("/")[0] for column in columns)),
            "pool": list(dict.fromkeys(column.partition("/")[2] for column in columns)),
            "limit": limit,
            "parameters": dict(parameters or {}),
            "compute": compute,
            "store": store,
        },
    }
    run = _Run(root, settings, prepared, model, rows, columns, spec, layout, call)
    entry, computed = run.execute()
    return Extraction(
        entry=entry.path,
        rows={split: len(index) for split, index in rows.items()},
        columns=columns,
        bytes=entry_bytes(entry),
        seconds=time.monotonic() - started,
        reused=computed == 0,
        computed_rows=computed,
    )


@dataclass
class _Run:
    """One call of `extract` after its input has been read."""

    root: Path
    settings: Reservoir
    prepared: Prepared
    model: FrozenModel
    rows: dict[str, np.ndarray]
    columns: tuple[str, ...]
    spec: Spec
    layout: Layout
    call: dict[str, Any]

    def execute(self) -> tuple[Entry, int]:
        """Compute what is missing; return the entry and the number of rows computed."""
        name = f"{self.spec.task['name']} x {self.settings.title}"
        shapes = column_shapes(self.model.fpt.task, self.model.fpt.backbone.width, self.columns)
        space = required_bytes(self.spec, self.layout, self.spec.rows, shapes)
        exists = (self.root / "features" / self.spec.task["name"] / self._folder()).is_dir()
        if not exists:
            rows = sum(self.spec.rows.values())
            say(f"{name}: {rows:,} rows, {len(self.columns)} columns, {size_text(space)} on disk")
            check_space(self.root, space)
        entry = Entry.create(self.root, self.settings.title, self.spec, self.layout, self._made_with())
        repair(entry)
        for split, index in self.rows.items():
            whole = self.prepared.split(split)
            targets = {"y": whole.y[index], "lengths": whole.lengths[index], "index": index.astype(np.int64)}
            write_targets(entry, split, targets)
        todo = self._missing(entry)
        count = sum(_block_rows(entry, split, block) for split, block, _ in todo)
        if exists and todo:
            part = space * count * max(len(c) for _, _, c in todo) // (sum(self.spec.rows.values()) * len(self.columns))
            say(f"{name}: {count:,} rows still to compute, at most {size_text(part)} more on disk")
            check_space(self.root, part)
        if not todo:
            say(f"{name}: everything is cached already in {entry.path}; no forward pass")
        computed = self._compute(entry, count) if todo else 0
        return entry, computed

    def _compute(self, entry: Entry, count: int) -> int:
        computed = 0
        with meter("extract", count) as bar:
            while todo := self._missing(entry):
                with ShardWriter(entry) as writer:
                    taken = sum(self._block(entry, split, block, writer, bar) for split, block, _ in todo)
                computed += taken
                if not taken and self._missing(entry):
                    time.sleep(0.5)  # every missing block is in the hands of a live run: wait for it to finish or die
        return computed

    def _block(self, entry: Entry, split: str, block: int, writer: ShardWriter, bar: Meter) -> int:
        """Compute one block unless another run has it; return the rows computed."""
        low, high = entry.blocks(split)[block]
        with entry.claim(split, block) as mine:
            # Another run may have published it between the listing and the claim.
            columns = entry.missing(split, self.columns).get(block, ()) if mine else ()
            if columns:
                index = self.rows[split][low:high]
                part = self.prepared.split(split).read(int(index[0]), int(index[-1]) + 1)
                x, lengths = part.x[index - index[0]], part.lengths[index - index[0]]
                batch_rows = entry.layout.batch_rows
                writer.put(split, block, forward(self.model, self.prepared.scaling, x, lengths, columns, batch_rows))
        bar.advance(high - low, writer.bytes_written)
        return high - low if columns else 0

    def _missing(self, entry: Entry) -> list[tuple[str, int, tuple[str, ...]]]:
        return [
            (split, block, columns)
            for split in self.rows
            for block, columns in sorted(entry.missing(split, self.columns).items())
        ]

    def _folder(self) -> str:
        return f"{self.settings.title}-{self.spec.key[:16]}"

    def _made_with(self) -> dict[str, Any]:
        import platform

        import h5py
        import torch
        import transformers

        return {
            "call": self.call,
            "reservoir": self.settings.to_dict(),
            "prepared": str(self.prepared.path),
            "scaling": scaling_to_json(self.prepared.scaling),
            "device": str(self.model.device),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "h5py": h5py.__version__,
                "numpy": np.__version__,
            },
        }


def _block_rows(entry: Entry, split: str, block: int) -> int:
    low, high = entry.blocks(split)[block]
    return high - low
