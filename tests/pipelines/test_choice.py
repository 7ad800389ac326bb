"""What `fit` chooses on paired rows, saves and says: also its estimate of the cost, and its progress."""

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
import pandas as pd
import pytest
from reservoir_cache import CacheError, Entry, FeatureStore, SplitFeatures
from reservoir_pipelines import ReservoirClassifier, export, extract, fit, predict
from reservoir_pipelines.estimators.predictor import ArrayColumns
from reservoir_pipelines.fitting import cost, kernel_fitter
from reservoir_pipelines.fitting import fit as fit_module
from reservoir_pipelines.fitting import statistics as statistics_module
from reservoir_pipelines.fitting.baselines import fit_baselines
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.candidates import candidates_of_fit
from reservoir_pipelines.fitting.cost import KernelSize, RidgeSize, cost_line
from reservoir_pipelines.fitting.evaluate import Test
from reservoir_pipelines.fitting.fit_data import FitData
from reservoir_pipelines.fitting.fitter import ColumnFit, fit_source
from reservoir_pipelines.fitting.folds import can_choose
from reservoir_pipelines.fitting.kernel_fitter import KernelFitter
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.refit import refit_all
from reservoir_pipelines.fitting.results import Result
from reservoir_pipelines.fitting.select import _valid_error, better_baseline, choose_fit, fit_columns, select
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, ColumnSource, OutOfReachError, held_out_units
from reservoir_pipelines.fitting.statistics import COMPOSITION, K_MERS, Statistic, learn_statistics
from reservoir_pipelines.fitting.verdicts import raw_choice_notes
from reservoir_pipelines.output import Meter
from reservoir_pipelines.preparation.prepared import PreparedSplit
from reservoir_pipelines.reports.views import fit_part
from reservoir_pipelines.tables import FitScores, ResultTable
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from reservoir.column import RAW, Column, parse_columns
from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.readouts import kernel_ridge
from reservoir.readouts.linear import Targets
from reservoir.readouts.penalties import DEFAULT_ALPHAS, FIXED_ALPHA, LOGISTIC_ALPHAS
from reservoir.readouts.products import listening
from reservoir.readouts.sweep import cross_sweep, sweep
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.texts import codes_of, texts_of

MODEL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random"}


def fit_of(name, scores):
    """Return a fit with these scores of held-out rows."""
    result = Result(columns=tuple(name.split("+")), readout="ridge", alpha=1.0, valid_score=float(np.mean(scores)))
    read = partial(np.asarray, scores, float)
    return ColumnFit(columns=parse_columns(name), results=(result,), best=0, solve=None, sample_scores=read)


def test_a_baseline_or_another_column_is_chosen_only_if_it_is_clearly_better():
    draw = np.random.default_rng(0)
    right, rows = draw.random(200) < 0.7, np.arange(200)
    ours, equal = fit_of("a+b", right), fit_of("raw", right)
    slightly = fit_of("raw", right | (rows == np.flatnonzero(~right)[0]))  # one more row is not evidence
    clearly = fit_of("k-mer counts", right | (draw.random(200) < 0.3))
    assert better_baseline(ours, [equal, slightly], rows) is None
    assert better_baseline(ours, [slightly, clearly], rows) is clearly
    assert better_baseline(ours, [clearly], rows // 50) is None  # four groups are too few to be evidence
    assert better_baseline(clearly, [ours], rows) is None
    assert choose_fit([ours, slightly], rows, default=parse_columns("a+b")) is ours
    assert choose_fit([ours, slightly], rows) is slightly
    assert choose_fit([ours, clearly], rows, default=parse_columns("a+b")) is clearly


@pytest.mark.parametrize("rows", [11, 12, 30, 32, 40, 100, 120, 200, 1000])
def test_a_single_row_is_no_evidence_for_any_number_of_rows(rows):
    numbers = np.arange(rows)
    assert better_baseline(fit_of("a", numbers > 1), [fit_of("raw", numbers > 0)], numbers) is None


def test_an_accuracy_of_one_is_known_to_one_row():
    fit_of_120_rows = fit_of("a", np.ones(120))
    assert _valid_error(fit_of_120_rows, np.arange(120), has_classes=True) == pytest.approx(1 / 120)
    assert _valid_error(fit_of_120_rows, np.arange(120) // 10, has_classes=True) == pytest.approx(1 / 12)
    assert _valid_error(fit_of_120_rows, np.arange(120), has_classes=False) == 0


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
    model = ReservoirClassifier().fit(x[:8], y[:8])
    assert (model.column_, model.alpha_) == (done.best.name, done.best.alpha)
    assert len(model.cv_results_["alpha"]) == 1


def test_all_candidates_have_the_same_folds_and_repeats(tmp_path, narrow_mini, shipped_defaults):
    x, y = motifs(120, 1.0)
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y % 3)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean,max")
    known = FitData.open_entries(features).known
    candidates = candidates_of_fit(known, FitOptions())
    fitter = candidates.fitter
    fits, _ = fit_columns(known, candidates)
    assert fitter.alphas is DEFAULT_ALPHAS
    logistic = candidates_of_fit(known, FitOptions(readout="logistic")).fitter
    assert isinstance(logistic, LogisticFitter) and logistic.alphas is LOGISTIC_ALPHAS
    assert fitter.repeats == 5 and all("raw" not in fit.result.columns for fit in fits)
    rows = known.rows["train"] + known.rows["valid"]
    for fit_, source, by in fit_baselines(known, fits, fitter, True):
        repeats = 1 if isinstance(by, LogisticFitter) else 5  # logistic regression has the first repeat alone
        assert (by.folds, by.repeats) == (fitter.folds, repeats) and len(fit_.sample_scores()) == rows
        assert len(by.alphas) == (6 if isinstance(by, LogisticFitter) else len(DEFAULT_ALPHAS))
        assert len(held_out_units(source, KNOWN_SPLITS)) == rows
        assert fit_.sample_scores().mean() == pytest.approx(fit_.result.valid_score)
    source, settings = known.raw(), {"classes": 3, "alphas": np.array([1.0, 10.0]), "folds": 4}
    repeated = LogisticFitter(**settings, repeats=3).fit(source)
    first = LogisticFitter(**settings).fit(source)
    assert repeated.result.valid_score != first.result.valid_score
    # A readout that is fitted to some of the rows scores all of them, so that it can be compared.
    fewer = replace(source, row_numbers={"train": np.arange(0, known.rows["train"], 2)})
    thinned = fit_source(LogisticFitter(**settings, repeats=3), fewer)
    assert len(thinned.sample_scores()) == rows and thinned.results[0].readout == "logistic"


@pytest.mark.parametrize("select", ["valid", "auto"])
def test_with_many_equations_some_rows_show_which_penalties_are_worth_trying(select, tmp_path, monkeypatch):
    x, y = motifs(300, 0.6)
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y % 3)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean,max", **MODEL)
    known = FitData.open_entries(features).known
    options = FitOptions(select=select)
    fitter = replace(candidates_of_fit(known, options).fitter, repeats=1)
    source = known.source(parse_columns("embed/max"))
    exact = fitter.fit(source)
    monkeypatch.setattr("reservoir_pipelines.fitting.ridge_fitter.MANY_EQUATIONS", 10)
    monkeypatch.setattr("reservoir.readouts.sweep.CHOICE_SAMPLES", 90)
    few = fitter.fit(source)
    accuracies = {result.alpha: result.valid_score for result in exact.results}
    assert len(few.results) <= 3 < len(exact.results) and few.result.valid_score > exact.result.valid_score - 0.05
    assert all(result.valid_score == pytest.approx(accuracies[result.alpha]) for result in few.results)
    # Penalties that the user names are all tried, and so are those of named tasks and of other callers.
    named = candidates_of_fit(known, replace(options, alphas="1e-2:1e4:9")).fitter
    assert len(named.fit(source).results) == 9
    assert len(replace(fitter, narrows=False).fit(source).results) == len(exact.results)


def test_all_penalties_are_tried_on_all_rows_if_the_sample_may_miss_a_fold(tmp_path, monkeypatch):
    x, y = motifs(200, 0.6)
    groups = np.where(np.arange(200) < 2, "rare", "common")
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y % 3, split=np.array(["train", "test"]).repeat([160, 40]))
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean,max", **MODEL)
    fitter = replace(
        candidates_of_fit(FitData.open_entries(features).known, FitOptions(select="cv2")).fitter, narrows=True
    )
    source = FitData.open_entries(features).known.source(parse_columns("embed/max"))
    monkeypatch.setattr("reservoir_pipelines.fitting.ridge_fitter.MANY_EQUATIONS", 10)
    monkeypatch.setattr("reservoir_pipelines.fitting.ridge_fitter.CHOICE_SAMPLES", 60)
    fold_of_rows = np.where(groups[:160] == "rare", 0, 1)[:, None]
    monkeypatch.setattr("reservoir_pipelines.fitting.ridge_fitter.assign_folds", lambda *_: fold_of_rows)
    assert len(fitter.fit(source).results) == len(fitter.alphas)


def test_a_baseline_names_its_rows_beside_its_readout_if_they_are_not_all(tmp_path, monkeypatch):
    """Logistic regression, which is the better one for the raw input, is too expensive on all rows."""
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.MIN_ROWS", 20)
    x, y = motifs(200, 0.3)
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y % 2)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean", **MODEL)
    known = FitData.open_entries(features).known
    candidates = candidates_of_fit(known, FitOptions())
    fitter = candidates.fitter
    fits, _ = fit_columns(known, candidates)
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.CALLS", 0)
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.CHEAP", 5e7)
    weak = replace(fitter, alphas=np.array([1e9]), widens=False)
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines._ridge_of", lambda fitter, chooses: weak)
    raw, *_ = fit_baselines(known, fits, fitter, True)
    used, rows = len(raw.source.row_numbers["train"]), known.rows["train"]
    assert used < rows and raw.fit.result.readout == f"logistic on {used:,} of {rows:,} training rows"


def test_predict_reads_a_fit_that_saves_the_mean(tmp_path):
    """All readouts of the reservoir and of the raw input overfit values that no input explains."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(600, 12)), draw.normal(size=600)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    np.savez(tmp_path / "new.npz", x=x[:4])
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="segments8", **MODEL)
    fitted = fit(features, alphas="1e-9:1e-8:2")
    assert fitted.best.name == "the mean"
    known = FitData.open_entries(features).known
    rows = [known.view[split].labels for split in known.rows]
    mean = np.concatenate(rows).mean()
    predicted = [prediction.label for prediction in predict(fitted.saved, tmp_path / "new.npz")]
    assert predicted == [pytest.approx(mean)] * 4


def test_intervals_count_a_repeated_test_input_once(tmp_path):
    draw, inputs = np.random.default_rng(0), 30
    x = np.concatenate([draw.normal(size=(60, 20)), np.repeat(draw.normal(size=(inputs, 20)), 10, axis=0)])
    y = (x.mean(axis=1) > 0).astype(int)
    split = np.repeat(["train", "valid", "test"], [40, 20, 10 * inputs])
    np.savez(tmp_path / "d.npz", x=x[..., None], y=y, split=split)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", layers="embed", pool="mean", **MODEL)
    assert fit(features).evaluation.groups == inputs
    np.savez(tmp_path / "e.npz", x=x[..., None] + np.arange(len(x))[:, None, None] * 1e-4, y=y, split=split)
    features = extract(str(tmp_path / "e.npz"), cache=tmp_path / "cache", layers="embed", pool="mean", **MODEL)
    assert fit(features).evaluation.groups == 0


def test_scores_on_test_rows_that_repeat_other_rows_have_a_note(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(60, 20))
    split = np.repeat(["train", "valid", "test"], 20)
    for name, repeated in (("d", 0), ("e", 5)):
        x[40 : 40 + repeated] = x[:repeated]
        np.savez(tmp_path / f"{name}.npz", x=x[..., None], y=np.arange(60) % 2, split=split)
        features = extract(str(tmp_path / f"{name}.npz"), cache=tmp_path / "c", layers="embed", pool="mean", **MODEL)
        capsys.readouterr()
        fit(features, alphas="1:1:1")
        assert ("5 of 20 test rows repeat a sequence" in capsys.readouterr().err) == bool(repeated)


def test_test_rows_that_nearly_repeat_other_rows_have_a_note(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(60, 20))
    x[40:45] = x[:5] * (1 + 1e-7)  # copies with other last digits
    x[45] = x[0]
    x[1:50:48] = 1013 + np.arange(20) / 1e3  # rows that differ from a constant by less than the rounding
    x[49] += 1e-4
    split = np.repeat(["train", "valid", "test"], 20)
    np.savez(tmp_path / "d.npz", x=x[..., None], y=np.arange(60) % 2, split=split)
    extract(str(tmp_path / "d.npz"), cache=tmp_path / "c", layers="embed", pool="mean", **MODEL)
    values = "5 of 20 test rows repeat a sequence of the training or validation rows (4 but for rounding to 4 digits)"
    assert values in capsys.readouterr().err

    texts = [f"Row number {'abcdefghij'[row % 10] * (row + 1)} reads well." for row in range(30)]
    texts[20:23] = [texts[0].upper(), f" {texts[1].replace(' ', '  ')}", texts[2]]
    rows = [f'{row % 2},{["train", "valid", "test"][row // 10]},"{text}"' for row, text in enumerate(texts)]
    (tmp_path / "t.csv").write_text("\n".join(["label,split,text", *rows]))
    extract(str(tmp_path / "t.csv"), cache=tmp_path / "c", layers="embed", pool="mean", **MODEL)
    texts_note = (
        "3 of 10 test rows repeat a sequence of the training or validation rows "
        "(2 but for case, spaces and punctuation)"
    )
    assert texts_note in capsys.readouterr().err


def test_a_raw_input_that_is_chosen_among_the_columns_has_a_note(capsys):
    raw = Result(columns=("raw",), readout="ridge", alpha=1.0, valid_score=0.8, metric="R²")
    joined = replace(raw, columns=("embed/last", "raw"), valid_score=0.7)
    (note,) = raw_choice_notes(raw, [raw, replace(joined, valid_score=0.6), joined])
    assert note.startswith("validation chose the raw input alone (R² 0.800), not embed/last+raw (0.700)")
    assert "--columns embed/last+raw" in note
    assert raw_choice_notes(raw, [raw]) == raw_choice_notes(joined, [raw, joined]) == []


@pytest.fixture
def unreadable(monkeypatch):
    """Return a function after which any read of features, labels, groups or raw values of test rows raises."""

    def guard(method, split_of):
        def guarded(part, *args):
            assert split_of(part) != "test", "test rows are read"
            return method(part, *args)

        return guarded

    def start():
        features, raw = attrgetter("split"), attrgetter("name")
        monkeypatch.setattr(SplitFeatures, "_encoded", guard(SplitFeatures._encoded, features))
        # What the cached property has read is kept, because a fit asks for it thousands of times.
        monkeypatch.setattr(SplitFeatures, "_targets", property(guard(SplitFeatures._targets.__get__, features)))
        monkeypatch.setattr(PreparedSplit, "_read", guard(PreparedSplit._read, raw))

    return start


@pytest.fixture
def series_entry(tmp_path, narrow_mini):
    """Return the features of two layers of series, and a function that chooses a readout of them as `fit` does."""
    x, y = motifs(100, 0.5)

    def features(values):
        path = tmp_path / f"{'values' if values else 'classes'}.npz"
        np.savez(path, x=x[..., None], y=y + 0.5 if values else y % 3)
        return extract(str(path), cache=tmp_path / "cache", layers="embed,block01", pool="mean,max")

    return features


def chosen_and_refitted(features, **settings):
    """Return all that `fit` chooses: results, learning curve, baselines, refitted readouts and held-out scores."""
    options = FitOptions(**settings)
    known = FitData.open_entries(features).known
    candidates = candidates_of_fit(known, options)
    candidates = replace(candidates, curve_sizes=(20, 40) if candidates.fitter.kind == "ridge" else ())
    selection = select(known, candidates, fit_baselines)
    finals = list(refit_all(selection, known.task))
    x = np.concatenate([block for block, _ in finals[0].source.blocks("valid")])
    return {
        "table": [fit_.results for fit_ in selection.fits],
        "left out": selection.left_out,
        "results": [final.result for final in finals],
        "saved": selection.saved,
        "curve": [point[:2] for point in selection.curve],
        "scores": finals[0].readout.scores(x).tolist(),
        "held out": [final.held_out().tolist() for final in finals],
    }


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        (False, {}),
        (True, {}),
        (False, {"select": "valid", "columns": "all"}),
        (False, {"readout": "logistic"}),
        (False, {"readout": "sklearn.naive_bayes.GaussianNB"}),
    ],
)
def test_the_same_is_chosen_if_test_rows_cannot_be_read(values, settings, series_entry, unreadable, monkeypatch):
    monkeypatch.setattr("reservoir_pipelines.fitting.candidates.RACED_ROWS", 50)  # so that columns race
    monkeypatch.setattr("reservoir_pipelines.fitting.candidates.MIN_RACE_ROWS", 60)
    features = series_entry(values)
    expected = chosen_and_refitted(features, **settings)
    unreadable()
    store = FeatureStore(features.entry)
    assert chosen_and_refitted(store, **settings) == expected
    for read in (lambda split: split.labels, lambda split: next(split.blocks("embed/mean"))):
        with pytest.raises(AssertionError, match="test rows are read"):
            read(store["test"])


def test_estimators_choose_the_same_if_test_rows_cannot_be_read(narrow_mini, unreadable):
    # Estimators have no test rows: a fit takes all rows that it gets.
    x, y = motifs(60, 0.5)
    settings = {"layers": "embed", "pool": "mean,max"}
    first = ReservoirClassifier(**settings).fit(x, y % 3)
    unreadable()
    second = ReservoirClassifier(**settings).fit(x, y % 3)
    assert (first.column_, first.alpha_) == (second.column_, second.alpha_)
    np.testing.assert_array_equal(first.cv_results_["score"], second.cv_results_["score"])


def test_what_estimators_select_from_has_no_way_to_test_rows():
    y = np.arange(8)[:, None] % 2
    known = ArrayColumns(
        features=lambda column: np.ones((8, 3)), y=y, units=np.arange(8), fold_of_sample=y, weights=None
    )
    for source in (known.raw(), known.source((Column("embed", "mean"), RAW))):
        for read in (source.labels, source.counts, source.groups, lambda split, of=source: [*of.blocks(split)]):
            assert len(read("train")) and not len(read("valid"))
            with pytest.raises(OutOfReachError, match="reach"):
                read("test")


def test_what_selects_has_no_way_to_test_rows(series_entry):
    known, mean = FitData.open_entries(series_entry(False)).known, Column("embed", "mean")
    for source in (known.source((mean,)), known.raw(), known.source((mean, RAW))):
        for read in (source.labels, source.counts, lambda split, of=source: next(of.blocks(split))):
            assert len(read("valid"))
            with pytest.raises(OutOfReachError, match="reach"):
                read("test")
    with pytest.raises(OutOfReachError, match="reach"):
        next(known.raw().rows("test"))


def test_what_selects_leads_to_no_entry(series_entry):
    """An entry has the rows of all splits, so none is a public value of `Known`, its views or its sources."""
    known = FitData.open_entries(series_entry(False)).known
    sources = [known.source((Column("embed", "mean"),)), known.raw()]
    splits = [view[split] for view in known.views for split in ("train", "valid")]
    for part in (known, known.view, *known.views, *splits, *sources):
        names = [name for name in dir(part) if not name.startswith("_")]
        assert names
        for name in names:
            with suppress(CacheError):  # what only other kinds of entries have
                assert not isinstance(getattr(part, name), Entry | FeatureStore | SplitFeatures), name


@pytest.mark.parametrize("curve", [None, "20,40"])
def test_a_fit_reads_test_rows_once_for_each_readout_that_it_shows(curve, series_entry, monkeypatch):
    features = series_entry(True)
    read, blocks = [], ColumnSource.blocks
    monkeypatch.setattr(ColumnSource, "blocks", lambda source, split: read.append(split) or blocks(source, split))
    tests = []
    monkeypatch.setattr(fit_module, "Test", lambda stores: tests.append(Test(stores)) or tests[0])
    done = fit(features, columns="embed/mean,block01/mean,block01/max", curve=curve)
    layers = len(done.layer_scores)
    # The best readout is that of its layer. A learning curve is scored in one reading.
    assert layers == 2 and done.best.name in {score.result.name for score in done.layer_scores}
    assert tests[0].readings == layers + len(done.baselines) + bool(curve)
    assert read.count("test") == layers + bool(curve)  # the other baselines read the raw input


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
        ({"name": "secret"}, "unknown"),
        ({"name": K_MERS}, "letters"),
        ({"name": K_MERS, "letters": (2, 1), "terms": (0,)}, "ascending"),
        ({"name": "tf-idf", "words": ("a",), "idf": (1.0, 2.0)}, "match"),
    ):
        with pytest.raises(ValueError, match=problem):
            Statistic(**fields)


def test_tf_idf_is_that_of_scikit_learn():
    draw = np.random.default_rng(0)
    vocabulary = [f"{a}{b}" for a in "Aàbcdeßg" for b in range(200)] + [".", ",", "!"]
    share = draw.dirichlet(np.full(len(vocabulary), 0.3))
    texts = [" ".join(draw.choice(vocabulary, 40, p=share)) for _ in range(90)]
    blocks = [codes_of("", texts[start : start + 30]) for start in (0, 30, 60)]
    task = Task(name="own", form=Tokens(9), max_tokens=300, classes=2, alphabet=" Ab")
    (statistic,) = learn_statistics(task, lambda: blocks)
    pattern = r"\w+|[^\w\s]"
    assert 600 < len(statistic.words) < 1000  # all words; equally frequent ones would be left out in another order
    reference = TfidfVectorizer(sublinear_tf=True, token_pattern=pattern).fit(texts)
    assert list(statistic.words) == reference.get_feature_names_out().tolist()
    np.testing.assert_allclose(statistic.idf, reference.idf_, rtol=1e-12)
    new = codes_of("", ["ünknown", "A1 a1 A2, . .", *texts[:5]])
    expected = reference.transform(texts_of(*new)).toarray()
    np.testing.assert_allclose(statistic(*new), expected, rtol=1e-6)


def test_tf_idf_of_chats_counts_the_words_of_their_messages():
    contents = ["say\nyes", 'a "no"\tplease', [{"type": "text", "text": "a\n\nno"}]]
    chats = [[{"role": "user", "content": content}] for content in contents]
    task = Task(name="own", form=Tokens(9), max_tokens=300, classes=2, alphabet=" ab", parameters={"chat": True})
    rows = codes_of("", [json.dumps(chat, ensure_ascii=False) for chat in chats])
    (statistic,) = learn_statistics(task, lambda: [rows])
    texts = ["user say yes", 'user a " no " please', "user text a no"]
    reference = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(texts)
    assert list(statistic.words) == reference.get_feature_names_out().tolist()
    np.testing.assert_allclose(statistic(*rows), reference.transform(texts).toarray(), rtol=1e-6)


@pytest.mark.parametrize("limit", [3, 10])
def test_tf_idf_has_the_most_frequent_words(limit, monkeypatch):
    monkeypatch.setattr(statistics_module, "MAX_WORDS", limit)
    texts = [" ".join("abcdefghijkl"[:length]) for length in range(1, 13)]
    task = Task(name="own", form=Tokens(9), max_tokens=300, classes=2, alphabet=" ab")
    (statistic,) = learn_statistics(task, lambda: [codes_of("", texts)])
    reference = TfidfVectorizer(token_pattern=r"\w+", max_features=limit).fit(texts)
    assert list(statistic.words) == reference.get_feature_names_out().tolist()


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
    done = fit(features, curve="30")
    assert done.best in done.baselines and done.best.name != "raw"
    assert done.evaluation.scores["accuracy"] == done.best.test_score
    # The readout of the reservoir, to which the sentences refer, has its own line and its predictions.
    rows = FitScores.of(done, done.against).readouts().rows
    assert [row[0] for row in rows] == ["best", "reservoir", *["baseline"] * len(done.baselines)]
    # The learning curve is that of the reservoir, too.
    tables = [*FitScores.of(done, done.against).tables(), *fit_part(done.saved.parent, 1)["results"]]
    titles = [table.title for table in tables if isinstance(table, ResultTable)]
    assert titles.count(f"{done.reservoir.title}: accuracy") == 2
    table = pd.read_csv(done.predictions).query("split == 'test'")
    assert (table.reservoir == table.label).mean() == pytest.approx(done.reservoir.test_score)
    for against, baseline in zip(done.against, done.baselines, strict=True):
        assert against.difference == pytest.approx(done.reservoir.test_score - baseline.test_score)
    found = list(predict(done.saved, new))
    assert np.mean([one.label == label for one, label in zip(found, labels, strict=True)]) > 0.8
    bundle = Bundle.load(done.saved)
    assert bundle.parts[0].statistic.name == done.best.name and bundle.parts[0].reservoir is None
    assert done.best.name in json.loads(done.saved.read_text())["parts"][0]["columns"]
    with pytest.raises(InputError, match="exported"):
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


# The cost of a fit is estimated from its sizes, and every part of a fit shows its progress.


SIZES = [
    *((400, 1000, 4, 5, 1), (400, 1000, 300, 5, 1), (300, 500, 4, 0, 1), (300, 500, 4, 3, 3)),
    *((2000, 128, 4, 5, 1), (2000, 128, 300, 5, 1), (2000, 128, 300, 0, 1), (4000, 256, 3, 0, 1)),
]


@pytest.mark.parametrize(("samples", "width", "classes", "folds", "repeats"), SIZES)
def test_the_estimate_is_the_work_that_a_fit_reports(samples, width, classes, folds, repeats):
    draw, reported = np.random.default_rng(0), []
    x, y = draw.normal(size=(samples, width)).astype(np.float32), draw.integers(0, classes, (samples, 1))
    y[:classes, 0] = np.arange(classes)
    held_out = samples // 4
    with listening(reported.append):
        if folds:
            fold = np.stack([draw.permutation(samples) % folds for _ in range(repeats)], axis=1)
            cross_sweep([(x, y, fold)], Targets(1, classes), folds=folds, repeats=repeats)
        else:
            sweep([(x, y)], [(x[:held_out], y[:held_out])], Targets(1, classes))
    size = RidgeSize(
        samples=samples,
        held_out=held_out,
        width=width,
        targets=classes,
        penalties=len(DEFAULT_ALPHAS),
        folds=folds,
        repeats=repeats,
    )
    assert 0.7 < size.work / sum(reported) < 1.4


@pytest.mark.parametrize(("choice_rows", "penalties", "refits"), [(500, 5, False), (60, 5, True), (60, 1, False)])
def test_the_estimate_of_a_kernel_is_the_work_that_its_fit_reports(
    extracted, monkeypatch, choice_rows, penalties, refits
):
    for module in (cost, kernel_fitter):
        monkeypatch.setattr(module, "CHOICE_ROWS", choice_rows)
    for module in (cost, kernel_ridge):
        monkeypatch.setattr(module, "PANEL", 50)
    known = FitData.open_entries(extracted).known
    fitter = KernelFitter(classes=10, alphas=np.logspace(-5, -1, penalties), refits=refits)
    source = known.source((known.columns[1],))
    size, reported = cost.size_of(source, fitter), []
    with listening(reported.append):
        fit = fitter.fit(source)
    assert 0.9 < size.work / sum(reported) < 1.1
    reported.clear()
    assert fit.solve
    with listening(reported.append):
        fitter.refit(source, fit.solve(), fit.result.alpha)
    assert sum(reported) <= 1.1 * size.refit_work and 0.9 * size.refit_work <= sum(reported)


def test_a_kernel_of_many_rows_says_the_disk_that_its_factor_takes():
    size = KernelSize(samples=54_064, refitted=0, held_out=6000, width=4608, targets=10, penalties=9)
    line = cost_line([size])
    assert line and line.endswith("of memory, in addition to the program, and for that time 12.1 GB of disk"), line
    small = replace(size, samples=10_000)
    line = cost_line([small])
    assert line and "disk" not in line


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("cost")
    return extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="embed,block01", pool="mean")


def test_a_large_fit_says_what_it_will_take_before_it_starts(extracted, tmp_path, monkeypatch, capfd):
    large = RidgeSize(samples=30_000, held_out=6000, width=768, targets=20_000, penalties=25)
    line = cost_line([large])
    assert line is not None and line.startswith("estimate: about 5 min of one core (2.9e+12 multiplications)"), line
    # the solutions of all penalties, (25, 768, 20000) in float64, in two copies or three
    assert 6e9 < large.bytes < 2e10
    many = [RidgeSize(samples=3000, held_out=600, width=768, targets=10, penalties=25, folds=5)] * 2000
    assert cost_line(many) and cost_line(many[:10]) is None
    fit(extracted, out=tmp_path)
    assert "estimate" not in capfd.readouterr().err
    monkeypatch.setattr(cost, "SMALL_SECONDS", 0)
    fit(extracted, out=tmp_path)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("fit digits") and lines[1].startswith("estimate: about ")


def test_every_part_of_a_fit_shows_its_progress_with_a_total(extracted, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "UNIT", 1e6)
    shown = defaultdict(list)

    show = Meter.show

    def record(self, finished, text=""):
        shown[self._title].append((finished, self._total))
        show(self, finished, text)

    monkeypatch.setattr(Meter, "show", record)
    fit(extracted, columns="block01/mean", curve="50,100,200", out=tmp_path / "one")
    assert list(shown) == ["fit", "learning curve", "baselines", "refit", "score on test", "predictions"]
    fit(extracted, columns=extracted.columns, out=tmp_path / "two")
    assert "layers" in shown
    for title, steps in shown.items():
        done, total = np.array(steps).T
        assert (done <= total).all() and done[-1] == total[-1], title
    # progress within the only column
    assert len({done for done, _ in shown["fit"]}) > 3
    assert len(shown["learning curve"]) == 5 * 3
