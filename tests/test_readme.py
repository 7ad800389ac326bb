"""Every command and every program in the README runs as it stands there."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np

from tests.reservoir.models import save_with_tokenizer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.M | re.S)


def commands(text):
    return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]


def test_every_command_and_program_runs(cache, mnist_files, tmp_path, monkeypatch, capsys):
    from reservoir_pipelines.cli import run

    monkeypatch.chdir(tmp_path)
    words = np.random.default_rng(0).choice(["one", "frozen", "map", "of", "any", "sequence"], 6000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    model = save_with_tokenizer("bert", tmp_path / "model")
    places = {"DIR": str(mnist_files), "TEXT": "text.txt", "MODEL": str(model)}
    ran = 0
    for language, text in BLOCKS:
        if language == "python":
            exec(compile(text, "README.md", "exec"), {"__name__": "readme"})
            ran += 1
        for command in commands(text) if language == "sh" else ():
            if command.startswith("reservoir "):
                arguments = [places.get(a, a) for a in shlex.split(command)[1:]]
                assert run(arguments) == 0, (command, capsys.readouterr().err)
                ran += 1
    assert ran >= 16
    assert len(np.load("new.npz")["x"]) == 3


def test_the_make_targets_it_names_exist_and_run_the_main_job():
    makes = [c for language, text in BLOCKS if language == "sh" for c in commands(text) if c.startswith("make ")]
    assert makes == ["make demo", "make test"]
    for command in makes:
        done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if command == "make demo":
            assert "reservoir extract digits" in done.stdout
            assert "reservoir fit digits" in done.stdout
            assert "reservoir report" in done.stdout


def test_files_it_links_to_are_there():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).is_file(), target
