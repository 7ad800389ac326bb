"""The stage ``fit`` of ``gpu_evidence.py``: features written as fast as a disk takes them, and their readouts."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from extract import warm_extractor
from gpu_stages import Case, Context, wait, write_rows
from reservoir_cache import Entry, FeatureStore
from reservoir_pipelines import fit
from reservoir_pipelines.extraction.entries import row_count
from reservoir_pipelines.fitting.source import KNOWN, ColumnSource, EntryView
from reservoir_pipelines.output import silenced

from reservoir.column import Column
from reservoir.readouts.linear import Targets
from reservoir.readouts.moments import training_moments
from reservoir.readouts.penalties import DEFAULT_ALPHAS
from reservoir.readouts.products import Arithmetic, products_on
from reservoir.readouts.tridiagonal import solve_penalties

COLUMNS = ("embed/last", "embed/mean")
TARGETS = 10  # columns of labels of a system, as of MNIST's digits


def fitting(context: Context) -> None:
    """Measure an extraction that computes next to nothing, and each step of a fit of its wide columns."""
    with tempfile.TemporaryDirectory(dir=context.evidence.folder) as folder, silenced():
        entry = drain(context, Path(folder))
        reading_and_moments(context, entry)
        # The second column is fitted by code that is warm.
        for column in COLUMNS:
            _, seconds = timed(
                context, lambda column=column: fit(entry.path, columns=column, device=context.device.type)
            )
            context.evidence.add("fit", f"fit of {column}", seconds=seconds, **sizes(context, entry))
    for width in context.scale.systems:
        systems(context, width)


def drain(context: Context, folder: Path) -> Entry:
    """Extract the input layer of a wide model, so that copies and the disk decide the speed; return the entry."""
    width = context.scale.fit_width
    options = {
        "backbone": f"gpt2:n_layer=1,n_embd={width},n_head=4",
        "init": "random",
        "input": "orthogonal",
        "patch": 1,
        "store": "float16",
        "layers": "embed",
        "pool": "last,mean",
    }
    case = Case("drain", options, tokens=2)
    # The features of both columns may take 40% of the disk, and of the memory that keeps them for reading.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most_bytes = 0.4 * min(shutil.disk_usage(folder).free, memory)
    rows = int(min(context.scale.fit_rows, most_bytes // (2 * width * len(COLUMNS))))
    file = write_rows(case, folder / "rows.npz", rows)
    extractor = warm_extractor(file, case.extract_options(folder, context), folder)
    entry, missing = extractor.open({})
    _, seconds = timed(context, lambda: extractor.compute(entry))
    written = sum(path.stat().st_size for path in entry.path.rglob("*.h5"))
    context.evidence.add(
        "fit",
        "drain",
        rows_per_second=row_count(entry, missing) / seconds,
        bytes_per_second=written / seconds,
        seconds=seconds,
    )
    return entry


def reading_and_moments(context: Context, entry: Entry) -> None:
    """Measure how fast a fit reads a column, and how fast it computes its moments."""
    source = ColumnSource(EntryView(FeatureStore(entry), KNOWN), Column.parse(COLUMNS[0]))
    targets = Targets(1, 2)
    with products_on(Arithmetic(str(context.device))):
        size = sum(
            x.nbytes for x, _ in source.blocks_for_products("train")
        )  # verifies the checksums of the files
        _, reading = timed(context, lambda: sum(len(x) for x, _ in source.blocks_for_products("train")))
        _, moments = timed(context, lambda: training_moments(source.blocks_for_products("train"), targets))
    context.evidence.add("fit", "reading of a column", seconds=reading, bytes_per_second=size / reading)
    context.evidence.add("fit", "moments of a column", seconds=moments, bytes_per_second=size / moments)


def systems(context: Context, width: int) -> None:
    """Measure the solutions of all penalties, where readouts are fitted and, of narrow systems, on the host, too."""
    draw = torch.Generator(context.device).manual_seed(0)
    x = torch.randn(width, width, generator=draw, device=context.device, dtype=torch.float64)
    matrix, b = x @ x.T, torch.ones(width, TARGETS, dtype=torch.float64).numpy()
    solve_penalties(matrix[:64, :64].clone(), b[:64], DEFAULT_ALPHAS)  # loads the library
    _, seconds = timed(context, lambda: solve_penalties(matrix.clone(), b, DEFAULT_ALPHAS))
    context.evidence.add("fit", f"systems of {width:,} columns", seconds=seconds, place=context.device.type)
    if width == min(context.scale.systems):
        on_host = matrix.cpu().numpy()
        _, seconds = timed(context, lambda: solve_penalties(on_host, b, DEFAULT_ALPHAS))
        context.evidence.add(
            "fit", f"systems of {width:,} columns, on the host", seconds=seconds, place="cpu"
        )


def sizes(context: Context, entry: Entry) -> dict[str, int]:
    """Return the rows and the width of a column."""
    return {"rows": sum(entry.spec.rows.values()), "width": context.scale.fit_width}


def timed(context: Context, work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of work, and the seconds that it took with the device."""
    wait(context.device)
    started = time.perf_counter()
    result = work()
    wait(context.device)
    return result, time.perf_counter() - started
