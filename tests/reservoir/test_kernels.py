"""Random kernels without a network: convolutions equal windows times a matrix, and the family has one layer."""

import numpy as np
import pytest
import torch

from reservoir import InputError
from reservoir.backbones import find, find_shape, load_backbone
from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.column import Column, layer_names
from reservoir.features import forward
from reservoir.hidden_states import HiddenStates
from reservoir.inputs.kernels import KernelConvolution
from reservoir.loaded_model import load_model
from reservoir.pooling import find_pooling, share_levels
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows

SERIES = Windows(patch=9, dilations=(1, 2, 4), pad="same", normalise="differences")
WINDOWS = {
    "series": SERIES,
    "stride": Windows(patch=9, stride=3, dilations=(1, 2, 4), pad="same", normalise="differences"),
    "inside": Windows(patch=4, stride=2, dilations=(1, 3), normalise="both"),
    "one form": Windows(patch=5, dilations=(2,)),
    "symbols": Windows(patch=5, pad="same", symbols=4),
}


def rows_of(windows, channels):
    draw = torch.Generator().manual_seed(0)
    if windows.symbols:
        return torch.randint(windows.symbols, (3, 40), generator=draw)
    return torch.randn(3, 40, channels, generator=draw)


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("width", [8, 64, 136])
def test_responses_are_those_of_windows_times_a_matrix(windows, width):
    channels = windows.symbols or 2
    convolution = KernelConvolution(windows, channels, width, seed=1, gain=6.0)
    x, lengths = rows_of(windows, channels), torch.tensor([40, 31, 37])
    responses, counts = convolution(x, lengths)
    # Each kernel as a row of the matrix of an input layer, zero at other dilations and forms.
    matrix = torch.zeros(width, len(windows.dilations), windows.patch, windows.forms, channels)
    for bank in convolution.banks:
        taps = convolution.taps[bank.begin : bank.end].transpose(1, 2)
        matrix[bank.begin : bank.end, windows.dilations.index(bank.dilation), :, bank.form] = taps
    tokens, expected_counts = windows.of_tensors(x, lengths)
    assert torch.equal(counts, expected_counts) and responses.shape == (3, tokens.shape[1], width)
    assert (matrix.flatten(1).norm(dim=1) - 6.0).abs().max() < 1e-5
    assert windows.patch == 1 or convolution.taps.sum(dim=2).abs().max() < 1e-5
    expected = tokens @ matrix.flatten(1).T
    for row, count in enumerate(counts):
        torch.testing.assert_close(responses[row, :count], expected[row, :count], rtol=1e-4, atol=1e-4)


def test_kernels_of_one_dilation_and_form_stand_in_groups():
    banks = KernelConvolution(SERIES, 1, 8 * 20, seed=0, gain=1.0).banks
    places = [(dilation, form) for form in range(3) for dilation in (1, 2, 4)]
    assert [(bank.dilation, bank.form) for bank in banks] == places
    assert [bank.begin for bank in banks] == [0, *(bank.end for bank in banks[:-1])] and banks[-1].end == 160
    groups = [(bank.end - bank.begin) / GROUP_SIZE for bank in banks]
    assert groups == [3, 3, *[2] * 7]


def test_padding_does_not_change_responses():
    convolution = KernelConvolution(SERIES, 2, 64, seed=0, gain=1.0)
    x = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(0))
    alone, _ = convolution(x, torch.tensor([30]))
    padded, count = convolution(torch.nn.functional.pad(x, (0, 0, 0, 9), value=torch.inf), torch.tensor([30]))
    torch.testing.assert_close(padded[:, : int(count)], alone)


def test_kernels_sustain_exactly_zero_over_constant_values():
    inside = Windows(patch=9)
    rows = torch.tensor([-3.0, -0.3, 0.7, 5.0])[:, None, None].expand(4, 40, 1)
    responses, counts = KernelConvolution(inside, 1, 64, seed=0, gain=6.0)(rows, torch.full((4,), 40))
    assert responses.abs().max() > 0  # the taps sum to zero but for rounding
    states = HiddenStates(responses, counts, max_tokens=40)
    assert not find_pooling("sustained3").of(states).any()


def test_the_family_has_one_layer_and_no_blocks():
    family, shape = find_shape("kernels:width=64")
    backbone = load_backbone("kernels:width=64")
    assert (shape.depth, shape.width, shape.max_tokens) == (0, 64, None) and layer_names(0) == ("embed",)
    assert backbone.layers == ("embed",) and not list(backbone.parameters()) and family.name == "kernels"
    for name, message in (
        ("kernels:width=12", "multiple of 8"),
        ("kernels:width=0", "multiple of 8"),
        ("kernels:n_layer=2", "NAME is one of width"),
    ):
        with pytest.raises(InputError, match=message):
            find(name)
    with pytest.raises(InputError, match="no blocks"):
        find("kernels", depth=1)
    with pytest.raises(InputError, match="--backbone, such as mini"):
        next(backbone.run_layers(torch.zeros(1, 3, 64), layers=["block01"]))


def test_kernels_have_no_tokenizer():
    task = Task(name="mine.npz", form=Vectors(2), max_tokens=40, classes=2)
    settings = Reservoir(backbone="kernels:width=64", init="random", input="kernels", patch=9, gain=6.0)
    with pytest.raises(InputError, match="no tokenizer of its own"):
        _ = load_model(task, settings, "cpu").tokenizer


@pytest.mark.parametrize("form", [Vectors(2), Tokens(4)], ids=["values", "symbols"])
def test_pooled_features_are_statistics_of_the_responses(form):
    task = Task(name="mine.npz", form=form, max_tokens=40, classes=2)
    symbols = isinstance(form, Tokens)
    normalise = "channel" if symbols else "differences"
    settings = Reservoir(
        backbone="kernels:width=64", init="random", input="kernels", gain=6.0,
        patch=9, stride=1, dilations="1,2", pad="same", normalise=normalise, seed=4,
    )  # fmt: skip
    model = load_model(task, settings, "cpu")
    assert model.compute == "float32"
    draw, lengths = np.random.default_rng(0), np.array([40, 25, 33])
    x = draw.integers(0, 4, (3, 40)) if symbols else draw.standard_normal((3, 40, 2)).astype(np.float32)
    names = ("embed/max", "embed/mean", "embed/shares7", "embed/quantiles3")
    pooled = forward(model, None, x, lengths, names, batch_rows=2)
    windows = settings.windows(task)
    convolution = KernelConvolution(windows, 4 if symbols else 2, 64, seed=4, gain=6.0)
    for row, length in enumerate(lengths):
        values = torch.from_numpy(x[row : row + 1, :length])
        responses = convolution(values.repeat(2, *[1] * (x.ndim - 1)), torch.tensor([length] * 2))[0][0].numpy()
        expected = {
            "embed/max": responses.max(axis=0),
            "embed/mean": responses.mean(axis=0),
            "embed/shares7": np.concatenate([(responses > level).mean(axis=0) for level in share_levels(7)]),
            "embed/quantiles3": np.concatenate([np.quantile(responses, q, axis=0) for q in (0.25, 0.5, 0.75)]),
        }
        for name in names:
            np.testing.assert_allclose(pooled[name][row, 0], expected[name], rtol=1e-4, atol=1e-4)
            assert Column.parse(name).layer == "embed"


def test_kernels_of_subsets_read_some_channels():
    def taps(channels, **options):
        return KernelConvolution(SERIES, channels, 512, seed=0, gain=2.0, **options).taps.numpy()

    some, every = taps(20, channel_subsets=True), taps(20)
    is_read = some.any(axis=2)
    numbers = is_read.sum(axis=1)
    assert set(numbers) == set(range(1, 10)) and np.bincount(numbers).argmax() == 1
    assert is_read.sum(axis=0).min() > 0.5 * is_read.sum() / 20  # all channels alike
    np.testing.assert_allclose(np.linalg.norm(some, axis=(1, 2)), 2, rtol=1e-5)
    # The weights of the channels that a kernel reads have the ratios that they have in a kernel of all channels.
    kernel, channels = np.flatnonzero(numbers > 1)[0], is_read[np.flatnonzero(numbers > 1)[0]]
    ratio = some[kernel, channels] / every[kernel, channels]
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
    np.testing.assert_array_equal(taps(1, channel_subsets=True), taps(1))


def test_seeds_draw_other_kernels():
    first, again, other = (KernelConvolution(SERIES, 1, 64, seed=seed, gain=1.0).taps for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.isclose(first, other).any()
