"""Images as MNIST publishes them (IDX files), for a readout of a named task: they have no labels."""

from pathlib import Path

from reservoir.options import OwnDataOptions
from reservoir.tasks.images import read_idx
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import COLUMN_FLAGS, Rows

ENDINGS = ("-ubyte", ".idx")  # before a suffix .gz
SIDES = (28, 28)  # pixels of the images of MNIST


def accepts(origin: str, options: OwnDataOptions, task: Task | None = None) -> bool:
    """Return whether a path names such a file, whose images are new rows of a task."""
    is_idx = Path(origin).name.removesuffix(".gz").endswith(ENDINGS)
    return task is not None and is_idx and Path(origin).is_file()


def read(origin: str, options: OwnDataOptions, task: Task | None = None) -> Rows:
    """Return the images of a file, (rows, 28, 28) of bytes."""
    return Rows(x=read_idx(Path(origin), SIDES), unused=COLUMN_FLAGS)
