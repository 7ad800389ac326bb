"""The program that measures a GPU: a dry run on the CPU, its continuation, and the tables of its page."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
STAGES = [
    "ceilings",
    "precisions",
    "extract",
    "training",
    "fit",
    "headline",
]  # the others start programs that other tests run


@pytest.fixture
def call(monkeypatch):
    """Return a function that runs the program, whose stages run in this process, and returns the stages that ran."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("gpu_evidence", FOLDER / "gpu_evidence.py")
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_evidence", program)  # its dataclasses look their module up
    spec.loader.exec_module(program)
    ran = []

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpu_evidence.py", *map(str, arguments)])
        program.main()
        return ran

    def run_stage(command, limit):
        ran.append(command[command.index("--stage") + 1])
        run(*command[2:])
        return "finished"

    monkeypatch.setattr(program, "run_limited", run_stage)
    return run


def test_a_dry_run_measures_everything_once_and_writes_its_tables(call, tmp_path):
    arguments = ("--out", tmp_path / "evidence", "--scale", "smoke", "--only", ",".join(STAGES))
    assert call(*arguments) == STAGES
    assert call(*arguments) == STAGES  # nothing runs again
    records = [json.loads(line) for line in (tmp_path / "evidence" / "results.jsonl").read_text().splitlines()]
    assert [r["stage"] for r in records if r["measurement"] == "finished"] == STAGES

    page, marks = (
        tmp_path / "gpu.md",
        [f"<!-- {words} -->" for words in ("tables of benchmarks/gpu_evidence.py", "end of these tables")],
    )
    page.write_text(f"Before.\n\n{marks[0]}\nold\n{marks[1]}\nAfter.\n")
    call("--out", tmp_path / "evidence", "--write", page)
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old" not in text
    values = {r["measurement"]: r for r in records}
    assert f"| {values['8 tokens, 4 rows, ordinary']['steps_per_second']:.1f} |" in text
    assert f"| {values['digits']['test_score']:.1%} |" in text
    for name in ("drain", "reading of a column", "moments of a column", "systems of 64 columns, on the host"):
        assert f"| {name} | {values[name]['seconds']:.2f} |" in text
    assert 0 == values["float32"]["deviation"] < values["bfloat16"]["deviation"]
    of_all = values["bfloat16-all"]
    assert f"| bfloat16-all | {of_all['rows_per_second']:,.0f} | {of_all['deviation']:.3f} |" in text
    of_fit = values["fit of embed/mean"]
    assert of_fit["rows"] == 400 and f"from one of 400 rows | {of_fit['seconds'] * 33 * 2500:.0f} | 120 |" in text
    for place, speed in values["all layers, 8 tokens"]["by_place"].items():
        where = "memory" if place == "/dev/shm" else "disk"
        assert f"| all layers, 8 tokens | {where} | {speed['rows_per_second']:,.0f} |" in text


def test_a_line_that_was_cut_off_is_measured_again(call, tmp_path):
    arguments = ("--out", tmp_path, "--scale", "smoke", "--only", "ceilings")
    call(*arguments)
    file = tmp_path / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][:10])
    assert call(*arguments) == ["ceilings", "ceilings"]
    assert json.loads(file.read_text().splitlines()[-1])["measurement"] == "finished"


def test_stages_without_their_data_are_left_out(call, tmp_path):
    assert call("--out", tmp_path, "--only", "science,pretrained,headline") == []
