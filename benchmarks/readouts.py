"""Time of the readout engine compared with scikit-learn and with the lower bound set by disk and multiplication.

    python benchmarks/readouts.py                                     # 50,000 x 768 x 13, 50 penalties, 10 classes
    python benchmarks/readouts.py --rows 4000 --width 128 --columns 2 --penalties 10     # a test of seconds
    python benchmarks/readouts.py --memory 4000 16000 64000 --widths 384 768 1536    # peak memory of `fit`, instead

The script writes columns of correlated float16 features to a temporary folder. Then it measures, streaming from disk:

* ridge: the first sweep (moments, solution of every penalty, accuracy on a tenth as many validation rows), a further
  penalty grid from the stored moments, and the peak memory of the process up to this point;
* the lower bound of the pass over train: one read of the files, and X'X of all rows in float32 at the speed of one
product;
* scikit-learn: one ``RidgeClassifier`` fit per penalty and ``RidgeClassifierCV``, both on standardised float32 arrays
  in memory, timed on one column (and ``--fits`` penalties of it) and scaled up by factors that are printed;
* logistic, on at most ``--logistic-rows`` rows: a path of 10 penalties, and one cold ``LogisticRegression`` for each.

Goals for the full size: 100 times faster than the single fits, 200 times faster than RidgeClassifierCV, the pass within
twice the lower bound, a further grid under 1 s per column, under 1 GB of memory, and logistic at most a third of the
time of the cold fits.

With ``--memory`` the script writes synthetic entries (one column, ten classes) into a temporary cache and runs `fit` on
each in its own process. It prints the peak resident memory of that process minus that of a process that only imports
the stage. Memory must grow with the width and not with the rows.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.readouts.linear import Block, Targets, score_path
from reservoir.readouts.logistic import logistic_path
from reservoir.readouts.moments import training_moments
from reservoir.readouts.ridge import gather, ridge_path

READ_ROWS = 4096
LOGISTIC_PENALTIES = np.logspace(-1, 4, 10)

CHILD = """
import resource, sys
from pathlib import Path
from reservoir_pipelines import fit
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fit(Path(sys.argv[1]), out=Path(sys.argv[1]) / "out")
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True)
class Column:
    """Features of one column on disk, its first rows for training and the rest for validation; iterable repeatedly."""

    path: Path
    labels: np.ndarray
    start: int
    stop: int
    width: int

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks of features (m, width) and labels (m, 1)."""
        with self.path.open("rb") as file:
            file.seek(self.start * self.width * 2)
            for row in range(self.start, self.stop, READ_ROWS):
                count = min(READ_ROWS, self.stop - row)
                x = np.fromfile(file, np.float16, count * self.width).reshape(count, self.width)
                yield x, self.labels[row : row + count]


def write(folder: Path, rows: int, width: int, columns: int, classes: int) -> list[tuple[Column, Column]]:
    """Write columns of features whose spectrum decays, as hidden states' do, and return (train, valid) of each."""
    total, pairs = rows + rows // 10, []
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, (total, 1))
    for number in range(columns):
        mix = (
            rng.standard_normal((width, width), np.float32)
            * np.geomspace(1, 0.01, width, dtype=np.float32)[:, None]
        )
        centers = rng.standard_normal((classes, width), np.float32) / np.sqrt(width, dtype=np.float32)
        path = folder / f"{number:02d}.f16"
        with path.open("wb") as file:
            for row in range(0, total, READ_ROWS):
                part = labels[row : row + READ_ROWS, 0]
                hidden = rng.standard_normal((len(part), width), np.float32) + 4 * centers[part]
                (hidden @ mix / np.float32(4) + 2).astype(np.float16).tofile(file)
        pairs.append((Column(path, labels, 0, rows, width), Column(path, labels, rows, total, width)))
    return pairs


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and its result."""
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def measure_ridge(pairs: list[tuple[Column, Column]], targets: Targets, penalties: int) -> dict[str, float]:
    """Return the seconds of each part of a first sweep over all columns and of a further grid, and the peak memory."""
    parts = dict.fromkeys(("pass", "solve", "score", "further_grid_per_column"), 0.0)
    best = 0.0
    for train, valid in pairs:
        seconds, moments = timed(lambda data=train: training_moments(data, targets))
        parts["pass"] += seconds
        seconds, path = timed(lambda data=moments: ridge_path(data, np.logspace(-2, 6, penalties)))
        parts["solve"] += seconds
        seconds, accuracy = timed(
            lambda model=path, data=valid: score_path(model, data, targets).accuracy()
        )
        parts["score"] += seconds
        best = max(best, float(accuracy.max()))
        seconds, _ = timed(lambda data=moments: ridge_path(data, np.logspace(0, 3, penalties)))
        parts["further_grid_per_column"] = max(parts["further_grid_per_column"], seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return parts | {
        "total": parts["pass"] + parts["solve"] + parts["score"],
        "peak_gb": peak,
        "best_accuracy": best,
    }


def measure_floor(pairs: list[tuple[Column, Column]]) -> dict[str, float]:
    """Return the seconds to read the training features once, and those of X'X in float32 at full speed."""

    def read() -> None:
        for train, _ in pairs:
            buffer, left = bytearray(8 << 20), train.stop * train.width * 2
            with train.path.open("rb", buffering=0) as file:
                while left > 0:
                    left -= file.readinto(memoryview(buffer)[: min(left, len(buffer))])

    seconds, _ = timed(read)
    train = pairs[0][0]
    x = np.ones((min(train.stop, 16_384), train.width), np.float32)
    product = min(timed(lambda: x.T @ x)[0] for _ in range(3)) * train.stop / len(x) * len(pairs)
    return {"read": seconds, "product": product, "total": seconds + product}


def in_memory(train: Column, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised float32 features and labels of a column's first rows."""
    from sklearn.preprocessing import StandardScaler

    x, y = (np.concatenate(part)[:rows] for part in zip(*train, strict=True))
    return StandardScaler(copy=False).fit_transform(x.astype(np.float32)), y[:, 0]


def measure_sklearn(train: Column, columns: int, penalties: int, fits: int) -> dict[str, float]:
    """Return the seconds of one fit per penalty and of leave-one-out selection, scaled up from one column."""
    from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV

    x, y = in_memory(train, train.stop)
    alphas = np.logspace(-2, 6, penalties)
    chosen = alphas[:: max(1, penalties // fits)][:fits]
    single, _ = timed(lambda: [RidgeClassifier(alpha=alpha).fit(x, y) for alpha in chosen])
    leave_one_out, _ = timed(lambda: RidgeClassifierCV(alphas).fit(x, y))
    factor = columns * penalties / len(chosen)
    return {
        "fits": single * factor,
        "fits_factor": factor,
        "cv": leave_one_out * columns,
        "cv_factor": columns,
    }


def measure_logistic(
    pair: tuple[Column, Column], columns: int, rows: int, targets: Targets
) -> dict[str, Any]:
    """Return accuracies, and seconds of a logistic path and of cold fits for all columns, scaled up from one column."""
    from sklearn.linear_model import LogisticRegression

    x, y = in_memory(pair[0], rows)
    # standardised by its own statistics, for both libraries
    held_out, labels = in_memory(pair[1], pair[1].stop)
    data = [(x, y[:, None])]
    ours, path = timed(lambda: logistic_path(data, targets, LOGISTIC_PENALTIES, gather(data, targets)))

    def cold(tolerance: float) -> list[Any]:
        return [
            LogisticRegression(C=1 / a, max_iter=10_000, tol=tolerance).fit(x, y).score(held_out, labels)
            for a in LOGISTIC_PENALTIES
        ]

    # At its default tolerance scikit-learn stops short of the optimum where the penalty is weak, by points of accuracy:
    # the time is compared with the default, the accuracy with fits that go on to the optimum.
    theirs, stopped = timed(lambda: cold(1e-4))
    optimal, exact = timed(lambda: cold(1e-8))
    accuracy = score_path(path, [(held_out, labels[:, None])], targets).accuracy()
    return {
        "path": ours * columns,
        "cold_fits": theirs * columns,
        "cold_fits_to_the_optimum": optimal * columns,
        "ratio": theirs / ours,
        "ratio_to_the_optimum": optimal / ours,
        "largest_difference_of_accuracy": float(np.abs(accuracy - stopped).max()),
        "largest_difference_at_the_optimum": float(np.abs(accuracy - exact).max()),
        "converged": path.converged.tolist(),
    }


def write_entry(root: Path, rows: int, width: int) -> Path:
    """Write an entry with ``rows`` training rows of one column and return its folder."""
    from reservoir_cache import (
        BackboneSpec,
        DataSpec,
        Entry,
        InitSpec,
        InputSpec,
        Layout,
        ShardWriter,
        Spec,
        write_targets,
    )

    from reservoir.tasks import Task, Vectors

    counts = {"train": rows, "valid": 1000, "test": 1000}
    spec = Spec(
        task=Task(name="synthetic", form=Vectors(1), max_tokens=1, classes=10).to_dict(),
        data=DataSpec(digest="0" * 64, rows=counts),
        backbone=BackboneSpec(family="none", digest="0" * 64),
        init=InitSpec(kind="random", seed=0),
        input=InputSpec(kind="orthogonal", seed=0, gain=1.0, patch=1, stride=1),
        padding="none",
        compute="float32",
        store="float16",
    )
    reservoir = {"backbone": "none", "init": "random", "seed": 0, "gain": 1.0}
    made_with = {"prepared": str(root / "nothing"), "reservoir": reservoir, "scaling": None}
    entry = Entry.create(root, f"rows{rows}-width{width}", spec, Layout(batch_rows=32), made_with)
    draw = np.random.default_rng(0)
    with ShardWriter(entry) as writer:
        for split, count in counts.items():
            y = draw.integers(0, 10, (count, 1, 1))
            targets = {"y": y, "lengths": np.ones(count, np.int32), "index": np.arange(count)}
            write_targets(entry, split, targets)
            for block, (low, high) in enumerate(entry.blocks(split)):
                values = draw.standard_normal((high - low, 1, width), dtype=np.float32)
                values[:, 0, 0] += y[low:high, 0, 0]
                writer.claim(split, block, ["block01/mean"])
                writer.put(split, block, {"block01/mean": values})
    return entry.path


def print_memory(all_rows: list[int], widths: list[int]) -> None:
    """Print one line per synthetic entry: its size, and the peak memory of `fit`."""
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    print("rows    width  features MB  peak of fit MB")
    with tempfile.TemporaryDirectory() as folder:
        for width in widths:
            for rows in all_rows:
                entry = write_entry(Path(folder) / f"{rows}-{width}", rows, width)
                process = subprocess.run(
                    [sys.executable, "-c", CHILD, str(entry)], stdout=subprocess.PIPE, text=True, check=True
                )
                before, peak = (int(value) * unit for value in process.stdout.split())
                print(
                    f"{rows:<7} {width:<6} {rows * width * 2 / 1e6:<12.1f} {(peak - before) / 1e6:.0f}",
                    flush=True,
                )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("rows", 50_000),
        ("width", 768),
        ("columns", 13),
        ("penalties", 50),
        ("classes", 10),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--fits", type=int, default=5, help="RidgeClassifier fits that are timed")
    parser.add_argument("--logistic-rows", type=int, default=20_000, help="0 leaves the logistic part out")
    parser.add_argument(
        "--memory", type=int, nargs="+", metavar="ROWS", help="measure the memory of `fit` instead"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[384, 768, 1536], help="with --memory")
    options = parser.parse_args()
    if options.memory:
        print_memory(options.memory, options.widths)
        return
    targets = Targets(1, options.classes)
    with tempfile.TemporaryDirectory() as folder:
        pairs = write(Path(folder), options.rows, options.width, options.columns, options.classes)
        training_moments([next(iter(pairs[0][0]))], targets)  # the first product starts the threads
        ours, floor = measure_ridge(pairs, targets, options.penalties), measure_floor(pairs)
        sklearn = measure_sklearn(pairs[0][0], options.columns, options.penalties, options.fits)
        logistic = (
            measure_logistic(pairs[0], options.columns, options.logistic_rows, targets)
            if options.logistic_rows
            else {}
        )
    show(ours, floor, sklearn, logistic)


def show(
    ours: dict[str, float], floor: dict[str, float], sklearn: dict[str, float], logistic: dict[str, Any]
) -> None:
    """Print the table, and peak memory."""
    total = ours["total"]
    parts = f"one pass {ours['pass']:.2f}, solutions {ours['solve']:.2f}, scores {ours['score']:.2f}"
    rows = [
        (f"ours: {parts}; {ours['peak_gb']:.2f} GB at most", total, 1.0),
        ("`RidgeClassifier`, a fit per penalty", sklearn["fits"], sklearn["fits"] / total),
        ("`RidgeClassifierCV`", sklearn["cv"], sklearn["cv"] / total),
        (
            f"lower bound: one read {floor['read']:.2f}, X'X in float32 {floor['product']:.2f}",
            floor["total"],
            floor["total"] / total,
        ),
        ("a further grid on stored moments, per column", ours["further_grid_per_column"], 0.0),
    ]
    if logistic:
        apart = 100 * logistic["largest_difference_at_the_optimum"]
        path, cold, optimal = logistic["path"], logistic["cold_fits"], logistic["cold_fits_to_the_optimum"]
        rows += [
            ("logistic, 10 penalties", path, 1.0),
            ("the same, cold `LogisticRegression` fits", cold, cold / path),
            (
                f"the same to the optimum, accuracies within {apart:.2f} points of ours",
                optimal,
                optimal / path,
            ),
        ]
    print("| | seconds | times ours |\n|---|--:|--:|")
    for name, seconds, ratio in rows:
        print(f"| {name} | {seconds:.2f} | {f'{ratio:.2f}' if ratio else ''} |")


if __name__ == "__main__":
    main()
