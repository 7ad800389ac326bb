"""What the columns of a table are for, found by rule or named by the user."""

import json

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import Task, Tokens, Vectors, encode, read_new, task_named
from reservoir.tasks.own.texts import texts_of, to_symbols

RNG = np.random.default_rng(0)
SPLITS = ["train", "valid", "test"] * 4


def source_of(path, content, **parameters):
    path.write_text(content)
    return task_named(str(path), **parameters)


def all_rows(source):
    parts = [source.read(piece) for piece in source.pieces()]
    return {name: parts[0][name] for name in parts[0]}


def wide(columns):
    """Return a table with these columns as text."""
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n"


def test_the_label_is_named_and_columns_are_left_out(tmp_path):
    a, b, ward = RNG.normal(size=12).round(3), RNG.normal(size=12).round(3), np.arange(12) % 2
    text = wide({"": range(12), "a": a, "Unnamed: 7": range(12), "noise": a, "b": b, "ward": ward, "split": SPLITS})
    source = source_of(tmp_path / "t.csv", text, label="ward", drop=["noise"])
    assert source.task.form == Vectors(1) and source.task.max_tokens == 2 and source.task.classes == 2
    assert np.array_equal(all_rows(source)["train"].x[:, :, 0], np.stack([a, b], 1)[::3].astype(np.float32))
    assert [note for note in source.notes() if "'Unnamed: 0'" in note] and len(source.notes()) == 3
    assert source.task.parameters == {"label": "ward", "drop": "noise", "columns": ["a", "b"]}


@pytest.mark.parametrize("asked", [{}, {"id": "case", "time": "t"}])
def test_the_long_form_makes_a_sequence_per_id(tmp_path, asked):
    sequences = [RNG.normal(size=(int(n), 2)).round(3) for n in RNG.integers(2, 6, 20)]
    rows = [
        (f"s{i}", t, *values, "ab"[i % 2]) for i, sequence in enumerate(sequences) for t, values in enumerate(sequence)
    ]
    shuffled = [rows[place] for place in RNG.permutation(len(rows))]
    text = wide(dict(zip(("case", "t", "u", "v", "label"), zip(*shuffled, strict=True), strict=True)))
    source = source_of(tmp_path / "long.csv", text, **asked)
    assert source.task.form == Vectors(2) and source.task.classes == 2
    assert source.task.parameters["id"] == "case" and source.task.parameters["time"] == "t"
    assert any("20 sequences, one per 'case'" in note for note in source.notes())
    x, lengths, ids, _ = read_new(tmp_path / "long.csv", source.task)
    for name, row, length in zip(ids, x, lengths, strict=True):
        assert np.array_equal(row[:length], sequences[int(name[1:])])
    labels = {text: label for split in all_rows(source).values() for text, label in _labelled(split, sequences)}
    assert labels == {i: i % 2 for i in range(20)}


def _labelled(split, sequences):
    for x, y, n in zip(split.x, split.y[:, 0, 0], split.lengths, strict=True):
        (found,) = [i for i, s in enumerate(sequences) if len(s) == n and np.array_equal(s.astype(np.float32), x[:n])]
        yield found, int(y)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "a", "b"], "t": [1, 1, 2], "u": [1, 2, 3], "y": [0, 0, 1]}, "line 3: 'a' has two rows at t 1"),
        (
            {"id": ["a", "a", "b"], "t": [1, 2, 2], "u": [1, 2, 3], "y": [0, 1, 1]},
            "line 3: another label .* --group id",
        ),
        (
            {"id": ["a", "a", "b"], "t": [1, 2, 2], "u": [1, "", 3], "y": [0, 0, 1]},
            "line 3: an empty cell in column 'u'",
        ),
        ({"a": [1], "a ": [2], "y": [3]}, "two columns are called 'a'"),
        ({"a": [1, "NA"], "b": [2, 3], "y": [3, 4]}, "line 3: an empty cell in column 'a'.*--missing interpolate"),
    ],
)
def test_tables_that_can_be_read_two_ways_are_refused(tmp_path, columns, message):
    source = source_of(tmp_path / "t.csv", wide(columns))
    with pytest.raises(InputError, match=message):
        source.task  # noqa: B018


@pytest.mark.parametrize("form", ["csv", "npz", "h5"])
def test_a_group_is_in_one_split(tmp_path, form):
    group, x, y = RNG.integers(0, 25, 200), RNG.normal(size=(200, 3)), np.arange(200) % 2
    if form == "csv":
        columns = {"patient": group, "y": y} | {f"c{n}": x[:, n] for n in range(3)}
        source = source_of(tmp_path / "g.csv", wide(columns), group="patient")
    elif form == "npz":
        np.savez(tmp_path / "g.npz", x=x, y=y, groups=group)
        source = task_named(str(tmp_path / "g.npz"))
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "g.h5", "w") as file:
            file["x"], file["y"], file["groups"] = x, y, group
        source = task_named(str(tmp_path / "g.h5"))
    splits = all_rows(source)
    members = {name: set(split.groups.astype(int).tolist()) for name, split in splits.items()}
    assert set(members) == {"train", "valid", "test"}
    assert sum(map(len, members.values())) == len(set().union(*members.values())) == len(set(group.tolist()))
    assert 0.4 < len(splits["train"]) / 200 < 0.8


def test_a_split_that_divides_a_group_is_refused(tmp_path):
    np.savez(
        tmp_path / "g.npz", x=RNG.normal(size=(12, 3)), y=np.arange(12) % 2, groups=np.arange(12) // 6, split=SPLITS
    )
    with pytest.raises(InputError, match="group 0 has rows in train and valid"):
        task_named(str(tmp_path / "g.npz")).read(task_named(str(tmp_path / "g.npz")).pieces()[0])


# ---- texts


WORDS = ["".join(RNG.choice(list("ACGT"), RNG.integers(3, 9))) for _ in range(30)]
KINDS = ["left" if "A" in word else "right" for word in WORDS]


def write_texts(path, words=WORDS, kinds=KINDS):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"kind": k, "seq": w}) + "\n" for w, k in zip(words, kinds, strict=True)))
    elif path.suffix in {".csv", ".tsv"}:
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(f"{a}{mark}{b}\n" for a, b in [("seq", "kind"), *zip(words, kinds, strict=True)]))
    elif path.suffix == ".npz":
        np.savez(path, x=np.array(words), y=np.array(kinds))
    elif path.suffix == ".h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = words, kinds
    else:
        records = (f">r{n} {k}\n{w[:2]}\n{w[2:]}\n" for n, (w, k) in enumerate(zip(words, kinds, strict=True)))
        path.write_text("".join(records))
    return path


def test_texts_are_encoded_stretch_by_stretch(tmp_path, monkeypatch):
    words = ["ACGT"[n % 4] * (n % 7 + 9) + "é" * (n == 29) for n in range(30)]
    whole = task_named(str(write_texts(tmp_path / "t.csv", words)))
    (piece,) = whole.pieces()
    expected = whole.read(piece)
    monkeypatch.setattr("reservoir.tasks.own.texts.PIECE_LETTERS", 100)
    parts = task_named(str(tmp_path / "t.csv"))
    read = [parts.read(piece) for piece in parts.pieces()]
    assert len(read) > 3 and parts.task == whole.task
    for name, rows in expected.items():
        assert np.array_equal(np.concatenate([part[name].x for part in read if name in part]), rows.x)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".npz", ".h5", ".fasta"])
def test_texts_are_sequences_of_letters(tmp_path, suffix):
    longer = [word * 2 for word in WORDS]
    source = task_named(str(write_texts(tmp_path / f"t{suffix}", longer)))
    task = source.task
    assert task.form == Tokens(5) and task.alphabet == "\ufffdACGT" and task.labels == ("left", "right")
    found = {}
    for split in all_rows(source).values():
        for x, y, n in zip(split.x, split.y.ravel(), split.lengths, strict=True):
            found["".join(map(chr, x[:n]))] = task.labels[y]
    assert found == dict(zip(longer, KINDS, strict=True))
    assert any("4 symbols, the letters ACGT" in note for note in source.notes())
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task
    x, _, _, _ = read_new(tmp_path / f"t{suffix}", task)
    assert x.tolist() == longer and texts_of(*encode(task, x)) == longer
    x, _, _, _ = read_new(write_texts(tmp_path / f"new{suffix}", ["AC", "ACJ", "G"], KINDS[:3]), task)
    codes, lengths = encode(task, x)
    assert to_symbols("new", codes, lengths, task.alphabet).tolist() == [[1, 2, 0], [1, 2, 0], [3, 0, 0]]
    with pytest.raises(InputError, match="row 1, letter 2: 'J' is no letter of the training rows; they are ACGT"):
        to_symbols("new", codes, lengths, "ACGT")  # an alphabet of an earlier version


def test_letters_that_no_training_row_has_are_unknown(tmp_path):
    words = [word + ("☃" if n % 3 else "") for n, word in enumerate(WORDS[:12])]
    np.savez(tmp_path / "t.npz", x=np.array(words), y=np.array(KINDS[:12]), split=SPLITS)
    source = task_named(str(tmp_path / "t.npz"))
    assert source.task.form == Tokens(5) and any(
        "letters that no training row has, read as unknown: ☃" in note for note in source.notes()
    )
    assert ord("☃") in all_rows(source)["valid"].x[0]
    x, lengths = encode(source.task, np.array(["AJ"]))
    assert to_symbols("new", x, lengths, source.task.alphabet).tolist() == [[1, 0]] and lengths.tolist() == [2]


def test_the_text_and_the_label_can_be_named(tmp_path):
    text = wide({"title": WORDS, "body": [w * 2 for w in WORDS], "kind": KINDS, "n": range(30)})
    with pytest.raises(InputError, match="no column of labels"):
        source_of(tmp_path / "t.csv", text).task  # noqa: B018
    source = source_of(tmp_path / "t.csv", text, text="body", label="kind")
    assert source.task.labels == ("left", "right") and source.task.alphabet == "\ufffdACGT"
    assert any("not read, beside 'body': title, n" in note for note in source.notes())


@pytest.mark.parametrize(
    ("header", "label", "labels"),
    [(">a|{}", "", ("left", "right")), (">x kind={} z", r"kind=(\w+)", ("left", "right"))],
)
def test_fasta_labels_come_from_the_header(tmp_path, header, label, labels):
    text = "".join(f"{header.format(kind)}\n{word}\n" for word, kind in zip(WORDS, KINDS, strict=True))
    assert source_of(tmp_path / "t.fa", text, **({"label": label} if label else {})).task.labels == labels


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("ACGT\n", {}, "line 1: no header"),
        (">a\nACGT\n>b\nA\n", {}, "no label in headers like 'a'"),
        (">a 1\nACGT\n>b 2\n\n", {}, "line 3: an empty text"),
        (">a 1\nACGT\n", {"label": "("}, "no pattern"),
        (">a 1\nACGT\n", {"label": "a"}, "0 groups"),
        (">a 1\nACGT\n", {"label": "k(.)"}, "line 1: the header 'a 1' does not match"),
    ],
)
def test_bad_fasta(tmp_path, text, parameters, message):
    with pytest.raises(InputError, match=message):
        source_of(tmp_path / "t.fasta", text, **parameters).task  # noqa: B018


def test_rows_that_each_have_a_label_of_their_own_are_refused(tmp_path):
    with pytest.raises(InputError, match="each row has a label of its own"):
        source_of(tmp_path / "t.csv", wide({"y": [f"n{n}" for n in range(20)], "a": range(20)})).task  # noqa: B018


def test_new_rows_of_a_named_task_are_texts(tmp_path):
    (tmp_path / "p.fasta").write_text(">a\nACD\n>b\nMK\n")
    task = task_named("homology").task
    x, lengths, ids, _ = read_new(tmp_path / "p.fasta", task)
    assert ids == ["a", "b"] and encode(task, x, lengths)[0][:, :3].tolist() == [[1, 2, 3], [11, 9, 0]]


def test_rows_of_one_id_that_are_sequences_of_their_own_stay_together(tmp_path):
    text = wide({"id": np.arange(60) // 4, "u": range(9, 69), "v": range(60), "y": np.arange(60) % 2})
    with pytest.raises(InputError, match=r"another label than before under .* say --group id or --drop id"):
        source_of(tmp_path / "t.csv", text).task  # noqa: B018
    source = source_of(tmp_path / "t.csv", text, group="id")
    splits = all_rows(source)
    assert source.task.max_tokens == 2 and sum(map(len, splits.values())) == 60
    assert {len(split) % 4 for split in splits.values()} == {0}
    assert source_of(tmp_path / "t.csv", text, drop="id").task.max_tokens == 2
