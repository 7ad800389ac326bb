"""What the page shows of one fit, or of one run of a training, that stands alone."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir_pipelines.files import read_checked
from reservoir_pipelines.fitting.results import SUMMARY
from reservoir_pipelines.reports.views import charts_of, cost_facts, facts_of


def is_fit(path: Path) -> bool:
    """Return whether a folder is that of a fit."""
    return (path / SUMMARY).is_file()


def is_run(path: Path) -> bool:
    """Return whether a folder is that of a finished training."""
    return (path / "config.json").is_file() and (path / "run.json").is_file()


def fit_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a fit."""
    try:
        found = read_checked(path / SUMMARY)
        with (path / "results.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); run reservoir fit again") from error
    best, evaluation = found["best"], found["evaluation"]
    values = {
        **evaluation,
        **best,
        "readout": f"{found['title']}, {best['readout']} {best['alpha'] or 0:.3g}",
        "raw_score": found["raw"]["test_score"] if found["raw"] else None,
        "tried": found["tried"],
        "curve": found["curve"],
        "sweep": _sweep(lines),
    }
    entry = Path(found["entry"])
    facts = [
        ("entry", entry),
        *facts_of("fit", values),
        *((name.replace("_", " "), f"{evaluation[name]:.3f}") for name in evaluation if _SCORES.match(name)),
        *([("against raw", f"p = {found['p_value']:.2g}")] if found["p_value"] is not None else []),
        *cost_facts(found["seconds"], None),
        ("folder", path),
    ]
    name = f"Fit: {entry.parent.name}, {entry.name}"
    shown = {"charts": charts_of("fit", values), "commands": found["commands"]}
    return {"id": f"p{number}", "name": name, "heading": name, "facts": facts, **shown}


def run_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a training."""
    from reservoir_pipelines.training.run import Run
    from reservoir_pipelines.training.training_result import Training

    run = Run(path)
    done = Training.from_dict({**(run.result or {}), "run": str(path)})
    history = run.history
    values = done.to_dict() | {
        "losses": [(line["step"], line["loss"]) for line in history if line.get("loss") is not None][
            :: -(-len(history) // 200)
        ],
        "validations": [(n["step"], n["valid_score"]) for n in history if n.get("valid_score") is not None],
    }
    facts = [*facts_of("train", values), *cost_facts(done.seconds, None), ("folder", path)]
    facts += [("seed", run.config["settings"]["recipe"]["seed"])]
    facts += [(name, value) for name, value in run.config.get("made_with", {}).items()]
    name = f"Training: {path.parent.name}, {path.name}"
    shown = {"charts": charts_of("train", values), "commands": [run.config["command"]]}
    return {"id": f"p{number}", "name": name, "heading": name, "facts": facts, **shown}


_SCORES = re.compile("majority_baseline|balanced_accuracy|macro_f1|auc|R²|rmse|mae|.*_of_label_")


def _sweep(lines: list[dict[str, str]]) -> dict[str, Any]:
    """Return the validation scores of the table that a fit wrote, by columns and penalties."""
    tried = [line for line in lines if line["columns"] != "raw"] or lines
    columns = list(dict.fromkeys(line["columns"] for line in tried))
    penalties = list(dict.fromkeys(line["alpha"] or line["readout"] for line in tried))
    scores: list[list[float | None]] = [[None] * len(penalties) for _ in columns]
    for line in tried:
        place = penalties.index(line["alpha"] or line["readout"])
        scores[columns.index(line["columns"])][place] = float(line["valid_score"])
    return {"columns": columns, "penalties": penalties, "scores": scores}
