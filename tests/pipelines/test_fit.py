"""fit: the same readouts as scikit-learn on the same features, chosen on valid; what is saved predicts the same."""

import csv
import json

import numpy as np
import pytest
from reservoir_cache import FeatureStore
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.bundle import Bundle
from reservoir_pipelines.prepare import prepare

from reservoir import InputError


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    """Digits through the tiny model, in a cache that this module shares."""
    root = tmp_path_factory.mktemp("fit")
    return extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="block01,final")


@pytest.fixture(scope="module")
def fitted(extracted):
    return fit(extracted, alphas="1e-1:1e4:6")


def test_every_readout_equals_scikit_learn(extracted, fitted):
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, valid = extracted["train"], extracted["valid"]
    assert len(fitted.table) == 4 * 6
    for result in fitted.table:
        peer = make_pipeline(StandardScaler(), RidgeClassifier(alpha=result.alpha))
        peer.fit(train[result.columns[0]].astype(np.float64), train.y.ravel())
        accuracy = peer.score(valid[result.columns[0]].astype(np.float64), valid.y.ravel())
        # A tie between two classes may fall either way in the last bits: one row of 300 at the most.
        assert abs(accuracy - result.valid_accuracy) <= 1 / 300, result


def test_the_best_is_chosen_on_valid_and_ties_go_to_the_larger_penalty(fitted):
    top = max(r.valid_accuracy for r in fitted.table)
    assert fitted.best.valid_accuracy == top
    assert fitted.best.alpha == max(r.alpha for r in fitted.table if r.valid_accuracy == top)


def test_test_is_scored_for_the_chosen_readout_alone(extracted, fitted):
    assert all(r.test_accuracy is None for r in fitted.table)
    test = extracted["test"]
    hits = fitted.readout.predict(test[fitted.best.columns[0]]) == test.y[:, 0]
    assert fitted.best.test_accuracy == pytest.approx(hits.mean())
    with fitted.results.open() as file:
        rows = list(csv.DictReader(file))
    assert [r["columns"] for r in rows if r["test_accuracy"]] == [fitted.best.columns[0], "raw input"]
    assert len(rows) == len(fitted.table) + 1
    assert sum(int(r["chosen"]) for r in rows) == 1


def test_the_raw_input_is_swept_beside(extracted, fitted):
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    prepared = prepare("digits", cache=extracted.entry.parents[2])
    flat = {}
    for split in ("train", "test"):
        part = prepared.split(split)
        whole = part.read(0, len(part))
        flat[split] = prepared.scaling(whole.x).reshape(len(part), -1)[extracted[split].index]
    peer = make_pipeline(StandardScaler(), RidgeClassifier(alpha=fitted.raw.alpha))
    peer.fit(flat["train"], extracted["train"].y.ravel())
    expected = peer.score(flat["test"], extracted["test"].y.ravel())
    assert fitted.raw.test_accuracy == pytest.approx(expected, abs=1 / 300)


def test_moments_are_kept_and_a_second_sweep_does_not_read_the_training_features(extracted, fitted, monkeypatch):
    from reservoir_cache import SplitFeatures

    plain = SplitFeatures.blocks

    def refuse(self, column):
        assert self.split != "train", "the training features were read again"
        return plain(self, column)

    monkeypatch.setattr(SplitFeatures, "blocks", refuse)
    again = fit(extracted, alphas="1e-1:1e4:6")
    assert again.table == fitted.table
    np.testing.assert_array_equal(again.readout.coef, fitted.readout.coef)


def test_the_kernel_form_gives_the_same_as_moments(extracted, tmp_path, tiny_gpt2):
    few = extract("digits", backbone=str(tiny_gpt2), limit=100, layers="final", pool="segments8", cache=tmp_path)
    done = fit(few, alphas="1e0:1e2:3")
    x, y = few["train"]["final/segments8"].astype(np.float64), few["train"].y.ravel()
    assert len(x) < x.shape[1]
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    for result in done.table:
        peer = make_pipeline(StandardScaler(), RidgeClassifier(alpha=result.alpha)).fit(x, y)
        valid = few["valid"]
        expected = peer.score(valid["final/segments8"].astype(np.float64), valid.y.ravel())
        assert abs(expected - result.valid_accuracy) <= 1 / 100


def test_predict_gives_what_the_readout_gives_on_cached_features(extracted, fitted, tmp_path):
    from sklearn.datasets import load_digits

    test = extracted["test"]
    prepared = prepare("digits", cache=extracted.entry.parents[2])
    whole = prepared.split("test")
    x = whole.read(0, len(whole)).x[test.index]
    file = tmp_path / "new.npz"
    np.savez(file, x=x)
    predictions = list(predict(fitted.saved, file))
    expected = fitted.readout.predict(test[fitted.best.columns[0]]).ravel()
    labels = np.array([p.label for p in predictions])
    # The cache rounds to float16, predict does not: a row on the border may differ.
    assert (labels == expected).mean() >= 0.99
    chances = np.array([p.probabilities for p in predictions])
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-4)
    assert (chances.argmax(axis=1) == labels).all()
    # Raw images are accepted as well as patches, and mean the same.
    images = load_digits().images[:20].astype(np.uint8)
    patches = images.reshape(20, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(20, 16, 4)
    np.savez(tmp_path / "images.npz", x=images)
    np.savez(tmp_path / "patches.npz", x=patches)
    of_images, of_patches = (list(predict(fitted.saved.parent, tmp_path / f"{n}.npz")) for n in ("images", "patches"))
    assert of_images == of_patches
    assert np.mean([p.label for p in of_images] == load_digits().target[:20]) >= 0.5


def test_a_saved_readout_is_read_back_whole(fitted):
    bundle = Bundle.load(fitted.saved)
    np.testing.assert_array_equal(bundle.readout.coef, fitted.readout.coef)
    np.testing.assert_array_equal(bundle.readout.intercept, fitted.readout.intercept)
    assert bundle.readout.temperature == fitted.readout.temperature
    assert bundle.columns == fitted.best.columns
    assert bundle.scores["test_accuracy"] == fitted.best.test_accuracy


def test_probabilities_are_calibrated_on_valid(extracted, fitted):
    """The temperature minimises the log loss on valid, so no other scale is better there."""
    valid = extracted["valid"]
    x, y = valid[fitted.best.columns[0]], valid.y[:, 0, 0]

    def loss(temperature):
        scores = fitted.readout.targets.probabilities(fitted.readout.scores(x), temperature)[:, 0]
        return -np.log(scores[np.arange(len(y)), y]).mean()

    best = fitted.readout.temperature
    assert loss(best) <= min(loss(best * 1.1), loss(best / 1.1), loss(1.0)) + 1e-9


def test_a_readout_refuses_other_weights(fitted, tmp_path, tiny_gpt2):
    import shutil

    for name in ("readout.json", "readout.safetensors"):
        shutil.copy(fitted.saved.parent / name, tmp_path / name)
    card = json.loads((tmp_path / "readout.json").read_text())
    card["digest"] = "0" * 64
    (tmp_path / "readout.json").write_text(json.dumps(card))
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 16, 4), np.uint8))
    with pytest.raises(InputError, match="no longer those"):
        list(predict(tmp_path, tmp_path / "new.npz"))


def test_wrong_columns_and_files_are_refused(extracted, fitted, tmp_path):
    with pytest.raises(InputError, match="block02/mean"):
        fit(extracted, columns="block02/mean")
    with pytest.raises(InputError, match="penalties"):
        fit(extracted, alphas="1:2")
    with pytest.raises(InputError, match="no readout"):
        Bundle.load(tmp_path)
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match=r"bad\.npz"):
        list(predict(fitted.saved, tmp_path / "bad.npz"))


def test_the_store_of_an_extraction_is_the_store_of_its_folder(extracted):
    np.testing.assert_array_equal(
        FeatureStore(extracted.entry)["test"]["final/mean"], extracted.store["test"]["final/mean"]
    )
