"""The files of a fit: a table of every readout, the chosen one, the summary, and the plots."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reservoir_cache import locked, remove_leftovers

from reservoir.option_fields import typed
from reservoir.options import FitOptions
from reservoir_pipelines.files import json_digest, with_digests, write_checked, write_csv
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.evaluate import Scores
from reservoir_pipelines.fitting.fit_data import Known
from reservoir_pipelines.fitting.predictions_csv import (
    BEST,
    RESERVOIR,
    LabelledRows,
    ReadoutPredictions,
    write_predictions,
)
from reservoir_pipelines.fitting.refit import FinalReadout, FinalReadouts
from reservoir_pipelines.fitting.results import (
    ELSEWHERE,
    LAYERS,
    SUMMARY,
    Fit,
    Result,
    entry_names,
    score_grid,
)
from reservoir_pipelines.fitting.source import KNOWN_SPLITS
from reservoir_pipelines.plots import draw_curve, draw_values, plot, plot_confusion, plot_sweep

# The headings of results.csv.
FIELDS = ("columns", "readout", "alpha", "metric", "valid_score", "converged", "chosen", "test_score")

CURVE, CONFUSION, PREDICTED = "curve.png", "confusion.png", "predicted.png"
# Its headings, after those that describe the readout; those of probing only if the user asks for it.
SCORES = ("valid_score", "valid_low", "valid_high", "test_score")
DIFFERENCE = ("difference", "difference_low", "difference_high", "p_value")
CONTROL, CODE = ("control_score", "selectivity"), ("description_bits", "compression")


def save(
    fit: Fit,
    known: Known,
    finals: FinalReadouts,
    scores: Mapping[FinalReadout, Scores],
    default_folder: Path,
    options: FitOptions,
) -> None:
    """Write all files of a fit into its folder; ``default_folder`` is the folder of a fit without ``--out``."""
    folder, title = fit.results.parent, f"{known.task.name}, {entry_names(fit.entries)}"
    # Collect the contents of the files.
    predictions = _predictions(finals, scores)
    rows = _labelled_rows(known, scores[finals.saved].rows, predictions)
    summary = {
        **fit.to_dict(),
        "label": known.task.parameters.get("label"),
        "title": fit.best.title,
        "commands": _commands(known, options),
    }
    # The summary is written after the files that it describes, and the plots, which no program reads, come last.
    with locked(folder):  # so that all files in the folder belong to one fit
        remove_leftovers(folder, locked=True)
        # Not every fit writes these files, so they may be left from an earlier fit.
        for name in (LAYERS, CURVE, CONFUSION, PREDICTED):
            (folder / name).unlink(missing_ok=True)
        write_predictions(folder, known.task, rows, predictions)
        Bundle.of(known, finals.saved, fit.best).write(folder)
        write_csv(fit.results, _table_lines(fit))
        if fit.layer_scores:
            write_csv(folder / LAYERS, _layer_lines(fit, options))
        tables = (fit.predictions, fit.results)  # which compare and report read
        write_checked(folder / SUMMARY, with_digests(summary, tables))
        # In the cache, the default folder <cache>/readouts/<task>/<name> tells `report` where the files are. Each
        # ``--out`` has a note of its own, which is named by its content.
        is_in_cache = default_folder.parents[1].name == "readouts"
        if options.out and is_in_cache:
            with suppress(OSError):  # the cache may be read-only
                default_folder.mkdir(parents=True, exist_ok=True)
                note = {"folder": str(folder.resolve())}
                write_checked(default_folder / f"{ELSEWHERE}-{json_digest(note)[:8]}.json", note)
        # The plots mark the best readout of the reservoir, even if a baseline is saved.
        _write_plots(fit, scores[finals.best].result, title)


def _write_plots(fit: Fit, best: Result, title: str) -> None:
    """Write the plots of a fit: validation scores, with the ``best`` marked, learning curve and test predictions."""
    folder, metric = fit.results.parent, fit.best.metric
    raw_score = fit.raw.valid_score if fit.raw else None
    plot_sweep(fit.plot, score_grid(fit.table, best), raw_score, metric, title)
    if fit.curve:
        curve = [point._asdict() for point in fit.curve]
        plot(folder / CURVE, (6, 4.2), f"{title}, {best.title}", draw_curve, curve, metric)
    plot_confusion(folder / CONFUSION, fit.evaluation, title)  # nothing for values
    has_values = not fit.evaluation.classes
    if has_values:
        heading = f"{title}: test, R² {fit.evaluation.scores['R²']:.3f}"
        plot(folder / PREDICTED, (5, 5), heading, draw_values, fit.evaluation.values)


def _commands(known: Known, options: FitOptions) -> list[str]:
    """Return the commands that extracted the entries, where they are recorded, and the command of the fit."""
    extractions = [view.made_with.get("call", {}).get("command") for view in known.views]
    paths = [str(view.path) for view in known.views]
    return [*filter(None, extractions), typed("fit", paths, options)]


def _predictions(finals: FinalReadouts, scores: Mapping[FinalReadout, Scores]) -> list[ReadoutPredictions]:
    """Return the predictions of the saved readout, of every baseline and of every layer for held-out and test rows.

    If a baseline is saved, the best readout of the reservoir comes second. ``scores`` are those on test.
    """
    finals_with_names = [(BEST, finals.saved)]
    if finals.saved is not finals.best:
        finals_with_names.append((RESERVOIR, finals.best))
    finals_with_names += [(final.result.name, final) for final in finals.baselines]
    finals_with_names += [(layer.name, layer.final) for layer in finals.layers]
    return [
        ReadoutPredictions(
            name=name,
            of_splits={**final.predictions, "test": scores[final].predicted},
            rows={**final.rows, "test": slice(None)},
        )
        for name, final in finals_with_names
    ]


def _labelled_rows(
    known: Known, test_rows: LabelledRows, predictions: Sequence[ReadoutPredictions]
) -> dict[str, LabelledRows]:
    """Return the rows of the splits for which some readout has predictions; test rows are the last."""
    rows: dict[str, LabelledRows] = {}
    for split in KNOWN_SPLITS:
        if any(split in readout.of_splits for readout in predictions):
            rows[split] = LabelledRows.of(known.view[split])
    return {**rows, "test": test_rows}


def _table_lines(fit: Fit) -> list[tuple[Any, ...]]:
    """Return the lines of results.csv: the headings, and a line for each readout with the chosen one marked."""
    lines: list[tuple[Any, ...]] = [FIELDS]
    chosen = fit.best
    # A readout is identified by its columns, its kind and its penalty. The raw input may be among the columns; as a
    # baseline it has a test score too, and replaces that line.
    results = {
        (result.columns, result.readout, result.alpha): result for result in [*fit.table, *fit.baselines]
    }
    for identity, result in results.items():
        is_chosen = identity == (chosen.columns, chosen.readout, chosen.alpha)
        # Among the columns only the chosen readout has a test score, which `fit.best` holds.
        test_score = (chosen if is_chosen else result).test_score
        readout = (result.name, result.readout, _alpha_text(result), result.metric, result.valid_score)
        lines.append((*readout, int(result.converged), int(is_chosen), test_score))
    return lines


def _alpha_text(result: Result) -> str:
    """Return the penalty of a result for a table; empty if it has none."""
    return "" if result.alpha is None else f"{result.alpha:.6g}"


def _layer_lines(fit: Fit, options: FitOptions) -> list[tuple[Any, ...]]:
    """Return the lines of layers.csv: the headings, and a line for each layer.

    A control task and a code length have columns of their own, if the user asks for them.
    """
    probing = (*(CONTROL if options.control else ()), *(CODE if options.mdl else ()))
    readout_fields = FIELDS[:4]  # columns, readout, alpha, metric
    lines: list[tuple[Any, ...]] = [("layer", *readout_fields, *SCORES, *DIFFERENCE, *probing)]
    for score in fit.layer_scores:
        result = score.result
        readout = result.name, result.readout, _alpha_text(result), result.metric
        # An interval, or a difference, that there is not leaves its cells empty.
        valid_interval = score.valid_interval or ("", "")
        scores = result.valid_score, *valid_interval, result.test_score
        difference_interval = score.difference_interval or ("", "")
        p_value = "" if score.p_value is None else f"{score.p_value:.3g}"
        difference = score.difference, *difference_interval, p_value
        values_of_probing = [getattr(result, name) for name in probing]
        lines.append((score.layer, *readout, *scores, *difference, *values_of_probing))
    return lines
