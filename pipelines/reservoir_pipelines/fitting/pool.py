"""The columns that ``fit`` chooses from: those of one cached entry, or of several side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reservoir_cache import Entry, FeatureStore, path_below

from reservoir.errors import InputError, require_path
from reservoir.plan import RAW, readout_candidates, single_columns
from reservoir.tasks.task import Task
from reservoir_pipelines.extraction.extract import Extraction
from reservoir_pipelines.fitting.sources import ColumnSource, JoinedSource, RawSource, Source
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import Prepared

Features = Extraction | FeatureStore | Path | str
"""What `fit` takes: the result of `extract`, or the folder of an entry."""


@dataclass(frozen=True)
class Pool:
    """The columns to choose from: those of one entry, or of several with numbered names; ``only`` names some."""

    stores: tuple[FeatureStore, ...]
    only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, features: Pool | Features | Sequence[Features]) -> Pool:
        """Open the features given to `fit`; raise `InputError` if entries differ in their task or rows."""
        if isinstance(features, Pool):
            return features
        given = [features] if isinstance(features, str) or not isinstance(features, Sequence) else features
        if not given:
            raise InputError("fit: give at least one entry")
        opened = [one.store if isinstance(one, Extraction) else one for one in given]
        stores = tuple(
            one if isinstance(one, FeatureStore) else FeatureStore(Path(require_path(one, "fit: features")))
            for one in opened
        )
        for store in stores:
            if lacking := [split for split in ("train", "valid", "test") if split not in store.splits]:
                name = store.entry.path.name
                raise InputError(f"{name}: it has no split {lacking[0]!r}; give an entry that extract made")
        first = stores[0].entry.spec
        for store in stores[1:]:
            if store.entry.spec.task != first.task or store.entry.spec.data != first.data:
                names = f"{store.entry.path.name} and {stores[0].entry.path.name}"
                raise InputError(f"{names} hold different rows; extract both from the same data with the same limit")
        return cls(stores)

    @property
    def store(self) -> FeatureStore:
        """The first entry's features."""
        return self.stores[0]

    @property
    def entry(self) -> Entry:
        """The first entry."""
        return self.stores[0].entry

    @property
    def title(self) -> str:
        """Name of the entry, or of the first of several, with the number of the others and a digest of all names."""
        names = [store.entry.path.name for store in self.stores]
        if len(names) == 1:
            return names[0]
        return f"{names[0]}+{len(names) - 1}-{hashlib.sha256('/'.join(names).encode()).hexdigest()[:8]}"

    def folder(self, name: str) -> Path:
        """Return the default folder of results: below the cache's ``readouts``, or beside an entry outside a cache."""
        path = self.entry.path.resolve()
        if path.parent.parent.name != "features":
            return path.with_name(f"{self.title}-{name}")
        return path_below(path.parents[2], "readouts", self.entry.spec.task["name"], f"{self.title}-{name}")

    def columns(self) -> list[str]:
        """Return the names of all columns that every split of an entry holds."""
        found = []
        for number, store in enumerate(self.stores, start=1):
            whole = [c for c in store["train"].columns if all(c in store[split].columns for split in store.splits)]
            found += [f"{number}:{column}" for column in whole] if len(self.stores) > 1 else whole
        return [column for column in found if self.only is None or column in self.only]

    def source(self, name: str) -> Source:
        """Return the samples of a column, or of several side by side, joined by a plus."""
        parts = tuple(self.column(part) for part in name.split("+"))
        return parts[0] if len(parts) == 1 else JoinedSource(parts)

    def raw(self) -> RawSource | None:
        """Return the raw input of the same rows; None where the prepared data was removed."""
        place = Path(self.entry.made_with.get("prepared", ""))
        return RawSource(Prepared.open(place), self.store) if place.is_dir() else None

    def column(self, name: str) -> ColumnSource | RawSource:
        """Return the samples of a single column, or of the raw input."""
        if name == RAW:
            if found := self.raw():
                return found
            raise InputError("raw: the prepared data was removed; run reservoir prepare, then extract again")
        number, colon, column = name.partition(":")
        if not colon:
            return ColumnSource(self.store, name)
        return ColumnSource(self.stores[int(number) - 1], column, name)


def choose_columns(pool: Pool, columns: str | Sequence[str], folds: int = 0) -> tuple[tuple[str, ...], int]:
    """Return the columns to try, and the largest number that may be joined greedily, 0 where none may."""
    cached = pool.columns()
    wanted = [c.strip() for c in columns.split(",")] if isinstance(columns, str) else list(columns)
    most = 0
    if len(wanted) == 1 and wanted[0].startswith("best:"):
        number = wanted[0].removeprefix("best:")
        if not number.isdigit() or int(number) < 1:
            raise InputError(f"--columns {wanted[0]}: write best:K with K of at least 1, such as best:4")
        wanted, most = ["all"], int(number)
    if wanted == ["all"]:
        available = [*cached, RAW] if pool.raw() else cached
        sources = {column: pool.column(column) for column in cached}
        widths = {c: s.width() for c, s in sources.items() if isinstance(s, ColumnSource) and s.tokens() == 1}
        native = len(pool.stores) > 1 or pool.entry.spec.input["kind"] == "native"
        task, rows = Task.from_dict(pool.entry.spec.task), pool.store["train"].rows
        wanted = (
            [*single_columns(available)]
            if most
            else [*readout_candidates(task, available, widths, rows, cross_validated=bool(folds), native=native)]
        )
        tried = {part for name in wanted for part in name.split("+")}
        if left := [column for column in cached if column.endswith("/all") and column not in tried]:
            notify(f"--columns {columns} leaves out the columns of all tokens, {', '.join(left)}; name one to try it")
    for column in wanted:
        for part in column.split("+"):
            if part not in (*cached, RAW):
                raise InputError(f"column {part!r}: not cached here; cached are {', '.join(cached) or 'none'}")
    if not wanted:
        have = f"name some of {', '.join(cached)}" if cached else "run reservoir extract again to finish the entry"
        raise InputError(f"no columns to fit; {have}")
    return tuple(dict.fromkeys(wanted)), most
