"""One training: its arguments, and the data, model and steps that are made from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import Tensor

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
from reservoir.plan import BATCH_TOKENS
from reservoir.random import random_key
from reservoir.reservoir import LoadedModel
from reservoir.tasks import Variant
from reservoir.tasks.source import Source, fresh_rows
from reservoir.tasks.task import Split
from reservoir.training.groups import trained_layer
from reservoir.training.rows import (
    Rows,
    StoredRows,
    TargetScale,
    TrainingBatch,
    TrainingRows,
    raw_rows,
    to_batch,
)
from reservoir.training.steps import FPTSteps
from reservoir.training.trainer import Processes
from reservoir_pipelines.extraction.extract import extract, origin_of
from reservoir_pipelines.extraction.spec import draw_rows, make_spec
from reservoir_pipelines.preparation.prepared import Prepared, scaling_to_json
from reservoir_pipelines.training.run_folder import make_config


@dataclass(frozen=True, kw_only=True)
class Job:
    """The data and the model of one training, and the options that made them.

    Parameters
    ----------
    task : str
        Name of the task, or the path of its data, as it was given.
    reservoir, source, place : ReservoirOptions, RowOptions, PlaceOptions
        The options of the model, of the rows, and of where to compute, as they were given.
    options : TrainOptions
        The options of the training, with all defaults resolved.
    ranks : Processes
        This process, among those that train together.
    prepared : Prepared
        The data of the task.
    variant : Variant
        The variant of the task that the options choose.
    generator : Source
        The source of the task, which may generate or augment rows.
    model : LoadedModel
        The model, whose trained groups are unfrozen.
    row_kind : str
        Kind of the rows of a step: fresh (generated), augmented (images) or stored.
    """

    task: str
    reservoir: ReservoirOptions
    source: RowOptions
    options: TrainOptions
    place: PlaceOptions
    ranks: Processes
    prepared: Prepared
    variant: Variant
    generator: Source
    model: LoadedModel
    row_kind: str

    @cached_property
    def rows(self) -> Mapping[str, np.ndarray]:
        """The numbers of the rows of each split."""
        return draw_rows(self.prepared, self.source.limit)

    @cached_property
    def targets(self) -> TargetScale | None:
        """The scale that standardises the targets of a regression; None for classes."""
        if self.prepared.task.classes:
            return None
        return TargetScale.of(self.prepared.split("train").y[self.rows["train"]])

    @property
    def keeps_last(self) -> bool:
        """Whether the last weights are scored, because the test rows are the validation rows."""
        return self.generator.no_selection is not None

    @property
    def title(self) -> str:
        """Task, model and trained groups, for plots."""
        groups = ", ".join(self.options.train or ())
        return f"{self.prepared.task.name}, {self.model.settings.title}: {groups} trained"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration of the run: every setting that affects its result, and how it was called."""
        options = self.options
        model = self.model
        store = (options.store or "float16") if options.from_cache else "float32"
        spec = make_spec(self.prepared, self.rows, model, store)
        if not devices.on_gpu(model.device):  # so that the keys of older runs stay valid
            spec = replace(spec, backbone=replace(spec.backbone, gelu=None))
        recipe = {name: getattr(options, name) for name in RECIPE} | {"seed": model.settings.seed}
        # Only settings that differ from the default enter the recipe, so that the keys of older runs stay valid.
        if self.variant.output_init != Variant().output_init:
            recipe |= {"output_init": self.variant.output_init}
        if self.variant.drops_in_frozen_layers:
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
            [self.task],
            self.reservoir,
            self.source,
            replace(options, resume=False),
            self.place,
        )
        return make_config(
            settings,
            model.device,
            reservoir=model.settings.to_dict(),
            scaling=scaling_to_json(self.prepared.scaling),
            lengths=bool(lengths.min() < lengths.max()),
        ) | {"command": command, "origin": origin_of(self.task)}

    def steps(self) -> FPTSteps:
        """Return the steps of the training."""
        options = self.options
        model = self.model
        self._check_flags()
        inputs = self._cached_inputs() if options.from_cache else self._raw_inputs()
        rows = TrainingRows(
            train=self._training_rows(inputs),
            valid=inputs.split("valid"),
            test=inputs.split("test"),
            convert=inputs.convert,
            scored=max(1, BATCH_TOKENS[devices.kind(model.device)] // model.fpt.task.max_tokens),
        )
        if options.compiled:
            devices.compile_blocks(model.fpt.backbone.blocks)
        return FPTSteps(
            model.fpt,
            inputs.forward,
            rows,
            options,
            model.settings.seed,
            self.ranks,
            keeps_last=self.keeps_last,
        )

    def _check_flags(self) -> None:
        """Refuse flags that do not fit the model or its device."""
        if self.options.compiled and not devices.on_gpu(self.model.device):
            raise InputError("--compile: a compiled model is faster on GPUs only", "remove the flag")
        trains_below = trained_layer(self.model.fpt) != "final"
        drops_below = bool(self.options.dropout) and self.variant.drops_in_frozen_layers
        if self.options.from_cache and (trains_below or drops_below):
            raise InputError(
                "--from-cache: cached states fit only the output layer, and no dropout in frozen layers",
                "pass --train output, and --dropout 0 if frozen layers have dropout, or remove the flag",
            )

    def _raw_inputs(self) -> "_Inputs":
        """Return the prepared sequences, which go through the whole model."""

        def split(name: str) -> Split:
            return self._standardised(self.prepared.split(name).take(self.rows[name]))

        return _Inputs(
            split=split, convert=raw_rows(self.model, self.prepared.scaling), forward=self.model.fpt
        )

    def _cached_inputs(self) -> "_Inputs":
        """Return the inputs of the output layer, from an entry of the cache; extract them if it has none."""
        model = self.model
        extract_options = ExtractOptions(
            **vars(as_group(model.settings, ReservoirOptions)),
            **vars(self.source),
            layers="final",
            pool="last",
            store=self.options.store or "float16",
            cache=self.place.cache,
            device=str(model.device),
            compute=model.compute,
        )
        with self.ranks.first_alone():
            store = extract(self.task, extract_options).store

        def split(name: str) -> Split:
            cached = store[name]
            # PyTorch takes class numbers as int64 only; targets of a regression stay floating-point numbers.
            is_regression = cached.labels.dtype.kind == "f"
            y = cached.labels if is_regression else cached.labels.astype(np.int64)
            return self._standardised(Split(x=cached.read("final/last"), y=y, lengths=cached.lengths))

        def output_layer(x: Tensor, _lengths: Tensor) -> Tensor:
            return model.fpt.logits(x)

        return _Inputs(split=split, convert=partial(to_batch, device=model.device), forward=output_layer)

    def _standardised(self, split: Split) -> Split:
        """Return a split whose targets, if it has any, are standardised."""
        return self.targets.apply(split) if self.targets else split

    def _training_rows(self, inputs: "_Inputs") -> Rows:
        """Return what draws the rows of a step."""
        seed = self.model.settings.seed
        if self.row_kind == "fresh":
            return fresh_rows(self.generator, seed)
        stored = inputs.split("train")
        # The task's own way to draw rows needs their symbols, which cached hidden states do not have.
        if not self.options.from_cache:
            own_rows = self.generator.training_rows(stored, seed, self.options.batch)
            if own_rows:
                return own_rows

        def augment(x: np.ndarray, rows: np.ndarray, epoch: int) -> np.ndarray:
            key = random_key(seed, "view", epoch, size=8)
            return self.generator.augmented(x, self.rows["train"][rows], key)

        return StoredRows(stored, seed, augment if self.row_kind == "augmented" else None)


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What the steps compute on: the rows of a split by its name, their conversion, and the forward pass.

    ``forward`` maps a converted batch (batch, tokens, ...) and its lengths to logits.
    """

    split: Callable[[str], Split]
    convert: Callable[[Split], TrainingBatch]
    forward: Callable[[Tensor, Tensor], Tensor]


def choose_row_kind(source: Source, task: str, options: TrainOptions) -> str:
    """Return the kind of the rows of a step: ``fresh``, ``augmented`` or ``stored``."""
    possible = {"fresh": source.endless, "augmented": source.augments}
    kinds = [kind for kind, can in possible.items() if can and not options.from_cache] + ["stored"]
    if options.rows not in ("auto", *kinds):
        raise InputError(
            f"--rows {options.rows}: neither task {task!r} nor the cache has such rows", "use --rows stored"
        )
    return kinds[0] if options.rows == "auto" else options.rows
