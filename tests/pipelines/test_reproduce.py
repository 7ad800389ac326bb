"""Reproductions: recipes with the paper's numbers, cells that run once, and the page that reports them."""

import base64
import copy
import html
import json
import os
import re
import shlex
import shutil
import signal
import tomllib
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reservoir_cache import last_entry
from reservoir_pipelines import extract, report, reproduce
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting.results import SUMMARY, Result
from reservoir_pipelines.paper import reproduce as module
from reservoir_pipelines.paper.claims import MeanEstimate, interval_of, size_of_cell, verdict_on
from reservoir_pipelines.paper.page import _draw_costs, leave_out_answered_claims
from reservoir_pipelines.paper.recipe import GROUP_OF_OPTION, LARGE, SCALES, Cell, load_recipe, recipe_names
from reservoir_pipelines.paper.reproduction_folder import ReproductionFolder, _bounds
from reservoir_pipelines.paper.stages import _pretrain, estimate
from reservoir_pipelines.plots import PagePlot, draw_confusion, shorten_all
from reservoir_pipelines.reports.views import _read_sweep, fit_values

from reservoir.devices import choose_device
from reservoir.errors import InputError
from reservoir.options import ClusterOptions, PlaceOptions, ReproduceOptions, TaskOptions
from reservoir.readouts.evaluation import accuracy_interval
from tests.faults.damage import OTHER_TYPES, paths, removed, replaced, toml, value_at
from tests.helpers import Child, outcome

pytestmark = pytest.mark.usefixtures("few_bits")
SMALL = """
title = "a table of mine"
columns = ["bit-xor"]
settings = { backbone = "mini:n_layer=1,n_embd=16,n_head=2", depth = "", init = "random", steps = 3, eval_every = 3 }
"""
ROWS = """
rows = [
    { name = "FPT", cell = "fpt", published = [100] },
    { name = "output", cell = "output", published = ["-"] },
    { name = "ratio", cell = ["fpt", "output"], measure = "trained" },
]
"""


def recipe(folder, text, name="my"):
    path = folder / f"{name}.toml"
    path.write_text(SMALL + text)
    return str(path)


def spots(table):
    return {row["name"]: row["spots"][0] for row in table["rows"]}


def all_spots(*arguments, **options):
    return [spot for row in load_recipe(*arguments, **options).table["rows"] for spot in row["spots"] if spot]


@pytest.fixture
def runs(monkeypatch):
    """Return the keys of the cells in the order in which they run."""
    from reservoir_pipelines.paper import stages

    ran, run_cell = [], stages.run_cell

    def counted(cell, *arguments):
        ran.append(cell.key)
        return run_cell(cell, *arguments)

    monkeypatch.setattr(stages, "run_cell", counted)
    return ran


def test_a_cell_records_the_device_that_the_user_chose(tmp_path, monkeypatch):
    from reservoir_pipelines.paper import stages

    def run_stage(task, settings, path):
        return stages.CellRun(commands=[], path=path, bytes=0, values={"device": settings.get("device")})

    monkeypatch.setitem(stages._RUNNERS, "fit", run_stage)
    cell = Cell("fit", "bit-xor", {})
    # The number of the device tells it from the one that "auto" chooses.
    result = stages.run_cell(cell, tmp_path, {}, {"device": "cpu:0"})
    assert result["made_with"]["device"] == result["values"]["device"] == "cpu:0"
    result = stages.run_cell(cell, tmp_path, {}, {})
    assert result["made_with"]["device"] == str(choose_device("auto"))


def test_shared_cells_run_once_and_finished_ones_never_again(cache, tmp_path, runs):
    mine = recipe(tmp_path, ROWS)
    other = recipe(tmp_path, 'rows = [{ name = "FPT too", cell = "fpt" }]', "other")
    done = reproduce([mine, other])
    assert (done.ran, done.reused, len(runs)) == (2, 0, 2)
    table = spots(done.tables[0])
    assert table["FPT"]["mean"] == spots(done.tables[1])["FPT too"]["mean"]
    assert table["ratio"]["mean"] > 10
    assert (table["FPT"]["published"], table["output"]["published"]) == (100, "-")
    again = reproduce([mine, other])
    assert (again.ran, again.reused, len(runs), again.tables) == (0, 2, 2, done.tables)


def test_a_cell_of_files_that_have_changed_runs_again(cache, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = tmp_path / "here" / "rows.csv"

    def write(labels):
        rows = [f"{n % 7 / 4},{n % 5 / 4},{n % 3 / 4},{labels[n % 2]},{n % 12}" for n in range(60)]
        data.write_text("\n".join(["u,v,w,label,who", *rows]))

    write("ab")
    mine = recipe(tmp_path, 'rows = [{ name = "raw", cell = "raw", settings = { group = "who" } }]')
    table = Path(mine).read_text()
    Path(mine).write_text(table.replace('columns = ["bit-xor"]', 'columns = ["one"]\ntask = "rows.csv"'))
    done = reproduce([mine])
    assert (done.ran, done.failed) == (1, {})
    # Two groups of test rows are too few for an interval.
    assert spots(done.tables[0])["raw"]["interval"] is None and spots(done.tables[0])["raw"]["rows"]
    assert report(done.folder).page.is_file()
    assert reproduce([mine]).ran == 0
    write("bc")
    os.utime(data, ns=(1, 1))  # also if it is older than the result
    assert reproduce([mine]).ran == 1


def test_files_named_like_other_settings_do_not_count(cache, tmp_path, monkeypatch):
    mine = recipe(tmp_path, ROWS)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("output", "random", "bit-xor"):
        Path(name).write_text("no setting")
    # A run writes the folder of the results while it is stamped.
    done = reproduce([mine], out=Path("mini"))
    assert (done.ran, done.failed) == (2, {})
    Path("output").write_text("other content")
    assert reproduce([mine], out=Path("mini")).ran == 0
    # Older versions stamped these names, too.
    for path in (done.folder / "cells").glob("*.json"):
        result = read_checked(path)
        assert result["files"] == {}
        write_checked(path, result | {"files": {"output": [1, 1]}})
    assert reproduce([mine], out=Path("mini")).ran == 0


def test_a_changed_corpus_is_pretrained_again_and_its_old_number_is_not_shown(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2", "steps": 2, "eval_every": 2, "corpus": "t.txt"}
    cell = Cell("pretrain", None, settings | {"batch_tokens": 2400, "resume": True})
    folder = ReproductionFolder(tmp_path / "results")
    folder.create()
    spot = {"measure": "test_bits", "reason": "", "cells": [[cell.key]]}

    def run(text):
        Path("t.txt").write_text(text * 12_000)
        changed = folder._number(spot, [cell.key])
        module.run_cells([cell], folder, {"device": "cpu"}, 0.0)
        return changed, folder._number(spot, [cell.key])

    before, first = run("a b ")
    assert (before.value, before.reason) == (None, "not run yet") and first.value
    before, second = run("abcdefg")
    assert before.value is None and "its files have changed" in before.reason
    assert second.value not in (None, first.value)
    # In another working folder, the corpus is not found, and the result stays valid.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert folder.is_complete(cell) and folder._number(spot, [cell.key]) == second


def test_a_run_with_another_setting_than_its_corpus_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("a b " * 12_000)
    settings = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2", "steps": 2, "eval_every": 2, "corpus": "t.txt"}
    settings |= {"batch_tokens": 2400, "device": "cpu"}
    _pretrain("", {**settings, "compute": "float32"}, tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="has a run with compute"):
        _pretrain("", {**settings, "compute": "bfloat16"}, tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_only_removes_no_number_from_the_saved_table(cache, tmp_path):
    mine = recipe(tmp_path, ROWS)
    done = reproduce([mine], only="output")
    assert [row["name"] for row in done.tables[0]["rows"]] == ["output"]
    reproduce([mine], only="FPT")
    saved = spots(ReproductionFolder(done.folder).tables()[0])
    assert saved["FPT"]["mean"] and saved["output"]["mean"] and saved["ratio"]["mean"]


def test_cells_do_not_change_which_extraction_is_the_last(cache, tmp_path):
    mine = extract("bit-xor", init="random", depth=1, layers="final", limit=60).entry
    done = reproduce(recipe(tmp_path, 'rows = [{ name = "last", cell = "readout-last", settings = { limit = 60 } }]'))
    assert (done.ran, done.failed) == (1, {})
    assert report(done.folder).page.is_file()  # a single folder is accepted, too
    assert len(list(mine.parent.iterdir())) == 2 and last_entry(cache, "bit-xor").path == mine


def test_results_of_another_format_count_as_not_run(cache, tmp_path, call, refusal, runs):
    mine = recipe(tmp_path, ROWS)
    call("reproduce", mine)
    kept = ReproductionFolder(cache / "reproductions" / "smoke")
    for path in kept.path.glob("*/*.json"):
        values = read_checked(path)
        del values["format"]
        write_checked(path, values)
    assert kept.results() == kept.tables() == []
    err = refusal("report", kept.path)
    assert f"{kept.path}: no table of this version of reservoir; run" in err
    assert reproduce([mine]).ran == 2 and call("report", kept.path)[0] == 0


def test_a_damaged_reproduction_is_left_out_of_the_report(cache, tmp_path, capsys):
    done = reproduce(recipe(tmp_path, ROWS))
    damaged = cache / "reproductions" / "damaged"
    shutil.copytree(done.folder, damaged)
    for cell in damaged.glob("cells/*.json"):
        cell.write_text('{"format": 0, "folder": "x"}')
    assert report([], cache=cache, out=tmp_path / "page.html").parts == 1
    assert "skipping one part of the page" in capsys.readouterr().err


def test_the_best_of_several_cells_is_the_one_with_the_best_validation_score(cache, tmp_path):
    row = 'rows = [{ name = "best", best = ["output", "full"] }, { name = "output", cell = "output" }]'
    done = reproduce([recipe(tmp_path, row)])
    results = {result["settings"].get("train"): result for result in ReproductionFolder(done.folder).results()}
    assert len(results) == 2
    for result in results.values():
        result["values"]["valid_score"] = float(result["settings"]["train"] == "output")
        cell = Cell(**{n: result[n] for n in ("stage", "task", "settings")})
        ReproductionFolder(done.folder).save_result(cell.key, result)
    table = spots(ReproductionFolder(done.folder).tables()[0])
    assert table["best"]["mean"] == table["output"]["mean"]
    # A training that diverged before its first validation has no score.
    for train, reason in (("all", ""), ("output", "diverged")):
        result = results[train]
        result["values"]["valid_score"] = None
        cell = Cell(**{n: result[n] for n in ("stage", "task", "settings")})
        ReproductionFolder(done.folder).save_result(cell.key, result)
        best = spots(ReproductionFolder(done.folder).tables()[0])["best"]
        assert (best["mean"], best["reason"]) == (None if reason else table["output"]["mean"], reason)


def test_seeds_give_a_mean_and_a_standard_error(cache, tmp_path):
    done = reproduce([recipe(tmp_path, 'rows = [{ name = "output", cell = "output" }]')], seeds=3)
    kept, spot = ReproductionFolder(done.folder), spots(done.tables[0])["output"]
    assert spot["reason"] == ""
    scores = [100 * kept.result(key)["values"]["test_score"] for (key,) in spot["cells"]]
    mean = sum(scores) / 3
    assert spot["mean"] == pytest.approx(mean)
    assert spot["error"] == pytest.approx((sum((s - mean) ** 2 for s in scores) / 2 / 3) ** 0.5)
    low, high = spot["interval"]
    assert low < mean < high and spot["rows"] == kept.result(spot["cells"][0][0])["values"]["test_rows"] > 10
    assert f"{low:.1f} to {high:.1f}, {spot['rows']:,} rows" in report([done.folder]).page.read_text()
    # A call with fewer seeds removes no finished ones from the saved table.
    (only_one,) = reproduce([tmp_path / "my.toml"], seeds=1).tables
    (saved,) = kept.tables()
    assert spots(only_one)["output"]["seeds"] == 1 and spots(saved)["output"] == spot
    assert saved["keys"] == done.tables[0]["keys"]
    (done.folder / "cells" / f"{spot['cells'][1][0]}.json").unlink()
    (part,) = kept.tables()
    assert spots(part)["output"]["reason"] == "2 of 3 seeds; the others: not run yet"
    (done.folder / "cells" / f"{spot['cells'][2][0]}.json").unlink()
    reproduce([tmp_path / "my.toml"], seeds=1)
    assert spots(kept.tables()[0])["output"]["by_seed"] == spot["by_seed"][:1]


KILLED = """
import sys
from reservoir_pipelines.cli import run
from reservoir_pipelines.paper.reproduction_folder import ReproductionFolder
from tests.faults.rounds import inject
keep = ReproductionFolder.save_result

def kept(self, key, result):
    keep(self, key, result)
    if len(self.results()) == 2:
        inject("os.rename:2", self.path.parents[1])  # a file of the third cell, before it has its name

ReproductionFolder.save_result = kept
sys.exit(run(["reproduce", sys.argv[1]]))
"""


def test_a_reproduction_killed_in_a_cell_continues_without_running_finished_cells_again(cache, tmp_path, runs):
    rows = ", ".join(f'{{ name = "{n}", cell = "output", settings = {{ seed = {n} }} }}' for n in range(6))
    mine = recipe(tmp_path, f"rows = [{rows}]")
    kept = ReproductionFolder(cache / "reproductions" / "smoke")
    assert Child(KILLED, mine).ended()[0] == -signal.SIGKILL
    finished = {result["settings"]["seed"] for result in kept.results()}
    assert len(finished) == 2 and len(list(kept.work.rglob("*.tmp"))) + len(list(cache.rglob("*.tmp"))) > 0
    done = reproduce([mine])
    assert (done.ran, done.reused, dict(done.failed)) == (4, 2, {}) and len(runs) == 4


def test_a_failing_cell_is_marked_and_the_rest_goes_on(cache, tmp_path, call, monkeypatch, runs):
    mine = recipe(tmp_path, 'rows = [{ name = "a", cell = "output" }, { name = "b", cell = "output", task = "mnist" }]')
    code, out, err = call("reproduce", mine)
    assert code == 0 and "Traceback" not in out + err
    assert "no data folder" in out or "--data" in out
    found = ReproductionFolder(cache / "reproductions" / "smoke").tables()[0]
    assert spots(found)["a"]["mean"] is not None
    assert "1 cells failed" in err
    assert "1 finished, 1 failed, 0 not run yet" in report([]).page.read_text()
    assert "--data" in spots(found)["b"]["reason"] and len(runs) == 2
    call("reproduce", mine)
    assert len(runs) == 3  # the failed cell runs again
    # The code says that no cell at all has a result.
    assert call("reproduce", mine, "--only", "b")[0] == 1


def test_a_sweep_is_estimated_as_its_runs(cache, tmp_path):
    rows = [f'{{ name = "{name}", cell = "{name}" }}' for name in ("fpt", "fpt-swept")]
    one, swept = load_recipe(recipe(tmp_path, f"rows = [{', '.join(rows)}]"), "hour").cells
    costs = estimate([one, swept], {"cache": cache})
    assert costs[swept.key].bytes == pytest.approx(3 * costs[one.key].bytes, rel=0.1)


def test_dry_run_above_smoke_estimates_each_cell_and_says_why_one_cannot_run(cache, tmp_path, call, runs, monkeypatch):
    rows = '{ name = "a", cell = "output" }, { name = "b", cell = "output", task = "mnist" }'
    longer = '{ name = "longer", cell = "output", settings = { parameters = { n = 50 } } }'
    mine = recipe(tmp_path, f'rows = [{rows}, {longer}, {{ name = "made", cell = "bit-pretraining" }}]')
    code, out, err = call("reproduce", mine, "--scale", "hour", "--dry-run")
    assert (code, runs) == (0, [])
    lines = [line for line in out.splitlines() if "seed 0" in line]
    assert [" kB" in line for line in lines] == [True, False, True, False] and "not estimated" in lines[3]
    assert "n=50" in lines[2] and "trying train bit-xor n=50" in err
    assert "; 1 without an estimate" in err and "1 of the cells cannot run here: " in err
    assert "--data DIR" in err


def test_cells_that_differ_in_inits_seeds_and_columns_share_a_trial(cache, tmp_path, monkeypatch):
    from reservoir_pipelines.paper import stages

    tried = []

    def trial(cell, _):
        tried.append(cell.settings.get("init"))
        return stages.Cost(reason="no weights") if tried[-1] in ("pretrained", "statistics") else stages.Cost(seconds=2)

    monkeypatch.setattr(stages, "_cost_of_trial", trial)
    inits = ["random", "pretrained", "random-flat", "statistics", "tied"]
    rows = [f'{{ name = "{init}", cell = "readout", settings = {{ init = "{init}" }} }}' for init in inits]
    rows.append('{ name = "raw", cell = "readout", settings = { columns = "embed/last" } }')
    cells = load_recipe(recipe(tmp_path, f"rows = [{', '.join(rows)}]"), "hour", seeds=2).cells
    costs = estimate(cells, {"cache": cache})
    assert len(costs) == 12 and tried == ["pretrained", "statistics", "random", "tied"]
    without_weights = {cell.settings["init"] for cell in cells if costs[cell.key].reason}
    assert without_weights == {"pretrained", "statistics"}


TEN = """
task = "bit-xor"
columns = ["one"]
rows = [
    { name = "fpt", cell = "fpt" },
    { name = "output", cell = "output" },
    { name = "input", cell = "output+input" },
    { name = "cached", cell = "output-cached" },
    { name = "readout", cell = "readout" },
    { name = "last", cell = "readout-last" },
    { name = "raw", cell = "raw" },
    { name = "maps", cell = "attention", measure = "diagonals" },
    { name = "card", cell = "card", measure = "parameters" },
    { name = "bit", cell = "bit", settings = { depth = 1 } },
    { name = "made", cell = "bit-pretraining" },
    { name = "swept", cell = "fpt", settings = { sweep = { batch = [4, 6] } } },
]
"""
KEPT = {
    "fit": "adds_nothing_to baselines classes confusion cost curve extract_seconds fit_seconds layers metric passes "
    "readout recall reliability reused sweep test_interval test_rows test_score tried valid_score",
    "train": "best_step converged_step cost diverged_step groups losses metric passes scored_passes steps swept "
    "test_interval test_rows test_score train_score train_seconds trained valid_score validations",
    "attention": "diagonals layer lines map passes rows strongest_distance",
    "pretrain": "cost steps test_bits test_score train_seconds",
    "backbone": "bias_deviation blocks deviations heads paper_share parameters weight_deviation width",
}


def test_the_command_of_a_cell_gives_its_number(cache, tmp_path, call, monkeypatch):
    small = SMALL.replace('columns = ["bit-xor"]', "").replace("init =", "limit = 60, batch_tokens = 240, init =")
    (tmp_path / "ten.toml").write_text(small + TEN)
    monkeypatch.chdir(tmp_path)
    done = reproduce([str(tmp_path / "ten.toml")])
    assert not done.failed
    assert not [path for path in done.folder.glob("cells/*.json") if str(tmp_path) in path.read_text()]
    kept = ReproductionFolder(done.folder)
    monkeypatch.setenv("RESERVOIR_CACHE", str(tmp_path / "elsewhere"))
    checked, names = 0, {}
    for row, spot in spots(done.tables[0]).items():
        result = kept.result(spot["cells"][0][0])
        for line in result["commands"]:
            code, out, err = call(*shlex.split(line)[1:], "--json")
            assert code == 0, (line, err)
        values, found = result["values"], json.loads(out)
        names[result["stage"]] = " ".join(sorted(values))
        if result["stage"] == "fit":
            assert found["best"]["test_score"] == values["test_score"], row
        elif result["stage"] == "train":
            assert [found[n] == values[n] for n in ("test_score", "train_score", "converged_step")] == 3 * [True], row
            if row == "swept":
                assert values["passes"] == 3 * (4 + 6) and values["scored_passes"] == 3 * values["swept"][0]["batch"]
        elif result["stage"] == "attention":
            assert found["diagonal_strength"] == values["diagonals"]
        elif result["stage"] == "pretrain":
            assert found["test_accuracy"] == values["test_score"]
        else:
            assert found["whole"] == values["parameters"]
            assert found["weight_deviation"] == values["weight_deviation"]
        checked += 1
    assert checked == 12
    bit = [line for line in TEN.splitlines() if "made" not in line and ("{" not in line or '"bit"' in line)]
    (tmp_path / "ten.toml").write_text(small + "\n".join(bit))
    shutil.rmtree(done.folder / "work")  # the weights of a finished model are not in a repository of cells
    assert reproduce([str(tmp_path / "ten.toml")], out=done.folder).ran == 0
    (done.folder / "cells" / f"{spots(done.tables[0])['bit']['cells'][0][0]}.json").unlink()
    assert reproduce([str(tmp_path / "ten.toml")], out=done.folder).ran == 2
    page = report([done.folder]).page.read_text()
    assert "<code>reservoir pretrain bit-memory" in page  # the command of a required cell is on the page, too
    assert "train bit-xor backbone of bit-memory" in page
    assert names == KEPT, "the page reads these; for other names raise FORMAT in reproduction_folder.py"


def test_a_cell_names_paths_below_the_working_folder_relative_to_it_and_no_others(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    commands = [f"reservoir fit {here}/a --data={here}/b /mnt{here}/c"]
    result = {"stage": "fit", "folder": str(here), "values": {}, "commands": commands}
    monkeypatch.chdir(here)
    monkeypatch.setattr("reservoir_pipelines.paper.stages.run_cell", lambda *args: copy.deepcopy(result))
    done = reproduce([recipe(here, ROWS)], cache=tmp_path / "cache")
    cells = [read_checked(path) for path in done.folder.glob("cells/*.json")]
    assert [cell["commands"] for cell in cells] == [[f"reservoir fit a --data=b /mnt{here}/c"]] * 2


def test_cells_are_tasks_of_a_cluster(cache, tmp_path, runs, monkeypatch):
    distributed = pytest.importorskip("distributed")
    mine = recipe(tmp_path, ROWS.replace("]\n", '    { name = "b", cell = "output", task = "mnist" },\n]\n', 1)[1:])
    settings = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(protocol="tcp://", **settings) as cluster:
        done = reproduce([mine], scheduler=cluster.scheduler_address)
    assert (done.ran, len(done.failed), len(runs)) == (2, 1, 3)


def test_a_cluster_runs_cells_that_others_need_first(tmp_path, monkeypatch):
    made = Cell("pretrain", None, {"corpus": "uniform"})
    trained = [Cell("train", "bit-xor", {"backbone": made, "seed": seed}) for seed in range(2)]
    sent = []
    monkeypatch.setattr(module, "map_pieces", lambda work, tasks, **_: sent.append([cell for cell, *_ in tasks]))
    maps = Cell("attention", "bit-xor", {"run": trained[0]})
    cells = [maps, *trained, made]
    module._run(cells, ReproductionFolder(tmp_path), {}, ClusterOptions(scheduler="tcp://somewhere:1"))
    assert sent == [[made], trained, [maps]]


ENDS = ("smoke", "full")  # the scales between them are parsed alike
PAPER = Path(__file__).resolve().parents[3] / "shared" / "reference" / "paper_tables.json"


@pytest.mark.parametrize(
    "scale", [*ENDS, *(pytest.param(scale, marks=pytest.mark.slow) for scale in SCALES if scale not in ENDS)]
)
def test_every_table_and_figure_is_there_with_settings_that_exist(scale):
    assert {f"table{n}" for n in range(1, 23)} | {f"figure{n}" for n in (1, 3, 4, 5, 6)} <= {*recipe_names()}
    keys = {}
    for name in recipe_names():
        recipe = load_recipe(name, scale)
        for cell in recipe.cells:
            assert cell.settings.keys() <= GROUP_OF_OPTION[cell.stage].keys()
            assert (cell.task is None) == (cell.stage in ("pretrain", "backbone"))
            keys.setdefault(cell.key, set()).add(name)
    fpt = {cell.key for cell in load_recipe("table9", scale).cells if cell.settings.get("init") == "pretrained"}
    assert all(len(keys[key]) >= 9 for key in fpt if "table17" in keys[key])  # shared by tables, so that it runs once


def published(name):
    found = {}
    for spot in all_spots(name, "smoke"):
        found.setdefault(spot["row"], []).append(spot["published"])
    return found


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's numbers are not at hand")
def test_every_number_is_the_papers():
    paper = {key.split()[0].partition("_")[0]: value for key, value in json.loads(PAPER.read_text()).items()}
    paper["table15"] = paper["table19"]
    for name in (f"table{number}" for number in range(1, 23) if number not in (10, 14, 17)):
        rows = [row for key, row in paper[name].items() if key not in ("note", "columns", "unit")]
        rows = [list(row.values()) if isinstance(row, dict) else row for row in rows]
        assert [p[: len(row)] for p, row in zip(published(name).values(), rows, strict=False)] == rows, name
    assert published("figure1") == published("table1")
    assert [row[0] for row in published("table14").values()] == list(paper["table14"].values())
    assert published("table17") == {task: paper["table17"][task] for task in ("listops", "cifar10")}
    for task, row in paper["table10"].items():
        ours = {s["row"]: s["published"] for s in all_spots("table10", "smoke") if s["column"] == task}
        assert (ours["output only"], ours["FPT"], ours["Full"]) == (row["output_only"], row["FPT"], row["full"])
        assert ours["speedup per epoch after the first"] == "{} to {}".format(*row["speedup_per_epoch_after_the_first"])


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("cell = 'fpd'", "no cell 'fpd'"),
        ("cel = 'fpt'", "row 'a' has the unknown key 'cel'"),
        ("cell = 'fpt', settings = { stepss = 1 }", "'steps'?"),
        ("cell = 'fpt', measure = 'luck'", "'luck'"),
        ("cell = 'fpt', published = [1, 2]", "2 published"),
        ("cell = 'fpt', at = { mnst = 'output' }", "row 'a', at: no column 'mnst'; did you mean 'mnist'?"),
        ("cell = 'fpt', later = { mnst = 98.5 }", "row 'a', later: no column 'mnst'"),
        ("cell = 'fpt', absent = { mnst = 'no' }", "row 'a', absent: no column 'mnst'"),
        ("3 4", "not readable"),
    ],
)
def test_mistakes_in_a_recipe_are_named(tmp_path, keys, fault):
    (tmp_path / "my.toml").write_text(f"title = 'x'\ncolumns = ['mnist']\nrows = [{{ name = 'a', {keys} }}]")
    with pytest.raises(InputError, match=r"my\.toml") as error:
        load_recipe(str(tmp_path / "my.toml"), "smoke")
    assert fault in str(error.value)
    (tmp_path / "my.toml").write_text("title = 'x'")
    with pytest.raises(InputError, match=r"my\.toml: no rows; add rows"):
        load_recipe(str(tmp_path / "my.toml"), "smoke")


WHOLE = """
title = "t"
note = "n"
source = "ours"
task = "bit-xor"
drawn = "costs"
cell = "fpt"
measure = "test_score"
settings = { init = "random", steps = 3, dropout = 0.5, resume = true, parameters = { n = 5 } }
smoke = { limit = 60 }
columns = [{ name = "a", measure = "test_score", settings = { seed = 1 } }, "bit-memory"]
rows = [
    { name = "r", published = [1, "-"], later = { a = 3 }, at = { a = "output" }, tasks = { bit-xor = { batch = 2 } } },
    { name = "b", best = ["output", "full"], absent = { a = "no" } },
    { name = "c", cell = ["output", "full"], reason = "why", smoke = { steps = 2 } },
    { name = "d", cell = "bit", settings = { sweep = { dropout = [0.5] } } },
]
claims = [
    { says = "s", source = "ours", more = ["r", "a"], than = [["b", "bit-memory"]], within = 2, scales = ["smoke"] },
    { says = "s", near = ["r", "a"], by = 3, within = 1, unseen = "no", unchecked = { day = "u" } },
]
"""
REQUIRED = [("title",), ("rows",), ("columns",), ("rows", 0, "name"), ("columns", 0, "name")]
REQUIRED += [("claims", 0, "says"), ("claims", 0, "more"), ("claims", 0, "than"), ("claims", 0, "than", 0, 1)]


def mutants(recipe):
    """Yield copies of a recipe in which one value is missing or has a type that its key does not allow."""
    yield from (removed(recipe, path) for path in REQUIRED)
    for path in paths(recipe):
        yield replaced(recipe, path, date(1979, 5, 27))
        if {"parameters", "sweep"} & {*path[:-1]}:
            continue  # the task and the stage read these, when the cell runs
        for new in OTHER_TYPES[type(value_at(recipe, path))]:
            is_name = new == "x" and len(path) == 2 and path[0] in ("rows", "columns")
            is_number_or_text = new in (3, "x") and new is not True and path[2:3] in (("published",), ("later",))
            if not is_name and not (is_number_or_text and len(path) == 4):
                yield replaced(recipe, path, new)


def test_every_wrong_type_in_a_recipe_is_refused_in_one_line(tmp_path, cache, call, monkeypatch):
    monkeypatch.setattr(module, "_run", lambda *_: None)
    path, number = tmp_path / "my.toml", 0
    path.write_text(WHOLE)
    assert call("reproduce", path)[0] == 0
    for mutant in mutants(tomllib.loads(WHOLE)):
        path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in mutant.items()))
        assert "my.toml: " in outcome(reproduce, [str(path)]), path.read_text()
        number += 1
    assert number > 300


@pytest.mark.parametrize(
    ("position", "fault"),
    [
        ('["FTP", "bit-xor"]', "claim 's': no row 'FTP'; did you mean 'FPT'?"),
        ('["FPT", "bit-xr"]', "claim 's': no column 'bit-xr'; did you mean 'bit-xor'?"),
    ],
)
def test_a_claim_about_a_row_or_a_column_that_does_not_exist_is_refused(tmp_path, position, fault):
    claims = (
        f'claims = [{{ says = "s", more = {position}, by = 1 }}]',
        f'claims = [{{ says = "s", more = ["FPT", "bit-xor"], than = [{position}] }}]',
    )
    for claim in claims:
        mine = recipe(tmp_path, f"{ROWS}\n{claim}")
        for only in ([], ["output"]):  # what is selected does not matter
            with pytest.raises(InputError, match=re.escape(fault)):
                load_recipe(mine, "smoke", only=only)


def test_a_cell_that_needs_itself_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"my\.toml: fpt needs itself"):
        load_recipe(
            recipe(tmp_path, "rows = [{ name = 'a', settings = { backbone = 'cell:fpt' }, cell = 'fpt' }]"), "smoke"
        )
    with pytest.raises(InputError, match=r"my\.toml: fpt may not name a cell in 'init'"):
        load_recipe(
            recipe(tmp_path, "rows = [{ name = 'a', settings = { init = 'cell:bit' }, cell = 'fpt' }]"), "smoke"
        )


def test_a_recipe_also_has_the_cells_that_its_cells_need_through_others(tmp_path):
    row = "rows = [{ name = 'a', cell = 'attention', settings = { run = 'cell:bit' } }]"
    stages = [cell.stage for cell in load_recipe(recipe(tmp_path, row), "smoke").cells]
    assert stages == ["pretrain", "train", "attention"]


def test_lists_of_names_and_removed_settings_of_a_cell_are_read(cache, tmp_path, call):
    rows = '{ name = "a", cell = "fpt", settings = { train = ["output", "input"], steps = "" } }'
    mine = recipe(tmp_path, f'rows = [{rows}, {{ name = "b", cell = "card", settings = {{ backbone = "" }} }}]')
    code, out, err = call("reproduce", mine, "--scale", "hour", "--dry-run")
    assert (code, "Traceback" in err) == (0, False) and "output,input" in out
    done = reproduce(recipe(tmp_path, 'rows = [{ name = "b", cell = "card", settings = { backbone = "" } }]'))
    assert (done.ran, done.failed) == (1, {})


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="did you mean 'table1'"):
        load_recipe("tabel1", "smoke")
    with pytest.raises(InputError, match="did you mean 'backbone'"):
        load_recipe("table1", "smoke", override={"bakbone": "gpt2"})
    with pytest.raises(InputError, match=r"called 'cifr10'.*did you mean 'cifar10'"):
        reproduce(["table1"], only="mnist,cifr10")
    with pytest.raises(InputError, match="table5 lacks some of these"):
        reproduce(["table5"], only="homology")


def test_an_override_replaces_settings_of_the_scale_only(capsys):
    given = {"backbone": "bert-base-uncased"}
    cells = load_recipe("table3", "paper", override=given, only=["mnist"], seeds=1).cells
    assert [c.settings["backbone"] for c in cells] == ["bert-base-uncased", "lstm", "lstm-star", "esn", "cnn"]
    asked = ReproduceOptions(scale="paper", override=given, only=["mnist"], seeds=1)
    module.make_plan(["table3"], asked, TaskOptions(), PlaceOptions())
    assert "--override backbone: no effect on 4 of 5 cells, which have their own value" in capsys.readouterr().err
    cells = load_recipe("table9", "smoke", seeds=3, only=["Default"]).cells
    assert [cell.settings["seed"] for cell in cells[:3]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "only", "rows", "columns"),
    [
        ("table9", ["mnist", "Default"], ["Default"], ["mnist"]),
        ("table2", ["mnist", "cifar10"], ["FPT", "Random", "Bit", "ViT"], ["mnist", "cifar10"]),
        ("table-pretraining", ["bit-memory", "bit-xor"], ["bit-memory"], ["bit-xor, output only", "bit-xor, FPT"]),
        ("table-inits", ["random, last layer", "mnist"], ["random, last layer"], ["mnist"]),
        ("table9", ["mnist", "FPT"], [], []),  # this table has no row FPT
        ("table5", ["homology"], [], []),
    ],
)
def test_only_crosses_tasks_with_rows_and_columns(name, only, rows, columns):
    found = load_recipe(name, "smoke", only=only).table
    assert ([row["name"] for row in found["rows"]], found["columns"]) == (rows, columns)


@pytest.mark.parametrize("scale", SCALES)
def test_the_headline_is_not_trained_and_limits_no_rows_at_full_scale(scale):
    recipe = load_recipe("headline", scale)
    assert {cell.stage for cell in recipe.cells} == {"fit"}
    assert {cell.settings["init"] for cell in recipe.cells} == {"random", "tied"}
    if scale in LARGE:
        assert not any("limit" in cell.settings for cell in recipe.cells)
        assert {cell.settings["seed"] for cell in recipe.cells} == {0, 1, 2}


def test_every_claim_is_about_numbers_of_its_table_and_says_where_it_stands():
    for name in recipe_names():
        table = load_recipe(name, "paper").table
        places = {(row["name"], column) for row in table["rows"] for column in table["columns"]}
        for claim in table["claims"]:
            about = [claim[key] for key in ("more", "less", "near") if key in claim]
            named = {tuple(place) for place in (*about, *claim.get("than", ()))}
            assert named <= places, (name, claim)
            assert named or claim.get("unseen"), (name, claim)
            assert ("than" in claim) + ("by" in claim) == bool(named), (name, claim)
            assert ("near" in claim) <= ("within" in claim), (name, claim)
            assert re.search(r"\bv[12]\b|ours|Chiang and Lee 2020", claim["source"]), (name, claim)


def test_a_scale_that_cannot_judge_a_claim_gives_its_reason():
    def claim(scale, says):
        return next(claim for claim in load_recipe("table2", scale).table["claims"] if claim["says"] == says)

    images = "on cifar10 pretraining on images beats pretraining on language"
    assert all("here ViT is random" in claim(scale, images)["unseen"] for scale in ("smoke", "hour", "day"))
    assert "unseen" not in claim("paper", images)


@pytest.mark.parametrize(
    ("than", "half_width", "verdict"),
    [
        (70, 4, "Holds"),
        (75, 4, "Cannot be seen at this size"),
        (75, 0, "Holds"),
        (80, 0, "Cannot be seen at this size"),
        (90, 4, "Does not hold here"),
    ],
)
def test_a_claim_within_the_interval_of_the_difference_cannot_be_seen(than, half_width, verdict):
    ends = {name: (mean - half_width, mean + half_width) for name, mean in (("x", 80), ("y", than))}
    spots = {(name, "a"): {"mean": sum(ends[name]) / 2, "ends": ends[name]} for name in ends}
    assert verdict_on({"more": ["x", "a"], "than": [["y", "a"]]}, spots)["verdict"] == verdict
    assert verdict_on({"less": ["y", "a"], "than": [["x", "a"]]}, spots)["verdict"] == verdict


@pytest.mark.parametrize(
    ("other", "near", "at_most_below"),
    [
        (80, "Holds", "Holds"),
        (83, "Cannot be seen at this size", "Cannot be seen at this size"),
        (70, "Does not hold here", "Holds"),
        (90, "Does not hold here", "Does not hold here"),
    ],
)
def test_two_numbers_are_comparable_if_all_of_the_interval_of_their_difference_is_near_zero(other, near, at_most_below):
    spots = {("x", "a"): {"mean": 80.0, "ends": (79, 81)}, ("y", "a"): {"mean": other, "ends": (other - 1, other + 1)}}
    claim = {"than": [["y", "a"]], "within": 4}
    assert verdict_on({"near": ["x", "a"], **claim}, spots)["verdict"] == near
    assert verdict_on({"more": ["x", "a"], **claim}, spots)["verdict"] == at_most_below


def test_the_interval_of_a_difference_is_newcombes():
    # Newcombe (1998), example (a) of table II: 56/70 and 48/80, method 10
    first, other = (MeanEstimate(n / of, *accuracy_interval(np.arange(of) < n)) for n, of in ((56, 70), (48, 80)))
    found = first.minus(other)
    assert (round(found.low, 4), round(found.high, 4)) == (0.0524, 0.3339)


@pytest.mark.parametrize(
    ("layers", "model"),
    [
        ("block01,block02", "mini, 2 of 6 blocks (1.9 M parameters)"),
        ("embed,block01.attention", "mini, 1 of 6 blocks (1.1 M parameters)"),
        ("block01,final", "mini (5.1 M parameters)"),
        ("embed", "mini, 0 of 6 blocks (0.3 M parameters)"),
        ("", "mini (5.1 M parameters)"),
    ],
)
def test_a_model_counts_the_blocks_that_its_features_need(layers, model):
    settings = {"backbone": "mini", "layers": layers}
    result = {"stage": "fit", "task": "digits", "settings": settings, "values": {}}
    assert size_of_cell(result, None)["model"] == model


@pytest.mark.parametrize(
    ("stage", "task", "settings", "rows"),
    [
        ("fit", "bit-memory", {"limit": 2000, "parameters": {"train_rows": 200}}, "200 training rows"),
        ("train", "bit-memory", {"limit": 2000}, "new training rows at every step"),
        ("train", "bit-memory", {"limit": 2000, "rows": "stored"}, "2,000 training rows"),
        ("train", "listops", {"parameters": {"min_length": 20, "train_rows": 2000}}, "2,000 training rows"),
        ("train", "cifar10", {"limit": 50}, "50 training rows, augmented"),
        ("train", "cifar10", {"limit": 50, "from_cache": True}, "50 training rows"),
        ("train", "mnist", {}, "all training rows"),
        ("train", "table.csv", {}, "all training rows"),
    ],
)
def test_a_claim_says_which_rows_a_cell_was_trained_on(stage, task, settings, rows):
    result = {"stage": stage, "task": task, "settings": settings, "values": {"steps": 4}}
    assert size_of_cell(result, None)["train_rows"] == rows


def test_a_claim_that_is_not_checked_keeps_its_numbers_and_one_run_without_an_interval_decides_nothing():
    spots = {("x", "a"): {"mean": 9.0, "ends": None, "seeds": 1}}
    claim = {"more": ["x", "a"], "by": 1}
    assert verdict_on(claim, spots) | {"size": "1 seed"} == verdict_on(claim, spots)
    assert verdict_on(claim, spots)["numbers"] == "9 against 1; one run gives no interval"
    assert verdict_on(claim, spots)["verdict"] == "Cannot be seen at this size"
    found = verdict_on({**claim, "unseen": "another regime"}, spots)
    assert (found["verdict"], found["numbers"], found["real"]) == ("Not checked", "9 against 1; another regime", False)


def test_seeds_and_rows_both_widen_the_interval_of_a_mean():
    assert interval_of([80.0], "test_score", (78, 82)) == (78, 82)
    assert interval_of([2.0], "step_seconds", None) is None and interval_of([5.0], "blocks", None) == (5, 5)
    low, high = interval_of([1.0, 2.0, 3.0], "diagonals", None)
    assert (low, high) == pytest.approx((2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), abs=1e-4)
    wide = interval_of([79.0, 80.0, 81.0], "test_score", (78, 82))
    assert wide == pytest.approx((80 - (4 + 4.30265**2 / 3) ** 0.5, 80 + (4 + 4.30265**2 / 3) ** 0.5), abs=1e-4)


def test_the_interval_of_a_training_score_counts_the_rows_of_the_scored_run_alone():
    interval = [100 * end for end in accuracy_interval(np.arange(100) < 80)]
    for passes in ({"passes": 3000, "scored_passes": 1000}, {"passes": 1000}):  # earlier versions wrote no others
        assert _bounds("train_score", 80.0, {"values": passes, "settings": {}}) == pytest.approx(interval)


def test_a_speed_up_of_one_validation_cannot_be_seen(tmp_path):
    folder = ReproductionFolder(tmp_path)
    folder.create()

    def verdict(*steps):
        keys = []
        for seed, step in enumerate(steps):
            pair = [Cell("train", "bit-xor", {"seed": seed, "init": init, "eval_every": 250}) for init in ("a", "b")]
            for cell, converged in zip(pair, (step, 1000), strict=True):
                values = {"converged_step": converged, "steps": 4000}
                folder.save_result(cell.key, {**cell.to_dict(), "folder": str(tmp_path), "values": values})
            keys.append([cell.key for cell in pair])
        spot = {"row": "r", "column": "c", "measure": "converged_step", "cells": keys, "combine": "ratio", "reason": ""}
        claim = {"says": "faster", "more": ["r", "c"], "by": 1}
        table = {"rows": [{"name": "r", "spots": [spot]}], "columns": ["c"], "claims": [claim]}
        return folder.fill(table)["claims"][0]["verdict"]

    assert verdict(1250, 1250, 1250) == "Cannot be seen at this size"
    assert verdict(2000) == "Cannot be seen at this size"
    assert verdict(2000, 2000, 2250) == "Holds"


EVIL = "<script>alert(1)</script>"
HOSTILE = f"""
title = "a & b {EVIL}"
task = "bit-xor"
columns = ["it's \\"{EVIL}\\""]
settings = {{ backbone = "mini:n_layer=1,n_embd=16,n_head=2", depth = "", init = "random", steps = 3, eval_every = 1 }}
rows = [
    {{ name = "{EVIL}", cell = "output", published = [42] }},
    {{ name = "readout", cell = "readout", published = ["<b>"] }},
    {{ name = "maps", cell = "attention", measure = "diagonals" }},
    {{ name = "card", cell = "card", measure = "weight_deviation" }},
    {{ name = '\\![away](//x.org/y.png)', cell = "output", task = "mnist" }},
]
drawn = "attention"
claims = [
    {{ says = "it is {EVIL}", more = ["card", "it's \\"{EVIL}\\""], by = 0 }},
    {{ says = "it is not", less = ["card", "it's \\"{EVIL}\\""], by = 0 }},
]
"""
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Checker(HTMLParser):
    """Check that tags nest, that ids are unique, that links have targets, and that images have descriptions."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.images, self.tags = [], [], [], 0, []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        if tag == "img":
            assert len(attrs["alt"]) > 10 and attrs["src"].startswith("data:image/svg+xml;base64,")
            self.images += 1
        assert not any(name.startswith("on") for name in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(text):
    page = Checker()
    page.feed(text)
    page.close()
    assert page.open == [] and len(page.ids) == len(set(page.ids))
    assert {link for link in page.links if link.removeprefix("#") not in page.ids} == set()
    assert "script" not in page.tags
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?\s*(?:https?:)?//", text)
    assert page.tags.count("h1") == 1
    return page


def test_a_page_is_complete_and_escapes_what_it_names(cache, tmp_path, monkeypatch):
    (tmp_path / "my.toml").write_text(HOSTILE)
    made, done = reproduce([str(tmp_path / "my.toml")]), report([])
    text = done.page.read_text()
    page = check(text)
    assert EVIL not in text and "&lt;script&gt;" in text
    assert page.images >= 5 and done.bytes < 5e6 and [c["holds"] for c in made.tables[0]["claims"]] == [True, False]
    ours = made.tables[0]["rows"][0]["spots"][0]["mean"]
    assert f">{ours:.1f}<" in text and f"({ours - 42:+.1f})" in text
    assert "--data" in text  # the reason for a missing number says what to do
    assert text.count("<h4>maps</h4>") == 1
    assert "diagonals at 0 back (string 2), 5 back (string 1)" in text
    assert "reservoir train bit-xor" in text and "prefers-color-scheme: dark" in text
    tables = report([], markdown=True).page.read_text()
    assert EVIL not in tables and "\\\\!\\[away](//x.org/y.png)" in tables  # "\\" is a backslash, and "\[" no link


def test_a_page_shows_a_fit_with_all_its_numbers_and_a_run(cache, tmp_path):
    from reservoir_pipelines import extract, fit, train

    small = {"backbone": "mini:n_layer=1,n_embd=16,n_head=2"}
    done = fit(extract("digits", limit=60, **small), curve="30,60", out=tmp_path / "fit")
    ran = train("bit-xor", steps=2, eval_every=1, **small)
    page = report([done.saved.parent, ran.run], out=tmp_path / "page.html").page
    text = page.read_text()
    assert check(text).images >= 5 and f"{100 * done.best.test_score:.1f}%" in text
    assert f"{100 * ran.test_score:.1f}%" in text
    assert html.unescape(text).count(done.against[0].sentence) == 1
    readouts = text.partition("95% interval</th>")[2].partition("</table>")[0]
    assert all(f"<td>{baseline.name}</td>" in readouts for baseline in done.baselines)
    assert ", ".join(f"{name} {100 * score:.1f}%" for name, score in done.layers.items()) in text
    assert f"60 rows {100 * done.curve[-1].test_score:.1f}%" in text
    assert text.count("lowest to highest draw") == 1
    for command in ("reservoir extract digits --", "reservoir fit /", "reservoir train bit-xor --"):
        assert f"<code>{command}" in text
    summary = read_checked(done.saved.parent / SUMMARY)
    summary["evaluation"]["a_new_metric"] = 0.125
    write_checked(done.saved.parent / SUMMARY, summary)
    shown = report([])  # without names, the report shows all fits, also those in other folders
    text = shown.page.read_text()
    assert shown.parts == 1 and "<dt>majority baseline</dt>" in text
    assert "<dt>a new metric</dt><dd>12.5%</dd>" in text and str(done.saved.parent) in text
    del summary["evaluation"]["reliability"]
    write_checked(done.saved.parent / SUMMARY, summary)
    with pytest.raises(InputError, match=r"another version of reservoir \('reliability'\); repeat"):
        report([done.saved.parent])
    (done.saved.parent / SUMMARY).write_text("{}")
    with pytest.raises(InputError, match="fit: damaged, or written by another version"):
        report([done.saved.parent])


def test_report_refuses_folders_without_results(cache, tmp_path, refusal):
    no_fits = "nothing to report yet, neither a reproduction nor a fit; run reservoir fit or reservoir reproduce first"
    for arguments, message in (((), no_fits), ((tmp_path,), "not a folder with results")):
        assert message in refusal("report", *arguments)


def test_a_page_leaves_out_a_claim_that_another_reproduction_answers():
    def part(name, **verdicts):
        claims = [{"says": says, "verdict": verdict} for says, verdict in verdicts.items()]
        return {"tables": [{"name": name, "claims": claims}]}

    others = [{"name": "a fit"}, part("t1", a="Does not hold here", c="Holds"), part("t2", b="Holds")]
    parts = [part("t1", a="Not checked", b="Not measured", c="Holds"), *others]
    leave_out_answered_claims(parts)
    assert parts == [part("t1", b="Not measured", c="Holds"), *others]


@pytest.mark.parametrize(("chosen", "columns"), [(0, ["raw", "a/mean"]), (2, ["a/mean"])])
def test_the_page_circles_the_raw_input_only_if_it_is_chosen(tmp_path, chosen, columns):
    names = ("raw,ridge,1", "raw,ridge,10", "a/mean,ridge,1", "a/mean,ridge,10")
    lines = [f"{name},1.0,{int(number == chosen)}" for number, name in enumerate(names)]
    (tmp_path / "results.csv").write_text("\n".join(["columns,readout,alpha,valid_score,chosen", *lines]))
    found = _read_sweep(tmp_path / "results.csv", {"raw"})
    assert (found["columns"], found["best"]) == (columns, [0, 0])


@pytest.mark.parametrize(
    ("readout", "alpha", "expected"),
    [
        ("ridge", 10.0, "raw, ridge 10"),
        ("ridge", 0.0, "raw, ridge 0"),
        ("sklearn.svm.LinearSVC", None, "raw, sklearn.svm.LinearSVC"),
    ],
)
def test_the_page_names_a_penalty_only_if_the_readout_has_one(tmp_path, readout, alpha, expected):
    penalty = "" if alpha is None else alpha
    (tmp_path / "results.csv").write_text(f"columns,readout,alpha,valid_score,chosen\nraw,{readout},{penalty},1.0,1\n")
    scores = {"metric": "accuracy", "test_score": 0.5, "test_interval": None, "valid_score": 1.0}
    evaluation = {"rows": 2, "recall": {}, "classes": [], "confusion": None, "reliability": []}
    summary = {
        "best": {"readout": readout, "alpha": alpha, **scores},
        "title": "raw",
        "evaluation": evaluation,
        "baselines": [],
        **dict.fromkeys(("curve", "adds_nothing_to", "tried")),
    }
    values = fit_values(summary, tmp_path / "results.csv")
    assert values["readout"] == expected
    assert values["test_rows"] == 2 and "test_groups" not in values


def test_labels_in_plots_are_complete_and_literal(painted):
    classes = [f"a class of a long name, number {number}" for number in range(12)]
    classes[3:6] = EVIL, "$x_{$", "\x1b\ud800"
    source = PagePlot("text", draw_confusion, (np.eye(12, dtype=int) * 7, classes), (6, 6)).image
    svg = base64.b64decode(source.partition(",")[2]).decode()
    drawn = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    texts = {"".join(text.itertext()).strip() for text in drawn}
    assert "<script" not in svg and {EVIL, "$x_{$", "\\x1b\\ud800", "7"} <= texts
    assert len({text for text in texts if text.startswith("a class")}) == 9
    assert PagePlot("text", draw_confusion, (np.eye(2), None)).image == ""
    assert b"mathdefault" not in base64.b64decode(PagePlot("a", _draw_costs, ({"a": (3, 5, None)},)).image[26:])


def test_long_labels_that_differ_in_the_middle_look_different():
    assert shorten_all([f"a bearing fault at {n}00 rpm, outer race" for n in (1, 2, 3)]) == ["…100…", "…200…", "…300…"]
    assert shorten_all(["cat", "dog"]) == ["cat", "dog"]
    columns = tuple(f"block{number:02d}/mean" for number in range(4))
    assert Result(columns=columns, readout="ridge", alpha=1.0, valid_score=0.0).title == "mean of 4 layers"
