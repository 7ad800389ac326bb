"""Faulty disks, hostile names, failing plots and ended processes give one line with a remedy, and no result is lost."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from reservoir_pipelines import ReservoirClassifier, extract, fit
from reservoir_pipelines.cli import run
from reservoir_pipelines.output import as_json, meter, notify, print_json, printable
from reservoir_pipelines.preparation import prepare as preparation
from reservoir_pipelines.tables import ResultTable, numbers, print_shown, texts

from tests.helpers import COMMAND, Child, contents

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70"


@pytest.mark.parametrize("command", ["prepare", "extract", "train"])
def test_a_cache_that_cannot_be_made(tmp_path, refusal, command):
    (tmp_path / "file").write_text("no folder")
    options = [] if command == "prepare" else ["--init", "random", "--backbone", TINY, "--device", "cpu"]
    for place, why in (
        ("/proc/nowhere", "No such file or directory"),
        (tmp_path / "file" / "cache", "Not a directory"),
    ):
        line = refusal(command, "bit-xor", *options, "--cache", place)
        assert str(place) in line and why in line


WIDE = "gpt2:n_layer=2,n_embd=64,n_head=2,n_positions=70"
FEW = ["--param", "train_rows=64", "--param", "valid_rows=20", "--param", "test_rows=20"]


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (["prepare", "digits"], 4_000),
        (["train", "bit-xor", *FEW, "--steps", "2", "--init", "random", "--backbone", WIDE, "--train", "all"], 60_000),
    ],
)
def test_a_disk_that_takes_no_more(tmp_path, arguments, most):
    """HDF5 would crash the process after a failed write; a limit on the size of files simulates a full disk."""
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); {COMMAND}"
    )
    code, out, err = Child(limited, *arguments, "--cache", tmp_path).ended()
    assert (code, out) == (1, "")
    assert f"reservoir: {tmp_path}/" in err.splitlines()[-1] and ": File too large; raise the limit" in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.tmp"))
    assert run([*arguments, "--cache", str(tmp_path)]) == 0


def test_a_plot_that_cannot_be_written_is_refused_with_its_folder(refusal):
    line = refusal("backbone", TINY, "--init", "random", "--out", "/proc/nowhere/card.png")
    assert line.startswith("reservoir: /proc/nowhere: No such file or directory; check the path")


@pytest.mark.parametrize(
    ("number", "path", "code", "remedy"),
    [
        (errno.EACCES, "/some/place", 2, "permissions"),
        (errno.EISDIR, "/some/place", 2, "name another path"),
        (
            errno.ENOSPC,
            "/some/place",
            1,
            "free some disk space, then run the same command again to continue (train and ",
        ),
        (errno.ENOSPC, None, 1, "free some disk space"),  # the error of a failed write has no path
        (errno.EIO, None, 1, "check the disk"),
        (errno.EBUSY, "/some/place", 1, "fix the cause"),
    ],
)
def test_the_line_and_the_exit_code_of_an_error(monkeypatch, refusal, number, path, code, remedy):
    monkeypatch.setattr(preparation, "task_table", Mock(side_effect=OSError(number, os.strerror(number), path)))
    line = refusal("tasks", code=code)
    assert line.startswith(f"reservoir: {path}: " if path else f"reservoir: {os.strerror(number)}")
    assert os.strerror(number) in line and remedy in line


def test_a_reader_of_the_output_that_has_ended_is_no_fault(monkeypatch):
    read_end, write_end = os.pipe()
    os.close(read_end)
    output = os.fdopen(write_end, "w", buffering=1)
    monkeypatch.setattr(sys, "stdout", output)
    assert run(["tasks"]) == 0
    with suppress(BrokenPipeError):
        output.close()


def test_closed_streams_are_no_fault_and_no_file_gets_their_numbers(tmp_path):
    program = (
        "import os, sys; from reservoir_pipelines import __main__ as start; start.open_closed_streams(); "
        "file = open('first', 'w'); assert file.fileno() > 2; assert os.get_inheritable(1); "
        "sys.argv = ['reservoir', 'tasks']; start.main()"
    )
    command = f'{sys.executable} -c "{program}" <&- >&-'
    finished = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize(
    "error",
    [MemoryError("Unable to allocate 9.31 GiB"), torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate")],
)
def test_memory_that_no_stage_can_save_ends_in_one_line(monkeypatch, refusal, error):
    monkeypatch.setattr(preparation, "task_table", Mock(side_effect=error))
    line = refusal("tasks", code=1)
    assert str(error).splitlines()[0] in line and "smaller batches" in line


@pytest.mark.parametrize(
    "error", [OSError("no number"), OSError(errno.EBADF, "Bad file descriptor"), RuntimeError("a defect")]
)
def test_an_error_that_no_path_explains_keeps_its_traceback(monkeypatch, error):
    monkeypatch.setattr(preparation, "task_table", Mock(side_effect=error))
    with pytest.raises(type(error), match=str(error.args[-1])):
        run(["tasks"])


EVIL = "\x1b]0;owned\x07\x1b[2J\u202eabc\u2066\x9b\r\n\ud800\u200b"
HIDDEN = set("\x1b\x07\x9b\r\u202e\u2066\ud800\u200b")


def hostile(text):
    """Return the characters of a text that would control a terminal."""
    return HIDDEN & set(text)


@pytest.mark.parametrize("text", ["plain", "café", "日本語", "नमस्ते", "👩‍👩‍👧", "a\u00a0b", "[red]", "‌می‌خواهم"])
def test_ordinary_names_of_any_language_are_printed_as_they_are(text):
    assert printable(text) == text


def test_control_characters_of_a_terminal_are_escaped():
    assert printable("\x1b[31m\u202e\n\ud800") == r"\x1b[31m\u202e\n\ud800"
    assert printable(EVIL).isprintable()


def test_tables_messages_and_progress_are_escaped(capsys):
    rows = [(EVIL, 1), ("[bold red]x[/]", EVIL)]
    print_shown(ResultTable((*texts(EVIL), *numbers(EVIL)), rows, EVIL))
    notify(EVIL + " [red]")
    out, error = capsys.readouterr()
    assert not hostile(out + error)
    assert len(out.splitlines()) == 6  # a title, the headings and their rule, two rows, and a blank line
    assert "[bold red]x[/]" in out and "[red]" in error
    assert len(error.splitlines()) == 1


def test_json_is_faithful_and_ascii(capsys):
    print_json({"label": EVIL})
    out, _ = capsys.readouterr()
    assert out.isascii() and not hostile(out)
    assert json.loads(out)["label"] == EVIL


def test_a_bar_on_a_terminal_shows_names_and_obeys_none(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with meter("[red]{0}\x1b]0;owned\x07", 10) as bar:
        bar.show(5, "{x} [blue]\u202e")
    for text in ("[red]{0}\\x1b]0;owned\\x07", "{x} [blue]\\u202e"):
        assert text in shown.getvalue()
    assert not {"\x07", "\u202e"} & set(shown.getvalue())


def test_commands_print_labels_columns_and_file_names_escaped(tmp_path, call):
    draw, data = np.random.default_rng(0), tmp_path / "rows\x1b[31m\u202e.csv"
    lines = [f"{a:.3f},{b:.3f},{'up' + EVIL[:11] if a + b > 0 else 'down'}" for a, b in draw.normal(size=(80, 2))]
    data.write_text("\n".join(["a,b,label\u202e", *lines]))
    flags = ("--cache", tmp_path / "cache")
    shape = ("--backbone", "mini:n_layer=1,n_embd=16", "--init", "random", "--layers", "final", "--pool", "mean")
    for command in (
        ("extract", data, *flags, *shape, "--label", "label\u202e"),
        ("fit", data, *flags, "--out", tmp_path / "fit\x1b"),
        ("predict", tmp_path / "fit\x1b", data, *flags),
        ("cache", "list", *flags),
        ("extract", tmp_path / "missing\x1b[31m.csv", *flags),
        ("extract", data, *flags, "--backbone\x1b", "x"),
        ("report", *flags),
    ):
        _, out, error = call(*command)
        assert not hostile(out + error), command
        assert "Traceback" not in error


BACKBONE = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"


def test_estimators_scale_values_near_1e_40():
    x = (np.random.default_rng(0).normal(size=(90, 6, 2)) * 1e-40).astype(np.float32)
    y = x[:, :, 0].mean(axis=1) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = ReservoirClassifier(backbone=BACKBONE, init="random", layers="embed", pool="mean").fit(x, y)
    assert classifier.score(x, y) > 0.8


def test_numbers_that_json_does_not_have_become_null():
    values = {"a": [float("nan"), 1.0], "b": (float("inf"), -float("inf")), "c": np.float64("nan")}
    assert as_json(values) == {"a": [None, 1.0], "b": [None, None], "c": None}


FOLDERS = os.pathsep.join(str(Path(__file__).resolve().parents[2] / part) for part in ("", "cache", "pipelines"))


def write_labelled(path, names, rows=60):
    """Write sequences of classes with these names; the first half of the classes has a lower mean than the second."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 6, 2)).astype(np.float32)
    x[rows // 2 :] += 2
    np.savez(path, x=x, y=np.array(names)[np.arange(rows) // (rows // len(names))])
    return path


def test_labels_that_are_no_formulas_are_drawn_and_the_readout_is_saved(tmp_path, call, painted):
    data = write_labelled(tmp_path / "rows.npz", ["plain", "$x_{$", "\ud800", "\x1b[31m"])
    flags = ("--cache", tmp_path / "cache", "--backbone", "mini:n_layer=1,n_embd=16", "--init", "random")
    code, _, error = call("extract", data, *flags, "--layers", "final", "--pool", "mean")
    assert code == 0, error
    code, out, error = call("fit", data, "--cache", tmp_path / "cache", "--out", tmp_path / "fit")
    assert (code, "Traceback" in error, "could not be drawn" in error) == (0, False, False), error
    assert str(tmp_path / "fit" / "readout.json") in out
    assert {"readout.json", "sweep.png", "confusion.png"} <= {file.name for file in (tmp_path / "fit").iterdir()}


def test_a_plot_that_fails_is_one_line_and_the_readout_is_saved(tmp_path, capsys, painted, monkeypatch):
    from matplotlib.figure import Figure

    data = write_labelled(tmp_path / "rows.npz", ["a", "b"])
    shape = {"backbone": "mini:n_layer=1,n_embd=16", "init": "random", "layers": "final", "pool": "mean"}
    features = extract(str(data), cache=tmp_path / "cache", **shape)
    monkeypatch.setattr(Figure, "savefig", Mock(side_effect=ValueError("no ink\nat all")))
    capsys.readouterr()
    found = fit(features, out=tmp_path / "fit")
    assert found.saved.is_file() and found.best.test_score > 0.8
    warned = [line for line in capsys.readouterr().err.splitlines() if "could not be drawn" in line]
    names = ("sweep.png", "confusion.png")
    assert [f"{tmp_path / 'fit' / name}: the plot could not be drawn (no ink at all)" for name in names] == [
        line.partition(";")[0] for line in warned
    ]
    assert run(["explain", str(tmp_path / "fit"), str(data)]) == 0
    assert capsys.readouterr().out.startswith("all scores in logits")  # and names no plot


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from reservoir_pipelines.plots import plot_deviations
plot_deviations(Path(sys.argv[1]), {"a.weight": np.ones(3)}, "a title")
"""
HARMFUL = """
text.usetex: True
text.latex.preamble: \\\\input{evil}
backend: module://evil
font.size: 60
axes.prop_cycle: cycler('color', [open('read', 'w') and 'r'])
"""


@pytest.mark.parametrize("how", ["file", "variable"])
def test_settings_of_matplotlib_from_outside_change_no_plot_and_run_nothing(how, tmp_path):
    (tmp_path / "evil.py").write_text("open('imported', 'w')")
    latex = tmp_path / "bin" / "latex"
    latex.parent.mkdir()
    latex.write_text(f"#!/bin/sh\ntouch {tmp_path}/latex-ran\nexit 1\n")
    latex.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": FOLDERS, "PATH": f"{latex.parent}{os.pathsep}{os.environ['PATH']}"}
    expected = tmp_path / "elsewhere.png"
    subprocess.run([sys.executable, "-P", "-c", SCRIPT, expected], check=True, env=env, cwd=latex.parent)
    if how == "file":
        (tmp_path / "matplotlibrc").write_text(HARMFUL)
    else:
        (tmp_path / "settings").write_text(HARMFUL.replace("backend", "# backend"))
        env |= {"MPLBACKEND": "module://evil", "MATPLOTLIBRC": str(tmp_path / "settings")}
    drawn = tmp_path / "drawn.png"
    subprocess.run([sys.executable, "-P", "-c", SCRIPT, drawn], env=env, cwd=tmp_path, check=True)
    assert drawn.read_bytes() == expected.read_bytes()
    assert not {"latex-ran", "imported", "read"} & {file.name for file in tmp_path.iterdir()}


def test_settings_of_matplotlib_that_are_no_text_are_named(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")
    command = [sys.executable, "-P", "-c", SCRIPT, tmp_path / "drawn.png"]
    env = {**os.environ, "PYTHONPATH": FOLDERS}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "InputError: matplotlibrc" in done.stderr.splitlines()[-1]


# Child processes import nothing from the current folder, end when the command is killed, and end on Ctrl-C.


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
    [
        pytest.param(SLEEP_IN_CELLS, ("reproduce", "figure6", "--workers", "2"), 2, id="cells", marks=pytest.mark.slow),
        pytest.param(SLEEP_IN_PIECES, (), 3, id="pool"),
    ],
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
