"""Users' own tables: the rules by which columns get their roles, and tables that are refused in one line."""

import importlib.util
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from reservoir_pipelines import ReservoirClassifier
from reservoir_pipelines.data import formats
from reservoir_pipelines.data.values import encode_values
from reservoir_pipelines.preparation.prepare import open_source
from scipy.io import wavfile

from reservoir.errors import InputError
from reservoir.tasks import Task, Tokens, Vectors
from reservoir.tasks.texts import texts_of, to_symbols
from tests.helpers import outcome
from tests.tasks.samples import assert_refused, read_new, read_splits

RNG = np.random.default_rng(0)
SPLITS = ["train", "valid", "test"] * 4


def source_of(path, content, **parameters):
    path.write_text(content)
    return open_source(str(path), **parameters)


def wide(columns, between=","):
    lines = [columns, *zip(*columns.values(), strict=True)]
    return "\n".join(between.join(map(str, line)) for line in lines) + "\n"


def test_the_label_is_named_and_columns_are_left_out(tmp_path):
    a, b, ward = RNG.normal(size=12).round(3), RNG.normal(size=12).round(3), np.arange(12) % 2
    text = wide({"": range(12), "a": a, "Unnamed: 7": range(12), "noise": a, "b": b, "ward": ward, "split": SPLITS})
    source = source_of(tmp_path / "t.csv", text, label="ward", drop=["noise"])
    assert source.task.form == Vectors(1) and source.task.max_tokens == 2 and source.task.classes == 2
    assert np.array_equal(read_splits(source)["train"].x[:, :, 0], np.stack([a, b], 1)[::3].astype(np.float32))
    assert sum("has no name" in note for note in source.notes()) == 2
    assert source.task.parameters == {"label": "ward", "drop": "noise", "columns": ["a", "b"]}
    whole = source_of(tmp_path / "t.csv", wide({"a": RNG.permutation(900)[:12], "b": b}), label="a")
    assert "t.csv: a read as targets of a regression" in whole.notes()[-1]


def test_columns_that_rounding_hides_beside_a_larger_one_are_named(tmp_path):
    ratio, age, second = RNG.random(12).round(3), RNG.integers(20, 80, 12), 1.7e9 + 1000.5 * RNG.permutation(12)
    columns = {"ratio": ratio, "second": second, "age": age, "label": list("ab") * 6}
    hidden = [note for note in source_of(tmp_path / "t.csv", wide(columns)).notes() if "cannot be seen" in note]
    assert len(hidden) == 1
    assert hidden[0].startswith("t.csv: ratio, age cannot be seen beside second,")
    assert hidden[0].endswith("or pass --drop second")
    # Nothing hides a constant column, whose deviation may be a rounding error instead of 0.
    constant = {"constant": [0.1] * 12, "proline": [*range(283, 1680, 127), 1680], "label": columns["label"]}
    assert "cannot be seen" not in " ".join(source_of(tmp_path / "c.csv", wide(constant)).notes())
    # Pixels that are nearly always black hide nothing, and are not hidden.
    pixels = {f"p{n}": RNG.integers(0, 256, 12) for n in range(4)} | {"edge": [1] + 11 * [0], "black": 12 * [0]}
    source = source_of(tmp_path / "p.csv", wide({**pixels, "label": columns["label"]}), values=True)
    assert "cannot be seen" not in " ".join(source.notes())


def test_a_target_that_may_be_mistyped_is_named(tmp_path):
    a, y = RNG.normal(size=40).round(3), np.linspace(-8, 8, 40).round(2)
    source = source_of(tmp_path / "t.csv", wide({"a": a, "b": a[::-1], "y": y}), label="y")
    assert "mistake" not in " ".join(source.notes())
    y[7] = 5000
    columns = {"id": [f"p{row}" for row in range(40)], "a": a, "b": a[::-1], "y": y}
    notes = [note for note in source_of(tmp_path / "o.csv", wide(columns), label="y").notes() if "mistake" in note]
    assert len(notes) == 1
    assert notes[0].startswith("o.csv: y is 5000 in row p7, but half of all targets are between -3.")


@pytest.mark.parametrize("asked", [{}, {"id": "case", "time": "t"}])
def test_the_long_form_makes_a_sequence_per_id(tmp_path, asked):
    sequences = [RNG.normal(size=(int(n), 2)).round(3) for n in RNG.integers(2, 6, 20)]
    steps = [(i, t / 4, values) for i, sequence in enumerate(sequences) for t, values in enumerate(sequence)]
    rows = [(f"s{i}", t, *values, "ab"[i % 2]) for i, t, values in steps]
    shuffled = [rows[place] for place in RNG.permutation(len(rows))]
    case, t = (asked["id"], asked["time"]) if asked else ("ID", "time")
    text = wide(dict(zip((case, t, "u", "v", "label"), zip(*shuffled, strict=True), strict=True)))
    source = source_of(tmp_path / "long.csv", text, **asked)
    assert source.task.form == Vectors(2) and source.task.classes == 2
    assert source.task.parameters["id"] == case and source.task.parameters["time"] == t
    assert any(f"20 sequences, one per '{case}'" in note for note in source.notes())
    x, lengths, ids, *_ = read_new(tmp_path / "long.csv", source.task)
    for name, row, length in zip(ids, x, lengths, strict=True):
        assert np.array_equal(row[:length], sequences[int(name[1:])])
    message = "'u,v' .* among .*; give one column: add one that joins the cells of u, v"
    assert_refused(message, tmp_path / "long.csv", id="u,v")
    for name, other, hint in ((case, f"{case}s", f"; did you mean '{case}s'"), (t, "hour", "")):
        (tmp_path / "new.csv").write_text((tmp_path / "long.csv").read_text().replace(name, other, 1))
        with pytest.raises(InputError, match=f"no column '{name}', which .* to '{name}'{hint}"):
            read_new(tmp_path / "new.csv", source.task)
    number = {sequence.astype(np.float32).tobytes(): i for i, sequence in enumerate(sequences)}
    for split in read_splits(source).values():
        for x, y, n in zip(split.x, split.y.ravel(), split.lengths, strict=True):
            assert number.pop(x[:n].tobytes()) % 2 == y
    assert not number


def test_all_steps_without_an_id_are_counted(tmp_path):
    columns = {"id": np.repeat([f"s{n}" for n in range(20)], 4), "time": [1, 2, 3, 4] * 20, "u": np.arange(80) % 7}
    labels = np.repeat(["a", "b"] * 10, 4)
    task = source_of(tmp_path / "long.csv", wide({**columns, "label": labels})).task
    columns["id"][[5, 6, 30]] = " "
    text = wide({**columns, "label": labels})
    (tmp_path / "new.csv").write_text(text)
    new = formats.read_new(tmp_path / "new.csv", task)
    assert [*new.skipped.values()] == [("", "line 7: no id in column 'id' (3 such rows)")] and len(new) == 20
    notes = source_of(tmp_path / "gaps.csv", text, skip_bad_rows=True).notes()
    assert any("make 20 sequences" in note for note in notes) and any("skipped 3 of 80 rows" in note for note in notes)


def test_a_split_that_divides_a_group_is_refused(tmp_path):
    arrays = {"y": np.arange(12) % 2, "groups": np.arange(12) // 6, "split": SPLITS}
    np.savez(tmp_path / "g.npz", x=RNG.normal(size=(12, 3)), **arrays)
    with pytest.raises(InputError, match="group 0 has rows in train and valid"):
        open_source(str(tmp_path / "g.npz")).read(open_source(str(tmp_path / "g.npz")).pieces()[0])


WORDS = ["".join(RNG.choice(list("ACGT"), RNG.integers(3, 9))) for _ in range(30)]
KINDS = ["left" if "A" in word else "right" for word in WORDS]


def write_texts(path, words=WORDS, kinds=KINDS):
    if path.suffix == ".jsonl":
        lines = (json.dumps({"class": k, "sequence": w}) for w, k in zip(words, kinds, strict=True))
        path.write_text("".join(f"{line}\n" for line in lines))
    elif path.suffix in {".csv", ".tsv"}:
        path.write_text(wide({"sequence": words, "class": kinds}, "," if path.suffix == ".csv" else "\t"))
    elif path.suffix == ".npz":
        np.savez(path, x=np.array(words), y=np.array(kinds))
    elif path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["x"], file["y"] = words, kinds
    else:
        records = (f">r{n} {k}\n{w[:2]}\n{w[2:]}\n" for n, (w, k) in enumerate(zip(words, kinds, strict=True)))
        path.write_text("".join(records))
    return path


def test_texts_are_encoded_stretch_by_stretch(tmp_path, monkeypatch):
    words = ["ACGT"[n % 4] * (n % 7 + 9) + "é" * (n == 29) for n in range(30)]
    whole = open_source(str(write_texts(tmp_path / "t.csv", words)))
    expected = whole.read(*whole.pieces())
    monkeypatch.setattr("reservoir_pipelines.data.rows.PIECE_LETTERS", 100)
    parts = open_source(str(tmp_path / "t.csv"))
    read = [parts.read(piece) for piece in parts.pieces()]
    assert len(read) > 3 and parts.task == whole.task
    for name, rows in expected.items():
        assert np.array_equal(np.concatenate([part[name].x for part in read if name in part]), rows.x)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".npz", ".h5", ".fasta"])
def test_texts_are_sequences_of_letters(tmp_path, suffix):
    longer = [word * 2 for word in WORDS]
    source = open_source(str(write_texts(tmp_path / f"t{suffix}", longer)))
    task = source.task
    assert task.form == Tokens(5) and task.alphabet == "\ufffdACGT" and task.labels == ("left", "right")
    found = {}
    for split in read_splits(source).values():
        for x, y, n in zip(split.x, split.y.ravel(), split.lengths, strict=True):
            found["".join(map(chr, x[:n]))] = task.labels[y]
    assert found == dict(zip(longer, KINDS, strict=True))
    assert any("4 symbols, the letters ACGT" in note for note in source.notes())
    assert Task.from_dict(json.loads(json.dumps(task.to_dict()))) == task
    x, *_ = read_new(tmp_path / f"t{suffix}", task)
    assert x.tolist() == longer and texts_of(*encode_values(task, x)) == longer
    x, *_ = read_new(write_texts(tmp_path / f"new{suffix}", ["AC", "ACJ", "G"], KINDS[:3]), task)
    codes, lengths = encode_values(task, x)
    assert to_symbols(codes, lengths, task.alphabet).tolist() == [[1, 2, 0], [1, 2, 0], [3, 0, 0]]


def test_letters_that_no_training_row_has_are_unknown(tmp_path):
    words = [word + ("☃" if n % 3 else "") for n, word in enumerate(WORDS[:12])]
    np.savez(tmp_path / "t.npz", x=np.array(words), y=np.array(KINDS[:12]), split=SPLITS)
    source = open_source(str(tmp_path / "t.npz"))
    unknown = "letters that no training row has, read as unknown: ☃"
    assert source.task.form == Tokens(5) and any(unknown in note for note in source.notes())
    assert ord("☃") in read_splits(source)["valid"].x[0]
    x, lengths = encode_values(source.task, np.array(["AJ"]))
    assert to_symbols(x, lengths, source.task.alphabet).tolist() == [[1, 0]] and lengths.tolist() == [2]


def test_the_text_and_the_label_can_be_named(tmp_path):
    text = wide({"title": WORDS, "body": [w * 2 for w in WORDS], "kind": KINDS, "n": range(30)})
    source = source_of(tmp_path / "t.csv", text, text="body", label="kind")
    assert_refused("no column is called label", tmp_path / "t.csv")
    assert source.task.labels == ("left", "right") and source.task.alphabet == "\ufffdACGT"
    assert any("only 'body' is read, not the columns title, n" in note for note in source.notes())
    with pytest.raises(InputError, match="no column 'body'"):
        read_new(write(tmp_path / "new.csv", {"title": WORDS}), source.task)


@pytest.mark.parametrize(("header", "asked"), [(">a|{}", {}), (">x kind={} z", {"label": r"kind=(\w+)"})])
def test_fasta_labels_come_from_the_header(tmp_path, header, asked):
    masked = [word[:2] + word[2:].lower() for word in WORDS]
    text = "".join(f"{header.format(kind)}\n{word}\n" for word, kind in zip(masked, KINDS, strict=True))
    task = source_of(tmp_path / "t.fa", text, **asked).task
    assert task.labels == ("left", "right") and read_new(tmp_path / "t.fa", task)[0].tolist() == WORDS
    assert read_new(tmp_path / "t.fa", replace(task, alphabet="\ufffdACGTacgt"))[0].tolist() == masked
    (tmp_path / "new.fa").write_text(f">x\nACGT\n{text}")
    labels = read_new(tmp_path / "new.fa", task)[3]
    assert labels.tolist() == [None, *KINDS]
    # Headers of other files, which end with names of classes, too.
    others = read_new(write_texts(tmp_path / "other.fasta"), task)[3]
    assert others is None if asked else set(others) == {"left", "right"}


@pytest.mark.parametrize("first", [0, 1])  # classes called 0 and 1 have no list of names
def test_new_headers_that_end_with_the_number_of_a_class_have_labels(tmp_path, first):
    records = [f">r{n} {first + n % 2}\n{word}\n" for n, word in enumerate(WORDS)]
    task = source_of(tmp_path / "t.fasta", "".join(records)).task
    (tmp_path / "new.fasta").write_text("".join([*records[:4], ">other 7\nACGT\n", ">none\nACGT\n"]))
    assert read_new(tmp_path / "new.fasta", task)[3].tolist() == [first, first + 1, first, first + 1, None, None]
    # A word is no label of every letter.
    every_letter = replace(task, parameters={"each": "token"})
    assert read_new(tmp_path / "new.fasta", every_letter)[3] is None


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("ACGT\n", {}, "line 1: no header"),
        (">a x\nACGT\n>b\nA\n", {}, "line 3: no label in the header 'b' by --label"),
        (">a 1\nACGT\n>b 2\n\n", {}, "line 3: an empty text"),
        (">a 1\nACGT\n", {"label": "("}, "not a regular expression"),
        (">a 1\nACGT\n", {"label": "a"}, "0 groups"),
        (">a 1\nACGT\n", {"label": "k(.)"}, "line 1: no label in the header 'a 1' by --label"),
    ],
)
def test_bad_fasta(tmp_path, text, parameters, message):
    (tmp_path / "t.fasta").write_text(text)
    assert_refused(message, tmp_path / "t.fasta", **parameters)


def test_rows_of_one_id_that_are_sequences_of_their_own_stay_together(tmp_path):
    text = wide({"id": np.arange(60) // 4, "u": range(1, 121, 2), "v": range(0, 120, 2), "y": np.arange(60) % 2})
    source = source_of(tmp_path / "t.csv", text, group="id")
    assert_refused("repeats the same ids.* --group id", tmp_path / "t.csv")
    steps = source_of(tmp_path / "t.csv", text, time="v")
    assert steps.task.labels_each_token and "pass --group id instead of --id if each row" in " ".join(steps.notes())
    splits = read_splits(source)
    assert source.task.max_tokens == 2 and sum(map(len, splits.values())) == 60
    assert {len(split) % 4 for split in splits.values()} == {0}
    assert source_of(tmp_path / "t.csv", text, drop="id").task.max_tokens == 2
    words = ["".join(RNG.choice(list("ACGT"), 9)) for _ in range(60)]
    text = wide({"who": np.arange(60) // 4, "x": words, "y": np.arange(60) % 2})
    fasta = "".join(f">r{n // 1.5:.0f} {n % 2}\n{word[:4]} {word[4:]}\n" for n, word in enumerate(words))
    labels = source_of(tmp_path / "l.csv", "id,y\n" + "".join(f"r{n},{n % 2}\n" for n in range(40))).origin
    for name, content, asked in (
        ("t.csv", text, {"id": "who"}),
        ("t.fasta", fasta, {}),
        ("t.fasta", fasta, {"labels": labels}),
    ):
        source = source_of(tmp_path / name, content, **asked)
        assert "are kept in one split" in str(source.notes()) and source.task.alphabet == "\ufffdACGT"
        groups = [set(part.groups.tolist()) for part in source.read(source.pieces()[0]).values()]
        assert sum(map(len, groups)) == len(set.union(*groups))


ROWS = 40
LABEL = np.array(["a", "b"])[np.arange(ROWS) % 2]
VALUES = RNG.normal(size=(ROWS, 3)).round(3)
WIDE = {f"v{n}": VALUES[:, n] for n in range(3)}
EVENTS = [RNG.integers(0, 9, n).tolist() for n in RNG.integers(2, 7, ROWS)]
DAYS = [f"2024-01-{n % 28 + 1:02d}" for n in range(ROWS)]
SERIES = np.repeat(np.arange(ROWS), 4)
LONG = {"u": RNG.normal(size=ROWS * 4).round(3), "label": np.repeat(LABEL, 4)}


def write(path, columns, between=","):
    path.write_text(wide(columns, between))
    return path


def in_any_order(values):
    """Return values (rows, tokens) as `stored` returns them."""
    return sorted(np.asarray(values, np.float32).astype(float).round(3)[:, :, None].tolist())


def stored(path, **asked):
    """Return the task of a file, its rows in any order with their ends cut, and its notes."""
    source = open_source(str(path), **asked)
    parts = [split for piece in source.pieces() for split in source.read(piece).values()]
    rows = [row[:n].astype(np.float64) for part in parts for row, n in zip(part.x, part.lengths, strict=True)]
    return source.task, sorted(row.round(3).tolist() for row in rows), " ".join(source.notes())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"timestamp": 1_700_000_000 + 60 * np.arange(ROWS)}, "'timestamp' is left out, because each row is"),
        ({"Time": DAYS}, "'Time' is left out"),
        ({"ID": 1000 + np.arange(ROWS)}, "'ID' holds names of the rows"),
        ({"": np.arange(ROWS)}, "is left out because it has no name"),
        ({"__index_level_0__": RNG.permutation(ROWS)}, "'__index_level_0__' is left out because it has no name"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_names_and_times_of_rows_are_no_values(tmp_path, column, message, first):
    columns = {**column, **WIDE} if first else {**WIDE, **column}
    task, rows, notes = stored(write(tmp_path / "t.csv", {**columns, "label": LABEL}))
    assert task.max_tokens == 3 and message in notes
    assert rows == in_any_order(VALUES)
    new = write(tmp_path / "new.csv", {name: np.asarray(cells)[[7, 2]] for name, cells in columns.items()})
    assert np.array_equal(read_new(new, task)[0], VALUES[[7, 2]])


def test_events_in_long_form_are_symbols_on_request(tmp_path):
    columns = {"user": SERIES, "t": list(range(4)) * ROWS, "event": SERIES * 3 % 5, "label": LONG["label"]}
    asked = {"id": "user", "time": "t"}
    task = open_source(str(write(tmp_path / "t.csv", columns)), symbols=True, **asked).task
    assert task.form == Tokens(5) and task.max_tokens == 4
    assert read_new(tmp_path / "t.csv", task)[0].tolist() == np.reshape(columns["event"], (ROWS, 4)).tolist()
    columns["event"] = [f"event {n}" for n in range(4 * ROWS)]
    with pytest.raises(InputError, match=r"same 'user' are not joined, because .* pass --symbols"):
        stored(write(tmp_path / "t.csv", columns), **asked)


@pytest.mark.parametrize(
    "form",
    [
        lambda row: " ".join(map(str, row)),
        lambda row: f'"{",".join(map(str, row))}"',
        lambda row: f'"{row}"',
        lambda row: ";".join(map(str, row)),
        lambda row: f"[{' '.join(map(str, row))}]",
    ],
)
@pytest.mark.parametrize("name", ["x", "events"])
def test_a_column_of_numbers_in_each_cell_is_the_sequences(tmp_path, form, name):
    columns = {"time": DAYS, name: [form(row) for row in EVENTS], "label": LABEL}
    asked = {} if name == "x" else {"text": name}
    task, rows, _ = stored(write(tmp_path / "t.csv", columns), **asked)
    assert isinstance(task.form, Tokens) and task.form.vocabulary == 9 and not task.alphabet
    assert rows == sorted([float(value) for value in row] for row in EVENTS)
    new = write(tmp_path / "new.csv", {"other": [1, 2], name: [form([3]), form([1, 4, 8])]})
    x, lengths, *_ = read_new(new, task)
    assert x.tolist() == [[3, 0, 0], [1, 4, 8]] and lengths.tolist() == [1, 3]


@pytest.mark.parametrize("long", [True, False])
def test_x_y_and_z_are_places_if_a_flag_names_the_label(tmp_path, long):
    ids = {"id": np.arange(ROWS) // 4, "Time": np.tile(range(4), ROWS // 4)} if long else {}
    label = LABEL[np.arange(ROWS) // 4] if long else LABEL
    columns = {**ids, **dict(zip("xyz", VALUES.T, strict=True))}
    task, _, notes = stored(write(tmp_path / "t.csv", {**columns, "label": label}), label="label")
    assert (task.form == Vectors(3) and task.max_tokens == 4) if long else task.max_tokens == 3
    assert "x, y, z" in notes and task.labels == ("a", "b")
    x, _, _, y, *_ = read_new(write(tmp_path / "new.csv", columns), task)
    assert np.array_equal(x.reshape(ROWS, 3), VALUES) and y is None


def test_zones_of_times_are_counted_in(tmp_path, recwarn):
    times = np.tile(["2024-01-01T03:00:00+02:00", "2024-01-01T02:00:00Z"], ROWS)
    series = np.repeat(np.arange(ROWS), 2)
    columns = {"id": series, "time": times, "u": np.tile([1.5, 2.5], ROWS), "label": LABEL[series]}
    assert stored(write(tmp_path / "t.csv", columns))[1] == [[[1.5], [2.5]]] * ROWS  # 1:00 and 2:00 of UTC
    assert not recwarn.list


def test_a_missing_last_column_is_a_missing_value(tmp_path):
    task = open_source(str(write(tmp_path / "t.csv", {**WIDE, "label": LABEL}))).task
    new = write(tmp_path / "new.csv", {name: cells for name, cells in WIDE.items() if name != "v2"})
    with pytest.raises(InputError, match="no column 'v2'"):
        read_new(new, task)
    early = {**WIDE, "v2": np.where(np.arange(ROWS) == 3, "", VALUES[:, 2]), "label": LABEL}
    assert read_new(new, open_source(str(write(tmp_path / "t.csv", early))).task)[1].tolist() == [2] * ROWS


def test_new_data_may_have_its_columns_in_any_order(tmp_path):
    values = RNG.normal(size=(ROWS, 300))
    cells = {f"{900 + place}.5": column for place, column in enumerate(values.T)}
    task = open_source(str(write(tmp_path / "t.csv", {**cells, "label": LABEL}))).task
    new = write(tmp_path / "n.csv", {"batch": VALUES[:, 0], **dict(reversed(cells.items())), "humidity": VALUES[:, 1]})
    assert np.array_equal(read_new(new, task)[0].reshape(ROWS, 300), values)
    with pytest.raises(InputError, match=r"no column '907\.5', .*920\.5 and 279 more"):
        read_new(write(tmp_path / "new.csv", {name: cells[name] for name in cells if name != "907.5"}), task)


def fill_class_folder(folder: Path, kind: str, rows: int = 4):
    for name in ("Vögel", "große Hunde"):
        for row in range(rows):
            for place in (folder / name, folder / name / ".ipynb_checkpoints"):
                place.mkdir(parents=True, exist_ok=True)
                if kind == "PNG":
                    Image.fromarray(RNG.integers(0, 255, (5 + row, 7, 3), np.uint8)).save(place / f"{row}.PNG")
                else:
                    wavfile.write(place / f"{row}.WAV", 16_000, RNG.integers(-99, 99, 900).astype(np.int16))


@pytest.mark.parametrize("kind", ["PNG", "WAV"])
def test_folders_of_splits_and_hidden_copies_are_no_classes(tmp_path, kind):
    if kind == "WAV":
        pytest.importorskip("soundfile")
    fill_class_folder(tmp_path / "plain", kind, 8)
    plain = open_source(str(tmp_path / "plain"))
    assert plain.task.labels == ("Vögel", "große Hunde") and plain.pieces()[-1].hi == 16
    for split in ("Training", "VAL", "Test"):
        fill_class_folder(tmp_path / "split" / split, kind)
    source = open_source(str(tmp_path / "split"))
    assert source.task.labels == plain.task.labels
    found = [source.read(piece) for piece in source.pieces()]
    assert [sum(len(one[name].y) for one in found if name in one) for name in ("train", "valid", "test")] == [8] * 3
    fill_class_folder(tmp_path / "split" / "unlabelled", kind)
    assert_refused("'unlabelled' is not one of the splits", tmp_path / "split")


@pytest.mark.parametrize(("offset", "fits"), [(1e9, False), (1e3, True)])
def test_values_that_float32_cannot_tell_apart_are_refused(tmp_path, offset, fits):
    x = np.stack([VALUES, offset + 0.01 * VALUES, np.full((ROWS, 3), 0.1)], axis=2)  # the last channel is constant
    np.savez(tmp_path / "t.npz", x=x, y=LABEL)
    source = open_source(str(tmp_path / "t.npz"))
    with nullcontext() if fits else pytest.raises(InputError, match=r"x varies too little for float32 in column 1"):
        source.scaling()
    model = ReservoirClassifier(layers="embed", pool="mean")
    with nullcontext() if fits else pytest.raises(ValueError, match=r"X: x varies too little for float32 in column 1"):
        model.fit(x, LABEL)


@pytest.mark.parametrize(("outlier", "fits"), [(1e12, False), (-1e12, False), (1e5, True)])
def test_an_outlier_beside_which_float32_loses_the_other_values_is_refused(tmp_path, outlier, fits):
    x = np.stack([VALUES, VALUES, np.zeros((ROWS, 3))], axis=2)
    x[:, 0, 2] = 1  # most values of this channel are the same
    np.savez(tmp_path / "t.npz", x=x, y=LABEL)
    train = open_source(str(tmp_path / "t.npz"))
    row = next(int(part["train"].ids[0]) for part in map(train.read, train.pieces()) if "train" in part)
    x[row, 1, 1] = outlier
    np.savez(tmp_path / "t.npz", x=x, y=LABEL)
    with nullcontext() if fits else pytest.raises(InputError, match=r"outliers move the mean of x in column 1 "):
        open_source(str(tmp_path / "t.npz")).scaling()
    model = ReservoirClassifier(layers="embed", pool="mean")
    with nullcontext() if fits else pytest.raises(ValueError, match=r"X: outliers move the mean of x in column 1 "):
        model.fit(x, LABEL)


@pytest.mark.parametrize(
    ("cell", "labels", "is_class"),
    [
        ("NaN", LABEL, False),
        ("n/a", LABEL, False),
        ("NA", LABEL, True),
        ("none", LABEL, True),
        ("NA", np.arange(ROWS) % 3, False),
        ("None", VALUES[:, 0], False),
        ("nan", np.arange(ROWS) % 3, False),
    ],
)
def test_cells_that_stand_for_a_missing_label_are_bad_rows_unless_they_may_name_a_class(
    tmp_path, cell, labels, is_class
):
    path = write(tmp_path / "t.csv", {**WIDE, "label": np.where(np.arange(ROWS) % 7 == 0, cell, labels.astype(str))})
    if is_class:
        assert f"a class {cell!r}; remove these rows if" in stored(path)[2]
        return
    assert_refused(rf"{-(-ROWS // 7)} rows cannot .* line 2: no label in column 'label' \('{cell}'\)", path)
    task, rows, notes = stored(path, skip_bad_rows=True)
    assert f"skipped {-(-ROWS // 7)} of {ROWS} rows" in notes
    has_label = np.arange(ROWS) % 7 > 0
    alone = stored(write(tmp_path / "alone.csv", {**WIDE, "label": labels}))[0]
    assert (task.classes, task.labels, len(rows)) == (alone.classes, alone.labels, has_label.sum())
    assert [label is not None for label in read_new(path, alone)[3].tolist()] == has_label.tolist()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_whole_numbers_beside_missing_labels_stay_whole(tmp_path, suffix):
    label = pd.array([None if row % 7 == 0 else row % 3 for row in range(ROWS)], dtype="Int64")
    table, path = pd.DataFrame({**WIDE, "label": label}), tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
        table.to_parquet(path)
    else:
        table.to_json(path, orient="records", lines=True)
    task = stored(path, skip_bad_rows=True)[0]
    assert (task.classes, task.labels) == (3, ())
    if suffix == ".parquet":  # which keeps apart what is written as 1 and as 1.0
        table.assign(label=label.astype("Float64")).to_parquet(path)
        assert stored(path, skip_bad_rows=True)[0].classes == 0


@pytest.mark.parametrize(("labels", "says"), [(np.arange(ROWS) % 5 + 1, "--regression"), (np.arange(ROWS) % 2, "")])
def test_more_than_two_whole_numbers_are_classes_with_a_note(tmp_path, labels, says):
    notes = stored(write(tmp_path / "t.csv", {**WIDE, "label": labels}))[2]
    assert ("read as classes" in notes and says in notes) if says else not notes


@pytest.mark.parametrize(("name", "between"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.csv", ",")])
def test_separators_are_seen_in_the_header_and_decimal_commas_need_the_flag(tmp_path, name, between):
    columns = {**WIDE, "y": RNG.normal(size=ROWS).round(3)}
    asked = {}
    if between != ",":
        columns = {name: [str(value).replace(".", ",") for value in cells] for name, cells in columns.items()}
        asked = {"decimal": ","}
    task, rows, _ = stored(write(tmp_path / name, columns, between), **asked)
    assert task.classes == 0 and rows == in_any_order(VALUES)
    assert np.array_equal(read_new(tmp_path / name, task)[0], VALUES)


@pytest.mark.parametrize(
    ("u", "v", "y", "decimal", "refused"),
    [
        (["1.037", "2.960"], ["0,5", "1,5"], LABEL, ".", "'0,5' is not a number in column 'v'.* --decimal ,"),
        (["1.037", "2.960"], ["0,5", "1,5"], LABEL, ",", "'1.037' is not a number in column 'u'"),
        (["1.037,50", "960,25"], ["0", "1"], LABEL, ",", "'1.037,50' is not a number in column 'u'"),
        (["1,037", "960"], ["1", "2"], LABEL, ".", "'1,037' is not a number in column 'u'"),
        (["1", "2"], ["3", "4"], ["0,5", "1,25"], ".", "'y': labels like '0,5' are not .* --decimal ,"),
        (["1", "2"], ["3", "4"], ["1.037", "2.960"], ",", "'y': labels like '1.037' are not"),
        (["1.037", "2.960"], ["1", "2"], LABEL, ".", ""),
        (["1,037", "2,960"], ["1", "2"], LABEL, ",", ""),
    ],
)
def test_thousands_are_never_read_and_decimals_only_with_one_mark(tmp_path, u, v, y, decimal, refused):
    columns = {"u": u * ROWS, "v": v * ROWS, "y": [*y] * ROWS}
    path = write(tmp_path / "t.csv", {name: cells[:ROWS] for name, cells in columns.items()}, ";")
    with pytest.raises(InputError, match=refused) if refused else nullcontext():
        assert [[1.037], [1.0]] in np.float64(stored(path, decimal=decimal)[1]).round(4).tolist()


def test_one_bad_cell_in_a_column_with_decimal_commas_is_a_bad_row(tmp_path):
    cells = [str(value).replace(".", ",") for value in VALUES[:, 0]]
    path = write(tmp_path / "t.csv", {"u": ["n.d.", *cells[1:]], "v": cells, "label": LABEL}, ";")
    assert_refused("line 2: 'n.d.' is not a number in column 'u'; fix the file", path, decimal=",")
    _, rows, _ = stored(path, decimal=",", skip_bad_rows=True)
    assert rows == in_any_order(VALUES[1:, [0, 0]])


def test_decimal_decides_what_commas_in_labels_and_recordings_mean(tmp_path):
    target = [str(value).replace(".", ",") for value in VALUES[:, 0]]
    path = write(tmp_path / "labels.csv", {"file": range(ROWS), "label": target}, ";")
    names = write(tmp_path / "t.csv", {**WIDE, "label": [("1,2", "1,3")[row % 2] for row in range(ROWS)]}, ";")
    assert stored(names, classes=True)[0].labels == ("1,2", "1,3")
    (tmp_path / "runs").mkdir()
    for row in range(ROWS):
        write(tmp_path / "runs" / f"{row}.csv", {"u": ["0,5", "1"], "v": [row, 2]}, ";")
    task, rows, _ = stored(tmp_path / "runs", labels=str(path), decimal=",")
    assert rows[0][0] == [0.5, 0] and task.classes == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**WIDE, "y": np.where(np.arange(ROWS) == 7, "", LABEL)}, "line 9: no label in column 'y'; fix the file"),
        ({**WIDE, "y": np.where(np.arange(ROWS) == 7, "n.d.", VALUES[:, 0])}, "line 9: the label 'n.d.' in column 'y'"),
        (
            {"id": ["a", "a", "b"], "time": [1, 1, 2], "u": [1, 2, 3], "y": [0, 0, 1]},
            "line 3: 'a' has two rows at time 1",
        ),
        ({"id": ["a", "a", "b"], "time": [1, 2, 2], "u": [1, "", 3], "y": [0, 0, 1]}, "line 3: an empty cell"),
        ({"id": ["a", "a", ""], "time": [1, 2, 2], "u": [1, 2, 3], "y": [0, 0, 1]}, "line 4: no id in column 'id'"),
        ({"id": ["a", "a", " "], "time": [1, 2, 2], "u": [1, 2, 3], "y": [0, 0, 1]}, "line 4: no id in column 'id'"),
        (
            {**WIDE, "groups": np.where(np.arange(ROWS), "a", ""), "y": LABEL},
            "no groups in column 'groups'",
        ),
        ({"a": [1], "a ": [2], "y": [3]}, "two columns are called 'a'"),
        ({"a": [1, "NA"], "b": [2, 3], "y": [3, 4]}, "line 3: an empty cell in column 'a' ... --missing interpolate"),
        (
            {**WIDE, "y0": LABEL, "y1": VALUES[:, 0]},
            "some of the labels y0, y1 are numbers and some are not; fit one at a time",
        ),
        (
            {**WIDE, "y": LABEL, "label": LABEL},
            "the columns label, y all have conventional names of the label; pass --label",
        ),
        ({**WIDE, "label": ["a"] * ROWS}, "all labels are the same ('a')"),
        (
            {**WIDE, "severity": LABEL},
            "no column is called label, target, class or y among v0, v1, v2, severity; pass ... --label severity",
        ),
        (
            {"o k": LABEL, **WIDE, "label": LABEL},
            "'a' is not a number in column 'o k' ... pass --drop 'o k', or the flag",
        ),
        ({"day": DAYS, **WIDE, "label": LABEL}, "'2024-01-01' is not a number in column 'day' ... --time day"),
        ({"id": SERIES, "t": list(range(4)) * ROWS, **LONG}, "no column is called time or timestamp; pass --time NAME"),
        ({"id": SERIES, "time": ["2024-10-27 02:00"] * 4 * ROWS, **LONG}, "two rows at time 2024"),
        ({"id": SERIES, "time": ["", 1, 2, 3] * ROWS, **LONG}, "no time in column 'time'"),
        ({"id": SERIES, "time": [f"{n}/{5 - n}/2024" for n in (1, 2, 3, 4)] * ROWS, **LONG}, "ISO 8601"),
        ({"id": SERIES, "time": [f"{n}.1.2024 08:00" for n in (1, 2, 3, 4)] * ROWS, **LONG}, "ISO 8601"),
        (
            {name: [f"{cell}%" for cell in cells] for name, cells in WIDE.items()} | {"label": LABEL},
            "%' is not a number in column 'v0'",
        ),
        ({**WIDE, "v1": np.where(np.arange(ROWS) == 3, "inf", VALUES[:, 1]), "label": LABEL}, "inf in column 'v1'"),
    ],
)
def test_ambiguous_tables_are_refused_in_one_line(tmp_path, columns, message):
    found = outcome(stored, write(tmp_path / "t.csv", columns))
    assert all(part in found for part in message.split(" ... "))


def in_order(splits, array):
    """Return the rows in the order of the file, which alternates between the splits."""
    parts = [getattr(splits[name], array) for name in ("train", "valid", "test")]
    return np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])


def test_csv_with_a_column_per_value(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 5)).round(3)
    cells = x.astype(object)
    cells[7, 3:] = ""
    steps = {f"t{step}": cells[:, step] for step in range(5)}
    columns = {"label": ["right", "left"] * 6, "split": SPLITS} | steps
    source = source_of(tmp_path / "mine.csv", wide(columns) + "\n")
    splits = read_splits(source)
    assert source.task.form == Vectors(1) and source.task.labels == ("left", "right")
    x[7, 3:] = 0
    assert np.array_equal(in_order(splits, "x")[:, :, 0], x.astype(np.float32))
    assert in_order(splits, "lengths").tolist() == [5] * 7 + [3] + [5] * 4
    assert in_order(splits, "y").ravel().tolist() == [1, 0] * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y,a\n", "no rows"),
        ("", "no rows"),
        ("y,a,b\n1,2,3\n1,2,3,4\n", "line 3: 4 cells under 3"),
        ("y,a,b\n1,2,x\n", "line 2: 'x' is not a number in column 'b'"),
        ("y,a,b\n1,,3\n1,2,3\n", "line 2: an empty cell in column 'a'"),
        ("y,x\n1,1 2\n2,1 q\n", "line 3: '1 q' is not a sequence of numbers"),
        ("y,x\n1,1 2\n2,\n", "line 3: 'nan' is not a sequence"),
        ("y\n1\n", "no columns of values"),
        ('y,a\n1,"2\n', "not a readable table"),
    ],
)
def test_csv_errors_name_the_place(tmp_path, text, message):
    (tmp_path / "mine.csv").write_text(text)
    assert_refused(message, tmp_path / "mine.csv")


def test_parquet(tmp_path):
    path = tmp_path / "mine.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        path.write_bytes(b"PAR1")
        assert_refused("needs pyarrow", path)
        return
    import pyarrow
    import pyarrow.parquet

    sequences = [[[float(n), 1.0]] * (n % 4 + 1) for n in range(12)]
    table = pyarrow.table({"x": sequences, "y": [f"c{n % 2}" for n in range(12)], "split": SPLITS})
    pyarrow.parquet.write_table(table, path)
    source = open_source(str(path))
    splits = read_splits(source)
    assert source.task.form == Vectors(2) and source.task.labels == ("c0", "c1")
    assert in_order(splits, "lengths").tolist() == [1, 2, 3, 4] * 3
    assert in_order(splits, "x")[5].tolist() == [[5, 1], [5, 1], [0, 0], [0, 0]]
    path.write_bytes(path.read_bytes()[:-9])
    assert_refused("not a readable Parquet", path)
    channels = {"u": [[1.5] * (n % 4 + 1) for n in range(12)], "v": [[float(n)] * (n % 4 + 1) for n in range(12)]}
    pyarrow.parquet.write_table(pyarrow.table({**channels, "y": [n % 2 for n in range(12)], "split": SPLITS}), path)
    task = open_source(str(path)).task
    assert in_order(read_splits(open_source(str(path))), "x")[5].tolist() == [[1.5, 5], [1.5, 5], [0, 0], [0, 0]]
    pyarrow.parquet.write_table(pyarrow.table({"v": [[2.0, 3.0], [4.0]], "u": [[0.0, 1.0], [4.0, 5.0]]}), path)
    new = read_new(path, task)
    assert new.x.tolist() == [[[0, 2], [1, 3]]] and "row 1: the cells of u, v are not lists" in new.skipped[1][1]


@pytest.mark.parametrize("bomb", ["one long row", "one long word"])
def test_a_small_parquet_that_unpacks_to_gigabytes_is_refused(tmp_path, bomb):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zeros = pyarrow.array(np.zeros(20_000_000, np.int64))
    word = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(1000, np.int32)), pyarrow.array(["A" * 2**20]))
    x = word if bomb == "one long word" else pyarrow.ListArray.from_arrays(pyarrow.array([0, len(zeros)]), zeros)
    path = tmp_path / "mine.parquet"
    parquet.write_table(pyarrow.table({"x": x, "y": [f"c{n % 2}" for n in range(len(x))]}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    assert_refused("are stored", path)


APART = {
    "zeros": (["007", "7", "8"], ["007", "7", "8"]),
    "plus": (["+7", "7", "-7"], ["+7", "-7", "7"]),
    "underscore": (["1_000", "1000"], ["1000", "1_000"]),
    "Arabic": (["\u0667", "7"], ["7", "\u0667"]),
    "minus zero": (["-0", "0"], ["-0", "0"]),
    "padded alike": (["01", "02"], ["01", "02"]),
    "whole": (["7", "-3", "0"], [-3, 0, 7]),
    "too long": (["1" * 30, "0" * 5000], ["0" * 5000, "1" * 30]),
}
"""Cells of a label column, and the names of its classes."""


def classes_of(path, **asked):
    source = open_source(str(path), **asked)
    labels = {name: split.y for name, split in read_splits(source).items()}
    counts = np.bincount(np.concatenate([y.ravel() for y in labels.values()]))
    assert len(set(counts.tolist())) == 1, "classes of different sizes are merged"
    return list(source.task.labels or range(source.task.classes))


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("form", ["label", "other name", "jsonl", "outputs", "each token", "folder", "npz", "fasta"])
def test_labels_that_are_written_differently_are_different_classes(tmp_path, name, form):
    cells, expected = APART[name]
    asked = {"classes": True} if name == "too long" else {}
    label, path = (cells * 60)[:60], tmp_path / "mine.csv"
    x = RNG.normal(size=(60, 2)).round(3).astype(str)
    if form in ("label", "outputs"):
        y = {"label": label} if form == "label" else {"y0": label, "y10": label[::-1]}
        path.write_text(wide({"a": x[:, 0], "b": x[:, 1], **y}))
    elif form == "other name":
        path.write_text(wide({"text": [f"A{'CG' * n}" for n in range(60)], "kind": label}))
    elif form == "jsonl":
        path = tmp_path / "mine.jsonl"
        path.write_text("".join(json.dumps({"a": n / 8, "b": -n, "label": one}) + "\n" for n, one in enumerate(label)))
    elif form == "each token":
        path = tmp_path / "mine.jsonl"
        rows = [{"text": "ACDE"[: len(cells)], "label": np.roll(cells, n).tolist()} for n in range(60)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert open_source(str(path), **asked).task.labels_each_token is True
    elif form == "npz":
        path = tmp_path / "mine.npz"
        np.savez(path, x=x.astype(float), y=np.array(label))
    elif form == "fasta":
        path = tmp_path / "mine.fasta"
        path.write_text("".join(f">p{n} {one}\nACDEFG\n" for n, one in enumerate(label)))
    else:
        path = tmp_path / "runs"
        path.mkdir()
        for n in range(60):
            (path / f"{n}.csv").write_text(f"u\n{x[n, 0]}\n{x[n, 1]}\n")
        (tmp_path / "labels.csv").write_text(wide({"file": range(60), "state": label}))
        asked["labels"] = str(tmp_path / "labels.csv")
    classes = classes_of(path, **asked)
    assert classes == (sorted(map(str, expected)) if form == "npz" else expected)


def test_a_note_says_that_unusual_numbers_are_names_and_a_flag_makes_them_numbers(tmp_path):
    path = write(tmp_path / "t.csv", {**WIDE, "label": [("007", "7", "08")[n % 3] for n in range(ROWS)]})
    assert "label read as names of classes, because the number '007' is not written as usual" in stored(path)[2]
    task = stored(path, regression=True)[0]
    assert task.classes == 0


@pytest.mark.parametrize(
    ("cells", "asked", "expected"),
    [
        (["1.0", "2.0"], {}, 0),
        (["1.0", "2.0"], {"classes": True}, [1, 2]),
        (["1.0", "1", "2"], {}, 0),
        (["1.0", "1", "2"], {"classes": True}, ["1", "1.0", "2"]),
        (["1e3", "2e3"], {}, 0),
        (["1e3", "1000"], {"classes": True}, ["1000", "1e3"]),
        (["1.5", "+2.5", "02", "3"], {}, 0),
        (["-1", "1"], {}, [-1, 1]),
    ],
)
def test_decimal_numbers_and_exponents_are_targets_and_whole_ones_may_be_classes(tmp_path, cells, asked, expected):
    path = write(tmp_path / "t.csv", {**WIDE, "label": [cells[n % len(cells)] for n in range(ROWS)]})
    task = stored(path, **asked)[0]
    assert task.classes == 0 if expected == 0 else list(task.labels) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, 1], ["1", "True"]),
        ([False, 0, 1], ["0", "1", "False"]),
        ([True, False], [False, True]),
        ([[1, 0], [True, 0]], ["0", "1", "True"]),
        ([["07", "7"], ["7", "07"]], ["07", "7"]),
    ],
)
def test_a_switch_of_json_is_not_a_number(tmp_path, values, expected):
    path, label = tmp_path / "t.jsonl", (values * 60)[:60]
    path.write_text("".join(json.dumps({"a": n / 8, "b": -n, "label": one}) + "\n" for n, one in enumerate(label)))
    assert list(open_source(str(path)).task.labels) == expected


def test_groups_that_are_written_differently_are_different_groups(tmp_path):
    group, label = [("07", "7", "+7", "a")[n % 4] for n in range(ROWS)], LABEL
    table = write(tmp_path / "t.csv", {**WIDE, "label": label, "site": group})
    assert "4 groups, each in one split" in stored(table, group="site")[2]
    (tmp_path / "runs").mkdir()
    for n in range(ROWS):
        (tmp_path / "runs" / f"{n}.csv").write_text("u\n1\n2\n")
    for columns in ({"group": "site"}, {}):
        name = columns.get("group", "groups")
        cells = [one.replace("a", "8") for one in group]
        written = write(tmp_path / "labels.tsv", {"file": range(ROWS), "label": label, name: cells}, "\t")
        notes = " ".join(open_source(str(tmp_path / "runs"), labels=str(written), **columns).notes())
        assert "4 groups, each in one split" in notes


LABELS_OUT_OF_RANGE = {
    "constant": ([2.5] * ROWS, {}, r"all labels are the same \(2.5\); give rows with different labels"),
    "a constant output": (np.stack([RNG.normal(size=ROWS), np.full(ROWS, 2.5)], 1), {}, "all values of output 1 of y"),
    "constant as targets": ([7] * ROWS, {"regression": True}, r"all labels are the same \(7\)"),
    "infinite": ([np.inf, *range(1, ROWS)], {}, "y is inf in row 0, which is not a finite float32 number"),
    "infinite class": ([np.inf, *[1.0, 2.0] * 20][:ROWS], {"classes": True}, "y is inf in row 0"),
    "missing": ([*"ab" * 10, np.nan, *"ab" * 9, "a"], {}, "y is 'nan' in row 20"),
    "large": (np.arange(ROWS, dtype="u8") % 2 + 2**63, {}, "y holds 9223372036854775809, which does not fit into 64"),
}


@pytest.mark.parametrize("name", LABELS_OUT_OF_RANGE)
@pytest.mark.filterwarnings("error")
def test_labels_that_no_readout_can_learn_are_refused_in_arrays(tmp_path, name):
    y, asked, message = LABELS_OUT_OF_RANGE[name]
    np.savez(tmp_path / "t.npz", x=RNG.normal(size=(ROWS, 3)), y=np.asarray(y))
    assert_refused(message, tmp_path / "t.npz", **asked)


def test_a_class_of_an_array_may_be_called_nan(tmp_path):
    np.savez(tmp_path / "t.npz", x=RNG.normal(size=(ROWS, 3)), y=np.array(["nan", "b"])[np.arange(ROWS) % 2])
    source = open_source(str(tmp_path / "t.npz"), classes=True)
    assert source.task.labels == ("b", "nan") and "y has a class 'nan'" in " ".join(source.notes())


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_labels_that_no_readout_can_learn_are_refused_in_tables(tmp_path, form):
    path = tmp_path / f"t.{form}"
    flags = "pass --classes to read labels as names, or --regression for targets"
    cases = [
        (["2.5"], "", "all labels are the same \\(2.5\\)"),
        (["0", "1", str(2**64)], "line ", f"the label {2**64} in column 'label' does not fit into 64 bits.* {flags}"),
        (["0.5", "1.5", "1.75", "Infinity"], "line ", "the label '(Infinity|inf)' in column 'label' is not a finite"),
        (["0", "1", "0", "Infinity"], "line ", "the label '(Infinity|inf)' in column 'label' is not a finite"),
    ]
    for cells, place, message in cases:
        label = [cells[n % len(cells)] for n in range(ROWS)]
        if form == "csv":
            write(path, {**WIDE, "label": label})
        else:
            path.write_text("".join(f'{{"a": {-n}, "b": 2, "label": {cell}}}\n' for n, cell in enumerate(label)))
        assert_refused(f"{place}.*{message}", path)
    label = [str(2**64 + n % 2) for n in range(ROWS)]
    write(path.with_suffix(".csv"), {**WIDE, "label": label})
    assert stored(path.with_suffix(".csv"), classes=True)[0].labels == (str(2**64), str(2**64 + 1))


@pytest.mark.parametrize("name", ["val", "dev", "validation"])
def test_usual_names_of_the_validation_split_are_accepted(tmp_path, name):
    split = [("train", name, "test")[n % 3] for n in range(ROWS)]
    np.savez(tmp_path / "t.npz", x=VALUES, y=LABEL, split=split)
    write(tmp_path / "t.csv", {**WIDE, "label": LABEL, "split": split})
    for path in (tmp_path / "t.npz", tmp_path / "t.csv"):
        parts = read_splits(open_source(str(path)))
        assert {part: len(rows) for part, rows in parts.items()} == {"train": 14, "valid": 13, "test": 13}


def test_a_hint_names_no_column_that_cannot_be_the_label(tmp_path):
    (tmp_path / "t.fasta").write_text("".join(f">p{row}\n{word}\n" for row, word in enumerate(WORDS)))
    notes = " ".join(open_source(str(tmp_path / "t.fasta")).notes())
    assert "pattern" in notes and "--label sequence" not in notes
    notes = stored(write(tmp_path / "t.csv", {"crime": VALUES[:, 0], "zone": VALUES[:, 1]}))[2]
    assert "among crime, zone; pass --label NAME if" in notes
    path = write(tmp_path / "t.csv", {**WIDE, "place": np.where(np.arange(ROWS) % 3, "x", LABEL), "kind": LABEL})
    assert_refused(r"NAME \(probably one of kind, place\)", path)


def test_entries_of_fasta_headers_are_no_labels_unless_named(tmp_path):
    headers = [f">sp|P{row:05}|A protein OS=Homo sapiens OX={row % 2} SV={row % 3}" for row in range(30)]
    path = tmp_path / "uniprot.fasta"
    path.write_text("".join(f"{header}\nMKV{'LA'[row % 2]}\n" for row, header in enumerate(headers)))
    source = open_source(str(path))
    assert source.task.unlabelled and any("entries OS, OX, SV" in note for note in source.notes())
    assert open_source(str(path), label=r"OX=([^\s|]+)").task.classes == 2


@pytest.mark.parametrize("form", ["long", "log", "forecast"])
@pytest.mark.parametrize("unit", ["minutes", "dates"])
def test_times_with_gaps_are_noted(tmp_path, form, unit):
    flags = {"long": {}, "log": {"window": 20, "label": "label"}, "forecast": {"forecast": 2, "label": "load"}}[form]

    def notes(times):
        when = np.datetime64("2026-03-01T00:00") + times if unit == "dates" else times
        columns = {"time": when, "load": RNG.normal(size=len(times)).round(3)}
        if form == "long":
            columns |= {"id": np.arange(len(times)) // 20, "label": np.arange(len(times)) // 20 % 2}
        elif form == "log":
            columns["label"] = np.arange(len(times)) // 7 % 2
        text = wide(columns)
        return [note for note in source_of(tmp_path / "t.csv", text, **flags).notes() if "equally spaced" in note]

    regular = np.arange(400) * 5
    assert not notes(regular)
    gaps = regular.copy()
    gaps[10:] += 60
    gaps[31:] -= 4
    (note,) = notes(gaps)
    assert f"2 of {380 if form == 'long' else 399} steps" in note
