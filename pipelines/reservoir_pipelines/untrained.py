"""The stage ``twin``: a trained model, the same model with random weights, and the raw input, on the same test rows.

What the untrained model reaches needs no training: it comes from the architecture, from the width of its layers and
from the readout. Only the rest is what the model has learnt.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import Entry, untracked

from reservoir.column import Column, Columns, names_of
from reservoir.errors import InputError
from reservoir.file_checks import from_json
from reservoir.option_fields import without_where
from reservoir.options import DeviceOptions, ExtractOptions, FitOptions
from reservoir.readouts.paired import Difference
from reservoir_pipelines.extraction.extract import Extraction, extract, resolved_plan
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting.fit import ScoredFit, check_options, fit_and_score
from reservoir_pipelines.fitting.fit_data import FitData
from reservoir_pipelines.fitting.refit import FinalReadout
from reservoir_pipelines.fitting.results import SUMMARY, Against, Result
from reservoir_pipelines.fitting.verdicts import compared_with, difference_on_test
from reservoir_pipelines.output import Record, as_json, notify
from reservoir_pipelines.plots import draw_twin, plot

TWIN_SUMMARY = "twin.json"
PLOT = "twin.png"
UNTRAINED = "random"  # the ``--init`` of the untrained model
DIFFERENCES = ("trained_minus_untrained", "trained_minus_raw", "untrained_minus_raw")


@dataclass(frozen=True, kw_only=True)
class Contrast(Record):
    """The readouts of one layer in both models, or the chosen readouts, and their differences on the test rows.

    Parameters
    ----------
    layer : str, optional
        The layer; None for the readouts that validation chose among all columns.
    trained, untrained : Result
        The best readout by validation of each model, with its score on test.
    trained_minus_untrained : Difference
        Accuracy (or R²) of the trained model minus that of the untrained one, with its paired 95% interval and p-value.
    trained_minus_raw, untrained_minus_raw : Difference, optional
        The same against the raw input; None if the prepared data is missing.
    """

    layer: str | None
    trained: Result
    untrained: Result
    trained_minus_untrained: Difference
    trained_minus_raw: Difference | None
    untrained_minus_raw: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        differences = {name: getattr(self, name) for name in DIFFERENCES}
        # None stands for a difference that was not computed.
        as_dicts = {
            name: None if difference is None else vars(difference)
            for name, difference in differences.items()
        }
        return as_json(vars(self) | as_dicts)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Contrast":
        """Build a contrast from the values of `to_dict`."""
        differences = {
            name: None if values[name] is None else from_json(Difference, values[name])
            for name in DIFFERENCES
        }
        results = {name: Result.from_dict(values[name]) for name in ("trained", "untrained")}
        return from_json(cls, {**values, **differences, **results})


@dataclass(frozen=True, kw_only=True)
class Twin(Record):
    """The result of `twin`.

    Parameters
    ----------
    trained, untrained : Path
        The cache entries of both models.
    raw : Result, optional
        The best readout by validation of the raw input or of a statistic of it, such as tf-idf.
    chosen : Contrast
        The readouts that validation chose among all columns of each model.
    layers : tuple of Contrast
        The best column of each layer; empty for fewer than two layers.
    against : tuple of Against
        What the test rows show of the chosen readout against the untrained model and against the raw input.
    saved, plot : Path
        The file with all of this, and its plot. Beside them are the folders of the two fits.
    seconds : float
        Wall time of the call that computed the result.
    reused : bool
        Whether the result was saved already by an earlier call.
    """

    trained: Path
    untrained: Path
    raw: Result | None
    chosen: Contrast
    layers: tuple[Contrast, ...]
    against: tuple[Against, ...]
    saved: Path
    plot: Path
    seconds: float
    reused: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        against = [comparison.to_dict() | {"sentence": comparison.sentence} for comparison in self.against]
        return super().to_dict() | {"against": against}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path) -> "Twin":
        """Build the result that an earlier call saved in a folder, from the values of `to_dict`."""
        # The sentence is made of the other values.
        against = [
            {name: value for name, value in stored.items() if name != "sentence"}
            for stored in values["against"]
        ]
        return cls(
            trained=Path(values["trained"]),
            untrained=Path(values["untrained"]),
            raw=values["raw"] and Result.from_dict(values["raw"]),
            chosen=Contrast.from_dict(values["chosen"]),
            layers=tuple(map(Contrast.from_dict, values["layers"])),
            against=tuple(from_json(Against, stored) for stored in against),
            saved=folder / TWIN_SUMMARY,
            plot=folder / PLOT,
            seconds=float(values["seconds"]),
            reused=True,
        )


def twin(task: str, extraction: ExtractOptions, options: FitOptions, place: DeviceOptions) -> Twin:
    """Compare a trained model with its untrained twin and the raw input; see `api.twin`."""
    started = time.monotonic()
    # Both extractions may take hours, so what cannot work is refused before them.
    plan = resolved_plan(task, extraction)
    if plan.reservoir.init in ("random", "random-flat", "tied"):
        raise InputError(
            f"twin: the model itself is untrained (--init {plan.reservoir.init})",
            "name a pretrained backbone, as in --backbone gpt2",
        )
    check_options(options, plan.task, plan.columns)
    trained = extract(task, extraction)
    untrained = _extract_untrained(task, trained, extraction)
    entries = trained.store.entry, untrained.store.entry
    # The entries may have further columns, of other calls; those of both are compared.
    columns = tuple(Column.parse(name) for name in trained.columns if name in untrained.columns)
    key = _key(entries, columns, options)
    folder = Path(options.out) if options.out else _default_folder(entries[0], key)
    if earlier_result := _read_saved(folder, key):
        notify(f"compared already; the result is in {earlier_result.saved}")
        return earlier_result

    def fit_columns(extracted: Extraction, name: str) -> ScoredFit:
        data = replace(FitData.open_entries(extracted), only=columns)
        notify(f"fitting readouts of the {name} model")  # so that the lines of both fits can be told apart
        return fit_and_score(data, replace(options, out=folder / name), place, every_column=True)

    result = _compare(fit_columns(trained, "trained"), fit_columns(untrained, "untrained"), folder)
    result = replace(result, seconds=round(time.monotonic() - started, 3))
    write_checked(result.saved, {**result.to_dict(), "key": key})
    _plot(result, f"{entries[0].spec.task_name}, {entries[0].path.name}")
    return result


def _extract_untrained(task: str, trained: Extraction, options: ExtractOptions) -> Extraction:
    """Return the features of the same model with random weights, extracted with the resolved options of the trained."""
    entry = trained.store.entry
    # The defaults that the trained model got hold for both, even where they depend on the weights.
    settings = without_where(entry.made_with["call"]["settings"])
    # An earlier call may have created the entry, with other columns than those of this one. The layers and poolings
    # of all columns are extracted in all combinations, of which `twin` compares those of both models.
    columns = [Column.parse(name) for name in trained.columns]
    settings["layers"] = ",".join(dict.fromkeys(column.layer for column in columns))
    settings["pool"] = ",".join(dict.fromkeys(column.pooling for column in columns))
    # Paths are those of this call: recorded ones may be relative to another folder.
    place_settings = {name: getattr(options, name) for name in ("cache", "data", "device", "labels")}
    # The trained model stays the last one that was extracted, which `fit` takes for the name of the task.
    with untracked():
        untrained = extract(task, ExtractOptions(**{**settings, **place_settings, "init": UNTRAINED}))
    if untrained.store.entry.spec.data != entry.spec.data:
        raise InputError(
            f"twin: the data of {task} has changed since the trained model's features were extracted",
            "run the command again",
        )
    return untrained


def _key(entries: tuple[Entry, Entry], columns: Columns, options: FitOptions) -> str:
    """Return the digest of all that decides the result: entries, columns, options of the fit, and this version."""
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    content = [
        *(entry.key for entry in entries),
        names_of(columns),
        settings,
        version("reservoir-features"),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _default_folder(entry: Entry, key: str) -> Path:
    """Return the folder of the result below the ``readouts`` of the cache that has the entry."""
    cache = entry.path.resolve().parents[2]  # an entry is CACHE/features/TASK/ENTRY
    return cache / "readouts" / entry.spec.task_name / f"twin-{key[:16]}"


def _read_saved(folder: Path, key: str) -> Twin | None:
    """Return the result that an earlier call with the same key saved in a folder; None unless all of it is there."""
    files = [folder / TWIN_SUMMARY, *(folder / model / SUMMARY for model in ("trained", "untrained"))]
    if not all(file.is_file() for file in files):
        return None
    try:
        values = read_checked(folder / TWIN_SUMMARY)
        return Twin.from_dict(values, folder) if values.get("key") == key else None
    except (KeyError, TypeError, ValueError):  # damaged: it is computed again
        return None


def _compare(trained: ScoredFit, untrained: ScoredFit, folder: Path) -> Twin:
    """Return the scores of two fits of the same rows with their differences; its time is set by the caller."""
    # The baselines of the untrained fit read the same raw input, and are not needed.
    raw = max(trained.finals.baselines, key=lambda final: final.result.sort_key, default=None)

    def contrast(
        layer: str | None, trained_readout: FinalReadout, untrained_readout: FinalReadout
    ) -> Contrast:
        """Return the scores of two readouts, of a layer or the chosen ones, and their differences on test rows."""
        of_trained, of_untrained = trained.scores[trained_readout], untrained.scores[untrained_readout]
        of_raw = trained.scores[raw] if raw else None
        task = trained.task
        return Contrast(
            layer=layer,
            trained=of_trained.result,
            untrained=of_untrained.result,
            trained_minus_untrained=difference_on_test(of_trained, of_untrained, task),
            trained_minus_raw=of_raw and difference_on_test(of_trained, of_raw, task),
            untrained_minus_raw=of_raw and difference_on_test(of_untrained, of_raw, task),
        )

    # What the test rows show of the chosen readout against that of the untrained model, and against the best baseline.
    best = trained.scores[trained.finals.best]
    against = [compared_with(untrained.scores[untrained.finals.best], best, "the untrained model")]
    if raw:
        against.append(compared_with(trained.scores[raw], best, raw.result.name))
    untrained_layers = {layer.name: layer.final for layer in untrained.finals.layers}
    return Twin(
        trained=trained.fit.entry,
        untrained=untrained.fit.entry,
        raw=trained.scores[raw].result if raw else None,
        chosen=contrast(None, trained.finals.best, untrained.finals.best),
        layers=tuple(
            contrast(layer.name, layer.final, untrained_layers[layer.name])
            for layer in trained.finals.layers
            if layer.name in untrained_layers
        ),
        against=tuple(against),
        saved=folder / TWIN_SUMMARY,
        plot=folder / PLOT,
        seconds=0.0,
        reused=False,
    )


def _plot(result: Twin, title: str) -> None:
    """Draw the test scores of each layer, or of the chosen readouts if there are no layers to compare."""
    contrasts = result.layers or (result.chosen,)
    # Of each model the test score and the ends of its interval, (layers, 3).
    models: dict[str, np.ndarray] = {}
    for name in ("trained", "untrained"):
        results: list[Result] = [getattr(contrast, name) for contrast in contrasts]
        no_interval = (None, None)
        rows = [(scored.test_score, *(scored.test_interval or no_interval)) for scored in results]
        models[name] = np.array(rows, np.float64)  # None becomes NaN, which is not drawn
    names = [contrast.layer or "chosen" for contrast in contrasts]
    raw = result.raw.test_score if result.raw else None
    plot(result.plot, (6, 4.2), title, draw_twin, names, models, raw, result.chosen.trained.metric)
