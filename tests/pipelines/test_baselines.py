"""Every fit stands beside what would be tried without a reservoir, chosen and scored by the same rows."""

import json

import numpy as np
import pytest
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting.baselines import _summaries
from reservoir_pipelines.fitting.sources import Pool
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.tasks.own.texts import texts_of

SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "embed"}
DRAW = np.random.default_rng(0)


def fitted(tmp_path, path, **settings):
    """Return features, their fit on the validation split, and its baselines by name."""
    features = extract(str(path), cache=tmp_path / "cache", pool="mean", compute="float32", **SMALL, **settings)
    done = fit(features, columns=features.columns, alphas="1e-1:1e3:5", select="valid", out=tmp_path / "fit")
    return features, done, {one.name: one for one in done.baselines}


def write(path, rows, header):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def stored(features, split):
    """Return the stored sequences of a split, and their lengths."""
    return next(Pool.of(features).raw().rows(split))


def assert_same_score(found, features, x, peer):
    """Assert that a baseline has the test score of a scikit-learn pipeline that is fitted to the training rows."""
    y = {split: features[split].labels.ravel() for split in x}
    score = make_pipeline(StandardScaler(), peer).fit(x["train"], y["train"]).score(x["test"], y["test"])
    assert found.test_score == pytest.approx(score, abs=0.03)


def test_the_raw_input_is_read_by_the_better_of_ridge_and_logistic_regression(tmp_path):
    x = DRAW.normal(size=(900, 3, 2)).astype(np.float32)
    x[:, 0, 0] *= np.where(DRAW.random(900) < 0.05, 40, 1)  # far from the border, which pulls least squares askew
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0, 0] + x[:, 1, 0] > 0).astype(int))
    features, done, _ = fitted(tmp_path, tmp_path / "d.npz")
    assert done.raw is not None and done.raw.readout == "logistic" and done.raw == done.baselines[0]
    flat = {split: stored(features, split)[0].reshape(-1, 6) for split in ("train", "test")}
    assert_same_score(done.raw, features, flat, LogisticRegression(C=1 / done.raw.alpha))
    folded = fit(features, select="cv5", columns=features.columns, out=tmp_path / "folds")
    assert folded.raw is not None and folded.raw.readout == "logistic"
    ridge = RidgeClassifier().fit(flat["train"], features["train"].y).score(flat["test"], features["test"].y)
    assert min(done.raw.test_score, folded.raw.test_score) > ridge


def test_letters_are_compared_with_composition_and_k_mer_counts(tmp_path, capfd, call):
    rows = []
    for row in range(600):
        text = "".join(DRAW.choice(list("ACGT"), 24))
        rows.append((text if row % 2 else text[:11] + "GAT" + text[14:], "ab"[row % 2]))
    features, done, found = fitted(tmp_path, write(tmp_path / "d.csv", rows, "sequence,label"))
    assert list(found) == ["raw", "composition", "k-mer counts"]
    texts = {split: texts_of(*stored(features, split)) for split in ("train", "test")}
    counter = CountVectorizer(analyzer="char", lowercase=False, ngram_range=(1, 3)).fit(texts["train"])
    counts = {split: counter.transform(text).toarray().astype(float) for split, text in texts.items()}
    best = found["k-mer counts"]
    assert_same_score(best, features, counts, RidgeClassifier(alpha=best.alpha))
    assert best.valid_score > found["composition"].valid_score
    assert "This reservoir adds nothing to k-mer counts." in capfd.readouterr().err
    assert "k-mer counts" in done.adds_nothing_to
    _, out, err = call("fit", features.entry, "--columns", "embed/mean", "--json")
    printed = json.loads(out)
    assert [one["name"] for one in printed["baselines"]] == list(found)
    assert all(one["valid_score"] and one["test_score"] for one in printed["baselines"])
    assert "k-mer counts" in printed["adds_nothing_to"] and "adds nothing to k-mer counts." in err
    assert "k-mer counts" in call("fit", features.entry, "--columns", "embed/mean")[1]


def test_texts_are_compared_with_tf_idf(tmp_path):
    words = ["good", "bad", "film", "very", "not", "plot", "the", "a"]
    rows = [" ".join(DRAW.choice(words, 6)) for _ in range(300)]
    labelled = [(text, int(text.count("good") > text.count("bad"))) for text in rows]
    features, _, found = fitted(tmp_path, write(tmp_path / "d.csv", labelled, "text,label"), input="gaussian")
    assert list(found) == ["raw", "tf-idf"]
    texts = {split: texts_of(*stored(features, split)) for split in ("train", "test")}
    made = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(texts["train"])
    counts = {split: made.transform(text).toarray() for split, text in texts.items()}
    assert_same_score(found["tf-idf"], features, counts, RidgeClassifier(alpha=found["tf-idf"].alpha))


def test_series_are_compared_with_summary_statistics(tmp_path):
    x, lengths = DRAW.normal(size=(400, 12, 2)).astype(np.float32), DRAW.integers(4, 13, 400)
    x[200:] += np.arange(12)[:, None] / 8
    np.savez(tmp_path / "d.npz", x=x, lengths=lengths, y=np.arange(400) // 200)
    features, _, found = fitted(tmp_path, tmp_path / "d.npz")
    assert list(found) == ["raw", "summary statistics"]
    expected = [
        [values.mean(), values.std(), values.min(), values.max(), np.polyfit(np.arange(n), values, 1)[0]]
        for row, n in zip(x, lengths, strict=True)
        for values in row[:n].T
    ]
    expected = np.array(expected).reshape(400, 2, 5).transpose(0, 2, 1).reshape(400, 10)
    np.testing.assert_allclose(_summaries(x, lengths), expected, atol=1e-5)
    known = {split: _summaries(*stored(features, split)) for split in ("train", "test")}
    best = found["summary statistics"]
    assert_same_score(best, features, known, RidgeClassifier(alpha=best.alpha))


def test_labels_of_every_token_are_compared_with_windows_of_the_input(tmp_path):
    x = DRAW.integers(0, 3, size=(80, 20))
    np.savez(tmp_path / "d.npz", x=x, y=np.roll(x, 1, axis=1))  # the label is the symbol before
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", **SMALL)
    done = fit(features, columns="raw", select="valid", out=tmp_path / "fit")
    assert done.best.test_score < 0.5  # of one symbol
    assert [one.name for one in done.baselines] == ["raw, windows of 9"]
    assert done.baselines[0].test_score > 0.9
    level = DRAW.normal(size=(80, 20, 1)).cumsum(axis=1)
    np.savez(tmp_path / "v.npz", x=level, y=np.roll(level[:, :, 0], 1, axis=1))
    features = extract(str(tmp_path / "v.npz"), cache=tmp_path / "cache", **SMALL)
    found = fit(features, columns="raw", select="valid", out=tmp_path / "values").baselines[0]
    values, _ = stored(features, "test")
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values[:, :, 0], ((0, 0), (4, 4))), 9, axis=1)
    y = np.asarray(features["test"].labels)[..., 0].ravel()
    peer = make_pipeline(StandardScaler(), Ridge(0.1)).fit(windows.reshape(-1, 9), y)
    assert found.metric == "R²" and found.test_score == pytest.approx(peer.score(windows.reshape(-1, 9), y), abs=0.1)


def test_statistics_of_many_rows_are_those_of_some(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.MOST_ROWS", 50)
    x = DRAW.normal(size=(300, 6, 1)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=(x.mean(axis=(1, 2)) > 0).astype(int))
    features, _, found = fitted(tmp_path, tmp_path / "d.npz")
    assert found["summary statistics"].test_score > 0.7
    every = -(-features["train"].rows // 50)
    assert f"summary statistics: fitted to one of {every} training rows" in capsys.readouterr().err
