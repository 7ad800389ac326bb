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
from reservoir.file_checks import check_arrays, from_json
from reservoir.inputs.patch_units import PatchUnits
from reservoir.options import PRECISIONS
from reservoir.raw_input import RawWindows
from reservoir.readouts.kernel_ridge import KernelReadout
from reservoir.readouts.linear import LinearReadout, Readout, Targets
from reservoir.reservoir import MAX_WINDOW, Reservoir
from reservoir.tasks.task import Scaling, Task, Vectors
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
from reservoir_pipelines.preparation.prepared import position_means, scaling_from_json

READOUT_FORMAT = 3  # version of the files of a bundle
READABLE = (2, 3)  # format 2 calls the input digests ``door``
READOUT_FILE = "readout.json"  # the JSON file of a bundle
# Fields of a bundle that are written to JSON as they are.
PLAIN_FIELDS = ("scores", "lengths", "groups", "origin")
# Most values from the first to the last one of a window, because rows are padded by so many.
MAX_REACH = 2**24
WEIGHTS, ESTIMATOR = "safetensors", "skops"  # suffixes of the two files of weights


@dataclass(frozen=True, kw_only=True)
class Part:
    """The columns of one frozen model that a readout reads; the SHA-256 of its weights identifies the model."""

    reservoir: Reservoir | None  # None for the raw input, and for imported features, which have a digest
    digest: str  # SHA-256 of the weights, or of imported features; "" for the raw input
    compute: str  # the precision of the model; "" without a model
    columns: tuple[str, ...]  # the names of the columns in their own entry
    run: str = ""  # the folder of a run of train, for trained weights; "" for frozen ones
    # The step of the run's checkpoint whose output layer is the readout; a run that goes on has others soon.
    step: int | None = None
    # SHA-256 of tokenizer and embeddings, by name; empty unless input is native
    input_digests: dict[str, str] = field(default_factory=dict)
    # The units of the input layer with --input patches; None for other input.
    units: PatchUnits | None = field(default=None, compare=False)
    # The statistic of the raw sequences that is the only column; None for other columns.
    statistic: Statistic | None = None
    # The windows of the raw input around each token that are the only column; None for other columns.
    windows: Windows | None = None
    # The model of an inference engine that computed the columns, so that new rows are its requests; None for others.
    engine: EngineModel | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without those of a run on this machine and the arrays of ``units``."""
        optional = ("statistic", "windows", "engine")
        absent = {"run", "step", "units"} | {name for name in optional if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in absent}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A fitted readout, and the models whose columns it reads side by side."""

    task: Task
    scaling: Scaling | None  # from stored values to the values that the model reads; None for symbols
    parts: tuple[Part, ...]  # in the order of the features that the readout reads
    readout: Readout
    scores: dict[str, Any]  # the values of `Result.to_dict`, with scores on validation and test
    lengths: bool = False  # whether the sequences of the fit had several lengths
    groups: bool = True  # False if the rows of the fit are known to have had no groups
    # The task or the path of the data of the fit, or the folder of the requests of an engine; "" if not recorded.
    origin: str = ""
    # The scores of `nonconformity_scores`, (n,), or of forecasts the errors of `forecast_errors`, (n, horizon); empty
    # if the readout has none.
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(0))
    # The `position_means` of the training rows, (positions, channels), which `explain` puts in place of hidden values.
    position_means: np.ndarray | None = None

    @classmethod
    def of(cls, known: Known, chosen: FinalReadout, result: Result) -> "Bundle":
        """Return the bundle of a readout that was chosen on cache entries, with its ``result`` on test."""
        train = known.view["train"]
        made_with = known.view.made_with
        entry = chosen.source.view.made_with
        call = entry.get("call", {})
        return cls(
            task=known.task,
            scaling=scaling_from_json(made_with.get("scaling"), known.task),
            parts=_parts_of(known, chosen.source),
            readout=chosen.readout,
            scores=result.to_dict(),
            lengths=bool(train.lengths.min() < train.lengths.max()),
            groups=train.groups is not None,
            origin=call.get("file" if "engine" in entry else "task", ""),
            held_out=chosen.held_out(),
            position_means=_position_means_of(known),
        )

    def radius(self, coverage: float, where: Path) -> float | np.ndarray:
        """Return the nonconformity score that a share of ``coverage`` of new rows is expected not to exceed.

        It is number ceil((n + 1) * coverage) of the n held-out scores in ascending order. For a forecast of several
        values it is an array with the score of each, (horizon,). Raise `InputError`, which names the readout ``where``,
        if the readout has no such scores, or too few.
        """
        rows = len(self.held_out)
        # Rounded first, so that products such as 20 * 0.95 are whole numbers.
        rank = math.ceil(round((rows + 1) * coverage, 9))
        if not rows:
            raise InputError(
                f"readout {where}: it has no validation scores for --coverage",
                "fit one label per row, with probabilities",
            )
        if rank > rows:
            # (n + 1) * coverage <= n holds for n >= coverage / (1 - coverage).
            least = math.ceil(round(coverage / (1 - coverage), 9))
            raise InputError(
                f"--coverage {coverage:g} needs {least} validation rows, but the readout has {rows}",
                "lower the coverage",
            )
        score = self.held_out[rank - 1]
        return score if self.held_out.ndim > 1 else float(score)

    def write(self, folder: Path) -> Path:
        """Write the bundle into a folder that the caller has locked; return the path of its JSON file."""
        card: dict[str, Any] = {
            "format": READOUT_FORMAT,
            "task": self.task.to_dict(),
            "parts": [part.to_dict() for part in self.parts],
            "files": {},
            **{name: getattr(self, name) for name in PLAIN_FIELDS},
        }
        description, files = self._encoded()
        card |= description
        # Files are named by their content, so that the card of the old bundle still has its own files until it is
        # replaced. Those that no card names are removed at the end.
        for suffix, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            name = f"readout-{digest[:16]}.{suffix}"
            replace_file(folder / name, partial(Path.write_bytes, data=data))
            card["files"][name] = digest
        write_checked(folder / READOUT_FILE, card)
        for path in folder.glob("readout-*"):
            has_weights = path.suffix[1:] in (WEIGHTS, ESTIMATOR)
            if has_weights and path.name not in card["files"]:
                path.unlink(missing_ok=True)
        return folder / READOUT_FILE

    def _encoded(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the JSON values of the readout, and the contents of the files of weights, by their suffix.

        The only JSON value is called ``readout`` for a linear readout, ``kernel`` for one of a kernel, else
        ``estimator``. Raise `InputError` for an estimator that skops cannot save, and print a notice for any other.
        """
        from safetensors.numpy import save

        arrays = {"held_out": self.held_out} if len(self.held_out) else {}
        if self.position_means is not None:
            arrays["position_means"] = self.position_means
        if self.scaling:
            arrays |= {"offset": self.scaling.offset, "scale": self.scaling.scale}
        for number, part in enumerate(self.parts):
            arrays_of_units = part.units.to_arrays() if part.units else {}
            arrays |= {f"units{number}.{name}": array for name, array in arrays_of_units.items()}
        # A linear or a kernel readout is arrays; any other estimator is an archive beside them.
        files: dict[str, bytes] = {}
        if isinstance(self.readout, LinearReadout | KernelReadout):
            weights, settings = self.readout.to_arrays()
            arrays |= weights
            description = {"kernel" if isinstance(self.readout, KernelReadout) else "readout": settings}
        else:
            import skops.io

            assert isinstance(self.readout, EstimatorReadout)
            name, targets = self.readout.name, self.readout.targets
            with as_input_error(f"readout {name}: cannot be saved", "choose another estimator"):
                files[ESTIMATOR] = skops.io.dumps(self.readout.model)
            notify(f"readout {name} is not linear: it is saved with skops, and predict needs --trust")
            settings = {"name": name, "outputs": targets.outputs, "classes": targets.classes}
            description = {"estimator": settings}
        files[WEIGHTS] = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        return description, files

    @classmethod
    def load(cls, path: Path, *, trust: bool = False, linear: bool = False) -> "Bundle":
        """Return the bundle of a folder or JSON file.

        Raise `InputError` if it is damaged, if it holds an estimator and ``trust`` is False, or if its readout is not
        linear and ``linear`` is True.
        """
        from safetensors.numpy import load

        folder = path if path.is_dir() else path.parent
        if not path.exists() or not (folder / READOUT_FILE).exists():
            problem = "neither a readout nor a run" if path.exists() else "no such file or folder"
            raise InputError(f"{path}: {problem}", "name a folder that fit or train wrote")
        with as_input_error(f"readout {folder}: not readable", "fit it again"):
            card, files = _read_files(folder)
            if linear and "readout" not in card:
                raise InputError(
                    f"readout {folder}: only linear readouts can be exported or explained",
                    "fit with --readout ridge or logistic",
                )
            task = Task.from_dict(card["task"])
            arrays = load(files[WEIGHTS])
            if "readout" in card:
                readout = LinearReadout.from_arrays(arrays, card["readout"])
            elif "kernel" in card:
                readout = KernelReadout.from_arrays(arrays, card["kernel"])
            else:
                readout = _load_estimator(folder, card["estimator"], files[ESTIMATOR], trust)
            _check_targets(readout.targets, task)
            parts = [
                replace(_part(values), units=_units(arrays, number))
                for number, values in enumerate(card["parts"])
            ]
            return cls(
                task=task,
                scaling=_scaling(arrays, task),
                parts=(*parts,),
                readout=readout,
                held_out=_held_out_scores(arrays, task),
                position_means=checked_means(arrays.get("position_means"), task),
                **{name: card[name] for name in PLAIN_FIELDS if name in card},
            )


def _held_out_scores(arrays: Mapping[str, np.ndarray], task: Task) -> np.ndarray:
    """Return the field ``held_out`` of a bundle from its arrays; raise `ValueError` if it has another shape.

    `Bundle.radius` needs ascending scores, so they are sorted again, whatever the file holds.
    """
    held_out = np.sort(arrays.get("held_out", np.zeros(0)), axis=0)
    shape = (len(held_out),)
    if held_out.ndim > 1:  # a forecast has scores of each value
        shape = (len(held_out), task.outputs)
    check_arrays({"held_out": held_out}, {"held_out": shape})
    return held_out


def checked_means(means: np.ndarray | None, task: Task) -> np.ndarray | None:
    """Return the field ``position_means`` of a bundle from a file; raise `ValueError` if it has another shape."""
    if means is not None:
        dim = task.form.dim if isinstance(task.form, Vectors) else 0
        check_arrays({"position_means": means}, {"position_means": (task.max_tokens, dim)})
    return means


def _position_means_of(known: Known) -> np.ndarray | None:
    """Return the `position_means` of the training rows of a fit; None if the prepared data is gone or has none."""
    view = known.view
    if not view.has_raw:
        return None
    return position_means(view.raw_task, view.raw("train"), view["train"].index, view.raw_scaling)


def _parts_of(known: Known, source: EntrySource) -> tuple[Part, ...]:
    """Return the frozen models whose columns a source reads, in the order of the columns."""
    # A baseline has features of its own, which may have been learnt from its training rows, so its source is kept. The
    # features of columns are in the entries.
    sources = [source] if isinstance(source, RawSource) else map(known.column, source.columns)
    parts: list[Part] = []
    for source_of_column in sources:
        if isinstance(source_of_column, RawSource):
            parts.append(_raw_part(source_of_column))
            continue
        part = _part_of_column(source_of_column)
        # One forward pass, or one reading of the requests, gives neighbouring columns of the same model, so these are
        # one part.
        if parts and replace(parts[-1], columns=()) == replace(part, columns=()):
            part = replace(part, columns=parts.pop().columns + part.columns)
        parts.append(part)
    return tuple(parts)


def _part_of_column(source: ColumnSource[KnownSplit]) -> Part:
    """Return the part of a single column: the model of its entry, or no model if its features were imported."""
    spec, made_with = source.view.spec, source.view.made_with
    if spec.init.kind == IMPORTED:
        engine = made_with.get("engine")  # None unless an inference engine has written the features
        return Part(
            reservoir=None,
            digest=spec.backbone.digest,
            compute="",
            columns=(source.column.name,),
            engine=engine and from_json(EngineModel, engine),
        )
    return Part(
        reservoir=Reservoir(**made_with["reservoir"]),
        digest=spec.backbone.digest,
        compute=spec.compute,
        columns=(source.column.name,),
        input_digests=spec.input.digests,
        units=source.view.patch_units() if spec.input.kind == "patches" else None,
    )


def _check_targets(targets: Targets, task: Task) -> None:
    """Raise `ValueError` unless a readout predicts the labels of its task: those of one token, or of all of a row."""
    has_outputs_of_task = targets.outputs in (task.outputs, task.outputs * task.readout_tokens)
    if not has_outputs_of_task or targets.classes != task.classes:
        raise ValueError("the labels of the readout are not those of its task")


def _scaling(arrays: Mapping[str, np.ndarray], task: Task) -> Scaling | None:
    """Return the scaling of stored values from the arrays of a bundle; None for symbols, which have none."""
    # Without a scaling, the file has neither array. With one of the two, `scaling_from_json` (which takes arrays as
    # well as lists) asks for the other, so that a file that has lost it is refused.
    has_scaling = "offset" in arrays or "scale" in arrays
    return scaling_from_json(arrays if has_scaling else None, task)


def _units(arrays: Mapping[str, np.ndarray], number: int) -> PatchUnits | None:
    """Return the units of the part with a ``number`` from the arrays of a bundle; None if the part has none."""
    prefix = f"units{number}."
    arrays_of_part = {
        name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
    }
    return PatchUnits.from_arrays(arrays_of_part) if arrays_of_part else None


def _load_estimator(folder: Path, described: dict[str, Any], data: bytes, trust: bool) -> EstimatorReadout:
    """Return the estimator of a bundle from its archive ``data``, and print the types in it.

    Raise `InputError` without ``trust``, before anything is opened. ``described`` is the entry ``estimator`` of the
    bundle's JSON.
    """
    import skops.io
    from sklearn.pipeline import Pipeline

    # The name comes from a file that may not be trusted, so only its beginning is printed.
    name = str(described.get("name", "a scikit-learn estimator"))[:100]
    if not trust:
        raise InputError(
            f"readout {folder} is {name!r}, which is not linear, and loading it can run code",
            "pass --trust (in Python trust=True) if you trust its author",
        )
    untrusted_types = skops.io.get_untrusted_types(data=data)
    contents = ", ".join(untrusted_types) or "only types that skops trusts"
    notify(f"readout {folder}: loading {name!r} with --trust; its archive contains {contents}")
    model = skops.io.loads(data, trusted=untrusted_types)
    if not isinstance(model, Pipeline):
        raise ValueError(f"it holds a {type(model).__name__}, not a fitted pipeline")
    targets = from_json(Targets, {name: described[name] for name in ("outputs", "classes")})
    return EstimatorReadout(model=model, targets=targets, name=name)


def _raw_part(source: RawSource[Any]) -> Part:
    """Return the part of the raw input, of a statistic of it, or of its windows."""
    features = source.features
    statistic = features if isinstance(features, Statistic) else None
    # A forecast that repeats values has a name of its own, but reads the raw input, or a statistic of it.
    columns = (RAW.name,) if features is None else names_of(source.columns)
    return Part(
        reservoir=None,
        digest="",
        compute="",
        columns=(statistic.name,) if statistic else columns,
        statistic=statistic,
        windows=features.windows if isinstance(features, RawWindows) else None,
    )


def _part(values: dict[str, Any]) -> Part:
    """Return a part from the values of `Part.to_dict`; raise `ValueError` if it cannot be one."""
    if values["compute"] not in ("", *PRECISIONS):
        raise ValueError(f"unknown precision {str(values['compute'])[:40]!r}")
    # Older readouts have the digests of the input under the name "door".
    fields: dict[str, Any] = {
        "digest": values["digest"],
        "compute": values["compute"],
        "reservoir": values["reservoir"] and Reservoir(**values["reservoir"]),
        "columns": tuple(values["columns"]),
        "input_digests": values.get("input_digests") or values.get("door") or {},
    }
    if values.get("statistic"):
        fields["statistic"] = from_json(Statistic, values["statistic"])
    if values.get("windows"):
        fields["windows"] = _windows(values["windows"])
    if values.get("engine"):
        fields["engine"] = from_json(EngineModel, values["engine"])
    part = from_json(Part, fields)
    # Without a model or imported features, the only column is the raw input, its windows, or a statistic of it.
    has_features = bool(part.reservoir or part.digest)
    column_of_input = part.statistic.name if part.statistic and not part.reservoir else RAW.name
    is_of_input = part.columns == (column_of_input,) or (part.windows and len(part.columns) == 1)
    if not part.columns or not (has_features or is_of_input):
        raise ValueError("a part reads no known column")
    return part


def _windows(values: dict[str, Any]) -> Windows:
    """Return the windows of the raw input around each token, from JSON values.

    Raise `ValueError` for other windows, and for some that would take too much memory, because a file may name any.
    """
    windows = from_json(Windows, values)
    patch = windows.patch  # values of a window; a token has a window for each dilation
    dilations = windows.dilations
    are_around_tokens = windows.stride == 1 and windows.pad == "same"
    if not are_around_tokens or not dilations or min(patch, *dilations) < 1:
        raise ValueError("its windows are not around tokens")
    reach_too_far = patch * max(dilations) > MAX_REACH
    have_too_many_values = patch * len(dilations) > MAX_WINDOW
    if reach_too_far or have_too_many_values:
        raise ValueError("its windows are too large")
    return windows


def _read_files(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the JSON values of a bundle, and the contents of its files by their suffix, whose checksums are verified.

    Raise `InputError` for another format, and for a checksum mismatch.
    """
    # Read again if another process replaces the bundle meanwhile.
    while True:
        card = read_checked(folder / READOUT_FILE)
        if card["format"] not in READABLE:
            raise InputError(
                f"readout {folder}: format {card['format']} needs another version of reservoir",
                "fit it again",
            )
        try:
            files = {name: read_regular(folder / Path(name).name) for name in card["files"]}
        except FileNotFoundError:
            # If the card has changed, another process has just replaced the bundle: read the new one.
            if read_checked(folder / READOUT_FILE) == card:
                raise
            continue
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != card["files"][name]:
                raise InputError(f"readout {folder / name}: damaged (checksum mismatch)", "fit it again")
        return card, {name.rpartition(".")[2]: data for name, data in files.items()}
