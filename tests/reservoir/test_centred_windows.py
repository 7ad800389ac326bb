"""Statistics of the windows around every token, compared with a loop over the tokens."""

import numpy as np
import pytest
import torch
from reservoir_pipelines.fitting.statistics import Statistic, rolling_statistics

from reservoir.centred_windows import CentredWindows
from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.pooling import find_pooling, widths_within, window_widths
from reservoir.tasks.task import Task, Vectors

LENGTHS = [60, 1, 33, 60, 9]
STATISTICS = {"mean": np.mean, "deviation": np.std, "minimum": np.min, "maximum": np.max}


def sequences(offset=0.0, channels=3):
    draw = np.random.default_rng(0)
    x = offset + draw.normal(size=(len(LENGTHS), max(LENGTHS), channels)).cumsum(axis=1)
    return x.astype(np.float32), np.array(LENGTHS)


def looped(x, length, width, statistic):
    """Return a statistic of the window around each token of one sequence, token by token."""
    half = width // 2
    windows = (x[max(0, t - half) : min(length, t + half + 1)] for t in range(length))
    return np.stack([statistic(window.astype(np.float64), axis=0) for window in windows])


@pytest.mark.parametrize("offset", [0.0, -3000.0])
@pytest.mark.parametrize("width", [1, 3, 9, 27, 81, 243])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_equal_a_loop_over_the_tokens(name, width, offset):
    x, lengths = sequences(offset)
    real = np.arange(x.shape[1]) < lengths[:, None]
    windows = CentredWindows(torch.from_numpy(x * real[:, :, None]), torch.from_numpy(lengths))
    values = getattr(windows, name)(width).numpy()
    for row, length in enumerate(LENGTHS):
        expected = looped(x[row], length, width, STATISTICS[name])
        np.testing.assert_allclose(values[row, :length], expected, rtol=1e-9, atol=1e-6)


def test_the_pooling_is_the_root_of_the_deviation_in_each_window_whatever_the_padding():
    x, lengths = sequences()
    pooling = find_pooling("around3")
    for padding in (float("nan"), float("inf"), 1e30):
        hidden = torch.from_numpy(x).clone()
        hidden[torch.arange(x.shape[1]) >= torch.from_numpy(lengths)[:, None]] = padding
        values = pooling.of(HiddenStates(hidden, torch.from_numpy(lengths))).numpy()
        assert values.shape == (len(x), *pooling.shape(3, 60, 60)) and values.dtype == np.float32
        for row, length in enumerate(LENGTHS):
            roots = [np.sqrt(looped(x[row], length, width, np.std)) for width in (9, 27, 81)]
            np.testing.assert_allclose(values[row, :length], np.concatenate(roots, axis=1), rtol=1e-5, atol=1e-5)
            assert not values[row, length:].any()


def test_a_row_has_the_same_bits_alone_and_among_longer_rows():
    x, lengths = sequences()
    pooling = find_pooling("around4")
    batch = pooling.of(HiddenStates(torch.from_numpy(x), torch.from_numpy(lengths)))
    statistic = Statistic(name="rolling statistics", widths=(9, 81))
    together = statistic(x, lengths)
    for row, length in enumerate(LENGTHS):
        alone = pooling.of(HiddenStates(torch.from_numpy(x[row : row + 1, :length]), torch.tensor([length])))
        assert torch.equal(batch[row, :length], alone[0])
        np.testing.assert_array_equal(together[row, :length], statistic(x[row : row + 1, :length], lengths[[row]])[0])


@pytest.mark.parametrize("level", [0.1, 101_325.0])
def test_constants_have_the_deviation_zero_and_small_changes_of_a_large_value_do_not(level):
    x = np.full((1, 5000, 2), level, np.float32)
    x[0, 2000:, 1] += np.float32(level * 1e-5) * (np.arange(3000) % 2)
    deviation = CentredWindows(torch.from_numpy(x), torch.tensor([5000])).deviation(9).numpy()[0]
    assert not deviation[:, 0].any() and not deviation[:1990, 1].any()
    np.testing.assert_allclose(deviation[2010:, 1], x[0, 2000:, 1].astype(np.float64).std(), rtol=0.03)


def test_rolling_statistics_have_each_value_and_the_statistics_of_its_windows():
    x, lengths = sequences(offset=5.0)
    values = Statistic(name="rolling statistics", widths=(9, 27))(x, lengths)
    for row, length in enumerate(LENGTHS):
        parts = [
            looped(x[row], length, width, statistic)
            for width in (9, 27)
            for statistic in (np.mean, np.std, np.min, np.max)
        ]
        expected = np.concatenate([x[row, :length], *parts], axis=1)
        np.testing.assert_allclose(values[row, :length], expected, rtol=1e-5, atol=1e-5)
        assert not values[row, length:].any()


def test_the_mean_of_a_row_stands_in_for_a_missing_value():
    x, lengths = sequences()
    filled = x.copy()
    filled[0, 7, 1] = x[0, [place for place in range(60) if place != 7], 1].astype(np.float64).mean()
    x[0, 7, 1] = np.nan
    statistic = Statistic(name="rolling statistics", widths=(9,))
    np.testing.assert_allclose(statistic(x, lengths), statistic(filled, lengths), atol=1e-6)


def test_windows_are_as_wide_as_the_sequences_and_no_wider_than_useful():
    assert window_widths(4) == (9, 27, 81, 243)
    assert [widths_within(tokens) for tokens in (1, 9, 26, 27, 242, 243, 100_000)] == [1, 1, 1, 2, 3, 4, 4]
    task = Task(name="mine.npz", form=Vectors(6), max_tokens=100, classes=3)
    assert rolling_statistics(task).widths == (9, 27, 81)
    with pytest.raises(InputError, match="at most 10 windows"):
        find_pooling("around11").shape(3, 60, 60)
    for widths in ((), (8,), (-1,)):
        with pytest.raises(ValueError, match="odd widths"):
            Statistic(name="rolling statistics", widths=widths)
