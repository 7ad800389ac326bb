"""A readout of windows predicts whole recordings: the means of their windows' scores, as computed by hand."""

import csv
import json

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.prediction.prediction import Prediction

from reservoir import InputError

SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "block01"}
LENGTHS = np.random.default_rng(3).integers(18, 60, 45)


def waves(seed=0):
    """Return noisy recordings of unequal lengths, slow and fast ones."""
    draw = np.random.default_rng(seed)
    y = np.arange(len(LENGTHS)) % 2
    time = np.arange(LENGTHS.max())
    x = np.sin(time * (0.3 + 0.4 * y[:, None]) + draw.uniform(0, 6, (len(y), 1))) + draw.normal(
        0, 1, (len(y), len(time))
    )
    return {"x": x[:, :, None], "y": np.array(["slow", "fast"])[y], "lengths": LENGTHS}


def fitted(folder, arrays, readout="ridge", **options):
    np.savez(folder / "long.npz", **arrays)
    features = extract(folder / "long.npz", cache=folder / "cache", pool="mean", **SMALL, **options)
    return fit(features, out=folder / "readout", select="valid", readout=readout, columns="block01/mean").saved


def by_recording(windows):
    """Return the predictions of windows, with their first steps, by the name of their recording."""
    recordings: dict[str, list[tuple[int, Prediction]]] = {}
    for window in windows:
        name, _, steps = str(window.id).partition("[")
        recordings.setdefault(name, []).append((int(steps.partition(":")[0]), window))
    return recordings


def test_probabilities_of_a_recording_are_the_means_of_its_windows(tmp_path):
    saved = fitted(tmp_path, waves(), window=20, step=8)
    np.savez(tmp_path / "new.npz", **waves(seed=1), ids=np.arange(100, 145))
    windows = by_recording(predict(saved, tmp_path / "new.npz", windows=True))
    joined = list(predict(saved, tmp_path / "new.npz"))
    assert [row.id for row in joined] == list(range(100, 145)) and len(predict(saved, tmp_path / "new.npz")) == 45
    several = 0
    for row, truth in zip(joined, waves(seed=1)["y"], strict=True):
        mean = np.mean([window.probabilities for _, window in windows[str(row.id)]], axis=0)
        several += len(windows[str(row.id)]) > 1
        assert row.probabilities == pytest.approx(mean, abs=2e-6)
        assert row.label == row.classes[int(mean.argmax())] and row.truth == truth
    assert several > 30
    evaluation = evaluate_predictions(joined)
    assert evaluation and evaluation.samples == 45
    assert evaluation.scores["accuracy"] == pytest.approx(np.mean([row.label == row.truth for row in joined]))


@pytest.mark.parametrize("readout", ["ridge", "sklearn.svm.LinearSVC"])
def test_fit_scores_the_test_recordings_as_predict_joins_them(tmp_path, readout):
    np.savez(tmp_path / "long.npz", **waves())
    features = extract(tmp_path / "long.npz", cache=tmp_path / "cache", pool="mean", window=20, step=8, **SMALL)
    found = fit(features, out=tmp_path / "r", select="valid", readout=readout, columns="block01/mean")
    test = {int(name.partition("[")[0]) for name in features["test"].ids}
    joined = [row for row in predict(found.saved, tmp_path / "long.npz", trust=True) if row.id in test]
    share = np.mean([row.label == row.truth for row in joined])
    assert found.evaluation.scores["accuracy_of_recordings"] == pytest.approx(share) and 5 < len(test) < 20


def test_readouts_without_probabilities_vote(tmp_path):
    saved = fitted(tmp_path, waves(), readout="sklearn.svm.LinearSVC", window=20, step=5)
    windows = by_recording(predict(saved, tmp_path / "long.npz", windows=True, trust=True))
    for row in predict(saved, tmp_path / "long.npz", trust=True):
        labels = [window.label for _, window in windows[str(row.id)]]
        first_of_most = max(sorted(set(labels)), key=labels.count)
        assert row.label == first_of_most and row.probabilities == []


def test_values_of_a_recording_are_means(tmp_path):
    draw = np.random.default_rng(0)
    saved = fitted(tmp_path, waves() | {"y": draw.normal(size=(len(LENGTHS), 2))}, window=20)
    windows = by_recording(predict(saved, tmp_path / "long.npz", windows=True))
    for row in predict(saved, tmp_path / "long.npz"):
        mean = np.mean([window.label for _, window in windows[str(row.id)]], axis=0)
        assert row.label == pytest.approx(mean.tolist()) and len(row.truth) == 2


def test_every_step_gets_the_mean_of_the_windows_that_contain_it(tmp_path):
    arrays = waves()
    real = np.arange(LENGTHS.max()) < LENGTHS[:, None]
    states = np.where(arrays["x"][:, :, 0] > 0, "up", "down")
    np.savez(tmp_path / "long.npz", **arrays | {"y": np.where(real, states, "down")})
    features = extract(tmp_path / "long.npz", cache=tmp_path / "cache", window=20, step=8, **SMALL)
    saved = fit(features, out=tmp_path / "readout", select="valid", alphas="1:1:1").saved
    windows = by_recording(predict(saved, tmp_path / "long.npz", windows=True))
    joined = list(predict(saved, tmp_path / "long.npz"))
    assert [len(row.label) for row in joined] == LENGTHS.tolist()
    for number, row in enumerate(joined):
        assert row.truth == states[number, : LENGTHS[number]].tolist()
        for step in range(LENGTHS[number]):
            members = [(start, window) for start, window in windows[str(row.id)] if 0 <= step - start < 20]
            mean = np.mean([window.probabilities[step - start] for start, window in members], axis=0)
            assert row.probabilities[step] == pytest.approx(mean, abs=2e-6)
            assert row.label[step] == row.classes[int(mean.argmax())]


def test_one_window_predicts_what_it_predicts_alone(tmp_path):
    """A recording of one window has the prediction of that window, and a resampled one is resampled alike."""
    saved = fitted(tmp_path, waves(), resample=30, window=30)
    windows = list(predict(saved, tmp_path / "long.npz", windows=True))
    joined = list(predict(saved, tmp_path / "long.npz"))
    assert [(a.label, a.probabilities) for a in windows] == [(b.label, b.probabilities) for b in joined]
    assert {len(window.to_dict()["id"].partition("[0:30")[2]) for window in windows} == {1}


def test_the_command_line_cuts_and_joins(tmp_path, call, refusal, cache):
    np.savez(tmp_path / "long.npz", **waves())
    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    assert call("extract", tmp_path / "long.npz", "--window", 20, "--step", 8, "--pool", "mean", *flags)[0] == 0
    assert call("fit", tmp_path / "long.npz", "--window", 20, "--step", 8, "--out", tmp_path / "r")[0] == 0
    for flag, rows in (((), 45), (("--windows",), None)):
        out = tmp_path / "p.csv"
        code, _, err = call("predict", tmp_path / "r", tmp_path / "long.npz", "--out", out, *flag)
        assert code == 0, err
        written = list(csv.DictReader(out.open()))
        assert len(written) == rows or len(written) > 90
    code, printed, _ = call("predict", tmp_path / "r", tmp_path / "long.npz")
    assert code == 0 and [json.loads(line)["id"] for line in printed.splitlines()] == list(range(45))
    assert "--windows" in refusal("predict", tmp_path / "r", tmp_path / "long.npz", "--coverage", 0.9)
    assert call("predict", tmp_path / "r", tmp_path / "long.npz", "--coverage", 0.9, "--windows")[0] == 0


def test_windows_of_other_readouts_are_refused(tmp_path):
    saved = fitted(tmp_path, waves())
    with pytest.raises(InputError, match="not fitted on windows"):
        predict(saved, tmp_path / "long.npz", windows=True)


def test_a_log_gets_the_mean_of_its_windows_for_each_row_in_the_order_of_the_file(tmp_path):
    """The rows of a log are not in the order of their times, one cannot be read, and one has no label."""
    draw = np.random.default_rng(0)
    states = np.array(["up", "down"])[np.arange(200) // 9 % 2]
    values = draw.normal(np.where(states == "up", 1, -1), 1).round(3)
    rows = [f"{10 * step},{values[step]},{states[step]}" for step in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["time,u,state", *rows]) + "\n")
    features = extract(tmp_path / "log.csv", cache=tmp_path / "cache", label="state", window=10, step=4, **SMALL)
    result = fit(features, out=tmp_path / "readout", select="valid", alphas="1:1:1")
    assert result.evaluation.groups == 4  # of twenty stretches

    order = draw.permutation(100)
    rows[20] = "200,ERR,up"
    rows[30] = f"300,{values[30]},"
    (tmp_path / "new.csv").write_text("\n".join(["time,u,state", *(rows[step] for step in order)]) + "\n")
    windows = [
        window for _, window in by_recording(predict(result.saved, tmp_path / "new.csv", windows=True))["new.csv"]
    ]
    steps = np.setdiff1d(np.arange(100), [20])  # the bad row is no step
    sums, counts = np.zeros((99, 2)), np.zeros((99, 1))
    for window in windows:
        begin = int(window.id.partition("[")[2].partition(":")[0])
        sums[begin : begin + 10] += window.probabilities
        counts[begin : begin + 10] += 1
    predictions = predict(result.saved, tmp_path / "new.csv")
    assert len(predictions) == 100
    by_row = list(predictions)
    assert [row.id for row in by_row] == [str(10 * step) for step in order]
    for row, step in zip(by_row, order.tolist(), strict=True):
        if step == 20:
            assert row.label is None and "'ERR' is not a number" in row.problem
            continue
        mean = (sums / counts)[np.searchsorted(steps, step)]
        assert row.probabilities == pytest.approx(mean, abs=2e-6) and row.label == row.classes[int(mean.argmax())]
        assert row.truth == (None if step == 30 else states[step])
    evaluation = evaluate_predictions(by_row)
    assert evaluation and evaluation.samples == 98 and evaluation.groups == 9
    # Without labels, the rows have the same predictions.
    (tmp_path / "unlabelled.csv").write_text("time,u\n" + "\n".join(rows[step].rpartition(",")[0] for step in order))
    unlabelled = list(predict(result.saved, tmp_path / "unlabelled.csv"))
    assert [row.probabilities for row in unlabelled] == [row.probabilities for row in by_row]
    assert {row.truth for row in unlabelled} == {None}
