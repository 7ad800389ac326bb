"""Labels of every residue or value are recognised by their form, fitted per token, and predicted for all tokens."""

import csv
import json

import numpy as np
import pytest
from reservoir_pipelines import extract, fit, predict, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting.statistics import Statistic
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.preparation.prepare import open_source
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from reservoir import InputError
from tests.reservoir.models import save_with_tokenizer
from tests.tasks.samples import write_csv

SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "block01"}
OF = {"A": "H", "G": "C", "V": "E"}
"""The label of a letter; every third hangs on the letter before."""


def proteins(number=60, seed=0):
    draw = np.random.default_rng(seed)
    rows = ["".join(draw.choice(list("AGV"), draw.integers(4, 13))) for _ in range(number)]
    return [(row, "".join(OF[row[max(0, place - 1)]] for place in range(len(row)))) for row in rows]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("each")
    path = write_csv(folder / "ss.csv", proteins(), "sequence,label")
    features = extract(path, cache=folder / "cache", store="float32", compute="float32", **SMALL)
    return features, fit(features, out=folder / "readout", select="valid", alphas="1:1:1", columns="block01/all")


def test_readout_is_that_of_all_residues_of_the_training_rows(fitted):
    features, found = fitted
    flat = {}
    for split in ("train", "test"):
        part = features[split]
        real = np.arange(part.labels.shape[1]) < part.lengths[:, None]
        assert (part.labels[..., 0][~real] == -1).all()
        flat[split] = np.asarray(features.store[split]["block01/all"])[real], part.labels[..., 0][real]
    (x, y), (new, truth) = flat["train"], flat["test"]
    scale = StandardScaler().fit(x)
    ridge = Ridge(alpha=1.0).fit(scale.transform(x), np.where(y[:, None] == np.arange(3), 1.0, -1.0))
    right = (ridge.predict(scale.transform(new)).argmax(1) == truth).mean()
    assert found.best.test_score == pytest.approx(right, abs=1e-6) and right > 0.8
    assert found.evaluation.samples == len(truth)


def test_a_label_string_is_predicted_for_each_sequence(fitted, tmp_path, capsys):
    _, found = fitted
    new, path = proteins(9, seed=1), tmp_path / "new.csv"
    write_csv(path, [(f"p{row}", *pair) for row, pair in enumerate(new)], "id,sequence,label")
    answers = list(predict(found.saved, path))
    assert [answer.id for answer in answers] == [f"p{row}" for row in range(9)]
    assert ["".join(answer.truth) for answer in answers] == [label for _, label in new]
    evaluation = evaluate_predictions(answers)
    assert evaluation and evaluation.samples == sum(len(label) for _, label in new)
    assert evaluation.scores["accuracy"] > 0.8
    out = tmp_path / "found.csv"
    assert run(["predict", str(found.saved), str(path), "--out", str(out)]) == 0
    read = list(csv.DictReader(out.open()))
    assert [len(row["label"]) for row in read] == [len(label) for _, label in new]
    assert set("".join(row["label"] for row in read)) <= set("HCE")
    write_csv(path, [(sequence,) for sequence, _ in new], "sequence")
    bare = [answer.to_dict() for answer in predict(found.saved, path)]
    assert [row["label"] for row in bare] == [row["label"] for row in read]
    assert all(len(row["probabilities"]) == len(row["label"]) and "truth" not in row for row in bare)
    predict(found.saved, write_csv(path, [("AGVX",)], "sequence"))
    assert "1 of 4 letters (25.0%) are in no training row: X" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "npz"])
def test_lists_and_arrays_of_labels_are_read_alike(form, tmp_path):
    rows = proteins(30)
    numbers = [["HCE".index(one) for one in label] for _, label in rows]
    longest, path = max(map(len, numbers)), tmp_path / f"ss.{form}"
    if form == "jsonl":
        lines = [{"text": sequence, "label": label} for (sequence, _), label in zip(rows, numbers, strict=True)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        x = np.array([["AGV".index(one) for one in sequence.ljust(longest, "A")] for sequence, _ in rows])
        y = np.array([label + [9] * (longest - len(label)) for label in numbers])  # labels after the end are ignored
        np.savez(path, x=x, y=y, lengths=np.array([len(label) for label in numbers]))
    source = open_source(str(path))
    assert source.task.labels_each_token is True and source.task.classes == 3 and source.task.readout_tokens == longest
    found = {}
    for split in source.read(source.pieces()[0]).values():
        for y, length in zip(split.y[..., 0], split.lengths, strict=True):
            assert (y[length:] == -1).all()
            found[tuple(y[:length])] = True
    assert set(found) == set(map(tuple, numbers))


def test_targets_of_every_value_of_a_series(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 20, 1)).cumsum(axis=1)
    np.savez(tmp_path / "level.npz", x=x, y=np.roll(x[:, :, 0], 1, axis=1), lengths=draw.integers(12, 21, 60))
    features = extract(str(tmp_path / "level.npz"), cache=tmp_path / "cache", **SMALL)
    found = fit(features, out=tmp_path / "readout")
    assert found.best.metric == "R²" and (found.best.test_score or 0) > 0.5
    lengths = np.load(tmp_path / "level.npz")["lengths"]
    assert [len(one.label) for one in predict(found.saved, tmp_path / "level.npz")] == lengths.tolist()


def write_recordings(path, number=40, steps=60, **arrays):
    """Write recordings of two channels in which the frequency and the level tell the label of each step."""
    draw = np.random.default_rng(0)
    y = np.repeat(draw.integers(0, 3, (number, steps // 20)), 20, axis=1)
    phase = np.arange(steps) * np.array([0.2, 0.6, 1.2])[y] + draw.uniform(0, 6, (number, 1))
    x = np.stack([np.sin(phase), (1 + y) * np.cos(phase)], axis=2) + draw.normal(0, 0.3, (number, steps, 2))
    lengths = draw.integers(steps // 2, steps + 1, number)
    np.savez(path, x=x.astype(np.float32), y=y, lengths=lengths, groups=np.arange(number) // 2, **arrays)
    return path, lengths


def test_a_label_of_every_step_is_read_from_windows_beside_rolling_statistics(tmp_path):
    path, lengths = write_recordings(tmp_path / "watch.npz")
    features = extract(path, cache=tmp_path / "cache", store="float32")
    found = fit(features, out=tmp_path / "readout", columns="embed/around2+rolling statistics", alphas="1:1:1")
    flat, source = {}, open_source(str(path))
    for split, rows in source.read(source.pieces()[0]).items():
        part = features[split]
        real = np.arange(part.labels.shape[1]) < part.lengths[:, None]
        rolling = Statistic(name="rolling statistics", widths=(9, 27))(rows.x, rows.lengths)
        wide = np.concatenate([features.store[split]["embed/around2"], rolling], axis=2)
        flat[split] = wide[real], part.labels[..., 0][real]
    x, y = map(np.concatenate, zip(flat["train"], flat["valid"], strict=True))
    scale = StandardScaler().fit(x)
    ridge = Ridge(alpha=1.0).fit(scale.transform(x), np.where(y[:, None] == np.arange(3), 1.0, -1.0))
    new, truth = flat["test"]
    right = (ridge.predict(scale.transform(new)).argmax(1) == truth).mean()
    assert found.best.test_score == pytest.approx(right, abs=1e-6) and right > 0.9
    assert found.evaluation.samples == len(truth)
    # A recording has the same labels alone, cut before its padding, as among others.
    answers = list(predict(found.saved, path))
    assert [len(answer.label) for answer in answers] == lengths.tolist()
    for row in (0, 7):
        np.savez(tmp_path / "one.npz", x=np.load(path)["x"][[row], : lengths[row]], lengths=lengths[[row]])
        (alone,) = predict(found.saved, tmp_path / "one.npz")
        assert alone.label == answers[row].label
        np.testing.assert_allclose(alone.probabilities, answers[row].probabilities, atol=1e-4)


def test_rolling_statistics_are_saved_if_kernels_add_nothing_to_them(tmp_path):
    path, _ = write_recordings(tmp_path / "watch.npz")
    features = extract(path, cache=tmp_path / "cache", layers="embed", pool="all")  # kernels without windows
    found = fit(features, out=tmp_path / "readout")
    assert found.best.columns == ("rolling statistics",) and (found.best.test_score or 0) > 0.75
    evaluation = evaluate_predictions(list(predict(found.saved, path)))
    assert evaluation and evaluation.scores["accuracy"] > 0.75


@pytest.mark.parametrize("columns", ["rolling statistics", "raw+rolling statistics"])
def test_statistics_alone_are_not_called_a_reservoir(tmp_path, capsys, columns):
    path, _ = write_recordings(tmp_path / "watch.npz")
    features = extract(path, cache=tmp_path / "cache", layers="embed", pool="all")
    result = fit(features, out=tmp_path / "readout", columns=columns)
    assert result.baselines and result.against == () and "this reservoir" not in capsys.readouterr().err


def test_logistic_regression_is_left_out_if_a_single_recording_takes_too_long(tmp_path, monkeypatch, capsys):
    path, _ = write_recordings(tmp_path / "watch.npz", number=16, steps=400)
    features = extract(path, cache=tmp_path / "cache")
    # Enough for logistic regression of a few hundred steps, but a recording has more of them.
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.CHEAP", 1.3e9)
    monkeypatch.setattr("reservoir_pipelines.fitting.baselines.MIN_ROWS", 1)
    fit(features, out=tmp_path / "readout")
    assert "only ridge is fitted, because logistic regression takes too long" in capsys.readouterr().err


def test_the_mean_of_a_target_of_every_step_is_a_readout_of_its_own(tmp_path):
    path, lengths = write_recordings(tmp_path / "noise.npz")
    arrays = dict(np.load(path)) | {"y": np.random.default_rng(1).normal(5, 1, (40, 60))}
    np.savez(path, **arrays)
    found = fit(extract(path, cache=tmp_path / "cache"), out=tmp_path / "readout")
    (constant,) = [baseline for baseline in found.baselines if baseline.columns == ("the mean",)]
    assert constant.test_score == pytest.approx(0, abs=0.01)
    assert [len(answer.label) for answer in predict(found.saved, path)] == lengths.tolist()


def test_windows_of_the_raw_input_are_saved_if_they_are_clearly_better_and_predict_alike(tmp_path, capsys):
    path = write_csv(tmp_path / "ss.csv", proteins(90), "sequence,label")
    features = extract(path, cache=tmp_path / "cache", **SMALL)
    found = fit(features, out=tmp_path / "readout")
    assert found.best.columns == ("raw, windows of 9",) and (found.best.test_score or 0) > 0.95
    answers = list(predict(found.saved, write_csv(tmp_path / "new.csv", proteins(9, seed=1), "sequence,label")))
    assert ["".join(answer.label) for answer in answers] == [label for _, label in proteins(9, seed=1)]
    # The windows of a damaged readout are refused before they take memory.
    sound = read_checked(tmp_path / "readout" / "readout.json")
    for damage in (
        {"patch": 2**30},
        {"dilations": [2**40]},
        {"dilations": [1] * 2**16},
        {"pad": "valid"},
        {"stride": 0},
    ):
        (part,) = sound["parts"]
        part = part | {"windows": part["windows"] | damage}
        write_checked(tmp_path / "readout" / "readout.json", sound | {"parts": [part]})
        with pytest.raises(InputError, match="not readable"):
            predict(found.saved, path)


def test_residues_are_read_at_their_own_tokens_of_a_protein_model(tmp_path):
    """EsmTokenizer gives no offsets; the letters are between its first and its last token."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = save_with_tokenizer("esm", tmp_path / "esm")
    rows = [(one.translate(str.maketrans("AGV", "AGL")), label) for one, label in proteins(30)]
    path = write_csv(tmp_path / "ss.csv", rows, "sequence,label")
    named = {"backbone": str(folder), "compute": "float32", "store": "float32", "cache": tmp_path / "cache"}
    part = extract(path, **named).store["train"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts = task_texts(tmp_path / "ss.csv", "train")
    for row, values in zip(part.index[:4], part["block02/all"][:4], strict=True):
        with torch.no_grad():
            states = model(**tokenizer(texts[row], return_tensors="pt"), output_hidden_states=True).hidden_states[2][0]
        np.testing.assert_allclose(values[: len(texts[row])], states[1:-1], atol=1e-5)
        assert not values[len(texts[row]) :].any()


def task_texts(path, split, **asked):
    from reservoir.tasks.texts import texts_of

    source = open_source(str(path), **asked)
    part = source.read(source.pieces()[0])[split]
    return texts_of(part.x, part.lengths)


def test_labels_that_do_not_fit_their_tokens_are_refused(tmp_path, cache, refusal):
    rows = proteins(20)
    rows[3] = (rows[3][0], rows[3][1][1:])
    path = write_csv(tmp_path / "short.csv", rows, "sequence,label")
    size = len(rows[3][0])
    assert f"line 5: {size - 1} labels for {size} tokens" in refusal("extract", path)
    path = write_csv(tmp_path / "whole.csv", proteins(20), "sequence,label")
    assert "--pool: every token has its own label" in refusal("extract", path, "--pool", "mean")
    with pytest.raises(InputError, match="extract and fit"):
        train(path, steps=1, **{k: v for k, v in SMALL.items() if k != "layers"})


def test_a_text_that_is_too_long_for_its_labels_is_refused_before_the_first_batch(tmp_path, cache, refusal):
    folder = save_with_tokenizer("esm", tmp_path / "esm")
    rows = [(one.translate(str.maketrans("AGV", "AGL")), label) for one, label in proteins(60)]
    splits = ["train"] * 40 + ["valid"] * 10 + ["test"] * 10
    rows = [(*row, split) for row, split in zip(rows, splits, strict=True)]
    rows[-1] = ("AGL" * 200, "HCE" * 200, "test")
    path = write_csv(tmp_path / "long.csv", rows, "sequence,label,split")
    message = refusal("extract", path, "--backbone", folder)
    assert "the text 'AGLAGL" in message and "tokens with labels, and the model reads" in message
    assert not (cache / "features").exists()
    path = write_csv(tmp_path / "short.csv", rows[:-1], "sequence,label,split")
    assert extract(path, backbone=folder).rows["test"] == 9


def test_several_labels_of_a_token_are_nested_in_label_and_truth(tmp_path):
    symbols = np.random.default_rng(0).integers(0, 5, (60, 6))
    labels = np.stack([symbols % 2, symbols // 3], axis=-1)
    np.savez(tmp_path / "two.npz", x=symbols, y=labels)
    features = extract(tmp_path / "two.npz", cache=tmp_path / "cache", **SMALL)
    readout = fit(features, out=tmp_path / "readout").saved
    for answer, expected in zip(predict(readout, tmp_path / "two.npz"), labels.tolist(), strict=True):
        assert answer.truth == expected
        assert np.shape(answer.label) == (6, 2)
