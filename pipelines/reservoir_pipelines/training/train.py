"""The stage ``train``: chosen groups of a model's parameters, end to end, by Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from reservoir_cache import STORES

from reservoir import InputError
from reservoir.reservoir import GAIN, Reservoir
from reservoir.tasks import task_named
from reservoir.training.groups import parse_groups
from reservoir.training.loop import Recipe
from reservoir.training.processes import processes
from reservoir.training.target_scale import TargetScale
from reservoir_pipelines.extraction.plan import check_windows, draw_rows, make_spec
from reservoir_pipelines.output import say
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.training.attempt import Attempt
from reservoir_pipelines.training.material import choose_kind
from reservoir_pipelines.training.run import Run, make_config
from reservoir_pipelines.training.trained import load_trainable
from reservoir_pipelines.training.training_result import Training
from reservoir_pipelines.workspace import cache_root, data_folder

LEARNING_RATE = 1e-3
LEARNING_RATES = {"lstm": 3e-4, "homology": 1e-4}
"""The paper's: of its LSTMs, and of its homology task; `LEARNING_RATE` of everything else."""

STEPS, EVAL_EVERY, BATCH, DROPOUT = 5000, 500, 8, 0.1

BOUND = 1e4
"""Above it a loss counts as diverged: of a thousand classes, guessing has 7."""


def train(
    task: str,
    *,
    train: str | Sequence[str] | None = None,
    backbone: str | None = None,
    init: str | None = None,
    seed: int = 0,
    gain: float = GAIN,
    depth: int | None = None,
    patch: int = 1,
    stride: int | None = None,
    steps: int = STEPS,
    batch: int = BATCH,
    accumulate: int = 1,
    learning_rate: float | None = None,
    dropout: float = DROPOUT,
    clip: float = 1.0,
    eval_every: int = EVAL_EVERY,
    rows: str = "auto",
    limit: int | None = None,
    from_cache: bool = False,
    store: str = "float16",
    compute: str = "auto",
    recompute: bool = False,
    compiled: bool = False,
    on_divergence: str = "stop",
    bound: float = BOUND,
    track: str | None = None,
    run: Path | None = None,
    resume: bool = False,
    parameters: Mapping[str, Any] | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
) -> Training:
    """Train some groups of a model's parameters on a task, everything else frozen.

    The same settings give the same weights on a CPU, however often the run was stopped and resumed. Started by
    ``accelerate launch`` with several processes, each takes ``batch * accumulate`` rows of a step.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    train : str or sequence of str, optional
        Groups that are trained, of `groups.NAMES`; by default those of a Frozen Pretrained Transformer that
        the backbone has: input, layernorm, positions, output.
    backbone, init, seed, gain, depth, patch, stride
        The model, as for `extract`; the seed also chooses the order of the rows and what
        is dropped.
    steps : int, default 5000
        Steps in all, those of an earlier part of the run included.
    batch, accumulate, learning_rate, dropout, clip
        See `reservoir.training.loop.Recipe`. By default the learning rate is 1e-3, 3e-4 for LSTMs, 1e-4 for
        homology.
    eval_every : int, default 500
        Steps between two validations, each followed by a checkpoint.
    rows : {"auto", "fresh", "augmented", "stored"}
        What a step trains on; see `reservoir_pipelines.training.material.choose_kind`.
    limit : int, optional
        At most so many rows of each split, a fixed draw, the same as for `extract`.
    from_cache : bool, default False
        Take the hidden states up to the lowest trained parameter from the feature cache; what is missing is extracted.
    store : {"float16", "bfloat16", "float32"}
        How these are kept.
    compute : {"auto", "float32", "bfloat16"}
        Precision of the products; weights that are trained, norms and the residual stream are float32 in any case.
    recompute : bool, default False
        Keep only what enters each block and compute the rest again in the backward pass: less memory, more time.
    compiled : bool, default False
        Compile the model, on a GPU.
    on_divergence : {"stop", "report"}
        What happens when the loss is not finite or above ``bound``: an error, or the result of the best checkpoint.
    bound : float, default 1e4
        Above it the loss counts as diverged; that of a regression is on standardised targets.
    track : {"tensorboard", "wandb", "mlflow"}, optional
        Where the numbers go besides ``metrics.jsonl``.
    run : Path, optional
        Folder of the run; by default one below the cache that is named by its settings.
    resume : bool, default False
        Go on from the last checkpoint.
    parameters, data, cache, device
        As for `extract`.

    Raises
    ------
    InputError, CacheError
        For input that cannot be used.
    DivergedError
        If the loss diverges and ``on_divergence`` is ``stop``.
    """
    if min(steps, eval_every, 1 if limit is None else limit) < 1:
        raise InputError(f"--steps {steps} --eval-every {eval_every} --limit {limit}: give whole numbers from 1")
    if on_divergence not in ("stop", "report"):
        raise InputError(f"--on-divergence {on_divergence}: choose stop or report")
    if not bound > 0:
        raise InputError(f"--bound {bound}: give a positive number")
    if store not in STORES:
        raise InputError(f"--store {store}: choose among {', '.join(STORES)}")
    groups = None if train is None else parse_groups(train)
    settings = Reservoir.choose(backbone, init, seed, gain, depth, patch, stride)
    source = task_named(task, data=data_folder(data), **(parameters or {}))
    kind = choose_kind(rows, source, task, from_cache=from_cache)
    root = cache_root(cache)
    with processes() as group, torch.random.fork_rng():
        with group.first_alone():
            prepared = prepare(task, data=data, cache=root, parameters=parameters)
        if group.first:
            for note in prepared.notes():
                say(note)
        model, groups = load_trainable(prepared.task, settings, groups, group.device(device), compute)
        recipe = Recipe(
            batch=batch,
            accumulate=accumulate,
            learning_rate=_learning_rate(model.family, prepared.task.name) if learning_rate is None else learning_rate,
            clip=clip,
            dropout=dropout,
            seed=seed,
        )
        drawn = draw_rows(prepared, limit)
        check_windows(prepared, drawn, patch)
        scale = None if prepared.task.classes else TargetScale.of(prepared.split("train").y[drawn["train"]])
        config = make_config(
            spec=make_spec(prepared, drawn, model, store if from_cache else "float32").to_dict(),
            train=groups,
            recipe=recipe.to_dict(),
            processes=group.count,
            rows="cached" if from_cache else kind,
            model=model,
            scaling=prepared.scaling,
            targets=scale,
        )
        attempt = Attempt(
            model=model,
            prepared=prepared,
            drawn=drawn,
            source=source,
            kind=kind,
            recipe=recipe,
            groups=groups,
            config=config,
            targets=scale,
            group=group,
            run=Run(run or root / "runs" / prepared.task.name / f"{settings.title}-{config['key'][:16]}"),
            features={
                "task": task,
                "limit": limit,
                "parameters": parameters,
                "data": data,
                "cache": root,
                "store": store,
            }
            if from_cache
            else None,
            steps=steps,
            eval_every=eval_every,
            bound=bound,
            on_divergence=on_divergence,
            recompute=recompute,
            compiled=compiled,
            track=track,
        )
        return attempt.make(resume=resume)


def _learning_rate(family: str, task: str) -> float:
    return LEARNING_RATES.get(family) or LEARNING_RATES.get(task) or LEARNING_RATE
