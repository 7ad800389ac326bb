"""Tasks: sequences with labels. `TASKS` has the named tasks; `reservoir_pipelines.data` reads files of your own."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.tasks.bits import BitMemory, BitXor, ModularAddition
from reservoir.tasks.images import Cifar10, Cifar10Lra, Digits, ImageSource, Mnist
from reservoir.tasks.listops import ListOps
from reservoir.tasks.pictures import decoded
from reservoir.tasks.proteins import Homology
from reservoir.tasks.source import Piece, Source
from reservoir.tasks.task import SPLITS, Scaling, Split, Task, Tokens, Vectors, check_split
from reservoir.tasks.variants import variant_of, variants

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
__all__ += ["named_source", "source_of", "task_named"]

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


def task_named(name: str, *, data: Path | None = None, **parameters: Any) -> Source:
    """Return the source of a named task; ``data`` is the folder of its files, ``parameters`` are its own."""
    if name not in TASKS:
        raise InputError(f"no task {name!r}", f"give one of {', '.join(TASKS)}{nearest(name, TASKS)}")
    kind, parameters = _variant_source(name, parameters)
    defaults = {item.name: item.default for item in fields(kind) if item.name != "data"}
    for parameter, value in parameters.items():
        check_parameter(name, parameter, defaults)
        default = defaults[parameter]
        expected = {str: str, float: (int, float)}.get(type(default), int)
        # Whole numbers may be 0 only if this is the default.
        fits = isinstance(value, expected) and (expected is not int or value >= bool(default))
        if not fits and value != default:
            raise InputError(f"{name}: {parameter} is {value!r}", f"give a value like {default}")
    return kind(data=data, **parameters)


def named_source(task: Task) -> Any:
    """Return the source of a named task from its description, without a folder of data."""
    kind, parameters = _variant_source(task.name, task.parameters)
    return kind(**parameters)


def source_of(task: Task) -> Source:
    """Return the source of a named task as `named_source` does; of other tasks one without rows."""
    return named_source(task) if task.name in TASKS else Source()


def _variant_source(name: str, parameters: Mapping[str, Any]) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of a task's source in the variant that its parameters choose, and its parameters."""
    kind = variant_of(parameters, name).sources.get(name, TASKS[name])
    # Every named task has all variants; the sources whose data do not depend on them do not take the parameter.
    chooses = variants().parameter
    takes_it = any(item.name == chooses for item in fields(kind))
    return kind, {item: value for item, value in parameters.items() if takes_it or item != chooses}


def check_parameter(task: str, parameter: str, names: Iterable[str]) -> None:
    """Refuse a parameter that is not one of the names of a task's parameters."""
    if parameter not in (names := [*names]):
        raise InputError(
            f"task {task!r} has no parameter {parameter!r}",
            f"it has {', '.join(names)}{nearest(parameter, names)}",
        )


def shows_images(task: Task) -> bool:
    """Return whether the sequences of a task are images."""
    return task.pictures > 0 or issubclass(TASKS.get(task.name, object), ImageSource)


def images_of(task: Task, x: np.ndarray) -> Iterator["Image"]:
    """Yield stored rows of a task of images (see `shows_images`) as RGB images."""
    if task.pictures:
        yield from map(decoded, x)
        return
    from PIL import Image

    for image in named_source(task).images(x):
        yield Image.fromarray(np.repeat(image, 3 // image.shape[2], axis=2))
