"""Features of rows without labels are those of the same rows with labels; `fit` and `train` say what they need."""

import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines import export_features, extract, fit, import_features, train
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.sources import open_source

from reservoir import InputError
from reservoir.options import TaskOptions
from tests.tasks.samples import assert_refused

SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "pool": "mean"}
X = np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32)
Y = np.arange(40) % 2
SPLIT = np.repeat(["train", "valid", "test"], [20, 10, 10])


def write(folder, form, *, labelled):
    folder.mkdir(exist_ok=True)
    if form == "npz":
        np.savez(folder / "x.npz", x=X, split=SPLIT, **({"y": Y} if labelled else {}))
        return folder / "x.npz"
    if form == "folder":
        for row, values in enumerate(X):
            place = folder / "runs" / SPLIT[row] / ("ab"[Y[row]] if labelled else "")
            place.mkdir(parents=True, exist_ok=True)
            np.savetxt(place / f"{row:02d}.csv", values[:, None], "%.9g", header="force", comments="")
        return folder / "runs"
    columns = {f"v{place}": X[:, place] for place in range(X.shape[1])} | {"split": SPLIT}
    pd.DataFrame(columns | ({"label": Y} if labelled else {})).to_csv(folder / "x.csv", index=False)
    return folder / "x.csv"


@pytest.mark.parametrize("form", ["npz", "csv", "folder"])
def test_features_are_those_of_the_rows_with_labels(tmp_path, form):
    features = {}
    for labelled in (False, True):
        path = write(tmp_path / str(labelled), form, labelled=labelled)
        features[labelled] = extract(path, cache=tmp_path / "cache", compute="float32", **SMALL)
    for split in ("train", "valid", "test"):
        bare, full = features[False][split], features[True][split]
        # Files in folders of classes have another order.
        order = np.argsort([str(name).rpartition("/")[2] for name in full.ids]) if form == "folder" else slice(None)
        for column in bare.columns:
            assert np.array_equal(np.asarray(bare[column]), np.asarray(full[column])[order])
    with pytest.raises(InputError, match=r"no labels, which fit needs; .*--label.*--labels"):
        fit(features[False])


def test_the_command_line_says_at_once_what_fit_and_train_need(tmp_path, call, refusal, cache):
    path = write(tmp_path, "csv", labelled=False)
    assert "no labels, which fit needs" in refusal("fit", path)  # before anything is extracted
    code, _, err = call("extract", path, "--backbone", SMALL["backbone"], "--init", "random", "--pool", "mean")
    assert code == 0 and "no column is called label" in err
    assert "no labels, which fit needs" in refusal("fit", path)
    assert "no labels, which train needs" in refusal("train", path)
    with pytest.raises(InputError, match="no labels"):
        train(path, cache=cache)


def test_files_of_one_class_are_refused_by_fit_for_that_reason(tmp_path, refusal, cache):
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": "same"}).to_csv(tmp_path / "x.csv", index=False)
    assert "all labels are the same" in refusal("extract", tmp_path / "x.csv")
    message = refusal("fit", tmp_path / "x.csv")
    assert "all labels are the same" in message and "extract" not in message


def test_exported_features_without_labels_are_read_again(tmp_path):
    features = extract(write(tmp_path, "npz", labelled=False), cache=tmp_path / "cache", **SMALL)
    export_features(features, to=tmp_path / "exported", format="npy")
    again = import_features(tmp_path / "exported", cache=tmp_path / "cache")
    for split in ("train", "valid", "test"):
        for column in features[split].columns:
            assert np.array_equal(np.asarray(again[split][column]), np.asarray(features[split][column]))
    with pytest.raises(InputError, match="no labels"):
        fit(again)


def test_labels_that_may_have_been_forgotten_are_asked_for(tmp_path):
    columns = {"a": X[:, 0], "b": X[:, 1], "outcome": Y}
    pd.DataFrame(columns).to_csv(tmp_path / "x.csv", index=False)
    assert_refused("--label NAME .* or --values .* --label outcome", tmp_path / "x.csv")
    assert open_source(str(tmp_path / "x.csv"), values=True).task.unlabelled
    assert not open_source(str(tmp_path / "x.csv"), label="outcome").task.unlabelled


def test_parquet_files_without_labels_are_recordings_or_parts(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "parts").mkdir()
    for part in range(3):
        frame = pd.DataFrame(X[part * 10 : part * 10 + 10, :2], columns=["a", "b"])
        frame.to_parquet(tmp_path / "parts" / f"{part}.parquet", index=False)
    assert_refused("recordings, or parts of a table", tmp_path / "parts")
    prepared = prepare(str(tmp_path / "parts" / "*.parquet"), TaskOptions(), cache=tmp_path / "cache")
    assert prepared.task.unlabelled and sum(prepared.rows.values()) == 30


def test_records_without_labels_are_read(tmp_path):
    letters = np.random.default_rng(0).choice(list("ACGT"), (40, 9))
    (tmp_path / "x.fasta").write_text("".join(f">r{row}\n{''.join(text)}\n" for row, text in enumerate(letters)))
    task = open_source(str(tmp_path / "x.fasta")).task
    assert task.unlabelled and task.alphabet == "\ufffdACGT"
