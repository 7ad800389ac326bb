"""Pretraining on bit memory: not on tokens but on the task itself, everything trained from a random start."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

from reservoir.backbones import Backbone
from reservoir.errors import InputError
from reservoir.option_fields import as_group, flag_of
from reservoir.options import PlaceOptions, PretrainOptions, ReservoirOptions, RowOptions, ShapeOptions, TrainOptions
from reservoir.pretraining.corpora import MOST_TOKENS
from reservoir.pretraining.language_model import LanguageModel
from reservoir.tasks.bits import BitMemory
from reservoir_pipelines.pretraining.folder import RUN, check_folder, save_model
from reservoir_pipelines.pretraining.outcome import Pretraining
from reservoir_pipelines.training.run import Run
from reservoir_pipelines.training.train import train
from reservoir_pipelines.training.trained import load_run

BIT_MEMORY = "bit-memory"
ROW_TOKENS = BitMemory().task.max_tokens

LEARNING_RATE = 5e-4
"""Constant; with it ``mini`` recalls more than 99.9% of the bits after 300 steps of 34 rows."""

UNUSED = ("context", "short", "short_share", "warm_up", "weight_decay")
"""Options that this training does not have."""


def pretrain_bit_memory(shape: ShapeOptions, options: PretrainOptions, place: PlaceOptions, out: Path) -> Pretraining:
    """Train a whole model on the task bit-memory and keep its backbone as a language model's folder.

    This is the stage ``train`` with every group, from a random start, on rows that no other step has, without dropout;
    its run lies in the folder. The weights that did best on the validation rows are kept, without the task's input and
    output layers. Token embeddings, which a sequence of vectors never uses, are drawn from the family's default, and
    positions beyond the task's 120 tokens stay as they were drawn.
    """
    for item in fields(PretrainOptions):
        if item.name in UNUSED and (value := getattr(options, item.name)) != item.default:
            raise InputError(f"{flag_of(item)} {value}: {BIT_MEMORY} is trained without it; leave it out")
    if not 1 <= options.vocabulary <= MOST_TOKENS:
        raise InputError(f"--vocabulary {options.vocabulary}: give a whole number from 1 to {MOST_TOKENS:,}")
    rows = rows_of(options.batch_tokens)
    model = LanguageModel(shape.backbone or "", options.vocabulary, shape.seed)
    check_folder(out)
    _check_vocabulary(out, model)
    done = train(
        BIT_MEMORY,
        ReservoirOptions(backbone=shape.backbone, init="random", seed=shape.seed),
        RowOptions(),
        replace(
            as_group(options, TrainOptions),
            train="all",
            rows="fresh",
            batch=rows,
            learning_rate=options.learning_rate or LEARNING_RATE,
            dropout=0.0,
            run=out / RUN,
        ),
        place,
    )
    with Run(out / RUN).lock():
        take_weights(model, load_run(out / RUN, "cpu", "float32").fpt.backbone)
        save_model(out, model)
    return Pretraining(
        folder=str(out),
        corpus={"corpus": BIT_MEMORY, "vocabulary": options.vocabulary},
        steps=done.steps,
        tokens=done.steps * rows * ROW_TOKENS,
        parameters=sum(p.numel() for p in model.parameters()),
        valid_accuracy=done.valid_score,
        test_accuracy=done.test_score,
        floor=done.floor,
        seconds=round(done.seconds, 1),
    )


def _check_vocabulary(out: Path, model: LanguageModel) -> None:
    """Check that a model that is there has as many tokens: the run in its folder knows nothing of them."""
    try:
        there = int(json.loads((out / "config.json").read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # none is there, or it is damaged and is written again
    more = there - model.model.config.vocab_size
    if more:
        wanted = model.mask_token  # which is numbered after all others
        there = wanted + more
        raise InputError(f"{out}: a model with vocabulary = {there} is there, not {wanted}; name another folder")


def rows_of(batch_tokens: int) -> int:
    """Return how many rows a step takes that reads at most so many tokens."""
    if batch_tokens < ROW_TOKENS:
        raise InputError(f"--batch-tokens {batch_tokens}: give at least one row, {ROW_TOKENS} tokens")
    return batch_tokens // ROW_TOKENS


def take_weights(model: LanguageModel, backbone: Backbone) -> None:
    """Copy the weights of a backbone into the language model of its shape, which keeps its token embeddings."""
    inner = model.model.base_model
    missing, unexpected = inner.load_state_dict(backbone.model.state_dict(), strict=False)
    if unexpected or not all(name.startswith(backbone.family.unused) for name in missing):
        raise RuntimeError("a backbone and its language model differ in their weights; this is a defect of reservoir")
