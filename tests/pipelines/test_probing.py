"""Probes: control tasks and untrained twins, and the directions and the description length of a readout."""

import csv
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reservoir_cache import Entry
from reservoir_pipelines import extract, fit, report, twin
from reservoir_pipelines.fitting import folds
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.control import SymbolLabels
from reservoir_pipelines.fitting.fit import fit_and_score
from reservoir_pipelines.fitting.fit_data import FitData
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.source import KNOWN_SPLITS
from reservoir_pipelines.plots import draw_twin, new_figure
from reservoir_pipelines.preparation.prepared import Prepared
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir import InputError
from reservoir.column import parse_columns
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.options import DeviceOptions, FitOptions
from reservoir.readouts.directions import ReadColumn
from reservoir.readouts.linear import LinearReadout, Targets
from reservoir.readouts.paired import mcnemar, paired_interval
from reservoir.readouts.prequential import ALPHAS, BLOCK_SHARES, portion_ends, prequential_code
from reservoir.reservoir import Reservoir
from tests.pipelines.test_each_token import SMALL, proteins
from tests.pipelines.test_native import write_texts
from tests.pipelines.test_saved_fits import columns_of
from tests.reservoir.models import save_with_tokenizer
from tests.tasks.samples import write_csv

DRAWS = 5


@pytest.fixture(scope="module")
def digits(one_cache, tiny_gpt2):
    options = {"layers": "embed,block01", "pool": "mean,tokens", "compute": "float32", "store": "float32"}
    return extract("digits", backbone=str(tiny_gpt2), limit=200, cache=one_cache, **options)


def features_of(extraction, names, splits):
    parts = [[extraction[split].read(name).reshape(len(extraction[split].y), -1) for name in names] for split in splits]
    return np.concatenate([np.concatenate(part, axis=1) for part in parts])


def permuted(extraction, splits, draw):
    """Return the labels of some splits, those of each split permuted by itself."""
    return np.concatenate(
        [np.random.default_rng(draw).permutation(extraction[split].labels[:, 0, 0]) for split in splits]
    )


def ridge_labels(x, y, new, alpha, weights=None):
    """Return the labels that scikit-learn's ridge on standardised features predicts."""
    scale = StandardScaler().fit(x, sample_weight=weights)
    coded = np.where(y[:, None] == np.arange(10), 1.0, -1.0)
    model = Ridge(alpha=alpha).fit(scale.transform(x), coded, sample_weight=weights)
    return model.predict(scale.transform(new)).argmax(axis=1)


@pytest.mark.parametrize("columns", ["block01/mean", "embed/mean+block01/mean", "block01/tokens"])
@pytest.mark.parametrize("select", ["cv3", "valid"])
def test_a_control_of_rows_is_that_of_permuted_labels(digits, columns, select, tmp_path):
    # Moments of one column are stored, those of joined columns are not, and the third has fewer rows than features.
    result = fit(digits, columns=columns, select=select, control=True, out=tmp_path)
    splits = KNOWN_SPLITS if select == "cv3" else ("train",)
    x, new = (features_of(digits, result.best.columns, of) for of in (splits, ("test",)))
    truth = digits["test"].labels[:, 0, 0]
    scores = [
        (ridge_labels(x, permuted(digits, splits, draw), new, result.best.alpha) == truth).mean()
        for draw in range(DRAWS)
    ]
    assert result.best.control_score == pytest.approx(np.mean(scores), abs=1e-9)
    assert result.best.selectivity == result.best.test_score - result.best.control_score
    assert result.to_dict()["best"]["selectivity"] == result.best.selectivity
    # Nothing else depends on the control.
    plain = fit(digits, columns=columns, select=select, out=tmp_path)
    assert (plain.best.test_score, plain.best.alpha) == (result.best.test_score, result.best.alpha)
    assert plain.best.control_score is None and "control_score" not in plain.to_dict()["best"]


def test_class_weights_follow_the_random_labels(digits, tmp_path):
    result = fit(digits, columns="block01/mean", select="cv3", control=True, class_weight="balanced", out=tmp_path)
    x, new = (features_of(digits, result.best.columns, of) for of in (KNOWN_SPLITS, ("test",)))
    scores = []
    for draw in range(DRAWS):
        y = permuted(digits, KNOWN_SPLITS, draw)
        weights = len(y) / 10 / np.bincount(y)[y]
        labels = ridge_labels(x, y, new, result.best.alpha, weights)
        scores.append(balanced_accuracy_score(digits["test"].labels[:, 0, 0], labels))
    assert result.best.control_score == pytest.approx(np.mean(scores), abs=1e-9)


def test_a_control_of_balanced_labels_of_steps_is_scored_over_all_steps_as_the_readout_is(tmp_path):
    # Rows with 2 to 8 labels of equal shares would have the mean over the labels, whose class shares differ here.
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 4, 1))
    np.savez(tmp_path / "steps.npz", x=x, y=(x[:, :, 0] > [-1.5, -0.5, 0.5, 1.5]).astype(int))
    features = extract(tmp_path / "steps.npz", cache=tmp_path / "cache", store="float32", compute="float32", **SMALL)
    options = FitOptions(columns="block01/all", class_weight="balanced", control=True, out=tmp_path / "fit")
    scored = fit_and_score(features, options, DeviceOptions())
    x, y = (np.concatenate(part) for part in (features["test"].read("block01/all"), features["test"].labels[..., 0]))
    final = scored.finals.best
    scores = [balanced_accuracy_score(y, readout.predict(x)[:, 0]) for readout in final.control.readouts]
    assert scored.fit.reservoir.test_score == pytest.approx(balanced_accuracy_score(y, final.readout.predict(x)[:, 0]))
    assert scored.fit.reservoir.control_score == pytest.approx(np.mean(scores))


def test_logistic_readouts_are_fitted_to_the_labels_of_each_draw(digits):
    source = FitData.open_entries(digits).known.source(parse_columns("block01/mean"))
    labellings = [
        {split: np.random.default_rng(n).permutation(source.labels(split)) for split in KNOWN_SPLITS} for n in (0, 1)
    ]
    fitter = LogisticFitter(classes=10, alphas=np.array([3.0]))
    chosen = fitter.fit(source).readout
    x = features_of(digits, ("block01/mean",), ("train",))
    for labels, readout in zip(labellings, fitter.refit_labels(source, chosen, 3.0, labellings), strict=True):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / 3.0, tol=1e-9, max_iter=1000))
        model.fit(x, labels["train"][:, 0])
        np.testing.assert_allclose(readout.probabilities(x)[:, 0], model.predict_proba(x), atol=1e-3)


def test_the_labels_themselves_give_the_chosen_readout(digits):
    source = FitData.open_entries(digits).known.source(parse_columns("embed/mean+block01/mean"))
    fitter = RidgeFitter(classes=10, alphas=np.array([3.0]), folds=3)
    chosen = fitter.fit(source).readout
    (again,) = fitter.refit_labels(source, chosen, 3.0, [{split: source.labels(split) for split in KNOWN_SPLITS}])
    np.testing.assert_allclose(again.coef, chosen.coef, atol=1e-9)
    np.testing.assert_allclose(again.intercept, chosen.intercept, atol=1e-9)


def test_a_control_of_symbols_gives_each_symbol_a_label_as_in_hewitt_and_liang(tmp_path):
    sequences = {f"p{number}": pair for number, pair in enumerate(proteins())}
    lines = [(name, *pair) for name, pair in sequences.items()]
    path = write_csv(tmp_path / "ss.csv", lines, "id,sequence,label")
    features = extract(path, cache=tmp_path / "cache", store="float32", compute="float32", **SMALL)
    options = {"select": "valid", "alphas": "1:1:1", "columns": "block01/all"}
    result = fit(features, control=True, out=tmp_path / "fit", **options)
    x, y, letters = {}, {}, {}
    for split in ("train", "test"):
        part = features[split]
        is_real = np.arange(part.labels.shape[1]) < part.lengths[:, None]
        x[split], y[split] = np.asarray(features.store[split]["block01/all"])[is_real], part.labels[..., 0][is_real]
        letters[split] = np.array([letter for name in part.ids for letter in sequences[name][0]])
    alphabet = ["A", "G", "V"]
    drawn = np.random.default_rng(0).integers(0, len(y["train"]), (DRAWS, len(alphabet) + 1))
    scores = []
    for label_of_letter in y["train"][drawn]:
        labels = {
            split: np.array([label_of_letter[alphabet.index(letter)] for letter in of_split])
            for split, of_split in letters.items()
        }
        scale = StandardScaler().fit(x["train"])
        coded = np.where(labels["train"][:, None] == np.arange(3), 1.0, -1.0)
        ridge = Ridge(alpha=1.0).fit(scale.transform(x["train"]), coded)
        scores.append((ridge.predict(scale.transform(x["test"])).argmax(axis=1) == labels["test"]).mean())
    assert result.best.control_score == pytest.approx(np.mean(scores), abs=1e-9)
    assert result.best.control_score > 0.8  # the layer knows the letters


def test_tables_and_files_show_the_selectivity(digits, tmp_path, call):
    code, out, _ = call(
        "fit", digits.entry, "--columns", "embed/mean,block01/mean", "--alphas", "1:1:1", "--control", "--out", tmp_path
    )
    assert code == 0 and out.count("control  selectivity") == 2
    lines = list(csv.DictReader((tmp_path / "layers.csv").open()))
    assert [float(line["test_score"]) - float(line["control_score"]) for line in lines] == pytest.approx(
        [float(line["selectivity"]) for line in lines], abs=2e-6
    )
    report([tmp_path], out=tmp_path / "page.html")
    assert "selectivity" in (tmp_path / "page.html").read_text()


def test_a_fit_shows_the_description_length_of_the_training_labels(digits, tmp_path, call):
    columns = "embed/mean,block01/mean,block01/tokens"
    code, out, _ = call("fit", digits.entry, "--columns", columns, "--alphas", "1:1:1", "--mdl", "--out", tmp_path)
    assert code == 0 and out.count("bits  compression") == 2
    lines = list(csv.DictReader((tmp_path / "layers.csv").open()))
    y = digits["train"].labels[:, 0]
    order = np.random.default_rng(0).permutation(len(y))
    for line in lines:
        x = features_of(digits, [line["columns"]], ["train"])[order]
        blocks = [(x, y[order], np.arange(len(y)))]
        expected = prequential_code(blocks, portion_ends(len(y), 10), Targets(1, 10))
        assert float(line["description_bits"]) == pytest.approx(expected.bits, rel=1e-3)
        assert float(line["compression"]) == pytest.approx(expected.compression, rel=1e-3)
    summary = json.loads((tmp_path / "fit.json").read_text())
    assert {"description_bits", "compression"} <= summary["best"].keys() & summary["baselines"][0].keys()


def test_readouts_without_a_control_task_are_refused(digits):
    with pytest.raises(InputError, match="no control task"):
        fit(digits, readout="sklearn.svm.LinearSVC:C=1", control=True)


def test_symbols_that_no_training_row_has_share_one_label():
    labels = SymbolLabels.draw(np.array([7, 3, 7]), np.array([[0], [1], [2]]))
    assert labels.of(np.array([3, 7, 5, 9])).shape == (DRAWS, 4, 1)
    np.testing.assert_array_equal(labels.of(np.array([5, 9, 1])), np.repeat(labels.labels[:, [2]], 3, axis=1))
    np.testing.assert_array_equal(labels.of(np.array([7])), labels.labels[:, [1]])


# `twin` compares a trained model with the same model untrained and with the raw input, on the same test rows.


LAYERS = {"layers": "embed,block01,final", "pool": "mean,last"}
QUICK = {"select": "cv3", "alphas": "1e-1:1e2:3"}


@pytest.fixture(scope="module")
def digits_twin(one_cache, tiny_gpt2):
    """Return the result of a twin of digits, and the keywords of its call."""
    call = {"backbone": str(tiny_gpt2), "limit": 200, "cache": one_cache, **LAYERS, **QUICK}
    return twin("digits", **call), call


def test_differences_are_those_of_the_predictions_of_two_fits(digits_twin):
    result, _ = digits_twin
    folders = {name: result.saved.parent / name for name in ("trained", "untrained")}
    predictions = {name: columns_of(folder)["test"] for name, folder in folders.items()}
    is_right = {
        name: {column: cells[column] == cells["label"] for column in ("best", "embed", "block01", "final", "raw")}
        for name, cells in predictions.items()
    }
    np.testing.assert_array_equal(*(cells["id"] for cells in predictions.values()))
    assert result.raw.name in ("raw", "summary statistics")
    raw = predictions["trained"][result.raw.name] == predictions["trained"]["label"]
    assert [contrast.layer for contrast in result.layers] == ["embed", "block01", "final"]
    for contrast in (result.chosen, *result.layers):
        ours, theirs = (is_right[name][contrast.layer or "best"] for name in ("trained", "untrained"))
        assert contrast.trained.test_score == pytest.approx(ours.mean())
        assert contrast.untrained.test_score == pytest.approx(theirs.mean())
        for difference, first, second in (
            (contrast.trained_minus_untrained, ours, theirs),
            (contrast.trained_minus_raw, ours, raw),
            (contrast.untrained_minus_raw, theirs, raw),
        ):
            wins, losses = int((first & ~second).sum()), int((second & ~first).sum())
            assert difference.value == pytest.approx(first.mean() - second.mean())
            assert difference.interval == pytest.approx(paired_interval(wins, losses, len(first)))
            assert difference.p_value == mcnemar(first, second)


def test_the_untrained_model_is_the_same_one_with_random_weights(digits_twin):
    result, call = digits_twin
    options = {name: call[name] for name in ("backbone", "limit", "cache", "layers", "pool")}
    assert extract("digits", **options).entry == result.trained
    assert extract("digits", init="random", **options).entry == result.untrained
    specs = [extract("digits", **options, init=init).store.entry.spec for init in (None, "random")]
    assert specs[0].init.kind == "pretrained" and specs[1].init.kind == "random"
    assert specs[0].input == specs[1].input and specs[0].data == specs[1].data


def test_every_column_is_fitted_to_all_rows_and_a_layer_has_its_best_by_validation(digits_twin):
    result, _ = digits_twin
    table = (result.saved.parent / "trained" / "results.csv").read_text()
    for layer in ("embed", "block01", "final"):
        assert all(f"\n{layer}/{pooling},ridge" in table for pooling in ("last", "mean"))
    again = fit(result.trained, **QUICK, columns="block01/mean,block01/last,block01/last+block01/mean")
    (of_layer,) = (contrast for contrast in result.layers if contrast.layer == "block01")
    assert of_layer.trained.name == again.best.name and of_layer.trained.alpha == again.best.alpha


def test_a_second_call_returns_the_saved_result_unless_an_option_or_the_file_differs(digits_twin, monkeypatch, capsys):
    result, call = digits_twin
    assert not result.reused
    with monkeypatch.context() as patch:
        patch.setattr("reservoir_pipelines.untrained.fit_and_score", None)  # nothing is fitted again
        again = twin("digits", **call)
    assert again.reused and {**again.to_dict(), "reused": False} == result.to_dict()
    capsys.readouterr()
    other = twin("digits", **call | {"alphas": "1:1:1"})
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fit")]
    assert [line.partition(" readouts of ")[2] for line in said[::2]] == ["the trained model", "the untrained model"]
    assert not other.reused and other.saved != result.saved
    saved = result.saved.read_text()
    result.saved.write_text(saved.replace('"metric"', '"metrik"', 1))
    assert not twin("digits", **call).reused
    # The folders of both fits are a part of the result.
    shutil.rmtree(result.saved.parent / "untrained")
    assert not twin("digits", **call).reused and (result.saved.parent / "untrained" / "fit.json").is_file()


def test_only_the_columns_of_the_call_are_compared_whatever_else_the_entries_have(digits_twin):
    result, call = digits_twin
    fewer = twin("digits", **call | {"layers": "embed,block01", "pool": "mean"})
    assert (fewer.trained, fewer.untrained) == (result.trained, result.untrained)
    assert [contrast.layer for contrast in fewer.layers] == ["embed", "block01"] and not fewer.reused
    assert {contrast.trained.columns for contrast in fewer.layers} == {("embed/mean",), ("block01/mean",)}
    # The entry of the trained model may have been created with other columns.
    smaller = call | {"limit": 60, "layers": "block01,block02", "pool": "mean"}
    extract("digits", **{name: smaller[name] for name in ("backbone", "limit", "cache")}, layers="block01", pool="mean")
    assert [contrast.layer for contrast in twin("digits", **smaller).layers] == ["block01", "block02"]


def test_the_plot_has_a_line_for_each_model_and_the_raw_input():
    scores = np.array([[0.5, 0.4, 0.6], [0.7, 0.6, 0.8]])
    with new_figure(4, 3) as figure:
        axes = figure.subplots()
        draw_twin(axes, ["embed", "block01"], {"trained": scores, "untrained": scores - 0.2}, 0.65, "accuracy")
        lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(lines) == ["trained", "untrained", "raw input"]
    np.testing.assert_allclose(lines["untrained"], [30, 50])
    np.testing.assert_allclose(lines["raw input"], 65)


def test_a_twin_and_seeds_show_what_the_options_of_probing_add(cache, tiny_gpt2, call, tmp_path):
    layers = ["--layers", "embed,block01", "--pool", "mean"]
    model = ["--backbone", tiny_gpt2, "--limit", 60, *layers]
    options = ["--select", "cv3", "--alphas", "1:1:1", "--control", "--mdl", "--curve", "20,40"]
    # The tables of the first call are those of the saved result.
    for _ in range(2):
        code, out, _ = call("twin", "digits", *model, *options, "--out", tmp_path)
        assert code == 0
        heading, _, *lines = out.split("\n\n")[1].splitlines()
        assert heading.split()[-5:] == ["test", "control", "selectivity", "bits", "compression"]
        assert [line.split()[:2] for line in lines] == [
            [layer, model] for layer in ("embed", "block01", "chosen") for model in ("trained", "untrained")
        ]
        values = json.loads((tmp_path / "twin.json").read_text())
        assert f"{values['layers'][1]['untrained']['control_score']:.1%}" in lines[3].split()
        for name in ("trained", "untrained"):
            curve = json.loads((tmp_path / name / "fit.json").read_text())["curve"]
            title, _, _, *points = out.partition(f"{name} model, ")[2].split("\n\n")[0].splitlines()
            assert title.endswith(": accuracy")
            assert [line.split()[:3] for line in points] == [
                [str(point["rows"]), f"{point['valid_score']:.1%}", f"{point['test_score']:.1%}"] for point in curve
            ]
    assert call("extract", "digits", "--init", "random", *model)[0] == 0
    code, out, _ = call("fit", "digits", "--init", "random", "--seeds", 2, "--alphas", "1:1:1", "--curve", "20,40")
    assert code == 0 and "seed 0, " in out and "seed 1, " in out
    code, out, _ = call("twin", "digits", *model, *options[:4], "--out", tmp_path)
    assert code == 0 and "selectivity" not in out and "training rows" not in out


def test_texts_keep_the_tokenizer_and_get_other_embeddings(cache, tmp_path, call):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    file = write_texts(tmp_path / "pets.jsonl", 60)
    out = tmp_path / "out"
    model = ["--backbone", folder, "--layers", "embed,block01", "--pool", "mean"]
    code, text, _ = call("twin", file, *model, "--select", "cv3", "--alphas", "1:1:1", "--out", out)
    assert code == 0 and "trained - untrained" in text and "the untrained model" in text
    assert (out / "twin.png").is_file() and (out / "untrained" / "readout.json").is_file()
    values = json.loads((out / "twin.json").read_text())
    assert [contrast["layer"] for contrast in values["layers"]] == ["embed", "block01"]
    inputs = [Entry.open(Path(values[name])).spec.input for name in ("trained", "untrained")]
    assert [spec.kind for spec in inputs] == ["native", "native"]
    assert inputs[0].digests["tokenizer"] == inputs[1].digests["tokenizer"]
    assert inputs[0].digests["embeddings"] != inputs[1].digests["embeddings"]
    # The name of the task still means the trained model, and the untrained one labels new texts, too.
    _, text, _ = call("fit", file, "--columns", "block01/mean", "--json")
    assert json.loads(text)["entry"] == values["trained"]
    code, text, _ = call("predict", out / "untrained", file, "--json")
    assert code == 0 and len(json.loads(text)["predictions"]["label"]) == 60


def test_labels_of_every_token_have_a_row_for_each_layer(tmp_path, tiny_gpt2):
    # By default, the columns of two layers stand side by side, and belong to neither.
    path = write_csv(tmp_path / "ss.csv", proteins(30), "sequence,label")
    model = {"backbone": str(tiny_gpt2), "layers": "embed,block01", "cache": tmp_path / "cache"}
    result = twin(path, **model, select="valid", alphas="1:1:1")
    assert [contrast.layer for contrast in result.layers] == ["embed", "block01"]
    for contrast in result.layers:
        alone = fit(result.untrained, columns=f"{contrast.layer}/all", select="valid", alphas="1:1:1")
        assert contrast.untrained.test_score == alone.best.test_score


def test_both_models_have_the_labels_of_the_call_in_whatever_folder_it_is_made(tmp_path, call, monkeypatch):
    for folder, labels in (("here", "ab" * 15), ("there", "a" * 15 + "b" * 15)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s.fasta").write_text("".join(f">r{n}\n{'ACGT'[n % 4] * 9}\n" for n in range(30)))
        lines = "".join(f"r{n},{label}\n" for n, label in enumerate(labels))
        (tmp_path / folder / "labels.csv").write_text("id,label\n" + lines)
    model = ["--backbone", "mini", "--layers", "embed", "--pool", "mean", "--select", "valid", "--alphas", "1:1:1"]
    extraction = [*model[:6], "--cache", tmp_path / "cache"]
    monkeypatch.chdir(tmp_path / "here")
    assert call("extract", "s.fasta", "--labels", "labels.csv", *extraction)[0] == 0
    monkeypatch.chdir(tmp_path / "there")
    labels = Path("../here/labels.csv")
    out = ["--cache", tmp_path / "cache", "--out", tmp_path / "out"]
    assert call("twin", "../here/s.fasta", "--labels", labels, *model, *out)[0] == 0
    values = json.loads((tmp_path / "out" / "twin.json").read_text())
    trained, untrained = (Entry.open(Path(values[name])).spec.data for name in ("trained", "untrained"))
    assert trained == untrained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--init", "random"), "the model itself is untrained (--init random)"),
        (("--backbone", "kernels"), "the model itself is untrained (--init random)"),
        (("--layers", "embed", "--columns", "block01/mean"), "column 'block01/mean': not cached"),
        (("--curve", "5", "--readout", "logistic"), "--curve 5: a learning curve needs --readout ridge"),
        (("--select", "cv1"), "--select cv1: choose auto, valid, or cvK"),
        (("--select", "cv5", "--readout", "logistic"), "--select cv5: cross-validation is only for ridge"),
        (("--control", "--readout", "sklearn.svm.LinearSVC:C=1"), "readouts have no control task"),
    ],
)
def test_what_cannot_work_is_refused_before_an_extraction(options, message, cache, refusal, narrow_mini):
    assert message in refusal("twin", "digits", "--limit", "60", *options)
    assert not (cache / "features").exists()


def test_data_without_labels_are_refused_before_an_extraction(cache, refusal, narrow_mini, tmp_path):
    (tmp_path / "s.fasta").write_text("".join(f">r{number}\n{'ACGT' * 3}\n" for number in range(30)))
    assert "no labels" in refusal("twin", tmp_path / "s.fasta")
    assert not (cache / "features").exists()


# A vector that is added to all hidden states of a layer moves the scores of a readout as its gradient says.


POOLINGS = "last,mean,std,min,max,first,segments2,quantiles3,sustained2"


def write_rows(path, classes):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(150, 12, 2)).astype(np.float32)
    np.savez(path, x=x, y=np.digitize(x[:, :, 0].mean(axis=1), [0] if classes == 2 else [-0.1, 0.1]))
    return path


@pytest.fixture(scope="module", params=[2, 3])
def extracted(request, tmp_path_factory, tiny_gpt2):
    folder = tmp_path_factory.mktemp("directions")
    options = {"backbone": str(tiny_gpt2), "patch": 1, "layers": "embed,block01,block02", "pool": POOLINGS}
    exact = {"store": "float32", "compute": "float32"}
    return extract(write_rows(folder / "rows.npz", request.param), cache=folder / "cache", **options, **exact)


@pytest.mark.parametrize("layer", ["block01", "block02"])
def test_a_vector_added_to_a_block_moves_the_scores_by_its_product_with_the_gradient(extracted, layer, tmp_path):
    names = [name for name in extracted.columns if name.startswith(layer)]
    assert len(names) == len(POOLINGS.split(","))
    saved = fit(extracted, columns="+".join(names), select="valid", out=tmp_path)
    readout = Bundle.load(tmp_path).readout  # read again, with the names of its columns
    np.testing.assert_array_equal(readout.direction(layer), saved.readout.direction(layer))
    entry = extracted.store.entry
    prepared = Prepared.open(Path(entry.made_with["prepared"]))
    model = load_model(prepared.task, Reservoir(**entry.made_with["reservoir"]), "cpu", "float32")
    rows = prepared.split("test").read(0, 9)

    def scores(vector):
        block = model.fpt.backbone.blocks[int(layer[-2:]) - 1]
        block_forward = block.forward

        def add(*inputs, **named):
            output = block_forward(*inputs, **named)
            hidden, *rest = output if isinstance(output, tuple) else (output,)
            moved = hidden + torch.tensor(vector, dtype=hidden.dtype)
            return (moved, *rest) if isinstance(output, tuple) else moved

        block.forward = add
        features = forward(model, prepared.scaling, rows.x, rows.lengths, names, 9)
        block.forward = block_forward
        return readout.scores(np.concatenate([features[name].reshape(9, -1) for name in names], axis=1))

    before = scores(np.zeros(16))
    directions = np.atleast_2d(readout.direction(layer))
    gradient = readout.gradient(layer)
    assert directions.shape == gradient.T.shape == ((1 if before.shape[1] == 1 else 3), 16)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    for number, direction in enumerate(directions):
        moved = scores(0.7 * direction) - before
        np.testing.assert_allclose(moved, np.tile(0.7 * direction @ gradient, (9, 1)), atol=2e-4)
        # Along its own direction, a score grows by the length of its gradient.
        np.testing.assert_allclose(moved[:, number], 0.7 * np.linalg.norm(gradient[:, number]), atol=2e-4)
    with pytest.raises(InputError, match=layer):
        readout.direction("embed")


def test_the_gradient_sums_the_vectors_of_the_poolings_of_one_layer():
    draw = np.random.default_rng(0)
    columns = [("block01/mean", 4, 1), ("block02/last", 8, 2), ("raw", 3, 1), ("block01/segments2", 8, 2)]
    columns = tuple(ReadColumn(*column) for column in [*columns, ("block01/std", 4, 1)])
    coef = draw.normal(size=(27, 1))
    readout = LinearReadout(coef=coef, intercept=np.zeros(1), targets=Targets(1, 0), columns=columns)
    np.testing.assert_allclose(readout.gradient("block01"), coef[:4] + coef[15:19] + coef[19:23])
    np.testing.assert_allclose(readout.gradient("block02"), coef[4:8] + coef[8:12])
    unlike = (ReadColumn("block01/shares3", 27, 3),)
    with pytest.raises(InputError, match="not linear"):
        LinearReadout(coef=coef, intercept=np.zeros(1), targets=Targets(1, 0), columns=unlike).direction("block01")
    with pytest.raises(InputError, match="no layer"):
        LinearReadout(coef=coef, intercept=np.zeros(1), targets=Targets(1, 0)).direction("block01")


@pytest.mark.parametrize("columns", [[["block01/mean", 5, 1]], [["block01/mean", 4, 0]], [["block01/mean", "4", 1]], 3])
def test_columns_that_a_file_cannot_have_are_refused(columns):
    readout = LinearReadout(coef=np.ones((4, 1)), intercept=np.zeros(1), targets=Targets(1, 0))
    arrays, settings = readout.to_arrays()
    with pytest.raises(ValueError, match="its columns"):
        LinearReadout.from_arrays(arrays, {**settings, "columns": columns})


# The prequential code is that of scikit-learn's ridge, fitted to each prefix of the samples, portion by portion.


def draw_samples(rows, width, classes, outputs=1, signal=2.0):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, width)).astype(np.float32)
    y = (signal * x[:, : classes * outputs].reshape(rows, outputs, classes)).argmax(axis=2)
    return x, y, draw.permutation(rows)


def code_by_hand(x, y, ranks, ends, targets):
    """Return the bits of each portion by scikit-learn's ridge on standardised features of all earlier portions."""
    order = np.argsort(ranks)
    x, y = x[order].astype(np.float64), y[order]
    coded = targets.coded(y)

    def scores_of(fitted, scored, alpha):
        scale = StandardScaler().fit(x[fitted])
        model = Ridge(alpha=alpha).fit(scale.transform(x[fitted]), coded[fitted])
        return model.predict(scale.transform(x[scored])).reshape(-1, targets.columns)

    def length(scores, labels, temperature):
        logs = log_softmax(targets.logits(scores) / temperature, axis=-1)
        return -np.take_along_axis(logs, labels[..., None], axis=-1).sum() / np.log(2)

    bits = [ends[0] * targets.outputs * np.log2(targets.classes)]
    setting = 100.0, 1.0
    for start, end in itertools.pairwise(ends):
        scored = slice(start, end)
        of_readout = length(scores_of(slice(start), scored, setting[0]), y[scored], setting[1])
        uniform = y[scored].size * np.log2(targets.classes)
        bits.append(1 - np.logaddexp2(-of_readout, -uniform))
        # The receiver knows these labels now, and chooses for the next portion.
        tried = []
        for alpha in ALPHAS:
            scores = scores_of(slice(start), scored, alpha)
            temperature = targets.fit_temperature(scores, y[scored])
            tried.append((length(scores, y[scored], temperature), (alpha, temperature)))
        setting = min(tried)[1]
    return bits


@pytest.mark.parametrize(("classes", "outputs"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("width", [8, 100])
def test_the_code_is_that_of_readouts_of_each_prefix(classes, outputs, width):
    x, y, ranks = draw_samples(600, width, classes, outputs)  # prefixes have fewer and more samples than features
    targets, ends = Targets(outputs, classes), portion_ends(600, classes)
    assert ends.tolist() == [20, 38, 75, 150, 300, 600]
    blocks = [(x[:250], y[:250], ranks[:250]), (x[250:], y[250:], ranks[250:])]
    code = prequential_code(blocks, ends, targets)
    assert [samples for samples, _ in code.portions] == np.diff(ends, prepend=0).tolist()
    assert [bits for _, bits in code.portions] == pytest.approx(code_by_hand(x, y, ranks, ends, targets), rel=1e-3)
    assert code.bits == pytest.approx(sum(bits for _, bits in code.portions))
    assert code.uniform_bits == pytest.approx(600 * outputs * np.log2(classes))
    assert code.compression == code.uniform_bits / code.bits > 1.3


def test_labels_that_do_not_depend_on_features_are_not_compressed():
    x, y, ranks = draw_samples(2000, 10, 2)
    random = np.random.default_rng(1).integers(0, 2, y.shape)
    code = prequential_code([(x, random, ranks)], portion_ends(2000, 2), Targets(1, 2))
    assert 0.95 < code.compression <= 1.0
    # Rare labels are compressed to about their entropy, which needs no features.
    rare = (np.random.default_rng(2).random(y.shape) < 0.05).astype(int)
    share = rare.mean()
    entropy = -len(rare) * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    code = prequential_code([(x, rare, ranks)], portion_ends(2000, 2), Targets(1, 2))
    assert entropy < code.bits < 1.25 * entropy


@pytest.mark.parametrize("seed", range(12))
def test_no_portion_costs_more_than_uniform_labels_and_a_bit(seed):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, (500, 1))
    x = draw.normal(size=(500, 64)) + y  # a sure readout of a few samples may be wrong
    ends = portion_ends(500, 2)
    code = prequential_code([(x, y, np.arange(500))], ends, Targets(outputs=1, classes=2))
    assert all(bits <= samples + 1 for samples, bits in code.portions)
    assert code.compression > 3


def test_no_label_is_used_before_it_is_sent():
    x, y, ranks = draw_samples(600, 20, 2)
    ends = portion_ends(600, 2)
    before = prequential_code([(x, y, ranks)], ends, Targets(1, 2)).portions
    for portion in range(1, len(ends)):
        # Other features and labels from this portion on leave the bits of the earlier ones as they are.
        is_later = ranks >= ends[portion - 1]
        changed = np.where(is_later[:, None], 1 - y, y), np.where(is_later[:, None], 9 * x, x)
        after = prequential_code([(changed[1], changed[0], ranks)], ends, Targets(1, 2)).portions
        assert after[:portion] == before[:portion] and after[portion] != before[portion]


def test_portions_end_at_the_shares_of_the_paper():
    assert portion_ends(100_000, 10).tolist() == [int(np.ceil(share * 100_000)) for share in BLOCK_SHARES]
    assert portion_ends(1000, 20).tolist() == [63, 125, 250, 500, 1000]  # two samples of each class, or more
    x, y, ranks = draw_samples(10, 4, 2)
    code = prequential_code([(x, y, ranks)], portion_ends(10, 2), Targets(1, 2))
    assert (code.bits, code.compression) == (10, 1)


def test_rows_of_a_group_are_sent_together(monkeypatch):
    """Copies of a row say nothing about the labels of other groups, which are random."""
    draw = np.random.default_rng(0)
    groups = draw.permutation(np.repeat(np.arange(80), draw.integers(1, 12, 80)))
    x, y = draw.normal(size=(80, 120)).astype(np.float32)[groups], draw.integers(0, 2, (80, 1))[groups]

    def code_of(groups):
        source = SimpleNamespace(
            counts=lambda split: np.ones(len(x), int),
            groups=lambda split: groups,
            labels=lambda split: y,
            blocks=lambda split: iter([(x[:100], y[:100]), (x[100:], y[100:])]),
            feature_weights=None,
        )
        return folds.code_length(source, 2)

    assert code_of(None).compression > 1.5 and code_of(groups).compression < 1.1
    calls = []
    monkeypatch.setattr(folds, "prequential_code", lambda *arguments: calls.append(arguments))
    code_of(groups)
    blocks, ends, *_ = calls[0]
    ranks = np.concatenate([block[2] for block in blocks])
    portions = np.searchsorted(ends, ranks, side="right")
    assert len(np.unique(portions)) > 3 and all(np.ptp(portions[groups == name]) == 0 for name in range(80))
    assert all(np.ptp(ranks[groups == name]) == (groups == name).sum() - 1 for name in range(80))
