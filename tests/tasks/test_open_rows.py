"""Every format is opened by one function, which returns rows of one type and leaves large sequences on disk."""

import h5py
import numpy as np
import pytest
from PIL import Image
from reservoir_pipelines.data import formats
from reservoir_pipelines.data.formats import Format, open_rows
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.preparation.sources import open_source

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions

X, Y = np.arange(24.0).reshape(6, 4), np.array([0, 1] * 3)


def test_sequences_of_hdf5_are_read_by_ranges_of_rows(tmp_path):
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["x"], file["y"] = X, Y
    rows = open_rows(str(tmp_path / "mine.h5"), OwnDataOptions())
    assert not isinstance(rows.x, np.ndarray) and rows.x.shape == (6, 4) and len(rows) == 6
    np.testing.assert_array_equal(rows.x[2:4], X[2:4])
    assert isinstance(rows.y, np.ndarray) and rows.names.tolist() == [0, 1, 2, 3, 4, 5]


def test_files_of_images_are_read_by_ranges_of_rows(tmp_path):
    for name in ("red/0.png", "red/1.png", "blue/0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), name.split("/")[0]).save(tmp_path / name)
    rows = open_rows(str(tmp_path), OwnDataOptions())
    assert rows.holds == "images" and rows.x.shape == (3,) and rows.names.tolist()[0] == "blue/0.png"
    (stored,) = rows.x[1:2]
    assert stored.tobytes() == (tmp_path / "red" / "0.png").read_bytes()


def test_a_format_is_a_reader_and_its_suffixes(tmp_path, monkeypatch):
    path = tmp_path / "mine.txt"
    path.write_text("6")
    with pytest.raises(InputError, match=r"'\.txt' are not read"):
        open_rows(str(path), OwnDataOptions())
    extra = Format(lambda origin, options, task: Rows(x=X, y=Y), (".txt",))
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, extra))
    source = open_source(str(path))
    assert source.task.max_tokens == 4 and source.task.classes == 2


def test_data_are_described_with_the_flags_of_their_columns(tmp_path):
    lines = ["kind,a,b,c", *(f"{'uv'[n % 2]},{-n},{n * n},{n % 3}" for n in range(30))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    source = open_source(str(tmp_path / "t.csv"), label="kind")
    assert source.summary() == "t.csv: 30 rows of 3 tokens, with 2 classes, --label kind"
