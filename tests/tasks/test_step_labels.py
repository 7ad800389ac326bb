"""Labels of steps in tables and folders are those of the same recordings in an ``.npz``."""

import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines.preparation.sources import open_source

from reservoir.errors import InputError
from tests.tasks.samples import assert_refused, read_new, read_splits

LENGTHS = np.random.default_rng(0).integers(8, 15, 30)
X = np.random.default_rng(1).normal(size=(30, 14, 2)).round(4)
Y = np.array(["rest", "walk", "run"])[np.random.default_rng(2).integers(0, 3, (30, 14))]


def frames(label="label"):
    for row, length in enumerate(LENGTHS):
        yield row, pd.DataFrame({"u": X[row, :length, 0], "v": X[row, :length, 1], label: Y[row, :length]})


def npz(folder):
    np.savez(folder / "x.npz", x=X, y=Y, lengths=LENGTHS)
    return read_splits(open_source(str(folder / "x.npz")))


def long_table(folder, label="label"):
    parts = [frame.assign(id=row, time=np.arange(len(frame))) for row, frame in frames(label)]
    pd.concat(parts).sample(frac=1, random_state=0).sort_values("id", kind="stable").to_csv(
        folder / "x.csv", index=False
    )
    return folder / "x.csv"


def recordings(folder, label="label"):
    (folder / "runs").mkdir()
    for row, frame in frames(label):
        frame.to_csv(folder / "runs" / f"{row:02d}.csv", index=False)
    return folder / "runs"


@pytest.mark.parametrize("write", [long_table, recordings])
@pytest.mark.parametrize(("label", "asked"), [("label", {}), ("state", {"label": "state"})])
def test_labels_of_steps_are_those_of_arrays(tmp_path, write, label, asked):
    path = write(tmp_path, label)
    source = open_source(str(path), **asked)
    assert source.task.labels_each_token and source.task.labels == ("rest", "run", "walk")
    assert any("labels every step" in note for note in source.notes())
    splits, expected = read_splits(source), npz(tmp_path)
    assert splits.keys() == expected.keys()
    for name, split in splits.items():
        for array in ("x", "y", "lengths"):
            assert np.array_equal(getattr(split, array), getattr(expected[name], array)), (name, array)
    new = read_new(path, source.task)
    assert new.y is not None
    assert [list(labels) for labels in new.y] == [Y[row, :length].tolist() for row, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("write", [long_table, recordings])
def test_new_recordings_need_no_labels_of_steps(tmp_path, write):
    path = write(tmp_path)
    task = open_source(str(path)).task
    for file in [path] if path.is_file() else path.iterdir():
        pd.read_csv(file).drop(columns="label").to_csv(file, index=False)
    new = read_new(path, task)
    assert new.y is None and len(new.x) == 30


def test_one_label_in_all_steps_is_that_of_the_recording(tmp_path):
    path = recordings(tmp_path)
    for row, file in enumerate(sorted(path.iterdir())):
        pd.read_csv(file).assign(label="ab"[row % 2]).to_csv(file, index=False)
    source = open_source(str(path))
    assert not source.task.labels_each_token and source.task.labels == ("a", "b")
    assert np.asarray(read_new(path, source.task).y).tolist() == ["a", "b"] * 15


def test_windows_are_cut_from_recordings_with_labels_of_steps(tmp_path):
    source = open_source(str(recordings(tmp_path)), window=5, step=3)
    np.savez(tmp_path / "x.npz", x=X, y=Y, lengths=LENGTHS, ids=[f"{row:02d}.csv" for row in range(30)])
    expected = read_splits(open_source(str(tmp_path / "x.npz"), window=5, step=3))
    for name, split in read_splits(source).items():
        assert np.array_equal(split.x, expected[name].x) and np.array_equal(split.y, expected[name].y)


def test_a_channel_called_y_is_no_label(tmp_path):
    path = recordings(tmp_path, "y")
    for file in path.iterdir():
        pd.read_csv(file).assign(y=1.5).to_csv(file, index=False)
    task = open_source(str(path)).task
    assert task.unlabelled and task.parameters["columns"] == ["u", "v", "y"]


def test_a_missing_label_is_a_bad_row(tmp_path):
    path = recordings(tmp_path)
    frame = pd.read_csv(path / "03.csv")
    frame.loc[2, "label"] = None
    frame.to_csv(path / "03.csv", index=False)
    assert_refused("03.csv.* no label in column 'label'", path)
    assert "03.csv" not in open_source(str(path), skip_bad_rows=True)._rows.names.tolist()


def test_a_label_that_changes_in_few_sequences_is_refused_with_the_form_that_would_be_read(tmp_path):
    table = pd.read_csv(long_table(tmp_path))
    table["label"] = np.where(table["id"] % 2, "a", "b")
    table.loc[table["id"] == 7, "label"] = ["a", "b"] * 4 + ["a"] * (LENGTHS[7] - 8)
    table.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(InputError, match=r"label differs .* \.npz with y \(sequences, steps\)"):
        _ = open_source(str(tmp_path / "x.csv")).task
