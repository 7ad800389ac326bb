"""Each table of RESULTS.md comes from its command, and numbers on other pages agree with it."""

import importlib.util
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from reservoir_pipelines.files import read_checked, write_checked

from reservoir.tasks import valid_is_test

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other


def script(name):
    """Return a script of the folder benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results():
    return script("results")


@pytest.fixture(scope="module")
def reproductions():
    return script("reproductions")


def test_every_table_has_a_command_and_marks_around_it(results):
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


def test_other_pages_cite_numbers_of_the_results(results):
    readme = (ROOT / "README.md").read_text()
    native, in_float32 = results.parsed(results.block("digits"))
    assert f"In float32 the test accuracy on the digits is {in_float32['test']}%" in " ".join(readme.split())
    assert f"{native['valid']}%  {native['test']}%" in readme
    mean = next(row for row in results.parsed(results.block("series")) if row["set"] == "mean")
    text = " ".join((ROOT / "docs" / "comparison.md").read_text().split())
    default, mini, hydra, raw = (mean[k] for k in ("default", "MiniRocket", "MultiRocket-Hydra", "raw ridge"))
    assert f"a mean accuracy of {default}, MiniRocket {mini}, MultiRocket-Hydra {hydra}," in text
    assert f"and a ridge on the raw values {raw}" in text


def test_finished_cells_name_their_versions_and_no_folder_of_a_machine():
    for path in (ROOT / "benchmarks" / "reproductions").glob("*/cells/*.json"):
        cell = read_checked(path)
        assert not re.search(r"""["' =]/""", path.read_text()), path
        assert cell["made_with"]["torch"] and cell["commands"] and cell["cpu_seconds"] > 0


def test_pages_and_tables_are_what_their_finished_cells_give(tmp_path, reproductions):
    cells = tmp_path / "cells"
    shutil.copytree(ROOT / reproductions.CELLS, cells)
    changed = reproductions.changes(ROOT, cells)
    assert [str(path) for path in changed] == [], "run make reproductions"
    numbers = reproductions.save_tables(cells, tomllib.loads((ROOT / reproductions.SETTINGS).read_text()))
    assert [picture.path for picture in reproductions.pictures(cells, numbers) if not picture.is_current(ROOT)] == []
    # A cell with another number changes the page and the sentence that names it.
    key = read_checked(cells / "day" / "tables" / "table-xor.json")["rows"][0]["spots"][1]["cells"][0][0]
    path = cells / "day" / "cells" / f"{key}.json"
    cell = read_checked(path)
    cell["values"]["test_score"] = 0.7345
    write_checked(path, cell)
    changed = reproductions.changes(ROOT, cells)
    assert {*changed} == {reproductions.PAGE, reproductions.LEADERBOARD, Path("docs/log.md")}
    assert "| 64.3% | 73.5% (64.4% to 64.7%) |" in changed[Path("docs/log.md")]


def test_a_sentence_gets_its_numbers_even_where_a_line_breaks_in_it(reproductions):
    numbers = SimpleNamespace(text={"a": "97.1", "b": "2,493"}.get)
    page = "| x | 5 |\nIt has 96.9%\n  after 2,500\nsteps.\n"
    filled = reproductions.fill_sentence(page, "It has {a}% after {b} steps.", numbers, "a.md")
    assert filled == page.replace("96.9", "97.1").replace("2,500", "2,493")
    for sentence in ("It had {a}%", "{a}"):
        with pytest.raises(SystemExit, match=r"a\.md: \d sentences like"):
            reproductions.fill_sentence(page, sentence, numbers, "a.md")


def test_no_score_of_a_finished_training_was_chosen_on_its_test_rows():
    for path in (ROOT / "benchmarks" / "reproductions").glob("*/cells/*.json"):
        cell = read_checked(path)
        if cell["stage"] == "train" and valid_is_test(cell["task"], cell["settings"]):
            values = cell["values"]
            assert values["best_step"] == values["steps"], path
            assert values["test_score"] == values["validations"][-1][1], path
