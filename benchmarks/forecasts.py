"""Forecasts by the command line beside an autoregression: root mean squared errors on the newest fifth of each series.

    OMP_NUM_THREADS=1 python benchmarks/forecasts.py
    python benchmarks/forecasts.py elec_equip.csv co2.csv sunspots.csv --horizons 1 12 --past 24

Without files, five generated series of 700 steps are forecast. A file is a table whose last column of numbers is
forecast; missing values are interpolated. The autoregression is scikit-learn's `RidgeCV` on the same windows,
fitted to all windows before the test steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

STEPS = 700
TEST_SHARE = 0.2
ALPHAS = np.geomspace(1e-2, 1e6, 25)


def generated() -> dict[str, np.ndarray]:
    """Return series with a season, a trend, a threshold, and chaos, and a random walk, each (steps,)."""
    draw = np.random.default_rng(1)
    time = np.arange(STEPS)
    noise = draw.normal(size=(3, STEPS))
    seasonal = 3 * np.sin(2 * np.pi * time / 24) + 0.1 * np.cumsum(noise[0])
    trend = (50 + 0.1 * time) * (1 + 0.2 * np.sin(2 * np.pi * time / 12)) + 2 * noise[1]
    # A threshold autoregression: below 0 it continues, above 0 it turns.
    threshold = np.zeros(STEPS)
    for step in range(1, STEPS):
        slope = 0.9 if threshold[step - 1] < 0 else -0.8
        threshold[step] = slope * threshold[step - 1] + draw.normal()
    # Mackey and Glass (1977) with a delay of 17, every sixth step.
    delay = 17
    chaos = np.full(6 * STEPS + delay, 1.2)
    for step in range(delay, len(chaos) - 1):
        late = chaos[step - delay]
        chaos[step + 1] = chaos[step] + 0.2 * late / (1 + late**10) - 0.1 * chaos[step]
    return {
        "season": seasonal,
        "trend": trend,
        "threshold": threshold,
        "Mackey-Glass": chaos[-6 * STEPS :: 6] + draw.normal(0, 0.02, STEPS),
        "random walk": np.cumsum(noise[2]),
    }


def read_column(path: Path) -> np.ndarray:
    """Return the last column of a table, (steps,), NaN for an empty cell."""
    with path.open(newline="") as file:
        cells = [row[-1].strip() for row in list(csv.reader(file))[1:]]
    return np.array([float(cell) if cell else np.nan for cell in cells])


def autoregression(series: np.ndarray, horizon: int, past: int) -> float:
    """Return the error of ridge regression on all windows before the test steps."""
    first = np.arange(past, len(series) - horizon + 1)
    x = np.stack([series[step - past : step] for step in first])
    y = np.stack([series[step : step + horizon] for step in first])
    for row in x[np.isnan(x).any(axis=1) & ~np.isnan(x).all(axis=1)]:
        missing = np.isnan(row)
        row[missing] = np.interp(np.flatnonzero(missing), np.flatnonzero(~missing), row[~missing])
    complete = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    to_end = len(series) - first
    test_steps = max(horizon, round(TEST_SHARE * len(series)))
    fitted, test = complete & (to_end >= test_steps + horizon), complete & (to_end <= test_steps)
    model = make_pipeline(StandardScaler(), RidgeCV(ALPHAS)).fit(x[fitted], y[fitted])
    return float(np.sqrt(np.square(model.predict(x[test]).reshape(y[test].shape) - y[test]).mean()))


def forecast(name: str, series: np.ndarray, horizon: int, past: int, folder: Path) -> dict[str, float]:
    """Return the error of the saved readout and of each baseline, from the commands `extract` and `fit`."""
    table, out = folder / f"{name}.csv", folder / f"{name}-{horizon}"
    lines = ["value", *("" if np.isnan(value) else repr(float(value)) for value in series)]
    table.write_text("\n".join(f'"{line}"' for line in lines) + "\n")
    options = ["--forecast", str(horizon), "--past", str(past), "--missing", "interpolate"]
    for command in (["extract", str(table), *options], ["fit", str(table), "--out", str(out)]):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "reservoir_pipelines",
                *command,
                "--cache",
                str(folder / "cache"),
                "--json",
            ],
            check=True,
            capture_output=True,
        )
    with (out / "predictions.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    labels = np.array([float(row["label"]) for row in rows])
    readouts = [column for column in rows[0] if column not in ("split", "id", "output", "label")]
    errors = {
        column: float(np.sqrt(np.square(np.array([float(row[column]) for row in rows]) - labels).mean()))
        for column in readouts
    }
    chosen = json.loads((out / "fit.json").read_text())["best"]
    return {"+".join(chosen["columns"]): errors.pop("best"), **errors}


def main() -> None:
    """Print a line for each series and horizon."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--horizons", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--past", type=int, default=36)
    arguments = parser.parse_args()
    series = {path.stem: read_column(path) for path in arguments.files} or generated()
    print("| series | steps ahead | autoregression | saved readout | baselines |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, values in series.items():
            for horizon in arguments.horizons:
                (saved, error), *others = forecast(
                    name.replace(" ", "-"), values, horizon, arguments.past, Path(folder)
                ).items()
                peer = autoregression(values, horizon, arguments.past)
                baselines = ", ".join(f"{other} {value:.4g}" for other, value in others)
                print(
                    f"| {name} | {horizon} | {peer:.4g} | {error:.4g} ({saved}) | {baselines} |", flush=True
                )


if __name__ == "__main__":
    main()
