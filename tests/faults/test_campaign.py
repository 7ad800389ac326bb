"""The campaign of faults, a few rounds of it: ``make faults`` runs the whole."""

import subprocess
import sys
from pathlib import Path


def test_nothing_is_lost(tmp_path):
    command = [sys.executable, "-m", "benchmarks.faults", "--scale", "0.005", "--parts", "bits,inputs", "--out"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([*command, tmp_path / "table.md"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert (tmp_path / "table.md").read_text().splitlines()[-1].endswith("| **0** |")
