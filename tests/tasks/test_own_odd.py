"""Unusual tables: each is read correctly, or refused in one line that says what to do."""

import json

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import Vectors, read_labels, task_named

RNG = np.random.default_rng(0)
ROWS = 40
LABEL = np.array(["a", "b"])[np.arange(ROWS) % 2]
VALUES = RNG.normal(size=(ROWS, 3)).round(3)
WIDE = {f"v{n}": VALUES[:, n] for n in range(3)}
LONG = {"u": RNG.normal(size=ROWS * 4).round(3), "label": np.repeat(LABEL, 4)}
SERIES = np.repeat(np.arange(ROWS), 4)


def write(path, columns, between=","):
    lines = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("\n".join(between.join(map(str, line)) for line in lines) + "\n")
    return path


def read(path, **asked):
    """Return the task of a file, the rows of all its splits (rows, tokens, dim), and what was said."""
    source = task_named(str(path), **asked)
    rows = [split.x for piece in source.pieces() for split in source.read(piece).values()]
    return source.task, np.concatenate(rows), source.notes()


def same_rows(found, expected):
    def sort(rows):
        return rows[np.lexsort(rows.T)]

    flat = found.reshape(len(found), -1)
    np.testing.assert_allclose(sort(flat), sort(np.asarray(expected, np.float32)), rtol=1e-6)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"": range(ROWS), **WIDE}, "'Unnamed: 0' is left out"),
        ({"index": range(ROWS), **WIDE}, "'index' is left out, as it counts the rows"),
        ({"nr": range(1, ROWS + 1), **WIDE}, "'nr' is left out, as it counts the rows"),
        ({"id": [f"p{n}" for n in range(ROWS)], **WIDE}, "'id' names the rows"),
        (WIDE, ""),
    ],
)
def test_columns_that_count_or_name_rows_are_no_values(tmp_path, columns, said):
    task, x, notes = read(write(tmp_path / "t.csv", {**columns, "label": LABEL}))
    assert task.form == Vectors(1) and task.classes == 2 and said in " ".join(notes)
    same_rows(x, VALUES)


@pytest.mark.parametrize(("name", "between"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.csv", ",")])
def test_other_separators_and_decimal_commas(tmp_path, name, between):
    columns = {**WIDE, "y": RNG.normal(size=ROWS).round(3)}
    if between == ";":
        columns = {name: [str(value).replace(".", ",") for value in cells] for name, cells in columns.items()}
    task, x, _ = read(write(tmp_path / name, columns, between))
    assert task.classes == 0
    same_rows(x, VALUES)


def test_switches_are_numbers_and_labels(tmp_path):
    on = RNG.integers(0, 2, ROWS).astype(bool)
    task, x, _ = read(write(tmp_path / "t.csv", {"on": on, **WIDE, "label": np.arange(ROWS) % 2 == 0}))
    assert task.labels == ("False", "True")
    same_rows(x, np.c_[on, VALUES])


def test_dates_put_rows_in_order(tmp_path):
    dates = np.tile(["2024-11-02", "2023-12-30", "2024-02-01T10:00:00Z", "2024-02-01"], ROWS)
    columns = {"id": SERIES, "date": dates, **LONG}
    task, x, notes = read(write(tmp_path / "t.csv", columns))
    assert task.max_tokens == 4 and "in order by 'date'" in notes[0]
    same_rows(x, LONG["u"].reshape(ROWS, 4)[:, [1, 3, 2, 0]])


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
        read(write(tmp_path / "t.csv", columns))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_notes_name_rows_that_end_early_and_odd_classes(tmp_path):
    short = np.where((np.arange(ROWS) % 4 == 0), "", VALUES[:, 2])
    columns = {**WIDE, "v2": short, "label": np.where(np.arange(ROWS) < 3, "NA", LABEL)}
    _, _, notes = read(write(tmp_path / "t.csv", columns))
    assert "10 rows end before the last column" in notes[0] and "has a class 'NA'" in notes[1]


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.array([-1, 1] * 4), True),
        (np.arange(60) % 20, True),  # counted through
        (np.rint(5 * np.random.default_rng(0).normal(size=60)).astype(int), False),  # 19 numbers of 60, some negative
        (np.repeat([10, 20, 50], 20), True),
    ],
)
def test_a_few_rows_of_many_whole_numbers_are_targets(y, classes):
    assert read_labels(y).names == classes


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_any_rows_are_one_line(tmp_path, rows):
    path = write(tmp_path / "t.csv", {name: cells[:rows] for name, cells in {**WIDE, "label": LABEL}.items()})
    with pytest.raises(InputError, match=r"give a header|all labels are the same|give more rows"):
        read(path)


def test_lists_with_gaps_are_filled_where_asked(tmp_path):
    lines = [{"x": VALUES[n].tolist(), "label": str(LABEL[n])} for n in range(ROWS)]
    lines[3]["x"][1] = None
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="line 4: a missing value in column 'x'"):
        read(tmp_path / "t.jsonl")
    _, x, _ = read(tmp_path / "t.jsonl", missing="interpolate")
    filled = VALUES.copy()
    filled[3, 1] = (filled[3, 0] + filled[3, 2]) / 2
    same_rows(x, filled)
