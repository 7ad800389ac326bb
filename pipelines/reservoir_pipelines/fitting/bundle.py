"""A readout on disk: its weights, and a JSON file with everything else that predictions need.

The JSON has a checksum, and the SHA-256 of the files of weights. It is replaced atomically after the
weights are on disk, so a reader sees the old or the new bundle, even if a writer is killed or several
write.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import read_regular, replace_file

from reservoir.column import RAW, names_of
from reservoir.errors import InputError, as_input_error
from reservoir.inputs.patch_units import UNITS, PatchUnits
from reservoir.options import PRECISIONS
from reservoir.raw_input import RawWindows
from reservoir.readouts.kernel_ridge import KernelReadout
from reservoir.readouts.linear import LinearReadout, Readout, Targets
from reservoir.records import check_arrays, from_json
from reservoir.reservoir import MAX_WINDOW, Reservoir
from reservoir.tasks.task import Scaling, Task
from reservoir.tasks.windows import Windows
from reservoir_pipelines.extraction.engine_folder import EngineModel
from reservoir_pipelines.files import IMPORTED, read_checked, write_checked
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.refit import FinalReadout
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sklearn_fitter import EstimatorReadout
from reservoir_pipelines.fitting.source import ColumnSource, EntrySource, KnownSplit, RawSource
from reservoir_pipelines.fitting.statistics import Statistic
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import scaling_from_json

FORMAT = 3
READABLE = (2, 3)  # format 2 calls the input digests ``door``
CARD = "readout.json"
PLAIN = ("scores", "lengths", "groups", "origin")  # fields of a bundle that are written to JSON as they are
MAX_REACH = 2**24  # values from the first to the last of a window, for which a row is padded
WEIGHTS, ESTIMATOR = "safetensors", "skops"  # suffixes of the two files of weights


@dataclass(frozen=True, kw_only=True)
class Part:
    """The columns of one frozen model that a readout reads; the SHA-256 of its weights identifies the model."""

    reservoir: Reservoir | None  # None for the raw input, and for imported features, which have a digest
    digest: str
    compute: str
    columns: tuple[str, ...]
    run: str = ""  # the folder of a run of train, for trained weights
    # SHA-256 of tokenizer and embeddings, if input is native
    input_digests: dict[str, str] = field(default_factory=dict)
    units: PatchUnits | None = field(default=None, compare=False)  # of --input patches
    statistic: Statistic | None = None  # of the raw sequences, which is then the only column
    windows: Windows | None = None  # of the raw input around each token, which are then the only column
    engine: EngineModel | None = None  # that computed the columns, whose requests new rows are, too

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without the folder of this machine."""
        optional = ("statistic", "windows", "engine")
        absent = {"run", "units"} | {name for name in optional if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in absent}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A fitted readout, and the models whose columns it reads side by side."""

    task: Task
    scaling: Scaling | None  # from stored values to the values that the model reads
    parts: tuple[Part, ...]
    readout: Readout
    scores: dict[str, Any]  # scores on validation and test
    lengths: bool = False  # whether the sequences of the fit had several lengths
    groups: bool = True  # False if the rows of the fit had no groups
    origin: str = ""  # the task or the path of the data of the fit
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(0))  # see `nonconformity_scores`

    @classmethod
    def of(cls, known: Known, chosen: FinalReadout, result: Result) -> "Bundle":
        """Return the bundle of a readout that was chosen on cache entries, with its ``result`` on test."""
        lengths = known.view["train"].lengths
        made_with = known.view.made_with
        return cls(
            task=known.task,
            scaling=scaling_from_json(made_with.get("scaling"), known.task),
            parts=_parts_of(known, chosen.source),
            readout=chosen.readout,
            scores=result.to_dict(),
            lengths=bool(lengths.min() < lengths.max()),
            groups=known.view["train"].groups is not None,
            origin=made_with.get("call", {}).get("task", ""),
            held_out=chosen.held_out(),
        )

    def radius(self, coverage: float, where: Path) -> float | np.ndarray:
        """Return validation score number ceil((n + 1) * coverage) of n in ascending order; messages name ``where``.

        For a forecast of several values it is an array with the score of each, (horizon,).
        """
        # Rounded, so that products such as 20 * 0.95 are whole numbers.
        rows = len(self.held_out)
        rank = math.ceil(round((rows + 1) * coverage, 9))
        if not rows:
            raise InputError(
                f"readout {where}: it has no validation scores for --coverage",
                "fit one label per row, with probabilities",
            )
        if rank > rows:
            least = math.ceil(round(coverage / (1 - coverage), 9))
            raise InputError(
                f"--coverage {coverage:g} needs {least} validation rows, but the readout has {rows}",
                "lower the coverage",
            )
        score = self.held_out[rank - 1]
        return score if self.held_out.ndim > 1 else float(score)

    def write(self, folder: Path) -> Path:
        """Write the bundle into a folder that the caller has locked; return the path of its JSON file."""
        from safetensors.numpy import save

        card: dict[str, Any] = {
            "format": FORMAT,
            "task": self.task.to_dict(),
            "parts": [part.to_dict() for part in self.parts],
            "files": {},
            **{name: getattr(self, name) for name in PLAIN},
        }
        # A linear or a kernel readout is arrays; any other estimator is an archive beside them.
        arrays = {"held_out": self.held_out} if len(self.held_out) else {}
        if self.scaling:
            arrays |= {"offset": self.scaling.offset, "scale": self.scaling.scale}
        for number, part in enumerate(self.parts):
            of_part = part.units.to_arrays() if part.units else {}
            arrays |= {f"units{number}.{name}": array for name, array in of_part.items()}
        files: dict[str, bytes] = {}
        if isinstance(self.readout, LinearReadout | KernelReadout):
            weights, settings = self.readout.to_arrays()
            arrays |= weights
            card["kernel" if isinstance(self.readout, KernelReadout) else "readout"] = settings
        else:
            import skops.io

            assert isinstance(self.readout, EstimatorReadout)
            name, targets = self.readout.name, self.readout.targets
            with as_input_error(f"readout {name}: cannot be saved", "choose another estimator"):
                files[ESTIMATOR] = skops.io.dumps(self.readout.model)
            notify(f"readout {name} is not linear: it is saved with skops, and predict needs --trust")
            card["estimator"] = {"name": name, "outputs": targets.outputs, "classes": targets.classes}
        files[WEIGHTS] = save({name: np.ascontiguousarray(value) for name, value in arrays.items()})
        # Files are named by their content, so that the card of the old bundle still has its own files until it is
        # replaced. Those that no card names are removed at the end.
        for suffix, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            name = f"readout-{digest[:16]}.{suffix}"
            replace_file(folder / name, partial(Path.write_bytes, data=data))
            card["files"][name] = digest
        write_checked(folder / CARD, card)
        for path in folder.glob("readout-*"):
            if path.suffix[1:] in (WEIGHTS, ESTIMATOR) and path.name not in card["files"]:
                path.unlink(missing_ok=True)
        return folder / CARD

    @classmethod
    def load(cls, path: Path, *, trust: bool = False, linear: bool = False) -> "Bundle":
        """Return the bundle of a folder or JSON file; without ``trust`` or with ``linear``, refuse estimators."""
        from safetensors.numpy import load

        folder = path if path.is_dir() else path.parent
        if not path.exists() or not (folder / CARD).exists():
            problem = "neither a readout nor a run" if path.exists() else "no such file or folder"
            raise InputError(f"{path}: {problem}", "name a folder that fit or train wrote")
        with as_input_error(f"readout {folder}: not readable", "fit it again"):
            card, files = _read_files(folder)
            if linear and "readout" not in card:
                raise InputError(
                    f"readout {folder}: only linear readouts can be exported or explained",
                    "fit with --readout ridge or logistic",
                )
            arrays, task = load(files[WEIGHTS]), Task.from_dict(card["task"])
            if "readout" in card:
                readout = LinearReadout.from_arrays(arrays, card["readout"])
            elif "kernel" in card:
                readout = KernelReadout.from_arrays(arrays, card["kernel"])
            else:
                readout = _load_estimator(folder, card["estimator"], files[ESTIMATOR], trust)
            held_out = np.sort(arrays.get("held_out", np.zeros(0)), axis=0)
            each_value = (task.outputs,) if held_out.ndim > 1 else ()  # a forecast has scores of each value
            check_arrays({"held_out": held_out}, {"held_out": (len(held_out), *each_value)})
            # A readout predicts the labels of one token, or those of all tokens of a row.
            targets = readout.targets
            fits_task = targets.outputs in (task.outputs, task.outputs * task.readout_tokens)
            if not fits_task or targets.classes != task.classes:
                raise ValueError("the labels of the readout are not those of its task")
            return cls(
                task=task,
                scaling=scaling_from_json(arrays if {"offset", "scale"} & arrays.keys() else None, task),
                parts=tuple(
                    replace(_part(part), units=_units(arrays, number))
                    for number, part in enumerate(card["parts"])
                ),
                readout=readout,
                held_out=held_out,
                **{name: card[name] for name in PLAIN if name in card},
            )


def _parts_of(known: Known, source: EntrySource) -> tuple[Part, ...]:
    """Return the frozen models whose columns a source reads, in the order of the columns."""
    # A baseline has learnt its features; those of columns are the same for all readouts.
    sources = [source] if isinstance(source, RawSource) else map(known.column, source.columns)
    parts: list[Part] = []
    for of_column in sources:
        # Raw input and imported features have no model that predict could run; a column has that of its entry.
        if isinstance(of_column, RawSource):
            parts.append(_raw_part(of_column))
            continue
        spec = of_column.view.spec
        if spec.init.kind == IMPORTED:
            engine = of_column.view.made_with.get("engine")
            part = Part(
                reservoir=None,
                digest=spec.backbone.digest,
                compute="",
                columns=(of_column.column.name,),
                engine=engine and from_json(EngineModel, engine),
            )
        else:
            part = Part(
                reservoir=Reservoir(**of_column.view.made_with["reservoir"]),
                digest=spec.backbone.digest,
                compute=spec.compute,
                columns=(of_column.column.name,),
                input_digests=spec.input.digests,
                units=_stored_units(of_column) if spec.input.kind == "patches" else None,
            )
        # One forward pass, or one reading of the requests, gives neighbouring columns of the same model.
        if parts and replace(parts[-1], columns=()) == replace(part, columns=()):
            part = replace(part, columns=parts.pop().columns + part.columns)
        parts.append(part)
    return tuple(parts)


def _stored_units(source: ColumnSource[KnownSplit]) -> PatchUnits:
    """Return the units of the input layer that an entry's features were computed with."""
    stored = source.view.load_arrays(UNITS)
    if stored is None:
        raise InputError(f"{source.view.path}: the units of its input layer are missing", "extract again")
    return PatchUnits.from_arrays(stored[0])


def _units(arrays: Mapping[str, np.ndarray], number: int) -> PatchUnits | None:
    """Return the units of a part of a bundle, by its number; None if it has none."""
    prefix = f"units{number}."
    of_part = {
        name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
    }
    return PatchUnits.from_arrays(of_part) if of_part else None


def _load_estimator(folder: Path, described: dict[str, Any], data: bytes, trust: bool) -> EstimatorReadout:
    """Return the estimator of a bundle, and print the types in its archive; open nothing without ``trust``."""
    import skops.io
    from sklearn.pipeline import Pipeline

    name = str(described.get("name", "a scikit-learn estimator"))[:100]
    if not trust:
        raise InputError(
            f"readout {folder} is {name!r}, which is not linear, and loading it can run code",
            "pass --trust (in Python trust=True) if you trust its author",
        )
    types = skops.io.get_untrusted_types(data=data)
    named = ", ".join(types) or "only types that skops trusts"
    notify(f"readout {folder}: loading {name!r} with --trust; its archive contains {named}")
    model = skops.io.loads(data, trusted=types)
    if not isinstance(model, Pipeline):
        raise ValueError(f"it holds a {type(model).__name__}, not a fitted pipeline")
    targets = from_json(Targets, {name: described[name] for name in ("outputs", "classes")})
    return EstimatorReadout(model=model, targets=targets, name=name)


def _raw_part(source: RawSource[Any]) -> Part:
    """Return the part of the raw input, of a statistic of it, or of its windows."""
    features = source.features
    # A forecast that repeats values has a name of its own, but reads the raw input as it is.
    columns = (RAW.name,) if features is None else names_of(source.columns)
    return Part(
        reservoir=None,
        digest="",
        compute="",
        columns=columns,
        statistic=features if isinstance(features, Statistic) else None,
        windows=features.windows if isinstance(features, RawWindows) else None,
    )


def _part(values: dict[str, Any]) -> Part:
    """Return a part from the values of `Part.to_dict`; raise `ValueError` if it cannot be one."""
    if values["compute"] not in ("", *PRECISIONS):
        raise ValueError(f"unknown precision {str(values['compute'])[:40]!r}")
    # Older readouts have the digests of the input under the name "door".
    parsed = {
        "reservoir": values["reservoir"] and Reservoir(**values["reservoir"]),
        "columns": tuple(values["columns"]),
        "input_digests": values.get("input_digests") or values.get("door") or {},
    }
    if values.get("statistic"):
        parsed["statistic"] = from_json(Statistic, values["statistic"])
    if values.get("windows"):
        windows = parsed["windows"] = from_json(Windows, values["windows"])
        sizes = (windows.patch, *windows.dilations)
        are_around_tokens = windows.stride == 1 and windows.pad == "same" and min(sizes) > 0
        too_large = windows.patch * max(sizes) > MAX_REACH or windows.patch * len(sizes) > MAX_WINDOW
        if not are_around_tokens or too_large:
            raise ValueError("its windows are not around tokens, or are too large")
    if values.get("engine"):
        parsed["engine"] = from_json(EngineModel, values["engine"])
    part = from_json(Part, {name: values[name] for name in ("digest", "compute")} | parsed)
    # Without a model or imported features, the only column is the raw input, its windows, or a statistic of it.
    has_features = bool(part.reservoir or part.digest)
    without_model = part.statistic.name if part.statistic and not part.reservoir else RAW.name
    is_of_input = part.columns == (without_model,) or (part.windows and len(part.columns) == 1)
    if not part.columns or not (has_features or is_of_input):
        raise ValueError("a part reads no known column")
    return part


def _read_files(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the JSON values of a bundle, and its verified files by suffix."""
    while True:
        card = read_checked(folder / CARD)
        if card["format"] not in READABLE:
            raise InputError(
                f"readout {folder}: format {card['format']} needs another version of reservoir",
                "fit it again",
            )
        try:
            files = {name: read_regular(folder / Path(name).name) for name in card["files"]}
        except FileNotFoundError:
            # If the card has changed, another process has just replaced the bundle: read the new one.
            if read_checked(folder / CARD) == card:
                raise
            continue
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != card["files"][name]:
                raise InputError(f"readout {folder / name}: damaged (checksum mismatch)", "fit it again")
        return card, {name.rpartition(".")[2]: data for name, data in files.items()}
