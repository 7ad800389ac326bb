"""How a backbone is pretrained, and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from reservoir.errors import InputError
from reservoir.options import PretrainOptions
from reservoir.pretraining.language_model import LanguageModel

CONTEXT = 1024
"""Most tokens that a model reads at a time where nobody says how many."""

STEPS, LEARNING_RATE = 2000, 2e-3

RECIPE = ("steps", "batch_tokens", "context", "short", "short_share", "learning_rate", "warm_up", "weight_decay")
"""The options that change the result, besides the corpus and the precision."""


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(PretrainOptions):
    """The options of a pretraining of which nothing is left open, and what nobody chooses.

    In the first `short_share` of the steps the model reads short windows, which are cheaper, and a model that begins
    with them ends no worse (Press et al. 2021, section 3). Then they double: the lengths between share a third of the
    rest, and the context has two. Steps of few tokens want a long mean of squares: ``beta2``.
    """

    steps: int = STEPS
    context: int = CONTEXT
    short: int = CONTEXT // 4
    learning_rate: float = LEARNING_RATE
    seed: int = 0
    beta2: float = 0.99
    clip: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_tokens < self.context:
            raise InputError(f"--batch-tokens {self.batch_tokens}: give at least one window, {self.context} tokens")
        if self.short > self.context:
            raise InputError(f"--short {self.short}: give at most the context, {self.context}")

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
        lengths = zip(starts, [self.short, *between, self.context], strict=True)
        return {at: tokens for at, tokens in lengths if at < self.steps}

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
        """Return the learning rate of a step (from 0): it rises in a line, then falls along half a cosine to 0."""
        warm = min(self.warm_up, self.steps // 4)
        rise = min(1.0, (step + 1) / max(1, warm))
        fall = max(0, step - warm) / max(1, self.steps - warm)
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * fall))

    def to_dict(self) -> dict[str, Any]:
        """Return what changes the result, as JSON values."""
        return {name: getattr(self, name) for name in (*RECIPE, "seed", "beta2", "clip")}


def choose_recipe(model: LanguageModel, backbone: str, options: PretrainOptions, seed: int) -> PretrainRecipe:
    """Fill in what was not said of a model's recipe.

    The context is 1024 or what the model reads, and the short windows a quarter of it; a model that sees both ways
    needs two tokens, to predict one from the other.
    """
    longest = min(model.max_tokens or CONTEXT, CONTEXT) if options.context is None else options.context
    if model.max_tokens is not None and longest > model.max_tokens:
        raise InputError(f"--context {longest}: {backbone} has {model.max_tokens:,} positions")
    least = 2 - model.extra
    if options.short is not None and options.short < least:
        raise InputError(f"--short {options.short}: give a whole number from {least}")
    short = max(least, longest // 4) if options.short is None else options.short
    rate = LEARNING_RATE if options.learning_rate is None else options.learning_rate
    return PretrainRecipe(**vars(options) | {"context": longest, "short": short, "learning_rate": rate, "seed": seed})
