"""Verdicts on claims about numbers of tables, from the 95% interval of a difference, and the scale of the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import fmean, stdev
from typing import Any

from reservoir.tasks import TASKS, task_named

HOLDS = "Holds"
FAILS = "Does not hold here"
INCONCLUSIVE = "Cannot be seen at this size"
NOT_CHECKED = "Not checked"  # the claim says why it is not judged at this scale, or at any
NOT_MEASURED = "Not measured"  # a cell has not finished

EXACT = (
    *("blocks", "width", "heads", "parameters", "trained", "paper_share"),
    *("weight_deviation", "bias_deviation"),
)
"""Measures that are counted or read from weights, and so are exact."""


@dataclass(frozen=True)
class PartSizes:
    """The numbers of parameters of a model's parts, and the number of blocks of the whole model."""

    parameters_outside_blocks: int
    parameters_of_block: int
    blocks: int


MODEL_SIZES = {"mini": PartSizes(328_192, 789_760, 6), "gpt2": PartSizes(39_385_344, 7_087_872, 12)}


@dataclass(frozen=True)
class MeanEstimate:
    """A number with the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    def __neg__(self) -> MeanEstimate:
        """Return the estimate of the negative number, whose lower end is the negative upper end."""
        return MeanEstimate(-self.mean, -self.high, -self.low)

    def minus(self, other: MeanEstimate) -> MeanEstimate:
        """Return the difference of two independent estimates by Newcombe's square-and-add.

        Each end is as far from the difference as the root of the sum of the squared distances of the two ends that
        make the difference smaller, or larger.

        Reference: Newcombe (1998), Interval estimation for the difference between independent proportions.
        """
        mean = self.mean - other.mean
        below = hypot(self.mean - self.low, other.high - other.mean)
        above = hypot(self.high - self.mean, other.mean - other.low)
        return MeanEstimate(mean, mean - below, mean + above)


def interval_of(
    values: Sequence[float], measure: str, over_rows: Sequence[float] | None
) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of ``values``, one for each seed, or None if a single run gives none.

    ``over_rows`` is the interval over test rows, if there is one. The distances of its ends from the
    mean and of Student's interval over seeds are added as those of independent errors.
    """
    mean, seeds = fmean(values), len(values)
    if measure in EXACT:
        return min(values), max(values)
    if seeds < 2 and over_rows is None:
        return None
    over_seeds = 0.0  # distance of the ends of Student's interval from the mean; a single seed has none
    if seeds > 1:
        from scipy.special import stdtrit

        over_seeds = float(stdtrit(seeds - 1, 0.975)) * stdev(values) / sqrt(seeds)
    low, high = over_rows or (mean, mean)
    return mean - hypot(mean - low, over_seeds), mean + hypot(high - mean, over_seeds)


def verdict_on(
    claim: Mapping[str, Any], numbers_by_position: Mapping[tuple[str, str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the verdict on a claim, as entries that are added to the claim.

    | entry | meaning |
    | --- | --- |
    | ``holds`` | whether the claim holds; None if unknown |
    | ``verdict`` | the same in words, one of the constants of this file |
    | ``numbers``, ``interval`` | the numbers that are compared, and the intervals of their differences, as texts |
    | ``size`` | models, training rows, steps, seeds and test rows behind the numbers, as a text |
    | ``real`` | whether the claim is judged by numbers of which none is from a small stand-in model |

    Parameters
    ----------
    claim : mapping
        The claim, with some of these keys:

        - ``more``, ``less`` or ``near``: the position (row, column) of the first number; the key says how it compares
        - ``than``: the positions of the numbers with which it is compared
        - ``by``: a number with which it is compared
        - ``within``: the tolerance, 0 by default
        - ``unseen``: the reason why the claim is not judged at this scale
    numbers_by_position : mapping of (str, str) to mapping
        The number at each position (row, column): its mean, the ends of its 95% interval and its scale.

    Notes
    -----
    The difference is the first number minus another. With several others, a claim holds if it holds for each of them,
    and fails if it fails for any of them; otherwise ``holds`` is None.

    | claim | holds for a number if the interval of the difference is | fails if it is |
    | --- | --- | --- |
    | ``more`` | above ``-within`` | below ``-within`` |
    | ``less``, with the sign reversed | above ``-within`` | below ``-within`` |
    | ``near`` | between ``-within`` and ``within`` | on one side, and farther from zero than ``within`` |
    """
    positions = [claim[key] for key in ("more", "less", "near") if key in claim]
    # The numbers of the table, the first one before the others; an absent one is empty.
    numbers = [
        numbers_by_position.get((row, column), {}) for row, column in (*positions, *claim.get("than", ()))
    ]
    means = [number.get("mean") for number in numbers] + ([claim["by"]] if "by" in claim else [])
    is_measured = bool(numbers) and None not in means
    numbers_text = _numbers_text(means) if is_measured else ""
    # No number comes from a small stand-in model, as `_is_small` says.
    without_stand_ins = all(number.get("real") for number in numbers)
    verdict = {
        "holds": None,
        "interval": "",
        "size": scale_text(numbers) if is_measured else "",
        "real": is_measured and "unseen" not in claim and without_stand_ins,
    }

    # Claims that cannot be judged, each with its reason and the numbers that exist.
    if "unseen" in claim:
        texts = filter(None, (numbers_text, claim["unseen"]))
        return {**verdict, "verdict": NOT_CHECKED, "numbers": "; ".join(texts)}
    if not is_measured:
        # One of ``numbers`` is missing: a claim without `unseen` has a first number, as recipe.py checks, and the
        # number of `by` always exists.
        missing = next(number for number in numbers if number.get("mean") is None)
        return {**verdict, "verdict": NOT_MEASURED, "numbers": missing.get("reason", "")}
    if any(number["ends"] is None for number in numbers):
        return {**verdict, "verdict": INCONCLUSIVE, "numbers": f"{numbers_text}; one run gives no interval"}

    holds, interval_text = _judge(claim, numbers)
    word = {True: HOLDS, False: FAILS, None: INCONCLUSIVE}[holds]
    return {
        **verdict,
        "holds": holds,
        "verdict": word,
        "numbers": numbers_text,
        "interval": interval_text,
    }


def _judge(claim: Mapping[str, Any], numbers: Sequence[Mapping[str, Any]]) -> tuple[bool | None, str]:
    """Return whether a claim holds, or None if that cannot be seen, and the differences with their intervals as a text.

    All ``numbers``, of which the first is compared with the others, have intervals.
    """
    # The first number minus each of the others; a number in the claim itself is exact.
    estimates = [MeanEstimate(number["mean"], *number["ends"]) for number in numbers]
    if "by" in claim:
        estimates.append(MeanEstimate(claim["by"], claim["by"], claim["by"]))
    first, *others = estimates
    differences = [first.minus(other) for other in others]
    texts = [
        f"{difference.mean:+.3g} ({difference.low:+.3g} to {difference.high:+.3g})"
        for difference in differences
    ]
    # "less" is "more" with the sign of each difference reversed.
    if "less" in claim:
        differences = [-difference for difference in differences]
    holds = _holds(differences, claim.get("within", 0.0), both_sides="near" in claim)
    return holds, ", ".join(texts)


def _holds(differences: Sequence[MeanEstimate], within: float, *, both_sides: bool) -> bool | None:
    """Return whether all differences are above ``-within`` (and below ``within``), or None if that cannot be seen.

    With ``both_sides`` False, differences may be as large as they like.
    """
    # The whole interval of a difference must be on one side of a limit.
    are_inside = [
        difference.low > -within and (not both_sides or difference.high < within)
        for difference in differences
    ]
    are_outside = [
        difference.high < -within or (both_sides and difference.low > within) for difference in differences
    ]
    if all(are_inside):
        return True
    return False if any(are_outside) else None


def _numbers_text(means: Sequence[float]) -> str:
    """Return the first number and those that it is compared with as a text, such as "99.7 against 99.6, 98.2"."""
    first, *others = [f"{mean:.3g}" if abs(mean) < 1000 else f"{mean:,.0f}" for mean in means]
    return f"{first} against {', '.join(others)}"


def size_of_cell(result: Mapping[str, Any], run: Mapping[str, Any] | None) -> dict[str, str | bool]:
    """Return ``model``, ``train_rows`` and ``steps`` of a finished cell as texts, and in ``real`` whether it is large.

    A text is empty if the stage of the cell has no such number. ``real`` is False for the small models that stand in
    for the paper's. ``run`` is the training whose weights an attention cell reads, and whose size is then returned.
    """
    cell = run or result
    settings, values = cell["settings"], cell["values"]
    reads_rows = cell["stage"] not in ("backbone", "pretrain")
    steps = ""
    if cell["stage"] == "train":
        batch = settings.get("batch")
        steps = f"{values['steps']:,} steps" + (f" of {batch} rows" if batch else "")
    has_no_model = settings.get("columns") == "raw"
    return {
        "model": _model_text(settings),
        "train_rows": _training_rows(cell) if reads_rows else "",
        "steps": steps,
        "real": has_no_model or not _is_small(str(settings.get("backbone", ""))),
    }


def _training_rows(cell: Mapping[str, Any]) -> str:
    """Return which training rows a cell reads, such as "2,000 training rows".

    A training reads rows of the first kind that its task has, unless the setting ``rows`` names another, or features of
    stored rows are cached. Rows of ListOps are taken to be generated, because the folder of data is no setting.
    """
    settings = cell["settings"]
    parameters = settings.get("parameters", {})
    counts = [count for count in (settings.get("limit"), parameters.get("train_rows")) if count]
    stored_rows = f"{min(counts):,} training rows" if counts else "all training rows"
    is_training = cell["stage"] == "train" and cell["task"] in TASKS
    if not is_training or settings.get("from_cache"):
        return stored_rows
    row_kind = settings.get("rows", "auto")
    if row_kind == "auto":
        row_kind = task_named(cell["task"], **parameters).row_kinds[0]
    texts = {"fresh": "new training rows at every step", "augmented": f"{stored_rows}, augmented"}
    return texts.get(row_kind, stored_rows)


def _is_small(backbone: str) -> bool:
    """Return whether a backbone stands in for the paper's: mini, or one with a changed shape, or pretrained here."""
    # Both "name:option=value", a model with another shape, and "cell:KEY", one that a cell pretrained, have a colon.
    return backbone == "mini" or ":" in backbone


def _model_text(settings: Mapping[str, Any]) -> str:
    """Return the name of a backbone with its parameters, if they are known, such as ``mini (5.1 M parameters)``."""
    if settings.get("columns") == "raw":
        return "raw input, no model"
    # A backbone is a name ("mini", "org/name"), a name with another shape ("name:option=value,..."), or the key of the
    # cell that pretrained it ("cell:KEY").
    backbone = str(settings.get("backbone", "")).rpartition("/")[2]
    name, _, changed_shape = backbone.partition(":")
    if name == "cell":
        return "a small model pretrained here"
    if changed_shape:
        return f"{name} of {changed_shape}"
    if name not in MODEL_SIZES:
        return name
    # Blocks that are cut off, or that no feature needs, do not count.
    size = MODEL_SIZES[name]
    blocks = settings.get("depth") or _blocks_needed(str(settings.get("layers", "")), size.blocks)
    blocks_text = f", {blocks} of {size.blocks} blocks" if blocks != size.blocks else ""
    parameters = size.parameters_outside_blocks + blocks * size.parameters_of_block
    return f"{name}{blocks_text} ({parameters / 1e6:.1f} M parameters)"


def _blocks_needed(layers: str, blocks: int) -> int:
    """Return how many of a model's ``blocks`` must run for the features of ``layers``: 2 for ``embed,block02``."""
    # The input layer needs no block, and block01 one. Any other layer (final, all, or none named) needs all blocks.
    block_numbers: list[int] = []
    for layer in map(str.strip, layers.split(",")):
        if layer != "embed" and not layer.startswith("block"):
            return blocks
        block = layer.removeprefix("block").partition(".")[0]  # block01.attention is a part of block01
        block_numbers.append(0 if layer == "embed" else int(block))
    return max(block_numbers)


def scale_text(numbers: Sequence[Mapping[str, Any]]) -> str:
    """Return the scale of some numbers: models, training rows, steps, and the fewest seeds and test rows of any."""
    texts = [" and ".join(_distinct(numbers, name)) for name in ("model", "train_rows", "steps")]
    seeds = min((number["seeds"] for number in numbers if number.get("seeds")), default=0)
    texts.append(f"{seeds} seed{'s' * (seeds > 1)}")
    test_rows = [number["rows"] for number in numbers if number.get("rows")]
    texts.append(f"{min(test_rows):,} test rows" if test_rows else "")
    return "; ".join(filter(None, texts))


def _distinct(numbers: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the texts that numbers have under a name, each once, without empty ones."""
    return list(dict.fromkeys(number[name] for number in numbers if number.get(name)))
