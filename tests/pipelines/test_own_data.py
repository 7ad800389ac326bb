"""Users' own data is identified by its content, flags name its columns, and rows may have no labels."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest
from reservoir_cache import Entry, FeatureStore, repair, verify
from reservoir_pipelines import export_features, extract, fit, import_features, predict, prepare, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.data.formats import read_new
from reservoir_pipelines.data.values import encode_values
from reservoir_pipelines.extraction.extract import find_entry
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.folds import assign_folds, draw_folds
from reservoir_pipelines.fitting.source import KNOWN_SPLITS, ColumnSource, EntryView, groups_of_splits
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from reservoir_pipelines.preparation.prepare import open_source

from reservoir import InputError
from reservoir.column import Column
from reservoir.readouts.evaluation import accuracy_interval
from tests.helpers import contents, flip
from tests.tasks.samples import assert_refused

SMALL = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "embed"}


def table(path, rows=90, seed=0, **more):
    ward = np.arange(rows) % 2
    values = np.random.default_rng(seed).normal(size=(rows, 4)) + 3 * ward[:, None]
    columns = {f"v{n}": values[:, n].round(3) for n in range(4)} | {"ward": np.array(["north", "south"])[ward]} | more
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_every_stage_takes_the_flags(cache, tmp_path, call):
    path = table(tmp_path / "t.csv", number=range(90))
    flags = ["--label", "ward", "--drop", "number"]
    model = [word for name in SMALL for word in (f"--{name}", SMALL[name])]
    for command in (["prepare"], ["extract", *model], ["fit"], ["train", "--steps", "2", *model[:4]]):
        code, _, err = call(command[0], path, *flags, *command[1:], "--json")
        assert code == 0, err
    found = find_entry(cache, path, label="ward").spec.task["parameters"]
    assert found == {"label": "ward", "drop": "number", "columns": ["v0", "v1", "v2", "v3"]}
    with pytest.raises(InputError, match=r"nothing extracted for .* with label number"):
        find_entry(cache, path, label="number", drop="ward")
    assert prepare(path, label="ward", drop=["number"]).path == prepare(path, label="ward", drop="number").path
    for n in range(20):  # files that a table names, with columns that only flags tell apart
        (tmp_path / f"{n}.csv").write_text(f"u\n{n}\n{n + 1}\n")
    rows = "".join(f"{n}.csv,{'ab'[n % 2]},o{n}\n" for n in range(20))
    (tmp_path / "runs.csv").write_text(f"run,quality,operator\n{rows}")
    code, _, err = call("prepare", tmp_path / "runs.csv", "--text", "run", "--label", "quality")
    assert code == 0, err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["prepare", "digits", "--label", "y"], "task 'digits' has no parameter 'label'; it has"),
        (["prepare", "t.csv", "--label", "wrad"], "no column 'wrad' (--label) among v0, v1, v2, v3, ward"),
        (["prepare", "t.csv", "--param", "label=ward"], "write --label ward"),
        (["prepare", "t.csv", "--param", "regression=True"], "write --regression"),
        (["prepare", "bit-xor", "--param", "n=5", "--param", "n=6"], "--param n: given twice"),
        (["prepare", "t.csv", "--label", "ward", "--rate", "8000"], "--rate does not apply to data of this kind"),
        (["extract", "t.csv", "--label", "ward", "--workers", "-1"], "--workers -1: give a whole number of at least 0"),
        (["prepare", "t.csv", "--label", "ward", "--missing", "mean"], "choose among refuse, interpolate, mask"),
        (["prepare", "t.csv", "--label", "ward", "--values", "--symbols"], "--values --symbols: give one of the two"),
        (["prepare", "t.csv", "--label", "ward", "--regression"], "leave out --regression"),
        (["prepare", "a.npz", "--group", "ward"], "--group does not apply to data of this kind"),
        (["prepare", "s.csv", "--text", "s", "--missing", "mask"], "holds symbols, which are never missing"),
        (["prepare", "s.csv", "--text", "s", "--values"], "x holds texts; leave out --values"),
        (["prepare", "t.csv", "--param", "lable=3"], "has no parameter 'lable'; it has label"),
    ],
)
def test_a_flag_that_does_not_fit_is_refused_in_one_line(cache, tmp_path, refusal, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv")
    np.savez("a.npz", x=np.ones((30, 3, 1)), y=np.arange(30) % 2)
    (tmp_path / "s.csv").write_text("s,label\n" + "\n".join(f"ACGT{'ACGT'[n % 4]},{n % 2}" for n in range(30)) + "\n")
    assert message in refusal(*command)


def holes(path, rows=80, dtype=float):
    draw = np.random.default_rng(3)
    y = np.arange(rows) % 2
    whole = np.cumsum(draw.normal(size=(rows, 12, 2)), axis=1) + 500 + 4 * y[:, None, None]
    gaps = draw.random(whole.shape) < 0.2
    np.savez(path, x=np.where(gaps, np.nan, whole), y=y)
    return str(path), whole, gaps


def test_missing_values_are_on_the_line_between_their_neighbours(cache, tmp_path):
    path, whole, gaps = holes(tmp_path / "h.npz")
    with pytest.raises(InputError, match=r"x is nan in row .* pass --missing interpolate or mask"):
        prepare(path)
    prepared = prepare(path, missing="interpolate")
    rows = np.concatenate([prepared.split(name).read(0, len(prepared.split(name))).x for name in prepared.splits])
    kept = np.where(gaps, np.nan, whole).astype(np.float32)
    for found in rows:
        row = next(row for row in range(len(kept)) if np.array_equal(found[~gaps[row]], kept[row][~gaps[row]]))
        for channel in range(2):
            there = ~gaps[row, :, channel]
            line = np.interp(np.arange(12), np.flatnonzero(there), whole[row, there, channel])
            np.testing.assert_allclose(found[:, channel], line, rtol=1e-6)


def test_masked_values_are_zero_to_the_model_and_a_channel_says_where(cache, tmp_path):
    path, whole, gaps = holes(tmp_path / "h.npz")
    prepared = prepare(path, missing="mask")
    x, lengths = encode_values(prepared.task, np.where(gaps, np.nan, whole))
    seen = prepared.scaling(x)
    assert prepared.task.form.dim == 4 and (lengths == 12).all()
    np.testing.assert_array_equal(seen[:, :, 2:], gaps)
    assert (seen[:, :, :2][gaps] == 0).all()
    train = prepared.split("train").read(0, prepared.rows["train"])
    values = prepared.scaling(train.x)[:, :, :2]
    known = train.x[:, :, 2:] == 0
    for channel in range(2):  # missing values do not count
        there = values[:, :, channel][known[:, :, channel]].astype(float)
        assert abs(there.mean()) < 1e-4 and abs(there.std() - 1) < 1e-4
    assert prepare(path, missing="interpolate").digest != prepared.digest


@pytest.mark.parametrize("missing", ["interpolate", "mask"])
def test_new_files_are_read_by_the_same_rule(cache, tmp_path, missing):
    path, whole, gaps = holes(tmp_path / "h.npz")
    found = fit(extract(path, missing=missing, pool="mean,segments4", **SMALL))
    new = tmp_path / "new.npz"
    np.savez(new, x=np.where(gaps, np.nan, whole)[:5])
    task = Bundle.load(found.saved).task
    raw = read_new(new, task).x
    prepared = prepare(path, missing=missing)
    x, _ = encode_values(task, raw)
    rows = [row for split in prepared.splits.values() for row in split.read(0, len(split)).x]
    stored = [tuple(np.nan_to_num(row).ravel()) for row in rows]
    assert all(tuple(np.nan_to_num(row).ravel()) in stored for row in x)
    assert len(list(predict(found.saved, new))) == 5


@pytest.mark.parametrize("seed", range(2))
def test_no_group_is_on_both_sides_of_a_split_or_a_fold(cache, tmp_path, seed):
    draw = np.random.default_rng(seed)
    subjects = draw.integers(0, draw.integers(9, 30), 90)
    path = table(tmp_path / "t.csv", seed=seed, subject=[f"s{n}" for n in subjects])
    store = extract(path, label="ward", group="subject", pool="mean", **SMALL).store
    of_split = {name: set(store[name].groups.tolist()) for name in store.splits}
    assert sum(map(len, of_split.values())) == len(set(subjects.tolist())) == len(set().union(*of_split.values()))
    source = ColumnSource(EntryView(store, KNOWN_SPLITS), Column("embed", "mean"))
    groups = groups_of_splits(source.view)
    both = [store[name].labels[:, 0, 0] for name in ("train", "valid")]
    for folds in (2, 5):
        for repeat in range(3):
            fold = assign_folds(source, folds, 2, repeat + 1)[:, repeat]
            assert all(len(set(fold[groups == one].tolist())) == 1 for one in set(groups.tolist()))
            by_hand = draw_folds(len(fold), folds, labels=np.concatenate(both), groups=groups, repeat=repeat)
            np.testing.assert_array_equal(fold, by_hand)


def test_fit_assigns_folds_by_group_with_a_note(cache, tmp_path, capsys):
    subjects = np.array(["a", "A", "b", "c", "d", "e"])[np.arange(90) // 30 * 2 + np.arange(90) % 2]
    path = table(tmp_path / "t.csv", subject=subjects.tolist())
    features = extract(path, label="ward", group="subject", pool="mean", **SMALL)
    count = len({*features["train"].groups.tolist(), *features["valid"].groups.tolist()})
    fit(features)
    text = capsys.readouterr().err
    assert f"{count}-fold cross-validation by group" in text
    assert "6 groups, each in one split" in text
    with pytest.raises(InputError, match=f"{count + 1} folds for {count} groups"):
        fit(features, select=f"cv{count + 1}")


@pytest.mark.parametrize("column", ["subject", None])
def test_the_interval_of_predict_counts_whole_groups_if_the_fit_had_groups(cache, tmp_path, call, column):
    subjects, new = np.arange(90) // 6, tmp_path / "new.csv"
    path = table(tmp_path / "t.csv", **({column: subjects} if column else {}))
    saved = fit(extract(path, label="ward", group=column, pool="mean", **SMALL)).saved
    wards = np.array(["north", "south"])[(np.arange(90) + (subjects % 4 == 0)) % 2]  # wrong in whole groups
    table(new, seed=1, groups=subjects, subject=subjects, ward=wards)
    right = np.array([one.label == one.truth for one in predict(saved, new)])
    low, high = accuracy_interval(right, groups=subjects if column else None)
    line = f"accuracy: {right.mean():.1%} (95% interval{' over 15 groups' * bool(column)}: {low:.1%} to {high:.1%})"
    assert line in call("predict", saved, new)[2].splitlines()
    table(new, seed=1)
    assert evaluate_predictions(predict(saved, new)).groups == 0


def test_rows_of_the_same_id_are_a_group_for_predict_too(cache, tmp_path):
    lines = [f"p{row // 5},{'ab' * (2 + row % 7)}{'cd'[row % 2] * 3},{row % 2}" for row in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["id,text,label", *lines]))
    done = fit(extract(tmp_path / "t.csv", pool="mean", **SMALL))
    found = evaluate_predictions(predict(done.saved, tmp_path / "t.csv"))
    assert done.evaluation.groups and (found.groups, found.rows) == (20, 100)


def test_a_table_of_labels_scores_a_folder_of_new_recordings(cache, tmp_path, call, refusal):
    draw, lines = np.random.default_rng(0), [f"{n},m{n // 4},{'ab'[n % 2]}" for n in range(40)]
    for folder in (tmp_path / "old", tmp_path / "new"):
        folder.mkdir()
        (folder / "labels.csv").write_text("\n".join(["run,machine,state", *lines]))
        for n in range(40):
            np.savetxt(folder / f"{n}.csv", draw.normal(n % 2, 1, (5, 2)), "%.3f", ",", header="u,v", comments="")
    asked = {"labels": "labels.csv", "label": "state", "group": "machine"}
    saved, new = fit(extract(tmp_path / "old", pool="mean", **asked, **SMALL)).saved, tmp_path / "new"
    right = np.array([one.label == "ab"[int(one.id[:-4]) % 2] for one in predict(saved, new)])
    _, _, messages = call("predict", saved, new, "--labels", "labels.csv")
    assert 0.6 < right.mean() < 1 and f"accuracy: {right.mean():.1%} (95% interval over 10 groups" in messages
    (new / "few.csv").write_text("file,state\n7,b\n")
    err = refusal("predict", saved, new, "--labels", "few.csv")
    assert "no row for '0.csv' in column 'file' (39 of 40 have none); add it (predict needs no label" in err


def write_random(path, seed):
    draw = np.random.default_rng(seed)
    path.parent.mkdir(exist_ok=True)
    np.savez(path, x=draw.normal(size=(60, 8, 2)), y=draw.integers(0, 2, 60))
    return path


def test_files_of_one_name_are_told_apart(cache, tmp_path):
    first, second = write_random(tmp_path / "a" / "data.npz", 1), write_random(tmp_path / "b" / "data.npz", 2)
    of_first = extract(str(first), **SMALL).entry
    with pytest.raises(InputError, match=r"nothing extracted for the present content of .*b.data\.npz; run"):
        find_entry(cache, str(second))
    of_second = extract(str(second), **SMALL).entry
    assert find_entry(cache, str(first)).path == of_first
    assert find_entry(cache, str(second)).path == of_second


def test_a_changed_file_is_not_fitted_with_old_features(cache, tmp_path):
    path = write_random(tmp_path / "a" / "data.npz", 1)
    before = extract(str(path), **SMALL).entry
    write_random(path, 2)
    with pytest.raises(InputError, match="run reservoir extract"):
        find_entry(cache, str(path))
    after = extract(str(path), **SMALL).entry
    assert find_entry(cache, str(path)).path == after != before
    write_random(path, 1)  # the old content with a new modification time
    assert find_entry(cache, str(path)).path == before


def rows_in(path):
    """Write 60 rows of 4 values with two classes to a table of any format; return its path."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)).round(3), columns=list("abcd"))
    frame["label"] = np.where(np.arange(60) % 2, "north", "south")
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    return path


PAGE = b"<!DOCTYPE html>\n<html><body><h1>503 Service Unavailable</h1></body></html>\n"
LATIN = "a,b,label\n1,2,s\xfcd\n3,4,n\xf6rd\n".encode("latin-1")
DAMAGES = {
    ("csv", "another encoding"): LATIN,
    ("csv", "UTF-16"): "a,b,label\n1,2,x\n".encode("utf-16"),
    ("csv", "empty"): b"",
    ("csv", "header only"): b"a,b,c,d,label\n",
    ("csv", "open quote"): b'a,b,label\n1,2,"north\n3,4,south\n',
    ("csv", "NUL byte"): b"a,b,label\n1,2,nor\0th\n3,4,south\n",
    ("csv", "error page"): PAGE,
    ("jsonl", "another encoding"): b'{"a": 1, "label": "s\xfcd"}\n',
    ("jsonl", "empty"): b"",
    ("jsonl", "blank lines"): b"\n\n",
    ("jsonl", "open quote"): b'{"a": 1, "label": "north}\n',
    ("jsonl", "NUL byte"): b'{"a": 1, "label": "nor\0th"}\n',
    ("jsonl", "error page"): PAGE,
    ("parquet", "empty"): b"",
    ("parquet", "no rows"): None,
    ("parquet", "cut"): b"PAR1" + bytes(200),
    ("parquet", "error page"): PAGE,
}


@pytest.fixture(scope="module", params=["csv", "jsonl", "parquet"])
def extracted_table(request, tmp_path_factory):
    """Return a table that was extracted and its cache."""
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("tables")
    path = rows_in(folder / f"mine.{request.param}")
    extract(path, cache=folder / "cache", pool="mean", **SMALL)
    return path, folder / "cache"


def test_a_file_that_can_no_longer_be_read_is_never_answered_with_old_data(extracted_table, refusal, monkeypatch):
    path, cache = extracted_table
    monkeypatch.setenv("RESERVOIR_CACHE", str(cache))
    model = [word for name in SMALL for word in (f"--{name}", SMALL[name])]
    content = path.read_bytes()
    for (kind, damage), written in DAMAGES.items():
        if kind != path.suffix[1:]:
            continue
        if written is None:
            pd.read_parquet(path).iloc[:0].to_parquet(path)
        else:
            path.write_bytes(written)
        for command in (["prepare", path], ["extract", path, *model, "--pool", "mean"], ["fit", path]):
            message = refusal(*command)
            assert "mine" in message and "run reservoir extract" not in message, (damage, command)
        path.write_bytes(content)
    assert prepare(path).reused and find_entry(cache, str(path))


def test_a_path_that_is_gone_is_refused_with_the_key_of_its_features(cache, tmp_path, refusal, call, monkeypatch):
    path = write_random(tmp_path / "a" / "data.npz", 1)
    key = extract(str(path), pool="mean", **SMALL).store.entry.key
    path.unlink()
    for command in ("prepare", "extract"):
        assert f"{path}: no such file; give the path" in refusal(command, path)
    remedy = f"give the path of your data, or run reservoir fit {key[:12]} to use the features"
    assert f"{path}: no such file; {remedy}" in refusal("fit", path)
    assert call("fit", key[:12])[0] == 0
    assert "nowhere.npz: no such file; give the path of your data" in refusal("fit", tmp_path / "nowhere.npz")
    monkeypatch.chdir(tmp_path)  # the name alone may stand for a file of any folder
    code, _, err = call("fit", "data.npz")
    assert code == 0 and f"data.npz not found; using the last extraction of {path}" in err


def test_fit_says_why_extract_refused_a_file(cache, tmp_path, refusal):
    (tmp_path / "one.csv").write_text("a,b,label\n" + "1.5,2.5,north\n2.5,1.0,north\n" * 20)
    for command in ("extract", "fit"):
        assert "all labels are the same ('north')" in refusal(command, tmp_path / "one.csv")
    path = table(tmp_path / "t.csv")
    command = ["extract", path, "--init", "random", "--label", "ward", "--drop", "v0,v1"]
    assert f"run {shlex.join(['reservoir', *command])} first" in refusal("fit", *command[1:])


def test_a_flipped_bit_of_prepared_data_is_found_and_mended(cache, tmp_path):
    path = str(write_random(tmp_path / "a" / "data.npz", 1))
    prepared = prepare(path)
    for name, content in contents(prepared.path).items():
        file = prepared.path / name
        for at in range(0, len(content), 1 + len(content) // 5):
            flip(file, at, 4)
            again = prepare(path)
            assert not again.reused
            assert again.digest == prepared.digest
            assert file.read_bytes() == content


def test_features_and_predictions_can_be_joined_with_the_rows_of_the_file(cache, tmp_path, call):
    path, numbers = table(tmp_path / "t.csv", id=[f"p{n:02}" for n in range(90)]), np.arange(90)
    values = {f"p{n:02}": line.split(",")[:4] for n, line in enumerate((tmp_path / "t.csv").read_text().split()[1:])}
    prepared, features = prepare(path, label="ward"), extract(path, label="ward", limit=20, **SMALL)
    for name in features:
        index, split = features[name].index, prepared.split(name)
        assert len(index) == min(20, len(split)) and (split.ids[index] == features[name].ids).all()
        for row, place in zip(split.take(index).x[:, :, 0], features[name].ids, strict=True):
            assert np.array_equal(row, np.array(values[place], np.float32))
    code, _, err = call("fit", path, "--out", tmp_path / "readout")
    assert code == 0, err
    for suffix in (".csv", ".jsonl"):
        code, _, err = call("predict", tmp_path / "readout", path, "--out", tmp_path / f"out{suffix}")
        assert code == 0, err
    assert [line.split(",")[0] for line in (tmp_path / "out.csv").read_text().split()] == ["id", *values]
    assert [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [*values]
    # without ids, rows have their numbers, among which bad rows count
    lines = [line.rpartition(",")[0] for line in (tmp_path / "t.csv").read_text().split()]
    lines[3] = "ERR" + lines[3]
    (tmp_path / "new.csv").write_text("\n".join(lines))
    rows = [json.loads(line) for line in call("predict", tmp_path / "readout", tmp_path / "new.csv")[1].splitlines()]
    assert [row["id"] for row in rows] == numbers.tolist() and rows[2]["label"] is None


def test_ids_that_changed_replace_the_old_ones_and_nothing_else(cache, tmp_path):
    path = table(tmp_path / "t.csv", id=[f"p{n}" for n in range(90)])
    before = extract(path, label="ward", **SMALL)
    keys = {name: before[name].ids.tolist() for name in before}
    shards = {name: (before.entry / name / "00000-0.h5").stat().st_mtime_ns for name in before}
    table(tmp_path / "t.csv", id=[f"q{n}" for n in range(90)])
    assert find_entry(cache, path).path == before.entry  # `fit` opens entries in this way
    renamed = {name: FeatureStore(before.entry)[name].ids.tolist() for name in before}
    assert renamed == {name: [key.replace("p", "q") for key in ids] for name, ids in keys.items()}
    table(tmp_path / "t.csv", id=[f"p{n}" for n in range(90)])
    after = extract(path, label="ward", **SMALL)
    assert after.reused and {name: after[name].ids.tolist() for name in after} == keys
    assert shards == {name: (before.entry / name / "00000-0.h5").stat().st_mtime_ns for name in before}
    assert verify(Entry.open(before.entry)) == []


def write_letters(path, rows, seed, *, labelled=True):
    draw = np.random.default_rng(seed)
    lines = [] if path.suffix == ".fasta" else ["sequence,label" if labelled else "sequence"]
    for row in range(rows):
        text = "".join(draw.choice([*"ACGT", *("A" if row % 2 else "C") * 3], draw.integers(20, 40)))
        kind = ["left", "right"][row % 2] if labelled else ""
        fasta = f">s{row} {kind}\n{text[:15]}\n{text[15:]}"
        lines.append(fasta if path.suffix == ".fasta" else f"{text},{kind}".strip(","))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".fasta"])
def test_new_letters_are_labelled_in_the_form_of_the_old(cache, tmp_path, capsys, suffix):
    """`test_images` and `test_native` test tables of images and texts."""
    file = write_letters(tmp_path / f"old{suffix}", 80, 0)
    new = write_letters(tmp_path / f"new{suffix}", 6, 1, labelled=False)
    small = ["--backbone", SMALL["backbone"], "--init", "random"]
    assert run(["extract", file, *small]) == run(["fit", file, "--out", str(tmp_path / "readout")]) == 0
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "readout"), new]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in found] == ["left", "right"] * 3
    assert suffix == ".csv" or [row["id"] for row in found] == [f"s{row}" for row in range(6)]


def test_a_note_says_which_share_of_letters_windows_cover(cache, call, tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    rows = ["".join(draw.choice(list("ACGT"), 60)) + f",{n % 2}" for n in range(40)]
    (tmp_path / "dna.csv").write_text("\n".join(["sequence,label", *rows]) + "\n")
    messages = []
    for most, more in ((1024, ("--pool", "max")), (6, ("--pool", "min")), (6, ("--stride", 5))):
        monkeypatch.setattr("reservoir.plan.model.MAX_WINDOWS", most)
        messages.append(call("extract", tmp_path / "dna.csv", "--layers", "embed", *more)[2])
    assert ["windows of" in text for text in messages] == [False, True, False]
    assert (
        "windows of 5 with stride 10 cover 50% of each row; reduce --stride or raise --patch to cover more"
        in messages[1]
    )


# Features of rows without labels are those of the same rows with labels; `fit` and `train` say what they need.


SMALL_MEAN = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "pool": "mean"}
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
        features[labelled] = extract(path, cache=tmp_path / "cache", compute="float32", **SMALL_MEAN)
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
    code, _, err = call("extract", path, "--backbone", SMALL_MEAN["backbone"], "--init", "random", "--pool", "mean")
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
    features = extract(write(tmp_path, "npz", labelled=False), cache=tmp_path / "cache", **SMALL_MEAN)
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
    prepared = prepare(str(tmp_path / "parts" / "*.parquet"), cache=tmp_path / "cache")
    assert prepared.task.unlabelled and sum(prepared.rows.values()) == 30


def test_records_without_labels_are_read(tmp_path):
    letters = np.random.default_rng(0).choice(list("ACGT"), (40, 9))
    (tmp_path / "x.fasta").write_text("".join(f">r{row}\n{''.join(text)}\n" for row, text in enumerate(letters)))
    task = open_source(str(tmp_path / "x.fasta")).task
    assert task.unlabelled and task.alphabet == "\ufffdACGT"


def test_a_damaged_entry_is_found_by_its_file_and_stays_as_it_is(tmp_path):
    cache, path = tmp_path / "cache", tmp_path / "t.npz"
    draw = np.random.default_rng(0)
    np.savez(path, x=draw.normal(size=(40, 12, 1)), y=np.arange(40) % 2)
    settings = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2", "init": "random", "cache": cache}
    older, newer = (extract(str(path), layers="embed", pool="mean", seed=seed, **settings) for seed in (0, 1))
    # Damage of another entry of the file is no obstacle.
    (older.entry / "train/manifest.json").write_text("{")
    assert find_entry(cache, str(path)).path == newer.entry
    # A lost manifest is not replaced by one that lists labels alone, which would hide the shards.
    whole = (newer.entry / "train/manifest.json").read_bytes()
    (newer.entry / "train/manifest.json").unlink()
    assert find_entry(cache, str(path)).path == newer.entry
    assert not (newer.entry / "train/manifest.json").exists()
    repair(find_entry(cache, str(path)))
    assert extract(str(path), layers="embed", pool="mean", seed=1, **settings).reused
    assert (newer.entry / "train/manifest.json").read_bytes() == whole
