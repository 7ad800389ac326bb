"""The plan: what each kind of data gets by default, that options given win, and that each value has a reason."""

from dataclasses import replace

import pytest

from reservoir.errors import InputError
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, ReservoirOptions
from reservoir.plan import VALUE_POOLINGS, default_folds, kind_of, resolve, resolve_model
from reservoir.pooling import check_poolings
from reservoir.reservoir import Reservoir, every_dilation
from reservoir.tasks.task import Task, Tokens, Vectors

SERIES = Task(name="mine.npz", form=Vectors(2), max_tokens=500, classes=3)
SYMBOLS = Task(name="letters.csv", form=Tokens(4), max_tokens=60, classes=3)


def plan_of(task, rows=200, longest=None, **given):
    return resolve(task, ExtractOptions(**given), {"train": rows}, longest)


def test_other_data_than_series_and_symbols_keep_their_tokens():
    assert resolve_model(ReservoirOptions()) == Reservoir()
    for task, kind in (
        (replace(SYMBOLS, form=Tokens(65)), "tokens"),
        (replace(SYMBOLS, max_tokens=4), "tokens"),
        (replace(SERIES, name="digits"), "named task"),
        (replace(SERIES, readout_tokens=2), "vectors"),
        (replace(SERIES, max_tokens=8), "vectors"),
    ):
        plan = plan_of(task)
        assert kind_of(task) == kind
        assert plan.reservoir == Reservoir() and plan.windows.plain and plan.store == "float16"
        assert "raw" not in plan.candidates


def test_layers_and_poolings_follow_the_kind_of_data():
    many = replace(SYMBOLS, form=Tokens(300))
    plan = plan_of(many)
    assert plan.poolings == ("last", "mean", "segments8", "tokens")
    assert plan.layers == ("embed", "block01", "block02")
    assert plan_of(many, backbone="gpt2-medium", init="random").poolings == ("last", "mean", "segments8")
    named = plan_of(replace(SERIES, name="digits"))
    assert named.poolings == ("last", "mean") and named.layers[-1] == "final" and len(named.layers) == 8


def test_series_and_symbols_get_kernels_and_known_candidates():
    series, symbols = plan_of(SERIES), plan_of(SYMBOLS)
    found = series.reservoir
    assert (found.input, found.gain, found.patch, found.stride) == ("kernels", 6.0, 9, 1)
    assert series.windows.dilations == (1, 2, 4, 8, 16, 32) and series.store == "float32"
    found = symbols.reservoir
    assert (found.input, found.patch, found.stride, found.pad) == ("kernels", 5, 1, "same")
    for plan in (series, symbols):
        check_poolings(list(plan.poolings))
        assert {name for joined in plan.candidates for name in joined.split("+")} == {*plan.columns, "raw"}
    assert set(VALUE_POOLINGS) < set(series.poolings)


def test_each_value_has_a_reason_and_given_options_say_so():
    plan = plan_of(SERIES, gain=2.0, layers="embed", compute="float32")
    table = {option: (value, why) for option, value, why in plan.table()}
    assert table["gain"] == ("2.0", "given") and table["layers"] == ("embed", "given")
    assert table["compute"] == ("float32", "given") and table["patch"] == ("9", "found best for series")
    assert all(why for _, why in table.values())
    reservoir = as_group(ExtractOptions(), ReservoirOptions).to_dict()
    assert reservoir.keys() | {"layers", "pool", "store", "compute", "device", "batch_rows"} <= table.keys()
    assert plan.to_dict()["columns"]["value"] == list(plan.candidates)


@pytest.mark.parametrize(("values", "rows"), [(9, 10), (1024, 100), (1025, 100), (5000, 300), (500, 100_000)])
def test_windows_fit_the_positions_and_the_budget(values, rows):
    task = replace(SERIES, max_tokens=values)
    tokens = plan_of(task, rows).reservoir.windowed(task).max_tokens
    assert 1 <= tokens <= 1024 and tokens * rows <= 2**21 + rows


def test_windows_are_learned_from_training_rows():
    plan = plan_of(replace(SERIES, max_tokens=900), longest=500)
    assert plan.reservoir == plan_of(SERIES).reservoir
    assert plan_of(replace(SERIES, max_tokens=5000), longest=500).reservoir.stride == 5  # the model has 1,024 positions


def test_one_option_of_the_windows_replaces_all_of_their_defaults():
    assert plan_of(SERIES, patch=4).reservoir == Reservoir(patch=4, stride=4)
    default = plan_of(SERIES).reservoir
    assert plan_of(SERIES, gain=2.0).reservoir == replace(default, gain=2.0)
    assert plan_of(SERIES, seed=3).reservoir == replace(default, seed=3)
    for fault in ({"dilations": "1,x"}, {"dilations": "0"}, {"pad": "none"}, {"normalise": "all"}, {"input": "other"}):
        with pytest.raises(InputError, match=f"--{next(iter(fault))}"):
            ReservoirOptions(**fault)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": "block99"}, "layer 'block99'"),
        ({"pool": "median"}, "pooling 'median'"),
        ({"pool": "cls"}, "--pool cls"),
        ({"pool": ","}, "no columns"),
        ({"depth": 7}, "has 6 blocks"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_model_is_loaded(given, message, monkeypatch):
    monkeypatch.setattr("reservoir.reservoir.load_model", None)
    with pytest.raises(InputError, match=message):
        plan_of(SERIES, **given)


def test_few_validation_rows_are_replaced_by_folds():
    assert default_folds(100, 999) == (5, 5) and default_folds(5000, 999) == (5, 1)
    assert default_folds(100, 1000) == (0, 1)


@pytest.mark.parametrize(("tokens", "patch"), [(9, 9), (17, 9), (500, 9), (500, 2), (7, 1)])
def test_dilations_grow_up_to_the_length(tokens, patch):
    found = every_dilation(tokens, patch)
    assert found == tuple(2**i for i in range(len(found)))
    assert all((patch - 1) * d < tokens for d in found[1:])
    assert patch == 1 or (patch - 1) * 2 * found[-1] >= tokens
