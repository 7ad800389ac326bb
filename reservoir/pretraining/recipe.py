"""How a backbone is pretrained, and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from reservoir import InputError
from reservoir.options import SEEDS
from reservoir.pretraining.language_model import LanguageModel

CONTEXT = 1024
"""Most tokens that a model reads at a time where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """The settings of a pretraining; every field changes the result.

    Parameters
    ----------
    steps : int
        Steps in all.
    batch_tokens : int
        Tokens of a step.
    context : int
        Tokens that the model reads at a time.
    short : int
        Tokens that it reads at a time in the first `short_share` of the steps: short windows are cheaper, and a model
        that begins with them ends no worse (Press et al. 2021, section 3). Then they double: the lengths between share
        a third of the rest, and the context has two.
    short_share : float
        That share; 0 for whole contexts from the start.
    learning_rate : float
        Its highest value.
    warm_up : int
        Steps over which it rises from 0; then it falls along a cosine to 0.
    weight_decay : float
        Of AdamW, for matrices only.
    beta2 : float
        Of AdamW; beta1 is 0.9. Steps of few tokens want a long mean of squares.
    clip : float
        Most that the norm of all gradients together may be.
    seed : int
        Chooses the first weights and the windows.
    """

    steps: int
    batch_tokens: int
    context: int
    short: int
    short_share: float = 0.6
    learning_rate: float = 2e-3
    warm_up: int = 200
    weight_decay: float = 0.1
    beta2: float = 0.99
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("context", 2), ("short", 1), ("warm_up", 0)):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} {getattr(self, name)}: give a whole number from {least}")
        if not 0 <= self.seed < SEEDS:
            raise InputError(f"--seed {self.seed}: give a whole number from 0 to {SEEDS - 1}")
        if self.batch_tokens < self.context:
            raise InputError(f"--batch-tokens {self.batch_tokens}: give at least one window, {self.context} tokens")
        if self.short > self.context:
            raise InputError(f"--short {self.short}: give at most the context, {self.context}")
        if not 0 <= self.short_share <= 1:
            raise InputError(f"--short-share {self.short_share}: give a share from 0 to 1")
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(f"--learning-rate {self.learning_rate}: give a positive number")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"--weight-decay {self.weight_decay}: give a number from 0")

    @property
    def stages(self) -> dict[int, int]:
        """From the first step (from 0) of each stage to how many tokens the model reads at a time in it."""
        first = int(self.short_share * self.steps)
        if first == 0 or self.short == self.context:
            return {0: self.context}
        between = []
        while 2 * (between or [self.short])[-1] < self.context:
            between.append(2 * (between or [self.short])[-1])
        each = (self.steps - first) // (3 * len(between)) if between else 0
        starts = [0, *(first + each * number for number in range(len(between) + 1))]
        return {
            at: tokens
            for at, tokens in zip(starts, [self.short, *between, self.context], strict=True)
            if at < self.steps
        }

    def window(self, step: int) -> int:
        """Return how many tokens the model reads at a time in a step (from 0)."""
        return next(tokens for first, tokens in reversed(self.stages.items()) if first <= step)

    def windows(self, step: int) -> int:
        """Return how many windows a step (from 0) reads: as many whole ones as its tokens give."""
        return self.batch_tokens // self.window(step)

    def tokens(self, steps: int) -> int:
        """Return how many tokens the first so many steps read."""
        return sum(self.windows(step) * self.window(step) for step in range(steps))

    def rate(self, step: int) -> float:
        r"""Return the learning rate of a step (from 0).

        .. math::

            \eta_t = \eta \, \min\left(1, \frac{t + 1}{w}\right) \,
                     \frac{1 + \cos(\pi \max(0, t - w) / (T - w))}{2}
        """
        warm = min(self.warm_up, self.steps // 4)
        rise = min(1.0, (step + 1) / max(1, warm))
        fall = max(0, step - warm) / max(1, self.steps - warm)
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * fall))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def choose_recipe(
    model: LanguageModel,
    backbone: str,
    *,
    context: int | None = None,
    short: int | None = None,
    learning_rate: float | None = None,
    **settings: Any,
) -> PretrainRecipe:
    """Fill in what was not said of a model's recipe.

    Parameters
    ----------
    model : LanguageModel
    backbone : str
        Its name, for messages.
    context : int, optional
        By default `CONTEXT`, or what the model reads.
    short : int, optional
        By default a quarter of the context. A model that sees both ways needs 2, to predict one from the other.
    learning_rate : float, optional
    **settings
        Others of `PretrainRecipe`.

    Raises
    ------
    InputError
        If the model does not read so many tokens, or the recipe does not work.
    """
    longest = min(model.max_tokens or CONTEXT, CONTEXT) if context is None else context
    if model.max_tokens is not None and longest > model.max_tokens:
        raise InputError(f"--context {longest}: {backbone} has {model.max_tokens:,} positions")
    least = 2 - model.extra
    if short is not None and short < least:
        raise InputError(f"--short {short}: give a whole number from {least}")
    return PretrainRecipe(
        context=longest,
        short=max(least, longest // 4) if short is None else short,
        learning_rate=PretrainRecipe.learning_rate if learning_rate is None else learning_rate,
        **settings,
    )
