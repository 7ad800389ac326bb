"""The data of a search, the candidates on it, and the commands that a person would type for them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir_cache import CacheError, FeatureStore

from reservoir.option_fields import typed
from reservoir.options import PlaceOptions, RowOptions, ShapeOptions
from reservoir_pipelines.extraction.extract import Extraction, extract
from reservoir_pipelines.extraction.plan import data_digest, draw_rows
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.tuning.judge import KNOWN
from reservoir_pipelines.tuning.space import Candidate, candidate
from reservoir_pipelines.tuning.trials import Trial


@dataclass(frozen=True, kw_only=True)
class Where:
    """The data of a search, and where it is kept."""

    task: str
    prepared: Prepared
    source: RowOptions
    shape: ShapeOptions
    place: PlaceOptions
    root: Path
    width: int
    native: tuple[str, str] | None = None  # layers and poolings of the default, where a model reads texts by itself

    def rows(self, limit: int | None = None) -> dict[str, int]:
        """Return the rows of each split."""
        most = min((each for each in (limit, self.source.limit) if each), default=None)
        return {split: min(rows, most or rows) for split, rows in self.prepared.rows.items()}

    def folder(self) -> Path:
        """Return where the trials are kept: one folder for these rows, this seed and this backbone."""
        digest = data_digest(self.prepared, draw_rows(self.prepared, self.source.limit))
        settings = [digest, self.shape.to_dict(), self.place.device]
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
        return self.root / "tuning" / f"{self.prepared.task.name}-{name}"

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number."""
        rows = sum(self.prepared.rows.values())
        seed, backbone = self.shape.seed, self.shape.backbone
        found = candidate(number, self.prepared.task, rows, self.width, seed=seed, backbone=backbone)
        if number or not self.native:
            return found
        layers, pool = self.native
        return replace(found, layers=layers, pool=pool)

    def extract(self, candidate: Candidate, limit: int | None, splits: tuple[str, ...] | None) -> Extraction:
        """Compute a candidate's columns where they are not cached; of all splits, or of some."""
        return extract(self.task, *candidate.groups(), self._limited(limit), self.place, splits=splits)

    def store(self, trial: Trial) -> FeatureStore:
        """Return the features of a trial; computed again where they have been removed."""
        try:
            store = FeatureStore(self.root / "features" / self.prepared.task.name / trial.entry)
            if all(not store.entry.missing(split, trial.columns) for split in KNOWN):
                return store
        except CacheError:
            pass
        return self.extract(self.candidate(trial.number), trial.limit, KNOWN).store

    def work(self, candidate: Candidate, rows: int) -> float:
        """Return how much a candidate computes of some rows: tokens, times layers that are run or pooled."""
        windows = -(-self.prepared.task.max_tokens // int(candidate.reservoir.get("stride", 1)))
        layers = 4 if candidate.layers == "all" else candidate.layers.count(",") + 1
        return float(rows * windows * (2 * layers - 1))

    def call(self, number: int, limit: int | None) -> str:
        """Return the command that extracts a candidate whole."""
        said, kept = self.candidate(number).groups()
        return typed("extract", [self.task], said, self._limited(limit), kept, self.place)

    def _limited(self, limit: int | None) -> RowOptions:
        return replace(self.source, limit=limit) if limit else self.source
