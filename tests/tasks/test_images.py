"""Images as tokens: patches, whitened windows, views, and the publishers' files."""

import pickle
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from reservoir_pipelines.data.values import encode_values

from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.input_layers import edges
from reservoir.loaded_model import load_model
from reservoir.pooling import find_pooling
from reservoir.reservoir import Reservoir
from reservoir.tasks import Task, Vectors, task_named
from reservoir.tasks.images import grey, read_pickle
from reservoir.tasks.pictures import LEVELS, augmented, patches, whitened_windows, whitening
from reservoir.tasks.rows import held_out
from tests.tasks import samples


def joined(source):
    return {name: (split.x, split.y) for name, split in samples.read_splits(source).items()}


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
    splits = joined(source)
    assert {name: len(x) for name, (x, _) in splits.items()} == {"train": 1078, "valid": 360, "test": 359}
    images, labels = load_digits(return_X_y=True)
    theirs, _ = source.encode(images.reshape(-1, 8, 8).astype(np.uint8))
    rows = np.concatenate([np.c_[x.reshape(len(x), -1), y[:, 0]] for x, y in splits.values()])
    expected = np.concatenate([theirs.reshape(1797, -1), labels[:, None]], axis=1)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, expected.astype(int).tolist()))
    scaled = source.scaling()(splits["train"][0])
    assert scaled.min() == 0 and scaled.max() == 1


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


def test_mnist_has_no_border_under_the_papers_protocol(tmp_path):
    images = samples.mnist_files(tmp_path)["t10k-images-idx3-ubyte"]
    source = task_named("mnist", data=tmp_path, protocol="paper")
    assert source.task.max_tokens == 49 and source.task.parameters == {"protocol": "paper"}
    x, _ = encode_values(source.task, images)
    assert np.array_equal(x, patches(images, 4)) and np.array_equal(source.images(x)[..., 0], images)
    assert "protocol" not in task_named("mnist", protocol="ours").task.parameters
    with pytest.raises(InputError, match="protocol is 'yours'"):
        task_named("mnist", protocol="yours")


def test_predict_encodes_as_prepare_does(tmp_path):
    arrays = samples.mnist_files(tmp_path)
    source = task_named("mnist", data=tmp_path)
    test = source.read(source.pieces()[1])["test"]
    x, lengths = encode_values(source.task, arrays["t10k-images-idx3-ubyte"])
    assert np.array_equal(x, test.x) and np.array_equal(lengths, test.lengths)
    assert np.array_equal(encode_values(source.task, x)[0], x)
    with pytest.raises(InputError, match=r"images.*\(rows, 64, 16\)"):
        encode_values(source.task, x[:, :5])


RNG = np.random.default_rng(0)


def test_windows_equal_a_loop_over_places():
    images = RNG.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    found = whitened_windows(images, 6, 2)
    framed = np.pad(images.astype(float), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    assert found.shape == (3, 16, 108) and found.dtype == np.uint8
    for row in range(3):
        for place in range(16):
            down, right = 2 * (place // 4), 2 * (place % 4)
            patch = framed[row, down : down + 6, right : right + 6].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
            expected = np.clip(patch @ whitening(6, 3) * LEVELS + 128, 0, 255)
            np.testing.assert_allclose(found[row, place], expected, atol=0.51)


def test_the_matrix_whitens_pixels_that_correlate_as_in_photographs():
    places = np.stack(np.divmod(np.arange(16), 4), 1)
    covariance = 0.95 ** np.linalg.norm(places[:, None] - places[None], axis=2)
    values = RNG.multivariate_normal(np.zeros(16), covariance, 20_000)
    values = (values - values.mean(1, keepdims=True)) @ whitening(4, 1)
    correlations = np.corrcoef(values.T) - np.eye(16)
    assert np.abs(correlations).max() < 0.3 < np.abs(covariance - np.eye(16)).max()


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_the_parameters_of_a_task_set_tokens_and_key(name):
    plain, task = task_named(name).task, task_named(name, window=6).task
    side, channels = (32, 3) if name == "cifar10" else (28, 1)
    assert (task.max_tokens, task.form.dim) == ((side // 2) ** 2, 36 * channels)
    assert task.parameters == {**plain.parameters, "window": 6, "stride": 2} and "window" not in plain.parameters
    assert not task.cuts_recordings  # which own data with --window does


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cifar10", {"window": 6, "stride": 4}), ("mnist", {"window": 40})],
)
def test_windows_that_do_not_fit_are_refused(name, parameters):
    samples.assert_refused("window", name, **parameters)


def test_edges_answer_strongly_to_few_windows():
    task = task_named("cifar10", window=6).task
    weights, others = edges(task, 200, seed=0), edges(task, 200, seed=1)
    np.testing.assert_allclose(np.linalg.norm(weights, axis=1), 1)
    assert np.array_equal(weights, edges(task, 200, seed=0)) and not np.allclose(weights, others)
    directions = RNG.standard_normal(weights.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def kurtosis(units):  # measured on windows of other random images, instead of photographs
        answers = others @ units.T
        return np.mean((answers**4).mean(0) / (answers**2).mean(0) ** 2)

    assert kurtosis(weights) > 1.5 * kurtosis(directions)


def test_small_grey_windows_have_edges_too():
    task = Task(name="small", form=Vectors(9), max_tokens=9, classes=2, parameters={"window": 3, "stride": 1})
    assert np.allclose(np.linalg.norm(edges(task, 64, seed=0), axis=1), 1)
    recordings = replace(task, parameters={"window": 20, "step": 5})
    with pytest.raises(InputError, match="no whitened windows of images"):
        edges(recordings, 64, seed=0)


def test_edges_need_windows_and_all_input_layers_are_equally_strong():
    model = {"backbone": "gpt2:n_layer=1,n_embd=128,n_head=2", "init": "random"}
    with pytest.raises(InputError, match="add --param window=6"):
        load_model(task_named("cifar10").task, Reservoir(input="edges", **model))
    task = task_named("cifar10", window=6).task
    for kind, rounding in {"edges": 1e-5, "orthogonal": 1e-5, "gaussian": 0.05}.items():
        weight = load_model(task, Reservoir(input=kind, gain=2, **model)).fpt.inputs.map.weight
        assert weight.square().sum().item() == pytest.approx(4 * 108, rounding)
    assert (weight.T @ weight).fill_diagonal_(0).abs().max() > 0.5  # Gaussian columns are not orthogonal


def test_the_grid_has_four_statistics_of_each_cell():
    hidden = torch.from_numpy(RNG.normal(size=(2, 16, 5)).astype(np.float32))
    lengths = torch.tensor([16, 16])
    found = find_pooling("grid2").of(HiddenStates(hidden, lengths))[:, 0].reshape(2, 4, 4, 5)
    assert find_pooling("grid2").shape(5, 16, 1) == (1, 80)
    image = hidden.reshape(2, 4, 4, 5).numpy()
    for number, (down, right) in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        cell = image[:, down : down + 2, right : right + 2].reshape(2, 4, 5)
        statistics = cell.mean(1), cell.std(1), cell.max(1), cell.min(1)
        for place, expected in enumerate(statistics):
            np.testing.assert_allclose(found[:, place, number], expected, rtol=1e-5, atol=1e-6)


def test_a_grid_needs_a_square_of_tokens_and_full_rows():
    with pytest.raises(InputError, match="15 tokens are not a square image of at least 2 x 2"):
        find_pooling("grid2").shape(5, 15, 1)
    with pytest.raises(InputError, match="the rows differ in length"):
        find_pooling("grid2").of(HiddenStates(torch.zeros(2, 16, 5), torch.tensor([16, 9])))
    # Rows of a batch are alike in length, so that all of them may be shorter than others.
    for name in ("grid2", "excess2"):
        with pytest.raises(InputError, match="the rows differ in length"):
            find_pooling(name).of(HiddenStates(torch.zeros(2, 9, 5), torch.tensor([9, 9]), max_tokens=16))


@pytest.mark.parametrize("binary", [True, False])
def test_both_forms_of_the_files_give_the_images(tmp_path, binary):
    batches = samples.cifar_arrays()
    samples.cifar_files(tmp_path, batches, binary=binary)
    source = task_named("cifar10", data=tmp_path)
    splits = joined(source)
    images = [b.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for b, _ in batches]
    x, y = splits["test"]
    whole = x.reshape(-1, 8, 8, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 32, 32, 3)
    assert np.array_equal(whole, images[5]) and np.array_equal(y.ravel(), batches[5][1])
    rows = np.concatenate([10_000 * i + np.arange(40) for i in range(5)])
    labels = np.concatenate([labels for _, labels in batches[:5]])
    for name, chosen in (("train", ~held_out(rows)), ("valid", held_out(rows))):
        assert np.array_equal(splits[name][1].ravel(), labels[chosen])
        parts = [source.read(piece) for piece in source.pieces()]
        assert np.array_equal(np.concatenate([part[name].ids for part in parts if name in part]), rows[chosen])
        assert np.array_equal(
            splits[name][0], encode_values(task_named("cifar10").task, np.concatenate(images[:5])[chosen])[0]
        )


def test_grey_values_equal_those_of_pillow():
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    theirs = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    assert np.array_equal(grey(images), theirs)


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


def test_views_are_cut_into_windows_as_images_are(tmp_path):
    samples.cifar_files(tmp_path, samples.cifar_arrays())
    views = task_named("cifar10", data=tmp_path, views=1)
    plain, cut = joined(views)["train"][0], joined(replace(views, window=6))["train"][0]
    images = plain.reshape(-1, 8, 8, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 32, 32, 3)
    assert np.array_equal(cut, whitened_windows(images, 6, 2))


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
    payload = samples.Payload(tmp_path / "ran")
    for changed in ({b"x": payload}, {b"labels": payload}):
        batch.write_bytes(pickle.dumps({b"data": images, b"labels": labels.tolist()} | changed, protocol=2))
        source = task_named("cifar10", data=tmp_path)
        with nullcontext() if b"x" in changed else pytest.raises(InputError, match="40 images and 0 labels"):
            samples.read_splits(source)
        assert not (tmp_path / "ran").exists()
