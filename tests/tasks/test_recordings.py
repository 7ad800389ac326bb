"""Recordings are cut and resampled as if by hand, their windows stay together, and a readout joins predictions."""

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from reservoir_pipelines import extract, fit, predict, prepare
from reservoir_pipelines.data import formats
from reservoir_pipelines.data.recordings import (
    nearest_steps,
    recording_name,
    resampled,
    stretch_of_steps,
    window_name,
    window_starts,
)
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.prediction.prediction import Prediction
from reservoir_pipelines.preparation.prepare import open_source, settings_folder
from scipy.signal import resample_poly

from reservoir.errors import InputError
from tests.tasks.samples import assert_refused, read_new, read_splits

LENGTHS = np.array([*range(30, 50), 7])  # the last one is shorter than a window


def recordings(seed=0, **others):
    x = np.random.default_rng(seed).normal(size=(len(LENGTHS), LENGTHS.max(), 2))
    x *= (np.arange(x.shape[1]) < LENGTHS[:, None])[..., None]
    return {"x": x, "y": np.arange(len(x)) % 2, "lengths": LENGTHS, **others}


def save(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return str(path)


def by_hand(arrays, starts):
    """Return the arrays of windows of ten steps that begin at ``starts`` of each recording, padded with zeros."""
    rows = {name: [] for name in ("x", "y", "lengths", "groups")}
    for row, of_recording in enumerate(starts):
        for start in of_recording:
            window = arrays["x"][row, start : min(start + 10, LENGTHS[row])]
            rows["x"].append(np.pad(window, [(0, 10 - len(window)), (0, 0)]))
            rows["y"].append(arrays["y"][row])
            rows["lengths"].append(len(window))
            rows["groups"].append(arrays["groups"][row] if "groups" in arrays else row)
    return {name: np.array(cells) for name, cells in rows.items()}


@pytest.mark.parametrize(
    ("length", "window", "step", "starts"),
    [
        (30, 10, 10, [0, 10, 20]),
        (31, 10, 10, [0, 10, 20, 21]),  # the last window ends with the recording
        (30, 10, 4, [0, 4, 8, 12, 16, 20]),
        (12, 10, 10, [0, 2]),
        (10, 10, 3, [0]),
        (4, 10, 3, [0]),
        (35, 10, 15, [0, 15]),  # steps between windows are left out, and so are those at the end
    ],
)
def test_windows_begin_every_step_and_reach_the_end(length, window, step, starts):
    assert window_starts(length, window, step) == starts


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("groups", [None, np.arange(len(LENGTHS)) // 3])
def test_windows_are_those_that_are_cut_by_hand(tmp_path, suffix, groups, monkeypatch):
    # Pieces of three recordings, so that windows are read from several ranges of a file.
    monkeypatch.setattr("reservoir_pipelines.data.hdf5.PIECE_ROWS", 3)
    arrays = recordings() if groups is None else recordings(groups=groups)
    starts = [window_starts(length, 10, 7) for length in LENGTHS]
    source = open_source(save(tmp_path / f"long{suffix}", arrays), window=10, step=7)
    expected = open_source(save(tmp_path / f"cut{suffix}", by_hand(arrays, starts)))
    if suffix == ".h5":
        assert len(source.pieces()) > 3
    windows, rows = read_splits(source), read_splits(expected)
    assert windows.keys() == rows.keys() == {"train", "valid", "test"}
    for name, split in windows.items():
        for array in ("x", "y", "lengths"):
            assert np.array_equal(getattr(split, array), getattr(rows[name], array)), (name, array)
    scaling, same = source.scaling(), expected.scaling()
    assert np.array_equal(scaling.offset, same.offset) and np.array_equal(scaling.scale, same.scale)


@pytest.mark.parametrize("groups", [None, np.array(list("abcdefg"))[np.arange(len(LENGTHS)) // 3]])
def test_no_recording_and_no_group_is_in_two_splits(tmp_path, groups):
    arrays = recordings(ids=np.arange(100, 100 + len(LENGTHS)))
    if groups is not None:
        arrays["groups"] = groups
    source = open_source(save(tmp_path / "long.npz", arrays), window=10)
    splits = {}
    for piece in source.pieces():
        for name, split in source.read(piece).items():
            for window in split.ids.tolist():
                recording = int(recording_name(window)) - 100
                unit = recording if groups is None else groups[recording]
                splits.setdefault(unit, set()).add(name)
                begin, end = map(int, window[window.index("[") + 1 : -1].split(":"))
                assert window == window_name(recording + 100, begin, end) and end <= LENGTHS[recording]
    assert len(splits) == (len(LENGTHS) if groups is None else 7)
    assert all(len(names) == 1 for names in splits.values())


def recordings_of_groups(source):
    """Return the split and the name of each recording by the number of its group."""
    found = {}
    for piece in source.pieces():
        for name, split in source.read(piece).items():
            for window, group in zip(split.ids.tolist(), split.groups.tolist(), strict=True):
                found.setdefault(group, set()).add((name, recording_name(window)))
    return found


def test_recordings_that_share_an_id_are_told_apart_by_their_numbers(tmp_path):
    sessions = recordings(ids=np.arange(len(LENGTHS)) % 3, groups=np.arange(len(LENGTHS)) // 3)
    found = recordings_of_groups(open_source(save(tmp_path / "sessions.npz", sessions), window=10))
    names = {frozenset(name for _, name in members) for members in found.values()}
    assert names == {frozenset(f"{n}#{3 * patient + n}" for n in range(3)) for patient in range(7)}


@pytest.mark.parametrize("recordings_per_id", [1, 2])
def test_ids_may_count_anew_in_each_split(tmp_path, recordings_per_id):
    ids = np.concatenate([np.arange(12), np.arange(9)]) // recordings_per_id
    arrays = recordings(ids=ids, split=np.repeat(["train", "test"], [12, 9]))
    found = recordings_of_groups(open_source(save(tmp_path / "long.npz", arrays), window=10))
    groups = {name: [] for name in ("train", "valid", "test")}
    for members in found.values():
        (split,) = {name for name, _ in members}
        groups[split].append(len(members))
    of_test = [1] * 9 if recordings_per_id == 1 else [1, 2, 2, 2, 2]
    assert sorted(groups["test"]) == of_test and groups["valid"]
    assert set(groups["train"] + groups["valid"]) == {recordings_per_id}
    assert sum(groups["train"] + groups["valid"]) == 12


def test_labels_of_steps_are_cut_with_the_steps(tmp_path):
    y = np.random.default_rng(1).integers(0, 3, (len(LENGTHS), LENGTHS.max()))
    source = open_source(save(tmp_path / "each.npz", recordings() | {"y": y}), window=10, step=4)
    assert source.task.labels_each_token and source.task.readout_tokens == 10
    seen = 0
    for piece in source.pieces():
        for split in source.read(piece).values():
            for window, labels, length in zip(split.ids.tolist(), split.y, split.lengths, strict=True):
                recording, begin = int(recording_name(window)), int(window[window.index("[") + 1 : window.index(":")])
                assert labels[:length, 0].tolist() == y[recording, begin : begin + length].tolist()
                seen += 1
    assert seen == sum(len(window_starts(length, 10, 4)) for length in LENGTHS)
    assert_refused("--step of at most 10", tmp_path / "each.npz", window=10, step=11)


def test_new_recordings_are_cut_as_those_of_the_readout(tmp_path):
    task = open_source(save(tmp_path / "long.npz", recordings()), window=10, step=7).task
    new = recordings(seed=5)
    del new["y"]
    rows = read_new(save(tmp_path / "new.npz", new), task)
    cut = by_hand(new | {"y": np.zeros(len(LENGTHS))}, [window_starts(length, 10, 7) for length in LENGTHS])
    assert np.array_equal(rows.x, cut["x"]) and rows.y is None
    assert rows.lengths is not None and rows.lengths.tolist() == cut["lengths"].tolist()


def test_skipped_recordings_keep_their_places_among_windows(tmp_path):
    for number in range(6):
        folder = tmp_path / "runs" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        values = ["1", "x" if number == 3 else "2", *map(str, np.arange(10))]
        (folder / f"{number}.csv").write_text("\n".join(["v", *values]) + "\n")
    for number in range(10, 20):
        (tmp_path / "runs" / "ab"[number % 2] / f"{number}.csv").write_text("v\n" + "1\n2\n3\n4\n5\n6\n7\n" * 2)
    task = open_source(str(tmp_path / "runs"), window=5, skip_bad_rows=True).task
    rows = read_new(tmp_path / "runs", task)
    # a/0, a/10 ... come first; b/3.csv is the bad one.
    names = sorted(f"{'ab'[n % 2]}/{n}.csv" for n in (*range(6), *range(10, 20)))
    place = names.index("b/3.csv")
    assert [recording_name(name) for name in rows.ids.tolist()][3 * place - 1] == names[place - 1]
    assert [*rows.skipped] == [3 * place] and rows.skipped[3 * place][0] == "b/3.csv"


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"step": 5}, "--window"), ({"window": 1}, "--window 1"), ({"resample": 5, "symbols": True}, "--symbols")],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path, asked, message):
    with pytest.raises(InputError, match=message):
        open_source(str(tmp_path / "x.npz"), **asked)


def test_texts_are_not_cut(tmp_path):
    (tmp_path / "t.csv").write_text("sequence,label\n" + "ACGT,a\nTTGA,b\n" * 9)
    assert_refused("--window does not apply", tmp_path / "t.csv", window=2)


def test_too_few_recordings_for_three_splits_are_counted_as_groups(tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 200, 1))
    path = save(tmp_path / "two.npz", {"x": x, "y": np.array([0, 1])})
    with pytest.raises(InputError, match="2 groups"):
        read_splits(open_source(path, window=20))


def test_data_that_was_prepared_before_keeps_its_folder():
    """The names are those that folders had before these options existed; only another value of RULES changes them."""

    def folder(**options):
        source = open_source("waves.npz", **options)
        return settings_folder(source.name, source.settings()).name

    assert folder() == "waves.npz-4e7a2974e1f90fd3"
    assert folder(label="a", classes=True) == "waves.npz-59c314c141922244"
    assert folder(window=9) != "waves.npz-4e7a2974e1f90fd3"


# ---- one recording


STEPS = 1200  # forty stretches of 30 steps, if windows have ten


def log(path, *, states=None, order=None, **columns):
    """Write a log with three channels whose rows are in the ``order``, and return its values and states in time."""
    values = np.random.default_rng(2).normal(size=(STEPS, 3)).round(4)
    states = np.array(["on", "off", "idle"])[np.arange(STEPS) // 7 % 3] if states is None else states
    table = {"timestamp": [f"2026-01-01T{n // 60:02d}:{n % 60:02d}:00" for n in range(STEPS)]}
    table |= {f"c{channel}": values[:, channel] for channel in range(3)} | columns | {"state": states}
    lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
    order = range(STEPS) if order is None else order
    path.write_text("\n".join([",".join(table), *(lines[row] for row in order)]) + "\n")
    return values, states


def windows_of(source):
    """Yield the split, the first step, the values, the labels and the group of each window of one recording."""
    for piece in source.pieces():
        for name, split in source.read(piece).items():
            windows = zip(split.ids.tolist(), split.x, split.y, split.lengths, split.groups, strict=True)
            for window, x, y, length, group in windows:
                begin, end = map(int, window[window.index("[") + 1 : -1].split(":"))
                assert end - begin == length and not x[length:].any()
                yield name, begin, x[:length], y[:length, 0], int(group)


def write_recording(path, values, states):
    """Write the values and states of a recording as an array, or as the only table of a folder."""
    if path.suffix:
        return save(path, {"x": values[None], "y": states[None]})
    path.mkdir()
    rows = [",".join(map(str, row)) for row in np.column_stack([values.astype(str), states])]
    (path / "run.csv").write_text("\n".join(["c0,c1,c2,label", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("form", ["table", "one.npz", "folder"])
def test_one_recording_is_cut_in_stretches_that_windows_never_cross(tmp_path, form):
    order = np.random.default_rng(0).permutation(STEPS)
    values, states = log(tmp_path / "log.csv", order=order)
    if form == "table":
        source = open_source(str(tmp_path / "log.csv"), label="state", window=10, step=8)
    else:
        source = open_source(write_recording(tmp_path / form, values, states), window=10, step=8)
    assert source.task.labels_each_token and source.task.labels == ("idle", "off", "on")
    numbers = np.unique(states, return_inverse=True)[1]
    splits, starts = {}, []
    for name, begin, x, y, group in windows_of(source):
        assert np.array_equal(x, values[begin : begin + 10].astype(np.float32))
        assert y.tolist() == numbers[begin : begin + 10].tolist()
        splits.setdefault(begin // 30, set()).add((name, group))
        starts.append(begin)
    by_hand = [30 * stretch + start for stretch in range(40) for start in (0, 8, 16, 20)]
    assert sorted(starts) == by_hand
    assert all(len(names) == 1 for names in splits.values()) and len(set.union(*splits.values())) == 40
    assert "40 stretches of one recording make 160 windows" in " ".join(source.notes())


def test_rows_without_a_time_are_the_only_ones_that_are_skipped(tmp_path):
    values, _ = log(tmp_path / "log.csv")
    lines = (tmp_path / "log.csv").read_text().splitlines()
    lines[1] = lines[1][lines[1].index(",") :]  # the first row has no time
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    source = open_source(str(tmp_path / "log.csv"), label="state", window=10, skip_bad_rows=True)
    assert f"skipped 1 of {STEPS:,} rows" in " ".join(source.notes())
    for _, begin, x, _, _ in windows_of(source):
        assert np.array_equal(x, values[1 + begin : 1 + begin + len(x)].astype(np.float32))


@pytest.mark.parametrize(
    ("steps", "window", "lengths"), [(119, 10, [10] * 10 + [19]), (1010, 10, [30] * 32 + [50]), (7, 9, [7])]
)
def test_stretches_hold_whole_windows_and_the_last_one_the_rest(steps, window, lengths):
    assert np.bincount(stretch_of_steps(steps, window)).tolist() == lengths


def test_stretches_are_dealt_so_that_each_split_has_its_share_of_a_rare_state(tmp_path):
    states = np.where(np.arange(STEPS) % 48 == 15, "fault", "fine")  # in every second stretch
    log(tmp_path / "log.csv", states=states)
    labels = {"train": [], "valid": [], "test": []}
    for name, _, _, y, _ in windows_of(open_source(str(tmp_path / "log.csv"), label="state", window=24)):
        labels[name] += y.tolist()
    assert {name: len(y) for name, y in labels.items()} == {"train": 720, "valid": 240, "test": 240}
    assert {name: y.count(0) for name, y in labels.items()} == {"train": 15, "valid": 5, "test": 5}


def test_targets_of_steps_are_values(tmp_path):
    targets = np.random.default_rng(0).normal(size=STEPS).cumsum().round(3)
    log(tmp_path / "log.csv", states=targets)
    source = open_source(str(tmp_path / "log.csv"), label="state", window=5)
    assert source.task.classes == 0 and source.task.labels_each_token
    for _, begin, _, y, _ in windows_of(source):
        assert np.array_equal(y, targets[begin : begin + 5].astype(np.float32))


def test_a_split_of_each_step_wins(tmp_path):
    split = np.repeat(["train", "valid", "test"], [730, 240, 230])
    values, _ = log(tmp_path / "log.csv", split=split)
    source = open_source(str(tmp_path / "log.csv"), label="state", window=5)
    groups, steps = {}, set()
    for name, begin, x, _, group in windows_of(source):
        assert (split[begin : begin + len(x)] == name).all()
        assert np.array_equal(x, values[begin : begin + len(x)].astype(np.float32))
        groups.setdefault(name, set()).add(group)
        steps |= {*range(begin, begin + len(x))}
    assert len(steps) == STEPS and [len(groups[name]) for name in ("train", "valid", "test")] == [29, 9, 9]
    log(tmp_path / "log.csv", split=np.array(["train", "valid", "test"])[np.arange(STEPS) % 3])
    assert_refused("split changes every 1 steps", tmp_path / "log.csv", label="state", window=5)


def test_a_split_that_is_shorter_than_a_window_is_a_shorter_window(tmp_path):
    split = np.repeat(["train", "valid", "test", "train", "test"], [500, 250, 220, 227, 3])
    values, _ = log(tmp_path / "log.csv", split=split)
    source = open_source(str(tmp_path / "log.csv"), label="state", window=10)
    shorter = [(begin, x) for _, begin, x, _, _ in windows_of(source) if len(x) < 10]
    assert [begin for begin, _ in shorter] == [1197] and np.array_equal(shorter[0][1], values[1197:].astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "asked", "message"),
    [
        ({"states": np.full(STEPS, "on")}, {"window": 5}, "all labels are the same"),
        ({}, {"window": 121}, "--window 120 or less"),
        ({}, {"window": 5, "step": 6}, "--step of at most 5"),
        ({}, {"window": 5, "resample": 600}, "--resample"),
        ({"timestamp": np.arange(STEPS) // 2}, {"window": 5}, "a second row at timestamp.*--id"),
        ({"timestamp": ["8:01 am"] * STEPS}, {"window": 5}, "cannot be sorted"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path, columns, asked, message):
    log(tmp_path / "log.csv", **columns)
    assert_refused(message, tmp_path / "log.csv", label="state", **asked)


# ---- resampling


@pytest.mark.parametrize(("length", "steps"), [(30, 10), (31, 10), (97, 13), (8, 7), (5, 2)])
def test_fewer_steps_are_means_over_equal_stretches(length, steps):
    values = np.random.default_rng(0).normal(1e6, 1, (length, 2))
    fine = np.repeat(values, steps, axis=0)  # a step is constant, so each stretch has whole parts of steps
    assert resampled(values, steps) == pytest.approx(fine.reshape(steps, length, 2).mean(axis=1), abs=1e-7)


@pytest.mark.parametrize(("length", "steps"), [(10, 31), (30, 31), (2, 9)])
def test_more_steps_lie_on_the_lines_between_neighbours(length, steps):
    middles = (np.arange(steps) + 0.5) * length / steps - 0.5
    line = resampled(np.arange(length)[:, None], steps)[:, 0]
    assert line == pytest.approx(np.clip(middles, 0, length - 1))


def test_fast_oscillations_do_not_appear_as_slow_ones():
    """As with SciPy's polyphase filter, a slow wave stays and a wave above the new Nyquist frequency nearly goes."""
    time = np.arange(4000)
    slow, fast = np.sin(2 * np.pi * 5 * time / 4000), np.sin(2 * np.pi * 399 * time / 4000)
    inner = slice(20, -20)
    ours = resampled(slow + fast, 400)[inner]
    filtered = resample_poly(slow + fast, 1, 10)[inner]
    every_tenth = (slow + fast)[5::10][inner]
    truth = slow[5::10][inner]
    assert np.abs(ours - truth).max() < 0.03 and np.abs(filtered - slow[::10][inner]).max() < 0.03
    assert np.abs(every_tenth - truth).max() > 0.9


def test_missing_values_are_left_out_of_means_and_gaps_stay_gaps():
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan])
    assert np.array_equal(resampled(values, 3), [1.0, 4.0, np.nan], equal_nan=True)
    assert np.isnan(resampled(np.full(6, np.nan), 3)).all()


def test_labels_of_steps_come_from_the_nearest_step(tmp_path):
    y = np.random.default_rng(1).integers(0, 3, (len(LENGTHS), LENGTHS.max()))
    arrays = recordings(ids=np.arange(len(LENGTHS))) | {"y": y}
    source = open_source(save(tmp_path / "each.npz", arrays), resample=12)
    assert source.task.max_tokens == 12
    for piece in source.pieces():
        for split in source.read(piece).values():
            for recording, x, labels in zip(split.ids, split.x, split.y, strict=True):
                places = [int((step + 0.5) * LENGTHS[recording] / 12) for step in range(12)]
                assert labels[:, 0].tolist() == y[recording, places].tolist()
                values = resampled(arrays["x"][recording, : LENGTHS[recording]], 12)
                assert np.array_equal(x, values.astype(np.float32))
    assert nearest_steps(3, 6).tolist() == [0, 0, 1, 1, 2, 2] and nearest_steps(6, 3).tolist() == [1, 3, 5]


def test_windows_are_cut_from_resampled_recordings(tmp_path):
    path = save(tmp_path / "long.npz", recordings())
    task = open_source(path, resample=20, window=10).task
    rows = read_new(path, task)
    whole = read_new(path, open_source(path, resample=20).task)
    assert task.max_tokens == 10 and len(rows.x) == 2 * len(LENGTHS)
    assert np.array_equal(rows.x.reshape(len(LENGTHS), 20, 2), whole.x)


# A readout of windows predicts whole recordings: the means of their windows' scores, as computed by hand.


SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "block01"}
WAVE_LENGTHS = np.random.default_rng(3).integers(18, 60, 45)


def waves(seed=0):
    """Return noisy recordings of unequal lengths, slow and fast ones."""
    draw = np.random.default_rng(seed)
    y = np.arange(len(WAVE_LENGTHS)) % 2
    time = np.arange(WAVE_LENGTHS.max())
    x = np.sin(time * (0.3 + 0.4 * y[:, None]) + draw.uniform(0, 6, (len(y), 1))) + draw.normal(
        0, 1, (len(y), len(time))
    )
    return {"x": x[:, :, None], "y": np.array(["slow", "fast"])[y], "lengths": WAVE_LENGTHS}


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


@pytest.mark.parametrize(
    ("readout", "others"),
    [("ridge", {}), ("sklearn.svm.LinearSVC", {}), ("ridge", {"ids": np.arange(45) // 3})],  # both classes in an id
)
def test_fit_scores_the_test_recordings_as_predict_joins_them(tmp_path, readout, others):
    np.savez(tmp_path / "long.npz", **waves(), **others)
    features = extract(tmp_path / "long.npz", cache=tmp_path / "cache", pool="mean", window=20, step=8, **SMALL)
    found = fit(features, out=tmp_path / "r", select="valid", readout=readout, columns="block01/mean")
    test = {recording_name(name) for name in features["test"].ids.tolist()}
    joined = [row for row in predict(found.saved, tmp_path / "long.npz", trust=True) if str(row.id) in test]
    share = np.mean([row.label == row.truth for row in joined])
    assert found.evaluation.scores["accuracy_of_recordings"] == pytest.approx(share)
    assert 5 < len(test) == len(joined) < 20


def test_readouts_without_probabilities_vote(tmp_path):
    saved = fitted(tmp_path, waves(), readout="sklearn.svm.LinearSVC", window=20, step=5)
    windows = by_recording(predict(saved, tmp_path / "long.npz", windows=True, trust=True))
    for row in predict(saved, tmp_path / "long.npz", trust=True):
        labels = [window.label for _, window in windows[str(row.id)]]
        first_of_most = max(sorted(set(labels)), key=labels.count)
        assert row.label == first_of_most and row.probabilities == []


def test_values_of_a_recording_are_means(tmp_path):
    draw = np.random.default_rng(0)
    saved = fitted(tmp_path, waves() | {"y": draw.normal(size=(len(WAVE_LENGTHS), 2))}, window=20)
    windows = by_recording(predict(saved, tmp_path / "long.npz", windows=True))
    for row in predict(saved, tmp_path / "long.npz"):
        mean = np.mean([window.label for _, window in windows[str(row.id)]], axis=0)
        assert row.label == pytest.approx(mean.tolist()) and len(row.truth) == 2


def test_every_step_gets_the_mean_of_the_windows_that_contain_it(tmp_path):
    arrays = waves()
    real = np.arange(WAVE_LENGTHS.max()) < WAVE_LENGTHS[:, None]
    states = np.where(arrays["x"][:, :, 0] > 0, "up", "down")
    np.savez(tmp_path / "long.npz", **arrays | {"y": np.where(real, states, "down")})
    features = extract(tmp_path / "long.npz", cache=tmp_path / "cache", window=20, step=8, **SMALL)
    saved = fit(features, out=tmp_path / "readout", select="valid", alphas="1:1:1").saved
    windows = by_recording(predict(saved, tmp_path / "long.npz", windows=True))
    joined = list(predict(saved, tmp_path / "long.npz"))
    assert [len(row.label) for row in joined] == WAVE_LENGTHS.tolist()
    for number, row in enumerate(joined):
        assert row.truth == states[number, : WAVE_LENGTHS[number]].tolist()
        for step in range(WAVE_LENGTHS[number]):
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
    steps = np.setdiff1d(np.arange(100), [20])  # the bad row is not a step
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


def folder_of_recordings(path, **columns):
    """Write 12 recordings of ten steps in two folders of classes, each with a channel and the given columns."""
    draw = np.random.default_rng(0)
    for number in range(12):
        steps = {"u": draw.normal(size=10).round(3), **{name: cells(number) for name, cells in columns.items()}}
        file = path / "ab"[number % 2] / f"{number}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(file, np.stack([*steps.values()], axis=1), "%g", ",", header=",".join(steps), comments="")
    return path


def test_a_group_in_every_row_of_a_recording_is_not_a_channel(tmp_path):
    path = folder_of_recordings(tmp_path / "runs", subject=lambda number: np.full(10, number // 3))
    assert_refused("'subject' is the same in the whole recording", path)
    assert open_source(str(path), drop="subject").task.parameters["columns"] == ["u"]
    path = folder_of_recordings(tmp_path / "ids", id=lambda number: np.arange(10) % 3)
    assert open_source(str(path)).task.parameters["columns"] == ["u", "id"]


def test_drop_and_time_name_columns_of_the_recordings_that_a_table_lists(tmp_path):
    values = np.random.default_rng(0).normal(size=(20, 8, 2)).round(3)
    (tmp_path / "runs").mkdir()
    for row, (a, b) in enumerate(values.transpose(0, 2, 1)):
        lines = [f"{7 - step},{a[step]},{b[step]}" for step in range(8)]
        (tmp_path / "runs" / f"{row}.csv").write_text("\n".join(["clock,a,b", *lines]))
    # The times of the list are those of its rows.
    lines = [f"runs/{row}.csv,{'uv'[row % 2]},{row}" for row in range(20)]
    (tmp_path / "list.csv").write_text("\n".join(["file,label,time", *lines]))
    given = {"text": "file", "cache": tmp_path / "cache"}
    prepared = prepare(tmp_path / "list.csv", drop="b", time="clock", **given)
    assert prepared.task.parameters["columns"] == ["a"] and prepared.task.parameters["time"] == "clock"
    stored = np.concatenate([split.read(0, len(split)).x[..., 0] for split in prepared.splits.values()])
    ids = np.concatenate([split.ids for split in prepared.splits.values()])
    rows = [int(Path(name).stem) for name in ids.tolist()]
    np.testing.assert_allclose(stored, values[rows, ::-1, 0], rtol=1e-6)
    # Files without columns have none to drop.
    (tmp_path / "pictures").mkdir()
    for row in range(20):
        Image.fromarray(np.full((8, 8), row, np.uint8)).save(tmp_path / "pictures" / f"{row}.png")
    for flag in ("drop", "time"):
        with pytest.raises(InputError, match=f"pictures: --{flag} does not apply to data of this kind"):
            prepare(tmp_path / "pictures", cache=tmp_path / "cache", **{flag: "note"})


def test_a_channel_that_may_be_the_time_is_named(tmp_path):
    path = folder_of_recordings(tmp_path / "runs", t=lambda number: number + np.arange(10) / 7)
    note = "the values of t increase in every recording, as times do"
    assert note in " ".join(open_source(str(path)).notes())
    source = open_source(str(path), time="t")
    assert source.task.parameters["columns"] == ["u"] and note not in " ".join(source.notes())
    write_once = folder_of_recordings(tmp_path / "one", t=lambda number: np.arange(10) % (5 + 6 * (number > 3)))
    assert note not in " ".join(open_source(str(write_once)).notes())


@pytest.mark.parametrize(
    ("cut", "gap", "part"), [({}, range(10), ""), ({"window": 4}, range(4, 8), " of the window [4:8]")]
)
def test_recordings_that_cannot_be_interpolated_are_bad_rows(tmp_path, cut, gap, part):
    path = folder_of_recordings(
        tmp_path / "runs", v=lambda number: np.where((number == 3) & np.isin(range(10), gap), np.nan, range(10))
    )
    with pytest.raises(InputError, match=r"no value at all in row .*\(b/3.csv"):
        read_splits(open_source(str(path), missing="interpolate", **cut))
    source = open_source(str(path), missing="interpolate", skip_bad_rows=True, **cut)
    problem = f"no value at all in column 1{part}"
    assert f"skipped 1 of 12 rows: row 8 (b/3.csv): {problem}" in " ".join(source.notes())
    windows = 3 if cut else 1  # of each recording
    assert sum(len(split.x) for split in read_splits(source).values()) == 11 * windows
    new = read_new(path, source.task)
    assert new.skipped == {8 * windows: ("b/3.csv", f"row 8: {problem}")} and len(new.x) == 11 * windows
    # If no recording is left, the message names it.
    only = formats.read_new(path / "b" / "3.csv", source.task)
    with pytest.raises(InputError, match=r"no value at all in row . \(3.csv"):
        formats.encode_rows(only, source.task, "3.csv")


def test_a_new_recording_that_cannot_be_interpolated_has_a_problem(tmp_path):
    saved = fitted(tmp_path, waves(), window=20, step=8, missing="interpolate")
    whole = list(predict(saved, tmp_path / "long.npz"))
    arrays, longest = waves(), int(WAVE_LENGTHS.argmax())
    arrays["x"][longest, 10:40] = np.nan
    np.savez(tmp_path / "gap.npz", **arrays)
    rows = list(predict(saved, tmp_path / "gap.npz"))
    assert rows[longest].id == longest and rows[longest].label is None
    assert rows[longest].problem == f"row {longest}: no value at all in column 0 of the window [16:36]"
    others = np.setdiff1d(np.arange(len(rows)), longest).tolist()
    assert [(rows[n].id, rows[n].probabilities) for n in others] == [(n, whole[n].probabilities) for n in others]
