"""Ctrl-C while modules are still being imported ends in exit code 130 and at most one line."""

import subprocess
import sys

import pytest

# Sends the signal when the named module is about to be imported, so that no clock decides.
CODE = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.meta_path.insert(0, Interrupts())
sys.argv = ["reservoir", *{arguments!r}]
from reservoir_pipelines.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "name",
    ["typer", "reservoir.options", "numpy", "torch.nn"],
)
def test_an_interrupted_import_ends_in_exit_code_130(tmp_path, name):
    command = ["extract", "digits", "--limit", "20", "--cache", str(tmp_path)]
    code = CODE.format(name=name, arguments=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1
