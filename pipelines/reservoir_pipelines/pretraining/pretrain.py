"""The stage ``pretrain``: a backbone trained as a language model from a random start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reservoir.errors import InputError
from reservoir.options import PlaceOptions, PretrainOptions, ShapeOptions
from reservoir.pretraining.corpora import HELD_OUT, Corpus, HeldOut, corpus_named
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.steps import STEPS, LanguageSteps, PretrainRecipe, choose_recipe
from reservoir.reservoir import DEFAULT_BACKBONE, choose_compute, choose_device
from reservoir.training.trainer import DivergedError, State
from reservoir_pipelines.output import notify
from reservoir_pipelines.plots import plot_pretraining
from reservoir_pipelines.pretraining.bit_memory import BIT_MEMORY, pretrain_bit_memory
from reservoir_pipelines.pretraining.pretrained import RUN, Pretraining, check_folder, has_model, save_model
from reservoir_pipelines.training.run_folder import CURVE, RunFolder, make_config

FINAL_TOKENS = 2**18
"""Largest number of held-out tokens that the final losses are measured on."""


def pretrain(
    corpus: str, shape: ShapeOptions, options: PretrainOptions, place: PlaceOptions, *, out: Path
) -> Pretraining:
    """Pretrain a backbone on a corpus: causal models predict the next token, bidirectional ones masked tokens."""
    backbone = shape.backbone or DEFAULT_BACKBONE
    options = replace(options, steps=options.steps or STEPS)
    if corpus == BIT_MEMORY:
        return pretrain_bit_memory(replace(shape, backbone=backbone), options, place, out)
    device = choose_device(place.device)
    compute = choose_compute(options.compute, device)
    source = corpus_named(corpus, options.vocabulary)
    eager = options.compiled and device.type == "cpu"
    model = LanguageModel(backbone, source.vocabulary, shape.seed, eager=eager)
    recipe = choose_recipe(model, backbone, options, shape.seed)
    check_folder(out)
    # A corpus that is too short for a window is refused before anything is written.
    held_out = {split: source.held_out(split, recipe.context + model.extra) for split in HELD_OUT}
    settings = {
        "corpus": source.describe(),
        "backbone": backbone,
        "recipe": recipe.to_dict(),
        "compute": compute,
    }
    run = RunFolder(out / RUN)
    with run.lock():
        run.start(make_config(settings, device))
        state, result = run.state, run.result
        if result and has_model(out, source):
            return Pretraining(**{**result, "folder": str(out)})
        if state.step and not options.resume and not result:  # a finished one without its model writes it again
            raise InputError(
                f"{out}: this pretraining is at step {state.step:,} of {recipe.steps:,}; pass --resume to continue "
                "it, or remove the folder to start again"
            )
        steps = LanguageSteps(model.to(device), source, recipe, getattr(torch, compute), compiled=options.compiled)
        shown, unit = f"{{0:.3f}} bits per {source.unit}", (recipe.batch_tokens, "tokens")
        try:
            state = run.train(model, steps, recipe, shown=shown, unit=unit)
        except DivergedError as error:
            raise DivergedError(f"{error}; use a smaller --learning-rate", error.step, error.state) from None
        notify("measuring the losses on held-out parts")
        done = _result(out, state, model, source, recipe, steps, held_out)
        save_model(out, model, source)
        title = f"{backbone} on {done.corpus['corpus']}: {done.parameters:,} parameters"
        plot_pretraining(run.path / CURVE, run.history, source.unit, done.entropy, title)
        run.finish(done.to_dict())  # last: what was killed before draws its picture when it is resumed
        return done


def _result(
    out: Path,
    state: State,
    model: LanguageModel,
    corpus: Corpus,
    recipe: PretrainRecipe,
    steps: LanguageSteps,
    held_out: Mapping[str, HeldOut],
) -> Pretraining:
    """Return the result; the losses of the last weights are measured on the held-out parts."""
    window = recipe.context + model.extra
    bits: dict[str, Any] = {
        f"{split}_bits": steps.measure(part.head(FINAL_TOKENS // window)) for split, part in held_out.items()
    }
    return Pretraining(
        folder=str(out),
        corpus=corpus.describe(),
        steps=state.step,
        tokens=recipe.tokens(state.step),
        parameters=sum(p.numel() for p in model.parameters()),
        unit=corpus.unit,
        # The entropy is that of a token given those before it; a bidirectional model also sees those after it.
        entropy=corpus.entropy() if model.causal else None,
        seconds=round(state.seconds, 1),
        **bits,
    )
