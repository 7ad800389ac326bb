"""What the page shows of a fit, or of a run of `train`, that is no part of a reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir_pipelines.files import read_checked
from reservoir_pipelines.fitting.results import SUMMARY
from reservoir_pipelines.reports.values import fit_values, read_sweep, train_values
from reservoir_pipelines.reports.views import cost_facts, facts_of, pictures_of


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
        *_metrics(evaluation, found["best"]["metric"]),
        *([("against raw", f"p = {found['p_value']:.2g}")] if found["p_value"] is not None else []),
        *cost_facts(found["seconds"], None),
        ("folder", path),
    ]
    name = f"Fit: {entry.parent.name}, {entry.name}"
    shown = {"pictures": pictures_of("fit", values), "commands": found["commands"]}
    return {"id": f"p{number}", "name": name, "heading": name, "facts": facts, **shown}


def run_part(path: Path, number: int) -> dict[str, Any]:
    """Return the page's part about a training."""
    from reservoir_pipelines.training.run_folder import RunFolder
    from reservoir_pipelines.training.training_result import Training

    run = RunFolder(path)
    done = Training.from_dict({**(run.result or {}), "run": str(path)})
    values = train_values(done)
    facts = [*facts_of("train", values), *cost_facts(done.seconds, None), ("folder", path)]
    facts += [("seed", run.config["settings"]["recipe"]["seed"])]
    facts += [(name, value) for name, value in run.config.get("made_with", {}).items()]
    name = f"Training: {path.parent.name}, {path.name}"
    shown = {"pictures": pictures_of("train", values), "commands": [run.config["command"]]}
    return {"id": f"p{number}", "name": name, "heading": name, "facts": facts, **shown}


def _metrics(evaluation: dict[str, Any], chosen_by: str) -> list[tuple[str, str]]:
    """Return every metric of an evaluation but the one by which the readout was chosen, which is shown first."""
    numbers = {name: value for name, value in evaluation.items() if isinstance(value, int | float)}
    texts = {name: f"{value:,}" if isinstance(value, int) else f"{value:.3f}" for name, value in numbers.items()}
    return [(name.replace("_", " "), text) for name, text in texts.items() if name != chosen_by]
