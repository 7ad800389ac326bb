"""Pretraining on bit memory: the whole model is trained on the task itself, from a random start."""

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
from reservoir_pipelines.pretraining.pretrained import RUN, Pretraining, check_folder, save_model
from reservoir_pipelines.training.run_folder import RunFolder, load_run
from reservoir_pipelines.training.train import train

BIT_MEMORY = "bit-memory"
ROW_TOKENS = BitMemory().task.max_tokens

LEARNING_RATE = 5e-4
"""A constant rate; with it ``mini`` recalls more than 99.9% of the bits after 300 steps of 34 rows."""

UNUSED = ("context", "short", "short_share", "warm_up", "weight_decay")
"""Options of language models that do not apply here."""


def pretrain_bit_memory(shape: ShapeOptions, options: PretrainOptions, place: PlaceOptions, out: Path) -> Pretraining:
    """Train a whole model on the task bit-memory, and write its backbone to a folder as a language model.

    This is the stage ``train`` with every group, from a random start, on fresh rows, without dropout; its run lies
    inside the folder. The backbone has the weights of the best validation, without the input and output layers of the
    task. Token embeddings, which vectors do not use, and positions beyond the task's 120 tokens keep their random
    values.
    """
    for item in fields(PretrainOptions):
        if item.name in UNUSED and (value := getattr(options, item.name)) != item.default:
            raise InputError(f"{flag_of(item)} {value}: it does not apply to {BIT_MEMORY}; remove it")
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
    with RunFolder(out / RUN).lock():
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
    """Check that a model in the folder has as many tokens; its run does not record them."""
    try:
        tokens = int(json.loads((out / "config.json").read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is no model, or a damaged one, which is written again
    more = tokens - model.model.config.vocab_size
    if more:
        wanted = model.mask_token  # its number comes after those of all other tokens
        raise InputError(f"{out}: it has a model with vocabulary = {wanted + more}, not {wanted}; name another folder")


def rows_of(batch_tokens: int) -> int:
    """Return the number of rows of a step with at most ``batch_tokens`` tokens."""
    if batch_tokens < ROW_TOKENS:
        raise InputError(f"--batch-tokens {batch_tokens}: give at least {ROW_TOKENS}, the tokens of one row")
    return batch_tokens // ROW_TOKENS


def take_weights(model: LanguageModel, backbone: Backbone) -> None:
    """Copy the weights of a backbone into a language model of its shape, but for the token embeddings."""
    inner = model.model.base_model
    missing, unexpected = inner.load_state_dict(backbone.model.state_dict(), strict=False)
    if unexpected or not all(name.startswith(backbone.family.unused) for name in missing):
        raise RuntimeError("the backbone and its language model have different weights; this is a defect of reservoir")
