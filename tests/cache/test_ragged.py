"""Rows that are words or tokens of texts: pointers, IDs and spans are read as written; others are damage."""

import numpy as np
import pytest
from reservoir_cache import CacheError, FeatureStore, write_targets

POINTERS = np.array([0, 4, 4, 10])  # the second text has no token


def ragged(rows, **changes):
    """Return the targets of ten rows, which are the tokens of three texts."""
    text = np.repeat(np.arange(3), np.diff(POINTERS))
    arrays = {
        "y": np.arange(rows).reshape(rows, 1, 1),
        "lengths": np.ones(rows, np.uint8),
        "index": text.astype(np.int32),
        "groups": text.astype(np.int32),
        "pointers": POINTERS,
        "token_ids": np.arange(rows, dtype=np.int32) + 100,
        "spans": np.stack([np.arange(rows), np.arange(rows) + 3], axis=1).astype(np.int32),
        "text_ids": np.array(["a", "b", "é"]),
    } | changes
    return {name: array for name, array in arrays.items() if array is not None}


@pytest.fixture
def train(entry, toy):
    """Return a function that writes the targets of the split with ten rows and opens it."""

    def opened(**changes):
        toy.fill(entry)
        (entry.path / "train" / "targets.h5").unlink()
        write_targets(entry, "train", ragged(10, **changes))
        return FeatureStore(entry.path)["train"]

    return opened


def test_tokens_are_found_by_text(train, toy, entry):
    part = train()
    assert part.pointers.tolist() == POINTERS.tolist() and [*part.tokens_of(2)] == [4, 5, 6, 7, 8, 9]
    assert [*part.tokens_of(1)] == [] and [*part.tokens_of(-3)] == [0, 1, 2, 3]
    assert part.ids.tolist() == ["a"] * 4 + ["é"] * 6 and part.y.tolist() == list(range(10))
    assert part.token_ids[4] == 104 and part.spans[4].tolist() == [4, 7]
    values = part.read("block01/mean")
    assert np.array_equal(part.token("block01/mean", 2, 3), values[7, 0])
    for text, number in ((1, 0), (0, 4), (3, 0)):
        with pytest.raises(IndexError):
            part.token("block01/mean", text, number)


def test_names_of_texts_may_change(train, entry):
    train()
    write_targets(entry, "train", ragged(10, text_ids=np.array([7, 8, 9])))
    assert FeatureStore(entry.path)["train"].ids.tolist() == [7] * 4 + [9] * 6
    write_targets(entry, "train", ragged(10, text_ids=None))
    assert FeatureStore(entry.path)["train"].ids.tolist() == [0] * 4 + [2] * 6


def test_rows_that_are_no_tokens_have_none(entry, toy):
    part = FeatureStore(toy.fill(entry).path)["train"]
    assert part.pointers is None
    for read in (lambda: part.token_ids, lambda: part.spans, lambda: part.tokens_of(0)):
        with pytest.raises(CacheError, match="no words or tokens"):
            read()


@pytest.mark.parametrize(
    "changes",
    [
        {"pointers": np.array([0, 4, 9])},
        {"pointers": np.array([1, 4, 4, 10])},
        {"pointers": np.array([0, 6, 4, 10])},
        {"pointers": np.array([0.0, 4.0, 4.0, 10.0])},
        {"pointers": np.empty(0, np.int64)},
        {"pointers": None},
        {"token_ids": np.arange(9)},
        {"spans": None},
        {"spans": np.zeros((10, 3), np.int32)},
        {"text_ids": np.array(["a", "b"])},
    ],
)
def test_pointers_that_do_not_fit_are_damage(changes, train):
    part = train(**changes)
    with pytest.raises(CacheError, match="damaged"):
        part.labels  # noqa: B018
