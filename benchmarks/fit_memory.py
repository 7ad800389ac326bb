"""Peak memory of ``fit`` by the number of rows and the width of the features.

    python benchmarks/fit_memory.py [--rows 4000 16000 64000] [--widths 384 768 1536]

The script writes synthetic entries (one column, ten classes) into a temporary cache and runs `fit` on each in its own
process. It prints the peak resident memory of that process minus that of a process that only imports the stage. Memory
must grow with the width and not with the rows.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CHILD = """
import resource, sys
from pathlib import Path
from reservoir_pipelines import fit
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fit(Path(sys.argv[1]), out=Path(sys.argv[1]) / "out")
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


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


def main() -> None:
    """Print one line per entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[4000, 16000, 64000])
    parser.add_argument("--widths", type=int, nargs="+", default=[384, 768, 1536])
    arguments = parser.parse_args()
    unit = 1024 if resource.getpagesize() and sys.platform != "darwin" else 1
    print("rows    width  features MB  peak of fit MB")
    with tempfile.TemporaryDirectory() as folder:
        for width in arguments.widths:
            for rows in arguments.rows:
                entry = write_entry(Path(folder) / f"{rows}-{width}", rows, width)
                process = subprocess.run(
                    [sys.executable, "-c", CHILD, str(entry)], stdout=subprocess.PIPE, text=True, check=True
                )
                before, peak = (int(value) * unit for value in process.stdout.split())
                print(
                    f"{rows:<7} {width:<6} {rows * width * 2 / 1e6:<12.1f} {(peak - before) / 1e6:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
