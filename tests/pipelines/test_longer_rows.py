"""Sequences longer than any that a readout was fitted on are labelled, as far as the model reads."""

import numpy as np
import pytest
from reservoir_pipelines import ReservoirClassifier, explain, extract, fit, predict
from sklearn.model_selection import cross_val_score

from reservoir.errors import InputError


def waves(lengths, seed=0):
    """Return sines of two frequencies, one for each length, and their classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(len(lengths)) % 2
    shown = zip(lengths, y, rng.uniform(0, 6, len(lengths)), strict=True)
    return [np.sin(np.arange(n) * (1 + kind) / 4 + phase) + rng.normal(0, 0.1, n) for n, kind, phase in shown], y


def write(path, rows, y, **arrays):
    x = np.zeros((len(rows), max(map(len, rows)), 1), np.float32)
    for number, row in enumerate(rows):
        x[number, : len(row), 0] = row
    np.savez(path, x=x, y=y, lengths=np.array(list(map(len, rows))), **arrays)
    return path


@pytest.fixture(scope="module")
def rows():
    return waves(np.random.default_rng(1).integers(20, 41, 60))


def test_a_classifier_labels_longer_sequences(cache, rows):
    model = ReservoirClassifier(compute="float32").fit(*rows)
    new, y = waves([90, 200, 120, 1000], seed=2)
    np.testing.assert_array_equal(model.predict(new), y)
    with pytest.raises(InputError, match=r"X, row 1: sequences of 1025 tokens, but this gpt2 has 1024 positions"):
        model.predict([new[0], np.zeros(1025)])


def test_cross_validation_of_lists_scores_every_fold(cache, rows):
    x, y = rows
    order = np.argsort([len(row) for row in x])  # without shuffling, the last fold has the longest sequences
    scores = cross_val_score(ReservoirClassifier(compute="float32"), [x[i] for i in order], y[order], cv=3)
    assert np.isfinite(scores).all() and scores.mean() > 0.9


@pytest.mark.parametrize("columns", ["all", "raw", "block01/segments8"])
def test_predict_accepts_longer_series(cache, rows, tmp_path, columns, capsys):
    found = fit(extract(str(write(tmp_path / "d.npz", *rows)), compute="float32"), columns=columns)
    new, y = waves([90, 200, 35], seed=2)
    labels = [row.label for row in predict(found.saved, write(tmp_path / "new.npz", new, y))]
    if columns == "raw":
        assert (
            "2 rows are longer than any that the readout was fitted on; raw read the first" in capsys.readouterr().err
        )
    else:
        assert labels == y.tolist()
    too_long = write(tmp_path / "long.npz", [*new, np.zeros(1025)], np.zeros(4, int))
    if columns != "raw":
        with pytest.raises(InputError, match=r"long\.npz, row 3: sequences of 1025 tokens"):
            predict(found.saved, too_long)
        with pytest.raises(InputError, match=r"new\.npz, row 1: 200 tokens; explain takes rows of up to the"):
            explain(found.saved, tmp_path / "new.npz")


def test_a_longer_test_row_changes_no_feature_of_training_rows(cache, rows, tmp_path):
    x, y = rows
    split = np.repeat(["train", "valid", "test"], 20)
    longer = [*x[:-1], np.concatenate([x[-1]] * 20)]
    stores = [
        extract(str(write(tmp_path / name, data, y, split=split)), compute="float32", layers="embed").store
        for name, data in (("d.npz", x), ("e.npz", longer))
    ]
    dilations = [store.entry.spec.input["dilations"] for store in stores]
    assert dilations[0] == dilations[1] == [1, 2, 4]
    for column in stores[0]["train"].columns:
        one, other = (store["train"][column] for store in stores)
        np.testing.assert_allclose(one, other, atol=1e-4)
