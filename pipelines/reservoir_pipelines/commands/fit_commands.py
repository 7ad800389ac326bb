"""The commands about readouts: ``reservoir fit``, ``tune``, ``predict``, ``explain`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir.option_fields import as_group
from reservoir.options import DeviceOptions, FitOptions, ReservoirOptions, RowOptions
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer, OwnTask, Table
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import is_share, notify, percent, print_json, score_text, size_text

if TYPE_CHECKING:
    from reservoir.readouts.evaluation import Evaluation
    from reservoir_pipelines.fitting.results import CurvePoint, Fit, Result

Entries = Annotated[
    list[str],
    typer.Argument(
        metavar="TASK|ENTRY...", help="A task (its last extraction is used), or keys or folders of entries."
    ),
]
Readout = Annotated[
    Path,
    typer.Argument(metavar="READOUT|RUN", help="Folder or JSON file that fit wrote, or the folder of a run of train."),
]
CHOOSING = {*RowOptions.__dataclass_fields__, *ReservoirOptions.__dataclass_fields__} - {"data"}
"""Options that choose among a task's entries."""

SHOWN_TRIALS = 12  # number of the best trials that are printed
SIGNIFICANT = 0.05
NAMES = {"rmse": "rmse, in the unit of the label", "mae": "mae, in the unit of the label"}
MOST_RECALLS = 10  # rows of the table of recall
HEADINGS = ("", "columns", "readout", "#penalty", "metric", "#valid", "#test", "95% interval")


def fit(
    entries: Entries,
    seeds: Annotated[
        int, typer.Option(help="Fit this many reservoirs, with seeds from 0; those not cached are extracted first.")
    ] = 0,
    *,
    given: dict[str, Any],
) -> Answer:
    """Fit and choose linear readouts, score test once.

    The options of the model and the data choose among a task's entries: the last one made with them is used.
    """
    from reservoir_pipelines.extraction.extract import find_entry

    root = cache_root(given.pop("cache", None))
    data = given.pop("data", None)  # only --seeds reads it, to extract new reservoirs
    choosing = {name: given.pop(name) for name in CHOOSING & given.keys()}
    found = [find_entry(root, entry, **choosing) for entry in entries]  # before torch is imported

    if seeds:
        from reservoir_pipelines.fitting.seeds import fit_seeds

        options, place = as_group(given, FitOptions), as_group(given, DeviceOptions)
        several = fit_seeds(found, seeds, options, place, data=data)
        rows = [_line(f"seed {seed}", fit.best) for seed, fit in enumerate(several.fits)]
        metric = several.fits[0].best.metric
        spread = f"{100 * several.deviation:.1f} points" if is_share(metric) else f"{several.deviation:.3f}"
        mean = f"{score_text(several.mean, metric)} +- {spread} over {len(several.fits)} seeds"
        return Answer(several, [(HEADINGS, rows), (("", ""), [(f"test {metric.replace('_', ' ')}", mean)])])
    done = api.fit([entry.path for entry in found], **given)
    return Answer(done, fit_tables(done))


def fit_tables(done: Fit) -> list[Table]:
    """Return the tables of a fit."""
    rows = [_line("best", done.best), *(_line("baseline", one) for one in done.baselines)]
    tables: list[Table] = [(HEADINGS, rows, f"{done.entry.parent.name}, {done.entry.name}")]
    if done.raw and done.p_value is not None and done.best.columns != done.raw.columns:
        sure = "more than chance" if done.p_value < SIGNIFICANT else "no more than chance can explain"
        tables.append((("", ""), [("best against raw", f"{sure} (p = {done.p_value:.2g}, the same test rows)")]))
    if done.layers:
        each = [(name, score_text(score, done.best.metric)) for name, score in done.layers.items()]
        tables.append((("layer", "#valid"), each, "best validation score of each layer alone"))
    tables += evaluation_tables(done.evaluation, done.best.metric)
    if done.curve:
        metric = done.best.metric
        points = [(f"{p.rows:,}", score_text(p.valid_score, metric), *_of_draws(p, metric)) for p in done.curve]
        title = f"{done.best.title}: {metric.replace('_', ' ')}"
        tables.append((("#training rows", "#valid", "#test", "lowest to highest draw"), points, title))
    names = [f"{one.title} ({score_text(one.valid_score, one.metric)})" for one in done.left_out]
    last = [
        *[("left out" if not number else "", name) for number, name in enumerate(names)],
        ("tried", f"{len(done.table):,} readouts in {done.seconds:.1f} s, all in {done.results}"),
        ("plot", done.plot),
        ("readout", done.saved),
        ("new data", f"reservoir predict {quote(str(done.saved.parent))} NEW"),
    ]
    return [*tables, (("", ""), last)]


def evaluation_lines(found: Evaluation, first: str = "accuracy") -> list[tuple[str, str]]:
    """Return the names and values of an evaluation, beginning with the metric by which a readout was chosen."""
    shares = bool(found.classes)
    return [
        (NAMES.get(name, name.replace("_", " ")), percent(value) if shares and name != "auc" else f"{value:.4g}")
        for name, value in sorted(found.scores.items(), key=lambda item: item[0] != first)
    ]


def evaluation_tables(found: Evaluation, first: str = "accuracy") -> list[Table]:
    """Return the scores on test, and the recall of the classes with the lowest one."""
    lines = evaluation_lines(found, first)
    if not found.classes:
        lines = [("rows", f"{len(found.merits):,}"), *lines]
    tables: list[Table] = [(("on test", ""), lines)]
    worst = sorted(found.recall.items(), key=lambda item: item[1])[:MOST_RECALLS] if found.classes else []
    if worst:
        title = "" if len(worst) == len(found.recall) else f"the {len(worst)} classes with the lowest recall"
        tables.append((("class", "#recall"), [(name, percent(share)) for name, share in worst], title))
    return tables


def _of_draws(point: CurvePoint, metric: str) -> tuple[str, str]:
    low, high = (score_text(end, metric) for end in point.test_range)
    return score_text(point.test_score, metric), f"{low} to {high}"


def _line(name: str, result: Result) -> tuple[Any, ...]:
    penalty = "" if result.alpha is None else f"{result.alpha:.3g}"
    interval = result.test_interval
    spread = " to ".join(score_text(end, result.metric) for end in interval) if interval else ""
    scores = (score_text(score, result.metric) for score in (result.valid_score, result.test_score))
    return name, result.title, result.readout, penalty, result.metric.replace("_", " "), *scores, spread


def tune(task: OwnTask, given: dict[str, Any]) -> Answer:
    """Search for the reservoirs that suit some data.

    The search lasts as long as the budget and judges by cross-validation on train and valid alone. The best reservoirs
    are read side by side and scored on test once. Trials are stored, so that the same command continues the search.
    """
    done = api.tune(task, **given)
    scores = {"winner": done.valid_score, "default": done.default_valid_score, "raw input": done.raw_valid_score}
    held_out = [(name, score_text(score, done.metric)) for name, score in scores.items()]
    gain = score_text(done.valid_score - done.default_valid_score, done.metric)
    held_out.append(("gain over the default", gain))
    headings = ("#candidate", "#rows", f"#held-out {done.metric}", "#loss", "#seconds", "reservoir")
    best = [
        (t.number, t.limit or "all", score_text(t.score, t.metric), f"{t.loss:.3f}", f"{t.seconds:.1f}", t.title)
        for t in done.trials[:SHOWN_TRIALS]
    ]
    title = f"{done.tried:,} candidates tried in {done.seconds:.0f} s, all in {done.folder}; the best:"
    commands = [("same result", line) for line in done.commands]
    held_out_table = (("", ""), held_out, f"{done.metric} on held-out rows of train and valid")
    return Answer(done, [(headings, best, title), *fit_tables(done.fit), held_out_table, (("", ""), commands)])


def predict(
    readout: Readout,
    file: Annotated[Path, typer.Argument(help="New sequences: any file that extract reads, or an idx file of images.")],
    out: Annotated[Path | None, typer.Option(help="Write a .csv, .jsonl or .parquet file instead of stdout.")] = None,
    *,
    given: dict[str, Any],
    json: bool,
) -> Answer:
    """Label new sequences, in any form extract reads.

    Prints one JSON line per sequence, with the probabilities of the classes; with --json one object of columns. If the
    file has labels, the accuracy is printed too.
    """
    from reservoir_pipelines.prediction.outputs import PredictionEvaluator, check_out, columns_of, write_predictions

    if out:
        check_out(out)
    predictions, evaluator = api.predict(readout, file, **given), PredictionEvaluator()
    watched, columns = evaluator.watch(predictions), None
    if out:
        write_predictions(out, watched, labelled=predictions.labelled)
    elif json:
        columns = columns_of([*watched], labelled=predictions.labelled)
    for prediction in watched:
        print_json(prediction.to_dict())
    evaluation = evaluator.result()
    for name, value in evaluation_lines(evaluation) if evaluation and not json else ():
        notify(f"{name}: {value}")
    found = {"out": out, "rows": evaluator.rows} if out else {"predictions": columns}
    written = ("predicted", ""), [("rows", f"{evaluator.rows:,}"), ("written", out)]
    return Answer(found | {"evaluation": evaluation}, [written] if out else [])


def explain(
    readout: Readout,
    file: Annotated[Path, typer.Argument(help="New sequences, in any form that predict reads.")],
    given: dict[str, Any],
) -> Answer:
    """Draw what each position adds to a label's score."""
    done = api.explain(readout, file, **given)
    lines = []
    for number, row in enumerate(done.rows):
        cells = [number, f"{row.label:.4g}" if isinstance(row.label, float) else row.label, f"{row.score:+.2f}"]
        for values in (row.added, row.occluded):
            at = max(range(len(values)), key=values.__getitem__, default=0)
            cells.append(f"{at} ({values[at]:+.2g})" if any(values) else "-")
        lines.append(cells)
    if not any(any(row.added) for row in done.rows):
        notify("quantiles and extremes cannot be attributed to positions; showing occlusion only")
    headings = ("row", "label", "score", "largest contribution", "largest drop if hidden")
    return Answer(done, [(headings, lines, f"plot {done.plot}")])


def export(
    readout: Readout,
    to: Annotated[str, typer.Option(help="Form of the file: torch (for torch.export.load) or onnx.")] = "torch",
    *,
    given: dict[str, Any],
) -> Answer:
    """Write a readout with its model as one file.

    The file maps raw sequences to logits and runs without this program.
    """
    done = api.export(readout, to=to, **given)
    fewest, most = done.tokens
    length = f"{most} tokens, padded to this length" if fewest == most else f"{fewest} to {most} tokens"
    size = size_text(done.bytes)
    reader = [(done.reader.suffixes[-2][1:], done.reader)] if done.reader else []
    rows = [("model", done.model), *reader, ("size", size), ("sequences", length), ("how to call it", done.card)]
    return Answer(done, [(("exported", ""), rows)])
