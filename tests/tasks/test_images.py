import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import check_split, encode, task_named
from reservoir.tasks.images.patches import patches
from tests.tasks import samples


def all_rows(source):
    """Return the splits of a source with their pieces joined."""
    parts = [source.read(piece) for piece in source.pieces()]
    names = {name for part in parts for name in part}
    return {n: np.concatenate([p[n].x for p in parts if n in p]) for n in names}, {
        n: np.concatenate([p[n].y for p in parts if n in p]) for n in names
    }


def test_patches_are_the_squares_of_the_image():
    images = np.arange(2 * 8 * 12 * 3).reshape(2, 8, 12, 3)
    tokens = patches(images, 4)
    assert tokens.shape == (2, 6, 48)
    for token in range(6):
        row, column = divmod(token, 3)
        square = images[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert np.array_equal(tokens[:, token], square.reshape(2, -1))


def test_digits_hold_every_image_once():
    from sklearn.datasets import load_digits

    source = task_named("digits")
    x, y = all_rows(source)
    assert {name: len(rows) for name, rows in x.items()} == {"train": 1078, "valid": 360, "test": 359}
    images, labels = load_digits(return_X_y=True)
    theirs, _ = source.encode(images.reshape(-1, 8, 8).astype(np.uint8))
    ours = np.concatenate([x[n].reshape(len(x[n]), -1) for n in x])
    rows = np.concatenate([ours, np.concatenate([y[n][:, 0] for n in x])], axis=1)
    expected = np.concatenate([theirs.reshape(1797, -1), labels[:, None]], axis=1)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, expected.astype(int).tolist()))
    scaled = source.scaling()(x["train"])
    assert scaled.min() == 0 and scaled.max() == 1
    for name, split in source.read(source.pieces()[0]).items():
        check_split(source.task, name, split)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["", "mnist"])
def test_mnist_reads_what_was_written(tmp_path, packed, below):
    arrays = samples.mnist_files(tmp_path / below, packed=packed)
    source = task_named("mnist", data=tmp_path)
    train, test = (source.read(piece) for piece in source.pieces())
    assert len(train["train"]) + len(train["valid"]) == 60
    x = test["test"].x
    assert x.shape == (12, 64, 16) and x.dtype == np.uint8
    whole = x.reshape(12, 8, 8, 4, 4).transpose(0, 1, 3, 2, 4).reshape(12, 32, 32)
    assert np.array_equal(whole[:, 2:30, 2:30], arrays["t10k-images-idx3-ubyte"])
    assert whole.sum(dtype=int) == arrays["t10k-images-idx3-ubyte"].sum(dtype=int)
    assert np.array_equal(test["test"].y.ravel(), arrays["t10k-labels-idx1-ubyte"])


def test_predict_encodes_as_prepare_does(tmp_path):
    arrays = samples.mnist_files(tmp_path)
    source = task_named("mnist", data=tmp_path)
    test = source.read(source.pieces()[1])["test"]
    x, lengths = encode(source.task, arrays["t10k-images-idx3-ubyte"])
    assert np.array_equal(x, test.x) and np.array_equal(lengths, test.lengths)
    assert np.array_equal(encode(source.task, x)[0], x)
    with pytest.raises(InputError, match=r"raw images.*\(rows, 64, 16\)"):
        encode(source.task, x[:, :5])
