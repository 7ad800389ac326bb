"""A picture that cannot be drawn costs no result, and nothing in the current folder decides how pictures are drawn."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reservoir_pipelines import extract, fit
from reservoir_pipelines.plots import plot_confusion, plot_deviations, plot_sweep

FOLDERS = os.pathsep.join(str(Path(__file__).resolve().parents[2] / part) for part in ("", "cache", "pipelines"))


def write_labelled(path, names, rows=60):
    """Write sequences of two classes with these names, which their mean tells apart."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 6, 2)).astype(np.float32)
    x[rows // 2 :] += 2
    np.savez(path, x=x, y=np.array(names)[np.arange(rows) // (rows // 2)])
    return path


@pytest.mark.parametrize("name", ["$x_{$", "\ud800", "\x1b[31m"])
def test_labels_that_are_no_formulas_are_drawn_and_the_readout_is_saved(name, tmp_path, call, painted):
    data = write_labelled(tmp_path / "rows.npz", ["plain", name])
    flags = ("--cache", tmp_path / "cache", "--backbone", "mini:n_layer=1,n_embd=16", "--init", "random")
    code, _, error = call("extract", data, *flags, "--layers", "final", "--pool", "mean")
    assert code == 0, error
    code, out, error = call("fit", data, "--cache", tmp_path / "cache", "--out", tmp_path / "fit")
    assert (code, "Traceback" in error, "could not be drawn" in error) == (0, False, False), error
    assert str(tmp_path / "fit" / "readout.json") in out
    assert {"readout.json", "sweep.png", "confusion.png"} <= {file.name for file in (tmp_path / "fit").iterdir()}


def test_a_picture_that_fails_is_one_line_and_the_readout_is_saved(tmp_path, capsys, monkeypatch):
    from matplotlib.figure import Figure

    def fail(*_, **__):
        raise ValueError("no ink\nat all")

    data = write_labelled(tmp_path / "rows.npz", ["a", "b"])
    shape = {"backbone": "mini:n_layer=1,n_embd=16", "init": "random", "layers": "final", "pool": "mean"}
    features = extract(str(data), cache=tmp_path / "cache", **shape)
    monkeypatch.setattr(Figure, "savefig", fail)
    capsys.readouterr()
    found = fit(features, out=tmp_path / "fit")
    assert found.saved.is_file() and found.best.test_score > 0.8
    warned = [line for line in capsys.readouterr().err.splitlines() if "could not be drawn" in line]
    names = ("sweep.png", "confusion.png")
    assert [f"{tmp_path / 'fit' / name}: the picture could not be drawn (no ink at all)" for name in names] == [
        line.partition(";")[0] for line in warned
    ]


def test_no_older_picture_stays_where_one_fails(tmp_path):
    path = tmp_path / "sweep.png"
    path.write_bytes(b"of another fit")
    plot_sweep(path, [], [], np.zeros((0, 0)), (0, 0), None, metric="accuracy", title="nothing")
    assert not path.exists()


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
def test_no_settings_of_matplotlib_in_the_current_folder_are_obeyed(how, tmp_path):
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
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, drawn], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert drawn.read_bytes() == expected.read_bytes()
    assert not {"latex-ran", "imported", "read"} & {file.name for file in tmp_path.iterdir()}
    assert how == "variable" or done.stderr == ""


def test_pictures_of_foreign_names_are_drawn(tmp_path, painted):
    plot_deviations(tmp_path / "names.png", {"$_{.weight": np.ones(2), "\udcff.bias": np.ones(2)}, "\x00 $^$")
    assert (tmp_path / "names.png").stat().st_size > 2000
    plot_confusion(tmp_path / "none.png", None, "a regression")
    assert not (tmp_path / "none.png").exists()
