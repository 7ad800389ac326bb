"""Default options on generated data, compared with other methods: forecasts of series, and labels of symbols.

    OMP_NUM_THREADS=1 python benchmarks/defaults.py forecasts
    python benchmarks/defaults.py forecasts elec_equip.csv co2.csv sunspots.csv --horizons 1 12 --past 24
    python benchmarks/defaults.py symbols                              # 200 rows of 60 letters, one draw of each kind
    python benchmarks/defaults.py symbols --rows 1000 --length 100 --draws 3

*Forecasts* compares the commands `extract` and `fit` with an autoregression: root mean squared errors on the newest
fifth of each series. Without files, five generated series of 700 steps are forecast. A file is a table whose last
column of numbers is forecast; missing values are interpolated. The autoregression is scikit-learn's `RidgeCV` on the
same windows, fitted to all windows before the test steps.

*Symbols*: the test accuracy of extract and fit. The label of each kind depends on: *splice*, conserved positions near
the middle and letters around them; *position*, each position by itself; *pairs*, whether neighbouring positions agree;
*promoter*, two motifs near fixed positions; *motif*, a motif anywhere, against its letters in another order;
*composition*, which letters follow each other. The default is compared with all tokens of the input layer concatenated,
a ridge on one-hot symbols, and a logistic regression on these and on counts of up to four neighbours. Windows of
symbols were chosen on these kinds with other seeds and ridge alone. The weight of the raw input was chosen on seeds 100
to 102 and on the unreported series of benchmarks/series.py.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_pipelines import extract, fit
from sklearn.linear_model import LogisticRegressionCV, RidgeClassifierCV, RidgeCV
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
    readouts = [
        column for column in rows[0] if column not in ("split", "id", "group", "unit", "output", "label")
    ]
    errors = {
        column: float(np.sqrt(np.square(np.array([float(row[column]) for row in rows]) - labels).mean()))
        for column in readouts
    }
    chosen = json.loads((out / "fit.json").read_text())["best"]
    return {"+".join(chosen["columns"]): errors.pop("best"), **errors}


def forecasts(arguments: argparse.Namespace) -> None:
    """Print a line for each series and horizon."""
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


LETTERS = 4
TEST_ROWS = 400

Kind = Callable[[np.random.Generator, np.ndarray], np.ndarray]

INVERSE_PENALTIES: Any = np.logspace(-4, 0, 5)  # scikit-learn's stub only accepts a number


def splice(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Write one of two boundaries, or none, into the middle of each row; return which."""
    y, place = draw.integers(0, 3, len(x)), np.arange(x.shape[1]) - x.shape[1] // 2
    for kind, motif in ((0, (2, 3, 1)), (1, (0, 2, 3))):
        for offset, letter in enumerate(motif):
            x[(y == kind) & (draw.random(len(x)) < 0.85), x.shape[1] // 2 - 1 + offset] = letter
    before = (y == 0)[:, None] & (place >= -15) & (place < -3) & (draw.random(x.shape) < 0.35)
    x[before] = 1 + 2 * (x[before] % 2)
    behind = (y == 1)[:, None] & (place > 3) & (place % 3 == 0) & (draw.random(x.shape) < 0.3)
    x[behind] = 2
    return y


def position(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return whether the random weights of the letters at their positions, plus noise, have a positive sum."""
    scores = draw.standard_normal((x.shape[1], LETTERS))[np.arange(x.shape[1]), x].sum(axis=1)
    return (scores + 0.3 * scores.std() * draw.standard_normal(len(x)) > 0).astype(int)


def pairs(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Write three pairs of neighbours, which mostly agree in class 1 and mostly differ in class 0; return the class."""
    places = draw.choice(x.shape[1] - 2, 3, replace=False)
    y = draw.integers(0, 2, len(x))
    for place in places:
        agree = draw.random(len(x)) < np.where(y == 1, 0.85, 0.15)
        other = (x[:, place] + draw.integers(1, LETTERS, len(x))) % LETTERS
        x[:, place + 1] = np.where(agree, x[:, place], other)
    return y


def promoter(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Write two motifs with errors into the rows of class 1, each near its usual position; return the class."""
    motifs, y = draw.integers(0, LETTERS, (2, 6)), draw.integers(0, 2, len(x))
    for row in np.flatnonzero(y):
        start = x.shape[1] // 4 + draw.integers(-3, 4)
        for motif, begin in zip(
            motifs, (start, start + x.shape[1] // 3 + draw.integers(-1, 2)), strict=True
        ):
            part = x[row, begin : begin + 6]
            part[:] = np.where(draw.random(6) < 0.8, motif, part)
    return y


def motif(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Write a word, or in class 0 its permutation, with errors and at a random position; return the class."""
    mine, y = draw.integers(0, LETTERS, 7), draw.integers(0, 2, len(x))
    other = draw.permutation(mine)
    for row in range(len(x)):
        word = (mine if y[row] else other).copy()
        if draw.random() < 0.5:
            word[draw.integers(7)] = draw.integers(LETTERS)
        begin = draw.integers(0, x.shape[1] - 7)
        x[row, begin : begin + 7] = word
    return y


def composition(draw: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Draw each letter given the two before it, with the probabilities of the class; return the class."""
    chances = np.cumsum(draw.dirichlet(np.full(LETTERS, 4.0), (2, LETTERS, LETTERS)), axis=-1)
    y, chance = draw.integers(0, 2, len(x)), draw.random(x.shape)
    for place in range(2, x.shape[1]):
        x[:, place] = (chance[:, place, None] > chances[y, x[:, place - 2], x[:, place - 1], :-1]).sum(
            axis=1
        )
    return y


KINDS = (splice, position, pairs, promoter, motif, composition)


def one_hot_and_counts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return one-hot symbols, and these together with the counts of up to four neighbours."""
    hot, counts = np.eye(LETTERS)[x].reshape(len(x), -1), []
    for size in range(1, 5):
        grams = np.lib.stride_tricks.sliding_window_view(x, size, axis=1)
        codes = grams @ LETTERS ** np.arange(size)
        counts.append(np.stack([np.bincount(row, minlength=LETTERS**size) for row in codes]))
    return hot, np.concatenate([hot, *counts], axis=1)


def default(x: np.ndarray, y: np.ndarray, rows: int) -> tuple[float, float, str]:
    """Return the accuracy with default options, the accuracy of all tokens concatenated, and the default's columns."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as quiet:
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            quiet.enter_context(redirect(io.StringIO()))
        path = Path(folder) / "letters.npz"
        np.savez(path, x=x, y=y, split=np.where(np.arange(len(x)) < rows, "train", "test"))
        features = extract(str(path), cache=folder)
        by_default, tokens = fit(features), fit(features, columns="embed/tokens")
    ours, beside = (fitted.evaluation.scores["accuracy"] for fitted in (by_default, tokens))
    return ours, beside, f"`{by_default.best.title}`"


def scores_of(kind: Kind, number: int, rows: int, length: int) -> tuple[list[float], str]:
    """Return the accuracies of the methods on one draw of a kind, and the columns that the default chooses."""
    draw = np.random.default_rng([number, length])
    x = draw.integers(0, LETTERS, (rows + TEST_ROWS, length))
    y = kind(draw, x)
    train, test = slice(0, rows), slice(rows, None)
    hot, counts = one_hot_and_counts(x)
    ours, tokens, columns = default(x, y, rows)
    ridge = RidgeClassifierCV(np.logspace(-3, 4, 15)).fit(hot[train], y[train]).score(hot[test], y[test])
    logistic = LogisticRegressionCV(Cs=INVERSE_PENALTIES, cv=5, max_iter=300)
    model = make_pipeline(StandardScaler(), logistic).fit(counts[train], y[train])
    return [ours, tokens, ridge, model.score(counts[test], y[test])], columns


def symbols(options: argparse.Namespace) -> None:
    """Print the accuracy of each kind and method, and the means."""
    # scikit-learn's models with default parameters
    warnings.filterwarnings("ignore", category=FutureWarning)
    print("| kind | default | tokens | raw ridge | counts | chosen |\n|---|--:|--:|--:|--:|---|")
    means = []
    for kind in KINDS:
        if options.kinds and kind.__name__ not in options.kinds:
            continue
        drawn = [scores_of(kind, number, options.rows, options.length) for number in range(options.draws)]
        means.append(np.mean([scores for scores, _ in drawn], axis=0))
        print(
            line(kind.__name__, means[-1], ", ".join(dict.fromkeys(title for _, title in drawn))),
            flush=True,
        )
    print(line("mean", np.mean(means, axis=0), ""))


def line(name: str, scores: np.ndarray, chosen: str) -> str:
    """Return a row of the table."""
    return f"| {name} | " + " | ".join(f"{score:.3f}" for score in scores) + f" | {chosen} |"


def main() -> None:
    """Print the table that the first argument names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(required=True)
    of_forecasts = tables.add_parser("forecasts")
    of_forecasts.set_defaults(show=forecasts)
    of_forecasts.add_argument("files", type=Path, nargs="*")
    of_forecasts.add_argument("--horizons", type=int, nargs="+", default=[1, 6])
    of_forecasts.add_argument("--past", type=int, default=36)
    of_symbols = tables.add_parser("symbols")
    of_symbols.set_defaults(show=symbols)
    of_symbols.add_argument("kinds", nargs="*", help="Kinds; all by default.")
    of_symbols.add_argument("--rows", type=int, default=200)
    of_symbols.add_argument("--length", type=int, default=60)
    of_symbols.add_argument("--draws", type=int, default=1)
    options = parser.parse_args()
    options.show(options)


if __name__ == "__main__":
    main()
