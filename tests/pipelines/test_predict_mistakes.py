"""predict refuses wrong input in one line, and prints labels in their own type."""

import json

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict

from reservoir.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 3))


@pytest.fixture(scope="module")
def readout(tmp_path_factory, tiny_gpt2):
    """Return a readout of vectors (rows, 5, 3) with two classes."""
    folder = tmp_path_factory.mktemp("predict")
    x = RNG.normal(size=(60, 5, 3))
    np.savez(folder / "own.npz", x=x, y=(x.mean(axis=(1, 2)) > 0).astype(int))
    features = extract(str(folder / "own.npz"), backbone=str(tiny_gpt2), cache=folder / "cache", layers="block01,final")
    return fit(features, alphas="1e0:1e0:1", out=folder / "readout").saved


def answers(readout, tmp_path, **arrays):
    np.savez(tmp_path / "new.npz", **arrays)
    return list(predict(readout, tmp_path / "new.npz", device="cpu"))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([2, 3, 4]), r"x has 2 rows and lengths the shape \(3,\)"),
        (np.array(2), r"x has 2 rows and lengths the shape \(\)"),
        (np.array([[2, 3], [2, 3]]), r"lengths the shape \(2, 2\)"),
        (np.array([2.5, 3]), "lengths hold float64"),
        (np.array([np.nan, 3]), "lengths hold float64"),
        (np.array(["2", "3"]), "lengths hold <U1"),
        (np.array([2, 6]), "length 6 in row 1 is not between 1 and 5"),
        (np.array([2**32 + 1, 3]), "length 4294967297 in row 0"),
    ],
)
def test_lengths_that_are_not_one_whole_number_per_row_are_refused(readout, tmp_path, lengths, message):
    with pytest.raises(InputError, match=message):
        answers(readout, tmp_path, x=X, lengths=lengths)
    assert len(answers(readout, tmp_path, x=X, lengths=np.array([2, 5]))) == 2


def test_a_single_number_is_refused(readout, tmp_path):
    with pytest.raises(InputError, match="x is a single number"):
        answers(readout, tmp_path, x=np.array(1.0))


def test_values_that_the_model_cannot_hold_are_refused_by_row(readout, tmp_path):
    x = RNG.normal(size=(300, 5, 3))
    x[290, 2] = 1e38
    with pytest.raises(InputError, match=r"new\.npz: the model overflows in row 290"):
        answers(readout, tmp_path, x=x)
    assert len(answers(readout, tmp_path, x=np.delete(x, 290, axis=0))) == 299


def test_integer_labels_are_printed_as_integers(tmp_path, tiny_gpt2):
    x = RNG.normal(size=(60, 5, 3))
    np.savez(tmp_path / "own.npz", x=x, y=np.array([-7, 0, 5])[np.arange(60) % 3])
    features = extract(str(tmp_path / "own.npz"), backbone=str(tiny_gpt2), cache=tmp_path / "cache", layers="final")
    saved = fit(features, alphas="1e0:1e0:1", out=tmp_path / "readout").saved
    printed = [json.dumps(answer.to_dict()) for answer in answers(saved, tmp_path, x=x)]
    found = [json.loads(line)["label"] for line in printed]
    assert {type(label) for label in found} == {int} and set(found) <= {-7, 0, 5}
