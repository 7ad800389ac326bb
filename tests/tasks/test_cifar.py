import pickle
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import encode, task_named
from reservoir.tasks.images.cifar import grey, read_pickle
from reservoir.tasks.images.patches import augmented
from reservoir.tasks.rows import held_out
from tests.tasks import samples


def joined(source):
    parts = [source.read(piece) for piece in source.pieces()]
    return {
        name: tuple(np.concatenate([getattr(p[name], a) for p in parts if name in p]) for a in ("x", "y"))
        for name in ("train", "valid", "test")
    }


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_every_form_of_the_files_gives_the_images(tmp_path, binary, packed):
    batches = samples.cifar_arrays()
    samples.cifar_files(tmp_path, batches, binary=binary, packed=packed)
    splits = joined(task_named("cifar10", data=tmp_path))
    images = [b.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for b, _ in batches]
    x, y = splits["test"]
    whole = x.reshape(-1, 8, 8, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 32, 32, 3)
    assert np.array_equal(whole, images[5]) and np.array_equal(y.ravel(), batches[5][1])
    rows = np.concatenate([10_000 * i + np.arange(40) for i in range(5)])
    labels = np.concatenate([labels for _, labels in batches[:5]])
    for name, chosen in (("train", ~held_out(rows)), ("valid", held_out(rows))):
        assert np.array_equal(splits[name][1].ravel(), labels[chosen])
        assert np.array_equal(
            splits[name][0], encode(task_named("cifar10").task, np.concatenate(images[:5])[chosen])[0]
        )


def test_grey_is_what_pillow_makes_of_it():
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    theirs = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    assert np.array_equal(grey(images), theirs)


def test_grey_task_is_one_pixel_a_token(tmp_path):
    batches = samples.cifar_arrays()
    samples.cifar_files(tmp_path, batches)
    source = task_named("cifar10-lra", data=tmp_path)
    x, _ = joined(source)["test"]
    images = batches[5][0].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(x.reshape(-1, 32, 32), grey(images))
    scaled = source.scaling()(np.array([[0], [255]], np.uint8))
    assert scaled.ravel().tolist() == [-1, 1]


def test_views_follow_the_rows_and_are_fixed_by_them(tmp_path):
    samples.cifar_files(tmp_path, samples.cifar_arrays())
    plain, viewed = (joined(task_named("cifar10", data=tmp_path, views=views)) for views in (0, 2))
    rows = len(plain["train"][0])
    assert len(viewed["train"][0]) == 3 * rows
    assert np.array_equal(viewed["train"][0][:rows], plain["train"][0])
    assert np.array_equal(viewed["train"][1], np.tile(plain["train"][1], (3, 1, 1)))
    for name in ("valid", "test"):
        assert np.array_equal(viewed[name][0], plain[name][0])
    one, two = viewed["train"][0][rows : 2 * rows], viewed["train"][0][2 * rows :]
    assert not np.array_equal(one, two)


def test_views_are_shifts_flips_and_turns_of_the_image():
    y, x = np.mgrid[:32, :32]
    images = np.repeat(np.stack([y, x, np.full_like(x, 255)], axis=2)[None].astype(np.uint8), 400, axis=0)
    views = augmented(images, np.arange(400), 1)
    middle = views[:, 12:20, 12:20].astype(float)
    assert (middle[..., 2] == 255).all(), "the middle never comes from the margin"
    flips, angles, shifts = [], [], []
    for view in middle:
        across, down = view[:, 1:] - view[:, :-1], view[1:] - view[:-1]
        flips.append(across[..., 1].mean() < 0)
        angles.append(np.degrees(np.arctan2(-down[..., 1].mean(), down[..., 0].mean())) * (-1 if flips[-1] else 1))
        shifts.append(view[..., :2].mean(axis=(0, 1)))
    assert 0.4 < np.mean(flips) < 0.6
    assert 15 < np.max(np.abs(angles)) < 24 and abs(np.mean(angles)) < 3
    shifts = np.array(shifts) - 15.5
    assert 3 < np.abs(shifts).max() < 6 and (np.abs(shifts.mean(axis=0)) < 0.6).all()
    assert ((views == 0).all(axis=3) | (views[..., 2] == 255)).all(), "what is not of the image is black"


class Payload:
    """Runs a command when it is unpickled by the ordinary reader."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_does_not_run(tmp_path, protocol):
    data = pickle.dumps({"data": Payload(tmp_path / "ran")}, protocol)
    read_pickle(data)
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)
    assert (tmp_path / "ran").exists(), "the payload works when Python's reader runs it"


@pytest.mark.parametrize("protocol", range(1, 6))
@pytest.mark.parametrize("text", [str, str.encode])
def test_pickles_of_every_protocol_are_read(protocol, text):
    images, labels = samples.cifar_arrays()[0]
    batch = {
        "batch_label": text("training batch 1"),
        "labels": labels.tolist(),
        "data": images,
        "filenames": [text("a.png")],
    }
    found = read_pickle(pickle.dumps({text(name): value for name, value in batch.items()}, protocol))
    assert found == (images.tobytes(), labels.tolist())


def test_a_malicious_batch_runs_nothing(tmp_path):
    batches = samples.cifar_arrays()
    samples.cifar_files(tmp_path, batches, binary=False)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    images, labels = batches[2]
    for changed in ({b"x": Payload(tmp_path / "ran")}, {b"labels": Payload(tmp_path / "ran")}):
        batch.write_bytes(pickle.dumps({b"data": images, b"labels": labels.tolist()} | changed, protocol=2))
        source = task_named("cifar10", data=tmp_path)
        with nullcontext() if b"x" in changed else pytest.raises(InputError, match="as many 'labels'"):
            for piece in source.pieces():
                source.read(piece)
        assert not (tmp_path / "ran").exists()


def test_fashion_is_not_mistaken_for_mnist(tmp_path):
    tmp_path = tmp_path / "data"
    samples.mnist_files(tmp_path / "mnist")
    samples.mnist_files(tmp_path)
    with pytest.raises(InputError, match="fashion-mnist"):
        task_named("fashion-mnist", data=tmp_path).files()
    samples.mnist_files(tmp_path / "fashion-mnist")
    for data in (tmp_path, tmp_path / "fashion-mnist"):
        source = task_named("fashion-mnist", data=data)
        assert len(source.files()) == 4 and source.task.label(9) == "ankle boot"
        assert len(source.read(source.pieces()[1])["test"]) == 12
