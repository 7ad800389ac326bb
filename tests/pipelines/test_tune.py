"""A search goes on from what it kept, keeps its budget, never sees test, and says how to make its winner again."""

import json
import pickle
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reservoir_pipelines import predict, tune, workers
from reservoir_pipelines.cli import run
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.tuning import attempts
from reservoir_pipelines.tuning import tune as tuning
from reservoir_pipelines.tuning.attempts import Attempts
from reservoir_pipelines.tuning.budget import Budget, Costs
from reservoir_pipelines.tuning.trials import Trials
from threadpoolctl import threadpool_limits

from reservoir.errors import InputError
from reservoir.option_fields import seconds_of

SMALL = {"backbone": "mini:n_layer=2,n_embd=16,n_head=2"}


def write_waves(path, shuffled=False):
    """Write two kinds of short waves, 36 rows with their splits; or with other labels of test."""
    draw = np.random.default_rng(0)
    y = np.arange(36) % 2
    x = np.sin((0.6 + 0.35 * y[:, None]) * np.arange(20) + draw.uniform(0, 6, (36, 1))) + draw.normal(0, 0.7, (36, 20))
    split = np.repeat(["train", "valid", "test"], [18, 8, 10])
    if shuffled:
        y = np.concatenate([y[:26], 1 - y[26:]])
    np.savez(path, x=x[:, :, None].astype(np.float32), y=y, split=split)
    return str(path)


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    return write_waves(tmp_path_factory.mktemp("waves") / "waves.npz")


def stop_after(number):
    """Return what interrupts a search when so many trials have ended."""
    shown = []

    def show(trial):
        shown.append(trial)
        if len(shown) == number:
            raise KeyboardInterrupt

    return show


@pytest.fixture(scope="module")
def searched(tmp_path_factory, waves):
    """Return a search of three trials that was stopped after two, and the trials that its second call computed."""
    root, computed, make = tmp_path_factory.mktemp("cache"), [], Attempts.make
    with pytest.raises(KeyboardInterrupt):
        tune(waves, trials=3, cache=root, show=stop_after(2), **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attempts, "make", lambda self, one: computed.append(one.number) or make(self, one))
        return tune(waves, trials=3, cache=root, **SMALL), computed


class Clock:
    """A clock that moves on by a second each time it is asked."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_a_search_that_was_stopped_goes_on(searched, waves, tmp_path):
    done, computed = searched
    assert computed == [2]
    assert {trial.number for trial in done.trials} == {0, 1, 2}
    whole = tune(waves, trials=3, cache=tmp_path, **SMALL)
    np.testing.assert_array_equal(whole.fit.readout.coef, done.fit.readout.coef)
    assert len(list(predict(done.fit.saved.parent, Path(waves)))) == 36


def test_two_processes_find_what_one_does_and_go_on_where_they_were_stopped(waves, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "PAYS_OFF", -1)
    with threadpool_limits(1):
        one = tune(waves, trials=5, cache=tmp_path / "one", **SMALL)
        with pytest.raises(KeyboardInterrupt):
            tune(waves, trials=5, workers=2, cache=tmp_path / "two", show=stop_after(3), **SMALL)
        kept = list(Trials(tmp_path / "two" / "tuning" / one.folder.name))
        assert 3 <= len(kept) < 5
        two = tune(waves, trials=5, cache=tmp_path / "two", **SMALL)
    same = [[replace(t, seconds=0, judging=0, spent=0) for t in found.trials] for found in (one, two)]
    assert same[0] == same[1]
    np.testing.assert_array_equal(one.fit.readout.coef, two.fit.readout.coef)
    assert [t.seconds for t in kept] == [Trials(two.folder).get(t.number, None).seconds for t in kept]


def test_a_cluster_is_given_full_paths_and_leaves_what_would_end_too_late(searched, waves, tmp_path, monkeypatch):
    def elsewhere(work, tasks, *, scheduler, done, **_):
        monkeypatch.chdir(tmp_path)
        tasks = pickle.loads(pickle.dumps(tasks))
        share, attempt, until = tasks[0]
        with pytest.raises(InputError, match="another search"):
            work(replace(share, digest="other"), attempt, until)
        assert work(share, replace(attempt, seconds=1e9), until) is None
        trials = [work(*task) for task in tasks]
        monkeypatch.chdir(Path(waves).parent)
        for trial in trials:
            done(trial)

    monkeypatch.setattr(attempts, "map_pieces", elsewhere)
    monkeypatch.setattr(attempts, "_opened", {})
    monkeypatch.setattr(tuning, "_finish", lambda *_: (None, ()))
    monkeypatch.chdir(Path(waves).parent)
    found = tune(Path(waves).name, trials=3, scheduler="tcp://nowhere:1", cache=Path("cache"), **SMALL)
    assert {(t.entry, t.score, t.loss) for t in found.trials} == {
        (t.entry, t.score, t.loss) for t in searched[0].trials
    }


def test_a_line_that_was_damaged_is_tried_again(searched, tmp_path):
    lines = (searched[0].folder / "trials.jsonl").read_text().splitlines()
    (tmp_path / "trials.jsonl").write_text(lines[0] + "\n" + lines[1].replace('"score": ', '"score": 1') + "\n{")
    assert [trial.number for trial in Trials(tmp_path)] == [0]


def test_the_printed_commands_make_the_same_readout_in_another_cache(searched, tmp_path):
    for line in searched[0].commands:
        program, *arguments = shlex.split(line)
        assert program == "reservoir"
        assert run([*arguments, "--cache", str(tmp_path), "--json"]) == 0
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


def test_the_budget_is_kept_by_any_clock(waves, tmp_path):
    clock, later = Clock(), Clock()
    done = tune(waves, budget="60s", clock=clock, cache=tmp_path, **SMALL)
    assert 2 <= len(done.trials) <= 20
    assert clock.now <= 66
    again = tune(waves, budget="60s", clock=later, cache=tmp_path, **SMALL)
    assert len(again.trials) >= len(done.trials)
    assert later.now + sum(trial.seconds for trial in done.trials) <= 66  # what earlier calls have spent counts


def test_many_rows_are_judged_on_few_first(tmp_path, waves, monkeypatch):
    from reservoir_pipelines.tuning import search

    monkeypatch.setattr(search, "FEW", 6)
    monkeypatch.setattr(search, "MANY", 10)
    shown = []
    done = tune(waves, trials=4, show=shown.append, cache=tmp_path, **SMALL)
    assert [trial.limit for trial in shown] == [6] * 4 + [10] * len(done.trials)
    assert 0 in {trial.number for trial in done.trials}
    assert max(trial.samples for trial in done.trials) <= 18
    assert done.fit.evaluation.samples == 10


def test_symbols_and_real_targets_are_searched_too(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 4, (40, 6))
    np.savez(tmp_path / "letters.npz", x=x, y=(x[:, 0] == x[:, 3]).astype(int))
    assert tune(str(tmp_path / "letters.npz"), trials=2, cache=tmp_path, **SMALL).metric == "accuracy"
    values = draw.normal(size=(40, 12, 1)).astype(np.float32)
    np.savez(tmp_path / "values.npz", x=values, y=values.sum(axis=(1, 2)))
    assert tune(str(tmp_path / "values.npz"), trials=2, cache=tmp_path, **SMALL).metric == "R²"


def test_costs_and_times():
    assert [seconds_of(text) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]
    budget = Budget(10, spent=3, clock=Clock())
    assert budget.left == 6
    assert not budget.allows(6)
    costs = Costs()
    assert costs.predict("mini", 100) == 0
    costs.observe("mini", 100, 2)
    assert 2 < costs.predict("mini", 100) < costs.predict("esn", 100)


@pytest.mark.parametrize("budget", ["10", "0s", "soon", "-1m"])
def test_a_budget_that_is_no_time_is_refused(waves, budget):
    with pytest.raises(InputError, match="--budget"):
        tune(waves, budget=budget)


def test_the_command_says_a_line_per_trial(searched, waves, capsys):
    root = str(searched[0].folder.parents[1])
    again = ["tune", waves, "--trials", "3", "--cache", root, "--backbone", SMALL["backbone"]]
    assert run([*again, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert len(found["trials"]) == 3
    assert found["commands"] == list(searched[0].commands)
    assert err.count("mini:n_layer") >= 3
    assert run(again) == 0
    assert "reservoir fit" in capsys.readouterr().out
