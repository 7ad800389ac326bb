"""Language models for pretraining: the model, its options with all defaults resolved, and steps with AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.backbones import find
from reservoir.backbones.family import silence_transformers
from reservoir.backbones.weights import draw_parameters
from reservoir.devices import compile_safely
from reservoir.errors import InputError, as_input_error
from reservoir.options import PretrainOptions
from reservoir.plan import PRETRAIN_RATE, PRETRAIN_STEPS
from reservoir.pretraining.corpora import Corpus, HeldOut

CAUSAL = ("gpt2", "llama", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
"""The families that can be pretrained: causal ones, of which transformers has language models."""

MEASURED_TOKENS = 8192  # tokens of one forward pass over held-out windows
VALID_TOKENS = 2**16  # largest number of held-out tokens in a validation
CONTEXT = 1024  # default of the longest context, in tokens
PRETRAINING_RECIPE = (
    "steps",
    "batch_tokens",
    "context",
    "short",
    "short_share",
    "learning_rate",
    "warm_up",
    "weight_decay",
    *("seed", "beta2", "clip"),
)
"""Options and constants that change the result, besides the corpus and the precision."""


class LanguageModel(nn.Module):
    """A randomly initialised language model with a backbone's blocks and a ``vocabulary`` of so many tokens.

    With ``eager``, attention is computed by plain operations, which a compiler can fuse.
    """

    def __init__(self, backbone: str, vocabulary: int, seed: int = 0, *, eager: bool = False) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        super().__init__()
        silence_transformers()
        family, config = find(backbone)
        if family.name not in CAUSAL:
            raise InputError(
                f"--backbone {backbone}: {family.name} models cannot be pretrained",
                f"use one of {', '.join(CAUSAL)}",
            )
        # unlike reservoir's own GPT-2, that of transformers reads tokens and has a head
        if family.name == "gpt2":
            config = AutoConfig.for_model(**config.to_dict())
        _adapt_config(config, vocabulary)
        self._positions = family.groups.get("positions", ())  # parts of the names of position embeddings
        self.max_tokens = family.shape(config).max_tokens  # None if there is no limit
        # By default transformers uses torch's own kernel if the family supports it.
        attention = "eager" if eager else None
        with as_input_error(f"--backbone {backbone}: this configuration is invalid", "change a setting"):
            self.model: Any = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation=attention
            )
        draw_parameters(self.model, family.draw, config, seed)
        self.model.tie_weights()  # weights that two modules share must be equal

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 logits (windows, tokens, vocabulary) of the next tokens."""
        return self.model(input_ids=tokens, use_cache=False).logits.float()

    @torch.no_grad()
    def repeat_positions(self, count: int) -> None:
        """Set the positions from ``count`` on to the learned values of the first positions, repeated."""
        for name, parameter in self.model.named_parameters():
            if any(name_part in name for name_part in self._positions):
                numbers = torch.arange(len(parameter), device=parameter.device)
                parameter.copy_(parameter[numbers % count])


def _adapt_config(config: Any, vocabulary: int) -> None:
    """Change the configuration of a published model for pretraining on other tokens."""
    config.vocab_size = vocabulary
    # The special tokens of the published vocabulary have no meaning in another one.
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, token, None)
    # A published encoder of a causal family would see the tokens that it predicts.
    for name, causal_value in (("is_causal", True), ("use_bidirectional_attention", False)):
        if hasattr(config, name):
            setattr(config, name, causal_value)
    # No text is read twice, so nothing overfits, and dropout would only slow the training down.
    for name in config.to_dict():
        if name.endswith(("dropout", "pdrop", "dropout_prob")):
            setattr(config, name, 0.0)


class PretrainRecipe(PretrainOptions):
    """`PretrainOptions` with all defaults resolved, and constants of the training.

    In the first `short_share` of the steps the model reads short windows, which are cheaper and make
    the final model no worse (Press et al. 2021, section 3). Then their length doubles: the lengths in
    between share a third of the remaining steps, and the full context has two thirds.
    """

    steps: int = PRETRAIN_STEPS
    context: int = CONTEXT  # tokens of the longest windows
    short: int = CONTEXT // 4  # tokens of the first windows
    learning_rate: float = PRETRAIN_RATE  # the highest
    seed: int = 0
    beta2: float = 0.99  # high, because steps have few tokens
    clip: float = 1.0  # largest norm of the gradient

    @property
    def stages(self) -> dict[int, int]:
        """Window length of each stage, in tokens, by the first step of the stage (from 0)."""
        short_steps = int(self.short_share * self.steps)
        if short_steps == 0 or self.short == self.context:
            return {0: self.context}
        # The lengths before the full context: the short one, doubled as long as it is below the context.
        lengths = [self.short]
        while 2 * lengths[-1] < self.context:
            lengths.append(2 * lengths[-1])
        # Those between the short one and the context share a third of the remaining steps equally.
        steps_of_length = (self.steps - short_steps) // (3 * max(1, len(lengths) - 1))
        starts = [0, *(short_steps + steps_of_length * number for number in range(len(lengths)))]
        stages = zip(starts, [*lengths, self.context], strict=True)
        # With few steps, a stage may begin after the end.
        return {start: tokens for start, tokens in stages if start < self.steps}

    def window(self, step: int) -> int:
        """Return the window length of a step (from 0), in tokens."""
        # The last stage that has begun.
        return next(tokens for first, tokens in reversed(self.stages.items()) if first <= step)

    def tokens(self, steps: int) -> int:
        """Return the total number of tokens in the whole windows of the first ``steps`` steps."""
        return sum(self.batch_tokens - self.batch_tokens % self.window(step) for step in range(steps))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step (from 0): linear warm-up, then half a cosine down to 0."""
        warm_up_steps = min(self.warm_up, self.steps // 4)
        rise = min(1.0, (step + 1) / max(1, warm_up_steps))  # from above 0 to 1 during the warm-up
        # From 0 at the end of the warm-up to 1 at the end of the training.
        progress = max(0, step - warm_up_steps) / max(1, self.steps - warm_up_steps)
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * progress))

    def to_dict(self) -> dict[str, Any]:
        """Return everything that changes the result, as JSON values."""
        return {name: getattr(self, name) for name in PRETRAINING_RECIPE}


def choose_recipe(
    model: LanguageModel, backbone: str, options: PretrainOptions, seed: int
) -> PretrainRecipe:
    """Return the options with all defaults resolved for a model; raise `InputError` if they do not fit together.

    ``backbone`` names the model in messages.
    """
    # The context is as long as the model allows, up to `CONTEXT`, and the short windows are a quarter of it.
    values = {name: value for name, value in vars(options).items() if value is not None}
    context = values.setdefault("context", min(model.max_tokens or CONTEXT, CONTEXT))
    short = values.setdefault("short", max(1, context // 4))
    if model.max_tokens is not None and context > model.max_tokens:
        raise InputError(
            f"--context {context}: {backbone} has only {model.max_tokens:,} positions", "give no more"
        )
    if options.batch_tokens < context:
        raise InputError(
            f"--batch-tokens {options.batch_tokens}: give at least one window, {context} tokens"
        )
    if short > context:
        raise InputError(f"--short {short}: give at most the context, {context}")
    return PretrainRecipe(**values, seed=seed)


class LanguageSteps:
    """Training steps on windows of a corpus, drawn from the seed and the step number; compiled for each length.

    ``compute`` is the precision of the matrix products; the weights are float32.
    """

    value_names: tuple[str, ...] = ("bits", "norm")  # of the values that `take` returns

    def __init__(
        self,
        model: LanguageModel,
        corpus: Corpus,
        recipe: PretrainRecipe,
        compute: torch.dtype,
        *,
        compiled: bool,
    ) -> None:
        # Weight decay is for matrices only, as usual: it would pull the gains of norms and the biases to 0.
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": recipe.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=recipe.learning_rate,
            betas=(0.9, recipe.beta2),
            fused=True,
        )
        self._model = model
        self._corpus = corpus
        self._recipe = recipe
        self._compute = compute
        self._forward: Callable[..., Tensor] = compile_safely(model, dynamic=False) if compiled else model
        self._parameters = [*matrices, *vectors]
        self._device = self._parameters[0].device
        # A window has one token more than the model reads, because the last one is only a target.
        self._valid = {window: corpus.held_out("valid", window + 1) for window in recipe.stages.values()}

    def draw(self, step: int) -> Tensor:
        """Return the windows of a step, int64 (windows, tokens), each with one token more than the model reads."""
        window = self._recipe.window(step)
        count = self._recipe.batch_tokens // window
        windows = self._corpus.draw(self._recipe.seed, step, count, window + 1)
        return torch.from_numpy(windows).to(self._device)

    def take(self, step: int, batch: Tensor) -> Tensor:
        """Take a step; return float32 (2,): its loss in bits per token, and the gradient norm before clipping."""
        # When windows become longer, the new positions begin with the values of the learned ones.
        begins_stage = step > 0 and step in self._recipe.stages
        if begins_stage:
            self._model.repeat_positions(self._recipe.window(step - 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self._recipe.rate(step)
        self.optimizer.zero_grad(set_to_none=True)
        losses = self._losses(batch)
        loss = losses.sum() / losses.numel()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._recipe.clip)
        self.optimizer.step()
        return torch.stack([loss.detach() / math.log(2), norm.detach()])

    def validate(self, step: int) -> dict[str, float]:
        """Return the loss on validation windows as long as those of the last step; ``step`` steps were taken."""
        window = self._recipe.window(step - 1)
        return {"valid_bits": self.measure(self._valid[window], VALID_TOKENS)}

    def better(self, values: dict[str, float], best: dict[str, float]) -> bool:
        """Return True: the last weights are kept, because losses on windows of different lengths cannot be compared."""
        return True

    @torch.no_grad()
    def measure(self, held_out: HeldOut, max_tokens: int | None = None) -> float:
        """Return the mean loss in bits of the predicted tokens of held-out windows.

        At most the first ``max_tokens`` tokens are measured, in whole windows, but at least one window.
        """
        tokens = held_out.windows.shape[1]
        count = len(held_out.windows)
        if max_tokens is not None:
            count = min(count, max(1, max_tokens // tokens))
        loss_sum, predicted_tokens = 0.0, 0  # in nats
        batch = max(1, MEASURED_TOKENS // tokens)
        for start in range(0, count, batch):
            # The last batch is filled up by repeating the last window, so that a compiled model has one shape. A
            # repetition predicts nothing: its first predicted token is after its end.
            rows = np.arange(start, start + batch)
            existing_rows = np.minimum(rows, count - 1)
            first_predicted = np.where(rows < count, held_out.first[existing_rows], tokens)
            windows = held_out.windows[existing_rows].astype(np.int64)
            losses = self._losses(torch.from_numpy(windows).to(self._device))
            # Of each window, the losses of the tokens from the first predicted one on; token 0 has no loss.
            first = torch.from_numpy(first_predicted).to(self._device)
            is_predicted = torch.arange(1, tokens, device=self._device) >= first[:, None]
            loss_sum += float((losses.double() * is_predicted).sum())
            predicted_tokens += int(is_predicted.sum())
        return loss_sum / predicted_tokens / math.log(2)

    def _losses(self, windows: Tensor) -> Tensor:
        """Return the loss of each token but the first in nats, float32 (windows, tokens - 1)."""
        inputs, targets = windows[:, :-1], windows[:, 1:]  # each token is predicted from those before it
        with torch.autocast(self._device.type, self._compute, enabled=self._compute != torch.float32):
            logits = self._forward(inputs)
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape)
