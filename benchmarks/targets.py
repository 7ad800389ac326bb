"""Ridge of many targets, each with its own penalty, against himalaya's ``RidgeCV`` on the same arrays and folds.

    OMP_NUM_THREADS=1 python benchmarks/targets.py                 # 4,000 x 768, 2,000 targets, 25 penalties, 3 pairs
    python benchmarks/targets.py --rows 400 --width 64 --targets 100     # a second, to see that it runs

Both are given standardised float32 features, the same five folds and penalties; runs alternate, and the seconds are
those of the processor, medians of the pairs, so that other work on the machine counts less. Without himalaya
(``pip install himalaya``) ours is timed alone. The choices are counted where they are equal. Goal: 3 times faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.model_selection import KFold

from reservoir.readouts import RidgeSweepRegressor

ALPHAS = np.logspace(-2, 6, 25)


def draw(rows: int, width: int, targets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features whose spectrum decays, as hidden states' do, and targets of which each has another noise."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((width, width)) * np.geomspace(1, 0.01, width)[:, None]
    x = rng.standard_normal((rows, width)) @ mix
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    weights = 0.03 * rng.standard_normal((width, targets)) * rng.random(targets)
    return x.astype(np.float32), (x @ weights + rng.standard_normal((rows, targets))).astype(np.float32)


def timed(fit: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor's seconds of a call, and its result."""
    started = time.process_time()
    found = fit()
    return time.process_time() - started, found


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 4000), ("width", 768), ("targets", 2000), ("pairs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    try:
        from himalaya.ridge import RidgeCV  # pyright: ignore[reportMissingImports]
    except ImportError:
        RidgeCV = None
    x, y = draw(options.rows, options.width, options.targets)
    ours, theirs, same, apart = [], [], 0, 0.0
    for _ in range(options.pairs):
        estimator = RidgeSweepRegressor(ALPHAS, cv=KFold(5), alpha_per_target=True)
        seconds, mine = timed(lambda one=estimator: one.fit(x, y))
        ours.append(seconds)
        if RidgeCV is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = RidgeCV(alphas=ALPHAS, cv=KFold(5), fit_intercept=True)
            seconds, _ = timed(lambda one=peer: one.fit(x, y))
        theirs.append(seconds)
        same = int(np.isclose(peer.best_alphas_, mine.alpha_, rtol=1e-5).sum())
        apart = float(np.abs(peer.coef_.T - mine.coef_ * x.std(axis=0)).max() / np.abs(mine.coef_).max())
    found: dict[str, Any] = {"load": os.getloadavg()[0], "ours": statistics.median(ours), "runs": ours}
    if theirs:
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        found |= {"himalaya": statistics.median(theirs), "their_runs": theirs, "himalaya / ours": ratio}
        found |= {"equal_choices": same, "targets": options.targets, "largest_difference_of_weights": apart}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
