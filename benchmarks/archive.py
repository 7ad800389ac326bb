"""Test accuracy and processor seconds of the command line on a folder of labelled series, beside aeon's classifiers.

    pip install --no-deps aeon scikit-base deprecated
    python benchmarks/archive.py DIR                          # one .npz per set, with x, y, split and perhaps lengths
    python benchmarks/archive.py DIR --only GunPointAgeSpan,Haptics
    python benchmarks/archive.py DIR --flags "--backbone mini"    # further flags of extract
    python benchmarks/archive.py DIR --peers MiniRocket           # without the slower ones

Each method runs in new processes, as a user runs it; its seconds are those of all of them: `extract` and `fit`, or a
script that imports the classifier, reads the file, fits and predicts. Missing values are interpolated for all methods;
for aeon, shorter series are stretched to the longest. MiniRocket and MultiRocket-Hydra compile their code at the first
call on a machine and keep it; a first, unmeasured call does so. Defaults are chosen on such sets, so that their
accuracy here is too good; ``benchmarks/series.py`` has sets that no choice has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PEERS = {
    "MiniRocket": "aeon.classification.convolution_based.MiniRocketClassifier",
    "MultiRocket-Hydra": "aeon.classification.convolution_based.MultiRocketHydraClassifier",
    "QUANT": "aeon.classification.interval_based.QUANTClassifier",
}


class Score(NamedTuple):
    """The accuracy on the test rows, and the processor seconds of all processes."""

    accuracy: float
    seconds: float


def run(*command: str) -> tuple[dict[str, Any], float]:
    """Run a command; return the JSON that it prints, and its processor seconds."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout
    printed = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"failed: {shlex.join(command)}")
    return json.loads(printed), used.ru_utime + used.ru_stime


def default(path: Path, flags: list[str]) -> Score:
    """Return the score of `extract` and `fit` with default options, and ``flags`` of `extract`."""
    reservoir = ("-m", "reservoir_pipelines")
    missing = ["--missing", "interpolate"] if np.isnan(np.load(path)["x"]).any() else []
    with tempfile.TemporaryDirectory() as cache:
        entry, extracting = run(
            *reservoir, "extract", str(path), "--cache", cache, "--json", *missing, *flags
        )
        fitted, fitting = run(*reservoir, "fit", entry["entry"], "--out", f"{cache}/fit", "--json")
    return Score(fitted["best"]["test_score"], extracting + fitting)


def peer(kind: str, path: Path) -> Score:
    """Return the score of a classifier of aeon."""
    result, seconds = run(__file__, str(path.parent), "--peer", kind, "--only", path.stem)
    return Score(result["accuracy"], seconds)


def fit_peer(kind: str, path: Path) -> float:
    """Return the accuracy of a classifier of aeon, in this process."""
    stored = np.load(path)
    x = stored["x"].astype(np.float32)
    y = stored["y"]
    is_test = stored["split"] == "test"
    lengths = stored["lengths"] if "lengths" in stored else np.full(len(x), x.shape[1])
    places = np.linspace(0, 1, x.shape[1])
    for row, length in zip(x, lengths, strict=True):
        for channel in range(x.shape[2]):
            values = row[:length, channel].copy()
            real = np.flatnonzero(np.isfinite(values))
            row[:, channel] = np.interp(places * (length - 1), real, values[real])
    x = x.transpose(0, 2, 1)
    module, _, name = kind.rpartition(".")
    classifier = getattr(__import__(module, fromlist=[name]), name)(random_state=0)
    classifier.fit(x[~is_test], y[~is_test])
    return float(np.mean(classifier.predict(x[is_test]) == y[is_test]))


def main() -> None:
    """Print a line for each set, then means, medians, and how often the default is better than each peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="Sets, comma-separated.")
    parser.add_argument("--flags", default="", help="Further flags of extract.")
    parser.add_argument("--peers", default=",".join(PEERS), help="Classifiers of aeon, comma-separated.")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    paths = sorted(path for path in options.folder.glob("*.npz") if not only or path.stem in only)
    if options.peer:
        print(json.dumps({"accuracy": fit_peer(options.peer, paths[0])}))
        return
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"
    named = options.peers.split(",") if find_spec("aeon") else []
    peers = {name: kind for name, kind in PEERS.items() if name in named}
    for kind in peers.values():
        peer(kind, paths[0])
    print_line(
        "set", "train", "length", *(f"{name}{of}" for name in ("default", *peers) for of in ("", ", s"))
    )
    print("|---" + "|--:" * (4 + 2 * len(peers)) + "|", flush=True)
    scores: list[list[Score]] = []
    for path in paths:
        of_set = [default(path, shlex.split(options.flags)), *(peer(kind, path) for kind in peers.values())]
        scores.append(of_set)
        stored = np.load(path)
        cells = (
            f"{score.accuracy:.3f}" if n else f"{score.seconds:.1f}" for score in of_set for n in (1, 0)
        )
        print_line(path.stem, f"{(stored['split'] != 'test').sum():,}", f"{stored['x'].shape[1]:,}", *cells)
    of_methods = [[of_set[number] for of_set in scores] for number in range(1 + len(peers))]
    print_line("mean accuracy, median seconds", "", "", *_summary(of_methods))
    for name, of_peer in zip(peers, of_methods[1:], strict=True):
        gaps = [
            ours.accuracy - theirs.accuracy for ours, theirs in zip(of_methods[0], of_peer, strict=True)
        ]
        wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
        print(f"\ndefault against {name}: {wins} wins, {len(gaps) - wins - losses} draws, {losses} losses")


def _summary(of_methods: list[list[Score]]) -> list[str]:
    """Return the mean accuracy and the median seconds of each method."""
    cells: list[str] = []
    for of_sets in of_methods:
        cells.append(f"{statistics.fmean(score.accuracy for score in of_sets):.4f}")
        cells.append(f"{statistics.median(score.seconds for score in of_sets):.1f}")
    return cells


def print_line(*cells: str) -> None:
    """Print a row of the table."""
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
