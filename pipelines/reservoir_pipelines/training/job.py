"""One training: its arguments, and the data, model and steps that are made from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from reservoir import devices
from reservoir.errors import InputError
from reservoir.option_fields import as_group, typed
from reservoir.options import (
    RECIPE,
    ExtractOptions,
    PlaceOptions,
    ReservoirOptions,
    RowOptions,
    TrainOptions,
)
from reservoir.plan import BATCH_TOKENS, is_native, resolve_model
from reservoir.random import random_key
from reservoir.reservoir import LoadedModel, Reservoir
from reservoir.tasks import source_of
from reservoir.tasks.source import Source, fresh_rows
from reservoir.tasks.task import Split, holds_samples
from reservoir.tasks.variants import Variant, variant_of
from reservoir.training.groups import trained_layer
from reservoir.training.rows import (
    Rows,
    StoredRows,
    TargetScale,
    TrainingRows,
    raw_rows,
    to_batch,
)
from reservoir.training.steps import DEFAULT_STEPS, FPTSteps, default_rate
from reservoir.training.trainer import Processes
from reservoir_pipelines.extraction.extract import extract, origin_of
from reservoir_pipelines.extraction.spec import draw_rows, make_spec
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.training.run_config import make_config
from reservoir_pipelines.training.trainable import load_trainable


@dataclass(frozen=True)
class Request:
    """The arguments of a call of ``train``."""

    task: str
    reservoir: ReservoirOptions
    source: RowOptions
    options: TrainOptions
    place: PlaceOptions  # with the root of the cache

    @property
    def variant(self) -> Variant:
        """The variant of the task that the options choose."""
        return variant_of(self.source.given, self.task)


@dataclass(frozen=True)
class Job:
    """The data and the model of one training, with all defaults of its options resolved.

    ``rows`` has the numbers of the rows of each split; ``targets`` standardises the targets of a regression;
    ``row_kind`` is the kind of the rows of a step: fresh (generated), augmented (images) or stored.
    """

    request: Request
    options: TrainOptions
    settings: Reservoir
    ranks: Processes
    prepared: Prepared
    model: LoadedModel
    rows: Mapping[str, np.ndarray]
    targets: TargetScale | None
    generator: Source
    row_kind: str

    @classmethod
    def load(cls, request: Request, ranks: Processes) -> "Job":
        """Prepare the data, load the model and resolve the defaults."""
        options = request.options
        source = request.source
        variant = request.variant
        settings = resolve_model(request.reservoir, random_inits=variant.random_inits)
        with ranks.first_alone():
            prepared = prepare(request.task, source, cache=request.place.cache, model=request.reservoir)
        if ranks.first:
            notify(*prepared.notes_for(native=settings.input == "native"))
        generator = source_of(prepared.task)
        row_kind = _row_kind(generator, request.task, options)
        if (
            request.reservoir.input is None
            and holds_samples(prepared.task)
            and is_native(prepared.task, settings)
        ):
            settings = replace(settings, input="native")  # else each sample would be a token
        model, groups = load_trainable(
            prepared.task,
            settings,
            options.train,
            ranks.device(request.place.device),
            options.compute,
            output_init=variant.output_init,
        )
        variant.before_training(model.fpt)
        rows = draw_rows(prepared, source.limit)
        default = default_rate(model.fpt.backbone.family.name, prepared.task.name)
        return cls(
            request=request,
            options=replace(
                options,
                steps=options.steps or DEFAULT_STEPS,
                learning_rate=options.learning_rate or default,
                train=groups,
            ),
            settings=settings,
            ranks=ranks,
            prepared=prepared,
            model=model,
            rows=rows,
            targets=None
            if prepared.task.classes
            else TargetScale.of(prepared.split("train").y[rows["train"]]),
            generator=generator,
            row_kind=row_kind,
        )

    @property
    def keeps_last(self) -> bool:
        """Whether the last weights are scored, because the test rows are the validation rows."""
        return self.generator.no_selection is not None

    @property
    def title(self) -> str:
        """Task, model and trained groups, for plots."""
        groups = ", ".join(self.options.train or ())
        return f"{self.prepared.task.name}, {self.settings.title}: {groups} trained"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration of the run: every setting that affects its result, and how it was called."""
        request = self.request
        options = self.options
        model = self.model
        store = (options.store or "float16") if options.from_cache else "float32"
        spec = make_spec(self.prepared, self.rows, model, store)
        if not devices.on_gpu(model.device):  # so that the keys of older runs stay valid
            spec = replace(spec, backbone=replace(spec.backbone, gelu=None))
        recipe = {name: getattr(options, name) for name in RECIPE} | {"seed": model.settings.seed}
        if request.variant.output_init != Variant().output_init:
            recipe |= {"output_init": request.variant.output_init}
        if request.variant.drops_in_frozen_layers:
            recipe |= {"dropout_below": True}
        if self.keeps_last:
            recipe |= {"keep": "last"}
        settings = {
            "spec": spec.to_json(),
            "train": sorted(options.train or ()),
            "recipe": recipe,
            "processes": self.ranks.count,
            "rows": "cached" if options.from_cache else self.row_kind,
        }
        if self.targets:
            settings["targets"] = {name: values.tolist() for name, values in vars(self.targets).items()}
        lengths = self.prepared.split("train").lengths
        command = typed(
            "train",
            [request.task],
            request.reservoir,
            request.source,
            replace(options, resume=False),
            request.place,
        )
        return make_config(
            settings,
            model.device,
            reservoir=model.settings.to_dict(),
            scaling=scaling_to_json(self.prepared.scaling),
            lengths=bool(lengths.min() < lengths.max()),
        ) | {"command": command, "origin": origin_of(request.task)}

    def steps(self) -> FPTSteps:
        """Return the steps of the training."""
        model, options = self.model, self.options
        forward, convert = model.fpt, raw_rows(model, self.prepared.scaling)
        cached = None
        if options.from_cache:
            cached, convert = self._cached_split(), partial(to_batch, device=model.device)

            def forward(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
                return model.fpt.logits(x)

        def split(name: str) -> Split:
            rows = cached(name) if cached else self.prepared.split(name).take(self.rows[name])
            return self.targets.apply(rows) if self.targets else rows

        rows = TrainingRows(
            train=self._training_rows(split, is_cached=cached is not None),
            valid=split("valid"),
            test=split("test"),
            convert=convert,
            scored=max(1, BATCH_TOKENS[devices.kind(model.device)] // model.fpt.task.max_tokens),
        )
        if options.compiled:
            if not devices.on_gpu(model.device):
                raise InputError("--compile: a compiled model is faster on GPUs only", "remove the flag")
            devices.compile_blocks(model.fpt.backbone.blocks)
        return FPTSteps(
            model.fpt, forward, rows, options, model.settings.seed, self.ranks, keeps_last=self.keeps_last
        )

    def _training_rows(self, split: Callable[[str], Split], *, is_cached: bool) -> Rows:
        """Return what draws the rows of a step."""
        seed = self.model.settings.seed

        def augment(x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
            key = random_key(seed, "view", epoch, size=8)
            return self.generator.augmented(x, self.rows["train"][rows], key)

        if self.row_kind == "fresh":
            return fresh_rows(self.generator, seed)
        stored = split("train")
        # The task's own way to draw rows needs their symbols, which cached hidden states do not have.
        own_rows = None if is_cached else self.generator.training_rows(stored, seed, self.options.batch)
        return own_rows or StoredRows(stored, seed, augment if self.row_kind == "augmented" else None)

    def _cached_split(self) -> Callable[[str], Split]:
        """Return a function that reads the cached inputs of the output layer for a split."""
        request = self.request
        options = self.options
        model = self.model
        if trained_layer(model.fpt) != "final" or (
            options.dropout and request.variant.drops_in_frozen_layers
        ):
            raise InputError(
                "--from-cache: cached states fit only the output layer, and no dropout in frozen layers",
                "pass --train output, and --dropout 0 if frozen layers have dropout, or remove the flag",
            )
        extract_options = ExtractOptions(
            **vars(as_group(model.settings, ReservoirOptions)),
            **vars(request.source),
            layers="final",
            pool="last",
            store=options.store or "float16",
            cache=request.place.cache,
            device=str(model.device),
            compute=model.compute,
        )
        with self.ranks.first_alone():
            store = extract(request.task, extract_options).store

        def read(name: str) -> Split:
            split = store[name]
            y = split.labels if split.labels.dtype.kind == "f" else split.labels.astype(np.int64)
            return Split(x=split.read("final/last"), y=y, lengths=split.lengths)

        return read


def _row_kind(source: Source, task: str, options: TrainOptions) -> str:
    """Return the kind of the rows of a step."""
    possible = {"fresh": source.endless, "augmented": source.augments}
    kinds = [kind for kind, can in possible.items() if can and not options.from_cache] + ["stored"]
    if options.rows not in ("auto", *kinds):
        raise InputError(
            f"--rows {options.rows}: neither task {task!r} nor the cache has such rows", "use --rows stored"
        )
    return kinds[0] if options.rows == "auto" else options.rows
