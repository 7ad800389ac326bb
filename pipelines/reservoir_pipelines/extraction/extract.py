"""The stage ``extract``: one frozen forward pass over a task, its pooled hidden states cached to HDF5."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
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

from reservoir.features import column_shapes, forward
from reservoir.options import FeatureOptions, PlaceOptions, ReservoirOptions, RowOptions, TaskOptions, as_group
from reservoir.reservoir import LoadedModel, Reservoir, load_model
from reservoir_pipelines.extraction.plan import check_windows, choose_columns, choose_layout, draw_rows, make_spec
from reservoir_pipelines.output import Meter, meter, say, size_text
from reservoir_pipelines.preparation.prepare import Prepared, prepare
from reservoir_pipelines.preparation.prepared import scaling_to_json
from reservoir_pipelines.stage import stage
from reservoir_pipelines.workspace import cache_root

if TYPE_CHECKING:
    from reservoir_cache import SplitFeatures


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


@stage
def extract(
    task: str, reservoir: ReservoirOptions, source: RowOptions, keep: FeatureOptions, place: PlaceOptions
) -> Extraction:
    """Run a frozen transformer over a task once and cache its pooled hidden states.

    Whatever is cached already is reused: a finished extraction runs nothing, an interrupted one goes on, a new column
    is added without computing the others again. The same settings give the same bytes, however often it was stopped.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    **options
        Fields of `ReservoirOptions`, `RowOptions`, `FeatureOptions` and `PlaceOptions`. ``batch_rows`` is of a new
        entry: an existing one keeps its own, because the batch size changes the last bits. A larger ``limit`` contains
        the rows of a smaller one.

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
    settings = Reservoir.choose(reservoir)
    root = cache_root(place.cache)
    prepared = prepare(task, as_group(source, TaskOptions), cache=root)
    for note in prepared.notes():
        say(note)
    model = load_model(prepared.task, settings, place.device, keep.compute)
    columns = choose_columns(model, keep.layers, keep.pool)
    rows = draw_rows(prepared, source.limit)
    check_windows(prepared, rows, settings.patch)
    spec = make_spec(prepared, rows, model, keep.store)
    layout = choose_layout(model, columns, keep.batch_rows)
    asked = replace(
        keep,
        layers=",".join(dict.fromkeys(column.partition("/")[0] for column in columns)),
        pool=",".join(dict.fromkeys(column.partition("/")[2] for column in columns)),
    )
    call = {
        "task": str(Path(task).resolve()) if Path(task).is_file() else task,
        "settings": settings.to_dict() | source.to_dict() | asked.to_dict(),
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
    model: LoadedModel
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
