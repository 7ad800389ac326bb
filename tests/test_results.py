"""Every table of RESULTS.md has its command and is checked against it; what other pages cite is what stands there."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.processes import COMMAND, Child

ROOT = Path(__file__).resolve().parents[1]
SMALL = """
[one]
minutes = 1

[[one.rows]]
name = "bits"
extract = "bit-xor --backbone gpt2:n_layer=1,n_embd=16,n_head=2 --param train_rows=40 --param valid_rows=20 \
--param test_rows=20 --compute float32 --layers final --pool last"

[two]
script = "printed.py 0.50"
minutes = 1

[clock]
script = "printed.py 1"
minutes = 1
timing = true

[away]
script = "printed.py TEXT"
packages = ["no_such_package"]
minutes = 1
"""


@pytest.fixture(scope="module")
def results():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_has_its_command_and_stands_between_its_marks(results):
    text, tables = results.RESULTS.read_text(), tomllib.loads(results.TABLES.read_text())
    for name, table in tables.items():
        block = results.block(name)
        assert text.count(f"<!-- {name} -->\n") == 1 and ("|--" in block or "```text" in block), name
        assert all(command in block for command in results.commands(table)), name
        assert re.search(r"\n20\d\d-\d\d-\d\d, .*\n$", block), name
    prose = re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", "", text, flags=re.S)
    assert "|" not in prose and "```" not in prose and "<!--" not in prose
    assert re.findall(r"(?<![\w.=])\d*\.\d+%?|\d+%", re.sub(r"`[^`]*`|\]\(.*?\)", "", prose)) == [], (
        "a number without a command"
    )
    assert "depends on the instruction set" in results.__doc__


def test_a_table_agrees_within_its_last_digit_and_no_further(results):
    table = "| task | test |\n|---|--:|\n| a | **90.1** |\n| b | `x` |\n"
    assert results.differences(table, table.replace("**90.1**", "90.2").replace("`x`", "`y`")) == []
    assert len(results.differences(table, table.replace("90.1", "90.3"))) == 1
    assert len(results.differences(table, table.replace("| b |", "| c |"))) == 2
    with_kind = "| task | test | instructions |\n|---|--:|---|\n| a | {} | {} |\n"
    assert results.differences(with_kind.format(1, "bfloat16"), with_kind.format(2, "float32")) == []
    assert len(results.differences(with_kind.format(1, "any"), with_kind.format(3, "any"))) == 1


def test_a_table_is_written_and_checked_by_its_commands(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RESERVOIR_CACHE", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in (("HERE", tmp_path), ("TABLES", tmp_path / "t.toml"), ("RESULTS", tmp_path / "RESULTS.md")):
        monkeypatch.setattr(results, name, value)
    results.TABLES.write_text(SMALL)
    marks = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in tomllib.loads(SMALL))
    results.RESULTS.write_text(f"before\n{marks}after\n")
    script = tmp_path / "printed.py"
    script.write_text("import sys\nprint('| what | score |\\n|---|--:|\\n| it |', sys.argv[1], '|')\n")

    separate = results._run

    def forked(words, places):
        if words[0] != "-m":
            return separate(words, places)
        code, out, err = Child(COMMAND, *words[2:]).ended()
        assert code == 0, err
        return out

    monkeypatch.setattr(results, "_run", forked)  # spares each command its imports

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["results.py", *words])
        return results.main(), capsys.readouterr().out

    assert run("--check")[0] == 1, "nothing is written yet"
    code, message = run("--write")
    assert code == 0 and "one, two, clock: about 3 minutes" in message
    assert "away: left out, needs TEXT=PATH, no_such_package" in message
    text = results.RESULTS.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "`final/last, ridge" in text
    assert "| it | 0.50 |\n\n    python benchmarks/printed.py 0.50\n\n20" in text
    code, message = run("--check")
    assert code == 0 and "one: agrees" in message and "two: agrees" in message
    assert "clock:" not in message
    script.write_text(script.read_text().replace("sys.argv[1]", "'0.53'"))
    code, message = run("--check", "--only", "two")
    assert code == 1 and "two: DIFFERS\n  it, score: 0.50 is written, 0.53 is found" in message
    script.write_text("raise SystemExit(3)\n")
    code, message = run("--write", "--only", "two")
    assert code == 1 and "ended with 3" in message and results.RESULTS.read_text() == text


def test_other_pages_cite_what_stands_there(results):
    full_size = results.parsed(results.block("full-size"))
    best = {row["task"].split(",")[0]: row for row in sorted(full_size, key=lambda row: float(row["test"]))}
    rows = results.parsed(results.block("output-only")) + [row for row in full_size if row in best.values()]
    readme = (ROOT / "README.md").read_text()
    native, in_float32 = results.parsed(results.block("digits"))
    assert f"In float32 the test accuracy of the demo is {in_float32['test']}%" in " ".join(readme.split())
    assert f"{native['valid']}%  {native['test']}%" in readme
    cited = results.parsed(readme.partition("## How far it goes")[2].partition("\n## ")[0])
    numbers = [[row[head] for head in ("train rows", "test", "raw input", "paper")] for row in rows]
    assert [[cell.strip("%") for cell in list(row.values())[1:]] for row in cited] == numbers
    mean = next(row for row in results.parsed(results.block("series")) if row["set"] == "mean")
    text = " ".join((ROOT / "docs" / "comparison.md").read_text().split())
    default, mini, hydra, raw = (mean[k] for k in ("default", "MiniRocket", "MultiRocket-Hydra", "raw ridge"))
    assert f"a mean accuracy of {default}, MiniRocket {mini}, MultiRocket-Hydra {hydra}," in text
    assert f"and a ridge on the raw values {raw}" in text
