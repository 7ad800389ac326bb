"""Commands with arguments of their own, and the answers of commands that call a public function."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir import options as opt
from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer
from reservoir_pipelines.files import cache_root
from reservoir_pipelines.output import (
    Table,
    count_text,
    difference_text,
    fact_table,
    is_share,
    notify,
    percent,
    print_json,
    records_table,
    score_text,
    signed_difference,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from reservoir.readouts.evaluation import Evaluation
    from reservoir_pipelines.comparison.compare import Comparison
    from reservoir_pipelines.extraction.forecast import Forecast
    from reservoir_pipelines.fitting.fit_result import Fit
    from reservoir_pipelines.fitting.result import Result
    from reservoir_pipelines.prediction.explain import Explanation
    from reservoir_pipelines.prediction.export import Export
    from reservoir_pipelines.preparation.prepared import Prepared
    from reservoir_pipelines.training.result import Training


def tasks(given: dict[str, Any]) -> Answer:
    """List the tasks, and show whether their data is available."""
    from reservoir_pipelines.preparation.task_table import task_table

    found = task_table(**given)
    table = records_table(found, "task", "input", "tokens", "labels_per_row", "classes", "splits", "data")
    missing = [(row["task"], row["remedy"]) for row in found if row["remedy"]]
    return Answer(found, [table, *([(("missing", "what to do"), missing)] if missing else [])])


def prepared_answer(prepared: Prepared) -> Answer:
    """Return the folder, rows and digest of prepared data, and print notes on how it was read."""
    notify(*prepared.notes)
    return Answer({"prepared": prepared.path, "rows": prepared.rows, "digest": prepared.digest})


def extract(
    task: Annotated[str, typer.Argument(help=api.TASK)],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print every option, its value and the reason; compute nothing."),
    ] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Run a frozen model once, and cache its hidden states."""
    if dry_run:
        from reservoir_pipelines.extraction.extract import resolved_plan

        plan = resolved_plan(task, as_group(given, opt.ExtractOptions))
        return Answer(plan, [(("option", "value", "why"), plan.table(), "plan")])
    return Answer(api.extract(task, **given))


CHOOSING = {*opt.RowOptions.__dataclass_fields__, *opt.ReservoirOptions.__dataclass_fields__} - {"data"}
"""Options that choose among a task's entries."""

NAMES = {"rmse": "rmse, in the unit of the label", "mae": "mae, in the unit of the label"}
SIGNIFICANT = 0.05
MAX_RECALLS = 10  # rows of the recall table
HEADINGS = ("", "columns", "readout", "#penalty", "metric", "#valid", "#test")


def fit(
    entries: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK|ENTRY...",
            help="A task (its last extraction is used), or keys or folders of entries.",
        ),
    ],
    seeds: Annotated[
        int,
        typer.Option(
            help="Fit this many reservoirs, with seeds from 0; those not cached are extracted first."
        ),
    ] = 0,
    *,
    given: dict[str, Any],
) -> Answer:
    """Fit linear readouts, choose one, and score it on test.

    For a task, options of the model and the data select the last entry that was extracted with them.
    """
    from reservoir_pipelines.extraction.extract import find_entry

    root = cache_root(given.pop("cache", None))
    data = given.pop("data", None)  # only --seeds reads it, to extract new reservoirs
    choosing = {name: given.pop(name) for name in CHOOSING & given.keys()}
    found = [find_entry(root, entry, **choosing) for entry in entries]  # before torch is imported

    if seeds:
        from reservoir_pipelines.fitting.seeds import fit_seeds

        options, place = as_group(given, opt.FitOptions), as_group(given, opt.DeviceOptions)
        several = fit_seeds(found, seeds, options, place, data=data)
        rows = [_line(f"seed {seed}", fit.best) for seed, fit in enumerate(several.fits)]
        metric, over = several.fits[0].best.metric, _over_groups(several.fits[0].evaluation)
        mean = f"{score_text(several.mean, metric)} +- {difference_text(several.deviation, metric)}"
        summary = ("", ""), [("test", f"{mean} over {len(several.fits)} seeds")]
        return Answer(several, [((*HEADINGS, f"95% interval{over}"), rows), summary])
    done = api.fit([entry.path for entry in found], **given)
    return Answer(done, fit_tables(done))


def fit_tables(done: Fit) -> list[Table]:
    """Return the tables of a fit."""
    rows = [_line("best", done.best), *(_line("baseline", one) for one in done.baselines)]
    headings, entry = (*HEADINGS, f"95% interval{_over_groups(done.evaluation)}"), done.entry
    tables: list[Table] = [(headings, rows, f"{entry.parent.name}, {entry.name}")]
    if done.against:
        tables.append((("",), [(one.sentence,) for one in done.against]))
    if done.layer_scores:
        from reservoir_pipelines.fitting.layer_score import layer_table

        tables.append(layer_table(done.layer_scores, done.evaluation.groups))
    tables += evaluation_tables(done.evaluation, done.best.metric)
    if done.curve:
        metric, points = done.best.metric, []
        for point in done.curve:
            scores = (score_text(score, metric) for score in (point.valid_score, point.test_score))
            points.append((f"{point.rows:,}", *scores, _spread(point.test_range, metric)))
        title = f"{done.best.title}: {metric.replace('_', ' ')}"
        tables.append((("#training rows", "#valid", "#test", "lowest to highest draw"), points, title))
    last = [
        (
            "tried",
            f"{count_text(len(done.table), 'readout')} in {done.seconds:.1f} s, all in {done.results}",
        ),
        ("plot", done.plot),
        ("readout", done.saved),
        ("each row", str(done.predictions)),
        ("new data", f"reservoir predict {quote(str(done.saved.parent))} NEW"),
    ]
    return [*tables, (("", ""), last)]


def _over_groups(found: Evaluation) -> str:
    return f" over {count_text(found.groups, 'group')}" if found.groups else ""


def evaluation_lines(found: Evaluation, first: str = "accuracy") -> list[tuple[str, str]]:
    """Return the names and values of an evaluation, the metric ``first`` before all others."""
    return [
        (
            NAMES.get(name, name.replace("_", " ")),
            percent(value) if found.classes and name != "auc" else f"{value:.4g}",
        )
        for name, value in sorted(found.scores.items(), key=lambda item: item[0] != first)
    ]


def evaluation_tables(found: Evaluation, first: str = "accuracy") -> list[Table]:
    """Return the scores on test, and the classes with the lowest recall."""
    rows = [] if found.classes else [("rows", f"{found.rows:,}")]
    tables: list[Table] = [(("on test", ""), [*rows, *evaluation_lines(found, first)])]
    if worst := sorted(found.recall.items(), key=lambda item: item[1])[:MAX_RECALLS]:
        few = len(worst) < len(found.recall)
        title = f"the {len(worst)} classes with the lowest recall" if few else ""
        tables.append((("class", "#recall"), [(name, percent(share)) for name, share in worst], title))
    return tables


def _line(name: str, result: Result) -> tuple[Any, ...]:
    penalty = "" if result.alpha is None else f"{result.alpha:.3g}"
    metric, spread = result.metric.replace("_", " "), _spread(result.test_interval, result.metric)
    scores = (score_text(score, result.metric) for score in (result.valid_score, result.test_score))
    return name, result.title, result.readout, penalty, metric, *scores, spread


def _spread(interval: tuple[float, float] | None, metric: str) -> str:
    """Return the ends of an interval as text, or "" if there is none."""
    return " to ".join(score_text(end, metric) for end in interval or ())


def comparison_answer(found: Comparison) -> Answer:
    """Return the scores of two fits on the same test rows, and their difference."""
    metric = found.metric
    rows = [
        (found.first, score_text(found.first_score, metric), _spread(found.first_interval, metric)),
        (found.second, score_text(found.second_score, metric), _spread(found.second_interval, metric)),
    ]
    over = f" over {count_text(found.groups, 'group')}" if found.groups else ""
    scores = (
        ("", f"#{metric}", f"95% interval{over}"),
        rows,
        f"on the same {count_text(found.rows, 'test row')}",
    )
    ends = " to ".join(signed_difference(end, metric) for end in found.difference_interval or ())
    unit = " points" if is_share(metric) else ""
    spread = f" (paired 95% interval{over}: {ends})" if ends else ""
    facts = [("difference", f"{signed_difference(found.difference, metric)}{unit}{spread}")]
    if found.p_value is None:
        facts.append(("p-value", "cannot be judged from so few rows or groups"))
    else:
        chance = "more than" if found.p_value < SIGNIFICANT else "no more than"
        facts.append(("p-value", f"{found.p_value:.2g}: {chance} chance can explain"))
    for folder, number in ((found.first, found.only_first), (found.second, found.only_second)):
        if number:
            facts.append(("left out", f"{count_text(number, 'test row')} that only {folder} has"))
    return Answer(found, [scores, (("", ""), facts)])


def predict(
    readout: Annotated[Path, typer.Argument(help=api.READOUT)],
    file: Annotated[Path, typer.Argument(help=api.NEW_FILE)],
    out: Annotated[
        Path | None, typer.Option(help="Write a .csv, .jsonl or .parquet file instead of stdout.")
    ] = None,
    *,
    given: dict[str, Any],
    json: bool,
) -> Answer:
    """Label new sequences, in any form that extract reads.

    Print one JSON line per sequence, with the probabilities of the classes, or with --json one object
    of columns. If the file has labels, the accuracy and its 95% interval are printed too.
    """
    from reservoir_pipelines.prediction.outputs import Tally, check_out, columns_of, write_predictions

    if out:
        check_out(out)
    predictions, tally, columns = api.predict(readout, file, **given), Tally(), None
    # No prediction stays in memory. On a terminal, printed rows are the progress.
    watched = tally.watch(predictions, progress=bool(out or json or not sys.stdout.isatty()))
    if out:
        write_predictions(out, watched, predictions.absent)
    elif json:
        columns = columns_of(watched, predictions.absent)
    else:
        for prediction in watched:
            print_json(prediction.to_dict())
    evaluation = tally.evaluation()
    if tally.empty_sets:
        sets, least = f"{tally.empty_sets:,} of {tally.rows:,} sets", 1 - (predictions.radius or 0)
        why = f"no class has the probability of {least:.3g} that a set at this coverage needs"
        notify(f"{sets} are empty, because {why}; these rows are less clear than most validation rows")
    if evaluation and not json:
        (name, value), *others = evaluation_lines(evaluation)
        spread = _spread(evaluation.interval, name)
        notify(
            f"{name}: {value}" + (f" (95% interval{_over_groups(evaluation)}: {spread})" if spread else "")
        )
        notify(*(f"{name}: {value}" for name, value in others))
    found = {"out": out, "rows": tally.rows} if out else {"predictions": columns}
    return Answer(found | {"evaluation": evaluation}, None if out else [])


def explanation_answer(done: Explanation) -> Answer:
    """Return the scores of explained sequences, and the position that matters most to each."""
    headings, rows = records_table(done.rows, "row", "label", "score")
    headings = [*headings, "largest drop per position if hidden"]
    for line, row in zip(rows, done.rows, strict=True):
        line.append(_largest(row.occluded))
    return Answer(done, [(headings, rows, f"plot {done.plot}; all scores in {done.unit}")])


def _largest(values: Sequence[float]) -> str:
    at = max(range(len(values)), key=values.__getitem__, default=0)
    return f"{values[at]:+.2g} at position {at}" if any(values) else "-"


def plan_answer(done: Forecast) -> Answer:
    """Return the expected cost of an extraction."""
    shown = {"tokens": f"{done.tokens:,.0f} per row", "padding": f"{done.padding:.1%}"}
    shown["processor_seconds"] = time_text(done.processor_seconds)
    return Answer(done, [fact_table(vars(done) | shown)])


def export_answer(done: Export) -> Answer:
    """Return the files of an export and the lengths of sequences that the model accepts."""
    lengths = " to ".join(str(length) for length in dict.fromkeys(done.tokens))
    return Answer(done, [fact_table(vars(done) | {"tokens": f"{lengths} per sequence"})])


def backbone(
    name: Annotated[
        str,
        typer.Argument(help="mini, gpt2, bert-base-uncased, esn:units=500, a folder, a hub name ..."),
    ],
    task: Annotated[
        str | None, typer.Option(help="Also count the parameters that are trained on this task.")
    ] = None,
    *,
    given: dict[str, Any],
) -> Answer:
    """Describe a backbone."""
    from reservoir.paper.counts import paper_counts
    from reservoir_pipelines.card import card

    model, source = as_group(given, opt.ModelOptions), as_group(given, opt.TaskOptions)
    cache, out = as_group(given, opt.CacheOptions), as_group(given, opt.OutOptions)
    done = card(name, model, source, cache, out, task, counts={"paper": paper_counts})
    return Answer(done, [fact_table({name: value for name, value in done.items() if name != "deviations"})])


def training_answer(done: Training) -> Answer | None:
    """Return the facts of a run, the runs of a sweep, and the scores on test; None in all processes but the first."""
    if os.environ.get("RANK", "0") != "0":
        return None
    found = vars(done) | {"train_score": done.train_score}
    facts = {
        "run": done.run,
        "trained": f"{', '.join(done.groups)}: {done.trained:,} parameters",
        "frozen": f"{done.frozen_tensors:,} tensors, unchanged",
        "steps": f"{done.steps:,} in {time_text(done.seconds)}",
        **{name: found[name] for name in ("best_step", "converged_step", "diverged_step")},
    }
    for name in ("train_score", "valid_score", "test_score", "test_score_of_all"):
        if found[name] is not None and (name != "test_score_of_all" or found[name] != done.test_score):
            facts[name] = score_text(found[name], done.metric)
    facts["baseline"] = f"{score_text(done.floor, done.metric)}, by a constant or by copying the input"
    tables: list[Table] = [fact_table(facts)]
    if done.swept:
        values = [name for name in done.swept[0] if name in opt.RECIPE]
        runs = [run | {"valid_score": score_text(run["valid_score"], done.metric)} for run in done.swept]
        tables.append(records_table(runs, *values, "valid_score", "run"))
    return Answer(found, [*tables, *(evaluation_tables(done.evaluation) if done.evaluation else ())])


def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE...", help="table1 ... table22, figure1 ..., or the path of your own recipe."
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Every table and figure.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and their cost; run nothing.")
    ] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Reproduce tables of Lu et al. 2021, next to the published numbers.

    A recipe describes a table, whose numbers come from runs called cells. Finished cells are not run
    again.
    """
    from reservoir_pipelines.paper.recipe import recipe_names

    if all == bool(tables):
        raise InputError(
            "reproduce: give names of tables or recipe files, or only --all",
            f"tables: {', '.join(recipe_names())}",
        )
    if dry_run:
        return _plan(tables or [], given)
    confirm = _confirm if given.get("scale") in ("day", "full", "paper") else None
    done = api.reproduce(tables or [], confirm=confirm, **given)
    if done.failed:
        notify(f"{len(done.failed)} cells failed; the same command tries them again")
    found = vars(done) | {"failed": len(done.failed), "page": f"reservoir report {done.folder}"}
    table = fact_table(found, "ran", "reused", "failed", "seconds", "folder", "page")
    return Answer(done, [*(part for each in done.tables for part in _tables(each)), table])


def report(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...", help="Folders of reproduce, fit or train; by default those in the cache."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write only the tables, as Markdown.")
    ] = False,
    *,
    given: dict[str, Any],
) -> Answer:
    """Write one page with all results.

    The HTML file is self-contained and shows the folders, or all reproductions and the latest fits of
    the cache.
    """
    done = api.report(folders or [], markdown=markdown, **given)
    if show:
        typer.launch(str(done.page))
    return Answer(done)


def _confirm(cells: list[Any], places: dict[str, Any]) -> bool:
    """Print the estimated cost, and ask on a terminal whether to run."""
    from reservoir_pipelines.paper.stages import estimate

    estimate(cells, places)
    asked = cells and sys.stdin.isatty() and sys.stderr.isatty()
    return typer.confirm("Continue?", err=True) if asked else True


def _plan(tables: list[str], given: dict[str, Any]) -> Answer:
    """Return the cells that would run, with their time and disk space if a trial measured them."""
    from reservoir_pipelines.paper.reproduce import planned
    from reservoir_pipelines.paper.stages import estimate

    options, source = as_group(given, opt.ReproduceOptions), as_group(given, opt.TaskOptions)
    _, cells, folder, places = planned(tables, options, source, as_group(given, opt.PlaceOptions))
    costs = estimate(folder.unfinished(cells), places)
    found = []
    for cell in cells:
        if cost := costs.get(cell.key):
            state, seconds, size = "cannot run here" if cost.reason else "to run", cost.seconds, cost.bytes
        else:
            result = folder.result(cell.key) or {}
            state, seconds, size = "finished", result.get("seconds", 0), result.get("bytes", 0)
        time = time_text(seconds) if seconds else "not estimated"
        found.append(
            {
                "key": cell.key,
                "cell": cell.title,
                "state": state,
                "time": time,
                "disk": size_text(int(size)),
            }
        )
    return Answer(found, [records_table(found, "key", "cell", "state", "time", "disk")])


def _tables(table: dict[str, Any]) -> list[Table]:
    """Return a table with the numbers of the paper in brackets, and the reasons why numbers are missing."""
    from reservoir_pipelines.paper.page import table_part

    lines = []
    for row in table_part(table, {})["rows"]:
        spots = ((spot["ours"], spot["paper"]) if spot else ("", "") for spot in row["spots"])
        lines.append((row["name"], *(f"{ours} ({paper})" if paper else ours for ours, paper in spots)))
    missing = [(row["name"], spot["reason"]) for row in table["rows"] for spot in row["spots"] if spot]
    reasons = dict.fromkeys((name, reason) for name, reason in missing if reason)
    headings = ("", *(f"#{column}" for column in table["columns"]))
    unit = f"; {table['unit']}" if table["unit"] else ""
    claims = [(c["says"], c["verdict"], c["numbers"]) for c in table["claims"]]
    title = f"{table['name']} ({table['scale']}): {table['title']}{unit} (numbers of the paper in brackets)"
    found: list[Table] = [
        (headings, lines, title),
        (("claim", "here", "numbers"), claims),
        (("missing", "why"), [*reasons]),
    ]
    return [part for part in found if part[1]]
