"""One training: its data, its model with trainable groups, its options with all defaults, its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import path_below

from reservoir import devices
from reservoir.errors import InputError
from reservoir.inputs.native import is_native
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.option_fields import typed
from reservoir.options import RECIPE, PlaceOptions, ReservoirOptions, RowOptions, TrainOptions
from reservoir.plan import TRAIN_STEPS, train_rate
from reservoir.plan.model import resolve_model
from reservoir.reservoir import Reservoir
from reservoir.tasks import Variant, source_of, variant_of
from reservoir.tasks.source import Source
from reservoir.tasks.task import Split, Task, holds_samples
from reservoir.training.rows import TargetScale
from reservoir.training.trainable import make_trainable
from reservoir.training.trainer import Processes
from reservoir_pipelines.data.labels import require_labels
from reservoir_pipelines.extraction.extract import origin_of
from reservoir_pipelines.extraction.spec import model_spec
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import (
    Prepared,
    data_spec,
    draw_rows,
    position_means,
    scaling_to_json,
)
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
    learning_rate : float
        The learning rate of these options.
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
    learning_rate: float
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
    def target_scale(self) -> TargetScale | None:
        """The scale that standardises the targets of a regression; None for classes."""
        if self.prepared.task.classes:
            return None
        return TargetScale.of(self.prepared.split("train").y[self.rows["train"]])

    @property
    def keeps_last(self) -> bool:
        """Whether the last weights are scored, because the test rows are the validation rows."""
        return self.generator.no_selection is not None

    @property
    def patience(self) -> int | None:
        """The number of steps without a better validation after which the training stops; None if it does not."""
        options = self.options
        return None if options.patience is None else options.patience * options.eval_every

    @property
    def validation(self) -> dict[str, Any]:
        """When the training is validated and stopped, as JSON values; the key of the run does not depend on it."""
        return {"eval_every": self.options.eval_every, "patience": self.options.patience}

    @property
    def title(self) -> str:
        """Task, model and trained groups, for plots."""
        groups = ", ".join(self.options.train or ())
        return f"{self.prepared.task.name}, {self.model.settings.title}: {groups} trained"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration of the run: every setting that affects its result, and how it was called."""
        lengths = self.prepared.split("train").lengths
        options_from_first_step = replace(self.options, resume=False)
        command = typed(
            "train", [self.task], self.reservoir, self.source, options_from_first_step, self.place
        )
        prepared = self.prepared
        means = position_means(prepared.task, prepared.split("train"), self.rows["train"], prepared.scaling)
        config = make_config(
            self._settings(),
            self.model.device,
            reservoir=self.model.settings.to_dict(),
            scaling=scaling_to_json(self.prepared.scaling),
            lengths=bool(lengths.min() < lengths.max()),
            validation=self.validation,
            position_means=None if means is None else means.tolist(),
        )
        return {**config, "command": command, "origin": origin_of(self.task)}

    def _settings(self) -> dict[str, Any]:
        """Return every setting that affects the result, as JSON values; the key of the run is their digest."""
        options = self.options
        model = self.model
        store = (options.store or "float16") if options.from_cache else "float32"
        spec = model_spec(model, self.prepared.task.to_dict(), data_spec(self.prepared, self.rows), store)
        if not devices.on_gpu(model.device):  # so that the keys of older runs stay valid
            spec = replace(spec, backbone=replace(spec.backbone, gelu=None))
        recipe = {name: getattr(options, name) for name in RECIPE} | {"seed": model.settings.seed}
        # Only settings that differ from the default enter the recipe, so that the keys of older runs stay valid.
        if self.variant.output_init != Variant().output_init:
            recipe["output_init"] = self.variant.output_init
        if self.variant.drops_in_frozen_layers:
            recipe["dropout_below"] = True
        if self.keeps_last:
            recipe["keep"] = "last"
        settings = {
            "spec": spec.to_json(),
            "train": sorted(options.train or ()),
            "recipe": recipe,
            "processes": self.ranks.count,
            "rows": "cached" if options.from_cache else self.row_kind,
        }
        if self.target_scale:
            settings["targets"] = {
                name: values.tolist() for name, values in vars(self.target_scale).items()
            }
        return settings

    @property
    def folder(self) -> Path:
        """The folder of the run: ``--run``, else one in the cache that is named after the settings."""
        if self.options.run:
            return self.options.run
        name = f"{self.model.settings.title}-{self.config['key'][:16]}"
        return path_below(cache_root(self.place.cache), "runs", self.prepared.task.name, name)

    def standardised(self, split: Split) -> Split:
        """Return a split with standardised targets; unchanged if its labels are classes."""
        return self.target_scale.apply(split) if self.target_scale else split


def load_job(
    task: str,
    reservoir: ReservoirOptions,
    source: RowOptions,
    options: TrainOptions,
    place: PlaceOptions,
    ranks: Processes,
) -> Job:
    """Prepare the data of a training, load its model with trainable groups, and decide the defaults."""
    # 1. The data, which the first process prepares for all.
    with ranks.first_alone():
        prepared = prepare(task, source, cache=place.cache, model=reservoir)
    require_labels(prepared.task, "train")
    # 2. The variant and the source of the task, and the settings of the model.
    variant = variant_of(source.given, task)
    generator = source_of(prepared.task)
    settings = resolve_model(reservoir, random_inits=variant.random_inits)
    if ranks.first:
        notify(*prepared.notes_for(native=settings.input == "native"))
    # Samples of a wave go through the model's own input layer, else each would be a token.
    if reservoir.input is None and holds_samples(prepared.task) and is_native(prepared.task, settings):
        settings = replace(settings, input="native")
    if ranks.first and reservoir.input is None:
        notify(*_notes_on_letters(prepared.task, settings))
    # 3. The kind of the rows of a step.
    row_kind = _row_kind(task, generator, options)
    if ranks.first and row_kind == "fresh" and source.limit is not None:
        notify(
            f"{prepared.task.name}: every step has new training rows; --limit {source.limit} holds for valid and test, "
            "and --rows stored also limits the training rows"
        )
    # 4. The model.
    if prepared.task.labels_each_token or prepared.task.labels_text_tokens:
        raise InputError(
            f"task {prepared.task.name!r}: every token has a label, which train does not support",
            "use extract and fit",
        )
    device = ranks.device(place.device)
    precision = devices.choose_training_compute(options.compute, devices.choose_device(device))
    loaded = load_model(prepared.task, settings, device, "float32", variant.output_init)
    model, groups = make_trainable(
        loaded,
        options.train,
        precision,
        dropout=options.dropout,
        drops_below=variant.drops_in_frozen_layers,
    )
    variant.before_training(model.fpt)
    # 5. The defaults that depend on the model and the task.
    learning_rate = options.learning_rate or train_rate(model.fpt.backbone.family.name, prepared.task.name)
    resolved_options = replace(
        options, steps=options.steps or TRAIN_STEPS, learning_rate=learning_rate, train=groups
    )
    return Job(
        task=task,
        reservoir=reservoir,
        source=source,
        options=resolved_options,
        learning_rate=learning_rate,
        place=place,
        ranks=ranks,
        prepared=prepared,
        variant=variant,
        generator=generator,
        model=model,
        row_kind=row_kind,
    )


def _notes_on_letters(task: Task, settings: Reservoir) -> list[str]:
    """Return a line if letters are symbols for a random input layer, though a tokenizer could read them.

    There is one for every chat, too: its letters are those of its messages in JSON, which no model should read.
    """
    is_chat = bool(task.parameters.get("chat"))
    has_tokenizer = bool(task.alphabet) and is_native(task, settings)
    if settings.input == "native" or not (is_chat or has_tokenizer):
        return []
    letters = "the letters of the messages in JSON" if is_chat else "letters"
    remedy = "--input native reads texts by the model's own tokenizer"
    return [f"{task.name}: train reads {letters} by a random input layer; {remedy}"]


def _row_kind(task: str, generator: Source, options: TrainOptions) -> str:
    """Return the kind of the rows of a step: the one that the options name, by default the first that the task has.

    Raise `InputError` if the options name a kind that the task, or the cache, does not have.
    """
    # The cache has features of stored rows only.
    row_kinds = ["stored"] if options.from_cache else generator.row_kinds
    if options.rows not in ("auto", *row_kinds):
        raise InputError(
            f"--rows {options.rows}: neither task {task!r} nor the cache has such rows", "use --rows stored"
        )
    return row_kinds[0] if options.rows == "auto" else options.rows
