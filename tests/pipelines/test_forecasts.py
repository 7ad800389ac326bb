"""Forecasts: windows of a series, folds in time, readouts fitted to all of the past, and the values that come next."""

import json

import numpy as np
import pandas as pd
import pytest
from reservoir_cache import Entry, FeatureStore, write_targets
from reservoir_pipelines import extract, fit, predict, prepare, train
from reservoir_pipelines.fitting import forecast_fitter, select
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.fitter import ColumnFit
from reservoir_pipelines.fitting.folds import time_folds
from reservoir_pipelines.fitting.forecast_fitter import ForecastFitter, mixture_weight
from reservoir_pipelines.fitting.predictions_csv import stretches_of_all_windows
from reservoir_pipelines.fitting.results import Result
from sklearn.linear_model import Ridge
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.errors import InputError
from reservoir.raw_input import MAX_WIDTH
from reservoir.readouts.evaluation import evaluate_values
from reservoir.readouts.linear import Targets
from reservoir.readouts.time_sweep import LastValue, TimeFold, time_sweep

PAST, HORIZON = 10, 3
TINY = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random"}


def series(steps=200, seed=0):
    draw = np.random.default_rng(seed)
    return 20 + 3 * np.sin(2 * np.pi * np.arange(steps) / 6) + draw.normal(0, 0.3, steps).cumsum()


def write(folder, values, name="load.csv", **columns):
    path = folder / name
    pd.DataFrame({"time": np.arange(len(values)), "load": values, **columns}).to_csv(path, index=False)
    return path


def extracted(path, **options):
    return extract(path, forecast=HORIZON, past=PAST, cache=path.parent / "cache", **TINY, **options)


# ---- windows


def test_windows_are_all_stretches_of_the_past_with_the_values_that_follow(tmp_path):
    values = series()
    data = prepare(write(tmp_path, values), forecast=HORIZON, past=PAST, cache=tmp_path)
    parts = {name: data.split(name) for name in ("train", "valid", "test")}
    read = {name: part.read(0, len(part)) for name, part in parts.items()}
    first = {name: part.ids.astype(int) for name, part in parts.items()}
    # Known windows and test windows: all of which the labels end before, or begin in, the newest 40 steps.
    assert np.concatenate([first["train"], first["valid"]]).tolist() == [*range(PAST, 160 - HORIZON + 1)]
    assert first["test"].tolist() == [*range(160, 200 - HORIZON + 1)]
    for name, rows in read.items():
        for row, step in enumerate(first[name]):
            np.testing.assert_allclose(rows.x[row, :, 0], values[step - PAST : step], rtol=1e-6)
            np.testing.assert_allclose(rows.y[row, 0], values[step : step + HORIZON], rtol=1e-6)


def test_several_series_are_divided_at_the_same_steps_before_their_ends(tmp_path):
    shops = [series(120, seed) for seed in range(3)]
    table = pd.concat(
        pd.DataFrame({"time": np.arange(120), "id": f"shop{n}", "load": values}) for n, values in enumerate(shops)
    )
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "shops.csv", index=False)
    data = prepare(tmp_path / "shops.csv", forecast=HORIZON, past=PAST, cache=tmp_path)
    assert data.task.parameters["series"] == 3
    for name, steps in (("train", range(PAST, 72)), ("valid", range(72, 94)), ("test", range(96, 118))):
        part = data.split(name)
        assert part.ids.tolist() == [f"shop{n} {step}" for step in steps for n in range(3)]
        labels = [shops[n][step : step + HORIZON] for step in steps for n in range(3)]
        np.testing.assert_allclose(part.y[:, 0], labels, rtol=1e-6)


def test_other_columns_are_further_values_of_the_past(tmp_path):
    draw = np.random.default_rng(0)
    heat = draw.normal(size=200)
    path = write(tmp_path, series(), heat=heat, place="here")
    with pytest.raises(InputError, match=r"one column to forecast among load, heat.*--label heat"):
        prepare(path, forecast=HORIZON, past=PAST, cache=tmp_path)
    data = prepare(path, forecast=HORIZON, past=PAST, label="load", cache=tmp_path)
    x = data.split("train").read(0, 1).x
    np.testing.assert_allclose(x[0], np.stack([series()[:PAST], heat[:PAST]], axis=1), rtol=1e-6)
    assert any("'place' is left out" in line for line in data.warnings)


def test_windows_without_a_value_to_forecast_are_left_out_and_gaps_are_filled_within_a_window(tmp_path):
    values = series()
    values[50] = np.nan
    path = write(tmp_path, values)
    with pytest.raises(InputError, match=r"line 52.*--missing interpolate"):
        prepare(path, forecast=HORIZON, past=PAST, cache=tmp_path)
    data = prepare(path, forecast=HORIZON, past=PAST, missing="interpolate", cache=tmp_path)
    steps = data.split("train").ids.astype(int).tolist()
    assert not {48, 49, 50} & {*steps}
    # The newest value of this window is missing; the line to the next value would reveal the future.
    row = steps.index(51)
    window = data.split("train").read(row, row + 1).x[0, :, 0]
    assert window[-1] == window[-2]


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"past": 5}, {}, "--past 5 needs --forecast"),
        ({"forecast": 3, "past": 190}, {}, "too few for --past 190"),
        ({"forecast": 3}, {"load": "high"}, "one column to forecast"),
        ({"forecast": 3}, {"time": 1}, "a second row at time 1.*--id"),
        ({"forecast": 3, "past": MAX_WIDTH + 1}, {}, f"at most {MAX_WIDTH:,} values"),
        ({"forecast": 3, "group": "load"}, {}, "--group does not apply"),
        ({"forecast": 3, "label": "price"}, {}, "no column 'price'"),
    ],
)
def test_what_cannot_be_forecast_is_refused(tmp_path, options, change, message):
    path = write(tmp_path, series(), **change)
    with pytest.raises(InputError, match=message):
        prepare(path, cache=tmp_path, **options)


def test_a_year_that_repeats_beside_months_may_be_dropped(tmp_path):
    months = np.arange(200)
    table = pd.DataFrame({"year": 2000 + months // 12, "month": 1 + months % 12, "other": 1, "load": series()})
    path = tmp_path / "months.csv"
    table.to_csv(path, index=False)
    options = {"forecast": HORIZON, "past": PAST, "label": "load", "cache": tmp_path}
    with pytest.raises(InputError, match=r"line 3: a second row at year 2000; .*, or --drop other,year if"):
        prepare(path, drop="other", **options)
    with pytest.raises(
        InputError, match=r"a second row at month 1; .*; pass --id NAME if the table holds several series$"
    ):
        prepare(path, time="month", **options)
    assert prepare(path, drop="other,year", **options).task.parameters["columns"] == ["load", "month"]


def test_arrays_are_no_steps(tmp_path):
    np.savez(tmp_path / "x.npz", x=series())
    with pytest.raises(InputError, match="table with a row per step"):
        prepare(tmp_path / "x.npz", forecast=3, cache=tmp_path)


# ---- the sweep


@pytest.mark.parametrize("width", [8, 90])
@pytest.mark.parametrize("relative", [False, True])
def test_the_sweep_is_that_of_scikit_learn_on_folds_in_time(width, relative):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, width)).astype(np.float32)
    y = x[:, :2] @ draw.normal(size=(2, 2)) + 5 * x[:, [3]] + draw.normal(size=(120, 2))
    alphas = np.geomspace(0.1, 1000, 5)
    past, last = slice(1, 4), 3
    last_value = LastValue(number=last, past=past, scale=2.0, offset=1.0) if relative else None
    result = time_sweep(
        [(x[:50], y[:50]), (x[50:], y[50:])], Targets(2, 0), alphas, time_folds(120, 4, 2), last_value=last_value
    )
    z, base = x.astype(np.float64), np.zeros((120, 1))
    if relative:
        base = 2 * z[:, [last]] + 1
        z[:, past] -= z[:, [last]]
    scores = []
    splits = [*TimeSeriesSplit(4, gap=2, test_size=15).split(x)]
    for alpha in alphas:
        model = make_pipeline(StandardScaler(), Ridge(alpha))
        parts = [model.fit(z[fitted], (y - base)[fitted]).predict(z[later]) + base[later] for fitted, later in splits]
        scores.append(np.concatenate(parts))
    later = np.concatenate([later for _, later in splits])
    squares = np.square(np.array(scores) - y[later]).sum(axis=1)
    accuracy = 1 - (squares / np.square(y[later] - y[later].mean(axis=0)).sum(axis=0)).mean(axis=1)
    np.testing.assert_allclose(result.accuracy, accuracy, rtol=1e-4)
    np.testing.assert_allclose(result.held_out()[0], scores[accuracy.argmax()], rtol=1e-3, atol=1e-4)
    final = make_pipeline(StandardScaler(), Ridge(alphas[result.best])).fit(z, y - base)
    np.testing.assert_allclose(result.readout().predict(x), final.predict(z) + base, rtol=1e-4, atol=1e-4)


def test_a_fold_ends_before_labels_of_its_held_out_windows_begin():
    for fold in time_folds(60, 5, HORIZON - 1):
        last_label = fold.fitted - 1 + HORIZON - 1
        assert last_label < fold.held_out.start
    assert fold.held_out.stop == 60
    with pytest.raises(InputError, match="windows are too few"):
        time_folds(8, 2, 6)
    assert time_folds(12, 2, 1) == [TimeFold(5, range(6, 9)), TimeFold(8, range(9, 12))]


# ---- the fit, and the forecast


def fitted(folder, values, **options):
    path = write(folder, values)
    return path, fit(extracted(path), out=folder / "readout", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curve": "20,60"}, "--curve: forecasts have no learning curve"),
        ({"control": True}, "--control: forecasts have"),
    ],
)
def test_what_a_fit_of_forecasts_cannot_show_is_refused_before_the_fit(tmp_path, options, message):
    features = extracted(write(tmp_path, series()))
    with pytest.raises(InputError, match=message):
        fit(features, columns="raw", out=tmp_path / "readout", **options)
    assert not (tmp_path / "readout").exists()


def test_overlapping_test_windows_count_once_for_each_stretch_of_forecast_steps(tmp_path, capsys):
    _, result = fitted(tmp_path, series(), columns="raw", alphas="10:10:1")
    windows = 40 - HORIZON + 1
    assert (result.evaluation.rows, result.evaluation.groups) == (windows, -(-windows // HORIZON))
    assert {comparison.groups for comparison in result.against} <= {result.evaluation.groups}
    assert "test windows overlap; intervals and p-values count 13 stretches of 3 steps" in capsys.readouterr().err
    # Earlier versions stored no stretches. If no window is left out, those of one step take turns.
    assert stretches_of_all_windows(np.arange(12), 2, 3).tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]


@pytest.mark.parametrize("noise_in_test", [0.3, 3])
def test_a_forecast_is_cautioned_only_if_its_errors_grow_too(tmp_path, capsys, noise_in_test):
    draw = np.random.default_rng(0)
    drift = np.concatenate([10 * np.sin(np.arange(160) / 15), np.full(40, 10 * np.sin(159 / 15))])
    values = drift + draw.normal(size=200) * np.repeat([0.5, noise_in_test], [160, 40])
    _, result = fitted(tmp_path, values, columns="raw", alphas="10:10:1")
    assert result.best.valid_score > 0.8 and result.best.test_score < 0.2
    is_cautioned = "more than two standard errors below validation" in capsys.readouterr().err
    assert is_cautioned == (noise_in_test > 0.5)


def test_validation_intervals_of_layers_count_stretches_too(tmp_path):
    features = extracted(write(tmp_path, series()), layers="embed,block01")
    result = fit(features, columns="embed/last,block01/last", alphas="10:10:1", out=tmp_path / "readout")
    lines = pd.read_csv(tmp_path / "readout" / "predictions.csv").query("split != 'test'").dropna(subset="embed")
    y, predicted = (lines.pivot(index="id", columns="output", values=name).to_numpy() for name in ("label", "embed"))
    first_test_step = 160
    stretches = (np.unique(lines["id"]) - first_test_step) // HORIZON
    by_hand = evaluate_values(y, predicted, groups=np.unique(stretches, return_inverse=True)[1]).interval
    score = next(score for score in result.layer_scores if score.layer == "embed")
    assert score.valid_interval == pytest.approx(by_hand, abs=1e-4)
    assert score.valid_interval != pytest.approx(evaluate_values(y, predicted).interval, abs=1e-3)


def test_a_stretch_holds_windows_of_one_series_if_series_have_gaps_or_other_lengths(tmp_path):
    lengths = {"a": 120, "b": 120, "c": 24}
    table = pd.concat(
        pd.DataFrame({"time": np.arange(120 - steps, 120), "id": name, "load": series(steps)})
        for name, steps in lengths.items()
    )
    # Some steps of b are missing, two of them among the newest 24, which are test.
    table.loc[(table["id"] == "b") & table["time"].isin([50, 98, 110]), "load"] = np.nan
    path = tmp_path / "shops.csv"
    table.to_csv(path, index=False)
    features = extracted(path, missing="interpolate")
    result = fit(features, columns="raw", alphas="10:10:1", out=tmp_path / "readout")
    lines = pd.read_csv(tmp_path / "readout" / "predictions.csv").query("split == 'test' and output == 0")
    names_and_steps = [line_id.split(" ") for line_id in lines["id"]]
    places = [(name, (int(step) - 96) // HORIZON) for name, step in names_and_steps]
    pairs = {*zip(places, lines["unit"], strict=True)}
    assert len(pairs) == len({*places}) == lines["unit"].nunique() == result.evaluation.groups
    # The next extraction adds the stretches to an entry of an earlier version, which stored none.
    rows = FeatureStore(features.entry)["test"]
    targets = {name: getattr(rows, name) for name in ("y", "lengths", "index", "ids")}
    write_targets(Entry.open(features.entry), "test", targets)
    assert FeatureStore(features.entry)["test"].stretches is None
    stretches = FeatureStore(extracted(path, missing="interpolate").entry)["test"].stretches
    np.testing.assert_array_equal(stretches, rows.stretches)


@pytest.mark.parametrize("readout", ["ridge", "ridge of changes", "mean of both ridges"])
def test_a_fit_of_the_raw_past_is_a_ridge_on_all_windows_before_the_test_steps(readout, tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "sort_key", property(lambda result: (result.readout == readout, result.valid_score)))
    values = series()
    path, result = fitted(tmp_path, values, columns="raw", alphas="10:10:1")
    assert result.best.readout == readout
    first = np.arange(PAST, 160 - HORIZON + 1)
    x = np.stack([values[step - PAST : step] for step in first])
    y = np.stack([values[step : step + HORIZON] for step in first])
    model, new, last = make_pipeline(StandardScaler(), Ridge(10)), values[None, -PAST:], values[-1]
    of_values = model.fit(x, y).predict(new)[0]
    of_changes = model.fit(x - x[:, -1:], y - x[:, -1:]).predict(new - last)[0] + last
    expected = {"ridge": of_values, "ridge of changes": of_changes}.get(readout, (of_values + of_changes) / 2)
    predictions = [*predict(tmp_path / "readout", path)]
    assert [prediction.id for prediction in predictions] == ["+1", "+2", "+3"]
    np.testing.assert_allclose([prediction.label for prediction in predictions], expected, rtol=1e-4)


def test_nothing_of_a_readout_depends_on_the_test_steps(tmp_path):
    values, changed = series(), series()
    changed[160:] += 100
    coefs = []
    for name, steps in (("as it was", values), ("another future", changed)):
        (tmp_path / name).mkdir()
        _, result = fitted(tmp_path / name, steps)
        coefs.append((result.best.columns, result.readout.coef, [row.name for row in result.baselines]))
    assert coefs[0][0] == coefs[1][0] and coefs[0][2] == coefs[1][2]
    np.testing.assert_array_equal(coefs[0][1], coefs[1][1])


def test_forecasts_that_repeat_values_stand_beside_the_readout(tmp_path):
    values = series()
    _, result = fitted(tmp_path, values)
    first = np.arange(160, 200 - HORIZON + 1)
    y = np.stack([values[step : step + HORIZON] for step in first])
    repeated = {
        "the last value": np.stack([values[[step - 1] * 3] for step in first]),
        "the value 6 steps before": np.stack([values[step - 6 : step - 6 + HORIZON] for step in first]),
    }
    scores = {baseline.name: baseline.test_score for baseline in result.baselines}
    assert scores.keys() == {"raw", *repeated}
    for name, forecast in repeated.items():
        r2 = 1 - (np.square(forecast - y).sum(axis=0) / np.square(y - y.mean(axis=0)).sum(axis=0)).mean()
        assert scores[name] == pytest.approx(r2, rel=1e-3)


def test_a_repetition_of_a_masked_value_is_the_newest_known_value_before_it(tmp_path, monkeypatch):
    values = series()
    values[np.random.default_rng(1).random(200) < 0.05] = np.nan
    values[[194, 199]] = np.nan  # what the forecast after the last step would repeat
    path = write(tmp_path, values)
    features = extracted(path, missing="mask")
    monkeypatch.setattr(select, "clearly_better", lambda fit, *_: str(fit.columns[0]) == "the value 6 steps before")
    result = fit(features, out=tmp_path / "readout")
    steps = prepare(path, forecast=HORIZON, past=PAST, missing="mask", cache=path.parent / "cache").split("test").ids
    first = steps.astype(int)
    y = np.stack([values[step : step + HORIZON] for step in first])
    newest = pd.Series(values).ffill().to_numpy()
    repeated = {
        "the last value": np.stack([newest[[step - 1] * 3] for step in first]),
        "the value 6 steps before": np.stack([newest[step - 6 : step - 6 + HORIZON] for step in first]),
    }
    scores = {row.name: row.test_score for row in (result.best, *result.baselines)}
    for name, forecast in repeated.items():
        r2 = 1 - (np.square(forecast - y).sum(axis=0) / np.square(y - y.mean(axis=0)).sum(axis=0)).mean()
        assert scores[name] == pytest.approx(r2, rel=1e-3)
    labels = [prediction.label for prediction in predict(tmp_path / "readout", path)]
    np.testing.assert_allclose(labels, newest[-6:-3], rtol=1e-6)


def test_noise_does_not_make_a_period_a_multiple_of_it():
    for seed in range(10):
        draw = np.random.default_rng(seed)
        values = 50 + 10 * np.sin(2 * np.pi * np.arange(900) / 24) + draw.normal(size=900)
        windows = np.lib.stride_tricks.sliding_window_view(values, 96 + 6)
        assert forecast_fitter.plain_period(windows[:, :96], windows[:, 96:]) == 24


@pytest.mark.parametrize("rule", ["auto", "cv3", "valid"])
def test_intervals_are_quantiles_of_the_errors_on_later_windows(tmp_path, rule):
    path, result = fitted(tmp_path, series(), select=rule)
    errors = Bundle.load(tmp_path / "readout").held_out
    held_out = {"auto": 10 * (148 // 20), "cv3": 3 * (148 // 6), "valid": 38}[rule]
    assert errors.shape == (held_out, HORIZON)
    radius = errors[int(np.ceil((held_out + 1) * 0.8)) - 1]
    for ahead, prediction in enumerate(predict(tmp_path / "readout", path, coverage=0.8)):
        low, high = prediction.interval
        assert (low, high) == pytest.approx((prediction.label - radius[ahead], prediction.label + radius[ahead]))
    lines = pd.read_csv(tmp_path / "readout" / "predictions.csv")
    known = lines[lines["split"] != "test"].dropna(subset="best")  # the oldest windows are never held out
    assert len(known) == held_out * HORIZON
    r2 = 1 - np.square(known.best - known.label).sum() / np.square(known.label - known.label.mean()).sum()
    assert r2 == pytest.approx(result.best.valid_score, abs=0.02)


def test_a_fit_must_be_better_in_most_folds():
    fitter = ForecastFitter(classes=0, alphas=np.ones(1), folds=10, gap=0)

    def scored(differences):
        return ColumnFit(columns=(), results=(), best=0, solve=None, sample_scores=lambda: np.repeat(differences, 3))

    level, units = scored(np.zeros(10)), np.arange(30)
    assert fitter.wins_most_folds(scored([1.0] * 6 + [-1.0] * 4), level, units)
    assert not fitter.wins_most_folds(scored([100.0] * 5 + [-1.0] * 5), level, units)
    assert not fitter.wins_most_folds(scored([1.0] * 9 + [-10.0]), level, units)


def test_hidden_states_are_weighted_with_the_raw_past(tmp_path, monkeypatch):
    path = write(tmp_path, series())
    extraction = extracted(path)

    def forecasts(columns, weight=None):
        monkeypatch.setattr(forecast_fitter, "mixture_weight", lambda *_: weight)
        result = fit(extraction, columns=columns, out=tmp_path / f"{weight}")
        assert (result.best.readout == forecast_fitter.WEIGHTED) == (columns != "raw")
        return np.array([prediction.label for prediction in predict(tmp_path / f"{weight}", path)])

    of_raw, of_states, between = (forecasts("block01/last+raw", weight) for weight in (0, 1, 0.25))
    assert np.abs(of_raw - of_states).max() > 1e-3
    np.testing.assert_allclose(of_raw, forecasts("raw"), rtol=1e-5)
    np.testing.assert_allclose(between, 0.75 * of_raw + 0.25 * of_states, rtol=1e-5)


def test_a_weight_is_that_of_least_squares_within_each_fold():
    draw = np.random.default_rng(0)
    others, scores, noise = draw.normal(size=(3, 40, 2))
    labels = others + 0.3 * (scores - others) + 0.1 * noise
    halves = [slice(20), slice(20, 40)]
    by_lstsq = [
        np.linalg.lstsq((scores - others)[half].reshape(-1, 1), (labels - others)[half].ravel())[0] for half in halves
    ]
    assert mixture_weight(others, scores, labels, 2) == pytest.approx(float(np.mean(by_lstsq)))
    assert mixture_weight(others, scores, 2 * scores - others, 2) == 1
    assert mixture_weight(others, others, labels, 2) == 0


def test_the_command_line_prints_a_line_for_each_step(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESERVOIR_CACHE", str(tmp_path / "cache"))
    write(tmp_path, series())
    backbone = ("--backbone", TINY["backbone"], "--init", "random")
    code, _, err = call("extract", "load.csv", "--forecast", HORIZON, "--past", PAST, *backbone)
    assert code == 0 and "with the values up to 3 steps ahead, --label load" in err, err
    code, out, err = call("fit", "load.csv", "--out", "readout")
    assert code == 0, err
    run = ("--forecast", HORIZON, "--past", PAST, *backbone, "--steps", 1, "--eval-every", 1)
    code, out_of_train, err = call("train", "load.csv", *run)
    assert code == 0, err
    for answer in (out, out_of_train):
        assert "\nR² 1 step ahead " in answer and "\nrmse 3 steps ahead " in answer and "of label" not in answer
    code, out, err = call("predict", "readout", "load.csv", "--coverage", "0.8")
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == ["+1", "+2", "+3"]
    assert all(line["interval"][0] < line["label"] < line["interval"][1] for line in lines)
    code, _, err = call("predict", "readout", "load.csv", "--out", "next.csv")
    assert code == 0, err
    assert pd.read_csv("next.csv").columns.tolist() == ["id", "label"]


def test_a_series_that_is_shorter_than_the_past_is_refused(tmp_path):
    fitted(tmp_path, series())
    with pytest.raises(InputError, match="has 4 steps, but the readout reads 10"):
        list(predict(tmp_path / "readout", write(tmp_path, series(4), "short.csv")))


def test_a_prediction_says_that_the_newest_steps_are_not_equally_spaced(tmp_path, capsys):
    path, _ = fitted(tmp_path, series(), columns="raw", alphas="10:10:1")
    table = pd.read_csv(path)
    for missing, note in ((100, ""), (198, f"1 of {PAST - 1} steps are more than 1.5 times as long")):
        table.drop(index=missing).to_csv(path, index=False)
        capsys.readouterr()
        predict(tmp_path / "readout", path)
        err = capsys.readouterr().err
        assert note in err and ("the times are not equally spaced" in err) == bool(note)


def test_each_series_gets_its_own_forecast(tmp_path):
    table = pd.concat(
        pd.DataFrame({"time": np.arange(90), "shop": name, "load": series(90, n)}) for n, name in enumerate("ab")
    )
    path = tmp_path / "shops.csv"
    table.to_csv(path, index=False)
    fit(extracted(path, id="shop", label="load"), out=tmp_path / "readout")
    ids = [prediction.id for prediction in predict(tmp_path / "readout", path)]
    assert ids == ["a +1", "a +2", "a +3", "b +1", "b +2", "b +3"]


def test_a_repetition_that_is_clearly_better_is_saved_and_forecasts(tmp_path, monkeypatch):
    name = "the value 6 steps before"
    monkeypatch.setattr(select, "clearly_better", lambda fit, *_: str(fit.columns[0]) == name)
    values = series()
    path, result = fitted(tmp_path, values)
    assert result.best.columns == (name,)
    labels = [prediction.label for prediction in predict(tmp_path / "readout", path)]
    np.testing.assert_allclose(labels, values[-6:-3], rtol=1e-6)


def test_ids_of_series_are_texts_and_none_may_be_missing(tmp_path):
    rows = [(f"{name}", day, np.sin(day / 3) + number) for number, name in enumerate(("007", "7")) for day in range(60)]
    path = tmp_path / "two.csv"

    def write_rows():
        path.write_text("\n".join(["id,day,load", *(f"{name},{day},{load:.4f}" for name, day, load in rows)]))

    write_rows()
    ids = prepare(str(path), forecast=3, past=10, time="day").split("test").ids
    assert {identifier.partition(" ")[0] for identifier in ids.tolist()} == {"007", "7"}
    rows[5] = ("", *rows[5][1:])
    write_rows()
    with pytest.raises(InputError, match="line 7: no id in column 'id'"):
        prepare(str(path), forecast=3, past=10, time="day")


def test_train_says_that_it_does_not_score_the_last_value(tmp_path, capsys):
    few = {"steps": 1, "device": "cpu", "cache": tmp_path / "cache"}
    train(write(tmp_path, series()), forecast=HORIZON, past=PAST, **TINY, **few)
    assert "load.csv: train does not score the last value as a forecast; fit does" in capsys.readouterr().err
