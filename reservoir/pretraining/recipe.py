"""Options of a pretraining with all defaults resolved, and the learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

from reservoir.errors import InputError
from reservoir.options import PretrainOptions
from reservoir.pretraining.language_model import LanguageModel

CONTEXT = 1024
"""Default of the longest context, in tokens."""

STEPS, LEARNING_RATE = 2000, 2e-3

RECIPE = ("steps", "batch_tokens", "context", "short", "short_share", "learning_rate", "warm_up", "weight_decay")
"""Options that change the result, besides the corpus and the precision."""


class PretrainRecipe(PretrainOptions):
    """`PretrainOptions` with all defaults resolved, and constants of the training.

    In the first `short_share` of the steps the model reads short windows, which are cheaper; a model that begins with
    them ends no worse (Press et al. 2021, section 3). Then their length doubles: the lengths in between share a third
    of the remaining steps, and the full context has two thirds. ``beta2`` is high because steps have few tokens.
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
        """Window length of each stage, in tokens, by the first step of the stage (from 0)."""
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
        """Return the window length of a step (from 0), in tokens."""
        return next(tokens for first, tokens in reversed(self.stages.items()) if first <= step)

    def windows(self, step: int) -> int:
        """Return the number of whole windows that a step (from 0) reads."""
        return self.batch_tokens // self.window(step)

    def tokens(self, steps: int) -> int:
        """Return the total number of tokens of the first ``steps`` steps."""
        return sum(self.windows(step) * self.window(step) for step in range(steps))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step (from 0): linear warm-up, then half a cosine down to 0."""
        warm = min(self.warm_up, self.steps // 4)
        rise = min(1.0, (step + 1) / max(1, warm))
        fall = max(0, step - warm) / max(1, self.steps - warm)
        return self.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * fall))

    def to_dict(self) -> dict[str, Any]:
        """Return everything that changes the result, as JSON values."""
        return {name: getattr(self, name) for name in (*RECIPE, "seed", "beta2", "clip")}


def choose_recipe(model: LanguageModel, backbone: str, options: PretrainOptions, seed: int) -> PretrainRecipe:
    """Return the options with all defaults resolved for a model.

    The default context is 1024 or the longest sequence of the model, and short windows are a quarter of it. A masked
    model needs at least two tokens, to predict one from the other.
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
