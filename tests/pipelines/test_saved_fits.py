"""What a fit saves: its readout, what it predicts for each row, and how its layers compare; two fits are paired."""

import csv
import json
import multiprocessing
import shutil
import warnings
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import skops.io
from reservoir_cache import Entry, FeatureStore, SplitFeatures, locked, write_targets
from reservoir_pipelines import compare, extract, fit, predict, report, train
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting import predictions_csv
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.sklearn_fitter import EstimatorReadout, linear_form
from reservoir_pipelines.prediction.export import build
from reservoir_pipelines.prediction.load import open_readout
from reservoir_pipelines.tables import layer_table
from sklearn import discriminant_analysis, ensemble, linear_model, naive_bayes, neighbors, neural_network, svm
from sklearn.base import is_classifier
from sklearn.metrics import r2_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir.readouts.evaluation import accuracy_interval, r2_interval
from reservoir.readouts.linear import LinearReadout, Targets
from reservoir.readouts.paired import mcnemar
from reservoir.tasks.task import Scaling, Task, Vectors
from tests.helpers import outcome

EMBEDDED = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random"}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("predictions")
    return extract("digits", backbone=str(tiny_gpt2), limit=300, cache=root, layers="embed,block01,final")


@pytest.fixture(scope="module")
def fitted(extracted):
    return fit(extracted, alphas="1e-1:1e3:5", select="cv5", columns=[*extracted.columns, "block01/last+block01/mean"])


@pytest.fixture(scope="module")
def pair(extracted, tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return [
        fit(extracted, alphas="1:1:1", select="valid", columns=f"{layer}/mean", out=root / layer).saved.parent
        for layer in ("block01", "embed")
    ]


def columns_of(folder):
    """Return the columns of ``predictions.csv`` by split and name."""
    found = defaultdict(lambda: defaultdict(list))
    with (folder / "predictions.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            for name, cell in line.items():
                found[line["split"]][name].append(cell)
    return {split: {name: np.array(cells) for name, cells in of.items()} for split, of in found.items()}


def test_predictions_are_those_of_the_readouts_and_have_their_scores(extracted, fitted):
    found = columns_of(fitted.saved.parent)
    assert fitted.predictions == fitted.saved.parent / "predictions.csv"
    assert list(found) == ["train", "valid", "test"]  # the folds hold out every row of train and valid
    for split, cells in found.items():
        assert cells["id"].tolist() == [str(number) for number in extracted[split].ids]
        assert cells["label"].tolist() == [str(label) for label in extracted[split].y]
    features = np.concatenate([extracted["test"].read(name)[:, 0] for name in fitted.best.columns], axis=1)
    assert found["test"]["best"].astype(int).tolist() == fitted.readout.predict(features)[:, 0].tolist()
    likely = fitted.readout.probabilities(features)[:, 0].max(axis=1)
    np.testing.assert_allclose(found["test"]["best_probability"].astype(float), likely, atol=1e-6)
    held_out = {name: np.concatenate([found[split][name] for split in ("train", "valid")]) for name in found["test"]}
    scores = {"best": fitted.best, **{one.name: one for one in fitted.baselines}}
    scores |= {score.layer: score.result for score in fitted.layer_scores}
    assert len(scores) == 6
    for name, result in scores.items():
        # A single penalty is solved in another way than a grid; rounding may decide a tie in one row.
        right = held_out["label"] == held_out[name]
        assert abs(right.mean() - result.valid_score) <= 1 / len(right), name
        assert (found["test"]["label"] == found["test"][name]).mean() == pytest.approx(result.test_score), name


def test_layers_are_compared_with_the_best_by_validation(extracted, fitted, call, tmp_path):
    found = columns_of(fitted.saved.parent)
    layers = {score.layer: score for score in fitted.layer_scores}
    assert list(layers) == ["embed", "block01", "final"]
    for name, score in layers.items():
        alone = [one for one in fitted.table if {column.partition("/")[0] for column in one.columns} == {name}]
        assert score.result.sort_key == max(one.sort_key for one in alone)
    leader = max(layers.values(), key=lambda score: score.result.sort_key)
    assert leader.difference is leader.difference_interval is leader.p_value is None
    right = {name: found["test"]["label"] == found["test"][name] for name in layers}
    for name, score in layers.items():
        both = np.concatenate([found[split][name] == found[split]["label"] for split in ("train", "valid")])
        assert score.valid_interval == pytest.approx(accuracy_interval(both), abs=1e-6)
        if score is not leader:
            assert score.difference == pytest.approx(right[name].mean() - right[leader.layer].mean())
            assert score.p_value == pytest.approx(mcnemar(right[name], right[leader.layer]))
            low, high = score.difference_interval
            assert low < score.difference < high
    saved = json.loads((fitted.saved.parent / "fit.json").read_text())
    assert [score["layer"] for score in saved["layer_scores"]] == list(layers)
    lines = list(csv.DictReader((fitted.saved.parent / "layers.csv").open()))
    assert [(line["layer"], line["columns"]) for line in lines] == [(n, s.result.name) for n, s in layers.items()]
    for name, markdown in (("page.md", True), ("page.html", False)):
        page = report([fitted.saved.parent], out=tmp_path / name, markdown=markdown).page.read_text()
        assert "the best column of each layer; difference: accuracy in points minus" in page
    options = ("--alphas", "1:1:1", "--select", "valid", "--columns", "embed/mean,block01/mean")
    by_layer = "best on validation, by layer"
    assert by_layer in page
    _, out, _ = call("fit", extracted.entry, *options, "--out", tmp_path / "f")
    assert "best layer" in out and "block01  block01/mean" in out
    single = fit(extracted, alphas="1:1:1", columns="embed/mean", out=tmp_path / "single")
    assert by_layer not in report([single.saved.parent], out=tmp_path / "page.md", markdown=True).page.read_text()


def test_the_interval_of_a_layer_is_that_of_its_mean_score_over_repeated_folds(extracted, tmp_path):
    done = fit(extracted, alphas="1:1:1", columns="embed/mean,block01/mean", out=tmp_path / "f")
    found = columns_of(tmp_path / "f")  # the held-out predictions of the first repeat
    shifts = []
    for score in done.layer_scores:
        right = np.concatenate([found[split][score.layer] == found[split]["label"] for split in ("train", "valid")])
        shifts.append(score.result.valid_score - right.mean())
        shifted = np.array(accuracy_interval(right)) + shifts[-1]
        assert score.valid_interval == pytest.approx(shifted, abs=1e-6)
    assert any(shifts)


def test_a_single_layer_is_the_best_also_if_few_groups_have_no_p_value(tmp_path):
    draw, groups = np.random.default_rng(0), np.arange(120) // 12
    x = draw.normal(size=(120, 12, 2)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0].sum(axis=1) > 0).astype(int), groups=groups)
    features = extract(
        str(tmp_path / "d.npz"), cache=tmp_path / "c", layers="embed,block01", pool="last,mean", **EMBEDDED
    )
    done = fit(features, columns="embed/last,block01/last,embed/mean", alphas="1:1:1", out=tmp_path / "f")
    assert [score.p_value for score in done.layer_scores] == [None, None]
    leaders = [score.layer for score in done.layer_scores if score.difference is None]
    table = layer_table(done.layer_scores, done.evaluation.groups)
    assert [row[0] for row in table.rows if "best layer" in row] == leaders and len(leaders) == 1


def test_labels_of_test_rows_choose_nothing(extracted, tmp_path, monkeypatch):
    labels = SplitFeatures.labels.fget

    def permuted(self):
        y = labels(self)
        return np.random.default_rng(0).permutation(y) if self.split == "test" else y

    settings = {"alphas": "1e-1:1e3:5"}
    before = fit(extracted, out=tmp_path / "before", **settings)
    monkeypatch.setattr(SplitFeatures, "labels", property(permuted))
    after = fit(extracted, out=tmp_path / "after", **settings)
    assert after.best.test_score < before.best.test_score - 0.3

    def chosen(done):
        results = [done.best, *done.baselines, *done.table, *(score.result for score in done.layer_scores)]
        choice = [(one.columns, one.readout, one.alpha, one.valid_score) for one in results]
        leaders = [score.layer for score in done.layer_scores if score.p_value is None]
        return choice, leaders, [score.valid_interval for score in done.layer_scores]

    assert chosen(before) == chosen(after)
    test = [columns_of(tmp_path / name)["test"]["best"].tolist() for name in ("before", "after")]
    assert test[0] == test[1]


def test_several_labels_of_a_row_have_a_line_each(tmp_path):
    draw = np.random.default_rng(0)
    x, groups = draw.normal(size=(240, 12, 2)).astype(np.float32), np.arange(240) // 4
    y = x.mean(axis=1) + 0.1 * draw.normal(size=(240, 2)) + draw.normal(size=60)[groups][:, None]
    names = np.char.add("person ", groups.astype(str))
    np.savez(tmp_path / "d.npz", x=x, y=y, groups=names)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "c", layers="embed,block01", pool="mean", **EMBEDDED)
    done = fit(features, select="cv3", columns=features.columns, alphas="1:1:1", out=tmp_path / "f")
    found = columns_of(tmp_path / "f")
    assert list(found["test"])[:5] == ["split", "id", "group", "output", "label"]
    for split, cells in found.items():  # the names of groups, not their numbers in the order of these
        assert cells["group"].tolist() == names[cells["id"].astype(int)].tolist(), split
    assert found["test"]["output"].tolist() == ["0", "1"] * features["test"].rows
    test = {name: found["test"][name].astype(float).reshape(-1, 2) for name in ("label", "best", "the mean")}
    np.testing.assert_array_equal(test["label"].astype(np.float32), features["test"].labels[:, 0])
    assert done.best.test_score == pytest.approx(r2_score(test["label"], test["best"]), abs=1e-5)
    held_out = {
        name: np.concatenate([found[split][name] for split in ("train", "valid")]).astype(float).reshape(-1, 2)
        for name in ("label", "embed", "block01", "raw")
    }
    for name, result in [("raw", done.raw), *((score.layer, score.result) for score in done.layer_scores)]:
        assert result.valid_score == pytest.approx(r2_score(held_out["label"], held_out[name]), abs=1e-5), name
    numbers = np.concatenate([features[split].groups for split in ("train", "valid")])
    for score in done.layer_scores:
        by_hand = r2_interval(held_out["label"], held_out[score.layer], None, numbers)
        assert score.valid_interval == pytest.approx(by_hand, abs=1e-4)
    other = fit(features, select="cv3", columns="embed/mean", alphas="1e5:1e5:1", out=tmp_path / "g").saved.parent
    both = compare(tmp_path / "f", other)
    theirs = columns_of(other)["test"]["best"].astype(float).reshape(-1, 2)
    difference = r2_score(test["label"], test["best"]) - r2_score(test["label"], theirs)
    assert both.metric == "R²" and both.groups == len(set(features["test"].groups))
    assert both.difference == pytest.approx(both.first_score - both.second_score, abs=1e-6)
    # An entry of an earlier version has no names of groups.
    for split in ("train", "valid", "test"):
        rows = features[split]
        arrays = {name: getattr(rows, name) for name in ("y", "lengths", "index", "ids", "groups")}
        write_targets(Entry.open(features.entry), split, arrays)
    store = FeatureStore(features.entry)
    older = fit(store, select="cv3", columns="embed/mean", alphas="1e5:1e5:1", out=tmp_path / "h").saved.parent
    numbers = columns_of(older)["test"]["group_number"].astype(int).tolist()
    assert numbers == np.repeat(features["test"].groups, 2).tolist()
    assert compare(tmp_path / "f", older).difference == compare(tmp_path / "f", other).difference
    assert compare(older, tmp_path / "f").groups == both.groups
    assert both.difference == pytest.approx(difference, abs=1e-6)
    low, high = both.difference_interval
    assert low < difference < high


def test_layers_whose_tokens_are_samples_are_compared_with_layers_whose_rows_are(tmp_path, tiny_gpt2):
    settings = {"backbone": str(tiny_gpt2), "limit": 40, "cache": tmp_path / "c"}
    features = extract("bit-xor", parameters={"n": 5}, layers="embed,final", pool="last,mean", **settings)
    assert [features["test"].shape(column)[0] for column in ("embed/last", "final/mean")] == [5, 1]
    done = fit(features, columns="embed/last,final/mean", alphas="1:1:1", select="valid", out=tmp_path / "f")
    found = columns_of(tmp_path / "f")["test"]
    assert found["token"].tolist() == [str(n) for n in range(5)] * 40
    right = {name: (found["label"] == found[name]).mean() for name in ("embed", "final")}
    (leader,) = (score.layer for score in done.layer_scores if score.p_value is None)
    for score in done.layer_scores:
        assert score.result.test_score == pytest.approx(right[score.layer])
        if score.layer != leader:
            assert score.difference == pytest.approx(right[score.layer] - right[leader])


def test_a_file_that_would_be_too_large_leaves_out_layers(extracted, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(predictions_csv, "MAX_PREDICTIONS", 3 * 600)
    fit(extracted, alphas="1:1:1", select="valid", columns=extracted.columns, out=tmp_path)
    left_out = "predictions.csv would be too large, so it leaves out embed, block01, final"
    assert left_out in capfd.readouterr().err
    columns = columns_of(tmp_path)["test"]
    assert "best" in columns and "raw" in columns and "embed" not in columns


def copy_without_digests(folder, target):
    """Copy a fit as earlier versions wrote it, without the digests of its tables, which can then be changed."""
    shutil.copytree(folder, target)
    summary = read_checked(target / "fit.json")
    del summary["files"]
    write_checked(target / "fit.json", summary)


def without_rows(folder, target, dropped, change=lambda line: line):
    """Copy a fit without some of its test rows, and with changed lines."""
    copy_without_digests(folder, target)
    with (folder / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    with (target / "predictions.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(change(lines[0])))
        writer.writeheader()
        writer.writerows(change(line) for line in lines if not (line["split"] == "test" and line["id"] in dropped))
    return target


def test_two_fits_are_compared_on_the_rows_that_both_have(pair, call, tmp_path):
    first, second = (columns_of(folder)["test"] for folder in pair)
    dropped = first["id"][:7].tolist(), first["id"][3:20].tolist()
    folders = [without_rows(*copied) for copied in zip(pair, (tmp_path / "a", tmp_path / "b"), dropped, strict=True)]
    found = compare(*folders)
    right = [(cells["label"] == cells["best"])[20:] for cells in (first, second)]
    assert (found.rows, found.only_first, found.only_second) == (len(right[0]), 13, 3)
    assert (found.first_score, found.second_score) == pytest.approx([each.mean() for each in right])
    assert found.first_interval == pytest.approx(accuracy_interval(right[0]))
    assert found.difference == pytest.approx(right[0].mean() - right[1].mean())
    assert found.p_value == mcnemar(*right)
    # Bonett and Price: one row is added to those that only one readout labels right
    n, wins, losses = len(right[0]), (right[0] & ~right[1]).sum(), (right[1] & ~right[0]).sum()
    share, other = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    reach = 1.96 * np.sqrt((share + other - (share - other) ** 2) / (n + 2))
    assert found.difference_interval == pytest.approx((share - other - reach, share - other + reach))
    reverse = compare(*folders[::-1])
    assert (reverse.difference, reverse.p_value) == (-found.difference, found.p_value)
    _, out, _ = call("compare", *folders)
    assert f"on the same {n} test rows" in out and f"13 test rows that only {folders[0]} has" in out
    _, out, _ = call("compare", *folders, "--json")
    assert json.loads(out)["p_value"] == found.p_value


def test_rows_that_either_fit_groups_are_one_unit_of_a_comparison(pair, tmp_path):
    ids = columns_of(pair[0])["test"]["id"].tolist()
    # Groups of three rows; and pairs, of which every third connects two of these groups.
    threes, pairs = ({row: str(number // size) for number, row in enumerate(ids)} for size in (3, 2))

    def with_units(folder, name, unit_of_row):
        add = (lambda line: {**line, "unit": unit_of_row.get(line["id"], "-")}) if unit_of_row else (lambda line: line)
        return without_rows(folder, tmp_path / name, [], add)

    plain, in_threes = with_units(pair[0], "a", None), with_units(pair[0], "b", threes)
    other, in_pairs = with_units(pair[1], "c", None), with_units(pair[1], "d", pairs)
    assert compare(plain, other).groups == 0
    assert compare(in_threes, other).groups == compare(plain, with_units(pair[1], "e", threes)).groups
    both = compare(in_threes, with_units(pair[1], "f", threes))
    assert both.groups == -(-len(ids) // 3) and both == replace(compare(in_threes, other), second=both.second)
    # Six rows are two groups of three and three pairs, of which the second connects the groups.
    joined, swapped = compare(in_threes, in_pairs), compare(in_pairs, in_threes)
    assert joined.groups == -(-len(ids) // 6)
    assert (joined.p_value, joined.difference) == (swapped.p_value, -swapped.difference)


def test_fits_with_balanced_class_weights_are_compared_by_balanced_accuracy(pair, extracted, tmp_path, call, capfd):
    folders = [tmp_path / "block01", tmp_path / "embed"]
    for folder in folders:
        settings = {"alphas": "1:1:1", "select": "valid", "class_weight": "balanced", "out": folder}
        result = fit(extracted, columns=f"{folder.name}/mean", **settings)
        assert result.best.metric == "balanced_accuracy"
    cells = [columns_of(folder)["test"] for folder in folders]
    labels, predicted = np.array(cells[0]["label"]), [np.array(each["best"]) for each in cells]
    recalls = [[(one[labels == c] == c).mean() for c in np.unique(labels)] for one in predicted]
    both = compare(*folders)
    assert both.metric == "balanced_accuracy"
    assert (both.first_score, both.second_score) == pytest.approx(np.mean(recalls, axis=1))
    assert both.difference == pytest.approx(both.first_score - both.second_score)
    assert both.second_interval == pytest.approx(result.best.test_interval)
    assert "balanced accuracy  95% interval" in call("compare", *folders)[1]
    capfd.readouterr()
    assert compare(pair[0], folders[1]).metric == "accuracy"
    assert f"compared by accuracy, although {folders[1]} was chosen by balanced accuracy" in capfd.readouterr().err


def test_reservoirs_are_compared_although_both_fits_saved_the_same_baseline(tmp_path, capsys):
    # The label is whether the values of a row are large, of which the hidden state of a single step tells little.
    x = np.random.default_rng(0).normal(size=(300, 40, 1)) * np.linspace(1, 3, 300)[:, None, None]
    np.savez(tmp_path / "scales.npz", x=x, y=np.arange(300) > 150)
    fits = []
    for pool in ("first", "last"):
        features = extract(tmp_path / "scales.npz", cache=tmp_path / "c", layers="embed", pool=pool, **EMBEDDED)
        fits.append(fit(features, alphas="1:1:1", out=tmp_path / pool))
    assert fits[0].best == fits[1].best in fits[0].baselines
    assert fits[0].reservoir.test_score != fits[1].reservoir.test_score
    capsys.readouterr()
    folders = [result.saved.parent for result in fits]
    both = compare(*folders)
    assert (both.first_score, both.second_score) == tuple(result.reservoir.test_score for result in fits)
    lines = capsys.readouterr().err.splitlines()
    saved = f"its fit saved a baseline ({fits[0].best.title}); the reservoir is compared"
    assert lines == [f"{folder}: {saved}" for folder in folders]
    # A fit of named columns saves the raw input only by request, and is compared by it.
    raw = fit(features, columns="raw", alphas="1:1:1", out=tmp_path / "raw")
    assert compare(raw.saved, folders[0]).first_score == raw.best.test_score
    # A very large file has the predictions of the saved readout alone.
    table = columns_of(folders[0])["test"]
    large = without_rows(folders[0], tmp_path / "large", [])
    names = [name for name in table if name != "reservoir"]
    lines = [",".join(cells) for cells in zip(*(table[name] for name in names), strict=True)]
    (large / "predictions.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    assert "too large to hold the predictions of the reservoir" in outcome(lambda: compare(folders[1], large))


def test_the_order_of_rows_in_a_file_does_not_matter(pair, tmp_path):
    copy_without_digests(pair[1], tmp_path / "turned")
    head, *lines = (pair[1] / "predictions.csv").read_text().splitlines(keepends=True)
    (tmp_path / "turned" / "predictions.csv").write_text(head + "".join(reversed(lines)))
    found, expected = compare(pair[0], tmp_path / "turned"), compare(*pair)
    assert (found.difference, found.p_value) == (expected.difference, expected.p_value)


def test_fits_that_cannot_be_compared_are_refused(pair, tmp_path):
    first = pair[0]
    ids = columns_of(first)["test"]["id"].tolist()
    none = without_rows(first, tmp_path / "none", ids)
    assert "have no test rows in common" in outcome(lambda: compare(first, none))
    other = without_rows(first, tmp_path / "other", [], lambda line: line | {"label": "3"})
    assert "have different labels, such as " in outcome(lambda: compare(first, other))
    twice = without_rows(first, tmp_path / "twice", [], lambda line: line | {"id": "5"})
    assert "several test rows have the id '5'" in outcome(lambda: compare(first, twice))
    (tmp_path / "empty").mkdir()
    assert "not the folder of a fit or a run" in outcome(lambda: compare(first, tmp_path / "empty"))
    assert "no such file" in outcome(lambda: compare(first, first / "nothing"))
    for content in (
        "",
        "split,id\ntest,1\n",
        'split,id,label,best\ntest,1,3,"4\n',
        "split,id,label,best\ntest,0,x,y\n",
    ):
        (other / "predictions.csv").write_text(content)
        assert outcome(lambda: compare(first, other)).count("\n") == 0
    (other / "predictions.csv").unlink()
    assert "no predictions.csv" in outcome(lambda: compare(first, other))


@pytest.mark.parametrize("name", ["predictions.csv", "results.csv"])
def test_tables_that_have_changed_since_their_fit_are_refused(name, pair, tmp_path):
    shutil.copytree(pair[0], tmp_path / "f")
    table = tmp_path / "f" / name
    table.write_bytes(table.read_bytes()[:-20])
    message = (
        outcome(compare, tmp_path / "f", pair[1]) if name == "predictions.csv" else outcome(report, [tmp_path / "f"])
    )
    assert f"{name} has changed since it was written" in message


def test_a_run_of_train_is_compared_with_a_fit(tmp_path, tiny_gpt2):
    settings = {"backbone": str(tiny_gpt2), "limit": 60, "cache": tmp_path / "c"}
    run = train("digits", steps=2, batch=8, run=tmp_path / "run", **settings)
    done = fit(extract("digits", layers="block01", pool="mean", **settings), out=tmp_path / "fit")
    found = compare(run.run, done.saved)
    assert found.rows == 60 and found.first_score == pytest.approx(run.test_score)
    assert found.second_score == pytest.approx(done.best.test_score)


def test_intervals_of_comparisons_and_of_train_count_stretches_of_windows(tmp_path):
    draw = np.random.default_rng(0)
    load = "".join(f"{step},{value:.4f}\n" for step, value in enumerate(draw.normal(size=150).cumsum()))
    (tmp_path / "load.csv").write_text("time,load\n" + load)
    settings = {**EMBEDDED, "forecast": 3, "past": 8, "cache": tmp_path / "c"}
    features = extract(tmp_path / "load.csv", layers="block01", pool="last", **settings)
    result = fit(features, columns="raw", alphas="10:10:1", out=tmp_path / "fit")
    windows = 30 - 3 + 1
    stretches = [str(window // 3) for window in range(windows)]
    assert columns_of(tmp_path / "fit")["test"]["unit"].tolist() == [stretch for stretch in stretches for _ in range(3)]
    run = train(tmp_path / "load.csv", steps=1, batch=8, run=tmp_path / "run", **settings)
    both = compare(run.run, result.saved)
    assert (both.rows, both.groups) == (windows, 10)
    assert run.evaluation.groups == result.evaluation.groups == 10
    assert both.second_interval == pytest.approx(result.evaluation.interval)
    # A file of an earlier version has no units, although the evaluation counts them.
    copy_without_digests(tmp_path / "fit", tmp_path / "older")
    with (tmp_path / "fit/predictions.csv").open(newline="") as file:
        lines = [{name: cell for name, cell in line.items() if name != "unit"} for line in csv.DictReader(file)]
    with (tmp_path / "older/predictions.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*lines[0]])
        writer.writeheader()
        writer.writerows(lines)
    assert "lacks the units of its rows" in outcome(lambda: compare(run.run, tmp_path / "older"))


def test_repeated_inputs_of_test_rows_count_once_in_train_and_in_comparisons(tmp_path):
    draw = np.random.default_rng(0)
    x = np.repeat(draw.normal(size=(30, 6)).astype(np.float32), 4, axis=0)
    split = np.repeat(["train", "valid", "test"], 40)
    np.savez(tmp_path / "repeats.npz", x=x, y=draw.integers(0, 2, 120), split=split)
    settings = {**EMBEDDED, "cache": tmp_path / "c"}
    runs = [
        train(
            tmp_path / "repeats.npz",
            steps=1,
            batch=8,
            run=tmp_path / name,
            train=trained,
            from_cache=cached,
            **settings,
        )
        for name, trained, cached in (("run", "input,output", False), ("cached", "output", True))
    ]
    assert [run.evaluation.groups for run in runs] == [10, 10]
    assert compare(*(run.run for run in runs)).groups == 10


def test_labels_of_zero_in_a_regression_are_the_same_in_a_run_and_a_fit(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6)).astype(np.float32)
    np.savez(tmp_path / "rates.npz", x=x, y=draw.poisson(1.0, 90) / 7)
    settings = {**EMBEDDED, "cache": tmp_path / "c"}
    run = train(tmp_path / "rates.npz", steps=1, batch=8, run=tmp_path / "run", **settings)
    result = fit(extract(tmp_path / "rates.npz", layers="embed", pool="mean", **settings), out=tmp_path / "fit")
    labels_of_run = columns_of(tmp_path / "run")["test"]["label"]
    assert "0.0" in labels_of_run and set(labels_of_run) == set(columns_of(tmp_path / "fit")["test"]["label"])
    assert compare(run.run, result.saved).rows == len(labels_of_run)


# Saved readouts: scikit-learn's estimators are kept, every changed byte is detected, and writers may compete.


LINEAR_CLASSIFIERS = [
    linear_model.LogisticRegression(),
    linear_model.LogisticRegression(solver="liblinear"),
    linear_model.RidgeClassifier(),
    linear_model.RidgeClassifierCV(),
    linear_model.SGDClassifier(loss="hinge"),
    linear_model.SGDClassifier(loss="log_loss"),
    linear_model.SGDClassifier(loss="modified_huber"),
    linear_model.Perceptron(),
    linear_model.PassiveAggressiveClassifier(),
    svm.LinearSVC(),
    discriminant_analysis.LinearDiscriminantAnalysis(),
    OneVsRestClassifier(linear_model.LogisticRegression()),
    OneVsRestClassifier(svm.LinearSVC()),
]
LINEAR_REGRESSORS = [
    linear_model.Ridge(),
    linear_model.RidgeCV(),
    linear_model.Lasso(0.01),
    linear_model.ElasticNet(0.01),
    linear_model.LinearRegression(),
    linear_model.BayesianRidge(),
    linear_model.SGDRegressor(),
    linear_model.HuberRegressor(),
    svm.LinearSVR(),
]
OTHERS = [
    svm.SVC(),
    svm.SVC(kernel="linear", probability=True),
    naive_bayes.GaussianNB(),
    ensemble.RandomForestClassifier(n_estimators=3),
    ensemble.AdaBoostClassifier(n_estimators=3),
    neighbors.KNeighborsClassifier(),
    neural_network.MLPClassifier(max_iter=2),
    linear_model.PoissonRegressor(),  # has coefficients, but exponentiates the sum
    ensemble.GradientBoostingRegressor(n_estimators=3),
]


def fitted_readout(estimator, classes, outputs):
    """Return a fitted pipeline as a readout, its training rows, and further rows; channels have means of 3000."""
    draw = np.random.default_rng(1)
    x = (3000 + draw.normal(size=(400, 5))).astype(np.float32)
    scores = (x - 3000) @ draw.normal(size=(5, outputs)) + draw.normal(size=(400, outputs))
    y = np.digitize(scores, [0.0] if classes == 2 else [-1.0, 1.0]) if classes else np.exp(scores)
    if outputs > 1:
        estimator = (MultiOutputClassifier if classes else MultiOutputRegressor)(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(StandardScaler(), estimator).fit(x[:300], y[:300] if outputs > 1 else y[:300, 0])
    return EstimatorReadout(model=model, targets=Targets(outputs, classes), name="test"), x[:300], x[300:]


def cases():
    for estimator in LINEAR_CLASSIFIERS:
        for classes in (2, 3):
            if not (classes == 3 and getattr(estimator, "solver", "") == "liblinear"):  # unsupported in scikit-learn
                yield from ((estimator, classes, outputs) for outputs in (1, 2))
    yield from ((estimator, 0, outputs) for estimator in LINEAR_REGRESSORS for outputs in (1, 2))


@pytest.mark.parametrize(("estimator", "classes", "outputs"), [*cases()], ids=lambda one: f"{one!r}".replace(" ", ""))
def test_linear_estimators_become_coefficients_with_the_same_answers(estimator, classes, outputs):
    readout, train, new = fitted_readout(estimator, classes, outputs)
    linear = linear_form(readout, train)
    assert isinstance(linear, LinearReadout)
    linear = LinearReadout.from_arrays(*linear.to_arrays())
    new = new.astype(np.float64)
    if not classes:
        np.testing.assert_allclose(linear.predict(new), readout.predict(new), rtol=1e-5, atol=1e-5)
        return
    np.testing.assert_array_equal(linear.predict(new), readout.predict(new))
    assert linear.has_probabilities == readout.has_probabilities
    np.testing.assert_allclose(linear.probabilities(new), readout.probabilities(new), atol=1e-6)


@pytest.mark.parametrize("estimator", OTHERS, ids=lambda one: f"{one!r}".replace(" ", ""))
def test_other_estimators_have_no_linear_form(estimator):
    readout, train, _ = fitted_readout(estimator, 3 if is_classifier(estimator) else 0, 1)
    assert linear_form(readout, train) is None


def test_an_estimator_that_saw_fewer_classes_has_no_linear_form():
    readout, train, _ = fitted_readout(linear_model.LogisticRegression(), 2, 1)
    assert linear_form(EstimatorReadout(model=readout.model, targets=Targets(1, 4), name="test"), train) is None


@pytest.mark.parametrize("readout", ["linear_model.LogisticRegression", "svm.LinearSVC"])
def test_linear_estimators_are_saved_predicted_and_exported_without_skops(tmp_path, tiny_gpt2, readout, monkeypatch):
    import torch

    for name in ("dumps", "loads", "get_untrusted_types"):
        monkeypatch.setattr(skops.io, name, lambda *_, **__: pytest.fail("skops was used"))
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6, 2)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=np.digitize(x[:, :, 0].mean(axis=1), [-0.2, 0.2]))
    settings = {"backbone": str(tiny_gpt2), "cache": tmp_path / "cache", "layers": "final", "pool": "mean"}
    features = extract(str(tmp_path / "rows.npz"), compute="float32", **settings)
    done = fit(features, readout=f"sklearn.{readout}", columns="final/mean", out=tmp_path / "readout")
    assert {path.suffix for path in (tmp_path / "readout").glob("readout*")} == {".json", ".safetensors"}
    loaded = Bundle.load(done.saved).readout
    test = features["test"]["final/mean"]
    np.testing.assert_array_equal(loaded.predict(test), done.readout.predict(test))
    np.testing.assert_allclose(loaded.probabilities(test), done.readout.probabilities(test))
    labels = [one.label for one in predict(done.saved, tmp_path / "rows.npz")]
    model = build(open_readout(done.saved, linear=True), done.saved)  # which `export` writes
    with torch.no_grad():
        logits = model(torch.from_numpy(x), torch.full((90,), 6))
    assert logits.flatten(1).argmax(-1).tolist() == labels


@pytest.fixture(scope="module")
def last_layer(tmp_path_factory, tiny_gpt2):
    root = tmp_path_factory.mktemp("files")
    return extract("digits", backbone=str(tiny_gpt2), limit=60, cache=root, layers="final", pool="mean,last")


def same(text, card):
    """Return whether JSON has the values of a card; a flipped bit may turn the e of a number into an equivalent E."""
    try:
        return json.loads(text) == card
    except ValueError:
        return False


@pytest.mark.parametrize("readout", ["ridge", "sklearn.naive_bayes.GaussianNB"])
def test_every_changed_byte_is_found(last_layer, readout, tmp_path):
    folder = fit(last_layer, columns="final/mean", readout=readout, out=tmp_path / "whole").saved.parent
    files = sorted(path.name for path in folder.glob("readout*"))
    assert len(files) == 2 + (readout != "ridge")
    card = json.loads((folder / "readout.json").read_text())
    for name in files:
        data = (folder / name).read_bytes()
        damaged = [data[:-9], data + b"0"]
        damaged += [
            data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
            for place in range(0, len(data), max(1, len(data) // 40))
        ]
        for changed in damaged:
            (folder / name).write_bytes(changed)
            if name == "readout.json" and same(changed, card):
                continue
            assert "readout" in outcome(Bundle.load, folder, trust=True)
        (folder / name).write_bytes(data)
    assert Bundle.load(folder, trust=True).task.name == "digits"


def bundle_of(number, width=400):
    coef, offset = np.full((width, 3), float(number)), np.full(4, number, np.float32)
    return Bundle(
        task=Task(name="digits", form=Vectors(4), max_tokens=16, classes=3),
        scaling=Scaling(offset=offset, scale=offset + 1),
        parts=(),
        readout=LinearReadout(coef=coef, intercept=coef[0], targets=Targets(1, 3)),
        scores={"number": number},
    )


def save(number, folder):
    with locked(folder):
        bundle_of(number).write(folder)


def save_often(folder, number):
    for _ in range(15):
        save(number, folder)


def test_concurrent_writers_never_mix_two_bundles(tmp_path):
    save(0, tmp_path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=save_often, args=(tmp_path, number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    loads = 0
    while loads < 20 or any(writer.is_alive() for writer in writers):
        found = Bundle.load(tmp_path)
        assert {found.scores["number"], *found.readout.coef.ravel(), *found.scaling.offset} == {found.scores["number"]}
        loads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_write_that_fails_leaves_the_old_bundle(tmp_path, monkeypatch, step):
    from pathlib import Path

    save(1, tmp_path)
    plain = getattr(Path, step)

    def fail(self, *arguments, **named):
        plain(self, *arguments, **named)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(OSError, match="No space"):
        save(2, tmp_path)
    monkeypatch.undo()
    assert Bundle.load(tmp_path).scores == {"number": 1}
    save(2, tmp_path)
    assert Bundle.load(tmp_path).scores == {"number": 2} and len(list(tmp_path.iterdir())) == 2


def test_fits_with_other_options_have_other_folders(last_layer):
    settings = [
        {},
        {"columns": "final/last"},
        {"alphas": "1:10:2"},
        {"select": "cv3"},
        {"class_weight": "balanced"},
        {"readout": "logistic"},
    ]
    plain = {"columns": "final/mean", "alphas": "1:100:3"}
    folders = [fit(last_layer, **(plain | one)).saved.parent for one in settings]
    assert len(set(folders)) == len(settings) and fit(last_layer, **plain).saved.parent == folders[0]
