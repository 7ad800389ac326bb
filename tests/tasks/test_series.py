"""Series of the UCR and UEA archives, their windows, and labels of their steps."""

import numpy as np
import pandas as pd
import pytest
import torch
from reservoir_pipelines.preparation.prepare import open_source

from reservoir.errors import InputError
from reservoir.tasks import Vectors
from reservoir.tasks.windows import Windows
from tests.tasks.samples import assert_refused, read_new, read_splits

HEAD = "# made by hand\n@problemName Hand\n@timeStamps false\n"
CLASSES = HEAD + "@univariate false\n@dimensions 2\n@classLabel true up down\n@data\n"
UP, DOWN = "1,2,3:1,1,1:up\n", "3,2,1,0:0,0,0,0:down\n"


def rows_of(source):
    return {name: (split.x, split.lengths, split.y[:, 0, 0]) for name, split in read_splits(source).items()}


def written(folder, train, test="", name="Hand", suffix=".ts"):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_TRAIN{suffix}").write_text(train)
    if test:
        (folder / f"{name}_TEST{suffix}").write_text(test)
    return folder


@pytest.mark.parametrize("named", ["", "Hand_TRAIN.ts", "Hand_TEST.ts"])
def test_a_folder_or_either_file_is_split_as_published(tmp_path, named):
    folder = written(tmp_path / "Hand", CLASSES + (UP + DOWN) * 12, CLASSES + "% a note\n\n" + DOWN + UP + UP)
    source = open_source(str(folder / named))
    rows = rows_of(source)
    assert {name: len(x) for name, (x, _, _) in rows.items()} == {"train": 22, "valid": 2, "test": 3}
    x, lengths, y = rows["test"]
    assert source.task.form == Vectors(2) and source.task.labels == ("down", "up") and y.tolist() == [0, 1, 1]
    assert lengths.tolist() == [4, 3, 3] and x[1, :3].tolist() == [[1, 1], [2, 1], [3, 1]]
    assert source.notes() == [f"{source.task.name}: split as published: Hand_TRAIN.ts and Hand_TEST.ts"]
    # Both files count their recordings from 0. Each makes two windows of two steps.
    windows = {name: len(x) for name, (x, _, _) in rows_of(open_source(str(folder / named), window=2)).items()}
    assert windows == {"train": 44, "valid": 4, "test": 6}
    assert len(source.files()) == 2


def test_a_file_alone_is_divided_and_read_again(tmp_path):
    folder = written(tmp_path / "Hand", CLASSES + (UP + DOWN) * 10)
    source = open_source(str(folder / "Hand_TRAIN.ts"))
    assert {name: len(x) for name, (x, _, _) in rows_of(source).items()} == {"train": 12, "valid": 4, "test": 4}
    bare = tmp_path / "new.ts"
    bare.write_text(CLASSES.replace("true up down", "false") + "1,2:0,0\n")
    x, lengths, _, y, *_ = read_new(bare, source.task)
    assert x.shape == (1, 2, 2) and lengths is not None and lengths.tolist() == [2] and y is None
    x, _, _, y, *_ = read_new(folder / "Hand_TRAIN.ts", source.task)
    assert x.shape == (20, 4, 2) and y is not None and y[:2].tolist() == ["up", "down"]
    # New series need no labels.
    bare.write_text(CLASSES + "1,2:0,0:?\n1,3:0,0:?\n")
    assert read_new(bare, source.task).y is None
    bare.write_text(CLASSES + "1,2:0,0:?\n1,3:0,0:Up\n")
    y = read_new(bare, source.task).y
    assert y is not None and y.tolist() == [None, "Up"]


def test_targets_and_missing_values(tmp_path):
    head = HEAD + "@missing true\n@targetlabel true\n@data\n"
    rows = "".join(f"{n},?,{n + 2}:{n}.5\n" for n in range(20))
    path = written(tmp_path, head + rows) / "Hand_TRAIN.ts"
    source = open_source(str(path), missing="interpolate")
    x, _, y = rows_of(source)["train"]
    assert source.task.classes == 0 and np.allclose(x[:, 1, 0], x[:, 0, 0] + 1) and np.allclose(y, x[:, 0, 0] + 0.5)
    with pytest.raises(InputError, match=r"x is nan in row 0, token 1.*--missing interpolate"):
        rows_of(open_source(str(path)))


def test_a_recording_without_any_value_of_a_channel_is_named(tmp_path):
    for number in range(6):
        cells = ["", "", ""] if number == 3 else [0.1, "", 0.3 + number]
        lines = "".join(f"{step},{number + step},{cell}\n" for step, cell in enumerate(cells))
        (tmp_path / f"r{number}.csv").write_text("time,a,b\n" + lines)
    labels = "".join(f"r{number}.csv,{number % 2}\n" for number in range(6))
    (tmp_path.parent / "labels.csv").write_text("file,label\n" + labels)
    source = open_source(str(tmp_path), labels=str(tmp_path.parent / "labels.csv"), missing="interpolate")
    with pytest.raises(InputError, match=r"no value at all in row 3 \(r3\.csv\), column 1.*--missing mask"):
        rows_of(source)


def test_ucr_tables_have_the_label_first_and_no_names(tmp_path):
    rows = "".join(f"{label}\t{n}\t{n + 0.5}\t{'NaN' if n % 2 else n + 1}\n" for n in range(10) for label in (-1, 1))
    folder = written(tmp_path / "Ucr", rows, rows, "Ucr", ".tsv")
    (folder / "README.md").write_text("words\n")
    source = open_source(str(folder))
    x, lengths, y = rows_of(source)["test"]
    assert source.task.labels == ("-1", "1") and y.tolist() == [0, 1] * 10 and lengths.tolist() == [3, 3, 2, 2] * 5
    assert x[:3, 0, 0].tolist() == [0, 0, 1]
    assert source.files() == [folder / "Ucr_TRAIN.tsv", folder / "Ucr_TEST.tsv"]
    x, _, _, y, *_ = read_new(folder / "Ucr_TEST.tsv", source.task)
    assert x.shape == (20, 3, 1) and y is not None and y[:2].tolist() == ["-1", "1"]
    assert open_source(str(folder), regression=True).task.classes == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLASSES.replace("Stamps false", "Stamps true") + UP, "time stamps, which are not read"),
        (HEAD, "no @data line"),
        (CLASSES, "no series after @data"),
        (CLASSES + UP + "1,2:1,2,3:up\n", "line 9: channels of \\[2, 3\\] values"),
        (CLASSES + UP + "1,2,3:up\n", r"sequences of \[1, 2\] channels"),
        (CLASSES + UP + "1,zwei,3:1,2,3:up\n", "line 9: 'zwei' is not a number"),
        (CLASSES.replace("class", "target") + UP, "line 8: 'up' is not a number"),
        (CLASSES + UP + "1,2,3:1,1,1:?\n", "line 9: no label at its end; add it"),
        (CLASSES.replace("class", "target") + "1,2,3:1,1,1:\n", "line 8: no label at its end"),
        (CLASSES + UP + "1,2,3:1,1,1:left\n", "line 9: the label 'left' is none of the classes that @classLabel"),
        (CLASSES + "1,2\0,3:1,1,1:up\n", "line 8: a NUL"),
        (CLASSES + UP + ":::up\n", r"sequences of \[2, 3\] channels"),
    ],
)
def test_malformed_series_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "odd.ts"
    path.write_text(text)
    assert_refused(message, path)


def test_folders_that_hold_no_or_several_data_sets(tmp_path):
    with pytest.raises(InputError, match="give the path of your data"):
        open_source(str(tmp_path)).files()
    for name in ("One", "Two"):
        written(tmp_path / "both", CLASSES + UP, CLASSES + UP, name)
    with pytest.raises(InputError, match="data sets One, Two; give the file of one"):
        open_source(str(tmp_path / "both")).files()
    written(tmp_path / "Two", CLASSES + UP, CLASSES + UP, "Two")
    written(tmp_path / "Two", CLASSES + UP, CLASSES + UP, "Two_eq")
    assert [file.name for file in open_source(str(tmp_path / "Two")).files()] == ["Two_TRAIN.ts", "Two_TEST.ts"]
    assert_refused("--label does not apply to data of this kind", tmp_path / "Two", label="y")


def by_hand(row, length, patch, stride, dilations, pad):
    """Return the tokens of one row (values, channels), one after the other."""
    middle = (patch - 1) // 2
    tokens = []
    for position in range(length):
        places = [position + (value - middle) * dilation for dilation in dilations for value in range(patch)]
        inside = [0 <= place < length for place in places]
        if pad == "same" or all(inside):
            tokens.append(np.concatenate([row[p] if ok else 0 * row[0] for p, ok in zip(places, inside, strict=True)]))
    return tokens[::stride]


@pytest.mark.parametrize("pad", ["valid", "same"])
@pytest.mark.parametrize("dilations", [(1,), (3,), (1, 2, 5)])
@pytest.mark.parametrize(("patch", "stride"), [(1, 1), (2, 1), (3, 2), (4, 1), (4, 7), (5, 3)])
def test_windows_are_those_of_a_plain_loop(patch, stride, dilations, pad):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 2, size=(9, 31, 2)).astype(np.float32)
    reach = 1 if pad == "same" else (patch - 1) * max(dilations) + 1
    lengths = np.r_[reach, 31, rng.integers(reach, 32, 7)]  # padding is not zero
    windows = Windows(patch=patch, stride=stride, dilations=dilations, pad=pad)
    tokens, counts = windows(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        expected = by_hand(x[row], length, patch, stride, dilations, pad)
        assert counts[row] == len(expected) == windows.counts(lengths)[row]
        np.testing.assert_array_equal(tokens[row, : len(expected)], expected)
        assert windows.plain or not tokens[row, len(expected) :].any()
    found, number = windows.of_tensors(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_array_equal(found.numpy(), tokens)
    np.testing.assert_array_equal(number.numpy(), counts)
    assert tokens.dtype == np.float32 and (windows.plain or counts.dtype == np.int32)


def test_rows_shorter_than_a_window_are_named():
    x, lengths = np.zeros((3, 20, 1), np.float32), np.array([20, 8, 20])
    with pytest.raises(InputError, match="row 1 has 8 values, fewer than a window of 9"):
        Windows(patch=3, dilations=(1, 4))(x, lengths)
    assert Windows(patch=3, dilations=(1, 4), pad="same")(x, lengths)[1].tolist() == [20, 8, 20]


def test_tensors_are_cut_in_a_program_for_any_batch():
    windows = Windows(patch=3, stride=2, dilations=(1, 4), pad="same")

    class Cut(torch.nn.Module):
        def forward(self, x, lengths):
            return windows.of_tensors(x, lengths)

    batch = torch.export.Dim("batch", max=2**31)  # torch 2.6 demands a bound
    program = torch.export.export(
        Cut(), (torch.ones(4, 20, 2), torch.tensor([20, 3, 9, 12])), dynamic_shapes=({0: batch}, {0: batch})
    )
    x, lengths = torch.randn(7, 20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(7, 14)
    for found, expected in zip(program.module()(x, lengths), windows.of_tensors(x, lengths), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("patch", "stride", "dilations"), [(5, 4, (1,)), (5, 5, (1,)), (5, 20, (1,)), (9, 100, (1, 2, 4, 8))]
)
def test_windows_know_the_share_of_a_row_that_they_read(patch, stride, dilations):
    length, windows = 4000, Windows(patch=patch, stride=stride, dilations=dilations, pad="same")
    begins = np.arange(0, length, stride)
    read = {int(t + (j - (patch - 1) // 2) * d) for t in begins for d in dilations for j in range(patch)}
    assert windows.read_share == sum(500 <= place < 3500 for place in read) / 3000


# Labels of steps in tables and folders are those of the same recordings in an ``.npz``.


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
