"""Tables and facts of results, made once and then printed in a terminal or written to a page.

The kinds of tables come first, then what the results of fit and train say.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from reservoir.options import RECIPE
from reservoir_pipelines.output import (
    count_text,
    is_share,
    percent,
    printable,
    score_text,
    signed_difference,
    time_text,
    value_text,
)

if TYPE_CHECKING:
    from reservoir.readouts.evaluation import Evaluation
    from reservoir_pipelines.fitting.results import (
        Against,
        CurvePoint,
        Fit,
        LayerScore,
        OperatingPoint,
        Result,
    )
    from reservoir_pipelines.training.result import Training
    from reservoir_pipelines.untrained import Twin

ERRORS = ("rmse", "mae")  # scores in the unit of the label, if a row has one label
MAX_RECALLS = 10  # rows of the table of recalls


@dataclass(frozen=True)
class TableColumn:
    """The name of a column, and whether it holds numbers, which are aligned on the right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Rows of values with named columns, and perhaps a title."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Any]]
    title: str = ""

    def titled(self, title: str) -> Self:
        """Return a copy with a title."""
        return replace(self, title=title)


@dataclass(frozen=True)
class Facts:
    """Names with values, in their order, and perhaps a title."""

    pairs: Sequence[tuple[str, Any]]
    title: str = ""

    def titled(self, title: str) -> Self:
        """Return a copy with a title."""
        return replace(self, title=title)


@dataclass(frozen=True)
class Lines:
    """Sentences, one per line."""

    texts: Sequence[str]


Shown = ResultTable | Facts | Lines
"""What a command prints."""


def texts(*names: str) -> tuple[TableColumn, ...]:
    """Return columns of text."""
    return tuple(TableColumn(name) for name in names)


def numbers(*names: str) -> tuple[TableColumn, ...]:
    """Return columns of numbers."""
    return tuple(TableColumn(name, numeric=True) for name in names)


def print_shown(shown: Shown) -> None:
    """Print a table, facts or sentences to stdout, aligned and never cut or wrapped, and an empty line."""
    if isinstance(shown, Lines):
        lines = [printable(text) for text in shown.texts]
    elif isinstance(shown, Facts):
        lines = _aligned([printable(shown.title)] if shown.title else [], texts("", ""), shown.pairs)
    else:
        lines = _aligned([printable(shown.title)] if shown.title else [], shown.columns, shown.rows)
    sys.stdout.write("\n".join(lines) + "\n\n")


def _aligned(
    first_lines: Sequence[str], columns: Sequence[TableColumn], rows: Sequence[Sequence[Any]]
) -> list[str]:
    """Return ``first_lines`` and below them the lines of a table; headings are left out if all are empty."""
    cells = [[printable(cell) for cell in row] for row in rows]
    names = [printable(column.name) for column in columns]
    widths = [max(map(len, texts_of_column)) for texts_of_column in zip(names, *cells, strict=True)]
    headings = [names, ["-" * width for width in widths]] if any(names) else []
    lines = [*first_lines]
    for row in [*headings, *cells]:
        aligned = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return lines


def record_facts(record: Any, *names: str) -> Facts:
    """Return fields of a record as facts: those with these names, or all; fields without a text are left out."""
    values = record if isinstance(record, Mapping) else vars(record)
    text_by_name = {name: value_text(values[name], name) for name in names or values}
    return Facts([(name.replace("_", " "), text) for name, text in text_by_name.items() if text])


def record_table(records: Sequence[Any], *names: str) -> ResultTable:
    """Return a table with one record per row, and the fields of these names as columns."""
    rows = [record if isinstance(record, Mapping) else vars(record) for record in records]
    columns = [
        TableColumn(name.replace("_", " "), numeric=all(isinstance(row[name], int | float) for row in rows))
        for name in names
    ]
    return ResultTable(columns, [[value_text(row[name], name) for name in names] for row in rows])


@dataclass(frozen=True, kw_only=True)
class FitScores:
    """The scores of a fit, from the fit itself or from the summary that it saved."""

    title: str  # of the table of readouts
    best: Result  # of the readout that was saved
    reservoir: Result  # the best readout of the reservoir: ``best``, unless a baseline was chosen
    baselines: Sequence[Result]
    evaluation: Evaluation  # of ``best`` on the test rows
    against: Sequence[str]  # a sentence about each comparison with a baseline
    layer_scores: Sequence[LayerScore]  # of the best column of each layer; empty for fewer than two layers
    curve: Sequence[CurvePoint]  # learning curve of ``reservoir``; empty if it was not asked for
    # Thresholds for given rates of false positives; often none.
    operating_points: Sequence[OperatingPoint] = ()

    @classmethod
    def of(cls, fit: Fit, against: Sequence[Against]) -> FitScores:
        """Return the scores of a fit, with some of its comparisons with baselines."""
        from reservoir_pipelines.fitting.results import entry_names

        return cls(
            title=f"{fit.entry.parent.name}, {entry_names(fit.entries)}",
            best=fit.best,
            reservoir=fit.reservoir,
            baselines=fit.baselines,
            evaluation=fit.evaluation,
            against=[comparison.sentence for comparison in against],
            layer_scores=fit.layer_scores,
            curve=fit.curve,
            operating_points=fit.operating_points,
        )

    @classmethod
    def from_summary(cls, values: dict[str, Any], title: str) -> FitScores:
        """Return the scores in the summary of a fit, the JSON values of `Fit.to_dict`."""
        from reservoir.file_checks import from_json
        from reservoir.readouts.evaluation import Evaluation
        from reservoir_pipelines.fitting.results import CurvePoint, LayerScore, OperatingPoint, Result

        return cls(
            title=title,
            best=Result.from_dict(values["best"]),
            # The summaries of older fits have only the best result.
            reservoir=Result.from_dict(values.get("reservoir", values["best"])),
            baselines=[Result.from_dict(stored) for stored in values["baselines"]],
            evaluation=Evaluation.from_dict(values["evaluation"]),
            against=[stored["sentence"] for stored in values.get("against", ())],
            layer_scores=[LayerScore.from_dict(stored) for stored in values.get("layer_scores", ())],
            curve=[CurvePoint(**point) for point in values["curve"] or ()],
            operating_points=[
                from_json(OperatingPoint, stored) for stored in values.get("operating_points", ())
            ],
        )

    def tables(self) -> list[ResultTable | Lines | Facts]:
        """Return all tables, in the order in which they are read."""
        tables: list[ResultTable | Lines | Facts] = [self.readouts()]
        if self.against:
            tables.append(Lines(self.against))
        if self.layer_scores:
            tables.append(layer_table(self.layer_scores, self.evaluation.groups))
        tables += evaluation_tables(self.evaluation, self.best.metric)
        if self.operating_points:
            tables.append(operating_table(self.operating_points, self.evaluation))
        if self.curve:
            tables.append(curve_table(self.reservoir, self.curve))
        return tables

    def readouts(self) -> ResultTable:
        """Return the best readout, that of the reservoir if it is another, and that of each baseline, with scores."""
        named_results = [("best", self.best)]
        if self.reservoir != self.best:
            named_results.append(("reservoir", self.reservoir))
        named_results += [("baseline", result) for result in self.baselines]
        rows = [readout_row(name, result) for name, result in named_results]
        table = readout_table(rows, self.evaluation, self.title)
        return with_probing(table, [result for _, result in named_results])


def readout_table(rows: Sequence[Sequence[str]], evaluation: Evaluation, title: str = "") -> ResultTable:
    """Return a table of `readout_row` for each readout."""
    columns = (
        *texts("", "columns", "readout"),
        *numbers("penalty"),
        *texts("metric"),
        *numbers("valid", "test"),
        *texts(f"95% interval{over_groups(evaluation.groups)}"),
    )
    return ResultTable(columns, rows, title)


def readout_row(name: str, result: Result) -> tuple[str, ...]:
    """Return the cells of a readout with its scores."""
    metric = result.metric
    return (
        name,
        result.title,
        result.readout,
        "" if result.alpha is None else f"{result.alpha:.3g}",
        metric.replace("_", " "),
        score_text(result.valid_score, metric),
        score_text(result.test_score, metric),
        interval_text(result.test_interval, metric),
    )


def with_probing(table: ResultTable, results: Sequence[Result]) -> ResultTable:
    """Return a table, whose rows are these results, with columns for control tasks and for code lengths, if any.

    A cell is empty if its result has no such number.
    """
    columns: list[TableColumn] = []
    new_cells: list[list[str]] = [[] for _ in results]
    if any(result.control_score is not None for result in results):
        columns += numbers("control", "selectivity")
        for cells, result in zip(new_cells, results, strict=True):
            selectivity = result.selectivity
            cells.append(score_text(result.control_score, result.metric))
            cells.append("" if selectivity is None else signed_difference(selectivity, result.metric))
    if any(result.description_bits is not None for result in results):
        columns += numbers("bits", "compression")
        for cells, result in zip(new_cells, results, strict=True):
            cells.append(f"{result.description_bits:,.0f}" if result.description_bits else "")
            cells.append(f"{result.compression:.2f}" if result.compression else "")
    rows = [(*row, *cells) for row, cells in zip(table.rows, new_cells, strict=True)]
    return replace(table, columns=(*table.columns, *columns), rows=rows)


def layer_table(scores: Sequence[LayerScore], groups: int) -> ResultTable:
    """Return the table of the best column of each layer; ``groups`` is the number of groups of test rows, or 0."""
    metric = scores[0].result.metric
    columns = (
        *texts("layer", "column"),
        *numbers("valid"),
        *texts("95% interval"),
        *numbers("test", "difference"),
        *texts("95% interval"),
        *numbers("p"),
    )
    rows = []
    for score in scores:
        result = score.result
        valid = score_text(result.valid_score, metric)
        valid_interval = interval_text(score.valid_interval, metric)
        test = score_text(result.test_score, metric)
        # Three cells: the difference, its interval and its p-value.
        difference = ("best layer", "", "")
        if score.difference is not None:
            ends = difference_ends(score.difference_interval, metric)
            # Few rows or groups cannot show a difference, and have no p-value.
            p_value = "" if score.p_value is None else f"{score.p_value:.2g}"
            difference = (signed_difference(score.difference, metric), ends, p_value)
        rows.append((score.layer, result.title, valid, valid_interval, test, *difference))
    compared_score = metric.replace("_", " ") + (" in points" if is_share(metric) else "")
    explanation = (
        f"{compared_score} minus that of the best layer, on the same test rows{over_groups(groups)}"
    )
    table = ResultTable(columns, rows, f"the best column of each layer; difference: {explanation}")
    return with_probing(table, [score.result for score in scores])


def operating_table(points: Sequence[OperatingPoint], evaluation: Evaluation) -> ResultTable:
    """Return the thresholds of the probability of the second class, and their scores on test."""
    negative_class, positive_class = evaluation.classes[0], evaluation.classes[1]
    columns = (
        *numbers(
            "false positives, target", f"probability of {positive_class} above", "false positives on test"
        ),
        *texts("95% interval"),
        *numbers("recall on test"),
        *texts("95% interval"),
    )
    rows = [
        (
            f"{point.rate:.0%}",
            f"{point.threshold:.6f}",
            percent(point.false_positive_rate),
            interval_text(point.false_positive_interval, "accuracy"),
            percent(point.recall),
            interval_text(point.recall_interval, "accuracy"),
        )
        for point in points
    ]
    negatives = count_text(points[0].negatives, "held-out row")
    return ResultTable(columns, rows, f"thresholds set on {negatives} of {negative_class}")


def twin_table(twin: Twin) -> ResultTable:
    """Return the test scores of each layer of a trained and an untrained model, and their paired differences.

    The last row has the readouts that validation chose among all layers.
    """
    metric = twin.chosen.trained.metric
    columns = (
        *texts("layer"),
        *numbers("trained", "untrained", "trained - untrained"),
        *texts("95% interval"),
        *numbers("p", "trained - raw"),
        *texts("95% interval"),
    )
    rows = []
    for contrast in (*twin.layers, twin.chosen):
        to_untrained = contrast.trained_minus_untrained
        to_raw = contrast.trained_minus_raw  # None without a readout of the raw input
        rows.append(
            (
                contrast.layer or "chosen",
                score_text(contrast.trained.test_score, metric),
                score_text(contrast.untrained.test_score, metric),
                signed_difference(to_untrained.value, metric),
                difference_ends(to_untrained.interval, metric),
                "" if to_untrained.p_value is None else f"{to_untrained.p_value:.2g}",
                signed_difference(to_raw.value, metric) if to_raw else "",
                difference_ends(to_raw.interval if to_raw else None, metric),
            )
        )
    metric_name = metric.replace("_", " ")
    rows_text = count_text(twin.against[0].rows, "test row")
    raw = f"; raw: {score_text(twin.raw.test_score, metric)} by {twin.raw.title}" if twin.raw else ""
    unit = "differences in points" if is_share(metric) else "differences"
    groups = over_groups(twin.against[0].groups)
    return ResultTable(columns, rows, f"{metric_name} on {rows_text}{raw}; {unit}, paired{groups}")


def twin_probing_table(twin: Twin) -> ResultTable | None:
    """Return the control tasks and code lengths of each layer of both models; None if they were not requested."""
    contrasts = [*twin.layers, twin.chosen]
    results = [result for contrast in contrasts for result in (contrast.trained, contrast.untrained)]
    rows = [
        (contrast.layer or "chosen", model, result.title, score_text(result.test_score, result.metric))
        for contrast in contrasts
        for model, result in (("trained", contrast.trained), ("untrained", contrast.untrained))
    ]
    scores = ResultTable((*texts("layer", "model", "column"), *numbers("test")), rows)
    table = with_probing(scores, results)
    return table if len(table.columns) > len(scores.columns) else None


def difference_ends(interval: Sequence[float] | None, metric: str) -> str:
    """Return the ends of the interval of a difference as text, or "" if there is none."""
    return " to ".join(signed_difference(end, metric) for end in interval or ())


def curve_table(reservoir: Result, curve: Sequence[CurvePoint], model: str = "") -> ResultTable:
    """Return the learning curve of the columns of the best readout of the reservoir.

    The title begins with the name of the ``model``, if there are curves of several.
    """
    metric = reservoir.metric
    rows = [
        (
            f"{point.rows:,}",
            score_text(point.valid_score, metric),
            score_text(point.test_score, metric),
            interval_text(point.test_range, metric),
        )
        for point in curve
    ]
    columns = (*numbers("training rows", "valid", "test"), *texts("lowest to highest draw"))
    title = f"{model}, {reservoir.title}" if model else reservoir.title
    return ResultTable(columns, rows, f"{title}: {metric.replace('_', ' ')}")


def evaluation_facts(evaluation: Evaluation, first: str = "accuracy") -> list[tuple[str, str]]:
    """Return the names and values of the scores on test, the metric ``first`` before all others."""
    # The sort is stable, so that the others keep their order.
    ordered = sorted(evaluation.scores.items(), key=lambda name_and_score: name_and_score[0] != first)
    facts = []
    for name, value in ordered:
        # Scores of classes are shares, but for the area under the curve; those of a regression have other units.
        is_percentage = evaluation.classes and name != "auc"
        text = percent(value) if is_percentage else f"{value:.4g}"
        metric_name = name.replace("_", " ")
        if name in ERRORS:  # several outputs may have different units
            has_one_output = evaluation.outputs == 1
            metric_name += ", in the unit of the label" if has_one_output else ", mean over the outputs"
        facts.append((metric_name, text))
    return facts


def evaluation_tables(evaluation: Evaluation, first: str = "accuracy") -> list[ResultTable]:
    """Return the scores on test, the metric ``first`` before all others, and the classes with the lowest recall.

    A regression has no classes, and its first table has the number of rows.
    """
    rows = [] if evaluation.classes else [("rows", f"{evaluation.rows:,}")]
    tables = [ResultTable(texts("on test", ""), [*rows, *evaluation_facts(evaluation, first)])]
    worst = sorted(evaluation.recall.items(), key=lambda item: item[1])[:MAX_RECALLS]
    if worst:
        has_more_classes = len(worst) < len(evaluation.recall)
        title = f"the {len(worst)} classes with the lowest recall" if has_more_classes else ""
        recalls = [(name, percent(recall)) for name, recall in worst]
        tables.append(ResultTable((*texts("class"), *numbers("recall")), recalls, title))
    return tables


def training_facts(run: Training) -> Facts:
    """Return the facts of a training run; `record_facts` leaves out those that are None."""
    facts: dict[str, Any] = {
        "run": run.run,
        "trained": trained_text(run.groups, run.trained),
        "frozen": f"{run.frozen_tensors:,} tensors, unchanged",
        "steps": f"{run.steps:,} in {time_text(run.seconds)}",
    }
    for name in ("best_step", "converged_step", "stopped_step", "diverged_step"):
        facts[name] = getattr(run, name)
    for name in ("train_score", "valid_score", "test_score", "test_score_of_all"):
        score = getattr(run, name)
        # The score with left-out rows counted as wrong is the test score itself if no row was left out.
        is_repetition = name == "test_score_of_all" and score == run.test_score
        if score is not None and not is_repetition:
            facts[name] = score_text(score, run.metric)
    if run.evaluation:  # it tells whether the task has a copy baseline, which ``floor`` includes
        ways = "by a constant"
        if "copy_baseline" in run.evaluation.scores:
            ways += " or by copying the input"
        facts["baseline"] = f"{score_text(run.floor, run.metric)}, {ways}, on validation rows"
    return record_facts(facts)


def training_tables(run: Training) -> list[ResultTable]:
    """Return the runs of a sweep, if it is one, and the scores on test, if the run has been scored."""
    tables = []
    if run.trials:
        swept_options = [name for name in run.trials[0] if name in RECIPE]
        rows = [
            trial | {"valid_score": score_text(trial["valid_score"], run.metric)} for trial in run.trials
        ]
        tables.append(record_table(rows, *swept_options, "valid_score", "run"))
    if run.evaluation:
        tables += evaluation_tables(run.evaluation)
    return tables


def trained_text(groups: Sequence[str], parameters: int) -> str:
    """Return which groups of parameters were trained, and their number."""
    return f"{', '.join(groups)}: {parameters:,} parameters"


def interval_text(interval: Sequence[float] | None, metric: str) -> str:
    """Return the ends of an interval as text, or "" if there is none."""
    return " to ".join(score_text(end, metric) for end in interval or ())


def over_groups(groups: int) -> str:
    """Return the end of the name of an interval: over how many groups, if the rows have groups."""
    return f" over {count_text(groups, 'group')}" if groups else ""
