"""One call of ``train`` after its input has been read: the course, its end, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reservoir import InputError
from reservoir.reservoir import LoadedModel
from reservoir.tasks import Source
from reservoir.training.dropout import set_dropout
from reservoir.training.groups import count, frozen_digest, trained_layer
from reservoir.training.loop import Loop, Recipe
from reservoir.training.processes import Processes
from reservoir.training.scoring import Score, score
from reservoir.training.target_scale import TargetScale
from reservoir_pipelines.extraction.extract import extract
from reservoir_pipelines.extraction.plan import BATCH_TOKENS
from reservoir_pipelines.output import say
from reservoir_pipelines.preparation.prepare import Prepared
from reservoir_pipelines.training.checkpoint import State, load_optimizer, load_trained
from reservoir_pipelines.training.course import Course, DivergedError, converged_step
from reservoir_pipelines.training.material import Material, cached_material, raw_material
from reservoir_pipelines.training.run import CURVE, Run
from reservoir_pipelines.training.tracking import tracking
from reservoir_pipelines.training.training_result import Training, plot_training


@dataclass(kw_only=True)
class Attempt:
    """A training that is about to begin, or to go on.

    Parameters
    ----------
    model : LoadedModel
        With the trained parameters unfrozen.
    prepared : Prepared
    drawn : mapping of str to ndarray of int
        Row numbers that are used of each split.
    source : Source
        Where fresh rows come from.
    kind : str
        What a step trains on.
    recipe : Recipe
    groups : tuple of str
        What is trained.
    config : dict
        What is written of all this.
    targets : TargetScale or None
        Of a regression.
    group : Processes
    run : Run
    features : mapping, optional
        How `extract` is called for a training on cached hidden states.
    steps, eval_every, bound, on_divergence, recompute, compiled, track
        As for `reservoir_pipelines.training.train.train`.
    """

    model: LoadedModel
    prepared: Prepared
    drawn: Mapping[str, np.ndarray]
    source: Source
    kind: str
    recipe: Recipe
    groups: tuple[str, ...]
    config: dict[str, Any]
    targets: TargetScale | None
    group: Processes
    run: Run
    features: Mapping[str, Any] | None
    steps: int
    eval_every: int
    bound: float
    on_divergence: str
    recompute: bool
    compiled: bool
    track: str | None

    def make(self, *, resume: bool) -> Training:
        """Train, or return the result of a run that is finished already."""
        with ExitStack() as held:
            with self.group.first_alone():
                if self.group.first:
                    held.enter_context(self.run.lock())
                    self.run.begin(self.config)
            state = self.run.state
            if result := self._result(state, resume=resume):
                return result
            if state and not resume:
                raise InputError(
                    f"{self.run.path}: this run stands at step {state.step:,} of {self.steps:,}; add --resume to go "
                    "on, or remove the folder to begin again"
                )
            return self._train(state)

    def _result(self, state: State | None, *, resume: bool) -> Training | None:
        """Return what the run came to, if there is nothing to add to it."""
        if not self.run.result:
            return None
        result = Training.from_dict(self.run.result)
        if state and state.step >= self.steps:
            if state.step > self.steps and self.group.first:
                say(f"{self.run.path}: this run has {state.step:,} steps already; here is their result")
            return result
        again = result.diverged_step is not None and result.diverged_step <= self.steps
        return result if again and self.on_divergence == "report" and not resume else None

    def _train(self, state: State | None) -> Training:
        fpt = self.model.fpt
        set_dropout(fpt, self.recipe.dropout)
        before = frozen_digest(fpt)
        material = self._material()
        parameters = [p for p in fpt.parameters() if p.requires_grad]
        forward = self._forward(material)
        loop = Loop(forward, parameters, material.rows, material.convert, self.recipe, fpt.task.classes, self.group)
        if last := self.run.last:
            load_trained(self.run.best, fpt)  # which the end of the training needs: now is the time to find it damaged
            load_trained(last, fpt)
            load_optimizer(last, fpt, loop.optimizer)
        self.group.wait()
        if self.group.first:
            self.run.reopen()
        with tracking(
            self.track if self.group.first else None, self.run.path, self.config["settings"]["recipe"]
        ) as tracker:
            course = Course(
                model=fpt,
                loop=loop,
                validate=partial(self._score, material, forward, "valid"),
                run=self.run,
                group=self.group,
                eval_every=self.eval_every,
                bound=self.bound,
                tracker=tracker,
                state=state,
            )
            diverged = self._go(course)
        if frozen_digest(fpt) != before:
            raise RuntimeError("a frozen tensor has changed; this is a defect of reservoir")
        return self._finish(course, diverged, material, forward)

    def _go(self, course: Course) -> int | None:
        """Train; return the step at which the loss diverged, if that is to be reported."""
        try:
            course.go(self.steps)
        except DivergedError as error:
            state = course.state
            good = f"the last good checkpoint is {self.run.last}" if state else "there is no checkpoint before it"
            if self.on_divergence == "stop":
                raise DivergedError(f"{error}; {good}; take a smaller --learning-rate", error.step) from None
            return error.step
        return None

    def _finish(self, course: Course, diverged: int | None, material: Material, forward: nn.Module) -> Training:
        fpt, state = self.model.fpt, course.state
        test = None
        self.group.wait()
        if state:
            load_trained(self.run.best, fpt)
            fpt.eval()
            test = self._score(material, forward, "test")
        done = Training(
            run=str(self.run.path),
            steps=diverged or (state.step if state else 0),
            best_step=state.best_step if state else None,
            valid_accuracy=state.best_score if state else None,
            valid_loss=state.best_loss if state else None,
            test_accuracy=test.accuracy if test else None,
            test_loss=test.loss if test else None,
            converged_step=converged_step(course.history),
            diverged_step=diverged,
            groups=self.groups,
            trained=count(p for p in fpt.parameters() if p.requires_grad),
            frozen_tensors=len(fpt.state_dict()) - sum(p.requires_grad for p in fpt.parameters()),
            seconds=round(state.seconds, 3) if state else 0.0,
            score="accuracy" if fpt.task.classes else "R²",
        )
        if self.group.first:
            title = f"{fpt.task.name}, {self.model.settings.title}: {', '.join(self.groups)} trained"
            plot_training(self.run.path / CURVE, done.history, done.best_step, title, score=done.score)
            self.run.finish(done.to_dict())
        return done

    def _material(self) -> Material:
        if self.features is None:
            return raw_material(
                self.model, self.prepared, self.drawn, self.source, self.kind, self.recipe.seed, self.targets
            )
        layer = trained_layer(self.model.fpt)
        if layer is None:
            raise InputError(
                f"--from-cache --train {','.join(self.groups)}: what is trained lies in front of the first block, so "
                "there is nothing to cache; train without it, or leave out input and positions"
            )
        pooling = "last" if layer == "final" else "all"
        with self.group.first_alone():
            found = extract(
                **self.features,
                **self.model.settings.to_dict(),
                layers=layer,
                pool=pooling,
                compute=self.model.compute,
                device=str(self.model.device),
            )
        return cached_material(self.model, found.store, layer, self.recipe.seed, self.targets)

    def _forward(self, material: Material) -> nn.Module:
        if self.recompute:
            for block in self.model.fpt.backbone.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if not self.compiled:
            return material.forward
        if self.model.device.type != "cuda":
            raise InputError("--compile: for GPUs; on a CPU the compiled model is not faster; leave it out")
        return torch.compile(material.forward)  # pyright: ignore[reportReturnType]

    def _score(self, material: Material, forward: nn.Module, split: str) -> Score:
        kind = "cuda" if self.model.device.type == "cuda" else "cpu"
        task = self.model.fpt.task
        batch_rows = max(1, BATCH_TOKENS[kind] // task.max_tokens)
        rows = material.valid if split == "valid" else material.test
        return score(forward, material.convert, rows, task.classes, batch_rows, self.group)
