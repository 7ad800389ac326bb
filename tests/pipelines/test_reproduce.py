"""The runner: no finished cell runs twice, a failing one stops nothing, and every number can be had again."""

import json
import shlex
import signal

import pytest
from reservoir_cache import last_entry
from reservoir_pipelines import extract, report, reproduce
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.reproduction import reproduce as module
from reservoir_pipelines.reproduction.recipe import Cell
from reservoir_pipelines.reproduction_folder import ReproductionFolder

from reservoir.options import ClusterOptions, PlaceOptions, ReproduceOptions, TaskOptions
from tests.processes import Child

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


def planned(path):
    options = ReproduceOptions()
    return module.planned_cells(module.load_recipes([path], options), options, TaskOptions(), PlaceOptions())


def spots(table):
    return {row["name"]: row["spots"][0] for row in table["rows"]}


@pytest.fixture
def runs(monkeypatch):
    """Return the keys of the cells that are run, in their order."""
    from reservoir_pipelines.reproduction import stages

    ran, run_cell = [], stages.run_cell

    def counted(cell, *arguments):
        ran.append(cell.key)
        return run_cell(cell, *arguments)

    monkeypatch.setattr(stages, "run_cell", counted)
    return ran


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


def test_cells_do_not_change_which_extraction_is_the_last(cache, tmp_path):
    mine = extract("bit-xor", init="random", depth=1, layers="final", limit=60).entry
    done = reproduce(recipe(tmp_path, 'rows = [{ name = "last", cell = "readout-last", settings = { limit = 60 } }]'))
    assert (done.ran, done.failed) == (1, {})
    assert report(done.folder).page.is_file()  # one is given as well as several
    assert len(list(mine.parent.iterdir())) == 2
    assert last_entry(cache, "bit-xor").path == mine


def test_results_of_another_format_count_as_not_run(cache, tmp_path, call, runs):
    mine = recipe(tmp_path, ROWS)
    call("reproduce", mine)
    kept = ReproductionFolder(cache / "reproductions" / "smoke")
    for path in kept.path.glob("*/*.json"):
        values = read_checked(path)
        del values["format"]
        write_checked(path, values)
    assert kept.results() == kept.tables() == []
    code, _, err = call("report", kept.path)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{kept.path}: made by another version of reservoir; run" in err
    assert reproduce([mine]).ran == 2
    assert call("report", kept.path)[0] == 0


def test_the_best_of_several_cells_is_the_one_with_the_best_validation_score(cache, tmp_path):
    row = 'rows = [{ name = "best", best = ["output", "full"] }, { name = "output", cell = "output" }]'
    done = reproduce([recipe(tmp_path, row)])
    results = {result["settings"].get("train"): result for result in ReproductionFolder(done.folder).results()}
    assert len(results) == 2
    for result in results.values():
        result["values"]["valid_score"] = float(result["settings"]["train"] == "output")
        ReproductionFolder(done.folder).save_result(
            Cell(**{n: result[n] for n in ("stage", "task", "settings")}).key, result
        )
    table = spots(ReproductionFolder(done.folder).tables()[0])
    assert table["best"]["mean"] == table["output"]["mean"]


def test_seeds_give_a_mean_and_a_standard_error(cache, tmp_path):
    done = reproduce([recipe(tmp_path, 'rows = [{ name = "output", cell = "output" }]')], seeds=3)
    kept, spot = ReproductionFolder(done.folder), spots(done.tables[0])["output"]
    scores = [100 * kept.result(key)["values"]["test_score"] for (key,) in spot["cells"]]
    mean = sum(scores) / 3
    assert spot["mean"] == pytest.approx(mean)
    assert spot["error"] == pytest.approx((sum((s - mean) ** 2 for s in scores) / 2 / 3) ** 0.5)
    low, high = spot["interval"]
    assert low < mean < high and spot["rows"] == kept.result(spot["cells"][0][0])["values"]["test_rows"] > 10
    assert f"{low:.1f} to {high:.1f}, {spot['rows']:,} rows" in report([done.folder]).page.read_text()


KILLED = """
import os, sys
from reservoir_pipelines.cli import run
from reservoir_pipelines.reproduction_folder import ReproductionFolder
keep = ReproductionFolder.save_result

def kept(self, key, result):
    keep(self, key, result)
    if len(self.results()) == 2:
        os.environ["RESERVOIR_FAULT"] = "gathered"  # a checkpoint of the third cell, before it has its name

ReproductionFolder.save_result = kept
sys.exit(run(["reproduce", sys.argv[1]]))
"""


def test_a_reproduction_killed_in_a_cell_continues_without_running_finished_cells_again(cache, tmp_path, runs):
    rows = ", ".join(f'{{ name = "{n}", cell = "output", settings = {{ seed = {n} }} }}' for n in range(6))
    mine = recipe(tmp_path, f"rows = [{rows}]")
    kept = ReproductionFolder(cache / "reproductions" / "smoke")
    assert Child(KILLED, mine).ended()[0] == -signal.SIGKILL
    finished = {result["settings"]["seed"] for result in kept.results()}
    assert len(finished) == 2 and len(list(kept.work.rglob("*.part"))) + len(list(cache.rglob("*.part"))) > 0
    done = reproduce([mine])
    assert (done.ran, done.reused, dict(done.failed)) == (4, 2, {})
    assert len(runs) == 4


def test_a_failing_cell_is_marked_and_the_rest_goes_on(cache, tmp_path, call, monkeypatch, runs):
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    mine = recipe(tmp_path, 'rows = [{ name = "a", cell = "output" }, { name = "b", cell = "output", task = "mnist" }]')
    code, out, err = call("reproduce", mine)
    assert code == 0
    assert "no data folder" in out or "--data" in out
    assert "Traceback" not in out + err
    found = ReproductionFolder(cache / "reproductions" / "smoke").tables()[0]
    assert spots(found)["a"]["mean"] is not None
    assert "1 run in" in out and "1 failed" in out
    assert "1 finished, 1 failed, 0 not run yet" in report([]).page.read_text()
    assert "--data" in spots(found)["b"]["reason"]
    assert len(runs) == 2
    call("reproduce", mine)
    assert len(runs) == 3  # what failed is tried again


def test_a_dry_run_above_smoke_estimates_each_cell_and_says_why_one_cannot_run(
    cache, tmp_path, call, runs, monkeypatch
):
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    rows = '{ name = "a", cell = "output" }, { name = "b", cell = "output", task = "mnist" }'
    mine = recipe(tmp_path, f'rows = [{rows}, {{ name = "made", cell = "bit-pretraining" }}]')
    code, out, err = call("reproduce", mine, "--scale", "hour", "--dry-run")
    assert (code, runs) == (0, [])
    lines = [line for line in out.splitlines() if "seed 0" in line]
    assert [" kB" in line for line in lines] == [True, False, False] and "not estimated" in lines[2]
    assert "without 1 that are not estimated" in err
    assert "1 of them cannot run here: " in err
    assert "--data DIR" in err


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
    { name = "swept", cell = "fpt", settings = { sweep = { learning_rate = [1e-3, 1e-2] } } },
]
"""


KEPT = {
    "fit": "classes confusion cost curve extract_seconds fit_seconds layers metric passes raw_score readout recall "
    "reliability reused sweep test_interval test_rows test_score tried valid_score",
    "train": "best_step converged_step cost diverged_step groups losses metric passes steps swept test_interval "
    "test_rows test_score train_score train_seconds trained valid_score validations",
    "attention": "diagonals layer lines map passes rows",
    "pretrain": "cost steps test_bits test_score train_seconds",
    "backbone": "bias_deviation blocks deviations heads parameters weight_deviation width",
}


def test_the_command_of_a_cell_gives_its_number(cache, tmp_path, call, monkeypatch):
    small = SMALL.replace('columns = ["bit-xor"]', "").replace("init =", "limit = 60, batch_tokens = 240, init =")
    (tmp_path / "ten.toml").write_text(small + TEN)
    done = reproduce([str(tmp_path / "ten.toml")])
    assert not done.failed
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
            for name in ("test_score", "train_score", "converged_step"):
                assert found[name] == values[name], row
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
    assert reproduce([str(tmp_path / "ten.toml")], out=done.folder).ran == 0
    page = report([done.folder]).page.read_text()
    assert "<code>reservoir pretrain bit-memory" in page  # what a cell needs has its command on the page too
    assert "train bit-xor backbone of bit-memory" in page
    assert names == KEPT, (
        "the page reads these: with other names, raise FORMAT in reproduction_folder.py and change them here"
    )


def test_cells_are_tasks_of_a_cluster(cache, tmp_path, runs, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    mine = recipe(tmp_path, ROWS.replace("]\n", '    { name = "b", cell = "output", task = "mnist" },\n]\n', 1)[1:])
    settings = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(protocol="tcp://", **settings) as cluster:
        done = reproduce([mine], scheduler=cluster.scheduler_address)
    assert (done.ran, len(done.failed), len(runs)) == (2, 1, 3)
    cells, kept, places = planned(mine)
    messages = [module.run_on_worker(cell, kept, places) for cell in cells]  # finished cells only report their result
    assert sum("% in" in line for line in messages) == 2
    assert sum("failed, task 'mnist' needs its files" in line for line in messages) == 1


def test_a_cluster_runs_cells_that_others_need_first(tmp_path, monkeypatch):
    made = Cell("pretrain", None, {"corpus": "uniform"})
    trained = [Cell("train", "bit-xor", {"backbone": made, "seed": seed}) for seed in range(2)]
    sent = []
    monkeypatch.setattr(module, "map_pieces", lambda work, tasks, **_: sent.append([cell for cell, *_ in tasks]))
    module._run([*trained, made], ReproductionFolder(tmp_path), {}, ClusterOptions(scheduler="tcp://somewhere:1"))
    assert sent == [[made], trained]
