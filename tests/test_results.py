"""The tables of RESULTS.md are what their rows make of them, and a row is checked against its commands."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def results():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("results", HERE / "results.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_rows(results):
    text, rows = results.RESULTS.read_text(), tomllib.loads(results.ROWS.read_text())["row"]
    assert results.rendered(text, rows) == text
    for row in rows:
        assert row["cost"] in ("cheap", "long") and f"reservoir extract {row['extract']}" in text
    assert "depend on the instruction set" in results.__doc__


def test_a_row_agrees_with_its_commands_and_no_other(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "ROWS", tmp_path / "results.toml")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    few = "--param train_rows=40 --param valid_rows=20 --param test_rows=20"
    extract = f"bit-xor --backbone gpt2:n_layer=1,n_embd=16,n_head=2 {few} --compute float32 --layers final --pool last"
    row = {"table": "one", "name": "bits", "rows": 40, "extract": extract, "cost": "cheap", "compute": "float32"}
    results.RESULTS.write_text("<!-- one -->\n<!-- end -->\n")
    results._write([row | {"best": "", "valid": 0.0, "test": 0.0, "raw": 0.0}])
    monkeypatch.setattr(sys, "argv", ["results.py", "--check", "--cache", str(tmp_path / "cache")])
    assert results.main() == 1 and "DIFFERS" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--write"])
    results.main()
    assert "`final/last, ridge" in results.RESULTS.read_text()
    monkeypatch.setattr(sys, "argv", sys.argv[:-1])
    capsys.readouterr()
    assert results.main() == 0 and "bits (instructions: any): agrees" in capsys.readouterr().out
