"""What an extraction reads and how, decided before the model is loaded: its task, its plan, units of its pictures."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from reservoir.backbones import find_shape
from reservoir.errors import InputError
from reservoir.inputs.patch_units import PatchUnits, draw_units
from reservoir.options import ExtractOptions
from reservoir.plan.resolved import Plan, resolve
from reservoir.random import generator
from reservoir.raw_input import read_values
from reservoir.reservoir import Reservoir
from reservoir.tasks.patches import joined
from reservoir.tasks.picture_windows import Picture
from reservoir.tasks.task import Task
from reservoir_pipelines.preparation.prepared import Prepared

LETTERS_OF_TOKEN = 4  # letters of a typical token, for an estimate of the number of tokens
PICTURES = 4000  # training pictures from which patches are drawn; more would take memory and add nothing


def task_of_entry(task: Task, *, each_token: bool) -> Task:
    """Return the task of the rows of an entry: of words or tokens if these have labels, or with ``--each-token``."""
    if not (task.labels_text_tokens or each_token):
        return task
    if task.parameters.get("chat") or task.parameters.get("span"):
        raise InputError(
            f"{task.name}: words or tokens are rows of plain texts, not of chats or of texts with a marked span",
            "leave out --chat or --span, or --each-token",
        )
    if task.labels_text_tokens:
        return replace(task, readout_tokens=1)
    if not task.alphabet or task.readout_tokens > 1:
        raise InputError(
            f"--each-token: task {task.name!r} has no texts with at most one label each", "leave it out"
        )
    return replace(task, parameters={**task.parameters, "each": "text"})


def plan_of(
    prepared: Prepared, task: Task, options: ExtractOptions, rows: Mapping[str, int] | None = None
) -> Plan:
    """Return the plan of an extraction of prepared data, or of similar data with ``rows`` in each split.

    ``task`` is that of the rows of the entry (see `task_of_entry`).
    """
    longest = int(prepared.split("train").lengths.max())
    # The limit counts prepared rows. It is not one of the ``rows`` that are given, or of the tokens of texts.
    limit = None if rows else options.limit
    rows = rows or prepared.rows
    if task.labels_text_tokens:
        # A row is a word or a token, which is all that it has.
        task, longest, limit = replace(task, max_tokens=1), 1, None
        rows = _estimated_counts(prepared)
    plan = resolve(task, replace(options, limit=limit), rows, longest)
    if task.labels_text_tokens and plan.reservoir.input != "native":
        raise no_tokenizer(task)
    return plan


def _estimated_counts(prepared: Prepared) -> dict[str, int]:
    """Return about how many tokens each split has; the plan is made before the model's tokenizer is read."""
    return {
        name: max(len(split), int(split.lengths.sum()) // LETTERS_OF_TOKEN)
        for name, split in prepared.splits.items()
    }


def no_tokenizer(task: Task) -> InputError:
    """Return the error of a model that reads texts with labels of words or tokens in another way than by tokens."""
    return InputError(
        f"{task.name}: the labels are those of words or tokens, so the model must read text by its own tokenizer",
        "leave out --input, or name a model with a tokenizer as --backbone",
    )


def patch_units(prepared: Prepared, reservoir: Reservoir, rows: Mapping[str, np.ndarray]) -> PatchUnits:
    """Return the units of ``--input patches``, drawn from some of the training ``rows`` of an extraction."""
    picture = Picture.of(prepared.task, reservoir.patch, reservoir.stride)
    index = rows["train"]
    if len(index) > PICTURES:
        drawn = generator(reservoir.seed, "pictures").permutation(len(index))[:PICTURES]
        index = index[np.sort(drawn)]
    part = prepared.split("train").take(index)
    values = read_values(prepared.task, prepared.scaling, part.x, part.lengths)
    pictures = joined(values, picture.side, picture.patch).astype(np.float32, copy=False)
    width = find_shape(reservoir.backbone, reservoir.depth)[1].width
    return draw_units(pictures, picture, width, reservoir.seed)
