"""Poolings of padded rows, windows and random kernels, compared with NumPy, and the names of columns."""

import itertools
import re
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reservoir_pipelines.data.labels import encode_labels, split_rows
from reservoir_pipelines.fitting.statistics import Statistic, rolling_statistics

from reservoir.centred_windows import CentredWindows
from reservoir.column import (
    RAW,
    Baseline,
    Column,
    common_place,
    joined_name,
    layers_first_to_last,
    parse_columns,
    short_name,
    single_column,
)
from reservoir.errors import InputError
from reservoir.features import forward
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.input_layers import draw_layer, kernels
from reservoir.loaded_model import load_model
from reservoir.options import ExtractOptions, FeatureOptions, OwnDataOptions
from reservoir.plan.resolved import resolve
from reservoir.pooling import POOLINGS, channel_levels, check_poolings, find_pooling, widths_within, window_widths
from reservoir.raw_input import raw_features
from reservoir.sequence_model import Branch, RawInput
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows, row_forms
from reservoir.weighted_poolings import attention_weights, random_queries

TOKENS, WIDTH, LONGEST = 12, 5, 15


def pool(hidden, lengths, name, **settings):
    return find_pooling(name).of(HiddenStates(hidden, lengths, **settings))


def stretches(h, number):
    bounds = [i * len(h) // number for i in range(number + 1)]
    return np.concatenate([h[a : max(b, a + 1)].mean(0) for a, b in itertools.pairwise(bounds)])


def quantiles(h, number):
    return np.quantile(h, [(i + 1) / (number + 1) for i in range(number)], axis=0).ravel()


def shares(h, number):
    ends = np.arcsinh(18 / 0.06)
    return np.stack([(h > level).mean(0) for level in 0.06 * np.sinh(np.linspace(-ends, ends, number))]).ravel()


def compete(h, size):
    leads, lowest = np.zeros(h.shape[1]), np.zeros(h.shape[1])
    for token in h:
        for start in range(0, len(token), size):
            group = token[start : start + size]
            if group.max() >= 1e-3:
                leads[start + group.argmax()] += group.max()
            if group.min() < -1e-3:
                lowest[start + group.argmin()] += 1
    return np.sqrt(np.concatenate([leads, lowest]) / len(h))


def above(h, number):
    return np.concatenate([(h > np.float32(level)).mean(0) for level in channel_levels(h.shape[1], number)])


def places(h, number):
    middles, of_level = (np.arange(len(h)) + 0.5) / len(h), []
    for level in channel_levels(h.shape[1], number):
        above_level = (h > np.float32(level)).T
        of_level.append([middles[of_channel].mean() if of_channel.any() else 0.5 for of_channel in above_level])
    return np.ravel(of_level)


def fading(h, number):
    distance = np.arange(len(h))
    from_start = [np.average(h, axis=0, weights=0.5 ** (distance / 2**k)) for k in range(1, number + 1)]
    from_end = [np.average(h[::-1], axis=0, weights=0.5 ** (distance / 2**k)) for k in range(1, number + 1)]
    return np.concatenate([*from_start, *from_end])


def sustained(h, number):
    stretches = [4**power for power in range(number)]
    of_stretch = []
    for stretch in stretches:
        starts = range(max(1, len(h) - stretch + 1))
        of_stretch.append(np.max([h[start : start + stretch].min(0) for start in starts], axis=0))
    return np.concatenate(of_stretch)


def attention(h, number):
    """Return the weighted means as the docstring of `Attention` has them, token by token."""
    heads = []
    for query in random_queries(number, h.shape[1]):
        scores = np.array([(token - token.mean()) / token.std() @ query for token in h])
        spread = np.sqrt(np.mean((scores - scores.mean()) ** 2))
        weights = [np.exp(0.5 * (score - scores.mean()) / (spread + 1e-3)) for score in scores]
        heads.append(sum(weight * token for weight, token in zip(weights, h, strict=True)) / sum(weights))
    return np.concatenate(heads)


PLAIN = {
    **{name: partial(getattr(np, name), axis=0) for name in ("mean", "std", "min", "max")},
    "first": lambda h: h[0],
    **{f"segments{number}": partial(stretches, number=number) for number in (1, 3, 8, 20)},
    **{f"quantiles{number}": partial(quantiles, number=number) for number in (1, 4, 9)},
    **{f"attention{number}": partial(attention, number=number) for number in (1, 8)},
    "shares1": lambda h: (h > 0).mean(0),
    **{f"shares{number}": partial(shares, number=number) for number in (4, 13)},
    **{f"compete{size}": partial(compete, size=size) for size in (1, 5)},
    **{f"above{number}": partial(above, number=number) for number in (1, 3)},
    **{f"places{number}": partial(places, number=number) for number in (1, 3)},
    **{f"fading{number}": partial(fading, number=number) for number in (1, 3)},
    **{f"sustained{number}": partial(sustained, number=number) for number in (1, 3, 6)},
    "words": partial(np.mean, axis=0),
    "tokens": lambda h: np.pad(h, ((0, LONGEST - len(h)), (0, 0))).ravel(),
}


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("pooling", PLAIN)
def test_poolings_of_real_tokens_equal_numpy(pooling, offset):
    hidden = offset + torch.randn(6, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([12, 1, 7, 2, 12, 5])
    for padding in (float("nan"), float("inf"), float("-inf"), 1e30):
        poisoned = hidden.masked_fill((torch.arange(TOKENS) >= lengths[:, None])[:, :, None], padding)
        found = pool(poisoned, lengths, pooling, max_tokens=LONGEST)
        assert found.shape == (6, *find_pooling(pooling).shape(WIDTH, LONGEST, 1))
        assert found.dtype == torch.float32
        for row, n in enumerate(lengths.tolist()):
            expected = PLAIN[pooling](hidden[row, :n].double().numpy())
            np.testing.assert_allclose(found[row, 0], expected, rtol=1e-6, atol=1e-6 + 1e-7 * offset)


@pytest.mark.parametrize("special", [(0, 0), (1, 0), (0, 1), (1, 1), (2, 3)])
def test_words_are_the_mean_without_special_tokens(special):
    hidden, lengths = (
        torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0)),
        torch.tensor([12, 6, 7, 8]),
    )
    for padding in (float("nan"), float("inf"), 1e30):
        poisoned = hidden.masked_fill((torch.arange(TOKENS) >= lengths[:, None])[:, :, None], padding)
        values = pool(poisoned, lengths, "words", special=special)
        assert values.shape == (4, *find_pooling("words").shape(WIDTH, LONGEST, 1))
        for row, n in enumerate(lengths.tolist()):
            expected = hidden[row, special[0] : n - special[1]].double().numpy().mean(0)
            np.testing.assert_allclose(values[row, 0], expected, rtol=1e-6, atol=1e-6)
    if any(special):  # a text of which the tokenizer leaves only special tokens
        assert not pool(hidden, torch.full((4,), sum(special)), "words", special=special).any()


def test_queries_of_zeros_give_the_mean_and_more_queries_begin_with_the_same_ones():
    hidden, lengths = torch.randn(3, TOKENS, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([12, 1, 7])
    states = HiddenStates(hidden, lengths)
    means = attention_weights(states, torch.zeros(2, 16)) @ hidden
    torch.testing.assert_close(means, pool(hidden, lengths, "mean").expand(-1, 2, -1))
    few, many = pool(hidden, lengths, "attention2")[:, 0], pool(hidden, lengths, "attention5")[:, 0]
    torch.testing.assert_close(few, many[:, :32])
    assert not torch.allclose(few[[0, 2], :16], few[[0, 2], 16:])


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_attention_ignores_the_scale_of_each_token_and_a_channel_that_is_large_everywhere(scale):
    hidden, lengths = torch.randn(4, 40, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([40, 9, 25, 40])
    queries = torch.tensor(random_queries(3, 64))
    weights = attention_weights(HiddenStates(hidden, lengths), queries)
    scales = scale * torch.linspace(1, 1000, 40)[:, None]
    torch.testing.assert_close(attention_weights(HiddenStates(scales * hidden, lengths), queries), weights)
    hidden[:, :, 5] = scale  # for 1e4: if scores were not standardised, all tokens would weigh nearly the same
    with_large = attention_weights(HiddenStates(hidden, lengths), queries)
    assert np.corrcoef(with_large[0].ravel(), weights[0].ravel())[0, 1] > 0.9
    assert with_large[0].amax() > 2 * with_large[0].amin()


def test_the_levels_of_channels_are_spread_over_each_range_of_channels():
    levels = np.array(channel_levels(1024, 3))
    assert levels.shape == (3, 1024) and 17 < np.abs(levels).max() <= 18
    for start in (0, 64, 600):
        of_bank = levels[:, start : start + 64]
        assert abs((of_bank > 0).mean() - 0.5) < 0.02 and abs((np.abs(of_bank) < 1).mean() - 0.43) < 0.03


def test_channels_compete_within_their_group_unless_none_responds():
    hidden = torch.randn(4, TOKENS, 24, generator=torch.Generator().manual_seed(0))
    hidden[:, ::3] = 1e-5 * hidden[:, ::3].sign()  # rounding errors of constant stretches
    lengths = torch.tensor([12, 1, 7, 5])
    for size in (2, 8, 24):
        values = pool(hidden, lengths, f"compete{size}")
        for row, n in enumerate(lengths.tolist()):
            np.testing.assert_allclose(values[row, 0], compete(hidden[row, :n].numpy(), size), atol=1e-6)
    with pytest.raises(InputError, match="24 channels are not groups of 7"):
        find_pooling("compete7").shape(24, TOKENS, 1)


def test_competing_channels_of_pieces_are_those_of_the_whole_text():
    hidden = torch.randn(2, TOKENS, 16, generator=torch.Generator().manual_seed(0))
    pieces, counts = torch.cat([hidden[:, :8], hidden[:, 4:]]), torch.tensor([8, 8, 8, 8])
    pieces[2:, :4] = hidden[:, 8:]
    counts[2:] = 4
    order = [0, 2, 1, 3]  # the pieces of the first text, then those of the second
    of_pieces = pool(pieces[order], counts[order], "compete8").numpy()
    joined = find_pooling("compete8").join(of_pieces, counts[order].numpy(), np.array([0, 2]))
    np.testing.assert_allclose(joined, pool(hidden, torch.tensor([TOKENS, TOKENS]), "compete8"), rtol=1e-6)


def test_the_help_lists_every_pooling_once():
    text = FeatureOptions.__dataclass_fields__["pool"].metadata["help"].partition(": ")[2].rstrip(".")
    assert tuple(re.sub(r" \(.*?\)", "", text).split(", ")) == tuple(POOLINGS)


def test_too_many_tokens_side_by_side_are_refused():
    assert find_pooling("tokens").shape(64, 256, 1) == (1, 16_384)
    with pytest.raises(InputError, match="pooling tokens: 257 tokens of 64 channels have 16,448 features,"):
        find_pooling("tokens").shape(64, 257, 1)


@pytest.mark.parametrize(
    "name", ["segments", "segmentsK", "segments0", "segments08", "mean8", "quantiles", "segments10000", "median", ""]
)
def test_unknown_poolings_are_refused(name):
    with pytest.raises(InputError, match=r"choose among last, mean.* \(K is 1 to 9999\)"):
        check_poolings(["mean", name])


@pytest.mark.parametrize("lengths", [[12, 7, 1], [12, 12, 12]])
def test_poolings_that_share_a_sorted_copy_equal_each_one_by_torch_alone(lengths):
    hidden, counts = torch.randn(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)), torch.tensor(lengths)
    shared = HiddenStates(hidden, counts, 1, LONGEST)
    for pooling in (*PLAIN, "all"):
        # Hidden states with gradients are pooled with only torch, without NumPy and without a shared copy.
        by_torch = pool(hidden.clone().requires_grad_(), counts, pooling, max_tokens=LONGEST).detach()
        assert torch.equal(find_pooling(pooling).of(shared), by_torch), pooling
    before = hidden.clone()
    find_pooling("all").of(shared).zero_()
    find_pooling("max").of(shared).zero_()
    assert torch.equal(hidden, before), "a result is a view of the hidden states"


SERIES = Task(name="mine.npz", form=Vectors(2), max_tokens=500, classes=3)
SYMBOLS = Task(name="letters.csv", form=Tokens(4), max_tokens=60, classes=3)


def chosen(task, rows, **given):
    return resolve(task, ExtractOptions(**given), {"train": rows}).reservoir


def test_each_kernel_reads_one_dilation_and_one_form_and_sums_to_zero():
    weights = kernels(40, 3, (3, 9, 2, 2)).reshape(40, 3, 9, 2, 2)
    np.testing.assert_allclose(np.square(weights).sum((1, 2, 3, 4)), 1)
    np.testing.assert_allclose(weights.sum(2), 0, atol=1e-12)
    read = np.argwhere(np.abs(weights).sum((2, 4)) > 0)
    np.testing.assert_array_equal(read, [(unit, unit % 3, unit // 3 % 2) for unit in range(40)])
    task = Task(name="windows", form=Vectors(3 * 9 * 2 * 2), max_tokens=5, classes=2)
    windows = Windows(patch=9, dilations=(1, 2, 4), normalise="both")
    layer = draw_layer("kernels", task, windows, 40, seed=3, gain=6.0)
    np.testing.assert_allclose(layer.map.weight.numpy(force=True), 6 * weights.reshape(40, -1), rtol=1e-6)


def test_forms_of_a_row_equal_those_of_numpy_and_ignore_padding():
    x = torch.randn(4, 30, 3, generator=torch.Generator().manual_seed(0)) * 50 + 7
    x[1, :, 2] = 1000.1
    lengths = torch.tensor([30, 12, 1, 25])
    steps = torch.diff(x, dim=1, prepend=x[:, :1])
    x[torch.arange(30) >= lengths[:, None]] = torch.nan
    both = row_forms(x, lengths, "both").numpy()
    assert row_forms(x, lengths, "channel") is x
    np.testing.assert_array_equal(row_forms(x, lengths, "series").numpy(), both[:, :, 3:])
    for row, n in enumerate(lengths.tolist()):
        values = x[row, :n].double().numpy()
        centred = values - values.mean(0)
        deviation = np.sqrt(np.square(centred).mean(0))
        expected = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 1e-3)
        np.testing.assert_array_equal(both[row, :n, :3], x[row, :n])
        np.testing.assert_allclose(both[row, :n, 3:], expected, atol=2e-5)
    found = row_forms(x, lengths, "differences")  # adds a third form, standardised by row
    np.testing.assert_array_equal(found[:, :, :6], both)
    np.testing.assert_array_equal(found[:, :, 6:], row_forms(steps, lengths, "series"))
    assert not found[:, :, 6:].isnan().any()


def test_the_model_and_the_exported_model_compute_the_kernels_of_each_window():
    rng = np.random.default_rng(0)
    x, lengths = rng.normal(3, 2, (5, 40, 2)).astype(np.float32), np.array([40, 9, 23, 40, 31])
    task = replace(SERIES, max_tokens=40)
    model = load_model(task, chosen(task, 5, backbone="mini", gain=6.0), "cpu", "float32")
    found = forward(model, None, x, lengths, ["embed/max"], batch_rows=2)["embed/max"][:, 0]
    forms = row_forms(torch.from_numpy(x), torch.from_numpy(lengths), "differences").numpy()
    cut, counts = Windows(patch=9, dilations=(1, 2, 4), pad="same")(forms, lengths)
    positions = model.fpt.backbone.model.get_submodule("wpe").weight.numpy(force=True)
    hidden = cut @ (6 * kernels(256, 0, (3, 9, 3, 2)).T) + positions[: cut.shape[1]]
    expected = [hidden[row, :n].max(0) for row, n in enumerate(counts)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert model.windows == Windows(patch=9, dilations=(1, 2, 4), pad="same", normalise="differences")
    columns = ["embed/shares13", "embed/quantiles9", "block01/max"]
    expected = forward(model, None, x, lengths, columns, batch_rows=5)
    read = Branch(model, [*map(Column.parse, columns)])(torch.from_numpy(x), torch.from_numpy(lengths))
    for column, values in zip(columns, read, strict=True):
        np.testing.assert_allclose(values.numpy(), expected[column][:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("per_class", [2, 3])
def test_classes_with_few_rows_leave_some_for_validation(per_class):
    labels = encode_labels("few", np.repeat(np.arange(20), per_class + 1), OwnDataOptions())
    given = np.tile(["train"] * per_class + ["test"], 20)
    found = split_rows("few", labels, given)
    assert (found[given == "test"] == "test").all() and (found == "valid").sum() == 2 * per_class


def test_notes_name_classes_of_one_row_and_classes_that_differ_in_capitals():
    notes = encode_labels("n", np.array(["good", "Good", "wron", "good", "Good"]), OwnDataOptions()).notes
    assert [note.rpartition("(1): ")[2] for note in notes[:1]] == ["wron"]
    assert notes[1] == "y has the classes 'Good' and 'good'; spell them the same if they are one"


def test_windows_of_symbols_equal_those_of_one_hot_vectors():
    rng = np.random.default_rng(0)
    x, lengths = rng.integers(0, 4, (5, 60)), np.array([60, 9, 30, 1, 44])
    model = load_model(SYMBOLS, chosen(SYMBOLS, 5), device="cpu", compute="float32")
    indicators = load_model(replace(SYMBOLS, form=Vectors(4)), chosen(SYMBOLS, 5), device="cpu", compute="float32")
    columns = ["embed/max", "block01/segments8", "embed/tokens"]
    found = forward(model, None, x.astype(np.uint8), lengths, columns, 2)
    wanted = forward(indicators, None, np.eye(4)[x], lengths, columns, 2)
    for column in columns:
        np.testing.assert_array_equal(found[column], wanted[column])
    branch = Branch(model, [*map(Column.parse, columns)])
    features = branch(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_allclose(features[0].numpy(), found["embed/max"][:, 0], atol=1e-4)
    with pytest.raises(InputError, match=r"up to 64 symbols, and task 'letters\.csv' has 300"):
        chosen(SYMBOLS, 5).windowed(replace(SYMBOLS, form=Tokens(300)))


def test_the_raw_input_of_a_long_row_takes_memory_for_a_few_rows_only():
    task, x, lengths = replace(SYMBOLS, max_tokens=9000), np.full((400, 9000), 2, np.uint8), np.full(400, 6)
    lengths[7] = 9000
    tracemalloc.start()
    found = raw_features(task, None, x, lengths)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 4 * 2**22, "of 400 * 9,000 * 4 one-hot values, at most 2**22 are in memory, twice"
    np.testing.assert_array_equal(found[[7]], raw_features(task, None, x[[7]], lengths[[7]]))
    assert (np.delete(found, 7, axis=0) == raw_features(task, None, x[:1, :6], lengths[:1])).all()


@pytest.mark.parametrize("task", [
    SYMBOLS, replace(SYMBOLS, form=Vectors(3)), replace(SYMBOLS, form=Vectors(3), max_tokens=3000),
])  # fmt: skip
def test_the_raw_input_that_is_exported_equals_the_features_of_a_fit(task):
    rng, lengths = np.random.default_rng(0), np.array([40, 9, 30, 1])
    x = rng.integers(0, 4, (4, 40)) if isinstance(task.form, Tokens) else rng.normal(size=(4, 40, 3)).astype(np.float32)
    (exported,) = RawInput(task)(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_array_equal(exported.numpy(), raw_features(task, None, x, lengths))


# Statistics of the windows around every token, compared with a loop over the tokens.


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


# Columns and their names: parsing inverts printing, and short names fit a table.


PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True)  # the names that the cache allows
COLUMNS = st.builds(Column, PARTS, PARTS, st.none() | st.integers(1, 99))
BASELINES = st.sampled_from([RAW, Baseline("tf-idf"), Baseline("raw, windows of 9"), Baseline("the mean")])


@given(COLUMNS)
def test_parsing_inverts_printing(column):
    assert Column.parse(str(column)) == column
    assert single_column(str(column)) == column
    assert Column.parse(column.name) == Column(column.layer, column.pooling)


@given(st.lists(COLUMNS | BASELINES, min_size=1, max_size=4).map(tuple))
def test_parsing_inverts_printing_of_columns_side_by_side(columns):
    assert parse_columns(joined_name(columns)) == columns


@pytest.mark.parametrize("text", ["mean", "/mean", "block01/", "a:block01/mean", ":block01/mean", ""])
def test_a_column_needs_a_layer_and_a_pooling(text):
    with pytest.raises(InputError, match="layer/pooling"):
        Column.parse(text)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("block01/mean+block02/max", "block01/mean+block02/max"),
        ("a/mean+b/mean+c/mean", "a+b+c (mean)"),
        ("a/mean+b/mean+c/mean+d/mean", "mean of 4 layers"),
        ("a/mean+a/max+b/mean", "a+b (3 columns)"),
        ("a/mean+b/mean+c/mean+d/max", "a ... d (4 columns)"),
        ("1:a/mean+2:a/mean+raw", "1:a+2:a+raw (3 columns)"),
    ],
)
def test_short_names(name, short):
    assert short_name(parse_columns(name)) == short


def test_the_common_layer_of_columns():
    assert common_place(parse_columns("2:a/mean+2:a/max")) == "2:a"
    assert common_place(parse_columns("a/mean+b/mean")) is None
    assert common_place((RAW,)) == "raw"
    assert layers_first_to_last(["raw", "final", "embed", "block01"]) == ["embed", "block01", "final", "raw"]
    of_two_entries = ["raw", "2:embed", "1:final", "10:embed", "2:block01", "1:embed"]
    in_order = ["1:embed", "1:final", "2:embed", "2:block01", "10:embed", "raw"]
    assert layers_first_to_last(of_two_entries) == in_order
    blocks = ["block11", "block99", "block100", "final"]
    assert layers_first_to_last(reversed(blocks)) == blocks
