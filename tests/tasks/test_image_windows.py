"""Overlapping, whitened windows of images: shapes, equality with a plain loop, and refusals."""

import numpy as np
import pytest
import torch

from reservoir.errors import InputError
from reservoir.pooling import pool, pooled_shape
from reservoir.tasks import task_named
from reservoir.tasks.images.patches import LEVELS, Windows2d, whitening

RNG = np.random.default_rng(0)


def test_windows_equal_a_loop_over_places():
    images = RNG.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    found = Windows2d(window=6, stride=2)(images)
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


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist"])
def test_the_parameters_of_a_task_set_tokens_and_key(name):
    plain, task = task_named(name).task, task_named(name, window=6).task
    side, channels = (32, 3) if name == "cifar10" else (28, 1)
    assert (task.max_tokens, task.form.dim) == ((side // 2) ** 2, 36 * channels)
    assert task.parameters == {**plain.parameters, "window": 6, "stride": 2} and "window" not in plain.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("cifar10", {"window": 6, "stride": 4}), ("mnist", {"window": 40}), ("cifar10-lra", {"window": 6})],
)
def test_windows_that_do_not_fit_are_refused(name, parameters):
    with pytest.raises(InputError, match="window"):
        task_named(name, **parameters).task  # noqa: B018


def test_the_grid_has_four_statistics_of_each_cell():
    hidden = torch.from_numpy(RNG.normal(size=(2, 16, 5)).astype(np.float32))
    lengths = torch.tensor([16, 16])
    found = pool(hidden, lengths, "grid2")[:, 0].reshape(2, 4, 4, 5)
    assert pooled_shape("grid2", 5, 16, 1) == (1, 80)
    image = hidden.reshape(2, 4, 4, 5).numpy()
    for number, (down, right) in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        cell = image[:, down : down + 2, right : right + 2].reshape(2, 4, 5)
        statistics = cell.mean(1), cell.std(1), cell.max(1), cell.min(1)
        for place, expected in enumerate(statistics):
            np.testing.assert_allclose(found[:, place, number], expected, rtol=1e-5, atol=1e-6)


def test_a_grid_needs_a_square_of_tokens_and_full_rows():
    with pytest.raises(InputError, match="15 tokens are no image of 2 x 2 cells"):
        pooled_shape("grid2", 5, 15, 1)
    with pytest.raises(InputError, match="rows of equal length"):
        pool(torch.zeros(2, 16, 5), torch.tensor([16, 9]), "grid2")
