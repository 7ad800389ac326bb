"""A readout on disk: its weights as safetensors, and everything needed to run it on new sequences as JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir import InputError
from reservoir.readouts import LinearReadout
from reservoir.tasks.task import Scaling, Task
from reservoir_pipelines.frozen import Reservoir
from reservoir_pipelines.prepare import Prepared

if TYPE_CHECKING:
    from reservoir_cache import Entry

    from reservoir_pipelines.fitting import Result

FORMAT = 1
WEIGHTS, CARD = "readout.safetensors", "readout.json"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A fitted readout with the frozen map in front of it.

    Parameters
    ----------
    task : Task
        The task it was fitted on.
    scaling : Scaling, optional
        From stored values to what the model sees.
    reservoir : Reservoir
        The frozen map's settings.
    digest : str
        SHA-256 of the frozen weights, so that another model is never taken for it.
    compute : str
        Precision of the forward pass.
    columns : tuple of str
        What the readout reads.
    readout : LinearReadout
        The linear model.
    scores : dict
        How it did: alpha, valid and test accuracy.
    """

    task: Task
    scaling: Scaling | None
    reservoir: Reservoir
    digest: str
    compute: str
    columns: tuple[str, ...]
    readout: LinearReadout
    scores: dict[str, Any]

    @classmethod
    def of(cls, entry: Entry, readout: LinearReadout, result: Result) -> Bundle:
        """Gather a bundle from a cache entry and the readout chosen on it."""
        place = Path(entry.made_with["prepared"])
        return cls(
            task=Task.from_dict(entry.spec.task),
            scaling=Prepared.open(place).scaling if place.is_dir() else None,
            reservoir=Reservoir(**entry.made_with["reservoir"]),
            digest=entry.spec.backbone["digest"],
            compute=entry.spec.compute,
            columns=result.columns,
            readout=readout,
            scores=result.to_dict(),
        )

    def save(self, folder: Path) -> Path:
        """Write the bundle into a folder and return the path of its JSON file; each file is replaced whole."""
        from safetensors.numpy import save_file

        arrays, numbers = self.readout.to_arrays()
        if self.scaling:
            arrays = arrays | {"offset": self.scaling.offset, "scale": self.scaling.scale}
        arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        card = {
            "format": FORMAT,
            "task": self.task.to_dict(),
            "reservoir": asdict(self.reservoir),
            "digest": self.digest,
            "compute": self.compute,
            "columns": list(self.columns),
            "readout": numbers,
            "scores": self.scores,
        }
        replace_file(folder / WEIGHTS, lambda part: save_file(arrays, part))
        replace_file(folder / CARD, lambda part: part.write_text(json.dumps(card, indent=1)))
        return folder / CARD

    @classmethod
    def load(cls, path: Path) -> Bundle:
        """Read a bundle from its folder or its JSON file.

        Raises
        ------
        InputError
            If it is not one, or is of another format.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = path if path.is_dir() else path.parent
        try:
            card = json.loads((folder / CARD).read_text())
            if card["format"] != FORMAT:
                raise InputError(f"readout {folder}: format {card['format']}, not {FORMAT}; fit it again")
            arrays = load_file(folder / WEIGHTS)
            scaling = Scaling(offset=arrays["offset"], scale=arrays["scale"]) if "scale" in arrays else None
            return cls(
                task=Task.from_dict(card["task"]),
                scaling=scaling,
                reservoir=Reservoir(**card["reservoir"]),
                digest=card["digest"],
                compute=card["compute"],
                columns=tuple(card["columns"]),
                readout=LinearReadout.from_arrays(arrays, card["readout"]),
                scores=card["scores"],
            )
        except FileNotFoundError as error:
            raise InputError(
                f"readout {path}: no {Path(error.filename).name} there; give a folder that fit wrote"
            ) from error
        except (OSError, SafetensorError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(
                f"readout {folder}: not readable ({type(error).__name__}: {error}); fit it again"
            ) from error


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under a temporary name and move it into place, so that it is whole or as it was."""
    part = path.with_name(f".{path.name}-{uuid.uuid4().hex}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
