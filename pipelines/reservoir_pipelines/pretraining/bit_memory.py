"""Pretraining on bit memory: not on tokens but on the task itself, everything trained from a random start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reservoir import InputError
from reservoir.backbones import Backbone
from reservoir.pretraining.corpora import MOST_TOKENS
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.recipe import PretrainRecipe
from reservoir.tasks.bits import BitMemory
from reservoir_pipelines.pretraining.folder import RUN, check_folder, save_model
from reservoir_pipelines.pretraining.outcome import Pretraining
from reservoir_pipelines.training.train import train
from reservoir_pipelines.training.trained import load_run

BIT_MEMORY = "bit-memory"
ROW_TOKENS = BitMemory().task.max_tokens

LEARNING_RATE = 5e-4
"""Constant; with it ``mini`` recalls more than 99.9% of the bits after 300 steps of 34 rows."""


def pretrain_bit_memory(
    *,
    out: Path,
    backbone: str,
    vocabulary: int,
    batch_tokens: int,
    learning_rate: float | None,
    refused: Mapping[str, Any],
    **settings: Any,
) -> Pretraining:
    """Train a whole model on the task bit-memory and keep its backbone as a language model's folder.

    This is the stage ``train`` with every group, from a random start, on rows that no other step has, without dropout;
    its run lies in the folder. The weights that did best on the validation rows are kept, without the task's input and
    output layers. Token embeddings, which a sequence of vectors never uses, are drawn from the family's default, and
    positions beyond the task's 120 tokens stay as they were drawn.

    Parameters
    ----------
    out, backbone, vocabulary, batch_tokens
        As for `reservoir_pipelines.pretraining.pretrain.pretrain`; a step takes as many rows as its tokens give.
    learning_rate : float, optional
        Of Adam, constant; by default `LEARNING_RATE`.
    refused : mapping
        Settings of the recipe that this training does not have, by their names; each has to be as by default.
    **settings
        Steps and others of `reservoir_pipelines.training.train.train`.

    Raises
    ------
    InputError
        For input that cannot be used.
    DivergedError
        If the loss diverges.
    """
    _check_asked(vocabulary, settings["steps"], refused)
    rows = rows_of(batch_tokens)
    model = LanguageModel(backbone, vocabulary, settings["seed"])
    check_folder(out)
    _check_vocabulary(out, model)
    done = train(
        BIT_MEMORY,
        train="all",
        backbone=backbone,
        init="random",
        rows="fresh",
        batch=rows,
        learning_rate=LEARNING_RATE if learning_rate is None else learning_rate,
        dropout=0.0,
        run=out / RUN,
        **settings,
    )
    take_weights(model, load_run(out / RUN, "cpu", "float32").fpt.backbone)
    save_model(out, model)
    return Pretraining(
        folder=str(out),
        corpus={"corpus": BIT_MEMORY, "vocabulary": vocabulary},
        steps=done.steps,
        tokens=done.steps * rows * ROW_TOKENS,
        parameters=sum(p.numel() for p in model.parameters()),
        valid_accuracy=done.valid_accuracy,
        test_accuracy=done.test_accuracy,
        seconds=round(done.seconds, 1),
    )


def _check_asked(vocabulary: int, steps: int, refused: Mapping[str, Any]) -> None:
    for name, value in refused.items():
        if value != getattr(PretrainRecipe, name, None):
            raise InputError(f"--{name.replace('_', '-')} {value}: {BIT_MEMORY} is trained without it; leave it out")
    if steps < 1:
        raise InputError(f"--steps {steps}: give a whole number from 1")
    if not 1 <= vocabulary <= MOST_TOKENS:
        raise InputError(f"--vocabulary {vocabulary}: give a whole number from 1 to {MOST_TOKENS:,}")


def _check_vocabulary(out: Path, model: LanguageModel) -> None:
    """Check that a model that is there has as many tokens: the run in its folder knows nothing of them."""
    try:
        there = int(json.loads((out / "config.json").read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # none is there, or it is damaged and is written again
    more = there - model.model.config.vocab_size
    if more:
        asked = model.mask_token  # which is numbered after all others
        raise InputError(f"{out}: a model with vocabulary = {asked + more} is there, not {asked}; name another folder")


def rows_of(batch_tokens: int) -> int:
    """Return how many rows a step takes that reads at most so many tokens.

    Raises
    ------
    InputError
        If it is none.
    """
    if batch_tokens < ROW_TOKENS:
        raise InputError(f"--batch-tokens {batch_tokens}: give at least one row, {ROW_TOKENS} tokens")
    return batch_tokens // ROW_TOKENS


def take_weights(model: LanguageModel, backbone: Backbone) -> None:
    """Copy the weights of a backbone into the language model of its shape, which keeps its token embeddings."""
    inner = model.model.base_model
    missing, unexpected = inner.load_state_dict(backbone.model.state_dict(), strict=False)
    if unexpected or not all(name.startswith(backbone.family.unused) for name in missing):
        raise RuntimeError("a backbone and its language model differ in their weights; this is a defect of reservoir")
