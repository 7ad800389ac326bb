"""The data of a search, the candidates on it, and the commands that a person would type for them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from reservoir_cache import CacheError, FeatureStore, aside, path_below

from reservoir.errors import InputError
from reservoir.option_fields import typed
from reservoir.options import ClusterOptions, ExtractOptions
from reservoir.reservoir import full_name, load_model
from reservoir_pipelines.extraction.extract import Extraction, extract
from reservoir_pipelines.extraction.run import plan_of
from reservoir_pipelines.extraction.spec import data_digest, draw_rows
from reservoir_pipelines.preparation.prepare import prepare_for_model
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

    task: str
    options: ExtractOptions
    prepared: Prepared
    root: Path
    digest: str
    width: int
    default: Candidate

    @classmethod
    def of(cls, task: str, options: ExtractOptions) -> Where:
        """Read the data as extract does, and load the default reservoir of the backbone and the seed that are named."""
        root = cache_root(options.cache)
        options, prepared = prepare_for_model(task, options, root)
        if each := prepared.task.each:
            raise InputError(f"{task}: every {each} has a label, which extract and fit read; tune does not")
        plan = plan_of(prepared, options)
        model = load_model(prepared.task, plan.reservoir, plan.device, plan.compute)
        same = [
            data_digest(prepared, draw_rows(prepared, options.limit)),
            options.backbone and full_name(options.backbone),
            options.seed,
            options.device,
            model.compute,
            model.digest,
        ]
        digest = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]
        layers = "all" if plan.layers == model.fpt.backbone.layers else ",".join(plan.layers)
        kept = {"layers": layers, "pool": ",".join(plan.poolings)}
        default = Candidate(number=0, reservoir={"backbone": options.backbone} if options.backbone else {}, **kept)
        return cls(
            task=task,
            options=options,
            prepared=prepared,
            root=root,
            digest=digest,
            width=model.fpt.backbone.width,
            default=default,
        )

    def rows(self, limit: int | None = None) -> dict[str, int]:
        """Return the rows of each split."""
        most = min((each for each in (limit, self.options.limit) if each), default=None)
        return {split: min(rows, most or rows) for split, rows in self.prepared.rows.items()}

    def folder(self) -> Path:
        """Return where the trials are kept."""
        return path_below(self.root, "tuning", f"{self.prepared.task.name}-{self.digest}")

    def candidate(self, number: int) -> Candidate:
        """Return a candidate by its number."""
        if number == 0:
            return self.default
        rows = sum(self.prepared.rows.values())
        seed, backbone = self.options.seed, self.options.backbone
        return candidate(number, self.prepared.task, rows, self.width, seed=seed, backbone=backbone)

    def extract(
        self, candidate: Candidate, limit: int | None, splits: tuple[str, ...] | None, cluster: ClusterOptions = ALONE
    ) -> Extraction:
        """Compute a candidate's columns where they are not cached; of all splits, or of some."""
        return extract(self.task, self._whole(candidate, limit), cluster, splits=splits)

    def store(self, trial: Trial) -> FeatureStore:
        """Return the features of a trial; computed again where they have been removed."""
        try:
            store = FeatureStore(self.root / "features" / self.prepared.task.name / trial.entry)
            if all(not store.entry.missing(split, trial.columns) for split in KNOWN):
                return store
        except CacheError:
            pass
        with aside():
            return self.extract(self.candidate(trial.number), trial.limit, KNOWN).store

    def work(self, candidate: Candidate, rows: int) -> float:
        """Return how much a candidate computes of some rows: tokens, times layers that are run or pooled."""
        windows = -(-self.prepared.task.max_tokens // int(candidate.reservoir.get("stride", 1)))
        layers = 4 if candidate.layers == "all" else candidate.layers.count(",") + 1
        return float(rows * windows * (2 * layers - 1))

    def typed(self, number: int, limit: int | None) -> str:
        """Return the command that extracts a candidate whole."""
        return typed("extract", [self.task], self._whole(self.candidate(number), limit))

    def _whole(self, candidate: Candidate, limit: int | None) -> ExtractOptions:
        """Return all options of a candidate's extraction."""
        said, kept = candidate.groups()
        return replace(self.options, **vars(said), **vars(kept), limit=limit or self.options.limit)
