"""Tasks: sequences with labels. `TASKS` has the named tasks; `reservoir_pipelines.data` reads files of your own.

A named task may have variants: other data, initial weights and training, as a publication describes them. A parameter
of the task chooses the variant; the module `VARIANTS_MODULE` has the variants and the name of the parameter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
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
    "Variant",
    "Variants",
    "Vectors",
    "check_split",
    "images_of",
    "named_source",
    "shows_images",
    "source_of",
    "task_named",
    "unknown_parameter",
    "variant_of",
]

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


# It imports the tasks that it varies, so it is imported when needed.
VARIANTS_MODULE = "reservoir.paper.variants"


def _leave_unchanged(_model: Any) -> None:
    """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs from the tasks, models and training of this package.

    Parameters
    ----------
    sources : mapping of str to type
        The class of the source of each task whose data differ, by the task's name.
    random_inits : mapping of str to str
        By family of backbones, the init that ``random`` means.
    output_init : str
        How the output layer is initialised; see `reservoir.fpt.FPT`.
    drops_in_frozen_layers : bool
        Whether dropout also acts below the first layer that is trained.
    before_training : callable
        Called with a model before it is trained.
    """

    sources: Mapping[str, type[Any]] = field(default_factory=dict)
    random_inits: Mapping[str, str] = field(default_factory=dict)
    output_init: str = "orthogonal"
    drops_in_frozen_layers: bool = False
    before_training: Callable[[Any], None] = _leave_unchanged


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The variants by the value of the task parameter that chooses one, and the value that stands for none."""

    parameter: str
    default: str
    by_value: Mapping[str, Variant]


def variant_of(parameters: Mapping[str, Any], task: str = "") -> Variant:
    """Return the variant that the parameters of a task choose; raise `InputError`, which names the task, for others."""
    variants = _variants()
    value = parameters.get(variants.parameter, variants.default)
    if value not in variants.by_value:
        problem = f"{task}: {variants.parameter} is {value!r}"
        raise InputError(problem, f"give {' or '.join(variants.by_value)}")
    return variants.by_value[value]


def _variants() -> Variants:
    """Return all variants, from the module that has them."""
    return import_module(VARIANTS_MODULE).VARIANTS


def task_named(name: str, *, data: Path | None = None, **parameters: Any) -> Source:
    """Return the source of a named task; ``data`` is the folder of its files, ``parameters`` are its own.

    Raise `InputError` for an unknown task or parameter, or a value of another kind than the parameter's default.
    """
    if name not in TASKS:
        raise InputError(f"no task {name!r}", f"give one of {', '.join(TASKS)}{nearest(name, TASKS)}")
    source_type, parameters = _source_type(name, parameters)
    defaults = {item.name: item.default for item in fields(source_type) if item.name != "data"}
    for parameter, value in parameters.items():
        if parameter not in defaults:
            raise unknown_parameter(name, parameter, defaults)
        if not _is_like(value, defaults[parameter]):
            remedy = f"give a value like {defaults[parameter]}"
            raise InputError(f"{name}: {parameter} is {value!r}", remedy)
    return source_type(data=data, **parameters)


def _is_like(value: Any, default: Any) -> bool:
    """Return whether a parameter with this default may have a value.

    | default | values |
    |---|---|
    | text | texts |
    | float | numbers |
    | 0, False or None | the default, and whole numbers from 0 |
    | any other | the default, and whole numbers from 1 |
    """
    if isinstance(default, str):
        return isinstance(value, str)
    if isinstance(default, float):
        return isinstance(value, int | float)
    least = 1 if default else 0
    is_whole_number = isinstance(value, int) and value >= least
    return value == default or is_whole_number


def named_source(task: Task) -> Any:
    """Return the source of a named task, of the type that `TASKS` has for it, without a folder of data."""
    source_type, parameters = _source_type(task.name, task.parameters)
    return source_type(**parameters)


def source_of(task: Task) -> Source:
    """Return the source of a named task as `named_source` does, and for any other task a source without rows."""
    return named_source(task) if task.name in TASKS else Source()


def _source_type(name: str, parameters: Mapping[str, Any]) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of a task's source in the variant that its parameters choose, and its parameters."""
    source_type = variant_of(parameters, name).sources.get(name, TASKS[name])
    # Every named task has all variants. The class does not take the parameter if its data do not depend on them.
    variant_parameter = _variants().parameter
    takes_variant = any(item.name == variant_parameter for item in fields(source_type))
    own_parameters = {
        parameter: value
        for parameter, value in parameters.items()
        if takes_variant or parameter != variant_parameter
    }
    return source_type, own_parameters


def unknown_parameter(task: str, parameter: str, names: Iterable[str]) -> InputError:
    """Return the error for a parameter that is not one of the names of a task's parameters."""
    return InputError(
        f"task {task!r} has no parameter {parameter!r}",
        f"it has {', '.join(names)}{nearest(parameter, names)}",
    )


def shows_images(task: Task) -> bool:
    """Return whether the sequences of a task are images: your own, or those of a named task."""
    named_type = TASKS.get(task.name, object)
    return task.pictures > 0 or issubclass(named_type, ImageSource)


def images_of(task: Task, x: np.ndarray) -> Iterator["Image"]:
    """Yield stored rows of a task of images (see `shows_images`) as RGB images."""
    if task.pictures:
        yield from map(decoded, x)
        return
    from PIL import Image

    for image in named_source(task).images(x):
        copies = 3 // image.shape[2]  # of the one channel of a grey image; a colour image has all three
        yield Image.fromarray(np.repeat(image, copies, axis=2))
