"""The files of a fit: a table of every readout, the chosen one, the summary, and the plots."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reservoir_cache import locked, remove_leftovers

from reservoir.option_fields import typed
from reservoir.options import FitOptions
from reservoir_pipelines.files import write_checked, write_csv
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.evaluate import Scores
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.predictions_csv import (
    BEST,
    LabelledRows,
    ReadoutPredictions,
    write_predictions,
)
from reservoir_pipelines.fitting.refit import FinalReadout, FinalReadouts
from reservoir_pipelines.fitting.results import ELSEWHERE, SUMMARY, Fit, score_matrix
from reservoir_pipelines.fitting.source import KNOWN
from reservoir_pipelines.plots import ScoreGrid, draw_curve, draw_values, plot, plot_confusion, plot_sweep

# The headings of results.csv.
FIELDS = ("columns", "readout", "alpha", "metric", "valid_score", "converged", "chosen", "test_score")

LAYERS = "layers.csv"  # the table of layers, for programs; `Fit.layer_scores` explains its columns
SCORES = ("valid_score", "valid_low", "valid_high", "test_score")
CONTROL, CODE = ("control_score", "selectivity"), ("description_bits", "compression")
DIFFERENCE = ("difference", "difference_low", "difference_high", "p_value")


def save(
    fit: Fit,
    known: Known,
    finals: FinalReadouts,
    scores: Mapping[FinalReadout, Scores],
    default_folder: Path,
    options: FitOptions,
) -> None:
    """Write all files of a fit; ``default_folder`` is the folder of a fit without ``--out``."""
    folder, title = fit.results.parent, f"{known.task.name}, {known.title}"
    # Collect the contents of the files. The plots mark the best readout of the reservoir, even if a baseline is saved.
    best, metric = scores[finals.best].result, fit.best.metric
    commands = _commands(known, options)
    predictions = _predictions(finals, scores)
    rows = _labelled_rows(known, scores[finals.saved].rows, predictions)
    table, layers = _table_lines(fit), _layer_lines(fit, options)
    label = known.task.parameters.get("label")
    summary = {**fit.to_dict(), "label": label, "title": fit.best.title, "commands": commands}
    columns, settings, matrix = score_matrix(fit.table)
    grid = ScoreGrid(columns, settings, matrix, (columns.index(best.title), settings.index(best.setting)))
    raw_score = fit.raw.valid_score if fit.raw else None
    # The summary is written after the files that it describes, and the plots, which no program reads, come last.
    with locked(folder):  # so that all files in the folder belong to one fit
        remove_leftovers(folder, locked=True)
        write_predictions(folder, known.task, rows, predictions)
        Bundle.of(known, finals.saved, fit.best).write(folder)
        write_csv(fit.results, table)
        if fit.layer_scores:
            write_csv(folder / LAYERS, layers)
        write_checked(folder / SUMMARY, summary)
        # In the cache, the default folder tells `report` where the files are.
        is_in_cache = default_folder.parents[1].name == "readouts"
        if options.out and is_in_cache:
            with suppress(OSError):  # the cache may be read-only
                default_folder.mkdir(parents=True, exist_ok=True)
                write_checked(default_folder / ELSEWHERE, {"folder": str(folder.resolve())})
        plot_sweep(fit.plot, grid, raw_score, metric, title)
        if fit.curve:
            curve = [point._asdict() for point in fit.curve]
            plot(folder / "curve.png", (6, 4.2), f"{title}, {best.title}", draw_curve, curve, metric)
        plot_confusion(folder / "confusion.png", fit.evaluation, title)
        if not fit.evaluation.classes:
            heading = f"{title}: test, R² {fit.evaluation.scores['R²']:.3f}"
            plot(folder / "predicted.png", (5, 5), heading, draw_values, fit.evaluation.values)


def _commands(known: Known, options: FitOptions) -> list[str]:
    """Return the commands that extracted the entries, where they are recorded, and the command of the fit."""
    extractions = [view.made_with.get("call", {}).get("command") for view in known.views]
    paths = [str(view.path) for view in known.views]
    return [*filter(None, extractions), typed("fit", paths, options)]


def _predictions(finals: FinalReadouts, scores: Mapping[FinalReadout, Scores]) -> list[ReadoutPredictions]:
    """Return the predictions of the saved readout, of every baseline and of every layer for held-out rows.

    If a baseline is saved, those of the best readout of the reservoir stand beside it.
    """
    named = [(BEST, finals.saved)]
    named += [("reservoir", finals.best)] if finals.saved is not finals.best else []
    named += [(final.result.name, final) for final in finals.baselines]
    named += [(layer.name, layer.final) for layer in finals.layers]
    return [
        ReadoutPredictions(
            name=name,
            of_splits={**final.predictions, "test": scores[final].predicted},
            rows={**final.rows, "test": slice(None)},
        )
        for name, final in named
    ]


def _labelled_rows(
    known: Known, test_rows: LabelledRows, predictions: Sequence[ReadoutPredictions]
) -> dict[str, LabelledRows]:
    """Return the rows of the splits for which some readout has predictions; test rows are the last."""
    rows: dict[str, LabelledRows] = {}
    for split in KNOWN:
        if any(split in readout.of_splits for readout in predictions):
            part = known.view[split]
            rows[split] = LabelledRows.of(part)
    return {**rows, "test": test_rows}


def _table_lines(fit: Fit) -> list[tuple[Any, ...]]:
    """Return the headings, and a line for each readout with the chosen one marked."""
    lines: list[tuple[Any, ...]] = [FIELDS]
    chosen = fit.best
    # The raw input may be among the columns; as a baseline it has a test score too, and replaces that line.
    results = {
        (result.columns, result.readout, result.alpha): result for result in [*fit.table, *fit.baselines]
    }
    for setting, result in results.items():
        is_chosen = setting == (chosen.columns, chosen.readout, chosen.alpha)
        alpha = "" if result.alpha is None else f"{result.alpha:.6g}"
        # Among the columns only the chosen readout has a test score, which `fit.best` holds.
        test_score = (chosen if is_chosen else result).test_score
        readout = (result.name, result.readout, alpha, result.metric, result.valid_score)
        lines.append((*readout, int(result.converged), int(is_chosen), test_score))
    return lines


def _layer_lines(fit: Fit, options: FitOptions) -> list[tuple[Any, ...]]:
    """Return the headings, and a line for each layer, with control tasks and code lengths if there are any."""
    probing = (*(CONTROL if options.control else ()), *(CODE if options.mdl else ()))
    lines: list[tuple[Any, ...]] = [("layer", *FIELDS[:4], *SCORES, *DIFFERENCE, *probing)]
    for score in fit.layer_scores:
        result = score.result
        alpha = "" if result.alpha is None else f"{result.alpha:.6g}"
        p_value = "" if score.p_value is None else f"{score.p_value:.3g}"
        valid_interval = score.valid_interval or ("", "")
        interval = score.difference_interval or ("", "")
        scores = result.valid_score, *valid_interval, result.test_score
        difference = score.difference, *interval, p_value
        line = (score.layer, result.name, result.readout, alpha, result.metric, *scores, *difference)
        lines.append((*line, *(getattr(result, name) for name in probing)))
    return lines
