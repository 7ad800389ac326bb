"""The data of a search, the candidates on it, and the commands that a person would type for them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir_cache import CacheError, FeatureStore

from reservoir.defaults import choose_reservoir, default_layers, default_pools
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.options import ClusterOptions, RowOptions, TaskOptions
from reservoir.reservoir import full_name, load_model
from reservoir_pipelines.extraction.call import Call, heard
from reservoir_pipelines.extraction.extract import Extraction, extract
from reservoir_pipelines.extraction.plan import data_digest, draw_rows
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.tuning.judge import KNOWN
from reservoir_pipelines.tuning.space import Candidate, candidate
from reservoir_pipelines.tuning.trials import Trial
from reservoir_pipelines.workspace import cache_root

ALONE = ClusterOptions()


@dataclass(frozen=True, kw_only=True)
class Where:
    """The data of a search, and where it is kept.

    ``digest`` is one for these rows, this seed and this backbone with its weights and precision.
    """

    call: Call
    prepared: Prepared
    root: Path
    digest: str
    width: int
    native: tuple[str, str] | None  # layers and poolings of the default, where a model reads texts by itself

    @classmethod
    def of(cls, call: Call) -> Where:
        """Read the data of a call of extract, of which a search takes the backbone and the seed, and load its model."""
        root = cache_root(call.place.cache)
        call = replace(call, source=heard(call.task, call.reservoir, call.source))
        prepared = prepare(call.task, as_group(call.source, TaskOptions), cache=root)
        if each := prepared.task.each:
            raise InputError(f"{call.task}: every {each} has a label, which extract and fit read; tune does not")
        settings = choose_reservoir(call.reservoir, prepared.task, sum(prepared.rows.values()))
        model = load_model(prepared.task, settings, call.place.device)
        width, native = model.fpt.backbone.width, None
        if model.reader:
            native = default_layers(prepared.task, native=True), default_pools(prepared.task, width, model.reader)
        backbone = call.reservoir.backbone
        same = [
            data_digest(prepared, draw_rows(prepared, call.source.limit)),
            backbone and full_name(backbone),
            call.reservoir.seed,
            call.place.device,
            model.compute,
            model.digest,
        ]
        digest = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]
        return cls(call=call, prepared=prepared, root=root, digest=digest, width=width, native=native)

    def rows(self, limit: int | None = None) -> dict[str, int]:
        """Return the rows of each split."""
        most = min((each for each in (limit, self.call.source.limit) if each), default=None)
        return {split: min(rows, most or rows) for split, rows in self.prepared.rows.items()}

    def folder(self) -> Path:
        """Return where the trials are kept."""
        return self.root / "tuning" / f"{self.prepared.task.name}-{self.digest}"

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number."""
        rows = sum(self.prepared.rows.values())
        seed, backbone = self.call.reservoir.seed, self.call.reservoir.backbone
        found = candidate(number, self.prepared.task, rows, self.width, seed=seed, backbone=backbone)
        if number or not self.native:
            return found
        layers, pool = self.native
        return replace(found, layers=layers, pool=pool)

    def extract(
        self, candidate: Candidate, limit: int | None, splits: tuple[str, ...] | None, cluster: ClusterOptions = ALONE
    ) -> Extraction:
        """Compute a candidate's columns where they are not cached; of all splits, or of some."""
        groups = *candidate.groups(), self._limited(limit), self.call.place, cluster
        return extract(self.call.task, *groups, splits=splits)

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

    def typed(self, number: int, limit: int | None) -> str:
        """Return the command that extracts a candidate whole."""
        said, kept = self.candidate(number).groups()
        return typed("extract", [self.call.task], said, self._limited(limit), kept, self.call.place)

    def _limited(self, limit: int | None) -> RowOptions:
        return replace(self.call.source, limit=limit) if limit else self.call.source
