import importlib.util
import sys

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import Tokens, Vectors, check_split, task_named

SPLITS = ["train", "valid", "test"] * 4


def read(source):
    """Return a task's rows by split."""
    (piece,) = source.pieces()
    splits = source.read(piece)
    for name, split in splits.items():
        check_split(source.task, name, split)
    return splits


def in_order(splits, array):
    """Return the rows as the file has them, which takes the splits in turns."""
    parts = [getattr(splits[name], array) for name in ("train", "valid", "test")]
    return np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])


def test_csv_with_a_column_per_value(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 5)).round(3)
    lines = ["label,split,a,b,c,d,e"]
    for row, (values, split) in enumerate(zip(x, SPLITS, strict=True)):
        cells = [str(v) for v in values]
        if row == 7:
            cells[3:] = ["", ""]
        lines.append(f"{'left' if row % 2 else 'right'},{split},{','.join(cells)}")
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n\n")
    source = task_named(str(tmp_path / "mine.csv"))
    splits = read(source)
    assert source.task.form == Vectors(1) and source.task.labels == ("left", "right")
    x[7, 3:] = 0
    assert np.array_equal(in_order(splits, "x")[:, :, 0], x.astype(np.float32))
    assert in_order(splits, "lengths").tolist() == [5] * 7 + [3] + [5] * 4
    assert in_order(splits, "y").ravel().tolist() == [1, 0] * 6


@pytest.mark.parametrize(("labels", "classes"), [(["0.5", "1"], 0), (["1", "2"], 2), (["1", "b"], 2)])
def test_csv_labels_are_numbers_where_they_can_be(tmp_path, labels, classes):
    rows = [f"{labels[n % 2]},{n % 5}.5,{n}" for n in range(20)]
    (tmp_path / "mine.csv").write_text("\n".join(["y,a,b", *rows]))
    assert task_named(str(tmp_path / "mine.csv")).task.classes == classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column of labels"),
        ("y,a\n", "no rows"),
        ("", "no rows"),
        ("y,a,b\n1,2,3\n1,2,3,4\n", "line 3: 4 cells under 3"),
        ("y,a,b\n1,2,x\n", "line 2: 'x' is not a number in column 'b'"),
        ("y,a,b\n1,,3\n1,2,3\n", "line 2: an empty cell in column 'a'"),
        ("y,x\n1,1 2\n2,1 q\n", "line 3: '1 q' is no sequence of numbers"),
        ("y,x\n1,1 2\n2,\n", "line 3: no sequence"),
        ("y\n1\n", "no columns of values"),
        ('y,a\n1,"2\n', "not a readable table"),
    ],
)
def test_csv_errors_name_the_place(tmp_path, text, message):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        task_named(str(tmp_path / "mine.csv")).task  # noqa: B018


def test_parquet(tmp_path):
    path = tmp_path / "mine.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        path.write_bytes(b"PAR1")
        with pytest.raises(InputError, match="needs pyarrow"):
            task_named(str(path)).task  # noqa: B018
        return
    import pyarrow
    import pyarrow.parquet

    sequences = [[[float(n), 1.0]] * (n % 4 + 1) for n in range(12)]
    table = pyarrow.table({"x": sequences, "y": [f"c{n % 2}" for n in range(12)], "split": SPLITS})
    pyarrow.parquet.write_table(table, path)
    source = task_named(str(path))
    splits = read(source)
    assert source.task.form == Vectors(2) and source.task.labels == ("c0", "c1")
    assert in_order(splits, "lengths").tolist() == [1, 2, 3, 4] * 3
    assert in_order(splits, "x")[5].tolist() == [[5, 1], [5, 1], [0, 0], [0, 0]]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="not a readable Parquet"):
        task_named(str(path)).task  # noqa: B018


@pytest.mark.parametrize("bomb", ["one long row", "one long word"])
def test_a_small_parquet_that_unpacks_to_gigabytes_is_refused(tmp_path, bomb):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zeros = pyarrow.array(np.zeros(20_000_000, np.int64))
    word = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(1000, np.int32)), pyarrow.array(["A" * 2**20]))
    x = word if bomb == "one long word" else pyarrow.ListArray.from_arrays(pyarrow.array([0, len(zeros)]), zeros)
    path = tmp_path / "mine.parquet"
    parquet.write_table(pyarrow.table({"x": x, "y": [f"c{n % 2}" for n in range(len(x))]}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="are stored"):
        task_named(str(path)).task  # noqa: B018


FUNCTION = """
import numpy as np

def rows():
    for n in range(12):
        yield np.full((n % 3 + 1, 2), n / 2), "even" if n % 2 == 0 else "odd", ["train", "valid", "test"][n % 3]

def plain():
    for n in range(30):
        yield [n % 5, 3], n % 3

def empty():
    return iter(())

number = 5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mysequences.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    yield "mysequences"
    sys.modules.pop("mysequences", None)


def test_a_function_yields_sequences(module):
    source = task_named(f"{module}:rows")
    splits = read(source)
    assert source.task.name == "mysequences.rows" and source.task.labels == ("even", "odd")
    assert source.files()[0].name == "mysequences.py"
    assert in_order(splits, "lengths").tolist() == [1, 2, 3] * 4
    assert in_order(splits, "x")[4].tolist() == [[2, 2], [2, 2], [0, 0]]
    assert task_named(f"{module}:plain").task.form == Tokens(5)
    assert str(task_named(f"{module}:plain").files()[0]) not in sys.path


@pytest.mark.parametrize(
    ("name", "message"),
    [("mysequences:none", "no attribute"), ("absent:rows", "No module"), ("mysequences:number", "is no function"),
     ("mysequences:empty", "must yield pairs")],
)  # fmt: skip
def test_other_objects_than_functions_are_refused(module, name, message):
    with pytest.raises(InputError, match=message):
        task_named(name).task  # noqa: B018


def test_without_standardisation_values_stay(tmp_path):
    x = np.random.default_rng(0).normal(3, 2, size=(12, 6, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(12) % 2, split=SPLITS)
    source = task_named(str(tmp_path / "a.npz"), standardise=False)
    assert np.array_equal(source.scaling()(x), x) and source.task.parameters == {"standardise": False}
