"""The steps of a pretraining, each a function of the weights and its own number; and the loss on what was held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.pretraining.corpora import Corpus, HeldOut
from reservoir.pretraining.language_model import LanguageModel
from reservoir.pretraining.recipe import PretrainRecipe

MEASURED_TOKENS = 8192
"""Tokens of one forward pass over what was held out."""


class Steps:
    """Takes the steps of a pretraining by AdamW, and measures.

    Step n draws its windows from the seed and n alone, so that a run that goes on from a checkpoint ends with the
    weights of one that was never stopped.

    Parameters
    ----------
    model : LanguageModel
        On its device.
    corpus : Corpus
    recipe : PretrainRecipe
    compute : torch.dtype
        What products run in.
    compiled : bool
        Compile the model: one compilation for each length of windows.
    """

    def __init__(
        self, model: LanguageModel, corpus: Corpus, recipe: PretrainRecipe, compute: torch.dtype, *, compiled: bool
    ) -> None:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=recipe.learning_rate,
            betas=(0.9, recipe.beta2),
            fused=True,
        )
        self._model, self._corpus, self._recipe, self._compute = model, corpus, recipe, compute
        self._forward: Callable[..., Tensor] = torch.compile(model, dynamic=False) if compiled else model
        self._parameters = [*matrices, *vectors]
        self._device = self._parameters[0].device

    def take(self, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """Take the steps with the numbers ``first`` + 1 to ``last``.

        Yields
        ------
        int
            Steps done.
        Tensor of float32, (2,)
            Loss in bits per token, and the norm of the gradients before clipping; on the device.
        """
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._draw, first)
            for step in range(first, last):
                batch = ahead.result()
                ahead = reader.submit(self._draw, min(step + 1, last - 1))
                yield step + 1, self._step(step, batch)

    def _step(self, step: int, windows: Tensor) -> Tensor:
        if step and step in self._recipe.stages:
            self._model.repeat_positions(self._recipe.window(step - 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self._recipe.rate(step)
        self.optimizer.zero_grad(set_to_none=True)
        losses, counted = self._losses(windows, self._recipe.seed, "train", step)
        loss = losses.sum() / counted.sum().clamp(min=1)  # of few tokens, none may be hidden
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._recipe.clip)
        self.optimizer.step()
        return torch.stack([loss.detach() / math.log(2), norm.detach()])

    def _draw(self, step: int) -> Tensor:
        recipe = self._recipe
        tokens = recipe.window(step) + self._model.extra
        return torch.from_numpy(self._corpus.draw(recipe.seed, step, recipe.windows(step), tokens)).to(self._device)

    def _losses(self, windows: Tensor, *parts: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of each token in nats, (windows, tokens), and which of them were to be predicted."""
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

    @torch.no_grad()
    def measure(self, held_out: HeldOut) -> float:
        """Return the mean loss of the tokens that count, in bits per token.

        Parameters
        ----------
        held_out : HeldOut
            Windows of a length of the recipe's.
        """
        total, number = 0.0, 0
        size = max(1, MEASURED_TOKENS // held_out.windows.shape[1])
        for at in range(0, len(held_out), size):
            # The last batch is filled up with windows that do not count: a compiled model knows one shape.
            some = np.minimum(np.arange(at, at + size), len(held_out) - 1)
            real = np.arange(at, at + size) < len(held_out)
            windows = torch.from_numpy(held_out.windows[some].astype(np.int64)).to(self._device)
            first = torch.from_numpy(np.where(real, held_out.first[some], windows.shape[1])).to(self._device)
            losses, counted = self._losses(windows, "held out", at)
            place = torch.arange(windows.shape[1], device=self._device)[self._model.extra :]
            counted = counted & (place >= first[:, None])
            total += float((losses.double() * counted).sum())
            number += int(counted.sum())
        return total / number / math.log(2)
