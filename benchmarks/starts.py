"""Initialisation of an FPT's output layer: orthogonal rows (our default), or that of the authors' protocol.

    python benchmarks/starts.py [--steps 300] [--seeds 2]

On digits through mini the protocol changes nothing else. The script prints the loss of the first step, the mean loss of
all steps, and the test accuracy in percent, as means over seeds.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from reservoir_pipelines import train

STARTS = {"orthogonal rows of norm 1.41": None, "torch's default for `Linear`, as the authors": "paper"}


def main() -> None:
    """Print a row for each initialisation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    print("| initialisation | first loss | mean loss | test |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, protocol in STARTS.items():
            of_seeds = []
            for seed in range(options.seeds):
                # bfloat16 differs more between processors
                place = {"cache": Path(folder), "compute": "float32"}
                run = train("digits", protocol=protocol, seed=seed, steps=options.steps, **place)
                of_seeds.append((run.losses[0], np.mean(run.losses), 100 * (run.test_score or 0.0)))
            first, mean, test = np.mean(of_seeds, axis=0)
            print(f"| {name} | {first:.2f} | {mean:.3f} | {test:.1f} |", flush=True)


if __name__ == "__main__":
    main()
