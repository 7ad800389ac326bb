"""Tasks: sequences with labels. One file per family; `TASKS` has them all by name.

- bits: ``bit-memory``, ``bit-xor``
- listops: ``listops``
- images: ``digits``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar10-lra``
- proteins: ``homology``
- your own data: the path of a file or ``module:function``, see `reservoir.tasks.own.data.OwnData`
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.bits import BitMemory, BitXor
from reservoir.tasks.images import Cifar10, Cifar10Lra, Digits, FashionMnist, Mnist
from reservoir.tasks.listops import ListOps
from reservoir.tasks.own import (
    FUNCTION,
    OwnData,
    clean_lengths,
    encode_own,
    own_name,
    read_integers,
    read_labels,
    read_new,
)
from reservoir.tasks.proteins import Homology
from reservoir.tasks.source import Piece, Source
from reservoir.tasks.task import SPLITS, Scaling, Split, Task, Tokens, Vectors, check_split

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
    "encode",
    "own_name",
    "read_integers",
    "read_labels",
    "read_new",
    "task_named",
]

TASKS: dict[str, Callable[..., Source]] = {
    "bit-memory": BitMemory,
    "bit-xor": BitXor,
    "listops": ListOps,
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar10-lra": Cifar10Lra,
    "homology": Homology,
}
"""The named tasks: constructors that take ``data`` (the folder of the files) and the task's parameters."""

PROTOCOLS = ("ours", "paper")
"""How a task is done: right, or as the authors' code did it."""


def task_named(name: str, *, data: Path | None = None, **parameters: Any) -> Source:
    """Return the source of a named task, or of your own data.

    Parameters
    ----------
    name : str
        A key of `TASKS`, the path of a file, or ``module:function``.
    data : Path, optional
        The folder with the publisher's files, for a named task.
    **parameters
        The task's parameters; ``protocol`` goes with every named task.
    """
    if name in TASKS:
        constructor, start = TASKS[name], {"data": data}
        if parameters.get("protocol") in PROTOCOLS and not hasattr(constructor, "protocol"):
            del parameters["protocol"]  # these data are the same either way, and so is their key
    elif Path(name).suffix or "/" in name or FUNCTION.fullmatch(name):
        constructor, start = cast("Callable[..., Source]", OwnData), {"origin": name}
    else:
        near = difflib.get_close_matches(name, TASKS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"no task {name!r}: the tasks are {', '.join(TASKS)}, or the path of your own data{meant}")
    known = [p for p in getattr(constructor, "__dataclass_fields__", {}) if p not in {"data", "origin"}]
    for parameter in parameters:
        if parameter not in known:
            raise InputError(f"task {name!r} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}")
    return constructor(**start, **parameters)


def encode(task: Task, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return new inputs of a prepared task as stored sequences and their lengths; the data need not be here.

    Parameters
    ----------
    task : Task
        The description, as prepared.
    x : ndarray
        Raw inputs (images, for the image tasks), or sequences already.
    lengths : ndarray of int, (rows,), optional
        Real tokens of each row; all of them by default.
    """
    if task.name not in TASKS:
        return encode_own(task, x, lengths)
    stored, found = TASKS[task.name](**task.parameters).encode(x, lengths)
    if lengths is not None:
        clean_lengths(task.name, lengths, *stored.shape[:2])
    return stored, found
