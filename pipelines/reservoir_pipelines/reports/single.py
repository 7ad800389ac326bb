"""What the page shows of one fit, or of one run of a training, that stands alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir_pipelines.files import read_checked
from reservoir_pipelines.fitting.results import SUMMARY
from reservoir_pipelines.reports.values import fit_values, read_sweep, train_values
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
        found, sweep = read_checked(path / SUMMARY), read_sweep(path / "results.csv")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); run reservoir fit again") from error
    values, evaluation, entry = fit_values(found, found["title"], sweep), found["evaluation"], Path(found["entry"])
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
    values = train_values(done)
    facts = [*facts_of("train", values), *cost_facts(done.seconds, None), ("folder", path)]
    facts += [("seed", run.config["settings"]["recipe"]["seed"])]
    facts += [(name, value) for name, value in run.config.get("made_with", {}).items()]
    name = f"Training: {path.parent.name}, {path.name}"
    shown = {"charts": charts_of("train", values), "commands": [run.config["command"]]}
    return {"id": f"p{number}", "name": name, "heading": name, "facts": facts, **shown}


_SCORES = re.compile("majority_baseline|balanced_accuracy|macro_f1|auc|R²|rmse|mae|.*_of_label_")
