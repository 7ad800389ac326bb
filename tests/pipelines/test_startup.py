"""What a command imports: nothing heavy for a mistake, and neither a model nor torch for what is cached."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

HEAVY = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "pandas")

CODE = """
import sys
from reservoir_pipelines.cli import run
code = run(sys.argv[1:])
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""
SEVERAL = """
import json, sys
from reservoir_pipelines.cli import run
codes = [run(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([codes, [name for name in {heavy} if name in sys.modules]]))
"""
MISTAKES = [
    (["extract", "digits", "--depht", "3"], "--depht"),
    (["extract", "digits", "--seed", "one"], "--seed"),
    (["extract", "mnnist"], "did you mean 'mnist'"),
    (["train", "digits", "--backbone", "gtp2"], "did you mean gpt2"),
    (["prepare", "missing.csv"], "missing.csv: no such file"),
    (["fit", "missing.csv"], "nothing extracted for 'missing.csv'"),
    (["predict", "no-readout", "missing.npz"], "no-readout: no such file or folder"),
]


def ask(*arguments, heavy=HEAVY, **env):
    """Run a command in a process of its own; return its exit code, stdout, and stderr without what it imported."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(heavy=heavy), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )
    *message, imported = done.stderr.splitlines()
    assert imported == "[]", (arguments, imported)
    return done.returncode, done.stdout, "\n".join(message)


def test_mistakes_end_in_one_line_before_anything_heavy_is_imported(cache):
    commands = json.dumps([arguments for arguments, _ in MISTAKES])
    command = [sys.executable, "-c", SEVERAL.format(heavy=HEAVY), commands]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout) == [[2] * len(MISTAKES), []]
    for line, (_, words) in zip(done.stderr.splitlines(), MISTAKES, strict=True):
        assert words in line


def test_version_and_help_import_nothing_heavy():
    heavy = (*HEAVY, "h5py", "numpy", "dask")
    assert ask("--version", heavy=heavy)[0] == ask("extract", "--help", heavy=heavy)[0] == 0


def test_a_finished_extraction_is_found_without_torch_and_a_changed_model_is_not(cache, tiny_gpt2):
    from reservoir_pipelines import extract

    options = ["--backbone", tiny_gpt2, "--limit", 20, "--layers", "final", "--json"]
    first = extract("digits", backbone=str(tiny_gpt2), limit=20, layers="final")
    code, out, message = ask("extract", "digits", *options)
    found = json.loads(out)
    assert (code, found["entry"], found["columns"]) == (0, str(first.entry), list(first.columns))
    assert found["reused"]
    assert "no forward pass" in message

    later = tiny_gpt2 / "config.json"
    os.utime(later, ns=(later.stat().st_atime_ns, later.stat().st_mtime_ns + 1))
    with pytest.raises(AssertionError, match="torch"):
        ask("extract", "digits", *options)  # it might be another model: it has to be looked at


def test_predict_imports_what_it_computes_with(cache, tmp_path):
    from reservoir_pipelines import extract, fit

    x = np.random.default_rng(0).normal(size=(40, 6))
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0] > 0).astype(int))
    np.savez(tmp_path / "new.npz", x=x)
    done = fit(extract(tmp_path / "d.npz", backbone="mini", layers="final").entry)
    slow = ("transformers", "sklearn", "pandas", "matplotlib", "dask", "torch._dynamo")
    code, out, _ = ask("predict", done.saved, tmp_path / "new.npz", heavy=slow)
    assert (code, len(out.splitlines())) == (0, 40)


def test_a_readout_is_applied_without_what_only_fits_one():
    modules = "{'sklearn', 'scipy.optimize', 'torch'}"
    code = (
        f"import sys; from reservoir.readouts import evaluation, folds, logistic; print(sys.modules.keys() & {modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
