"""Tasks: sequences with labels. `TASKS` has the named tasks; `reservoir_pipelines.data` reads files of your own."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.tasks.bits import BitMemory, BitXor, ModularAddition
from reservoir.tasks.images.cifar import Cifar10, Cifar10Lra
from reservoir.tasks.images.mnist import Digits, Mnist
from reservoir.tasks.images.pictures import decoded
from reservoir.tasks.images.source import ImageSource
from reservoir.tasks.listops import ListOps
from reservoir.tasks.proteins import Homology
from reservoir.tasks.source import Piece, Source
from reservoir.tasks.task import SPLITS, Scaling, Split, Task, Tokens, Vectors, check_split

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "SPLITS",
    "TASKS",
    "Piece",
    "Scaling",
    "Source",
    "Split",
    "Task",
    "Tokens",
    "Vectors",
    "check_split",
]
__all__ += ["check_parameter", "images_of", "shows_images"]
__all__ += ["task_named", "valid_is_test"]

# Dataclasses of ``data`` (the folder of the files) and the task's parameters.
TASKS: dict[str, type[Any]] = {
    "bit-memory": BitMemory,
    "bit-xor": BitXor,
    "modular-addition": ModularAddition,
    "listops": ListOps,
    "digits": Digits,
    "mnist": Mnist,
    "cifar10": Cifar10,
    "cifar10-lra": Cifar10Lra,
    "homology": Homology,
}

PROTOCOLS = ("ours", "paper")  # "paper" repeats the authors' code, with its mistakes; "ours" corrects them


def task_named(name: str, *, data: Path | None = None, **parameters: Any) -> Source:
    """Return the source of a named task; ``data`` is the folder of its files, ``parameters`` are its own."""
    if name not in TASKS:
        raise InputError(f"no task {name!r}", f"give one of {', '.join(TASKS)}{nearest(name, TASKS)}")
    if parameters.get("protocol", "ours") not in PROTOCOLS:
        raise InputError(f"{name}: protocol is {parameters['protocol']!r}", "give ours or paper")
    defaults = {item.name: item.default for item in fields(TASKS[name]) if item.name != "data"}
    # every named task accepts a protocol, but these data do not depend on it
    if "protocol" not in defaults:
        parameters.pop("protocol", None)
    for parameter, value in parameters.items():
        check_parameter(name, parameter, defaults)
        default = defaults[parameter]
        kind = {str: str, float: (int, float)}.get(type(default), int)
        # Whole numbers may be 0 only if this is the default.
        fits = isinstance(value, kind) and (kind is not int or value >= bool(default))
        if not fits and value != default:
            raise InputError(f"{name}: {parameter} is {value!r}", f"give a value like {default}")
    return TASKS[name](data=data, **parameters)


def check_parameter(task: str, parameter: str, names: Iterable[str]) -> None:
    """Refuse a parameter that is not one of the names of a task's parameters."""
    if parameter not in (names := [*names]):
        remedy = f"it has {', '.join(names)}{nearest(parameter, names)}"
        raise InputError(f"task {task!r} has no parameter {parameter!r}", remedy)


def valid_is_test(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether the test rows of a task are its validation rows, so that nothing may be chosen by these."""
    follows_paper = parameters.get("protocol") == "paper"
    return follows_paper and name in TASKS and TASKS[name].paper_valid_is_test


def shows_images(task: Task) -> bool:
    """Return whether the sequences of a task are images."""
    return task.pictures > 0 or issubclass(TASKS.get(task.name, object), ImageSource)


def images_of(task: Task, x: np.ndarray) -> Iterator["Image"]:
    """Yield stored rows of a task of images (see `shows_images`) as RGB images."""
    if task.pictures:
        yield from map(decoded, x)
        return
    from PIL import Image

    for image in TASKS[task.name](**task.parameters).images(x):
        yield Image.fromarray(np.repeat(image, 3 // image.shape[2], axis=2))
