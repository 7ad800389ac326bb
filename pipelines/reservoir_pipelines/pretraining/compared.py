"""What ``compare-pretraining`` returns and writes: one row per corpus, as a table and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.output import Record
from reservoir_pipelines.plots import COLOURS, INK, figure_of, in_unit, save, style
from reservoir_pipelines.pretraining.outcome import Pretraining
from reservoir_pipelines.training.training_result import Training


@dataclass(frozen=True, kw_only=True)
class Compared(Record):
    """What a backbone is worth to a task: by the best readout of its frozen hidden states, and as an FPT."""

    corpus: str
    pretraining: Pretraining | None
    output_only: Result
    fpt: Training | None

    def cells(self) -> dict[str, Any]:
        """Return a line of the table; None where there is no value."""
        made, fpt = self.pretraining, self.fpt
        return {
            "corpus": self.corpus,
            "tokens": made.tokens if made else 0,
            "unit": made.unit if made else None,
            "test_bits": made.test_bits if made else None,
            "entropy": made.entropy if made else None,
            "bits_recalled": made.test_accuracy if made else None,
            "columns": "+".join(self.output_only.columns),
            "output_only_valid_score": self.output_only.valid_score,
            "output_only_test_score": self.output_only.test_score,
            "fpt_steps": fpt.steps if fpt else None,
            "fpt_valid_score": fpt.valid_score if fpt else None,
            "fpt_test_score": fpt.test_score if fpt else None,
            "folder": made.folder if made else None,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison(Record):
    """Backbones of one shape side by side.

    Parameters
    ----------
    task, backbone : str
        The task, and the shape.
    metric : str
        What the scores are: ``accuracy``, or ``R²``.
    rows : tuple of Compared
        One per corpus.
    results, plot : Path
        The same as CSV, and a picture of it.
    seconds : float
        Wall time.
    """

    task: str
    backbone: str
    metric: str
    rows: tuple[Compared, ...]
    results: Path
    plot: Path
    seconds: float


def plot_comparison(path: Path, rows: Sequence[Compared], title: str, metric: str = "accuracy") -> None:
    """Draw the test scores of each corpus as bars: of the output alone, and of the FPT; shares in percent."""
    inches = max(6.5, 1.8 + 1.3 * len(rows))
    bars = [("output only", [row.output_only.test_score for row in rows])]
    if any(row.fpt for row in rows):
        bars.append(("FPT", [row.fpt.test_score if row.fpt else None for row in rows]))
    # A name of a backbone with its settings has no spaces, and may be longer than a line.
    figure = figure_of(inches, 4.2, "\n".join(textwrap.wrap(title, int(11 * inches))))
    axes = figure.subplots()
    width = 0.8 / len(bars)
    factor, unit = in_unit(metric)
    digits = 1 if factor == 100 else 3
    for number, (name, scores) in enumerate(bars):
        places = [row + (number - (len(bars) - 1) / 2) * width for row in range(len(rows))]
        heights = [factor * (score or 0.0) for score in scores]
        drawn = axes.bar(places, heights, width * 0.94, color=COLOURS[number], label=name)
        labels = ["-" if score is None else f"{factor * score:.{digits}f}" for score in scores]
        axes.bar_label(drawn, labels, fontsize=8, color=INK, padding=2)
    axes.set_xticks(range(len(rows)), [row.corpus for row in rows])
    axes.margins(y=0.12)
    axes.set_axisbelow(True)
    style(axes, "pretrained on", f"test {unit}")
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, fontsize=9, loc="upper right", ncols=2, bbox_to_anchor=(1, 1.1))
    save(figure, path)
