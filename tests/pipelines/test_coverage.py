"""Prediction sets and intervals hold the truth as often as asked, and are as wide as a computation by hand gives."""

import csv
import json
import math

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.fitting.bundle import Bundle

from reservoir.errors import InputError

NEW = 400


def write(path, rows, *, classes, seed):
    """Write series whose level says the label, with so much noise that no readout is always right."""
    draw = np.random.default_rng(seed)
    level = draw.normal(size=rows)
    x = level[:, None, None] + draw.normal(0, 0.3, (rows, 8, 1))
    noisy = level + draw.normal(0, 0.5, rows)
    y = np.array(["low", "middle", "high"])[np.digitize(noisy, [-0.5, 0.5])] if classes else noisy
    np.savez(path, x=x, y=y)
    return path


def fitted(folder, tiny_gpt2, *, classes, **options):
    """Return the folder of a readout, and the entry that it was fitted to."""
    own = write(folder / "own.npz", 600, classes=classes, seed=0)
    entry = extract(str(own), backbone=str(tiny_gpt2), layers="block01", pool="mean", cache=folder / "cache")
    done = fit(entry, columns="block01/mean", out=folder / "readout", **options)
    return done.saved.parent, entry, done


@pytest.fixture(scope="module", params=["auto", "valid", "cv5"])
def readout(request, tmp_path_factory, tiny_gpt2):
    folder = tmp_path_factory.mktemp("classes")
    return fitted(folder, tiny_gpt2, classes=True, select=request.param)


@pytest.fixture(scope="module")
def regression(tmp_path_factory, tiny_gpt2):
    return fitted(tmp_path_factory.mktemp("values"), tiny_gpt2, classes=False, select="valid")


def within(covered, coverage):
    """Whether a share of `NEW` rows differs from a coverage by chance: the new rows and the quantile both vary."""
    deviation = math.sqrt(coverage * (1 - coverage) * (1 / NEW + 1 / 120))
    return abs(covered - coverage) < 3 * deviation


@pytest.mark.parametrize("coverage", [0.7, 0.9])
def test_sets_hold_the_class_as_often_as_asked(readout, tmp_path, coverage):
    found = list(predict(readout[0], write(tmp_path / "new.npz", NEW, classes=True, seed=1), coverage=coverage))
    assert within(np.mean([one.truth in one.set for one in found]), coverage)
    assert len({len(one.set) for one in found}) > 1


@pytest.mark.parametrize("coverage", [0.7, 0.9])
def test_intervals_hold_the_value_as_often_as_asked(regression, tmp_path, coverage):
    found = list(predict(regression[0], write(tmp_path / "new.npz", NEW, classes=False, seed=1), coverage=coverage))
    assert within(np.mean([one.interval[0] <= one.truth <= one.interval[1] for one in found]), coverage)


def test_intervals_have_the_width_that_a_computation_by_hand_gives(regression, tmp_path):
    folder, entry, done = regression
    valid = entry["valid"]
    distances = np.sort(np.abs(done.readout.predict(valid["block01/mean"]) - valid.labels[:, :, 0])[:, 0])
    radius = distances[math.ceil((len(distances) + 1) * 0.8) - 1]
    (one, *_) = predict(folder, write(tmp_path / "new.npz", 3, classes=False, seed=1), coverage=0.8)
    assert one.interval == pytest.approx([one.label - radius, one.label + radius], abs=1e-9)


def test_cross_validated_readouts_are_scored_by_a_fit_to_train_alone(tmp_path, tiny_gpt2):
    folder, entry, _ = fitted(tmp_path, tiny_gpt2, classes=False, select="cv5", alphas="1e1:1e1:1")
    x = {split: entry[split]["block01/mean"] for split in ("train", "valid")}
    y = {split: entry[split].labels[:, 0, 0] for split in x}
    mean, deviation = x["train"].mean(axis=0, dtype=np.float64), x["train"].std(axis=0, dtype=np.float64)
    scaled = {split: (values - mean) / deviation for split, values in x.items()}
    gram = scaled["train"].T @ scaled["train"] + 10 * np.eye(16)
    weights = np.linalg.solve(gram, scaled["train"].T @ (y["train"] - y["train"].mean()))
    by_hand = np.sort(np.abs(scaled["valid"] @ weights + y["train"].mean() - y["valid"]))
    assert Bundle.load(folder).held_out == pytest.approx(by_hand, rel=1e-4)


def test_sets_are_columns_of_files_and_labels_are_empty_on_abstaining(readout, tmp_path, call):
    new = write(tmp_path / "new.npz", 50, classes=True, seed=1)
    flags = readout[0], new, "--coverage", "0.9", "--abstain"
    assert call("predict", *flags, "--out", tmp_path / "out.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert any(row["label"] for row in rows) and not all(row["label"] for row in rows)
    assert all(row["label"] == (row["set"] if row["set"] and "|" not in row["set"] else "") for row in rows)
    code, out, error = call("predict", *flags, "--json")
    assert code == 0 and "coverage 0.9 is approximate" in error
    assert ["|".join(one) for one in json.loads(out)["predictions"]["set"]] == [row["set"] for row in rows]
    line = json.loads(call("predict", *flags)[1].splitlines()[0])
    assert line["set"] == [name for name in rows[0]["set"].split("|") if name]


def test_what_cannot_be_covered_is_refused_in_one_line(readout, regression, tmp_path, call):
    new = write(tmp_path / "new.npz", 3, classes=True, seed=1)
    for flags, message in (
        ((readout[0], new, "--abstain"), "--abstain needs --coverage"),
        ((readout[0], new, "--coverage", "0.999"), "--coverage 0.999 needs 999 validation rows, and the readout has"),
        ((regression[0], new, "--coverage", "0.9", "--abstain"), "the readout gives numbers, not classes"),
    ):
        code, _, error = call("predict", *flags)
        assert code == 2 and message in error
    bundle = Bundle.load(regression[0])
    old = tmp_path / "old"
    old.mkdir()
    vars(bundle)["held_out"] = None  # as earlier versions saved it
    bundle.write(old)
    with pytest.raises(InputError, match="it has no validation scores for --coverage"):
        predict(old, new, coverage=0.9)
