"""A readout on disk: its weights, and everything needed to run it on new sequences as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir import InputError
from reservoir.readouts import LinearReadout, Targets
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Scaling, Task
from reservoir_pipelines.preparation.prepare import Prepared
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.workspace import replace_file

if TYPE_CHECKING:
    from reservoir_cache import Entry, FeatureStore

    from reservoir_pipelines.fitting.results import Readout, Result

FORMAT = 1
WEIGHTS, ESTIMATOR, CARD = "readout.safetensors", "readout.skops", "readout.json"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A frozen map and the columns that are read of it.

    Parameters
    ----------
    reservoir : Reservoir
        The map's settings.
    digest : str
        SHA-256 of the frozen weights, so that another model is never taken for it.
    compute : str
        Precision of the forward pass.
    columns : tuple of str
        What is read, in this order.
    run : str, default ""
        Folder of the run whose trained weights take the place of frozen ones; none by default.
    """

    reservoir: Reservoir
    digest: str
    compute: str
    columns: tuple[str, ...]
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A fitted readout with the frozen maps in front of it.

    Parameters
    ----------
    task : Task
        The task it was fitted on.
    scaling : Scaling, optional
        From stored values to what the model sees.
    parts : tuple of Part
        The columns that it reads side by side, in this order.
    readout : LinearReadout or EstimatorReadout
        The model.
    scores : dict
        How it did: kind, alpha, valid and test accuracy.
    """

    task: Task
    scaling: Scaling | None
    parts: tuple[Part, ...]
    readout: Readout
    scores: dict[str, Any]

    @classmethod
    def of(cls, stores: Sequence[FeatureStore], scaling: Scaling | None, readout: Readout, result: Result) -> Bundle:
        """Gather a bundle from cache entries and the readout chosen on them."""
        entry = stores[0].entry
        parts = []
        for name in result.columns:
            number, colon, column = name.partition(":")
            made = stores[int(number) - 1 if colon else 0].entry
            parts.append(
                Part(
                    reservoir=Reservoir(**made.made_with["reservoir"]),
                    digest=made.spec.backbone["digest"],
                    compute=made.spec.compute,
                    columns=(column if colon else name,),
                )
            )
        return cls(
            task=Task.from_dict(entry.spec.task),
            scaling=scaling,
            parts=_merged(parts),
            readout=readout,
            scores=result.to_dict(),
        )

    def save(self, folder: Path) -> Path:
        """Write the bundle into a folder and return the path of its JSON file; each file is replaced whole."""
        from safetensors.numpy import save

        card: dict[str, Any] = {
            "format": FORMAT,
            "task": self.task.to_dict(),
            "parts": [asdict(part) for part in self.parts],
            "scores": self.scores,
        }
        arrays: dict[str, np.ndarray] = {}
        if isinstance(self.readout, LinearReadout):
            arrays, card["readout"] = self.readout.to_arrays()
        else:
            from reservoir_pipelines.fitting.estimator_files import save_estimator
            from reservoir_pipelines.fitting.sklearn_readout import EstimatorReadout

            if not isinstance(self.readout, EstimatorReadout):
                raise TypeError(f"no way to save a readout of type {type(self.readout).__name__}")
            data = save_estimator(self.readout.model)
            replace_file(folder / ESTIMATOR, lambda part: part.write_bytes(data))
            targets = self.readout.targets
            card["estimator"] = {"outputs": targets.outputs, "classes": targets.classes}
        if self.scaling:
            arrays = arrays | {"offset": self.scaling.offset, "scale": self.scaling.scale}
        arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        replace_file(folder / WEIGHTS, lambda part: part.write_bytes(save(arrays)))
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

        folder = path if path.is_dir() else path.parent
        try:
            card = json.loads((folder / CARD).read_text())
            if card["format"] != FORMAT:
                raise InputError(f"readout {folder}: format {card['format']}, not {FORMAT}; fit it again")
            return cls._read(folder, card)
        except FileNotFoundError as error:
            name = Path(error.filename or WEIGHTS).name
            raise InputError(
                f"{path}: no readout and no run there ({name} is missing); give a folder that fit or train wrote"
            ) from error
        except (OSError, SafetensorError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"readout {folder}: not readable ({type(error).__name__}: {error}); fit it again"
            ) from error

    @classmethod
    def _read(cls, folder: Path, card: dict[str, Any]) -> Bundle:
        from safetensors.numpy import load_file

        arrays = load_file(folder / WEIGHTS)
        if "readout" in card:
            readout: Readout = LinearReadout.from_arrays(arrays, card["readout"])
        else:
            from reservoir_pipelines.fitting.estimator_files import load_estimator
            from reservoir_pipelines.fitting.sklearn_readout import EstimatorReadout

            model = load_estimator((folder / ESTIMATOR).read_bytes(), f"readout {folder / ESTIMATOR}")
            readout = EstimatorReadout(model=model, targets=Targets(**card["estimator"]))
        return cls(
            task=Task.from_dict(card["task"]),
            scaling=Scaling(offset=arrays["offset"], scale=arrays["scale"]) if "scale" in arrays else None,
            parts=tuple(
                Part(**{**part, "reservoir": Reservoir(**part["reservoir"]), "columns": tuple(part["columns"])})
                for part in card["parts"]
            ),
            readout=readout,
            scores=card["scores"],
        )


def _merged(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Join neighbours of one reservoir, so that one forward pass serves them; the order of columns stays."""
    merged: list[Part] = []
    for part in parts:
        same = merged and (merged[-1].digest, merged[-1].reservoir) == (part.digest, part.reservoir)
        if same:
            last = merged.pop()
            part = Part(**{**vars(last), "columns": last.columns + part.columns})  # noqa: PLW2901
        merged.append(part)
    return tuple(merged)


def input_scaling(entry: Entry) -> Scaling | None:
    """Return how stored values became what the model saw when an entry was extracted.

    Raises
    ------
    InputError
        If the entry was made before it kept that, and the prepared data is gone.
    """
    if "scaling" in entry.made_with:
        return scaling_from_json(entry.made_with["scaling"])
    place = Path(entry.made_with["prepared"])
    if not place.is_dir():
        raise InputError(f"{entry.path}: its prepared data is gone; run reservoir prepare, or extract again")
    return Prepared.open(place).scaling
