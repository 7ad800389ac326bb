"""The stage ``pretrain``: a backbone trained as a language model, or on the task bit-memory, from random weights."""

import re
import shutil
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from reservoir_cache import refuse_links, remove_leftovers, replace_file, temporary_folder

from reservoir.backbone_names import DEFAULT_BACKBONE
from reservoir.backbones import Backbone
from reservoir.devices import choose_device, choose_training_compute
from reservoir.errors import InputError
from reservoir.file_checks import from_json
from reservoir.option_fields import as_group, flag_of
from reservoir.options import (
    PlaceOptions,
    PretrainOptions,
    ShapeOptions,
    TrainOptions,
)
from reservoir.plan import BIT_MEMORY_RATE, PRETRAIN_STEPS
from reservoir.pretraining.corpora import HELD_OUT_SPLITS, corpus_named
from reservoir.pretraining.language_model import LanguageModel, LanguageSteps, choose_recipe
from reservoir.tasks.bits import BitMemory
from reservoir_pipelines import train
from reservoir_pipelines.files import safetensors_errors_as_os_errors, write_checked
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.plots import draw_bits, plot
from reservoir_pipelines.training.checkpoints import Display, load_run, train_in_folder
from reservoir_pipelines.training.run_folder import CURVE, RESULT, RunFolder, make_config

RUN = "pretraining"  # name of the folder inside the model's folder that holds the run of the pretraining


@dataclass(frozen=True, kw_only=True)
class Pretraining(Record):
    """The result of a pretraining run: losses in bits for a language model, accuracies for bit-memory.

    Parameters
    ----------
    folder : str
        Folder of the model, for ``--backbone``; transformers can load it.
    corpus : dict
        Description of the corpus.
    steps, tokens : int
        Number of steps, and number of tokens read.
    parameters : int
        Number of the model's parameters.
    seconds : float
        Wall time of the steps.
    unit : str or None
        Unit of the losses: ``byte`` or ``token``.
    valid_bits, test_bits : float or None
        Mean loss on the held-out parts of the corpus, in bits per unit.
    entropy : float or None
        Lowest possible mean loss in bits per unit, if known.
    valid_accuracy, test_accuracy : float or None
        Accuracy on held-out rows of a task.
    floor : float or None
        Accuracy of a constant output, or of copying the input.
    """

    folder: str
    corpus: dict[str, Any]
    steps: int
    tokens: int
    parameters: int
    seconds: float
    unit: str | None = None
    valid_bits: float | None = None
    test_bits: float | None = None
    entropy: float | None = None
    valid_accuracy: float | None = None
    test_accuracy: float | None = None
    floor: float | None = None


def check_folder(out: Path) -> None:
    """Raise `InputError` unless the folder is new or empty, or holds a pretraining run."""
    refuse_links(out / RUN)
    has_run = (out / RUN).is_dir()
    is_used = out.exists() and not has_run and (not out.is_dir() or any(out.iterdir()))
    if is_used:  # by a file, or by something else than a pretraining run
        raise InputError(
            f"--out {out}: this is a file, or a folder with other files", "name an empty or a new folder"
        )


def save_model(out: Path, model: LanguageModel, tokenizer: Any = None) -> None:
    """Save a model, and its tokenizer if it has one, so that transformers can load both from the folder ``out``."""
    from transformers import PreTrainedTokenizerFast

    # A process that was killed while it saved has left a temporary folder.
    remove_leftovers(out, locked=True)
    with temporary_folder(out / "model") as folder:
        with safetensors_errors_as_os_errors():
            model.model.save_pretrained(folder)
        if tokenizer is not None:
            # Without this configuration, transformers would use the tokenizer of the family's published models.
            PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        # Each file appears complete, or the earlier one stays.
        for file in folder.iterdir():
            replace_file(out / file.name, partial(shutil.copyfile, file))


FINAL_TOKENS = 2**18  # largest number of held-out tokens for the final losses
BIT_MEMORY = "bit-memory"
ROW_TOKENS = BitMemory().task.max_tokens

WEIGHTS_PART = re.compile(r"model-\d+-of-(?P<parts>\d+)\.safetensors")  # one of the files of a large model

# options that do not apply to bit-memory
UNUSED_BY_BIT_MEMORY = ("context", "short", "short_share", "warm_up", "weight_decay")


def pretrain(
    corpus: str, shape: ShapeOptions, options: PretrainOptions, place: PlaceOptions, *, out: Path
) -> Pretraining:
    """Pretrain a backbone to predict the next token of a corpus; see `api.pretrain`."""
    backbone = shape.backbone or DEFAULT_BACKBONE
    options = replace(options, steps=options.steps or PRETRAIN_STEPS)
    # bit-memory is a task, which predicts bits instead of the next token.
    if corpus == BIT_MEMORY:
        return _pretrain_bit_memory(backbone, shape.seed, options, place, out)
    # Decide all defaults, and refuse wrong input before anything is written.
    device = choose_device(place.device)
    compute = choose_training_compute(options.compute, device)
    source = corpus_named(corpus, options.vocabulary)
    # Compiled on a CPU, the model uses plain attention, because the compiler can fuse its operations.
    eager = options.compiled and device.type == "cpu"
    model = LanguageModel(backbone, source.vocabulary, shape.seed, eager=eager)
    recipe = choose_recipe(model, backbone, options, shape.seed)
    check_folder(out)
    window = recipe.context + 1  # tokens: all but the last are read, and all but the first predicted
    # This raises `InputError` if the corpus is too short.
    held_out = {split: source.held_out(split, window) for split in HELD_OUT_SPLITS}
    described = source.describe()
    settings = {"corpus": described, "backbone": backbone, "recipe": recipe.to_dict(), "compute": compute}
    run = RunFolder(out / RUN)
    with run.lock():
        config = make_config(settings, device)
        run.check(config)  # raises if the run in this folder has other settings
        finished_result = _finished_result(run, out)
        if finished_result and _has_model(out, with_tokenizer=source.tokenizer is not None):
            return finished_result
        if finished_result:
            notify(f"{out}: files of the model are missing; saving it again from the last checkpoint")
        elif run.state.step and not options.resume:
            raise InputError(
                f"{out}: this run is at step {run.state.step:,} of {recipe.steps:,}",
                "pass --resume to continue it, or remove the folder to start again",
            )
        # Train, and measure the last weights on held-out windows.
        steps = LanguageSteps(
            model.to(device), source, recipe, getattr(torch, compute), compiled=options.compiled
        )
        display = Display(
            step=f"{{0:.3f}} bits per {source.unit}",
            validation=f"validation {{valid_bits:.3f}} bits per {source.unit}",
            unit="tokens",
            units_per_step=recipe.batch_tokens,
        )
        state = train_in_folder(run, config, model, steps, recipe, display).state
        notify("measuring the losses on held-out parts")  # of the last weights, not of the best
        bits: dict[str, Any] = {
            f"{split}_bits": steps.measure(part, FINAL_TOKENS) for split, part in held_out.items()
        }
        result = Pretraining(
            folder=str(out),
            corpus=described,
            steps=state.step,
            tokens=recipe.tokens(state.step),
            parameters=sum(p.numel() for p in model.parameters()),
            unit=source.unit,
            entropy=source.entropy,
            seconds=round(state.seconds, 1),
            **bits,
        )
        # Write the model, the plot of its losses, and the result.
        save_model(out, model, source.tokenizer)
        title = f"{backbone} on {result.corpus['corpus']}: {result.parameters:,} parameters"
        plot(run.path / CURVE, (7, 4), title, draw_bits, run.history, source.unit, result.entropy)
        write_checked(run.path / RESULT, result.to_dict())  # last, so that a resumed run draws its plot
        return result


def _finished_result(run: RunFolder, out: Path) -> Pretraining | None:
    """Return the result of a run that has finished in the folder ``out``, or None."""
    result = run.result(partial(from_json, Pretraining))
    return result and replace(result, folder=str(out))  # the folder may have been moved


def _has_model(out: Path, *, with_tokenizer: bool) -> bool:
    """Return whether a folder has the files of `save_model`: configuration, all weights and perhaps a tokenizer."""
    names = {path.name for path in out.iterdir()}
    needed = {"config.json", *(("tokenizer.json",) if with_tokenizer else ())}
    parts_of_weights = [match for name in names if (match := WEIGHTS_PART.fullmatch(name))]
    has_all_parts = bool(parts_of_weights) and len(parts_of_weights) == int(parts_of_weights[0]["parts"])
    return needed <= names and ("model.safetensors" in names or has_all_parts)


def _pretrain_bit_memory(
    backbone: str, seed: int, options: PretrainOptions, place: PlaceOptions, out: Path
) -> Pretraining:
    """Train all parameters on bit-memory with the stage ``train``, and write the backbone as a language model."""
    _refuse_unused_options(options)
    vocabulary, rows = options.vocabulary, options.batch_tokens // ROW_TOKENS
    if rows < 1:
        raise InputError(
            f"--batch-tokens {options.batch_tokens}: give at least one row, {ROW_TOKENS} tokens"
        )
    # Made before training, so that a backbone that cannot be a language model is refused at once.
    model = LanguageModel(backbone, vocabulary, seed)
    check_folder(out)
    # The stage ``train`` trains the backbone with new rows at each step, in a folder of its own. The options that both
    # stages have, such as the number of steps, are passed on.
    train_options = replace(
        as_group(options, TrainOptions),
        learning_rate=options.learning_rate or BIT_MEMORY_RATE,
        train="all",
        rows="fresh",
        batch=rows,
        dropout=0.0,
        run=out / RUN,
    )
    result = train(
        BIT_MEMORY, backbone=backbone, init="random", seed=seed, **vars(train_options), **vars(place)
    )
    with RunFolder(out / RUN).lock():
        # Token embeddings, which vectors do not use, and positions beyond the task's tokens keep their random values.
        take_weights(model, load_run(out / RUN, "cpu", "float32").fpt.backbone)
        save_model(out, model)
    return Pretraining(
        folder=str(out),
        corpus={"corpus": BIT_MEMORY, "vocabulary": vocabulary},
        steps=result.steps,
        tokens=result.steps * rows * ROW_TOKENS,
        parameters=sum(p.numel() for p in model.parameters()),
        valid_accuracy=result.valid_score,
        test_accuracy=result.test_score,
        floor=result.floor,
        seconds=round(result.seconds, 1),
    )


def _refuse_unused_options(options: PretrainOptions) -> None:
    """Raise `InputError` if an option is set that has no effect on bit-memory."""
    for item in fields(PretrainOptions):
        value = getattr(options, item.name)
        is_set = value != item.default
        if item.name in UNUSED_BY_BIT_MEMORY and is_set:
            raise InputError(
                f"{flag_of(item)} {value}: {BIT_MEMORY} does not use this option", "remove the flag"
            )


def take_weights(model: LanguageModel, backbone: Backbone) -> None:
    """Copy the weights of a backbone into a language model of the same shape, except the token embeddings."""
    missing, unexpected = model.model.base_model.load_state_dict(backbone.model.state_dict(), strict=False)
    # The backbone reads vectors, and so has no weights of its own for the parts that it does not use.
    assert not unexpected and all(name.startswith(backbone.family.unused) for name in missing)
