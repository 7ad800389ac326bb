"""What an extraction reads and how, decided before the model is loaded: its task, its plan, units of its pictures."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from reservoir.backbones import find_shape
from reservoir.errors import InputError
from reservoir.inputs.native import suits
from reservoir.inputs.patch_units import PatchUnits, draw_units
from reservoir.options import ExtractOptions
from reservoir.plan.resolved import Plan, resolve
from reservoir.random import generator
from reservoir.raw_input import read_values
from reservoir.reservoir import Reservoir
from reservoir.tasks.pictures import SIDE, Picture, joined
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import IF_IMAGES
from reservoir_pipelines.preparation.prepared import Prepared, draw_rows

LETTERS_OF_TOKEN = 4  # letters of a typical token, for an estimate of the number of tokens
PICTURES = 4000  # training pictures from which patches are drawn; more would take memory and add nothing


def task_of_entry(task: Task, *, each_token: bool) -> Task:
    """Return the task of the rows of an entry, which are words or tokens if these have labels, or with ``each_token``.

    Raise `InputError` if the texts cannot be divided, or with ``each_token`` if ``task`` has no texts with a label.
    """
    if each_token and task.labels_text_tokens:
        raise InputError(
            f"--each-token: words or tokens of {task.name} have labels, so they are rows already",
            "leave it out",
        )
    if not (task.labels_text_tokens or each_token):
        return task  # the rows of the entry are those of the data
    if task.parameters.get("chat") or task.parameters.get("span"):
        raise InputError(
            f"{task.name}: words or tokens are rows of plain texts, not of chats or of texts with a marked span",
            "leave out --chat or --span, or --each-token",
        )
    if task.labels_text_tokens:
        return replace(task, readout_tokens=1)  # a row is a word or a token, and has one label
    if not task.alphabet or task.readout_tokens > 1:
        raise InputError(
            f"--each-token: task {task.name!r} has no texts with at most one label each", "leave it out"
        )
    # A token has the label of its text.
    return replace(task, parameters={**task.parameters, "each": "text"})


def plan_of(
    prepared: Prepared, task: Task, options: ExtractOptions, rows: Mapping[str, int] | None = None
) -> Plan:
    """Return the plan of an extraction of prepared data, or of similar data with ``rows`` in each split.

    ``task`` is that of the rows of the entry (see `task_of_entry`).
    """
    # The limit is a number of prepared rows, so it applies neither to given ``rows`` nor to the tokens of texts, but to
    # the texts whose tokens are estimated.
    if task.labels_text_tokens:
        task = replace(task, max_tokens=1)  # a row is a single word or token
        counts = _estimated_counts(prepared, options.limit)
        return resolve(task, replace(options, limit=None), counts, longest=1)
    longest = int(prepared.split("train").lengths.max())
    if rows:
        options = replace(options, limit=None)
    plan = resolve(task, options, rows or prepared.rows, longest)
    # A vision model would read series through a random map. If they may be images, few users mean that.
    may_be_images = any(IF_IMAGES in note for note in prepared.notes)
    if may_be_images and options.input is None and suits(replace(task, pictures=SIDE), plan.reservoir):
        raise InputError(
            f"{task.name}: {plan.reservoir.title} reads images, but x is read as series",
            "pass --pixels 255 (1 for pixels from 0 to 1) to read images, or --values to read series",
        )
    return plan


def _estimated_counts(prepared: Prepared, limit: int | None) -> dict[str, int]:
    """Return about how many tokens up to ``limit`` texts of each split have, at least one per text.

    The plan is made before the model's tokenizer is read, so they are not counted.
    """
    return {
        name: max(len(index), int(prepared.split(name).lengths[index].sum()) // LETTERS_OF_TOKEN)
        for name, index in draw_rows(prepared, limit).items()
    }


def patch_units(prepared: Prepared, reservoir: Reservoir, rows: Mapping[str, np.ndarray]) -> PatchUnits:
    """Return the units of ``--input patches``, drawn from some of the training ``rows`` of an extraction.

    ``rows`` has the numbers of the prepared rows by split.
    """
    picture = Picture.of(prepared.task, reservoir.patch, reservoir.stride)
    train_rows = rows["train"]
    if len(train_rows) > PICTURES:
        drawn = generator(reservoir.seed, "pictures").permutation(len(train_rows))[:PICTURES]
        train_rows = train_rows[np.sort(drawn)]
    # Rows are stored as patches, which are joined to whole pictures; units are drawn from patches of another size.
    part = prepared.split("train").take(train_rows)
    values = read_values(prepared.task, prepared.scaling, part.x, part.lengths)
    pictures = joined(values, picture.side, picture.patch).astype(np.float32, copy=False)
    # The backbone reads the responses of all units to a window as one vector, so there are as many units as it is wide.
    _family, shape = find_shape(reservoir.backbone, reservoir.depth)
    return draw_units(pictures, picture, shape.width, reservoir.seed)
