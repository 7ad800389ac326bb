"""Tasks: sequences with labels. `TASKS` has the named tasks; `reservoir.tasks.own` reads your own files and folders."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.errors import InputError, nearest
from reservoir.options import OwnDataOptions
from reservoir.tasks.bits import BitMemory, BitXor, ModularAddition
from reservoir.tasks.images.cifar import Cifar10, Cifar10Lra
from reservoir.tasks.images.mnist import Digits, Mnist
from reservoir.tasks.images.source import ImageSource
from reservoir.tasks.listops import ListOps
from reservoir.tasks.own.data import OwnData, own_name, read_new
from reservoir.tasks.own.hub import PREFIX
from reservoir.tasks.own.images import decoded
from reservoir.tasks.own.labels import read_integers, read_labels
from reservoir.tasks.own.values import clean_lengths, encode_own
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
__all__ += ["encode", "images_of", "own_name", "read_integers", "read_labels", "read_new", "shows_images"]
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
    """Return the source of a named task, or of your own data if ``name`` is a path.

    ``parameters`` are the parameters of the named task, or the fields of `OwnDataOptions`.
    """
    own = name not in TASKS
    if own and not (Path(name).suffix or "/" in name or Path(name).is_dir() or name.startswith(PREFIX)):
        tasks = f"give one of {', '.join(TASKS)}, or the path of your own data"
        raise InputError(f"no task {name!r}", f"{tasks}{nearest(name, TASKS)}")
    known = {
        item.name: item.default for item in fields(TASKS.get(name, OwnDataOptions)) if item.name != "data"
    }
    if parameters.get("protocol", "ours") not in PROTOCOLS:
        raise InputError(f"{name}: protocol is {parameters['protocol']!r}", "give ours or paper")
    # every named task accepts a protocol, but these data do not depend on it
    if not own and "protocol" not in known:
        parameters.pop("protocol", None)
    for parameter, value in parameters.items():
        if parameter not in known:
            has = f"it has {', '.join(known)}{nearest(parameter, known)}"
            raise InputError(f"task {name!r} has no parameter {parameter!r}", has)
        default = known[parameter]
        kind = {str: str, float: (int, float)}.get(type(default), int)
        # Whole numbers may be 0 only if this is the default.
        wrong = not isinstance(value, kind) or (kind is int and value < bool(default))
        if wrong and not own and value != default:
            raise InputError(f"{name}: {parameter} is {value!r}", f"give a value like {default}")
    return OwnData(name, OwnDataOptions(**parameters)) if own else TASKS[name](data=data, **parameters)


def valid_is_test(name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether the test rows of a task are its validation rows, so that nothing may be chosen by these."""
    follows_paper = parameters.get("protocol") == "paper"
    return follows_paper and name in TASKS and TASKS[name].paper_valid_is_test


def encode(
    task: Task, x: np.ndarray, lengths: np.ndarray | None = None, where: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Convert raw inputs, or sequences with ``lengths`` (rows,), to stored sequences; errors name ``where``."""
    if task.name not in TASKS:
        return encode_own(task, x, lengths, where or f"task {task.name!r}")
    stored, found = TASKS[task.name](**task.parameters).encode(x, lengths)
    if lengths is not None:
        clean_lengths(task.name, lengths, *stored.shape[:2])
    return stored, found


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
