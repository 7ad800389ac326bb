"""Child processes import nothing from the current folder, end when the command is killed, and end on Ctrl-C."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import Child, contents

PROCESSES = """
import importlib
from reservoir_pipelines import workers
if __name__ == "__main__":
    workers.run_processes(importlib.import_module, [("typer",), ("rich",)])
"""
POOL = """
from reservoir_pipelines import workers
if __name__ == "__main__":
    workers.PAYS_OFF = -1
    workers.map_pieces(pow, [(number, 2) for number in range(3)], workers=2)
"""
SLEEP_IN_CELLS = """
import os, sys, time
from pathlib import Path
from reservoir_pipelines.paper import stages

def sleep(*_):
    Path(sys.argv[-1], str(os.getpid())).touch()
    time.sleep(3600)

stages.run_cell = sleep  # the workers import this script again
if __name__ == "__main__":
    from reservoir_pipelines.cli import run
    run(sys.argv[1:-1])
"""
SLEEP_IN_PIECES = """
import os, sys, time
from pathlib import Path
from reservoir_pipelines import workers

def sleep(number):
    Path(sys.argv[-1], str(os.getpid())).touch()
    time.sleep(3600 * (number > 0))  # this process computes the first piece

if __name__ == "__main__":
    workers.PAYS_OFF = -1
    workers.map_pieces(sleep, [(number,) for number in range(3)], workers=2)
"""
TRAP = """
from pathlib import Path
Path(__file__).with_suffix(".executed").touch()
"""


@pytest.fixture
def foreign(tmp_path):
    """Return a folder with modules named like those that Python and this program import."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in ("multiprocessing", "typer", "rich"):
        (folder / f"{name}.py").write_text(TRAP)
    return folder


@pytest.mark.parametrize("program", [PROCESSES, POOL], ids=["processes", "pool"])
def test_child_processes_import_nothing_from_the_current_folder(tmp_path, foreign, program):
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, script], cwd=foreign, capture_output=True, text=True)
    assert not list(foreign.glob("*.executed"))
    assert done.returncode == 0, done.stderr


def test_the_module_imports_nothing_from_the_current_folder(foreign):
    command = [sys.executable, "-m", "reservoir_pipelines", "--version"]
    done = subprocess.run(command, cwd=foreign, capture_output=True, text=True)
    assert not list(foreign.glob("*.executed"))
    assert done.stdout.startswith("reservoir "), done.stderr


@pytest.mark.parametrize(
    ("program", "arguments", "processes"),
    [(SLEEP_IN_CELLS, ("reproduce", "figure6", "--workers", "2"), 2), (SLEEP_IN_PIECES, (), 3)],
    ids=["cells", "pool"],
)
def test_workers_end_when_the_command_is_killed(tmp_path, cache, program, arguments, processes):
    script, running = tmp_path / "program.py", tmp_path / "running"
    script.write_text(program)
    running.mkdir()
    parent = subprocess.Popen([sys.executable, script, *arguments, running], stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(running.iterdir())) == processes)
    parent.kill()
    parent.wait()
    workers = {int(mark.name) for mark in running.iterdir()} - {parent.pid}
    try:
        wait_until(lambda: not any(map(is_alive, workers)))
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, 9)


def wait_until(happened):
    deadline = time.monotonic() + 600
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Sends the signal just before the named module is imported, so that the test does not depend on time.
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


@pytest.mark.parametrize("name", ["typer", "reservoir.options", "numpy", "torch.nn"])
def test_an_interrupted_import_ends_in_exit_code_130(tmp_path, name):
    command = ["extract", "digits", "--limit", "20", "--cache", str(tmp_path)]
    code = CODE.format(name=name, arguments=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 1


TROUBLE = """
import errno, os, signal, sys
from reservoir_pipelines import cli
from reservoir_pipelines.extraction import extractor
from reservoir_cache import publish
from reservoir.errors import InputError

place, trouble, *arguments = sys.argv[1:]
module, name = {"load": (extractor, "load"), "forward": (extractor, "launch"), "write": (publish, "sync")}[place]
function, calls = getattr(module, name), []

def troubled(*given, **more):
    calls.append(given)
    if len(calls) == 3 if place != "write" else "00001" in str(given[0]):
        if trouble == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            raise {"disk": OSError(errno.ENOSPC, "No space left on device"), "input": InputError("bad row")}[trouble]
    return function(*given, **more)

signal.signal(signal.SIGINT, signal.default_int_handler)
setattr(module, name, troubled)
sys.exit(cli.run(arguments))
"""


@pytest.mark.parametrize(
    ("place", "trouble", "code"),
    [*((place, "Ctrl-C", 130) for place in ("load", "forward", "write")), ("load", "input", 2), ("write", "disk", 2)],
)
def test_trouble_in_any_thread_of_extract_ends_in_one_line_and_a_rerun_continues(place, trouble, code, tmp_path, call):
    command = ["extract", "digits", "--backbone", "gpt2:n_layer=1,n_embd=8,n_head=1", "--init", "random"]
    command += ["--limit", "600", "--layers", "final", "--pool", "mean", "--cache", str(tmp_path / "cache")]
    child = Child(TROUBLE, place, trouble, *command)
    found, _, error = child.ended()
    lines = [line for line in error.splitlines() if line.startswith("reservoir: ")]
    assert (found, len(lines), "Traceback" in error) == (code, 1, False), error
    left = contents(tmp_path / "cache", "*.h5")
    assert call(*command)[0] == 0
    whole = contents(tmp_path / "cache", "*.h5")
    assert left.items() <= whole.items() and len(left) < len(whole)
    shutil.rmtree(tmp_path / "cache" / "features")
    assert call(*command)[0] == 0 and contents(tmp_path / "cache", "*.h5") == whole
