"""The files with a local model's weights: their stamps when features were extracted, and whether they have changed."""

from pathlib import Path

from reservoir_cache import Entry

from reservoir.errors import InputError, first_line
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task
from reservoir_pipelines.output import notify


def weight_stamps(settings: Reservoir) -> dict[str, list[int]]:
    """Return size and modification time of each file of a local model's weights; empty if they are drawn or published.

    These two survive a copy of folder and cache to another machine.
    """
    from reservoir.backbones.stored import WEIGHTS  # imports torch, which reading an entry does not need

    if settings.init not in ("pretrained", "statistics"):  # the others draw all weights
        return {}
    # A backbone is a folder, a file, or the name of a published model, which is no file.
    path = Path(settings.backbone)
    patterns = ("config.json", "*.gguf", *WEIGHTS)
    files = [file for pattern in patterns for file in path.glob(pattern)] if path.is_dir() else [path]
    stats = {file.name: file.stat() for file in sorted(files) if file.is_file()}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def caution_if_changed(entry: Entry, task: Task) -> None:
    """Print a line if the model's weights are no longer those with which an entry of a task was extracted.

    The model is loaded, and its SHA-256 compared, only if the stamps of its files differ. Entries of older
    versions have no stamps.
    """
    stamps_of_entry = entry.made_with.get("weight_files")
    if not isinstance(stamps_of_entry, dict) or not stamps_of_entry:
        return
    settings = Reservoir(**entry.made_with["reservoir"])
    stamps = weight_stamps(settings)
    if not stamps or stamps == stamps_of_entry:  # the folder was removed, or is the same
        return
    # Files of other times may have the same contents, for example after a new download.
    from reservoir.loaded_model import load_model

    problem = "have changed since"
    try:
        model = load_model(task, settings, "cpu", "float32", stream="auto")
        has_same_weights = model.digest == entry.spec.backbone.digest
        if has_same_weights and dict(model.input_digests) == entry.spec.input.digests:
            return
    except InputError as error:
        problem = f"can no longer be read ({first_line(error)}), but could when"
    remedy = "these features are those of the old weights; run reservoir extract again for the new ones"
    notify(
        f"CAUTION: the weights in {settings.backbone} {problem} {entry.path.name} was extracted; {remedy}"
    )
