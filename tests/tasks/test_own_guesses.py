"""The rules by which columns get their roles: each choice is noted, and ambiguous tables are refused."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reservoir_pipelines import ReservoirClassifier
from scipy.io import wavfile

from reservoir.errors import InputError
from reservoir.tasks import Tokens, Vectors, read_new, task_named

RNG = np.random.default_rng(0)
ROWS = 40
LABEL = np.array(["a", "b"])[np.arange(ROWS) % 2]
VALUES = RNG.normal(size=(ROWS, 3)).round(3)
WIDE = {f"v{n}": VALUES[:, n] for n in range(3)}
EVENTS = [RNG.integers(0, 9, n).tolist() for n in RNG.integers(2, 7, ROWS)]
DAYS = [f"2024-01-{n % 28 + 1:02d}" for n in range(ROWS)]


SERIES = np.repeat(np.arange(ROWS), 4)
LONG = {"u": RNG.normal(size=ROWS * 4).round(3), "label": np.repeat(LABEL, 4)}


def write(path, columns, between=","):
    lines = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("\n".join(between.join(map(str, line)) for line in lines) + "\n")
    return path


def in_any_order(values):
    """Return values (rows, tokens) as `stored` returns them."""
    return sorted(np.asarray(values, np.float32).astype(float).round(3)[:, :, None].tolist())


def stored(path, **asked):
    """Return the task of a file, its rows in any order with their ends cut, and its notes."""
    source = task_named(str(path), **asked)
    parts = [split for piece in source.pieces() for split in source.read(piece).values()]
    rows = [row[:n].astype(np.float64) for part in parts for row, n in zip(part.x, part.lengths, strict=True)]
    return source.task, sorted(row.round(3).tolist() for row in rows), " ".join(source.notes())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"index": np.arange(ROWS)}, "'index' is left out, as it counts the rows"),
        ({"timestamp": 1_700_000_000 + 60 * np.arange(ROWS)}, "'timestamp' is left out, as each row is"),
        ({"Date": DAYS}, "'Date' is left out"),
        ({"row_id": RNG.permutation(900)[:ROWS]}, "'row_id' names the rows"),
        ({"ID": 1000 + np.arange(ROWS)}, "'ID' names the rows"),
        ({"sampleId": [f"s{n}" for n in range(ROWS)]}, "'sampleId' names the rows"),
        ({"__index_level_0__": RNG.permutation(ROWS)}, "'__index_level_0__' is left out, as it has no name"),
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


def test_an_id_that_repeats_is_asked_for(tmp_path):
    path = write(tmp_path / "t.csv", {"patient_id": np.arange(ROWS) // 4, **WIDE, "label": LABEL})
    with pytest.raises(InputError, match="say --id patient_id if their rows make one sequence, --group patient_id"):
        task_named(str(path)).task  # noqa: B018
    assert stored(path, group="patient_id")[0].max_tokens == 3


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
    columns = {"date": DAYS, name: [form(row) for row in EVENTS], "label": LABEL}
    task, rows, _ = stored(write(tmp_path / "t.csv", columns))
    assert isinstance(task.form, Tokens) and task.form.vocabulary == 9 and not task.alphabet
    assert rows == sorted([float(value) for value in row] for row in EVENTS)
    new = write(tmp_path / "new.csv", {"other": [1, 2], name: [form([3]), form([1, 4, 8])]})
    x, lengths, _, _ = read_new(new, task)
    assert x.tolist() == [[3, 0, 0], [1, 4, 8]] and lengths.tolist() == [1, 3]


@pytest.mark.parametrize("width", [1, 8, 40])
def test_digits_with_nothing_between_are_letters(tmp_path, width):
    bits = ["".join(map(str, row)) for row in RNG.integers(0, 2, (ROWS, width + 1))]
    task, _, notes = stored(write(tmp_path / "t.csv", {"sequence": bits, "label": LABEL}))
    assert task.alphabet == "\ufffd01" and task.max_tokens == width + 1 and "the letters 01" in notes


@pytest.mark.parametrize("long", [True, False])
def test_x_y_and_z_are_places(tmp_path, long):
    ids = {"id": np.arange(ROWS) // 4, "Time": np.tile(range(4), ROWS // 4)} if long else {}
    label = LABEL[np.arange(ROWS) // 4] if long else LABEL
    columns = {**ids, **dict(zip("xyz", VALUES.T, strict=True))}
    path = write(tmp_path / "t.csv", {**columns, "label": label})
    task, _, notes = stored(path)
    assert (task.form == Vectors(3) and task.max_tokens == 4) if long else task.max_tokens == 3
    assert "x, y, z" in notes and task.labels == ("a", "b")
    x, _, _, y = read_new(write(tmp_path / "new.csv", columns), task)
    assert np.array_equal(x.reshape(ROWS, 3), VALUES) and y is None


def test_zones_of_times_are_counted_in(tmp_path, recwarn):
    times = np.tile(["2024-01-01T03:00:00+02:00", "2024-01-01T02:00:00Z"], ROWS)
    series = np.repeat(np.arange(ROWS), 2)
    columns = {"id": series, "time": times, "u": np.tile([1.5, 2.5], ROWS), "label": LABEL[series]}
    assert stored(write(tmp_path / "t.csv", columns))[1] == [[[1.5], [2.5]]] * ROWS  # 1:00 and 2:00 of UTC
    assert not recwarn.list


def test_many_columns_are_known_by_their_order(tmp_path):
    wide = {f"w{n}": RNG.normal(size=ROWS).round(3) for n in range(300)}
    task = task_named(str(write(tmp_path / "t.csv", {**wide, "label": LABEL}))).task
    assert read_new(write(tmp_path / "new.csv", wide), task)[0].shape == (ROWS, 300)
    with pytest.raises(InputError, match="its columns are in another order"):
        read_new(write(tmp_path / "new.csv", dict(reversed(wide.items()))), task)


def test_a_last_column_that_is_not_there_is_missing(tmp_path):
    task = task_named(str(write(tmp_path / "t.csv", {**WIDE, "label": LABEL}))).task
    new = write(tmp_path / "new.csv", {name: cells for name, cells in WIDE.items() if name != "v2"})
    with pytest.raises(InputError, match=r"no column 'v2', which the readout was fitted on") as error:
        read_new(new, task)
    assert "did you mean" not in str(error.value)
    early = {**WIDE, "v2": np.where(np.arange(ROWS) == 3, "", VALUES[:, 2]), "label": LABEL}
    assert read_new(new, task_named(str(write(tmp_path / "t.csv", early))).task)[1].tolist() == [2] * ROWS


def fill(folder: Path, kind: str, rows: int = 4):
    """Write rows of two classes into a folder, and what programs leave there unseen."""
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
    fill(tmp_path / "plain", kind, 8)
    plain = task_named(str(tmp_path / "plain"))
    assert plain.task.labels == ("Vögel", "große Hunde") and plain.pieces()[-1].hi == 16
    for split in ("Training", "VAL", "Test"):
        fill(tmp_path / "split" / split, kind)
    source = task_named(str(tmp_path / "split"))
    assert source.task.labels == plain.task.labels
    found = [source.read(piece) for piece in source.pieces()]
    assert [sum(len(one[name].y) for one in found if name in one) for name in ("train", "valid", "test")] == [8] * 3
    fill(tmp_path / "split" / "unlabelled", kind)
    with pytest.raises(InputError, match="'unlabelled' stands beside the splits"):
        task_named(str(tmp_path / "split")).task  # noqa: B018


@pytest.mark.parametrize(("offset", "fits"), [(1e9, False), (1e3, True)])
def test_values_that_float32_cannot_tell_apart_are_refused(tmp_path, offset, fits):
    x = np.stack([VALUES, offset + 0.01 * VALUES, np.full((ROWS, 3), 0.1)], axis=2)  # the last does not vary at all
    np.savez(tmp_path / "t.npz", x=x, y=LABEL)
    source = task_named(str(tmp_path / "t.npz"))
    with nullcontext() if fits else pytest.raises(InputError, match=r"x varies too little for float32 in column 1"):
        source.scaling()
    model = ReservoirClassifier(layers="embed", pool="mean", cache=tmp_path)
    with nullcontext() if fits else pytest.raises(ValueError, match=r"X: x varies too little for float32 in column 1"):
        model.fit(x, LABEL)


def test_notes_name_classes_of_one_row_and_classes_that_differ_in_capitals(tmp_path):
    label = np.where(np.arange(ROWS) == 5, "odd", np.where(np.arange(ROWS) % 7 == 0, "A", LABEL))
    notes = stored(write(tmp_path / "t.csv", {**WIDE, "label": label}))[2]
    assert "which cannot be both learnt and tested (1): odd" in notes and "the classes 'A' and 'a'" in notes
    assert not stored(write(tmp_path / "t.csv", {**WIDE, "label": LABEL}))[2]


@pytest.mark.parametrize(("name", "between"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.csv", ",")])
def test_other_separators_and_decimal_commas(tmp_path, name, between):
    columns = {**WIDE, "y": RNG.normal(size=ROWS).round(3)}
    if between == ";":
        columns = {name: [str(value).replace(".", ",") for value in cells] for name, cells in columns.items()}
    task, rows, _ = stored(write(tmp_path / name, columns, between))
    assert task.classes == 0
    assert rows == in_any_order(VALUES)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {**WIDE, "label": np.where(np.arange(ROWS) == 7, "", LABEL)},
            "line 9: no label in column 'label'; fix the row, or pass --skip-bad-rows",
        ),
        ({**WIDE, "y": LABEL, "label": LABEL}, "labels may be in the columns ['y', 'label']; say --label"),
        ({**WIDE, "label": ["a"] * ROWS}, "all labels are the same ('a')"),
        ({**WIDE, "severity": LABEL}, "no column of labels among ['v0', 'v1', 'v2', 'severity']"),
        ({"0.5": VALUES[:, 0], "1.5": VALUES[:, 1], "b": LABEL}, "is the line of names missing?"),
        ({"id": np.arange(ROWS) // 2, **WIDE, "label": LABEL}, "each row is a sequence of its own, say --group id"),
        ({"date": ["2024-01-01"] * ROWS, **WIDE, "label": LABEL}, "say --id NAME, or --drop date"),
        (
            {"comment": ["fine"] * ROWS, **WIDE, "label": LABEL},
            "'fine' is not a number in column 'comment'; leave the column out with --drop comm",
        ),
        ({"patient": SERIES, "t": list(range(4)) * ROWS, **LONG}, "column 't' repeats the same times"),
        ({"id": SERIES, "date": [f"{n}/2/2024" for n in (1, 2, 3, 10)] * ROWS, **LONG}, "tell no order; write dates"),
        (
            {**WIDE, "v1": np.where(np.arange(ROWS) == 3, "inf", VALUES[:, 1]), "label": LABEL},
            "line 5: column 'v1' is inf",
        ),
    ],
)
def test_ambiguous_tables_are_refused_in_one_line(tmp_path, columns, message):
    with pytest.raises(InputError) as error:
        stored(write(tmp_path / "t.csv", columns))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_any_rows_are_one_line(tmp_path, rows):
    path = write(tmp_path / "t.csv", {name: cells[:rows] for name, cells in {**WIDE, "label": LABEL}.items()})
    with pytest.raises(InputError, match=r"give a header|all labels are the same|give more rows"):
        stored(path)


def test_lists_with_gaps_are_filled_where_asked(tmp_path):
    lines = [{"x": VALUES[n].tolist(), "label": str(LABEL[n])} for n in range(ROWS)]
    lines[3]["x"][1] = None
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="line 4: a missing value in column 'x'"):
        stored(tmp_path / "t.jsonl")
    _, rows, _ = stored(tmp_path / "t.jsonl", missing="interpolate")
    filled = VALUES.copy()
    filled[3, 1] = (filled[3, 0] + filled[3, 2]) / 2
    assert rows == in_any_order(filled)
