"""`twin` compares a trained model with the same model untrained and with the raw input, on the same test rows."""

import json
from pathlib import Path

import numpy as np
import pytest
from reservoir_cache import Entry
from reservoir_pipelines import extract, fit, twin
from reservoir_pipelines.plots import draw_twin, new_figure

from reservoir.readouts.paired import mcnemar, paired_interval
from tests.pipelines.test_native import write_texts
from tests.pipelines.test_predictions import columns_of
from tests.reservoir.models import save_with_tokenizer

LAYERS = {"layers": "embed,block01,final", "pool": "mean,last"}
QUICK = {"select": "cv3", "alphas": "1e-1:1e2:3"}


@pytest.fixture(scope="module")
def digits(one_cache, tiny_gpt2):
    """Return the result of a twin of digits, and the keywords of its call."""
    call = {"backbone": str(tiny_gpt2), "limit": 200, "cache": one_cache, **LAYERS, **QUICK}
    return twin("digits", **call), call


def test_differences_are_those_of_the_predictions_of_two_fits(digits):
    result, _ = digits
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


def test_the_untrained_model_is_the_same_one_with_random_weights(digits):
    result, call = digits
    options = {name: call[name] for name in ("backbone", "limit", "cache", "layers", "pool")}
    assert extract("digits", **options).entry == result.trained
    assert extract("digits", init="random", **options).entry == result.untrained
    specs = [extract("digits", **options, init=init).store.entry.spec for init in (None, "random")]
    assert specs[0].init.kind == "pretrained" and specs[1].init.kind == "random"
    assert specs[0].input == specs[1].input and specs[0].data == specs[1].data


def test_every_column_is_fitted_to_all_rows_and_a_layer_has_its_best_by_validation(digits):
    result, _ = digits
    table = (result.saved.parent / "trained" / "results.csv").read_text()
    for layer in ("embed", "block01", "final"):
        assert all(f"\n{layer}/{pooling},ridge" in table for pooling in ("last", "mean"))
    again = fit(result.trained, **QUICK, columns="block01/mean,block01/last,block01/last+block01/mean")
    (of_layer,) = (contrast for contrast in result.layers if contrast.layer == "block01")
    assert of_layer.trained.name == again.best.name and of_layer.trained.alpha == again.best.alpha


def test_a_second_call_returns_the_saved_result_unless_an_option_or_the_file_differs(digits, monkeypatch):
    result, call = digits
    assert not result.reused
    with monkeypatch.context() as patch:
        patch.setattr("reservoir_pipelines.untrained.fit_and_score", None)  # nothing is fitted again
        again = twin("digits", **call)
    assert again.reused and {**again.to_dict(), "reused": False} == result.to_dict()
    other = twin("digits", **call | {"alphas": "1:1:1"})
    assert not other.reused and other.saved != result.saved
    saved = result.saved.read_text()
    result.saved.write_text(saved.replace('"metric"', '"metrik"', 1))
    assert not twin("digits", **call).reused


def test_only_the_columns_of_the_call_are_compared_whatever_else_the_entries_have(digits):
    result, call = digits
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


@pytest.mark.parametrize("model", [("--init", "random"), ("--backbone", "kernels")])
def test_a_model_without_trained_weights_is_refused(model, cache, refusal, narrow_mini):
    assert "untrained" in refusal("twin", "digits", "--limit", "60", *model)
