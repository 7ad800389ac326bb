"""Frozen models that the estimators of a process share."""

from functools import lru_cache
from pathlib import Path

from reservoir.reservoir import LoadedModel, Reservoir, load_model
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir_pipelines.files import stamp

TASK = "rows"  # name of the task whose rows are those of X


def shared_model(
    task: Task, settings: Reservoir, device: str = "auto", compute: str = "auto"
) -> LoadedModel:
    """Return the model that reads these rows, loaded once per process."""
    folder = Path(settings.backbone)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    # A model is loaded again if its files have changed.
    stamps = tuple((file.name, *stamp(file)) for file in files)
    return _loaded(task.form, task.max_tokens, settings, device, compute, stamps)


@lru_cache(maxsize=2)
def _loaded(
    form: Vectors | Tokens, tokens: int, settings: Reservoir, device: str, compute: str, _stamps: tuple
) -> LoadedModel:
    return load_model(Task(name=TASK, form=form, max_tokens=tokens, classes=0), settings, device, compute)
