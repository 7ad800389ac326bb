"""Create or open an entry, with its labels, and list the blocks that it lacks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import Entry, Layout, Spec, check_space, repair, required_bytes, verify, write_targets

from reservoir_pipelines.extraction.blocks import missing_blocks, row_count
from reservoir_pipelines.output import count_text, notify, size_text
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json


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
    if not entry_folder(root, title, spec).is_dir():
        check_space(root, required_bytes(spec, layout, spec.rows, shapes))
    entry = Entry.create(root, title, spec, layout, made_with)
    repair(entry, verify(entry, contents=False))
    label(entry)
    missing = missing_blocks(entry, splits, tuple(shapes))
    if missing:
        # The missing columns need their space on disk in proportion to the rows that lack them.
        rows = row_count(entry, missing)
        lacking = {column for split, block in missing for column in entry.lacking(split, block, shapes)}
        whole_bytes = required_bytes(
            spec, layout, spec.rows, {column: shapes[column] for column in lacking}
        )
        space = whole_bytes * rows // sum(spec.rows.values())
        columns = count_text(len(lacking), "column")
        notify(f"{spec.task_name} x {title}: {rows:,} rows, {columns}, {size_text(space)} on disk")
        check_space(root, space)
    return entry, missing


def entry_folder(root: Path, title: str, spec: Spec) -> Path:
    """Return the folder of an entry."""
    return root / "features" / spec.task_name / f"{title}-{spec.key[:16]}"


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


def data_record(prepared: Prepared) -> dict[str, Any]:
    """Return what an entry records of its prepared data, which is not part of the key."""
    return {
        "prepared": str(prepared.path),
        "kept": {split: prepared.kept(split) for split in prepared.rows},
        "scaling": scaling_to_json(prepared.scaling),
    }
