"""The stage ``fit``: every cached column under every penalty, chosen on valid, test scored once."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import Entry, FeatureStore

from reservoir import InputError
from reservoir.readouts import Moments, Tally, Targets, parse_alphas, sweep
from reservoir_pipelines.bundle import Bundle, replace_file
from reservoir_pipelines.extraction import Extraction
from reservoir_pipelines.prepare import Prepared
from reservoir_pipelines.progress import meter, say
from reservoir_pipelines.sources import ColumnSource, RawSource, Source

if TYPE_CHECKING:
    from reservoir.readouts import LinearReadout, Sweep

ALPHAS = "1e-2:1e6:25"
FIELDS = ("columns", "readout", "alpha", "valid_accuracy", "chosen", "test_accuracy")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One readout: a column under one penalty.

    Parameters
    ----------
    columns : tuple of str
        The cached columns it reads.
    readout : str
        Kind of the readout.
    alpha : float
        Its penalty.
    valid_accuracy : float
        Share of right labels on the validation split (R^2 for regression).
    test_accuracy : float, optional
        The same on the test split; only for a readout that was chosen.
    """

    columns: tuple[str, ...]
    readout: str
    alpha: float
    valid_accuracy: float
    test_accuracy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "columns": list(self.columns),
            "readout": self.readout,
            "alpha": self.alpha,
            "valid_accuracy": self.valid_accuracy,
            "test_accuracy": self.test_accuracy,
        }


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What `fit` found.

    Parameters
    ----------
    entry : Path
        The cache entry.
    best : Result
        The readout chosen on valid.
    raw : Result, optional
        The same sweep on the input itself; None where the prepared data is gone.
    table : tuple of Result
        Every tried readout of the reservoir.
    readout : LinearReadout
        The chosen readout, calibrated on valid.
    results, plot, saved : Path
        Table of every readout, picture of it, and the chosen readout for `predict`.
    seconds : float
        Wall time.
    """

    entry: Path
    best: Result
    raw: Result | None
    table: tuple[Result, ...]
    readout: LinearReadout = field(repr=False)
    results: Path
    plot: Path
    saved: Path
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "entry": str(self.entry),
            "best": self.best.to_dict(),
            "raw": self.raw.to_dict() if self.raw else None,
            "tried": len(self.table),
            "results": str(self.results),
            "plot": str(self.plot),
            "readout": str(self.saved),
            "seconds": round(self.seconds, 3),
        }


def fit(
    features: Extraction | FeatureStore | Path,
    *,
    columns: str | Sequence[str] = "all",
    alphas: str = ALPHAS,
    out: Path | None = None,
) -> Fit:
    """Fit a ridge readout to every column under every penalty and choose one by validation.

    Parameters
    ----------
    features : Extraction, FeatureStore or Path
        What `extract` returned, or the folder of an entry.
    columns : str or sequence of str, default "all"
        Columns to try, comma-separated, or ``all`` that are cached.
    alphas : str, default "1e-2:1e6:25"
        Penalties on standardised features, LO:HI:N in equal ratios.
    out : Path, optional
        Folder of the results; by default under the cache's ``readouts``.

    Returns
    -------
    Fit

    Raises
    ------
    InputError, CacheError
        Where a column is not cached, or the entry is not whole.
    """
    started = time.monotonic()
    if isinstance(features, Extraction):
        features = features.store
    store = features if isinstance(features, FeatureStore) else FeatureStore(features)
    entry = store.entry
    penalties = parse_alphas(alphas)
    names = choose_cached(store, columns)
    classes = int(entry.spec.task["classes"])
    say(
        f"fit {entry.spec.task['name']}: {len(names)} columns x {len(penalties)} penalties on {store['train'].rows:,} "
        f"rows, chosen on {store['valid'].rows:,}"
    )
    results: list[Result] = []
    best: tuple[Result, Sweep, Source] | None = None
    with meter("fit", len(names), unit="columns") as bar:
        for name in names:
            source = ColumnSource(store, name)
            swept = sweep_source(source, classes, penalties, entry)
            rows = _rows((name,), swept)
            results += rows
            if best is None or _merit(rows[swept.best]) > _merit(best[0]):
                best = rows[swept.best], swept, source
            bar.advance(1)
    assert best is not None
    chosen = _test(best[0], best[1], best[2])
    raw = _raw(entry, store, penalties, classes)
    readout = best[1].readout()
    if classes:
        readout = readout.calibrate(best[2].blocks("valid"))
    folder = out or entry.path.parents[2] / "readouts" / entry.spec.task["name"] / entry.path.name
    folder.mkdir(parents=True, exist_ok=True)
    _write_table(folder / "results.csv", results, chosen, raw)
    from reservoir_pipelines.plots import plot_sweep

    plot_sweep(folder / "sweep.png", results, chosen, raw, title=f"{entry.spec.task['name']}, {entry.path.name}")
    saved = Bundle.of(entry, readout, chosen).save(folder)
    return Fit(
        entry=entry.path,
        best=chosen,
        raw=raw,
        table=tuple(results),
        readout=readout,
        results=folder / "results.csv",
        plot=folder / "sweep.png",
        saved=saved,
        seconds=time.monotonic() - started,
    )


def choose_cached(store: FeatureStore, columns: str | Sequence[str]) -> tuple[str, ...]:
    """Return the wanted columns among those that every split holds.

    Raises
    ------
    InputError
        If one is not cached.
    """
    cached = [c for c in store["train"].columns if all(c in store[split].columns for split in store.splits)]
    wanted = [c.strip() for c in columns.split(",")] if isinstance(columns, str) else list(columns)
    if wanted == ["all"]:
        wanted = [c for c in cached if not c.endswith("/all")] or cached
    for column in wanted:
        if column not in cached:
            raise InputError(f"column {column!r}: not cached here; cached are {', '.join(cached) or 'none'}")
    if not wanted:
        raise InputError("the entry holds no columns yet; run reservoir extract again to finish it")
    return tuple(dict.fromkeys(wanted))


def sweep_source(source: Source, classes: int, alphas: np.ndarray, entry: Entry | None = None) -> Sweep:
    """Sweep one source, from stored moments where there are.

    Parameters
    ----------
    source : Source
        Where the samples come from.
    classes : int
        Classes per output; 0 for regression.
    alphas : ndarray, (A,)
        Penalties.
    entry : Entry, optional
        Where moments are kept for the next sweep.
    """
    targets = Targets(source.outputs(), classes)
    name = f"train-{source.name.replace('/', '-')}"
    stored = entry.load_arrays(name) if entry else None
    if stored:
        return sweep((), source.blocks("valid"), targets, alphas, moments=Moments.from_arrays(stored[0]))
    swept = sweep(source.blocks("train"), source.blocks("valid"), targets, alphas)
    # Below this many samples the float64 moments are larger than the float16 features they would spare reading.
    if entry and swept.moments and swept.moments.count > 4 * swept.moments.width:
        entry.save_arrays(name, swept.moments.to_arrays(), {"column": source.name})
    return swept


def _merit(result: Result) -> tuple[float, float]:
    """Rank by validation; of equal ones the larger penalty is preferred, as within a column."""
    return result.valid_accuracy, result.alpha


def _rows(columns: tuple[str, ...], swept: Sweep) -> list[Result]:
    return [
        Result(columns=columns, readout="ridge", alpha=float(alpha), valid_accuracy=float(accuracy))
        for alpha, accuracy in zip(swept.path.alphas, swept.accuracy, strict=True)
    ]


def _test(result: Result, swept: Sweep, source: Source) -> Result:
    """Score the chosen penalty, and it alone, on the test split."""
    readout, tally = swept.readout(), Tally(swept.targets)
    for x, y in source.blocks("test"):
        tally.update(readout.scores(x)[None], y)
    return replace(result, test_accuracy=float(tally.accuracy()[0]))


def _raw(entry: Entry, store: FeatureStore, alphas: np.ndarray, classes: int) -> Result | None:
    place = Path(entry.made_with.get("prepared", ""))
    if not place.is_dir():
        say("raw input: the prepared data is gone, so it is left out; reservoir prepare brings it back")
        return None
    source = RawSource(Prepared.open(place), store)
    swept = sweep_source(source, classes, alphas)
    return _test(_rows((source.name,), swept)[swept.best], swept, source)


def _write_table(path: Path, results: list[Result], chosen: Result, raw: Result | None) -> None:
    def write(part: Path) -> None:
        with part.open("x", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(FIELDS)
            for result in [*results, *([raw] if raw else [])]:
                same = (result.columns, result.alpha) == (chosen.columns, chosen.alpha)
                test = chosen.test_accuracy if same else result.test_accuracy
                name = "+".join(result.columns)
                accuracy = "" if test is None else f"{test:.6f}"
                writer.writerow(
                    [name, result.readout, f"{result.alpha:.6g}", f"{result.valid_accuracy:.6f}", int(same), accuracy]
                )

    replace_file(path, write)
