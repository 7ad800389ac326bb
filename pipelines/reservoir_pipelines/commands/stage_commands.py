"""Commands with arguments of their own, and the answers of commands that call a public function.

The parameter ``options`` of a command is no flag. ``cli.py`` registers a command with groups of options, each of which
becomes a flag; ``options`` has the values of those that were set, by their names (see `reservoir_pipelines.command`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reservoir import options as opt
from reservoir.option_fields import as_group
from reservoir_pipelines import api
from reservoir_pipelines.command import Answer
from reservoir_pipelines.files import cache_root, read_checked
from reservoir_pipelines.output import (
    count_text,
    difference_text,
    is_share,
    notify,
    on_one_terminal,
    print_json,
    score_text,
    signed_difference,
    time_text,
)
from reservoir_pipelines.tables import (
    Facts,
    FitScores,
    Lines,
    ResultTable,
    Shown,
    curve_table,
    difference_ends,
    evaluation_facts,
    interval_text,
    numbers,
    over_groups,
    readout_row,
    readout_table,
    record_facts,
    record_table,
    texts,
    training_facts,
    training_tables,
    twin_probing_table,
    twin_table,
    with_probing,
)

if TYPE_CHECKING:
    from reservoir_cache import Entry

    from reservoir_pipelines.comparison import Comparison
    from reservoir_pipelines.extraction.estimate import Estimate
    from reservoir_pipelines.fitting.results import Fit
    from reservoir_pipelines.prediction.explain import Explanation
    from reservoir_pipelines.prediction.export import Export
    from reservoir_pipelines.preparation.prepared import Prepared
    from reservoir_pipelines.training.result import Training
    from reservoir_pipelines.untrained import Twin


def tasks(options: dict[str, Any]) -> Answer:
    """List the tasks, and show whether their data is available."""
    from reservoir_pipelines.preparation.prepare import task_table

    rows = task_table(**options)
    tables = [record_table(rows, "task", "input", "tokens", "labels_per_row", "classes", "splits", "data")]
    missing_data = [(row["task"], row["remedy"]) for row in rows if row["remedy"]]
    if missing_data:
        tables.append(ResultTable(texts("missing", "what to do"), missing_data))
    return Answer(rows, tables)


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
    options: dict[str, Any],
) -> Answer:
    """Run a frozen model once, and cache its hidden states."""
    if dry_run:
        # The public `api.extract` has no dry run. The module is imported here, because it imports NumPy and h5py, which
        # take long, and the help of the program does not need them.
        from reservoir_pipelines.extraction.extract import resolved_plan

        plan = resolved_plan(task, as_group(options, opt.ExtractOptions))
        return Answer(plan, [ResultTable(texts("option", "value", "why"), plan.table(), "plan")])
    return Answer(api.extract(task, **options))


ENTRY_FLAGS = {*opt.RowOptions.__dataclass_fields__, *opt.ReservoirOptions.__dataclass_fields__} - {"data"}
"""Options of `fit` that choose among a task's entries; the folder ``data`` is no property of an entry."""

SIGNIFICANT = 0.05  # the p-value below which a difference counts, as usual


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
    options: dict[str, Any],
) -> Answer:
    """Fit linear readouts, choose one, and score it on test.

    For a task, options of the model and the data select the last entry that was extracted with them.
    """
    from reservoir_pipelines.extraction.extract import find_entry

    # Divide the options: those that choose an entry, and what remains for the readouts.
    root = cache_root(options.pop("cache", None))
    data = options.pop("data", None)  # only --seeds reads it, to extract new reservoirs
    entry_flags = {name: options.pop(name) for name in ENTRY_FLAGS & options.keys()}
    # A wrong name is reported before torch is imported, which takes seconds.
    stored = [find_entry(root, entry, labelled=True, **entry_flags) for entry in entries]
    if seeds:
        return _fit_seeds(stored, seeds, options, data)
    result = api.fit([entry.path for entry in stored], **options)
    return Answer(result, fit_tables(result))


def _fit_seeds(entries: list[Entry], seeds: int, options: dict[str, Any], data: Path | None) -> Answer:
    """Fit reservoirs with ``seeds`` seeds from 0, and return the score of each, and their mean and deviation.

    ``data`` is the folder of the files of named tasks, for reservoirs that are not cached.
    """
    from reservoir_pipelines.fitting.fit import fit_seeds

    readout = as_group(options, opt.FitOptions)
    device = as_group(options, opt.DeviceOptions)
    results = fit_seeds(entries, seeds, readout, device, data=data)
    first = results.fits[0]
    reservoirs = [fit.reservoir for fit in results.fits]
    rows = [readout_row(f"seed {seed}", reservoir) for seed, reservoir in enumerate(reservoirs)]
    mean = score_text(results.mean, first.reservoir.metric)
    deviation = difference_text(results.deviation, first.reservoir.metric)
    facts = [("test", f"{mean} +- {deviation} over {len(results.fits)} seeds")]
    # The scores above are those of reservoirs; a baseline that validation prefers is saved instead.
    facts += [
        ("baseline", f"seed {seed}: {fit.best.title} is better on validation, and is saved")
        for seed, fit in enumerate(results.fits)
        if fit.best is not fit.reservoir
    ]
    # With --control or --mdl, the table has columns for control tasks or code lengths, too.
    table = with_probing(readout_table(rows, first.evaluation), reservoirs)
    curves = [
        curve_table(fit.reservoir, fit.curve, f"seed {seed}")
        for seed, fit in enumerate(results.fits)
        if fit.curve
    ]
    return Answer(results, [table, *curves, Facts(facts)])


def fit_tables(fit: Fit) -> list[Shown]:
    """Return the tables of a fit, and the files that it wrote."""
    # While it runs, `fit` prints to stderr which baselines do as well as the readout. If stderr and stdout are one
    # terminal, the tables leave these comparisons out.
    shows_all = not on_one_terminal()
    comparisons = [comparison for comparison in fit.against if shows_all or comparison.verdict == "adds"]
    tried_readouts = count_text(len(fit.table), "readout")
    files = [
        ("tried", f"{tried_readouts} in {fit.seconds:.1f} s, all in {fit.results}"),
        ("plot", fit.plot),
        ("readout", fit.saved),
        ("each row", str(fit.predictions)),
        ("new data", f"reservoir predict {quote(str(fit.saved.parent))} NEW"),
    ]
    return [*FitScores.of(fit, comparisons).tables(), Facts(files)]


def comparison_answer(comparison: Comparison) -> Answer:
    """Return the scores of two fits on the same test rows, and their difference."""
    # A table of both scores.
    metric = comparison.metric
    over = over_groups(comparison.groups)  # such as " over 12 groups"; empty if the rows have none
    fits = (
        (comparison.first, comparison.first_score, comparison.first_interval),
        (comparison.second, comparison.second_score, comparison.second_interval),
    )
    rows = [
        (folder, score_text(score, metric), interval_text(interval, metric))
        for folder, score, interval in fits
    ]
    columns = (*texts(""), *numbers(metric.replace("_", " ")), *texts(f"95% interval{over}"))
    scores = ResultTable(columns, rows, f"on the same {count_text(comparison.rows, 'test row')}")
    # Their difference, what it is worth, and the rows that were not compared.
    interval_ends = difference_ends(comparison.difference_interval, metric)  # empty without an interval
    unit = " points" if is_share(metric) else ""
    interval = f" (paired 95% interval{over}: {interval_ends})" if interval_ends else ""
    facts = [("difference", f"{signed_difference(comparison.difference, metric)}{unit}{interval}")]
    if comparison.p_value is None:
        facts.append(("p-value", "cannot be judged from so few rows or groups"))
    else:
        is_significant = comparison.p_value < SIGNIFICANT
        verdict = "more than chance can explain" if is_significant else "no more than chance can explain"
        facts.append(("p-value", f"{comparison.p_value:.2g}: {verdict}"))
    rows_not_compared = (
        (comparison.first, comparison.only_first),
        (comparison.second, comparison.only_second),
    )
    for folder, count in rows_not_compared:
        if count:
            facts.append(("left out", f"{count_text(count, 'test row')} that only {folder} has"))
    return Answer(comparison, [scores, Facts(facts)])


def twin_answer(twin: Twin) -> Answer:
    """Return the tables of layers of a trained and an untrained model, what the differences show, and the files."""
    from reservoir_pipelines.fitting.results import SUMMARY

    folders = {f"{name} model": twin.saved.parent / name for name in ("trained", "untrained")}
    tables: list[Shown] = [twin_table(twin)]
    # With --control or --mdl there is a second table, and with --curve one for each model, from the files of its fit.
    if probing := twin_probing_table(twin):
        tables.append(probing)
    for name, folder in folders.items():
        scores = FitScores.from_summary(read_checked(folder / SUMMARY), name)
        if scores.curve:
            tables.append(curve_table(scores.reservoir, scores.curve, name))
    sentences = Lines([comparison.sentence for comparison in twin.against])
    files = [("each layer", twin.saved), ("plot", twin.plot)]
    files += [(f"fit of the {name}", folder) for name, folder in folders.items()]
    return Answer(twin, [*tables, sentences, Facts(files)])


def predict(
    readout: Annotated[Path, typer.Argument(help=api.READOUT)],
    file: Annotated[Path, typer.Argument(help=api.NEW_FILE)],
    out: Annotated[
        Path | None, typer.Option(help="Write a .csv, .jsonl or .parquet file instead of stdout.")
    ] = None,
    *,
    options: dict[str, Any],
    json: bool,
) -> Answer:
    """Label new sequences, in any form that extract reads.

    Print one JSON line per sequence, with the probabilities of the classes, or with --json one object
    of columns. If the file has labels, the accuracy and its 95% interval are printed too.
    """
    from reservoir_pipelines.data.formats import refuse_source
    from reservoir_pipelines.prediction.outputs import (
        PredictionTally,
        check_out,
        columns_of,
        write_new_predictions,
    )

    if out:
        # before anything is computed
        check_out(out, readout)
        refuse_source(out, file, options.get("labels"))
    # The predictions are counted while they are written or printed: none of them stays in memory, except with --json.
    predictions = api.predict(readout, file, **options)
    tally = PredictionTally()
    prints_rows_to_terminal = not out and not json and sys.stdout.isatty()
    # On a terminal, printed rows are the progress.
    watched = tally.watch(predictions, progress=not prints_rows_to_terminal)
    columns = None  # of the predictions, with --json
    if out:
        write_new_predictions(out, watched, predictions.absent)
    elif json:
        columns = columns_of(watched, predictions.absent)
    else:
        for prediction in watched:
            print_json(prediction.to_dict())
    # Say what the predictions are worth, on stderr.
    evaluation = tally.evaluation()  # None if the file has no labels
    if tally.empty_sets:
        required = 1 - (predictions.radius or 0)
        reason = f"no class has the probability of {required:.3g} that a set at this coverage needs"
        notify(
            f"{tally.empty_sets:,} of {tally.rows:,} sets are empty, because {reason}; "
            "these rows are less clear than most validation rows"
        )
    if evaluation and not json:  # the object of --json has the evaluation
        (metric, score), *other_facts = evaluation_facts(evaluation)
        ends = interval_text(evaluation.interval, metric)
        interval = f" (95% interval{over_groups(evaluation.groups)}: {ends})" if ends else ""
        notify(f"{metric}: {score}{interval}", *(f"{name}: {value}" for name, value in other_facts))
    if out:
        return Answer({"out": out, "rows": tally.rows, "evaluation": evaluation})
    # The predictions are printed above.
    return Answer({"predictions": columns, "evaluation": evaluation}, [])


def explanation_answer(explanation: Explanation) -> Answer:
    """Return the scores of explained sequences, and the position that matters most to each."""
    scores = record_table(explanation.rows, "row", "label", "score")
    columns = (*scores.columns, *texts("largest drop per position if hidden"))
    rows = [
        (*cells, _largest_text(row.occluded, explanation.columns))
        for cells, row in zip(scores.rows, explanation.rows, strict=True)
    ]
    plot = f"plot {explanation.plot}; " if explanation.plot.exists() else ""  # drawing it may have failed
    title = f"{plot}all scores in {explanation.unit}"
    return Answer(explanation, [ResultTable(columns, rows, title)])


def _largest_text(values: Sequence[float], names: Sequence[str]) -> str:
    """Return the largest value with its position, such as "+0.3 at position 7", or a dash if all are zero.

    If positions have ``names``, that of the position follows in brackets.
    """
    if not any(values):
        return "-"
    position = max(range(len(values)), key=values.__getitem__)
    name = f" ({names[position]})" if names else ""
    return f"{values[position]:+.2g} at position {position}{name}"


def plan_answer(estimate: Estimate) -> Answer:
    """Return the expected cost of an extraction, with units in the table."""
    texts_of_fields = {
        "tokens": f"{estimate.tokens:,.0f} per row",
        "padding": f"{estimate.padding:.1%}",
        "processor_seconds": time_text(estimate.processor_seconds),
    }
    return Answer(estimate, [record_facts(vars(estimate) | texts_of_fields)])


def export_answer(export: Export) -> Answer:
    """Return the files of an export and the lengths of sequences that the model accepts."""
    # The shortest and the longest length, once if they are equal.
    lengths = " to ".join(str(length) for length in dict.fromkeys(export.tokens))
    return Answer(export, [record_facts(vars(export) | {"tokens": f"{lengths} per sequence"})])


def backbone(
    name: Annotated[
        str,
        typer.Argument(help="mini, gpt2, bert-base-uncased, esn:units=500, a folder, a hub name ..."),
    ],
    task: Annotated[
        str | None, typer.Option(help="Also count the parameters that are trained on this task.")
    ] = None,
    *,
    options: dict[str, Any],
) -> Answer:
    """Describe a backbone."""
    from reservoir.paper import paper_counts
    from reservoir_pipelines.card import card

    description = card(
        name,
        model=as_group(options, opt.ModelOptions),
        source=as_group(options, opt.TaskOptions),
        root=as_group(options, opt.CacheOptions),
        result=as_group(options, opt.OutOptions),
        task=task,
        counts={"paper": paper_counts},
    )
    shown = {field: value for field, value in description.items() if field != "deviations"}
    return Answer(description, [record_facts(shown)])


def training_answer(run: Training) -> Answer | None:
    """Return the facts of a run, the runs of a sweep, and the scores on test; None in all processes but the first.

    So only one of the processes of a distributed run prints an answer.
    """
    # torchrun sets RANK; without it there is one process.
    is_first_process = os.environ.get("RANK", "0") == "0"
    if not is_first_process:
        return None
    return Answer(
        vars(run) | {"train_score": run.train_score}, [training_facts(run), *training_tables(run)]
    )


def report(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of reproduce, fit or train; by default all reproductions and the latest fits in the cache.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write only the tables, as Markdown.")
    ] = False,
    *,
    options: dict[str, Any],
) -> Answer:
    """Write one page with all results.

    The HTML file is self-contained and shows the folders, or all reproductions and the latest fits of
    the cache.
    """
    result = api.report(folders or [], markdown=markdown, **options)
    if show:
        typer.launch(str(result.page))
    return Answer(result)
