"""fit gives the same readouts as scikit-learn on the same features, and saved readouts predict the same."""

import csv
import shutil

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict, prepare
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.sources import Pool
from reservoir_pipelines.tuning.judge import ColumnKernel

from reservoir import InputError
from reservoir.options import FitOptions

# each column alone, chosen on the validation split and fitted to train
PLAIN = {
    "alphas": "1e-1:1e4:6",
    "select": "valid",
    "columns": "block01/last,block01/mean,final/last,final/mean",
}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    """Return features of digits from the tiny model, in a cache that this module shares."""
    root = tmp_path_factory.mktemp("fit")
    return extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="block01,final")


@pytest.fixture(scope="module")
def fitted(extracted):
    return fit(extracted, **PLAIN)


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
        assert abs(accuracy - result.valid_score) <= 1 / 300, result


def test_the_best_is_chosen_on_valid_and_ties_go_to_the_larger_penalty(fitted):
    top = max(r.valid_score for r in fitted.table)
    assert fitted.best.valid_score == top
    assert fitted.best.alpha == max(r.alpha for r in fitted.table if r.valid_score == top)


def test_test_is_scored_for_the_chosen_readout_alone(extracted, fitted):
    assert all(r.test_score is None for r in fitted.table)
    test = extracted["test"]
    hits = fitted.readout.predict(test[fitted.best.columns[0]]) == test.y[:, None]
    assert fitted.best.test_score == pytest.approx(hits.mean())
    with fitted.results.open() as file:
        rows = list(csv.DictReader(file))
    assert [r["columns"] for r in rows if r["test_score"]] == [fitted.best.name, "raw"]
    assert len(rows) == len(fitted.table) + 1
    assert sum(int(r["chosen"]) for r in rows) == 1


def test_a_single_penalty_is_not_used_for_the_raw_input(extracted, tmp_path):
    whole = fit(extracted, columns="final/mean", out=tmp_path / "whole")
    one = fit(extracted, columns="final/mean", alphas="1e5:1e5:1", out=tmp_path / "one")
    assert (one.best.alpha, one.raw) == (1e5, whole.raw)


def test_a_second_fit_uses_stored_moments_and_reads_no_training_features(extracted, fitted, monkeypatch):
    from reservoir_cache import SplitFeatures

    plain = SplitFeatures.blocks

    def refuse(self, column, *shards):
        assert self.split != "train", "the training features were read again"
        return plain(self, column, *shards)

    monkeypatch.setattr(SplitFeatures, "blocks", refuse)
    again = fit(extracted, **PLAIN)
    assert again.table == fitted.table
    np.testing.assert_array_equal(again.readout.coef, fitted.readout.coef)


@pytest.mark.parametrize("limit", [60, 300])
def test_the_raw_input_gets_half_of_the_variance_when_joined_with_columns(extracted, tmp_path, limit, tiny_gpt2):
    from sklearn.linear_model import RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    features = extract("digits", backbone=str(tiny_gpt2), limit=limit, layers="final", pool="mean", cache=tmp_path)
    source = Pool.of(features).source("final/mean+raw")
    known = [
        np.concatenate([block[part] for split in ("train", "valid") for block in source.blocks(split)])
        for part in (0, 1)
    ]
    x, y = known[0].astype(np.float64), known[1].ravel()
    scaler, width = StandardScaler().fit(x), x.shape[1]
    share = np.sqrt(width / 2 / np.repeat([width - 64, 64], [width - 64, 64]))
    for columns in ("final/mean+raw", "raw+final/mean"):
        done = fit(features, columns=columns, alphas="10:10:1", out=tmp_path / "out")
        peer = RidgeClassifier(alpha=10).fit(scaler.transform(x) * share, y)
        test = np.concatenate([values for values, _ in source.blocks("test")])
        expected = peer.decision_function(scaler.transform(test) * share)
        order = np.r_[width - 64 : width, 0 : width - 64] if columns.startswith("raw") else np.arange(width)
        np.testing.assert_allclose(done.readout.scores(test[:, order]), expected, atol=1e-5)
    # tune judges the same: the kernel of both is that of the features that fit reads
    sides = [ColumnKernel.of(Pool.of(features).column(name)) for name in ("final/mean", "raw")]
    z = scaler.transform(x) * share
    np.testing.assert_allclose((sides[0] + sides[1]).matrix(), z @ z.T, rtol=1e-4, atol=1e-3)


def test_predict_equals_the_readout_on_cached_features(extracted, fitted, tmp_path):
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


def test_a_saved_readout_is_loaded_unchanged(fitted):
    bundle = Bundle.load(fitted.saved)
    np.testing.assert_array_equal(bundle.readout.coef, fitted.readout.coef)
    np.testing.assert_array_equal(bundle.readout.intercept, fitted.readout.intercept)
    assert bundle.readout.temperature == fitted.readout.temperature
    assert bundle.parts[0].columns == fitted.best.columns
    assert bundle.scores["test_score"] == fitted.best.test_score


def test_probabilities_are_calibrated_on_valid(extracted, fitted):
    """The temperature minimises the log loss on valid, so no other scale is better there."""
    valid = extracted["valid"]
    x, y = valid[fitted.best.columns[0]], valid.y

    def loss(temperature):
        scores = fitted.readout.targets.probabilities(fitted.readout.scores(x), temperature)[:, 0]
        return -np.log(scores[np.arange(len(y)), y]).mean()

    best = fitted.readout.temperature
    assert loss(best) <= min(loss(best * 1.1), loss(best / 1.1), loss(1.0)) + 1e-9


def test_a_readout_refuses_other_weights(fitted, tmp_path, tiny_gpt2):
    for file in fitted.saved.parent.glob("readout*"):
        shutil.copy(file, tmp_path)
    card = read_checked(tmp_path / "readout.json")
    card["parts"][0]["digest"] = "0" * 64
    write_checked(tmp_path / "readout.json", card)
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 16, 4), np.uint8))
    with pytest.raises(InputError, match="have changed since it was fitted"):
        list(predict(tmp_path, tmp_path / "new.npz"))


def test_wrong_columns_and_files_are_refused(extracted, fitted, tmp_path):
    with pytest.raises(InputError, match="block02/mean"):
        fit(extracted, columns="block02/mean")
    with pytest.raises(InputError, match="penalties"):
        fit(extracted, alphas="1:2")
    with pytest.raises(InputError, match="neither a readout"):
        Bundle.load(tmp_path)
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match=r"bad\.npz"):
        list(predict(fitted.saved, tmp_path / "bad.npz"))


def test_joined_columns_equal_scikit_learn_on_their_concatenation(extracted):
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    done = fit(extracted, columns="block01/last+final/mean", alphas="1e0:1e2:3", select="valid")
    train, valid = (
        np.concatenate([extracted[s]["block01/last"], extracted[s]["final/mean"]], axis=1) for s in ("train", "valid")
    )
    for result in done.table:
        peer = make_pipeline(StandardScaler(), RidgeClassifier(alpha=result.alpha))
        peer.fit(train.astype(np.float64), extracted["train"].y.ravel())
        expected = peer.score(valid.astype(np.float64), extracted["valid"].y.ravel())
        assert abs(expected - result.valid_score) <= 1 / 300


def test_greedy_columns_are_no_worse_than_the_best_alone(extracted, fitted, tmp_path):
    done = fit(extracted, columns="best:3", alphas="1e-1:1e4:6", select="valid", out=tmp_path)
    assert done.best.valid_score >= fitted.best.valid_score
    assert len(done.best.columns) > 1
    settings = {"alphas": "1e-1:1e4:6", "select": "valid", "out": tmp_path / "again"}
    again = fit(extracted, columns="+".join(done.best.columns), **settings)
    assert again.best.valid_score == done.best.valid_score
    assert again.best.test_score == done.best.test_score


def test_readouts_of_several_entries_predict_through_all_of_them(extracted, tiny_gpt2, tmp_path):
    root = extracted.entry.parents[2]
    other = extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="final", seed=5)
    done = fit([extracted, other], columns="1:final/mean+2:final/mean", alphas="1e0:1e2:3", out=tmp_path)
    whole = prepare("digits", cache=root).split("test")
    x = whole.read(0, len(whole)).x[extracted["test"].index]
    np.savez(tmp_path / "new.npz", x=x)
    labels = np.array([p.label for p in predict(done.saved, tmp_path / "new.npz")])
    joined = np.concatenate([extracted["test"]["final/mean"], other["test"]["final/mean"]], axis=1)
    assert (labels == done.readout.predict(joined).ravel()).mean() >= 0.99
    assert len(Bundle.load(done.saved).parts) == 2
    fewer = extract("digits", backbone=str(tiny_gpt2), limit=100, cache=root, layers="final")
    with pytest.raises(InputError, match="different rows"):
        fit([extracted, fewer])


def test_cross_validation_uses_every_row_that_is_not_test(extracted, tmp_path):
    first = fit(extracted, select="cv5", columns="final/mean", alphas="1e0:1e2:3", out=tmp_path)
    counts = [round(r.valid_score * 600, 6) for r in first.table]
    assert all(count == int(count) for count in counts)
    assert fit(extracted, select="cv5", columns="final/mean", alphas="1e0:1e2:3", out=tmp_path).table == first.table


def test_a_learning_curve_ends_at_the_score_of_the_fit_on_all_rows(extracted, tmp_path, painted):
    settings = {"alphas": "1e-1:1e4:6", "select": "valid", "curve": "30,100,300,9999", "out": tmp_path}
    done = fit(extracted, columns="final/mean", **settings)
    assert [point.rows for point in done.curve] == [30, 100, 300]
    few, _, whole = done.curve
    assert whole.valid_range == (done.best.valid_score,) * 2 and whole.valid_score == done.best.valid_score
    assert whole.test_range == (done.best.test_score,) * 2
    assert few.valid_score < whole.valid_score
    assert few.test_range[0] < few.test_score < few.test_range[1]  # other rows in each draw
    assert (tmp_path / "curve.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "readout", ["logistic", "sklearn.svm.LinearSVC:C=0.01,0.1", "sklearn.linear_model.SGDClassifier"]
)
def test_other_readouts_are_chosen_saved_and_loaded(extracted, readout, tmp_path):
    settings = {"alphas": "1e0:1e2:3"} if readout == "logistic" else {}
    done = fit(extracted, columns="final/mean", readout=readout, out=tmp_path, **settings)
    assert done.best.test_score > 0.5
    assert done.raw is not None
    loaded = Bundle.load(done.saved).readout
    test = extracted["test"]["final/mean"]
    np.testing.assert_array_equal(loaded.predict(test), done.readout.predict(test))
    np.testing.assert_allclose(loaded.probabilities(test).sum(axis=-1), 1, atol=1e-6)


def test_balanced_classes_and_wrong_settings(extracted, tmp_path):
    assert fit(extracted, columns="final/mean", class_weight="balanced", out=tmp_path).best.test_score > 0.5
    for settings, words in [
        ({"readout": "nothing.Here"}, "nothing.Here"),
        ({"readout": "os.path.join"}, "no scikit-learn"),
        ({"readout": "sklearn.svm.LinearSVC:D=1"}, "'D'"),
        ({"select": "cv1"}, "cv1"),
        ({"select": "cv5", "readout": "logistic"}, "cross-validation"),
        ({"columns": "best:0"}, "best:0"),
        ({"curve": "none"}, "--curve"),
        ({"class_weight": "heavy"}, "heavy"),
    ]:
        with pytest.raises(InputError, match=words):
            fit(extracted, out=tmp_path, **settings)


def test_each_seed_gets_its_own_reservoir(extracted, tmp_path):
    from statistics import fmean, stdev

    from reservoir_pipelines.fitting.seeds import fit_seeds

    done = fit_seeds([extracted.store.entry], 3, FitOptions(out=tmp_path, columns="final/mean", alphas="1e0:1e2:3"))
    assert len({one.entry for one in done.fits}) == 3
    assert done.fits[0].entry == extracted.entry
    tests = [one.best.test_score for one in done.fits]
    assert len(set(tests)) > 1
    assert done.mean == pytest.approx(fmean(tests))
    assert done.deviation == pytest.approx(stdev(tests))
    assert len(done.to_dict()["seeds"]) == 3
    with pytest.raises(InputError, match="--seeds"):
        fit_seeds([extracted.store.entry] * 2, 3)


@pytest.mark.parametrize("repeats", [1, 3])  # few targets, and so many that every penalty has no weights of its own
def test_regression_is_scored_by_r2_and_predicted(tiny_gpt2, tmp_path, repeats):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 8, 2)).astype(np.float32)
    y = np.stack([x[:, :, 0].mean(axis=1), 3 + x[:, -1, 1]] * repeats, axis=1)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    np.savez(tmp_path / "new.npz", x=x[:5])
    settings = {
        "backbone": str(tiny_gpt2),
        "layers": "embed,block01",
        "pool": "last,segments8",
        "cache": tmp_path / "c",
    }
    done = fit(extract(str(tmp_path / "own.npz"), **settings))
    assert 0.9 < done.best.test_score <= 1
    assert done.best.test_interval[0] < done.best.test_score < done.best.test_interval[1]
    predictions = list(predict(done.saved, tmp_path / "new.npz"))
    assert [p.probabilities for p in predictions] == [[]] * 5
    assert np.abs(np.array([p.label for p in predictions]) - y[:5]).max() < 0.5
