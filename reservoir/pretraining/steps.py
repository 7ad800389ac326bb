"""Pretraining steps with AdamW, and the loss on held-out windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.pretraining.corpora import Corpus, HeldOut
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.recipe import PretrainRecipe

MEASURED_TOKENS = 8192
"""Tokens of one forward pass over held-out windows."""

VALID_TOKENS = 2**16
"""Largest number of held-out tokens in a validation."""


class LanguageSteps:
    """Training steps on windows of a corpus, drawn from the seed and the step number; compiled for each length."""

    def __init__(
        self, model: LanguageModel, corpus: Corpus, recipe: PretrainRecipe, compute: torch.dtype, *, compiled: bool
    ) -> None:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=recipe.learning_rate,
            betas=(0.9, recipe.beta2),
            fused=True,
        )
        self._model, self._corpus, self._recipe, self._compute = model, corpus, recipe, compute
        self._forward: Callable[..., Tensor] = torch.compile(model, dynamic=False) if compiled else model
        self._parameters = [*matrices, *vectors]
        self._device = self._parameters[0].device
        tokens = {window: window + model.extra for window in recipe.stages.values()}
        self._valid = {w: corpus.held_out("valid", count).head(VALID_TOKENS // count) for w, count in tokens.items()}

    def draw(self, step: int) -> Tensor:
        """Return the windows of a step, int64 (windows, tokens)."""
        recipe = self._recipe
        tokens = recipe.window(step) + self._model.extra
        return torch.from_numpy(self._corpus.draw(recipe.seed, step, recipe.windows(step), tokens)).to(self._device)

    def take(self, step: int, batch: Tensor) -> Tensor:
        """Take a step; return float32 (2,): the loss in bits per token before it, and the norm before clipping."""
        if step and step in self._recipe.stages:
            self._model.repeat_positions(self._recipe.window(step - 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self._recipe.rate(step)
        self.optimizer.zero_grad(set_to_none=True)
        losses, counted = self._losses(batch, self._recipe.seed, "train", step)
        loss = losses.sum() / counted.sum().clamp(min=1)  # with few tokens, none may be masked
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._recipe.clip)
        self.optimizer.step()
        return torch.stack([loss.detach() / math.log(2), norm.detach()])

    def numbers(self, values: list[float]) -> dict[str, float]:
        """Return the values of `take` by name, in bits per byte, or per token if the corpus is not text."""
        return {"bits": values[0] / self._valid[self._recipe.window(0)].bytes_per_token, "norm": values[1]}

    def validate(self, step: int) -> dict[str, float]:
        """Return the loss on validation windows of the length of the last step."""
        return {"valid_bits": self.measure(self._valid[self._recipe.window(step - 1)])}

    def better(self, found: dict[str, float], best: dict[str, float]) -> bool:
        """Return True: the last weights are kept, because losses on windows of different lengths do not compare."""
        return True

    @torch.no_grad()
    def measure(self, held_out: HeldOut) -> float:
        """Return the mean loss of the counted tokens, in bits per byte, or per token if the corpus is not text."""
        total, number = 0.0, 0
        size = max(1, MEASURED_TOKENS // held_out.windows.shape[1])
        for at in range(0, len(held_out), size):
            # The last batch is filled up with windows that do not count, so that a compiled model has one shape.
            some = np.minimum(np.arange(at, at + size), len(held_out) - 1)
            real = np.arange(at, at + size) < len(held_out)
            windows = torch.from_numpy(held_out.windows[some].astype(np.int64)).to(self._device)
            first = torch.from_numpy(np.where(real, held_out.first[some], windows.shape[1])).to(self._device)
            losses, counted = self._losses(windows, "held out", at)
            place = torch.arange(windows.shape[1], device=self._device)[self._model.extra :]
            counted = counted & (place >= first[:, None])
            total += float((losses.double() * counted).sum())
            number += int(counted.sum())
        return total / number / math.log(2) / held_out.bytes_per_token

    def _losses(self, windows: Tensor, *parts: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of each token in nats, (windows, tokens), and a mask of the predicted tokens."""
        model = self._model
        if model.causal:
            inputs, targets = windows[:, :-1], windows[:, 1:]
            counted = torch.ones_like(targets, dtype=torch.bool)
        else:
            targets = windows
            inputs, counted = model.hide(windows, *parts)
        with torch.autocast(self._device.type, self._compute, enabled=self._compute != torch.float32):
            logits = self._forward(inputs)
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape) * counted, counted
