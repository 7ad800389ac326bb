"""A search continues from saved trials, keeps its budget, never reads test rows, and prints commands for its winner."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reservoir_pipelines import predict, tune
from reservoir_pipelines.cli import run
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.tuning.search import Search, SearchData, read_trials
from reservoir_pipelines.tuning.tune import tune as run_tune

from reservoir.errors import InputError
from reservoir.option_fields import as_group, seconds_of
from reservoir.options import ClusterOptions, OutOptions, PlaceOptions, RowOptions, ShapeOptions, TuneOptions

SMALL = {"backbone": "mini:n_layer=2,n_embd=16,n_head=2"}
LOADING = 60.0  # seconds for loading the libraries, when a test replaces the clock


def write_waves(path, shuffled=False):
    draw, y = np.random.default_rng(0), np.arange(36) % 2
    x = np.sin((0.6 + 0.35 * y[:, None]) * np.arange(20) + draw.uniform(0, 6, (36, 1))) + draw.normal(0, 0.7, (36, 20))
    split = np.repeat(["train", "valid", "test"], [18, 8, 10])
    if shuffled:
        y = np.concatenate([y[:26], 1 - y[26:]])
    np.savez(path, x=x[:, :, None].astype(np.float32), y=y, split=split)
    return str(path)


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    return write_waves(tmp_path_factory.mktemp("waves") / "waves.npz")


def stop_after(number, patch):
    add = Search.add

    def add_or_stop(self, trial):
        add(self, trial)
        if len(self.trials) == number:
            raise KeyboardInterrupt

    patch.setattr(Search, "add", add_or_stop)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, waves):
    """Return a search of three trials that was stopped after two, and the trials that the second call computed."""
    root, computed, add = tmp_path_factory.mktemp("cache"), [], Search.add
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(2, patch)
        tune(waves, trials=3, cache=root, **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "add", lambda self, one: computed.append(one.number) or add(self, one))
        return tune(waves, trials=3, cache=root, **SMALL), computed


def tune_by(clock, task, **options):
    kinds = (TuneOptions, ShapeOptions, RowOptions, PlaceOptions, ClusterOptions, OutOptions)
    return run_tune(task, *(as_group(options, kind) for kind in kinds), clock=clock, started=-LOADING)


def test_a_stopped_search_continues(searched, waves, tmp_path):
    done, computed = searched
    assert computed == [2]
    assert {trial.number for trial in done.trials} == {0, 1, 2}
    assert done.tried == 3
    whole = tune(waves, trials=3, cache=tmp_path / "cache", out=tmp_path / "out", **SMALL)
    np.testing.assert_array_equal(whole.fit.readout.coef, done.fit.readout.coef)
    assert len(list(predict(tmp_path / "out", Path(waves)))) == 36


def test_two_workers_find_what_one_process_does(searched, waves, tmp_path):
    found = tune(waves, trials=3, workers=2, cache=tmp_path, **SMALL)
    same = [[replace(t, seconds=0, judging=0) for t in one.trials] for one in (found, searched[0])]
    assert same[0] == same[1]


def test_a_damaged_line_is_ignored(searched, tmp_path):
    lines = (searched[0].folder / "trials.jsonl").read_text().splitlines()
    (tmp_path / "trials.jsonl").write_text(lines[0] + "\n" + lines[1].replace('"score": ', '"score": 1') + "\n{")
    assert [trial.number for trial in read_trials(tmp_path / "trials.jsonl")] == [0]


def test_the_printed_commands_make_the_same_readout_in_another_cache(searched, tmp_path):
    for line in searched[0].commands:
        program, *arguments = shlex.split(line)
        assert program == "reservoir" and run([*arguments, "--cache", str(tmp_path), "--json"]) == 0
    made = Bundle.load(next(tmp_path.rglob("readout.json"))).readout
    np.testing.assert_array_equal(made.coef, searched[0].fit.readout.coef)
    np.testing.assert_array_equal(made.intercept, searched[0].fit.readout.intercept)


def test_labels_of_test_change_nothing_but_the_final_score(searched, tmp_path):
    one, other = searched[0], tune(write_waves(tmp_path / "waves.npz", True), trials=3, cache=tmp_path, **SMALL)
    assert one.folder.name != other.folder.name
    both = [[(t.number, t.columns, t.score, t.loss) for t in found.trials] for found in (one, other)]
    assert both[0] == both[1]
    np.testing.assert_array_equal(one.fit.readout.coef, other.fit.readout.coef)
    assert one.fit.best.test_score == pytest.approx(1 - other.fit.best.test_score)


class SlowRows:
    """A clock that advances by the seconds that a slow machine would need to extract rows."""

    def __init__(self, seconds_per_row, patch):
        self.now, extract = 0.0, SearchData.extract

        def extract_slowly(data, number, limit, splits, cluster):
            self.now += 1 + seconds_per_row * data.rows(limit, splits or tuple(data.prepared.rows))
            return extract(data, number, limit, splits, cluster)

        patch.setattr(SearchData, "extract", extract_slowly)

    def __call__(self):
        return self.now


def test_at_least_ten_candidates_are_tried_in_a_budget_that_holds(tmp_path, monkeypatch):
    draw, y = np.random.default_rng(0), np.arange(1300) % 2
    x = draw.normal(size=(1300, 8, 1)).astype(np.float32) + 0.3 * y[:, None, None]
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    monkeypatch.setattr("reservoir_pipelines.tuning.search.START_UP", 0.0)
    clock = SlowRows(0.8, monkeypatch)
    done = tune_by(clock, str(tmp_path / "rows.npz"), budget="900s", cache=tmp_path, **SMALL)
    assert done.tried >= 10 and 0.7 * 900 < LOADING + clock.now <= 990
    tried = {trial.limit for trial in read_trials(done.folder / "trials.jsonl") if trial.number}
    assert tried <= {25}
    assert {trial.limit for trial in done.trials} <= {25}
    assert 0 in {trial.number for trial in done.trials}


def test_symbols_and_real_targets_are_searched_too(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 4, (40, 6))
    np.savez(tmp_path / "letters.npz", x=x, y=(x[:, 0] == x[:, 3]).astype(int))
    assert tune(str(tmp_path / "letters.npz"), trials=2, cache=tmp_path, **SMALL).metric == "accuracy"
    values = draw.normal(size=(40, 12, 1)).astype(np.float32)
    np.savez(tmp_path / "values.npz", x=values, y=values.sum(axis=(1, 2)))
    assert tune(str(tmp_path / "values.npz"), trials=2, cache=tmp_path, **SMALL).metric == "R²"


def test_a_budget_is_given_in_seconds_minutes_or_hours():
    assert [seconds_of(text) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]


@pytest.mark.parametrize("budget", ["10", "0s", "soon", "-1m"])
def test_a_budget_that_is_no_time_is_refused(waves, budget):
    with pytest.raises(InputError, match="--budget"):
        tune(waves, budget=budget)


def test_the_command_shows_what_was_tried_and_gained(searched, waves, capsys):
    root = str(searched[0].folder.parents[1])
    again = ["tune", waves, "--trials", "3", "--cache", root, "--backbone", SMALL["backbone"]]
    assert run([*again, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert len(found["trials"]) == 3 and found["commands"] == list(searched[0].commands)
    assert found["test_score"] == found["fit"]["best"]["test_score"] and found["evaluation"]["classes"]
    assert err.count("mini:n_layer") >= 3 and run(again) == 0
    out = capsys.readouterr().out
    assert "reservoir fit" in out
    assert re.search(
        r"candidate +rows +accuracy +loss +time +reservoir\n.*\n +\d +\w+ +\d+\.\d% +\d\.\d{3} +\d+\.\d s", out
    )
    assert run(["cache", "verify", "--cache", root]) == 0 and run(["doctor", "--cache", root]) == 0
    assert run(["cache", "list", "--cache", root]) == 0 and "candidate of tune" in capsys.readouterr().out
    assert "3 candidates tried" in out and "gain over the default" in out and " points" in out
