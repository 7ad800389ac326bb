"""The data of a search, its candidates, and the commands that make them again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir_cache import CacheError, FeatureStore, path_below, untracked

from reservoir.errors import InputError
from reservoir.option_fields import typed
from reservoir.options import ClusterOptions, ExtractOptions
from reservoir.reservoir import full_name, load_model
from reservoir_pipelines.extraction.extract import Extraction, extract
from reservoir_pipelines.extraction.run import data_digest, draw_rows, plan_of
from reservoir_pipelines.preparation.prepare import prepare_for_model
from reservoir_pipelines.preparation.prepared import Prepared
from reservoir_pipelines.tuning.judge import KNOWN
from reservoir_pipelines.tuning.space import Candidate, draw_candidate
from reservoir_pipelines.workspace import cache_root


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """The prepared data of a search, and the options that all its candidates share.

    ``digest`` identifies the rows, the seed, and the backbone with its weights and precision. ``width`` is the hidden
    width of the default backbone, ``default`` the candidate that `extract` would compute.
    """

    task: str
    options: ExtractOptions
    prepared: Prepared
    root: Path
    digest: str
    width: int
    default: Candidate

    @classmethod
    def read(cls, task: str, options: ExtractOptions) -> SearchData:
        """Prepare the data as `extract` does, and load the default reservoir."""
        root = cache_root(options.cache)
        options, prepared = prepare_for_model(task, options, root)
        if each := prepared.task.each:
            raise InputError(f"{task}: every {each} has a label, which tune does not support; use extract and fit")
        plan = plan_of(prepared, options)
        model = load_model(prepared.task, plan.reservoir, plan.device, plan.compute)
        identity = [
            data_digest(prepared, draw_rows(prepared, options.limit)),
            options.backbone and full_name(options.backbone),
            options.seed,
            options.device,
            model.compute,
            model.digest,
        ]
        backbone = model.fpt.backbone
        layers = "all" if plan.layers == backbone.layers else ",".join(plan.layers)
        return cls(
            task=task,
            options=options,
            prepared=prepared,
            root=root,
            digest=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12],
            width=backbone.width,
            default=Candidate(
                number=0,
                reservoir={"backbone": options.backbone} if options.backbone else {},
                layers=layers,
                pool=",".join(plan.poolings),
            ),
        )

    @property
    def folder(self) -> Path:
        """Where the trials are kept."""
        return path_below(self.root, "tuning", f"{self.prepared.task.name}-{self.digest}")

    def rows(self, limit: int | None, splits: tuple[str, ...]) -> int:
        """Return the rows of some splits, of each at most ``limit``."""
        most = min((each for each in (limit, self.options.limit) if each), default=None)
        return sum(min(self.prepared.rows[split], most or self.prepared.rows[split]) for split in splits)

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number; 0 is the default."""
        if number == 0:
            return self.default
        rows, options = sum(self.prepared.rows.values()), self.options
        return draw_candidate(
            number, self.prepared.task, rows, self.width, seed=options.seed, backbone=options.backbone
        )

    def extract(
        self,
        number: int,
        limit: int | None,
        splits: tuple[str, ...] | None = KNOWN,
        cluster: ClusterOptions | None = None,
    ) -> Extraction:
        """Compute the columns of a candidate that are not cached, by default of train and valid alone."""
        return extract(self.task, self._options(number, limit), cluster or ClusterOptions(), splits=splits)

    def store(self, number: int, limit: int | None, entry: str, columns: tuple[str, ...]) -> FeatureStore:
        """Return the features of a candidate that was tried; they are computed again if they have been removed."""
        try:
            store = FeatureStore(self.root / "features" / self.prepared.task.name / entry)
            if all(not store.entry.missing(split, columns) for split in KNOWN):
                return store
        except CacheError:
            pass
        with untracked():
            return self.extract(number, limit).store

    def work(self, number: int, rows: int) -> float:
        """Return a measure of the cost of a candidate: tokens of so many rows, times layers computed or pooled."""
        candidate = self.candidate(number)
        windows = -(-self.prepared.task.max_tokens // int(candidate.reservoir.get("stride", 1)))
        layers = 4 if candidate.layers == "all" else candidate.layers.count(",") + 1
        return float(rows * windows * (2 * layers - 1))

    def command(self, number: int, limit: int | None) -> str:
        """Return the command that extracts a candidate."""
        return typed("extract", [self.task], self._options(number, limit))

    def _options(self, number: int, limit: int | None) -> ExtractOptions:
        reservoir, features = self.candidate(number).groups()
        return replace(self.options, **vars(reservoir), **vars(features), limit=limit or self.options.limit)
