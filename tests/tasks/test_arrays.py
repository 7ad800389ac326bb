"""Users' own arrays, and the rule for whole numbers: symbols or values."""

import json
import pickle
from itertools import chain

import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from reservoir_pipelines.data.array_axes import channels_seem_first
from reservoir_pipelines.data.formats import read_new
from reservoir_pipelines.data.values import encode_values, read_integers, read_labels, read_pixel_rows
from reservoir_pipelines.preparation.prepare import open_source
from sklearn.datasets import load_digits

from reservoir.errors import InputError
from reservoir.tasks import Task, Tokens, Vectors
from reservoir.tasks.pictures import decoded
from tests.tasks.samples import assert_refused, read_splits

RNG = np.random.default_rng(0)


def save(path, **arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array.astype(h5py.string_dtype()) if array.dtype.kind == "U" else array
    return path


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_floats_with_named_classes_and_splits(tmp_path, suffix):
    x = RNG.normal(3000, 0.5, (40, 6, 3))
    y = np.array(["cat", "dog"])[RNG.integers(0, 2, 40)]
    split = np.array(["train", "valid", "test", "train"] * 10)
    source = open_source(str(save(tmp_path / f"mine{suffix}", x=x, y=y, split=split)))
    assert source.task.form == Vectors(3) and source.task.labels == ("cat", "dog")
    splits = read_splits(source)
    for name, rows in splits.items():
        assert np.array_equal(rows.x, x[split == name].astype(np.float32))
        assert [source.task.label(k) for k in rows.y.ravel()] == y[split == name].tolist()
    scaled = source.scaling()(splits["train"].x)
    assert np.abs(scaled.mean((0, 1))).max() < 1e-3 and np.abs(scaled.std((0, 1)) - 1).max() < 1e-3


def test_values_behind_the_length_are_ignored(tmp_path):
    x = RNG.normal(size=(30, 5, 2)).astype(np.float32)
    lengths = np.tile([2, 5, 3], 10)
    padded = x.copy()
    padded[np.arange(5) >= lengths[:, None]] = np.nan
    files = [save(tmp_path / f"{i}.npz", x=v, y=np.arange(30) % 2, lengths=lengths) for i, v in enumerate((x, padded))]
    one, two = (open_source(str(file)) for file in files)
    assert np.array_equal(one.scaling().offset, two.scaling().offset)
    for name, rows in read_splits(one).items():
        assert np.array_equal(rows.x, read_splits(two)[name].x)
        assert not rows.x[np.arange(5) >= rows.lengths[:, None]].any()


@pytest.mark.parametrize(
    ("y", "classes", "names", "shape"),
    [
        (np.arange(30) % 3, 3, (), (1, 1)),
        (np.arange(30) % 3 - 1, 3, (-1, 0, 1), (1, 1)),
        (np.array([-7, 0, 5] * 10, np.int8), 3, (-7, 0, 5), (1, 1)),
        (np.array(["7", "10"] * 15), 2, ("10", "7"), (1, 1)),
        (np.arange(60).reshape(30, 2) % 2 == 0, 2, (False, True), (1, 2)),
        (np.linspace(0, 1, 60).reshape(30, 2), 0, (), (1, 2)),
        (np.arange(120).reshape(30, 4, 1) % 2, 2, (), (4, 1)),
    ],
)
def test_labels_of_every_kind(tmp_path, y, classes, names, shape):
    task = open_source(str(save(tmp_path / "a.npz", x=RNG.normal(size=(30, 5, 2)), y=y))).task
    assert (task.classes, task.labels, (task.readout_tokens, task.outputs)) == (classes, names, shape)
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_encode_needs_only_the_description(tmp_path):
    path = save(tmp_path / "a.npz", x=RNG.normal(size=(30, 5, 2)), y=np.arange(30) % 2)
    task = open_source(str(path)).task
    path.unlink()
    x, lengths = encode_values(task, RNG.normal(size=(3, 4, 2)))
    assert x.dtype == np.float32 and lengths.tolist() == [4, 4, 4]
    assert encode_values(task, np.zeros((3, 6, 2)))[1].tolist() == [6, 6, 6]  # new sequences may be longer
    with pytest.raises(InputError, match=r"the model reads numbers \(rows, tokens, 2\)"):
        encode_values(task, np.zeros((3, 6, 1)))


def test_encode_refuses_rows_that_end_before_the_tokens_that_are_read(tmp_path):
    arrays = {"x": RNG.normal(size=(30, 5, 2)), "y": np.arange(120).reshape(30, 4, 1) % 2}
    task = open_source(str(save(tmp_path / "a.npz", **arrays))).task
    with pytest.raises(InputError, match="length 3 in row 1 is not between 4 and 5"):
        encode_values(task, arrays["x"], np.array([4, 3] * 15))
    with pytest.raises(InputError, match="length 3 in row 0"):
        encode_values(task, arrays["x"][:, :3])


def test_a_pickled_source_holds_no_arrays(tmp_path):
    source = open_source(str(save(tmp_path / "a.npz", x=RNG.normal(size=(300, 50, 2)), y=np.arange(300) % 2)))
    read_splits(source)
    assert len(pickle.dumps(source)) < 1000
    assert pickle.loads(pickle.dumps(source)).task == source.task


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (1.7e9 + 60 * RNG.normal(size=300), "column 0 .* subtract an offset"),
        (np.stack([RNG.normal(size=300), 1e5 + 0.1 * RNG.normal(size=300)], 1), "column 1 .* subtract an offset"),
        (np.where(np.arange(300) == 7, 1e39, RNG.normal(size=300)), "y is 1e.39 in row 7"),
    ],
)
def test_targets_that_lose_their_digits_are_refused(tmp_path, y, message):
    assert_refused(message, save(tmp_path / "a.npz", x=RNG.normal(size=(300, 5, 2)), y=y))


TIME = np.arange(100)
WAVES = np.sin(TIME * RNG.uniform(0.05, 0.3, (300, 1)) + 6 * RNG.random((300, 1)))


def zipf(vocabulary, rows, tokens):
    chance = 1 / np.arange(1, vocabulary + 1)
    return RNG.permutation(vocabulary)[RNG.choice(vocabulary, (rows, tokens), p=chance / chance.sum())]


NAMES = {
    "DNA": RNG.integers(0, 4, (300, 100)),
    "few DNA": RNG.integers(0, 4, (10, 5)),
    "bits": RNG.integers(0, 2, (300, 100)),
    "states with long stays": np.repeat(RNG.integers(0, 6, (300, 10)), 10, axis=1),
    "text": np.frombuffer((__doc__ * 60).encode(), np.uint8)[:3000].reshape(-1, 100),
    "words": zipf(50_000, 300, 100),
    "few words": zipf(20_000, 40, 30),
}
VALUES = {
    "counts": (2048 + 400 * WAVES).astype(int),
    "noisy counts": (2048 + 400 * (WAVES + RNG.normal(size=WAVES.shape))).astype(int),
    "counts that overflow": np.clip(2048 + 1500 * (WAVES + RNG.normal(size=WAVES.shape)), 0, 4095).astype(int),
    "bytes": (128 + 100 * WAVES).astype(np.uint8),
    "ten levels": np.rint(4.5 + 4.5 * WAVES).astype(int),
    "below zero": (100 * WAVES).astype(int),
    "large": RNG.integers(0, 10**9, (300, 100)),
}


@pytest.mark.parametrize("name", [*NAMES, *VALUES])
def test_arrays_are_read_as_symbols_or_values_by_one_rule(name):
    x = (NAMES | VALUES)[name]
    assert read_integers(x).are_names == (name in NAMES), read_integers(x).why
    # Padding after the lengths has no influence.
    lengths = np.full(len(x), x.shape[1])
    assert read_integers(np.pad(x, ((0, 0), (0, 50))), lengths).are_names == (name in NAMES)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.arange(300) % 7, True),
        (np.arange(600) % 100 + 1, True),
        (RNG.permutation(np.arange(1195).repeat(10)), True),
        (np.array([3, 5] * 10), True),
        (np.array([0, 1]), True),
        (RNG.integers(18, 91, 1000), False),
        (RNG.poisson(300, 500), False),
        (np.arange(30), False),
        (np.array([-1, 1] * 4), True),
        (np.rint(5 * RNG.normal(size=60)).astype(int), False),
        (np.repeat([10, 20, 50], 20), True),
    ],
)
def test_labels_are_read_as_classes_or_numbers_by_one_rule(y, classes):
    assert read_labels(y).are_names == classes


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("groups", [np.array(["a", "b", " ", "c"] * 10), np.array([0, 1, np.nan, 2] * 10)])
def test_a_missing_group_is_refused(tmp_path, suffix, groups):
    x, y = RNG.normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InputError, match=r"no group in row 2; give every row one"):
        read_splits(open_source(str(save(tmp_path / f"a{suffix}", x=x, y=y, groups=groups))))


def test_sensor_counts_are_read_as_values_with_a_note(tmp_path):
    path = str(save(tmp_path / "a.npz", x=VALUES["counts"], y=np.arange(300) % 2))
    source = open_source(path)
    assert source.task.form == Vectors(1)
    assert any("a.npz: x read as values (neighbours differ" in note for note in source.notes())
    assert np.array_equal(source.scaling().offset, open_source(path, values=True).scaling().offset)
    assert open_source(path, symbols=True).task.form == Tokens(int(VALUES["counts"].max()) + 1)
    assert open_source(path, values=True).notes() == []


def test_integer_targets_are_read_as_a_regression_with_a_note(tmp_path):
    y = RNG.integers(18, 91, 300)
    path = str(save(tmp_path / "a.npz", x=RNG.normal(size=(300, 4)), y=y))
    source = open_source(path)
    assert source.task.classes == 0 and any("y read as targets of a regression" in note for note in source.notes())
    assert open_source(path, classes=True).task.classes == len(np.unique(y))
    few = save(tmp_path / "b.npz", x=RNG.normal(size=(30, 4)), y=np.arange(30) % 3)
    assert open_source(str(few), regression=True).task.classes == 0
    whole = open_source(str(save(tmp_path / "c.npz", x=RNG.normal(size=(30, 4)), y=np.arange(30) % 3 / 1.0)))
    assert whole.task.classes == 0 and any("y holds whole numbers as floats" in note for note in whole.notes())
    assert open_source(str(tmp_path / "c.npz"), classes=True).task.classes == 3


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_images_in_an_array_are_read_as_files_of_them_are(tmp_path, suffix, channels):
    x = RNG.integers(0, 256, (30, 9, 9) if channels is None else (30, 7, 9, channels)).astype(np.uint8)
    names = np.array([f"row{row}" for row in range(30)])
    source = open_source(str(save(tmp_path / f"mine{suffix}", x=x, y=np.arange(30) % 2, ids=names)))
    assert source.task.pictures == 32 and "read as images of" in " ".join(source.notes())
    for row, pixels in enumerate(x):
        folder = tmp_path / "files" / str(row % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(folder / f"{row:02d}.png")
    of_files = open_source(str(tmp_path / "files"))
    images_by_id = {}
    for data in (source, of_files):
        for split in chain.from_iterable(data.read(piece).values() for piece in data.pieces()):
            images_by_id |= dict(zip(map(str, split.ids), map(np.asarray, map(decoded, split.x)), strict=True))
    assert len(images_by_id) == 60
    for row, pixels in enumerate(x):
        assert np.array_equal(images_by_id[names[row]], images_by_id[f"{row % 2}/{row:02d}.png"])
        assert np.array_equal(images_by_id[names[row]][..., 0], pixels.reshape(*pixels.shape[:2], -1)[..., 0])
    new = read_new(save(tmp_path / f"new{suffix}", x=x[:2]), source.task)
    assert len(new) == 2 and new.holds == "images"
    # The classes of the arrays are the numbers 0 and 1, which the folders have as names.
    assert np.asarray(read_new(tmp_path / "files", source.task).y).tolist() == [0] * 15 + [1] * 15


def test_arrays_that_may_be_images_are_refused_or_read_as_the_user_says(tmp_path):
    square = RNG.integers(0, 256, (30, 9, 9)).astype(np.uint8)
    y = np.arange(30) % 2
    assert open_source(str(save(tmp_path / "a.npz", x=square, y=y)), values=True).task.form == Vectors(9)
    steps = save(tmp_path / "s.npz", x=square, y=RNG.integers(0, 2, (30, 9)))  # every step has a label
    assert open_source(str(steps)).task.labels_each_token
    other_sides = save(tmp_path / "o.npz", x=square[:, :, :8], y=y)
    (note,) = open_source(str(other_sides)).notes()
    assert "9 steps of 8 channels; pass --pixels 255 if the rows are images of 9x8 pixels" in note
    assert open_source(str(other_sides), values=True).notes() == []
    assert open_source(str(other_sides), pixels=255).task.pictures == 32
    floats = np.repeat(square[..., None] / 255, 3, -1)
    remedy = r"give images as bytes \(uint8\).* --pixels 255 for grey ones that are not as high as wide"
    assert_refused(f"float64 values; {remedy}", save(tmp_path / "b.npz", x=floats, y=y))
    assert_refused("height, width, 3", save(tmp_path / "c.npz", x=np.moveaxis(floats, -1, 1).astype(np.uint8), y=y))
    source = open_source(str(save(tmp_path / "images.npz", x=np.repeat(square[..., None], 3, -1), y=y)))
    for name in "bc":  # a readout of bytes reads bytes, and `predict` has no flag for others
        with pytest.raises(InputError, match=r"; give images as bytes .*, or grey ones \(rows, height, width\)$"):
            read_new(tmp_path / f"{name}.npz", source.task)
    # One image without an axis of rows is not as many grey ones as it has rows of pixels.
    one = save(tmp_path / "one.npz", x=RNG.integers(0, 256, (40, 30, 3)).astype(np.uint8))
    with pytest.raises(InputError, match=r"\(40, 30, 3\), that of one image with channels, .*; add the axis of rows"):
        read_new(one, source.task)
    colours_first = save(tmp_path / "first.npz", x=np.repeat(square[:, None], 3, 1), y=y)
    task = open_source(str(colours_first), channels_first=True).task
    with pytest.raises(InputError, match=r"\(3, 40, 30\), without an axis of channels, or of rows; add the axis"):
        read_new(save(tmp_path / "one.npz", x=RNG.integers(0, 256, (3, 40, 30)).astype(np.uint8)), task)
    assert_refused("images, which have no lengths", save(tmp_path / "d.npz", x=square, y=y, lengths=np.full(30, 9)))


def stored(source):
    """Return the stored sequences of a source by the names of its rows; images decoded."""
    sequences = {}
    for split in chain.from_iterable(source.read(piece).values() for piece in source.pieces()):
        x = map(np.asarray, map(decoded, split.x)) if source.task.pictures else split.x
        sequences |= dict(zip(map(str, split.ids), x, strict=True))
    return sequences


def assert_same_rows(one, two):
    one, two = stored(one), stored(two)
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_channels_first_is_the_same_array_with_its_axes_moved(tmp_path, suffix):
    walks = RNG.normal(size=(30, 40, 3)).cumsum(axis=1)
    y = np.arange(30) % 2
    last = open_source(str(save(tmp_path / f"last{suffix}", x=walks, y=y)))
    path = save(tmp_path / f"first{suffix}", x=np.moveaxis(walks, 2, 1), y=y)
    assert not any("--channels-first" in note for note in last.notes())
    assert any("3 steps of 40 channels; pass --channels-first" in note for note in open_source(str(path)).notes())
    first = open_source(str(path), channels_first=True)
    assert_same_rows(first, last)
    assert np.array_equal(first.scaling().offset, last.scaling().offset)
    assert np.array_equal(read_new(path, first.task).x, walks)
    images = RNG.integers(0, 256, (20, 9, 8, 3)).astype(np.uint8)
    files = [save(tmp_path / f"{n}{suffix}", x=x, y=y[:20]) for n, x in enumerate((images, np.moveaxis(images, 3, 1)))]
    assert_refused(r"\(rows, height, width\), or pass --channels-first for", files[1])
    assert_same_rows(open_source(str(files[0])), open_source(str(files[1]), channels_first=True))


def test_channels_are_found_by_which_axis_is_smooth():
    walks = RNG.normal(size=(20, 30, 50)).cumsum(axis=1)  # more channels than steps
    assert not channels_seem_first(walks) and channels_seem_first(np.swapaxes(walks, 1, 2))
    noise = RNG.normal(size=(20, 5, 50))
    assert channels_seem_first(noise) and not channels_seem_first(np.swapaxes(noise, 1, 2))


def blobs(rows, side):
    """Return grey images (rows, side, side) of bytes with one blob each."""
    places = np.arange(side)
    centres, widths = RNG.uniform(2, side - 2, (2, rows, 1)), RNG.uniform(1, 2, (rows, 1))
    rows_of_pixels, columns = (np.exp(-(((places - centre) / widths) ** 2)) for centre in centres)
    return (255 * rows_of_pixels[:, :, None] * columns[:, None, :]).astype(np.uint8)


@pytest.mark.parametrize("form", ["integers", "shares", "levels", "square", "table", "red first", "red beside green"])
def test_pixels_in_a_row_are_read_as_the_image_that_they_are(tmp_path, form):
    images, y = blobs(40, 16), np.arange(40) % 2
    flat, flags = images.reshape(40, -1), {"pixels": 255}
    if form == "red first":
        images = np.stack([images, images[::-1], images.swapaxes(1, 2)], axis=3)
        flat, flags = np.moveaxis(images, 3, 1).reshape(40, -1), {"pixels": 255, "channels_first": True}
    elif form == "red beside green":
        images = np.stack([images, images[::-1], images.swapaxes(1, 2)], axis=3)
        flat = images.reshape(40, -1)
    elif form == "levels":
        flat, images, flags = flat // 16, images // 16 * 17, {"pixels": 15}
        flat[0, 0], images[0, 0, 0] = 15, 255
    elif form == "shares":
        flat, flags = flat / 255, {"pixels": 1}
    elif form == "square":
        flat = images.astype(int)
        flat[0, 0, 0] = images[0, 0, 0] = 255
    path = tmp_path / "flat.npz"
    if form == "table":
        path = tmp_path / "flat.csv"
        pd.DataFrame(flat).add_prefix("pixel").assign(label=y).to_csv(path, index=False)
    else:
        save(path, x=flat if form == "shares" else flat.astype(int), y=y)
    command = " ".join(
        f"--{name}".replace("_", "-") + f" {value}" * (name == "pixels") for name, value in flags.items()
    )
    assert any(f"pass {command}" in note for note in open_source(str(path)).notes())
    source = open_source(str(path), **flags)
    assert_same_rows(source, open_source(str(save(tmp_path / "images.npz", x=images, y=y))))
    new = read_new(path, source.task)
    assert new.holds == "images" and len(new) == 40


def test_series_and_symbols_are_not_taken_for_pixels():
    for x in (RNG.normal(size=(30, 784)).cumsum(axis=1), RNG.integers(0, 4, (30, 64)), RNG.random((30, 768))):
        assert read_pixel_rows(np.abs(x)) is None
    assert not read_integers(load_digits().data[:100].astype(int)).are_names


def test_pixels_out_of_range_and_rows_that_are_not_square_are_refused(tmp_path):
    y = np.arange(30) % 2
    assert_refused("not a square image", save(tmp_path / "a.npz", x=np.ones((30, 60)), y=y), pixels=1)
    dark = open_source(str(save(tmp_path / "b.npz", x=np.full((30, 64), -1.0), y=y)), pixels=1)
    with pytest.raises(InputError, match=r"x holds -1\.0"):
        stored(dark)
    assert_refused("does not apply", save(tmp_path / "c.npz", x=np.array(["text"] * 30), y=y), channels_first=True)
    assert_refused("axis of channels", save(tmp_path / "d.npz", x=np.ones((30, 60)), y=y), channels_first=True)
    grey = save(tmp_path / "e.npz", x=np.ones((30, 8, 10)), y=y)
    assert_refused("axis of channels", grey, channels_first=True, pixels=1)
    infinite = np.ones((30, 16, 16))
    infinite[3, 4, 5] = np.inf
    series = open_source(str(save(tmp_path / "f.npz", x=infinite, y=y)))  # whose notes suggest no value of white
    with pytest.raises(InputError, match="inf in row 3"):
        stored(series)
