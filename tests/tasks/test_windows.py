"""Windows: a loop over positions, dilations and values, written out; and the same from tensors."""

import numpy as np
import pytest
import torch

from reservoir.errors import InputError
from reservoir.tasks.windows import Windows


def by_hand(row, length, patch, stride, dilations, pad):
    """Return the tokens of one row (values, channels), one after the other."""
    middle = (patch - 1) // 2
    tokens = []
    for position in range(length):
        places = [position + (value - middle) * dilation for dilation in dilations for value in range(patch)]
        inside = [0 <= place < length for place in places]
        if pad == "same" or all(inside):
            tokens.append(np.concatenate([row[p] if ok else 0 * row[0] for p, ok in zip(places, inside, strict=True)]))
    return tokens[::stride]


@pytest.mark.parametrize("pad", ["valid", "same"])
@pytest.mark.parametrize("dilations", [(1,), (3,), (1, 2, 5)])
@pytest.mark.parametrize(("patch", "stride"), [(1, 1), (2, 1), (3, 2), (4, 1), (4, 7), (5, 3)])
def test_windows_are_those_of_a_plain_loop(patch, stride, dilations, pad):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 2, size=(9, 31, 2)).astype(np.float32)
    reach = 1 if pad == "same" else (patch - 1) * max(dilations) + 1
    lengths = np.r_[reach, 31, rng.integers(reach, 32, 7)]  # what stands behind a row is not zero
    windows = Windows(patch=patch, stride=stride, dilations=dilations, pad=pad)
    tokens, counts = windows(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        expected = by_hand(x[row], length, patch, stride, dilations, pad)
        assert counts[row] == len(expected) == windows.counts(lengths)[row]
        np.testing.assert_array_equal(tokens[row, : len(expected)], expected)
        assert windows.plain or not tokens[row, len(expected) :].any()
    found, number = windows.torch(torch.from_numpy(x), torch.from_numpy(lengths))
    np.testing.assert_array_equal(found.numpy(), tokens)
    np.testing.assert_array_equal(number.numpy(), counts)
    assert tokens.dtype == np.float32 and (windows.plain or counts.dtype == np.int32)


def test_rows_shorter_than_a_window_are_named():
    x, lengths = np.zeros((3, 20, 1), np.float32), np.array([20, 8, 20])
    with pytest.raises(InputError, match="row 1 has 8 values, less than a window of 9"):
        Windows(patch=3, dilations=(1, 4))(x, lengths)
    assert Windows(patch=3, dilations=(1, 4), pad="same")(x, lengths)[1].tolist() == [20, 8, 20]


def test_tensors_are_cut_in_a_program_for_any_batch():
    windows = Windows(patch=3, stride=2, dilations=(1, 4), pad="same")

    class Cut(torch.nn.Module):
        def forward(self, x, lengths):
            return windows.torch(x, lengths)

    batch = torch.export.Dim("batch", max=2**31)  # torch 2.6 demands a bound
    program = torch.export.export(
        Cut(), (torch.ones(4, 20, 2), torch.tensor([20, 3, 9, 12])), dynamic_shapes=({0: batch}, {0: batch})
    )
    x, lengths = torch.randn(7, 20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(7, 14)
    for found, expected in zip(program.module()(x, lengths), windows.torch(x, lengths), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("patch", "stride", "dilations"), [(5, 4, (1,)), (5, 5, (1,)), (5, 20, (1,)), (9, 100, (1, 2, 4, 8))]
)
def test_the_share_of_a_row_that_is_read(patch, stride, dilations):
    length, windows = 4000, Windows(patch=patch, stride=stride, dilations=dilations, pad="same")
    begins = np.arange(0, length, stride)
    read = {int(t + (j - (patch - 1) // 2) * d) for t in begins for d in dilations for j in range(patch)}
    inside = [place for place in read if 500 <= place < 3500]
    assert windows.read_share == len(inside) / 3000
