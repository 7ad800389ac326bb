"""The stage ``pretrain``: a language model of a backbone's shape, trained from a random start, kept as a backbone."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reservoir import InputError
from reservoir.pretraining.corpora import BYTES, HELD_OUT, Corpus, HeldOut, corpus_named
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.recipe import PretrainRecipe, choose_recipe
from reservoir.pretraining.steps import Steps
from reservoir.reservoir import choose_compute, choose_device
from reservoir_pipelines.output import say, training_meter
from reservoir_pipelines.pretraining.bit_memory import BIT_MEMORY, pretrain_bit_memory
from reservoir_pipelines.pretraining.folder import RUN, check_folder, has_model, save_model
from reservoir_pipelines.pretraining.outcome import Pretraining, plot_pretraining
from reservoir_pipelines.training.checkpoint import State, load_optimizer, load_trained, read_state, save_checkpoint
from reservoir_pipelines.training.course import DivergedError
from reservoir_pipelines.training.run import CHECKPOINTS, CURVE, FORMAT, METRICS, Journal, Run, read_journal

BACKBONE = "mini"
STEPS, BATCH_TOKENS = 2000, 4096
EVAL_EVERY = 500
VALID_TOKENS, FINAL_TOKENS = 2**16, 2**18
"""Most held-out tokens that are measured at intervals, and at the end."""


def pretrain(
    corpus: str,
    *,
    out: Path,
    backbone: str = BACKBONE,
    vocabulary: int = BYTES,
    steps: int = STEPS,
    batch_tokens: int = BATCH_TOKENS,
    context: int | None = None,
    short: int | None = None,
    short_share: float = PretrainRecipe.short_share,
    learning_rate: float | None = None,
    warm_up: int = 200,
    weight_decay: float = 0.1,
    seed: int = 0,
    eval_every: int = EVAL_EVERY,
    compute: str = "auto",
    compiled: bool = False,
    resume: bool = False,
    cache: Path | None = None,
    device: str = "auto",
) -> Pretraining:
    """Pretrain a backbone on a corpus: the next token for causal models, hidden tokens for those that see both ways.

    Parameters
    ----------
    corpus : str
        Path of a text file, gzipped or not, or of a folder of them; the name of a stream: see
        `reservoir.pretraining.corpora.STREAMS`; or ``bit-memory``: see `pretrain_bit_memory`.
    out : Path
        Folder of the model; transformers loads it, and so does ``--backbone``.
    backbone : str, default "mini"
        Gives the shape.
    vocabulary : int, default 256
        Of text: 256 for bytes, more for a tokenizer trained on it. Of a stream: its number of tokens. Of bit-memory:
        that of the token embeddings, which are not trained.
    steps, batch_tokens, context, short, short_share, learning_rate, warm_up, weight_decay, seed
        See `PretrainRecipe`, and `choose_recipe` for what is so by default.
        Bit-memory has of these steps, batch_tokens, learning_rate, and seed; its learning rate is 5e-4 by default.
    eval_every : int, default 500
        Steps between two measurements on the validation part, each followed by a checkpoint.
    compute : {"auto", "float32", "bfloat16"}
        Precision of the products.
    compiled : bool, default False
        Compile the model; on a CPU this needs a C++ compiler.
    resume : bool, default False
        Go on from the last checkpoint.
    cache : Path, optional
        Root of the cache, where the held-out rows of bit-memory are prepared.
    device : str, default "auto"
        ``auto`` takes a GPU where there is one.

    Raises
    ------
    InputError
        For input that cannot be used.
    DivergedError
        If the loss is not finite.
    """
    if eval_every < 1:
        raise InputError(f"--eval-every {eval_every}: give a whole number from 1")
    if corpus == BIT_MEMORY:
        return pretrain_bit_memory(
            out=out,
            backbone=backbone,
            vocabulary=vocabulary,
            batch_tokens=batch_tokens,
            refused={
                "context": context,
                "short": short,
                "short_share": short_share,
                "warm_up": warm_up,
                "weight_decay": weight_decay,
            },
            steps=steps,
            learning_rate=learning_rate,
            seed=seed,
            eval_every=eval_every,
            compute=compute,
            compiled=compiled,
            resume=resume,
            cache=cache,
            device=device,
        )
    place = choose_device(device)
    dtype = choose_compute(compute, place)
    source = corpus_named(corpus, vocabulary)
    model = LanguageModel(backbone, source.vocabulary, seed, eager=compiled and place.type == "cpu")
    recipe = choose_recipe(
        model,
        backbone,
        steps=steps,
        batch_tokens=batch_tokens,
        context=context,
        short=short,
        short_share=short_share,
        learning_rate=learning_rate,
        warm_up=warm_up,
        weight_decay=weight_decay,
        seed=seed,
    )
    attempt = _Attempt(
        model=model.to(place),
        corpus=source,
        recipe=recipe,
        out=out,
        config=_config(source, backbone, recipe, dtype, place),
        steps=Steps(model, source, recipe, getattr(torch, dtype), compiled=compiled),
        eval_every=eval_every,
    )
    return attempt.make(resume=resume)


@dataclass(kw_only=True)
class _Attempt:
    """One call of `pretrain` after its input has been read."""

    model: LanguageModel
    corpus: Corpus
    recipe: PretrainRecipe
    out: Path
    config: dict[str, Any]
    steps: Steps
    eval_every: int

    @property
    def run(self) -> Run:
        return Run(self.out / RUN)

    def make(self, *, resume: bool) -> Pretraining:
        check_folder(self.out)
        # What is too short for a window is refused before the folder keeps what was asked.
        valid, test = (self.corpus.held_out(split, self._window) for split in HELD_OUT)
        with self.run.lock():
            self.run.begin(self.config)
            last, result = self.run.last, self.run.result
            if result and has_model(self.out, self.corpus):
                return Pretraining(**{**result, "folder": str(self.out)})
            if last and not resume and not result:  # of a finished one without its model, that is written again
                raise InputError(
                    f"{self.out}: this pretraining stands at step {read_state(last).step:,} of {self.recipe.steps:,}; "
                    "add --resume to go on, or remove the folder to begin again"
                )
            state = self._train(last)
            say("measuring on what was held out")
            most = FINAL_TOKENS // self._window
            return self._finish(state, valid.head(most), test.head(most))

    @property
    def _window(self) -> int:
        return self.recipe.context + self.model.extra

    def _train(self, last: Path | None) -> State:
        state = State(step=0, seconds=0.0, best_step=0, best_score=0.0, best_loss=0.0)
        if last:
            state = read_state(last)
            load_trained(last, self.model)
            load_optimizer(last, self.model, self.steps.optimizer)
        tokens = {window: window + self.model.extra for window in self.recipe.stages.values()}
        parts = {w: self.corpus.held_out("valid", count).head(VALID_TOKENS // count) for w, count in tokens.items()}
        journal = Journal(self.run.path / METRICS, state.step)
        text = f"{{0:.3f}} bits per {self.corpus.unit}"
        each = self.recipe.batch_tokens
        with training_meter(self.recipe.steps, state.step, text, each=each, unit="tokens/s") as show:
            while state.step < self.recipe.steps:
                upto = min(self.recipe.steps, (state.step // self.eval_every + 1) * self.eval_every)
                started = time.monotonic()
                valid = parts[self.recipe.window(upto - 1)]
                lines: list[dict[str, Any]] = []
                for step, values in self.steps.take(state.step, upto):
                    bits, norm = values.tolist()
                    if not bits < float("inf"):
                        raise DivergedError(
                            f"the loss is {bits} at step {step:,}; take a smaller --learning-rate", step
                        )
                    bits /= valid.bytes_per_token
                    lines.append({"step": step, "bits": bits, "norm": norm})
                    show(step, bits)
                seconds = state.seconds + time.monotonic() - started
                found = self.steps.measure(valid) / valid.bytes_per_token
                journal.add([*lines, {"step": upto, "valid_bits": found, "seconds": round(seconds, 1)}])
                state = State(step=upto, seconds=seconds, best_step=upto, best_score=-found, best_loss=found)
                save_checkpoint(self.run.path / CHECKPOINTS, self.model, self.steps.optimizer, state)
        return state

    def _finish(self, state: State, valid: HeldOut, test: HeldOut) -> Pretraining:
        # The entropy is that of a token after those before it; a model that sees both ways is given more.
        entropy = self.corpus.entropy(self._window) if self.model.causal else None
        done = Pretraining(
            folder=str(self.out),
            corpus=self.corpus.describe(),
            steps=state.step,
            tokens=self.recipe.tokens(state.step),
            parameters=sum(p.numel() for p in self.model.parameters()),
            unit=self.corpus.unit,
            valid_bits=self.steps.measure(valid) / valid.bytes_per_token,
            test_bits=self.steps.measure(test) / test.bytes_per_token,
            entropy=entropy,
            seconds=round(state.seconds, 1),
        )
        save_model(self.out, self.model, self.corpus)
        title = f"{self.config['settings']['backbone']} on {done.corpus['corpus']}: {done.parameters:,} parameters"
        plot_pretraining(
            self.run.path / CURVE, read_journal(self.run.path / METRICS), self.corpus.unit, done.entropy, title
        )
        self.run.finish(done.to_dict())
        return done


def _config(
    corpus: Corpus, backbone: str, recipe: PretrainRecipe, compute: str, device: torch.device
) -> dict[str, Any]:
    import transformers

    settings = {
        "corpus": corpus.describe(),
        "backbone": backbone,
        "recipe": recipe.to_dict(),
        "compute": compute,
    }
    return {
        "format": FORMAT,
        "key": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
        "settings": settings,
        "made_with": {
            "device": str(device),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
