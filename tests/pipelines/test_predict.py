"""`predict`: the files it reads and writes, longer sequences, sets and intervals, and input that it refuses."""

import csv
import errno
import gc
import importlib
import json
import math
import re
from dataclasses import replace
from unittest.mock import Mock

import h5py
import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines import ReservoirClassifier, explain, extract, fit, predict, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.data.table import read_table
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.prediction import outputs
from reservoir_pipelines.prediction.load import open_readout
from reservoir_pipelines.prediction.outputs import evaluate_predictions, write_new_predictions
from reservoir_pipelines.prediction.prediction import Prediction
from sklearn import metrics

from reservoir.errors import InputError
from reservoir.plan.precision import BATCH_TOKENS

predictions_module = importlib.import_module("reservoir_pipelines.prediction.predictions")
SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "embed"}
NAMES = ["v0", "v1", "v2", "v3"]


def rows(number=80, seed=0):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, number)
    return draw.normal(size=(number, 4)).round(3) + y[:, None], np.array(["low", "middle", "high"])[y]


def text(x, y=None, names=NAMES, between=",", label="level", ids=True):
    header = [*(["id"] if ids else []), *names, *([] if y is None else [label])]
    lines = [
        [*([f"r{n}"] if ids else []), *(str(value) for value in row), *([] if y is None else [y[n]])]
        for n, row in enumerate(x)
    ]
    return "\n".join(between.join(line) for line in [header, *lines]) + "\n"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict-files")
    x, y = rows()
    (folder / "t.csv").write_text(text(x, y))
    features = extract(str(folder / "t.csv"), label="level", cache=folder / "cache", pool="mean", **SMALL)
    return fit(features, out=folder / "readout").saved


def write(path, x, y):
    table = pd.DataFrame(x, columns=NAMES).assign(**({} if y is None else {"level": y}))
    if path.suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        table.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, x=x[:, :, None], **({} if y is None else {"y": y}))
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["x"] = x[:, :, None]
            if y is not None:
                file["y"] = y.astype("S8")
    else:
        path.write_text(text(x, y, between="\t" if path.suffix == ".tsv" else ","))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".npz", ".h5"])
def test_labels_in_any_file_are_evaluated_and_none_are_needed(fitted, tmp_path, suffix):
    x, y = rows(40, seed=1)
    found = list(predict(fitted, write(tmp_path / f"new{suffix}", x, y)))
    labels = [one.label for one in found]
    expected = metrics.balanced_accuracy_score(y, labels)
    assert evaluate_predictions(found).scores["balanced_accuracy"] == pytest.approx(expected) and expected > 0.5
    plain = list(predict(fitted, write(tmp_path / f"plain{suffix}", x, None)))
    assert [one.label for one in plain] == labels and evaluate_predictions(plain) is None


def test_predictions_equal_those_of_the_fit_almost_without_a_penalty_if_float32_is_stored(tmp_path):
    x, y = rows(240)
    (tmp_path / "t.csv").write_text(text(x, y))
    settings = {"label": "level", "cache": tmp_path / "cache", "pool": "mean,last", "store": "float32", **SMALL}
    features = extract(str(tmp_path / "t.csv"), **settings)
    columns = "embed/mean+embed/last"
    result = fit(features, columns=columns, alphas="1e-6:1e-6:1", select="valid", out=tmp_path / "readout")
    with result.predictions.open(newline="") as file:
        of_fit = {line["id"]: line for line in csv.DictReader(file) if line["split"] == "test"}
    of_predict = {one.id: one for one in predict(result.saved, tmp_path / "t.csv") if one.id in of_fit}
    assert {name: one.label for name, one in of_predict.items()} == {name: of_fit[name]["best"] for name in of_fit}
    likely = [max(of_predict[name].probabilities) for name in of_fit]
    np.testing.assert_allclose([float(line["best_probability"]) for line in of_fit.values()], likely, atol=1e-4)


def test_columns_are_matched_by_name(fitted, tmp_path, refusal):
    x, _ = rows(10, seed=1)
    (tmp_path / "a.csv").write_text(text(x))
    (tmp_path / "b.csv").write_text(text(np.c_[x[:, ::-1], x[:, 0]], names=[*NAMES[::-1], "other"]))
    of_a, of_b = ([one.label for one in predict(fitted, tmp_path / name)] for name in ("a.csv", "b.csv"))
    assert of_a == of_b
    (tmp_path / "c.csv").write_text(text(x, names=["v0", "V1", "v2", "v3"]))
    message = refusal("predict", fitted, tmp_path / "c.csv")
    assert "no column 'v1'" in message and message.endswith("did you mean 'V1'?")


@pytest.mark.parametrize("values", [2, 3, 5])
def test_arrays_have_a_value_for_each_column_of_the_fit(fitted, tmp_path, refusal, values):
    x, _ = rows(10, seed=1)
    np.savez(tmp_path / "same.npz", x=x)
    (tmp_path / "same.csv").write_text(text(x))
    of_array, of_table = ([one.label for one in predict(fitted, tmp_path / f"same.{kind}")] for kind in ("npz", "csv"))
    assert of_array == of_table
    np.savez(tmp_path / "other.npz", x=np.c_[x, x][:, :values])
    for command in ("predict", "explain"):
        message = refusal(command, fitted, tmp_path / "other.npz")
        assert f"{values} values per row, but the readout was fitted on 4: v0, v1, v2, v3" in message


def test_arrays_may_lack_the_last_steps_if_rows_of_the_fit_did(tmp_path, refusal):
    x, y = rows()
    cells = x.astype(str)
    cells[::3, 3] = ""
    (tmp_path / "t.csv").write_text(text(cells, y))
    features = extract(str(tmp_path / "t.csv"), label="level", cache=tmp_path / "cache", pool="mean", **SMALL)
    readout = fit(features, out=tmp_path / "readout").saved
    for values in (3, 5):
        np.savez(tmp_path / f"{values}.npz", x=np.c_[x, x][:, :values], lengths=np.full(len(x), values))
    assert len([*predict(readout, tmp_path / "3.npz")]) == len(x)
    assert "fitted on at most 4: v0" in refusal("predict", readout, tmp_path / "5.npz")


def test_shorter_rows_get_a_note_if_the_readout_reads_all_values_side_by_side(tmp_path, capsys):
    x, y = np.random.default_rng(0).normal(size=(60, 6, 2)), np.arange(60) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y)
    features = extract(str(tmp_path / "d.npz"), cache=tmp_path / "cache", pool="mean", **SMALL)
    np.savez(tmp_path / "new.npz", x=x[:3, :4])
    note = "3 rows are shorter than the 6 tokens of the fit; raw read zeros in place of the missing tokens"
    for columns in ("raw", "embed/mean"):
        readout = fit(features, columns=columns, alphas="1:1:1", out=tmp_path / columns[:3]).saved
        assert len([*predict(readout, tmp_path / "new.npz")]) == 3
        assert (note in capsys.readouterr().err) == (columns == "raw")


@pytest.fixture
def measurements(tmp_path):
    """Return a table with columns in different units, whose first 20 rows are training rows, and its file."""
    x = np.random.default_rng(0).normal(size=(60, 3)).round(3) * [1, 1, 40] + [50, 0, 2000]
    table = pd.DataFrame(x, columns=["age", "sex", "glucose"])
    table["target"], table["split"] = x @ [1, 0, 0.1], np.repeat(["train", "valid", "test"], 20)
    table.to_csv(tmp_path / "t.csv", index=False)
    return table, tmp_path / "t.csv"


def test_explain_replaces_a_hidden_value_by_the_mean_of_its_column_over_training_rows(measurements, tmp_path, call):
    table, path = measurements
    readout = fit(
        extract(str(path), cache=tmp_path / "cache", pool="mean", **SMALL), columns="raw", alphas="1:1:1"
    ).saved
    x = table.iloc[:, :3]
    # The first row, and its copies in which the mean of a column replaces its value.
    copies = np.stack([x.iloc[0]] * 4)
    copies[[1, 2, 3], [0, 1, 2]] = x[:20].mean()
    new, plot = tmp_path / "new.csv", tmp_path / "e.png"
    pd.DataFrame(copies, columns=x.columns).to_csv(new, index=False)
    drops = explain(readout, new, first=1, out=plot).rows[0].occluded
    whole, *without_column = [row.label for row in predict(readout, new)]
    assert drops == pytest.approx(whole - np.array(without_column), abs=1e-3)
    code, out, error = call("explain", readout, new, "--first", 1, "--out", plot)
    column = int(np.argmax(drops))
    assert code == 0 and f"at position {column} ({x.columns[column]})" in out and "means of the columns" not in error
    # Readouts of earlier versions have no means.
    (tmp_path / "old").mkdir()
    replace(Bundle.load(readout), position_means=None).write(tmp_path / "old")
    assert "does not hold the means of the columns" in call("explain", tmp_path / "old", new, "--out", plot)[2]


def test_fit_and_train_keep_the_means_of_columns_without_their_gaps(measurements, tmp_path):
    table, path = measurements
    table.iloc[:5, 0], table.iloc[3:9, 2] = np.nan, np.nan
    table.to_csv(path, index=False)
    options = {"missing": "mask", "cache": tmp_path / "cache"}
    readout = fit(extract(str(path), pool="mean", **options, **SMALL), columns="raw", alphas="1:1:1").saved
    model = {name: SMALL[name] for name in ("backbone", "init")}
    train(str(path), steps=1, run=tmp_path / "run", **options, **model)
    for saved in (readout, tmp_path / "run"):
        means = open_readout(saved).position_means
        assert means[:, 0] == pytest.approx(table.iloc[:20, :3].mean().to_numpy())
        assert means[:, 1] == pytest.approx([0.25, 0, 0.3])  # the share of missing values


def test_messages_of_predict_name_no_flags_of_extract(fitted, tmp_path, refusal):
    x, _ = rows(4, seed=1)
    for first, remedy in ((["", "", "", ""], "column 'v0'; fix the file"), ("abcd", "'v0'; write numbers there")):
        (tmp_path / "new.csv").write_text(text(np.c_[list(first), x[:, 1:]]))
        assert refusal("predict", fitted, tmp_path / "new.csv").endswith(remedy)
    (tmp_path / "new.fasta").write_text(">r1\nACGT\n")
    wrong = "new.fasta: texts, but the model reads numbers (rows, tokens, 1), as made from 't.csv'; give data of"
    assert wrong in refusal("predict", fitted, tmp_path / "new.fasta")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rows_that_cannot_be_read_get_an_empty_label_and_the_reason(fitted, tmp_path, call, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    x, y = rows(6, seed=2)
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(text(x, y))
    cells = np.array(x, object)
    cells[3, 1], cells[5, 0] = "ERR", ""
    bad.write_text(text(cells, y))
    expected, found = (tmp_path / f"{name}{suffix}" for name in ("expected", "found"))
    assert call("predict", fitted, good, "--out", expected, "--coverage", 0.9)[0] == 0
    code, out, error = call("predict", fitted, bad, "--out", found, "--coverage", 0.9)
    assert code == 0 and "rows  6" in out
    assert "bad.csv: 2 of 6 rows cannot be read: line 5: 'ERR' is not a number in column 'v1'; line 7: an emp" in error
    ours, theirs = read_table(found, list).frame, read_table(expected, list).frame
    assert ours["id"].equals(theirs["id"]) and np.flatnonzero(ours["label"].isna()).tolist() == [3, 5]
    readable = [0, 1, 2, 4]
    assert ours.loc[readable].drop(columns="problem").equals(theirs.loc[readable])
    assert ours["problem"][3] == "line 5: 'ERR' is not a number in column 'v1'" and ours["problem"][:3].isna().all()
    assert [one.row for one in explain(fitted, bad, first=9, out=tmp_path / "e.png").rows] == readable


def test_rows_with_a_symbol_that_the_fit_did_not_have_are_rows_that_cannot_be_read(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 5, (60, len(NAMES)))
    path, new = tmp_path / "t.csv", tmp_path / "new.csv"
    path.write_text(text(x, np.where(x[:, 0] > 1, "high", "low"), label="class"))
    features = extract(path, symbols=True, layers="embed", pool="mean", cache=tmp_path / "c")
    readout = fit(features, alphas="1:1:1", select="valid", out=tmp_path / "r").saved.parent
    cells = x[:6].copy()
    expected = [prediction.label for prediction in read_predictions(readout, new, cells)]
    cells[2, 3], cells[3, 1] = 17, -1
    predictions = read_predictions(readout, new, cells)
    assert [prediction.label for prediction in predictions] == [*expected[:2], None, None, *expected[4:]]
    assert predictions[2].problem == "row 2: token 3: 17 is not a symbol from 0 to 4"
    assert [one.row for one in explain(readout, new, first=3, out=tmp_path / "e.png").rows] == [0, 1, 4]
    # If that is true of all rows, the file has another kind of data.
    with pytest.raises(InputError, match=r"row 0, token 0: \d is not a symbol from 0 to 4; replace it"):
        read_predictions(readout, new, x[:6] + 5)


def read_predictions(readout, path, cells):
    path.write_text(text(cells))
    return [*predict(readout, path)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_predictions_are_written_with_ids_and_a_column_per_class(fitted, tmp_path, call, suffix):
    x, y = rows(12, seed=2)
    (tmp_path / "new.csv").write_text(text(x, y))
    out = tmp_path / f"found{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    flags = fitted, tmp_path / "new.csv", "--json"
    done, whole = (json.loads(call("predict", *flags, *more)[1]) for more in (["--out", out], []))
    assert done == {"out": str(out), "rows": 12, "evaluation": whole["evaluation"]}
    columns = whole["predictions"]
    assert list(columns) == ["id", "label", "p_high", "p_low", "p_middle", "truth"]
    assert columns["id"] == [f"r{n}" for n in range(12)] and columns["truth"] == y.tolist()
    if suffix == ".csv":
        lines = list(csv.DictReader(out.read_text().splitlines()))
        assert {n: [line[n] for line in lines] for n in columns} == {n: [*map(str, v)] for n, v in columns.items()}
    elif suffix == ".jsonl":
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert [line["probabilities"]["low"] for line in lines] == columns["p_low"]
        assert [line["id"] for line in lines] == columns["id"]
    else:
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(out).to_pydict() == columns


@pytest.mark.parametrize(
    ("out", "message"),
    [("found.txt", "written as .csv, .jsonl, .parquet"), ("gone/found.csv", "cannot be written; name a file")],
)
def test_an_unwritable_file_is_refused_before_anything_is_computed(tmp_path, refusal, out, message):
    file = tmp_path / "no-data.npz"
    file.touch()
    assert message in refusal("predict", tmp_path, file, "--out", tmp_path / out)


@pytest.mark.parametrize(
    "command", ["report FIT", "export FIT", "explain FIT NEW", "attention digits", "backbone mini"]
)
def test_a_folder_is_refused_as_a_file_before_anything_is_read(tmp_path, refusal, command):
    paths = {"FIT": tmp_path, "NEW": tmp_path / "no-data.npz"}
    paths["NEW"].touch()
    arguments = [paths.get(word, word) for word in command.split()]
    for out in (".", "/", tmp_path):
        assert f"--out {out}: a folder; name a file" in refusal(*arguments, "--out", out)


@pytest.mark.parametrize(
    ("command", "suffixes"),
    [
        ("report FIT", ".html or .htm"),
        ("report FIT --markdown", ".md"),
        ("export FIT", ".pt2"),
        ("explain FIT NEW", ".png"),
        ("attention digits", ".png"),
        ("backbone mini", ".png"),
    ],
)
def test_a_file_of_another_type_is_never_replaced(tmp_path, refusal, command, suffixes):
    readout = tmp_path / "readout.json"
    readout.write_text("{}")
    arguments = [{"FIT": tmp_path, "NEW": readout}.get(word, word) for word in command.split()]
    assert f"readout.json: not a {suffixes} file" in refusal(*arguments, "--out", readout)
    assert readout.read_text() == "{}"


def test_a_file_that_the_command_reads_is_never_replaced(fitted, tmp_path, refusal):
    values, labels = rows(6, seed=2)
    table, link, picture = tmp_path / "new.csv", tmp_path / "link.csv", tmp_path / "rows/a.png"
    table.write_text(text(values, labels))
    link.symlink_to(table)
    picture.parent.mkdir()
    picture.touch()
    (tmp_path / "maps.h5").touch()
    for arguments, out in (
        (("predict", fitted, table), table),
        (("predict", fitted, table), link),
        (("predict", fitted, picture.parent, "--labels", table), table),
        (("explain", fitted, picture), picture),
        (("explain", fitted, picture.parent), picture),
        (("attention", picture.parent), picture),
        (("attention", tmp_path / "maps.h5"), tmp_path / "maps.png"),
    ):
        assert "the command reads this file, and would replace it" in refusal(*arguments, "--out", out)
    assert table.read_text() == text(values, labels)


def test_the_tables_of_a_fit_are_not_replaced_by_predictions(fitted, tmp_path, refusal):
    (new := tmp_path / "new.csv").write_text(text(*rows(6, seed=2)))
    for name in ("predictions.csv", "results.csv"):
        for readout in (fitted.parent, fitted):
            message = refusal("predict", readout, new, "--out", fitted.parent / name)
            assert "a table of the readout itself" in message


def test_explain_makes_the_folder_of_its_plot_and_refuses_a_path_that_cannot_be_written(
    fitted, tmp_path, call, refusal
):
    values, _ = rows(2, seed=2)
    new, plot = tmp_path / "new.csv", tmp_path / "folder/e.png"
    new.write_text(text(values))
    assert call("explain", fitted, new, "--out", plot)[0] == 0 and plot.is_file()
    assert f"{new}/e.png: cannot be written (" in refusal("explain", fitted, new, "--out", new / "e.png")


def test_a_full_disk_is_not_taken_for_labels_of_several_types(fitted, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "write_table", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    predictions = predict(fitted, write(tmp_path / "t.csv", rows(5)[0], None))
    with pytest.raises(OSError, match="No space left"):
        write_new_predictions(tmp_path / "found.parquet", predictions)
    assert {file.name for file in tmp_path.iterdir()} == {"t.csv"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_names_of_files_that_are_not_utf_8_are_written_as_fit_writes_them(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    write_new_predictions(
        tmp_path / f"found{suffix}", [Prediction(id="caf\udce9.png", label="a", probabilities=[], set=["a"])]
    )
    assert read_table(tmp_path / f"found{suffix}", list).frame["id"].tolist() == [r"caf\udce9.png"]


@pytest.mark.parametrize(("name", "message"), [("gone", "no such file"), ("t.csv", "t.csv: neither a readout nor")])
def test_what_is_no_readout_is_named_as_it_was_given(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(text(*rows(5)))
    with pytest.raises(InputError, match=f"^{name}: .*; name a folder") as refused:
        predict(name, "t.csv")
    assert message in str(refused.value)


def test_predicting_the_file_of_the_fit_is_warned_about(tmp_path, capsys):
    x, y = rows()
    file = write(tmp_path / "t.npz", x, y)
    fitted = fit(extract(str(file), cache=tmp_path / "cache", pool="mean", **SMALL), out=tmp_path / "readout").saved
    write(tmp_path / "new.npz", x[:5], y[:5])
    for name, message in (("t.npz", "t.npz: the readout was fitted on rows of this file"), ("new.npz", "")):
        capsys.readouterr()
        assert run(["predict", str(fitted), str(tmp_path / name), "--json"]) == 0
        err = capsys.readouterr().err
        assert message in err and ("fitted on" in err) == bool(message)


def test_predicting_a_folder_of_the_fit_is_warned_about_unless_it_has_the_test_split(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for split, name, number in (("train", "a", 9), ("train", "b", 9), ("test", "a", 3), ("test", "b", 3)):
        folder = tmp_path / "runs" / split / name
        folder.mkdir(parents=True)
        for run_number in range(number):
            steps = draw.normal(size=(5, 2)) + 3 * (name == "b")
            pd.DataFrame(steps, columns=["u", "v"]).to_csv(folder / f"{run_number}.csv", index=False)
    extracted = extract(str(tmp_path / "runs"), cache=tmp_path / "cache", pool="mean", **SMALL)
    fitted = fit(extracted, alphas="1:1:1", out=tmp_path / "readout").saved
    for split, is_warned in (("train", True), ("test", False)):
        capsys.readouterr()
        assert run(["predict", str(fitted), str(tmp_path / "runs" / split)]) == 0
        err = capsys.readouterr().err
        assert "accuracy" in err
        assert (f"{split}: the readout was fitted on rows of this folder" in err) == is_warned


@pytest.mark.parametrize("name", ["", "Waves_TRAIN.ts", "Waves_TEST.ts"])
def test_predicting_the_training_file_of_a_published_pair_is_warned_about(tmp_path, capsys, name):
    x, y = rows()
    folder = tmp_path / "Waves"
    folder.mkdir()
    for part, chosen in (("TRAIN", slice(0, 60)), ("TEST", slice(60, 80)), ("NEW", slice(60, 80))):
        lines = [f"{','.join(map(str, row))}:{label}\n" for row, label in zip(x[chosen], y[chosen], strict=True)]
        (folder / f"Waves_{part}.ts").write_text("@classLabel true low middle high\n@data\n" + "".join(lines))
    extracted = extract(str(folder / name), cache=tmp_path / "cache", pool="mean", **SMALL)
    fitted = fit(extracted, alphas="1:1:1", out=tmp_path / "readout").saved
    for part, is_warned in (("TRAIN", True), ("TEST", False), ("NEW", False)):
        capsys.readouterr()
        assert run(["predict", str(fitted), str(folder / f"Waves_{part}.ts"), "--json"]) == 0
        message = f"Waves_{part}.ts: the readout was fitted on rows of this file"
        assert (message in capsys.readouterr().err) == is_warned


def test_a_file_that_is_not_found_is_named_with_the_extraction_that_is_used(tmp_path, capsys, monkeypatch):
    x, y = rows()
    (tmp_path / "a b").mkdir()
    file = write(tmp_path / "a b" / "t.npz", x, y)
    extract(str(file), cache=tmp_path / "cache", pool="mean", **SMALL)
    monkeypatch.chdir(tmp_path)
    assert run(["fit", "t.npz", "--cache", "cache", "--json"]) == 0
    assert f"t.npz not found; using the last extraction of {file}" in capsys.readouterr().err
    assert run(["fit", "a b/t.npz", "--cache", "cache", "--json"]) == 0
    assert "no such file" not in capsys.readouterr().err
    assert run(["fit", "a b/u.npz", "--cache", "cache"]) == 2
    assert "a b/u.npz: no such file; give the path of your data" in capsys.readouterr().err
    write(tmp_path / "a b" / "u.npz", x, y)
    assert run(["fit", "a b/u.npz", "--cache", "cache"]) == 2
    assert "run reservoir extract 'a b/u.npz' first" in capsys.readouterr().err


def test_a_readout_without_probabilities_gives_none(tmp_path, capsys):
    x, y = rows()
    two = np.where(y == "low", "low", "high")
    features = extract(str(write(tmp_path / "t.npz", x, two)), cache=tmp_path / "cache", pool="mean", **SMALL)
    done = fit(features, readout="sklearn.svm.LinearSVC:C=0.1", columns="embed/mean", out=tmp_path / "readout")
    assert "auc" not in done.evaluation.scores
    write(tmp_path / "new.npz", x[:5], two[:5])
    assert run(["predict", str(done.saved), str(tmp_path / "new.npz"), "--out", str(tmp_path / "p.csv")]) == 0
    assert "auc" not in capsys.readouterr().err
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "id,label,truth"
    assert run(["predict", str(done.saved), str(tmp_path / "new.npz")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["probabilities"] == {}


def test_predict_computes_a_block_only_when_it_is_reached(fitted, tmp_path, monkeypatch):
    x, y = rows(600, seed=3)
    computed = []
    forward = predictions_module.forward
    monkeypatch.setattr(predictions_module, "forward", lambda *args: computed.append(len(args[2])) or forward(*args))
    found = predict(fitted, write(tmp_path / "new.npz", x, y))
    assert computed == []
    next(found)
    assert computed == [256]
    assert len(list(found)) == 599


def test_batches_have_the_rows_of_an_extraction(fitted, tmp_path, monkeypatch):
    batch_rows, forward = [], predictions_module.forward
    monkeypatch.setattr(predictions_module, "forward", lambda *args: batch_rows.append(args[5]) or forward(*args))
    x, y = rows(20, seed=3)
    list(predict(fitted, write(tmp_path / "new.npz", x, y)))
    assert batch_rows == [BATCH_TOKENS["cpu"] // 4]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_file_is_written_block_by_block_while_its_rows_are_computed(fitted, tmp_path, monkeypatch, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    x, y = rows(600, seed=3)
    lines = text(x, y).splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ","  # no label
    lines[2] = lines[500] = "bad,ERR,0,0,0,low"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    whole, parts = (tmp_path / f"{name}{suffix}" for name in ("whole", "parts"))
    write_new_predictions(whole, predict(fitted, tmp_path / "new.csv"))
    monkeypatch.setattr(outputs, "WRITTEN_ROWS", 1)
    write_new_predictions(parts, predict(fitted, tmp_path / "new.csv"))
    if suffix == ".parquet":
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(whole).equals(pyarrow.parquet.read_table(parts))
    else:
        assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize("more", [(), ("--json",), ("--out", "out.csv")])
def test_predictions_do_not_stay_in_memory(fitted, tmp_path, monkeypatch, call, more):
    x, y = rows(600, seed=3)
    alive, add = [], outputs.PredictionTally.add

    def count(tally, one):
        add(tally, one)
        if tally.rows == 600:
            alive.append(sum(type(value) is Prediction for value in gc.get_objects()))

    monkeypatch.setattr(outputs.PredictionTally, "add", count)
    monkeypatch.chdir(tmp_path)
    assert call("predict", fitted, write(tmp_path / "new.npz", x, y), *more)[0] == 0
    assert len(alive) == 1 and alive[0] < 10


def test_predict_shows_its_progress_in_rows(fitted, tmp_path, monkeypatch, call):
    x, y = rows(200, seed=3)
    monkeypatch.setattr("reservoir_pipelines.output.SECONDS", 0.0)
    error = call("predict", fitted, write(tmp_path / "new.csv", x, y), "--out", tmp_path / "out.csv")[2]
    assert re.search(r"predict: 64 of 200 \(32%\), \S+ rows/s, \d+ s left", error)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 3))


@pytest.fixture(scope="module")
def readout(tmp_path_factory, tiny_gpt2):
    folder = tmp_path_factory.mktemp("predict")
    x = RNG.normal(size=(60, 5, 3))
    np.savez(folder / "own.npz", x=x, y=(x.mean(axis=(1, 2)) > 0).astype(int))
    features = extract(str(folder / "own.npz"), backbone=str(tiny_gpt2), cache=folder / "cache", layers="block01,final")
    return fit(features, alphas="1e0:1e0:1", out=folder / "readout").saved


def answers(readout, tmp_path, **arrays):
    np.savez(tmp_path / "new.npz", **arrays)
    return list(predict(readout, tmp_path / "new.npz", device="cpu"))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([2, 3, 4]), r"x has the shape \(2, 5, 3\) and lengths \(3,\)"),
        (np.array(2), r"and lengths \(\)"),
        (np.array([[2, 3], [2, 3]]), r"and lengths \(2, 2\)"),
        (np.array([2.5, 3]), "lengths hold float64"),
        (np.array([np.nan, 3]), "lengths hold float64"),
        (np.array(["2", "3"]), "lengths hold <U1"),
        (np.array([2, 6]), "length 6 in row 1 is not between 1 and 5"),
        (np.array([2**32 + 1, 3]), "length 4294967297 in row 0"),
    ],
)
def test_lengths_that_are_not_one_whole_number_per_row_are_refused(readout, tmp_path, lengths, message):
    with pytest.raises(InputError, match=message):
        answers(readout, tmp_path, x=X, lengths=lengths)
    assert len(answers(readout, tmp_path, x=X, lengths=np.array([2, 5]))) == 2


def test_a_single_number_and_values_that_the_model_cannot_hold_are_refused(readout, tmp_path):
    with pytest.raises(InputError, match=r"x has the shape \(\)"):
        answers(readout, tmp_path, x=np.array(1.0))
    (tmp_path / "new.json").write_text("[]")
    with pytest.raises(InputError, match=r"files of type '\.json' are not read"):
        predict(readout, tmp_path / "new.json", device="cpu")
    x = RNG.normal(size=(300, 5, 3))
    x[290, 2] = 1e38
    with pytest.raises(InputError, match=r"new\.npz: the model overflows in row 290"):
        answers(readout, tmp_path, x=x)
    assert len(answers(readout, tmp_path, x=np.delete(x, 290, axis=0))) == 299
    x[290, 2] = np.nan
    with pytest.raises(InputError, match=r"or end it before this token with lengths$"):
        answers(readout, tmp_path, x=x)


def waves(lengths, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(len(lengths)) % 2
    shown = zip(lengths, y, rng.uniform(0, 6, len(lengths)), strict=True)
    return [np.sin(np.arange(n) * (1 + kind) / 4 + phase) + rng.normal(0, 0.1, n) for n, kind, phase in shown], y


def write_padded(path, three_lengths, y, **arrays):
    x = np.zeros((len(three_lengths), max(map(len, three_lengths)), 1), np.float32)
    for number, row in enumerate(three_lengths):
        x[number, : len(row), 0] = row
    np.savez(path, x=x, y=y, lengths=np.array(list(map(len, three_lengths))), **arrays)
    return path


@pytest.fixture(scope="module")
def three_lengths():
    return waves(np.random.default_rng(1).integers(20, 41, 60))


def test_a_classifier_labels_sequences_of_any_length_by_kernels(cache, three_lengths):
    model = ReservoirClassifier().fit(*three_lengths)
    new, y = waves([90, 200, 120, 1000, 1100], seed=2)
    np.testing.assert_array_equal(model.predict(new), y)


def test_a_classifier_labels_longer_sequences(cache, three_lengths):
    model = ReservoirClassifier(backbone="mini", compute="float32").fit(*three_lengths)
    new, y = waves([90, 200, 120, 1000], seed=2)
    np.testing.assert_array_equal(model.predict(new), y)
    with pytest.raises(InputError, match=r"row 1: .*1024 positions"):
        model.predict([new[0], np.zeros(1025)])


@pytest.mark.parametrize("columns", ["all", "raw", "block01/segments8", "embed/all"])
def test_predict_accepts_longer_series(cache, three_lengths, tmp_path, columns, capsys):
    data = str(write_padded(tmp_path / "d.npz", *three_lengths))
    choice = {"layers": "embed", "pool": "all"} if columns == "embed/all" else {}
    found = fit(extract(data, backbone="mini", compute="float32", **choice), columns=columns)
    new, y = waves([90, 200, 35], seed=2)
    labels = [row.label for row in predict(found.saved, write_padded(tmp_path / "new.npz", new, y))]
    if columns in ("raw", "embed/all"):
        message = f"2 rows are longer than any row of the fit; {columns} read the first 40 tokens"
        assert message in capsys.readouterr().err and len(labels) == 3
    else:
        assert labels == y.tolist()
    if columns != "raw":
        too_long = write_padded(tmp_path / "long.npz", [new[0], np.zeros(1025), *new[1:]], np.array([y[0], 0, *y[1:]]))
        first, second, *others = predict(found.saved, too_long)
        assert [row.label for row in (first, *others)] == labels
        assert [row.truth for row in (first, *others)] == y.tolist()
        assert second.label is None and second.problem == "row 1: 1,025 tokens, but the model reads at most 1,024"
        with pytest.raises(InputError, match=r"only\.npz: .*1,025"):
            predict(found.saved, write_padded(tmp_path / "only.npz", [np.zeros(1025)], np.zeros(1, int)))
        with pytest.raises(InputError, match=r"row 0: 90 tokens"):
            explain(found.saved, tmp_path / "new.npz")


def test_a_longer_test_row_changes_no_feature_of_training_rows(cache, three_lengths, tmp_path):
    x, y = three_lengths
    split = np.repeat(["train", "valid", "test"], 20)
    longer = [*x[:-1], np.concatenate([x[-1]] * 20)]
    stores = [
        extract(str(write_padded(tmp_path / name, data, y, split=split)), compute="float32", layers="embed").store
        for name, data in (("d.npz", x), ("e.npz", longer))
    ]
    dilations = [store.entry.spec.input.dilations for store in stores]
    assert dilations[0] == dilations[1] == (1, 2, 4)
    for column in stores[0]["train"].columns:
        one, other = (store["train"][column] for store in stores)
        np.testing.assert_allclose(one, other, atol=1e-4)


NEW = 400


def write_levels(path, rows, *, classes, seed):
    """Write series whose level gives the label, with so much noise that no readout is always right."""
    draw = np.random.default_rng(seed)
    level = draw.normal(size=rows)
    x = level[:, None, None] + draw.normal(0, 0.3, (rows, 8, 1))
    noisy = level + draw.normal(0, 0.5, rows)
    y = np.array(["low", "middle", "high"])[np.digitize(noisy, [-0.5, 0.5])] if classes else noisy
    np.savez(path, x=x, y=y)
    return path


def fit_levels(folder, tiny_gpt2, *, classes, **options):
    own = write_levels(folder / "own.npz", 600, classes=classes, seed=0)
    entry = extract(str(own), backbone=str(tiny_gpt2), layers="block01", pool="mean", cache=folder / "cache")
    done = fit(entry, columns="block01/mean", out=folder / "readout", **options)
    return done.saved.parent, entry, done


@pytest.fixture(scope="module", params=["auto", "valid", "cv5"])
def covered(request, tmp_path_factory, tiny_gpt2):
    return fit_levels(tmp_path_factory.mktemp("classes"), tiny_gpt2, classes=True, select=request.param)


@pytest.fixture(scope="module")
def regression(tmp_path_factory, tiny_gpt2):
    return fit_levels(tmp_path_factory.mktemp("values"), tiny_gpt2, classes=False, select="valid")


def within(covered, coverage):
    """Return whether chance can explain the difference between a share of `NEW` rows and the coverage."""
    return abs(covered - coverage) < 3 * math.sqrt(coverage * (1 - coverage) * (1 / NEW + 1 / 120))


@pytest.mark.parametrize("coverage", [0.7, 0.9])
def test_sets_and_intervals_hold_the_truth_as_often_as_asked(covered, regression, tmp_path, coverage):
    new = [write_levels(tmp_path / f"{classes}.npz", NEW, classes=classes, seed=1) for classes in (True, False)]
    found = list(predict(covered[0], new[0], coverage=coverage))
    assert within(np.mean([one.truth in one.set for one in found]), coverage)
    assert len({len(one.set) for one in found}) > 1
    found = predict(regression[0], new[1], coverage=coverage)
    assert within(np.mean([one.interval[0] <= one.truth <= one.interval[1] for one in found]), coverage)


def test_intervals_have_the_width_that_a_computation_by_hand_gives(regression, tmp_path):
    folder, entry, done = regression
    valid = entry["valid"]
    distances = np.sort(np.abs(done.readout.predict(valid["block01/mean"]) - valid.labels[:, :, 0])[:, 0])
    radius = distances[math.ceil((len(distances) + 1) * 0.8) - 1]
    (one, *_) = predict(folder, write_levels(tmp_path / "new.npz", 3, classes=False, seed=1), coverage=0.8)
    assert one.interval == pytest.approx([one.label - radius, one.label + radius], abs=1e-9)


def test_cross_validated_readouts_are_scored_by_a_fit_to_train_alone(tmp_path, tiny_gpt2):
    folder, entry, _ = fit_levels(tmp_path, tiny_gpt2, classes=False, select="cv5", alphas="1e1:1e1:1")
    x = {split: entry[split]["block01/mean"] for split in ("train", "valid")}
    y = {split: entry[split].labels[:, 0, 0] for split in x}
    mean, deviation = x["train"].mean(axis=0, dtype=np.float64), x["train"].std(axis=0, dtype=np.float64)
    scaled = {split: (values - mean) / deviation for split, values in x.items()}
    gram = scaled["train"].T @ scaled["train"] + 10 * np.eye(16)
    weights = np.linalg.solve(gram, scaled["train"].T @ (y["train"] - y["train"].mean()))
    by_hand = np.sort(np.abs(scaled["valid"] @ weights + y["train"].mean() - y["valid"]))
    assert Bundle.load(folder).held_out == pytest.approx(by_hand, rel=1e-4)


def test_sets_are_columns_of_files_and_labels_are_empty_on_abstaining(covered, tmp_path, call):
    new = write_levels(tmp_path / "new.npz", 50, classes=True, seed=1)
    flags = covered[0], new, "--coverage", "0.9", "--abstain"
    assert call("predict", *flags, "--out", tmp_path / "out.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert any(row["label"] for row in rows) and not all(row["label"] for row in rows)
    assert all(row["label"] == (row["set"] if row["set"] and "|" not in row["set"] else "") for row in rows)
    code, out, error = call("predict", *flags, "--json")
    assert code == 0 and "coverage 0.9 is approximate" in error
    assert ["|".join(one) for one in json.loads(out)["predictions"]["set"]] == [row["set"] for row in rows]
    unsure = call("predict", covered[0], new, "--coverage", "0.3")
    empty = sum(not json.loads(line)["set"] for line in unsure[1].splitlines())
    assert empty and f"{empty} of 50 sets are empty, because no class has the probability of 0." in unsure[2]
    line = json.loads(call("predict", *flags)[1].splitlines()[0])
    assert line["set"] == [name for name in rows[0]["set"].split("|") if name]
    one = Prediction(id=0, label="é|b", probabilities=[0.6, 0.4], classes=("é|b", "b"), set=["é|b"])
    write_new_predictions(tmp_path / "piped.csv", [one])
    assert next(csv.DictReader((tmp_path / "piped.csv").open(encoding="utf-8")))["set"] == '["é|b"]'


def test_impossible_coverage_is_refused_in_one_line(covered, regression, tmp_path, refusal):
    new = write_levels(tmp_path / "new.npz", 3, classes=True, seed=1)
    for flags, message in (
        ((covered[0], new, "--abstain"), "--abstain needs --coverage"),
        ((covered[0], new, "--coverage", "0.999"), "--coverage 0.999 needs 999 validation rows, but the readout has"),
        ((regression[0], new, "--coverage", "0.9", "--abstain"), "the readout gives numbers, not classes"),
    ):
        assert message in refusal("predict", *flags)
    bundle = Bundle.load(regression[0])
    old = tmp_path / "old"
    old.mkdir()
    vars(bundle)["held_out"] = np.zeros(0)  # as earlier versions saved bundles
    bundle.write(old)
    with pytest.raises(InputError, match="it has no validation scores for --coverage"):
        predict(old, new, coverage=0.9)
