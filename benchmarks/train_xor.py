"""Steps until bit-xor is learnt, by an FPT and by its output alone.

    python benchmarks/train_xor.py                                      # untrained GPT-2 small
    python benchmarks/train_xor.py --backbone gpt2:n_layer=2,n_embd=128 --steps 500

Prints for each set of trained groups the first validated step from which accuracy on fresh rows stays within 1% of its
last value, that accuracy on the test rows, and steps per second.
"""

import argparse
import tempfile
from pathlib import Path

from reservoir_pipelines.training.train import train


def main() -> None:
    """Train twice and print a row each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backbone", default="gpt2")
    parser.add_argument("--init", default="random")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    settings = vars(parser.parse_args())
    print(f"{'trained':40} {'converged':>9} {'test':>7} {'steps/s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for groups in (None, "output"):
            done = train("bit-xor", train=groups, eval_every=50, cache=Path(folder), **settings)
            speed = done.steps / done.seconds
            name = ",".join(done.groups)
            print(f"{name:40} {done.converged_step or '-':>9} {done.test_score or 0:>7.1%} {speed:>8.2f}")


if __name__ == "__main__":
    main()
