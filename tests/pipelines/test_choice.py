"""Tests of what `fit` chooses, saves and says: each needs evidence on paired rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from reservoir_pipelines import ReservoirClassifier, export, extract, fit, predict
from reservoir_pipelines.fitting.baselines import fit_baselines
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.choice import better_baseline, choose_fit
from reservoir_pipelines.fitting.fitters import (
    FIXED_ALPHA,
    ColumnFit,
    LogisticFitter,
    fit_columns,
    fit_source,
    make_fitter,
)
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.sources import KNOWN, Pool, can_choose, choose_columns, held_out_units
from reservoir_pipelines.fitting.statistics import COMPOSITION, K_MERS, Statistic, learn_statistics
from sklearn.feature_extraction.text import CountVectorizer

from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.tasks.own.texts import texts_of
from reservoir.tasks.task import Task, Tokens

MODEL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random"}


def fit_of(name, merits):
    """Return a fit with these merits of held-out rows."""
    result = Result(columns=tuple(name.split("+")), readout="ridge", alpha=1.0, valid_score=float(np.mean(merits)))
    return ColumnFit(results=(result,), best=0, solve=None, merits=lambda: np.asarray(merits, float))


def test_a_baseline_or_another_column_is_chosen_only_if_it_is_clearly_better():
    draw = np.random.default_rng(0)
    right, rows = draw.random(200) < 0.7, np.arange(200)
    ours, equal = fit_of("a+b", right), fit_of("raw", right)
    slightly = fit_of("raw", right | (rows == np.flatnonzero(~right)[0]))  # one more row is no evidence
    clearly = fit_of("k-mer counts", right | (draw.random(200) < 0.3))
    assert better_baseline(ours, [equal, slightly], rows) is None
    assert better_baseline(ours, [slightly, clearly], rows) is clearly
    assert better_baseline(ours, [clearly], rows // 50) is None  # four groups are no evidence
    assert better_baseline(clearly, [ours], rows) is None
    assert choose_fit([ours, slightly], rows, default="a+b") is ours
    assert choose_fit([ours, slightly], rows) is slightly
    assert choose_fit([ours, clearly], rows, default="a+b") is clearly


def test_folds_choose_only_if_they_can_hold_out_most_classes():
    rows = np.arange(12)
    assert not can_choose(rows, rows)  # one row of each class
    assert can_choose(rows // 2, rows) and can_choose(rows % 2, rows)
    assert not can_choose(rows == 0, rows)  # the rare class is never both fitted and held out
    assert can_choose(np.r_[0, 1, 2, [3, 4] * 3], np.arange(9))
    assert not can_choose(np.r_[0, 1, 2, 3, 4, [5, 6] * 2], np.arange(9))
    assert not can_choose(rows % 2, rows % 2)  # each class is one group


def motifs(rows, noise, seed=0):
    """Return series of eight kinds of bumps at random places, and their kinds."""
    draw = np.random.default_rng(seed)
    kinds, time = np.arange(rows) % 8, np.arange(64)
    place = draw.integers(16, 48, rows)
    bump = np.sin((time - place[:, None]) * (0.2 + 0.2 * kinds[:, None])) * (np.abs(time - place[:, None]) < 12)
    return (bump + noise * draw.normal(size=bump.shape)).astype(np.float32), kinds


def test_with_one_row_per_class_nothing_is_chosen_and_the_reservoir_is_kept(tmp_path, narrow_mini, capsys):
    x, y = motifs(88, 0.05)
    split = np.where(np.arange(88) < 8, "train", "test")
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y, split=split)
    done = fit(extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache"))
    assert "nothing is chosen, because no fold can hold out most of the classes" in capsys.readouterr().err
    assert len({result.columns for result in done.table}) == 1 and "raw" not in done.best.columns
    assert done.best.alpha == pytest.approx(FIXED_ALPHA) and len(done.table) == 1
    assert all(one.alpha in (None, done.best.alpha) for one in done.baselines)
    model = ReservoirClassifier(cache=tmp_path / "rows").fit(x[:8], y[:8])
    assert (model.column_, model.alpha_) == (done.best.name, done.best.alpha)
    assert len(model.cv_results_["alpha"]) == 1


def test_all_candidates_have_the_same_folds_and_repeats(tmp_path, narrow_mini):
    x, y = motifs(120, 1.0)
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y % 3)
    pool = Pool.of(extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean,max"))
    tried = choose_columns(pool, FitOptions())
    fitter = make_fitter(FitOptions(), 3, tried.folds, tried.repeats)
    fits, _ = fit_columns(pool, tried, fitter)
    assert fitter.repeats == 5 and all("raw" not in fit.result.columns for fit in fits)
    rows = pool.rows["train"] + pool.rows["valid"]
    for fit_, source, by in fit_baselines(pool, fits, fitter):
        assert (by.folds, by.repeats) == (fitter.folds, 5) and len(fit_.merits()) == rows
        assert len(held_out_units(source, KNOWN)) == rows
        assert fit_.merits().mean() == pytest.approx(fit_.result.valid_score)
    source, settings = pool.raw(), {"classes": 3, "alphas": np.array([1.0, 10.0]), "folds": 4}
    repeated = LogisticFitter(**settings, repeats=3).fit(source)
    first = LogisticFitter(**settings).fit(source)
    assert repeated.result.valid_score != first.result.valid_score
    # A readout that is fitted to some of the rows scores all of them, so that it can be compared.
    fewer = replace(source, some={"train": np.arange(0, pool.rows["train"], 2)})
    thinned = fit_source(LogisticFitter(**settings, repeats=3), fewer)
    assert len(thinned.merits()) == rows and thinned.results[0].readout == "logistic"


def test_a_baseline_names_its_rows_beside_its_readout_if_they_are_not_all(tmp_path, monkeypatch):
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.CHEAP", 0)
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.MIN_ROWS", 20)
    x, y = motifs(200, 0.3)
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y % 2)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean", **MODEL)
    pool = Pool.of(features)
    tried = choose_columns(pool, FitOptions())
    fitter = make_fitter(FitOptions(), 2, tried.folds, tried.repeats)
    fits, _ = fit_columns(pool, tried, fitter)
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.CHEAP", 1e7)
    raw = [one for one in fit_baselines(pool, fits, fitter) if one[0].result.columns == ("raw",)]
    rows = pool.rows["train"]
    if raw[0][1].some:
        assert raw[0][0].result.readout.endswith(f"of {rows:,} training rows")


SYMBOLS = Task(name="own", form=Tokens(5), max_tokens=30, classes=2)


def test_k_mers_are_counted_as_by_scikit_learn_in_all_rows():
    draw = np.random.default_rng(0)
    blocks = [(draw.integers(0, 5, (40, 30)), draw.integers(1, 31, 40)) for _ in range(3)]
    statistics = {one.name: one for one in learn_statistics(SYMBOLS, lambda: blocks)}
    texts = [texts_of(x + ord("A"), lengths) for x, lengths in blocks]
    counter = CountVectorizer(analyzer="char", lowercase=False, ngram_range=(1, 3))
    counter.fit([text for block in texts for text in block])
    # Both orders of columns are sorted by size here, by text there.
    names = sorted(counter.vocabulary_, key=lambda name: (len(name), name))
    order = [counter.vocabulary_[name] for name in names]
    for (x, lengths), block in zip(blocks, texts, strict=True):
        counts = counter.transform(block).toarray()[:, order]
        np.testing.assert_array_equal(statistics[K_MERS](x, lengths), counts)
        letters = counts[:, :5] / counts[:, :5].sum(axis=1, keepdims=True)
        np.testing.assert_allclose(statistics[COMPOSITION](x, lengths), letters, rtol=1e-6)
    unknown = np.full((1, 4), 9)  # symbols that no training row has are not counted
    assert not statistics[K_MERS](unknown, np.array([4])).any()
    for fields, problem in (
        ({"name": "secret"}, "unknown statistic"),
        ({"name": K_MERS}, "no letters"),
        ({"name": K_MERS, "letters": (2, 1), "terms": (0,)}, "ascending"),
        ({"name": "tf-idf", "words": ("a",), "idf": (1.0, 2.0)}, "do not match"),
    ):
        with pytest.raises(ValueError, match=problem):
            Statistic(**fields)


@pytest.mark.parametrize("kind", ["composition", "tf-idf", "summary statistics"])
def test_the_best_baseline_is_saved_and_predicts(kind, tmp_path, capsys):
    draw = np.random.default_rng(0)
    if kind == "summary statistics":
        scale = draw.uniform(1, 3, 300)
        x = (scale[:, None] * draw.normal(size=(300, 40))).astype(np.float32)
        file, new = tmp_path / "d.npz", tmp_path / "new.npz"
        np.savez(file, x=x[..., None], y=(scale > 2).astype(int))
        np.savez(new, x=x[:40, :, None])
        labels = (scale > 2).astype(int)[:40].tolist()
    else:
        letters = "ACGT" if kind == "composition" else ["good ", "bad ", "film ", "plot "]
        share = draw.dirichlet(np.ones(4) * 3, 300)
        texts = ["".join(draw.choice(list(letters), 12, p=p)).strip() for p in share]
        labels = [int(text.count(letters[0]) > text.count(letters[1])) for text in texts]
        file, new = tmp_path / "d.csv", tmp_path / "new.csv"
        lines = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
        file.write_text("\n".join(["text,label", *lines]) + "\n")
        new.write_text("\n".join(["text", *texts[:40]]) + "\n")
        labels = labels[:40]
    # The last hidden state knows little of the whole sequence.
    options = {"layers": "embed", "pool": "last", "input": "gaussian", **MODEL}
    features = extract(str(file), cache=tmp_path / "cache", **options)
    done = fit(features)
    assert done.best in done.baselines and done.best.name != "raw"
    assert done.evaluation.scores["accuracy"] == done.best.test_score
    found = list(predict(done.saved, new))
    assert np.mean([one.label == label for one, label in zip(found, labels, strict=True)]) > 0.8
    bundle = Bundle.load(done.saved)
    assert bundle.parts[0].statistic.name == done.best.name and bundle.parts[0].reservoir is None
    assert done.best.name in json.loads(done.saved.read_text())["parts"][0]["columns"]
    with pytest.raises(InputError, match="cannot be exported or explained"):
        export(done.saved, to="torch", out=tmp_path / "model.pt2")


def test_few_groups_cannot_be_judged(tmp_path, capsys):
    draw = np.random.default_rng(0)
    rows = [f"{row // 20},{','.join(f'{v:.3f}' for v in draw.normal(size=9))},{row % 2}" for row in range(240)]
    head = "patient," + ",".join(f"v{n}" for n in range(9)) + ",label"
    (tmp_path / "d.csv").write_text("\n".join([head, *rows]) + "\n")
    features = extract(str(tmp_path / "d.csv"), cache=tmp_path / "cache", group="patient", pool="mean", **MODEL)
    done = fit(features, columns="embed/mean")
    assert done.evaluation.groups == 2 and done.p_value is None
    assert {one.verdict for one in done.against} == {"cannot be judged"}
    assert "cannot be judged on" in capsys.readouterr().err


def test_a_test_score_far_below_validation_or_below_the_majority_is_warned_about(tmp_path, capsys):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(400, 12)).astype(np.float32), np.arange(400) % 2
    x[:, 3] += 3 * y
    split = np.repeat(["train", "valid", "test"], [200, 100, 100])
    y = np.where((split == "test") & (draw.random(400) < 0.45), 1 - y, y)  # other labels than those of training
    y[split == "test"] |= draw.random(100) < 0.5
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y, split=split)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="tokens", **MODEL)
    done = fit(features, columns="raw")
    err = capsys.readouterr().err
    assert done.best.test_score < done.evaluation.scores["majority_baseline"]
    assert "that of the most common class alone" in err and "more than two standard errors below validation" in err
