"""Imperfect data is read: bad rows, tables of labels or in parts, folders of recordings, and every format."""

import ast
import json
import re
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from reservoir_pipelines.data import formats
from reservoir_pipelines.data.columns import times_of
from reservoir_pipelines.data.formats import Format, open_rows
from reservoir_pipelines.data.own_data import own_name
from reservoir_pipelines.data.rows import Rows
from reservoir_pipelines.data.values import encode_values
from reservoir_pipelines.preparation.prepare import open_source
from scipy.io import wavfile

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.plan.basis import kind_of
from reservoir.tasks import Vectors
from reservoir.tasks.texts import texts_of
from tests.helpers import outcome
from tests.tasks.samples import assert_refused, read_new, read_splits
from tests.tasks.samples import write_csv as table

RNG = np.random.default_rng(0)
ROWS = 40
KIND = ["a", "b"]


def good_rows():
    return [[round(float(value), 3) for value in RNG.normal(size=2)] + [KIND[n % 2]] for n in range(ROWS)]


def stored(source):
    parts = [split for piece in source.pieces() for split in source.read(piece).values()]
    rows = [row[:length] for part in parts for row, length in zip(part.x, part.lengths, strict=True)]
    return rows, [source.task.label(int(y)) for part in parts for y in part.y[:, 0, 0]]


def bad_table(path):
    rows = good_rows()
    rows[3][0] = rows[20][1] = rows[35][0] = "ERR"
    rows[7][0], rows[9][2], rows[11][0] = "", "", "inf"
    rows[5].append("one too many")
    rows[30][0] = '"1\n2"'  # a line break in a cell shifts the numbers of all later lines
    return table(path, rows)


@pytest.mark.parametrize(
    ("texts", "labels", "ends_stay"),
    [
        (["a cat\n", "  a dog"], KIND, True),
        (["ACGT\n", " ACCT"], KIND, False),  # symbols
        (["a cat\n", "  a dog"], [[*"01010"], [*"11000"]], False),  # a label for each letter
    ],
)
def test_white_space_at_the_ends_of_texts_belongs_to_texts_of_words(texts, labels, ends_stay, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{"text": texts[row % 2], "label": labels[row % 2]} for row in range(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_source(str(path))
    splits = read_splits(source)
    written = {text for split in splits.values() for text in texts_of(split.x, split.lengths)}
    assert written == {text if ends_stay else text.strip() for text in texts}
    assert ("40 texts is left out" in " ".join(source.notes())) == (not ends_stay)
    # New rows are read in the same way, also if there is one alone.
    path.write_text(json.dumps({"text": texts[0]}) + "\n")
    (new_text,) = texts_of(*encode_values(source.task, read_new(path, source.task).x))
    assert new_text == (texts[0] if ends_stay else texts[0].strip())
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": " \n", "label": labels[0]}]))
    assert "line 41: " in outcome(lambda: open_source(str(path)).task)


def test_all_bad_rows_are_counted_and_five_named_with_their_lines(tmp_path):
    message = outcome(lambda: open_source(bad_table(tmp_path / "t.csv")).task)
    assert "8 rows cannot be read: line 5: 'ERR' is not a number in column 'v0'; line 7: 4 cells under 3" in message
    assert (
        "line 9: an empty cell in column 'v0'; line 11: no label in column 'label'; line 13: inf in column 'v0'"
        in message
    )
    or_fill = "or pass --missing interpolate or mask for missing values"
    assert f"; and 3 more; fix the file, {or_fill}, or pass --skip-bad-rows" in message


def test_messages_about_data_begin_an_alternative_that_is_a_flag_with_or_pass():
    alternatives = []
    for file in Path(formats.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts]
            alternatives += re.findall(r"..\bor \w+ --\w+", " ".join("".join(texts).split()))
    assert len(alternatives) > 10
    # `read_new` cuts the message of a new file there, because predict has no such flags.
    assert [text for text in alternatives if not text.startswith(", or pass --")] == []


def test_skip_bad_rows_goes_on_without_them_and_says_how_many(tmp_path):
    source = open_source(bad_table(tmp_path / "t.csv"), skip_bad_rows=True)
    rows, labels = stored(source)
    assert len(rows) == len(labels) == ROWS - 8
    assert any("skipped 8 of 40 rows: line 5: 'ERR' is not a number" in note for note in source.notes())
    path = table(tmp_path / "r.csv", [[n % 7, n % 3, {7: "n.d.", 9: "NaN"}.get(n, n / 8)] for n in range(ROWS)])
    for asked in ({}, {"regression": True}):
        source = open_source(path, skip_bad_rows=True, **asked)
        assert source.task.classes == 0 and len(stored(source)[0]) == ROWS - 2
    for cell, way in ("fine", "--drop v1"), ('"0,5"', "--decimal ,"), ("2026-01-02 08:00", "--time v1"):
        path = table(tmp_path / "w.csv", [[n % 7, cell, n % 2] for n in range(ROWS)])
        with pytest.raises(InputError, match=f"is not a number in column 'v1'; write numbers there, or pass {way}"):
            stored(open_source(path, skip_bad_rows=True))


def test_a_column_that_several_sequences_share_is_offered_as_their_group(tmp_path):
    machines, steps = np.repeat(np.arange(12) // 3, 4), np.tile(np.arange(4), 12)

    def message(names):
        lines = [f"s{row // 4},{names[row]},{steps[row]},{row * 7 % 5},{row // 4 % 2}" for row in range(48)]
        (tmp_path / "t.csv").write_text("\n".join(["series,machine,time,v,label", *lines]) + "\n")
        with pytest.raises(InputError, match="is not a number in column 'machine'") as refused:
            open_rows(str(tmp_path / "t.csv"), OwnDataOptions(id="series"))
        return str(refused.value)

    assert "--id series --group machine" in message([f"m{machine}" for machine in machines])
    # Names that change within a sequence, that no two sequences share, or of two kinds only are no groups.
    for others in ([f"m{step}" for step in steps], [f"m{row // 4}" for row in range(48)], ["a"] * 24 + ["b"] * 24):
        assert "--id series --drop machine" in message(others)


def test_new_rows_that_cannot_be_read_are_skipped_with_their_ids_and_reasons(tmp_path):
    task = open_source(bad_table(tmp_path / "t.csv"), skip_bad_rows=True).task
    table(tmp_path / "new.csv", [["r1", 1, 2], ["r2", "ERR", 3]], "id,v0,v1")
    new = read_new(tmp_path / "new.csv", task)
    assert new.ids.tolist() == ["r1"] and new.skipped == {1: ("r2", "line 3: 'ERR' is not a number in column 'v0'")}
    table(tmp_path / "new.csv", [["r2", "ERR", 3]], "id,v0,v1")
    with pytest.raises(InputError, match=r"line 2: 'ERR' .*'v0'"):
        read_new(tmp_path / "new.csv", task)
    (tmp_path / "t.fasta").write_text("".join(f">r{n} {KIND[n % 2]}\nACGT\n" for n in range(ROWS)))
    (tmp_path / "new.fasta").write_text(">r1\nACGT\n>r2\n>r3\nTT\n")
    new = read_new(tmp_path / "new.fasta", open_source(str(tmp_path / "t.fasta")).task)
    assert new.ids.tolist() == ["r1", "r3"] and new.skipped == {1: ("r2", "line 3: an empty text")}


def write_recordings(folder):
    for n in range(ROWS):
        file = folder / KIND[n % 2] / f"r{n}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"v0\n{n}\n{n}\n")


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.arange(ROWS)[:, None] + np.zeros((ROWS, 3)), np.arange(ROWS) % 2
        file["ids"] = [f"Ä{n}" for n in range(ROWS)]


def write_archive(path, **more):
    np.savez(path, x=np.arange(ROWS)[:, None] + np.zeros((ROWS, 3)), y=np.arange(ROWS) % 2, **more)


def write_published(folder):
    for part, numbers in {"TRAIN": range(25), "TEST": range(25, ROWS)}.items():
        lines = "".join(f"{n},{n}:{KIND[n % 2]}\n" for n in numbers)
        (folder / f"{folder.name}_{part}.ts").write_text(f"@timeStamps false\n@classLabel true a b\n@data\n{lines}")


CELLS = [[n, n, KIND[n % 2], f"p{n}"] for n in range(ROWS)]
STEPS = [[*cells, step] for step in range(2) for cells in CELLS]
BAD = [["ERR" if n in {0, 7} else n, *cells[1:3]] for n, cells in enumerate(CELLS)]
RECORDS = "".join(f">r{n} {KIND[n % 2]}\n{'A' * (n + 1)}\n" for n in range(ROWS))
WITH_IDS = {
    "no ids, bad rows": (lambda path: table(path / "t.csv", BAD), {"skip_bad_rows": True, "values": True}, int),
    "a column id": (lambda path: table(path / "t.csv", CELLS, "v0,v1,label,id"), {"values": True}, "p{}".format),
    "--id": (
        lambda path: table(path / "t.csv", CELLS, "v0,v1,label,plot"),
        {"id": "plot", "values": True},
        "p{}".format,
    ),
    "long form": (lambda path: table(path / "t.csv", STEPS, "v0,v1,label,id,time"), {}, "p{}".format),
    "records of FASTA": (lambda path: (path / "t.fasta").write_text(RECORDS), {}, "r{}".format),
    "files of a folder": (write_recordings, {}, lambda n: f"{KIND[n % 2]}/r{n}.csv"),
    "files of a published archive": (write_published, {}, lambda n: n if n < 25 else n - 25),
    "texts in .h5": (lambda path: write_hdf5(path / "t.h5"), {}, "Ä{}".format),
    "integers in .npz": (
        lambda path: write_archive(path / "t.npz", ids=np.arange(ROWS, dtype=np.uint16) + 100),
        {},
        lambda n: n + 100,
    ),
    "no ids in .npz": (lambda path: write_archive(path / "t.npz"), {}, int),
}  # fmt: skip


@pytest.mark.parametrize("form", WITH_IDS)
def test_every_row_has_the_id_file_name_or_row_number_of_its_source(tmp_path, form):
    write, asked, name = WITH_IDS[form]
    write(tmp_path)
    path = next(iter([*tmp_path.glob("t.*")]), tmp_path)
    source = open_source(str(path), **asked)
    found = {}
    for piece in source.pieces():
        for split in source.read(piece).values():
            rows = split.lengths - 1 if path.suffix == ".fasta" else split.x.reshape(len(split), -1)[:, 0]
            found |= dict(zip(rows.astype(int).tolist(), split.ids.tolist(), strict=True))
    skipped = {0, 7} if "bad" in form else set()
    assert found == {n: name(n) for n in range(ROWS) if n not in skipped}


def test_bad_texts_and_bad_lines_of_json_are_skipped(tmp_path):
    lines = [f'{{"text": "{"ACGT"[n % 4] * 5}", "label": "{KIND[n % 2]}"}}' for n in range(ROWS)]
    lines[2], lines[6] = '{"text": ', '{"text": " ", "label": "a"}'
    lines[9] = '{"text": "A\\u0000C", "label": "b"}'
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    assert_refused("3 rows cannot be read: line 3: not.*line 7: an empty.*line 10: a NUL", tmp_path / "t.jsonl")
    assert len(stored(open_source(str(tmp_path / "t.jsonl"), skip_bad_rows=True))[0]) == ROWS - 3
    (tmp_path / "t.jsonl").write_text('[\n {\n  "text": "ACGT"\n }\n]')
    assert_refused("t.jsonl, line 1: not a complete JSON .*; write one JSON object per", tmp_path / "t.jsonl")


@pytest.mark.parametrize("kind", ["png", "wav"])
def test_damaged_images_and_sounds_are_counted_and_skipped(tmp_path, kind):
    if kind == "wav":
        pytest.importorskip("soundfile")
    for n in range(ROWS):
        path = tmp_path / "media" / KIND[n % 2] / f"{n:02d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "png":
            Image.fromarray(RNG.integers(0, 255, (8, 8, 3), np.uint8)).save(path)
        else:
            wavfile.write(path, 16_000, RNG.integers(-99, 99, 900).astype(np.int16))
        if n in {4, 9}:
            path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"2 rows cannot be read: file a/04.*; file b/09"):
        stored(open_source(str(tmp_path / "media")))
    source = open_source(str(tmp_path / "media"), skip_bad_rows=True)
    rows, labels = stored(source)
    assert len(rows) == len(labels) == ROWS - 2
    if kind == "png":
        table(tmp_path / "new.csv", [["fine", 2]], "name,size")
        with pytest.raises(InputError, match="'fine' is not a number in column 'name'"):
            read_new(tmp_path / "new.csv", source.task)
        table(tmp_path / "names.csv", [[f"media/a/{name}"] for name in ("02.png", "none.png", "04.png")], "image")
        new = read_new(tmp_path / "names.csv", source.task)
        assert len(new.x) == 1 and [*new.skipped] == [1, 2] and "no file 'media/a/none.png'" in new.skipped[1][1]
    new = read_new(tmp_path / "media", source.task)
    assert len(new.x) == ROWS - 2 and [name for name, _ in new.skipped.values()] == [f"a/04.{kind}", f"b/09.{kind}"]


@pytest.mark.parametrize("relative", [True, False])
def test_a_table_may_name_files_by_full_paths_and_is_read_from_any_folder(tmp_path, monkeypatch, relative):
    (tmp_path / "pictures").mkdir()
    files = [tmp_path / "pictures" / f"{number}.png" for number in range(12)]
    for number, file in enumerate(files):
        Image.new("L", (8, 8), number).save(file)
    table(tmp_path / "t.csv", [[file, KIND[number % 2]] for number, file in enumerate(files)], "path,label")
    missing = tmp_path.parent / "none.png"
    table(tmp_path / "new.csv", [["pictures/1.png"], [missing], [files[2]], ["none.png"]], "path")
    monkeypatch.chdir(tmp_path)
    folder = Path() if relative else tmp_path
    assert open_rows(str(folder / "t.csv"), OwnDataOptions()).names.tolist() == [f"pictures/{n}.png" for n in range(12)]
    new = read_new(folder / "new.csv", open_source(str(folder / "t.csv")).task)
    assert new.ids.tolist() == ["pictures/1.png", "pictures/2.png"]
    assert [name for name, _ in new.skipped.values()] == [str(missing), "none.png"]


def test_a_sequence_with_a_bad_line_is_left_out_as_a_whole(tmp_path):
    rows = [[f"s{n // 4}", n % 4, "ERR" if n == 5 else n, KIND[n // 4 % 2]] for n in range(4 * ROWS)]
    path = table(tmp_path / "t.csv", rows, "id,time,v,label")
    assert_refused("line 7: 'ERR' is not a number", path)
    found, _ = stored(open_source(path, skip_bad_rows=True))
    assert len(found) == ROWS - 1 and all(len(row) == 4 for row in found)


def recordings(folder, suffix=".csv", rows=20):
    """Write recordings of two channels whose offset gives the label, and the table of labels; return the values."""
    folder.mkdir()
    values = {}
    for n in range(rows):
        x = RNG.normal(size=(n % 5 + 3, 2)).round(3) + 5 * (n % 2)
        lines = ["time,u,v", *(f"{t},{a},{b}" for t, (a, b) in enumerate(x))]
        between = "\t" if suffix == ".tsv" else ","
        (folder / f"{n:03d}{suffix}").write_text("\n".join(lines).replace(",", between))
        values[f"{n:03d}"] = x
    labels = [f"m{n // 4},{n:03d},{KIND[n % 2]}" for n in range(rows)]
    (folder / "labels.csv").write_text("\n".join(["machine,run,class", *labels]))
    return values


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_folder_of_recordings_with_a_table_of_labels(tmp_path, suffix):
    values = recordings(tmp_path / "runs", suffix)
    path = tmp_path / "runs" / "labels.csv"
    path.write_text(path.read_text().replace(",00", ",.\\00") + "\nm9,099,")  # as on Windows; 099 has no file
    source = open_source(str(tmp_path / "runs"), labels="labels.csv", group="machine")
    assert "without a file or record are left out (1): 099" in source.notes()[0]
    assert source.task.form == Vectors(2) and source.task.labels == ("a", "b") and len(source.files()) == 21
    assert source.task.parameters["columns"] == ["u", "v"] and source.task.parameters["labels"] == "labels.csv"
    rows, labels = stored(source)
    wanted = {str(x.astype(np.float32).tolist()): KIND[n % 2] for n, x in enumerate(values.values())}
    assert {str(row.tolist()): label for row, label in zip(rows, labels, strict=True)} == wanted
    groups = [set(part.groups.tolist()) for part in source.read(*source.pieces()).values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 5


def test_recordings_are_read_in_the_order_of_time(tmp_path):
    values, path = recordings(tmp_path / "runs"), tmp_path / "runs" / "004.csv"
    given, (header, *lines) = (str(tmp_path / "runs"), "labels.csv"), path.read_text().split("\n")
    path.write_text("\n".join([header, *reversed(lines)]))
    source = open_source(given[0], labels=given[1])
    assert any(np.array_equal(row, values["004"].astype(np.float32)) for row in stored(source)[0])
    path.write_text("\n".join([header, *lines[1:], *lines]))
    with pytest.raises(InputError, match=r"'time' .*not in order"):
        read_new(path, source.task)
    for asked, message in ({}, "or pass --drop time if they"), ({"time": "tmie"}, "did you mean 'time'"):
        assert_refused(message, given[0], labels=given[1], **asked)
    assert len(stored(open_source(given[0], labels=given[1], drop="time"))[0]) == 20


def test_times_that_cannot_be_sorted_are_refused(tmp_path):
    recordings(tmp_path / "runs")
    dates = times_of(pd.Series(["2026-01-02 08:00", "2025-10-13T08:00:00.250+02:00"]))
    assert dates is not None and dates.argsort().tolist() == [1, 0]
    assert times_of(pd.Series(["02.01.2026 08:00", "13.10.2025 08:00"])) is None
    table(tmp_path / "runs" / "004.csv", [["13/10/2025 08:00", 1, 0], ["14/10/2025 08:00", 2, 0]], "time,u,v")
    message = "like '13/10/2025 08:00' cannot be sorted; write ISO 8601 dates .* --drop time if"
    assert_refused(message, tmp_path / "runs", labels="labels.csv")
    assert len(stored(open_source(str(tmp_path / "runs"), labels="labels.csv", drop="time"))[0]) == 20
    # Without its times, a table in long form would not be read in the order of its rows.
    steps = [[row, f"{day}/10/2025", row % 3 + day, "ab"[row % 2]] for row in range(20) for day in range(10, 15)]
    path = table(tmp_path / "long.csv", steps, "id,time,u,label")
    assert_refused("like '10/10/2025' cannot be sorted; write ISO 8601 dates such as 2024-12-31.*, or numbers$", path)


@pytest.mark.parametrize(
    ("time", "problem"),
    [
        ("28.05.2024", "line 6, column 'time': times like '28.05.2024' cannot be sorted"),
        ("5", "line 6, column 'time': numbers and dates are mixed, such as '2024-05-10' and '5'"),
    ],
)
def test_the_first_time_that_cannot_be_sorted_is_named(tmp_path, time, problem):
    steps = [[row, f"2024-05-{day}", row % 3 + day, "ab"[row % 2]] for row in range(20) for day in range(10, 15)]
    steps[4][1] = steps[9][1] = time
    assert_refused(problem, table(tmp_path / "long.csv", steps, "id,time,u,label"))
    one_recording = table(tmp_path / "log.csv", [line[1:] for line in steps], "time,u,label")
    assert_refused(problem, one_recording, window=5)


def test_recordings_of_excel_are_read_and_a_note_names_other_sampling_rates(tmp_path):
    values = recordings(tmp_path / "runs")
    for path in (tmp_path / "runs").glob("0*.csv"):
        lines = [f"{line};" for line in path.read_text().replace(",", ";").split("\n")]
        path.write_text("\n".join(["\ufeffsep=;", *lines]))
    source = open_source(str(tmp_path / "runs"), labels="labels.csv")
    wanted = {str(x.astype(np.float32).tolist()) for x in values.values()}
    assert {str(row.tolist()) for row in stored(source)[0]} == wanted and "sampling rate" not in str(source.notes())
    table(tmp_path / "runs" / "004.csv", [[0, 1, 2], [0.2, 1, 2], [0.4, 1, 2]], "time,u,v")
    notes = open_source(str(tmp_path / "runs"), labels="labels.csv").notes()
    assert "some recordings are 5 times as far apart in time as those of others" in str(notes)


@pytest.mark.parametrize(
    ("above", "mark"),
    [
        ("", "|"),
        ("# a note\n", ","),
        ('# exported, "by hand",\n\n#\n', ";"),
        ("\ufeff# a | b\n", "|"),
        ("# a note\n#", ","),  # the header itself may begin with the sign, and a space
        ("# ", ","),
    ],
)
def test_comments_above_a_header_are_left_out(tmp_path, above, mark):
    plain, commented = tmp_path / "plain.csv", tmp_path / "commented.csv"
    rows = [f"{n % 3 / 4},{n % 5 / 4},{n % 7 / 4},{KIND[n % 2]}" for n in range(ROWS)]
    plain.write_text("\n".join(["u,v,w,label", *rows]))
    commented.write_text(above + "\n".join(["u,v,w,label", *rows]).replace(",", mark))
    wanted_source, found_source = open_source(str(plain)), open_source(str(commented))
    assert found_source.task.parameters == wanted_source.task.parameters
    for wanted, found in zip(stored(wanted_source), stored(found_source), strict=True):
        assert str(wanted) == str(found)
    commented.write_text(commented.read_text() + f"\n1{mark}x{mark}3{mark}{KIND[0]}")
    lines = commented.read_text().count("\n") + 1
    assert_refused(f"line {lines}: 'x' is not a number in column 'v'", str(commented))


def test_a_label_in_one_row_of_a_sequence_holds_for_all(tmp_path):
    rows = [[f"s{n // 4}", n % 4, n, KIND[n // 4 % 2] if n % 4 == n // 4 % 3 else ""] for n in range(4 * ROWS)]
    found, labels = stored(open_source(table(tmp_path / "t.csv", rows, "id,time,v,label")))
    assert [KIND[int(row[0, 0]) // 4 % 2] for row in found] == labels and len(labels) == ROWS


def test_new_recordings_need_no_group_in_the_table_of_labels(tmp_path):
    recordings(tmp_path / "runs")
    path = tmp_path / "runs" / "labels.csv"
    task = open_source(str(tmp_path / "runs"), labels="labels.csv", group="machine").task
    header, first, *others = path.read_text().split("\n")
    path.write_text("\n".join([header, "," + first.partition(",")[2], *others]))
    rows = read_new(tmp_path / "runs", task, str(path))
    assert len(rows.x) == 20 and not rows.skipped
    assert_refused("no group in column 'machine'", tmp_path / "runs", labels="labels.csv", group="machine")


def test_new_recordings_are_named_by_their_files(tmp_path):
    values = recordings(tmp_path / "runs")
    task = open_source(str(tmp_path / "runs"), labels=str(tmp_path / "runs" / "labels.csv")).task
    (tmp_path / "new").mkdir()
    (tmp_path / "runs" / "003.csv").rename(tmp_path / "new" / "late.csv")
    for path, name in ((tmp_path / "new", "late.csv"), (tmp_path / "new" / "late.csv", "late.csv")):
        x, lengths, ids, y, *_ = read_new(path, task)
        assert ids == [name] and y is None and lengths is not None and lengths.tolist() == [6]
        assert np.array_equal(x[0], values["003"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("007", "099"), r"labels.csv: no row for '007.csv' .*, or --skip-bad-rows"),
        (lambda text: text.replace("007", "008"), "no row for '007.csv'"),
        (lambda text: f"{text}\nm1,007,b\nm1,007,a", "line 23: '007' in column 'run' stands in another row"),
        (lambda text: text.replace("class", "severity").replace("machine", "place"), "no column is called label"),
        (lambda text: text.replace("m1,007,b", "m1,007,"), "line 9: no label in column 'class'"),
        (
            lambda text: text,
            "line 9: '007' in column 'run' stands for several files.*; write one row with the whole name",
        ),
    ],
)
def test_a_table_of_labels_that_does_not_fit_is_refused_in_one_line(tmp_path, change, message):
    recordings(tmp_path / "runs")
    path = tmp_path / "runs" / "labels.csv"
    path.write_text(change(path.read_text()))
    if "several" in message:
        (tmp_path / "runs" / "007.tsv").write_text("time\tu\tv\n0\t1\t2\n")
    assert_refused(message, tmp_path / "runs", labels="labels.csv")


def test_a_recording_that_cannot_be_read_is_named_and_skipped(tmp_path):
    recordings(tmp_path / "runs")
    path = tmp_path / "runs" / "labels.csv"
    table(tmp_path / "runs" / "004.csv", [[0, "ERR", 1], [1, 2, 3], [2, 3, 4]], "time,u,v")
    message = r"004\.csv: line 2: 'ERR' .* column 'u'; fix the file, or pass"
    assert_refused(message, tmp_path / "runs", labels="labels.csv")
    table(tmp_path / "runs" / "006.csv", [[0, "", 1], [1, "", 3], [2, 3, 4]], "time,u,v")
    message = "or pass --missing interpolate or mask for missing values, or pass --skip"
    assert_refused(message, tmp_path / "runs", labels="labels.csv")
    path.write_text(path.read_text().replace("005,b", "005,"))
    source = open_source(str(tmp_path / "runs"), labels="labels.csv", skip_bad_rows=True)
    assert len(stored(source)[0]) == 17
    assert any("file 005.csv: labels.csv, line 7: no label in column 'class'" in note for note in source.notes())
    path.write_text(path.read_text().replace("000,a", "100,a"))
    source = open_source(str(tmp_path / "runs"), labels="labels.csv", skip_bad_rows=True)
    assert len(stored(source)[0]) == 16 and "file 000.csv: no row in labels.csv" in str(source.notes())
    assert_refused("no row for '000.csv' in", tmp_path / "runs", labels="labels.csv", id="class", skip_bad_rows=True)


def fasta(path, header):
    letters = ["".join(RNG.choice(list("ACGT"), 9)) for _ in range(ROWS)]
    path.write_text("".join(f">{header(n)}\n{text}\n" for n, text in enumerate(letters)))
    return str(path)


def test_groups_of_fasta_come_from_the_header_or_a_table(tmp_path):
    path = fasta(tmp_path / "t.fasta", lambda n: f"r{n} org=o{n // 4} {KIND[n % 2]}")
    rows = [[f"r{n}", KIND[n % 2], n // 4] for n in range(ROWS)]
    labels = table(tmp_path / "labels.csv", rows, "name,class,family")
    for asked in {"group": r"org=(\w+)"}, {"labels": labels, "group": "family"}:
        source = open_source(path, **asked)
        groups = [set(part.groups.tolist()) for part in source.read(source.pieces()[0]).values()]
        assert sum(map(len, groups)) == len(set.union(*groups)) == 10 and source.task.labels == ("a", "b")
    path = fasta(tmp_path / "u.fasta", lambda n: f"sp|r{n}|N{n}_HUMAN")  # ids as in UniProt
    task = open_source(path, labels=labels, group="family").task
    assert read_new(tmp_path / "u.fasta", task, labels)[3].tolist() == [KIND[n % 2] for n in range(ROWS)]
    assert read_new(tmp_path / "u.fasta", task)[3] is None
    assert_refused("line 1: no group in the header .* by --group", path, group=r"chr=(\w+)")
    repeated = fasta(tmp_path / "v.fasta", lambda n: f"o{n // 4} {KIND[n % 2]}")
    assert "most names of records repeat" in str(open_source(repeated).notes())
    assert "repeat" not in str(open_source(repeated, group=r"^(\S+)").notes())


def test_a_column_of_existing_paths_is_read_as_files(tmp_path):
    (tmp_path / "runs").mkdir()
    for n in range(20):
        table(tmp_path / "runs" / f"{n}.csv", RNG.normal(size=(6, 2)), "u,v")
    rows = [[f"runs/{n}.csv", f"note {n}", KIND[n % 2]] for n in range(20)]
    rows[3][0] = "runs\\3.csv"  # as on Windows
    path = table(tmp_path / "t.csv", rows, "recording,comment,label")
    assert_refused("is not a number in column 'recording'.* pass --text recording", path)
    source = open_source(path, text="recording")
    assert source.task.form == Vectors(2) and source.task.max_tokens == 6 and len(source.files()) == 21
    table(path_without_comments := tmp_path / "u.csv", [[row[0], row[2]] for row in rows], "recording,label")
    assert open_source(str(path_without_comments)).task.form == Vectors(2)


@pytest.mark.parametrize("name", ["../secret.csv", "/etc/passwd.csv"])
def test_a_column_of_paths_reads_nothing_outside_the_folder(tmp_path, name):
    table(tmp_path / "secret.csv", RNG.normal(size=(6, 2)), "u,v")
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / "a.csv", RNG.normal(size=(6, 2)), "u,v")
    path = table(tmp_path / "data" / "t.csv", [["a.csv", "a"], [name, "b"]] * 10, "recording,label")
    assert_refused("is outside|no file '/etc/passwd.csv'", path)


def test_addresses_are_text_and_never_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection"))
    rows = [[f"http://127.0.0.1:9/{n}.csv", KIND[n % 2]] for n in range(20)]
    assert open_source(table(tmp_path / "t.csv", rows, "sequence,label")).task.alphabet


# Every format is opened by one function, which returns rows of one type and leaves large sequences on disk.


X, Y = np.arange(24.0).reshape(6, 4), np.array([0, 1] * 3)


def test_sequences_of_hdf5_are_read_by_ranges_of_rows(tmp_path):
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["x"], file["y"] = X, Y
    rows = open_rows(str(tmp_path / "mine.h5"), OwnDataOptions())
    assert not isinstance(rows.x, np.ndarray) and rows.x.shape == (6, 4) and len(rows) == 6
    np.testing.assert_array_equal(rows.x[2:4], X[2:4])
    assert isinstance(rows.y, np.ndarray) and rows.names.tolist() == [0, 1, 2, 3, 4, 5]


def test_files_of_images_are_read_by_ranges_of_rows(tmp_path):
    for name in ("red/0.png", "red/1.png", "blue/0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), name.split("/")[0]).save(tmp_path / name)
    rows = open_rows(str(tmp_path), OwnDataOptions())
    assert rows.holds == "images" and rows.x.shape == (3,) and rows.names.tolist()[0] == "blue/0.png"
    (stored,) = rows.x[1:2]
    assert stored.tobytes() == (tmp_path / "red" / "0.png").read_bytes()


def test_images_that_are_checked_do_not_stay_in_memory(tmp_path):
    for number in range(40):
        Image.new("RGB", (100, 100)).save(tmp_path / f"{number}.bmp")
    size = (tmp_path / "0.bmp").stat().st_size
    options = OwnDataOptions(skip_bad_rows=True)
    open_rows(str(tmp_path), options)  # imports what decoding needs
    tracemalloc.start()
    assert len(open_rows(str(tmp_path), options)) == 40
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * size


def test_a_format_is_a_reader_and_its_suffixes(tmp_path, monkeypatch):
    path = tmp_path / "mine.txt"
    path.write_text("6")
    with pytest.raises(InputError, match=r"'\.txt' are not read"):
        open_rows(str(path), OwnDataOptions())
    extra = Format(lambda origin, options, task: Rows(x=X, y=Y), (".txt",))
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, extra))
    source = open_source(str(path))
    assert source.task.max_tokens == 4 and source.task.classes == 2


def test_data_are_described_with_the_flags_of_their_columns(tmp_path):
    lines = ["kind,a,b,c", *(f"{'uv'[n % 2]},{-n},{n * n},{n % 3}" for n in range(30))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    source = open_source(str(tmp_path / "t.csv"), label="kind")
    assert source.summary() == "t.csv: 30 rows of 3 tokens, with 2 classes, --label kind"


# A folder of Parquet files, or a pattern of them, is read as the one table that they are parts of.


def parted_table(rows=60, seed=0):
    pytest.importorskip("pyarrow")
    draw = np.random.default_rng(seed)
    values = {f"v{place}": draw.normal(size=rows) for place in range(4)}
    return pd.DataFrame({"id": np.arange(rows), **values, "label": np.where(np.arange(rows) % 2, "a", "b")})


def write_parts(folder, whole, ends=(20, 21, 45)):
    """Write a table in parts of unequal size, whose names are sorted in their order."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.split(np.arange(len(whole)), ends)):
        whole.iloc[part].to_parquet(folder / f"part-{number:03d}.parquet", index=False)
    return folder


@pytest.mark.parametrize("form", ["{}", "{}/*.parquet", "{}/part-00[0-9].parquet"])
def test_parts_are_read_as_the_whole_table(tmp_path, form):
    whole = parted_table()
    whole.to_parquet(tmp_path / "whole.parquet", index=False)
    write_parts(tmp_path / "parts", whole)
    (tmp_path / "parts" / "_SUCCESS").touch()  # as Spark leaves it
    source, expected = open_source(form.format(tmp_path / "parts")), open_source(str(tmp_path / "whole.parquet"))
    parts, rows = read_splits(source), read_splits(expected)
    assert parts.keys() == rows.keys()
    for name, split in parts.items():
        assert np.array_equal(split.x, rows[name].x) and np.array_equal(split.y, rows[name].y)
    assert len(source.files()) == 4 and source.task.labels == ("a", "b")
    new = read_new(form.format(tmp_path / "parts"), source.task)
    assert new.ids.tolist() == [str(row) for row in range(60)]


def test_a_part_without_values_of_a_column_has_its_type(tmp_path):
    whole = parted_table()
    write_parts(tmp_path / "parts", whole.assign(v3=whole["v3"].where(whole.index >= 20).astype(object)))
    task = open_source(str(tmp_path / "parts"), missing="mask").task
    assert task.max_tokens == 4 and len(read_new(tmp_path / "parts", task).x) == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part: part.drop(columns="v1"), "part-001.parquet: no column 'v1', which part-000.parquet has"),
        (lambda part: part.assign(more=1), "part-000.parquet: no column 'more', which part-001.parquet has"),
        (lambda part: part.assign(v1="high"), "'v1' holds .*string, but double in part-000.parquet"),
    ],
)
def test_parts_with_other_columns_are_refused(tmp_path, change, message):
    folder = write_parts(tmp_path / "parts", parted_table(), ends=(30,))
    change(parted_table().iloc[30:]).to_parquet(folder / "part-001.parquet", index=False)
    assert_refused(message, folder)


def test_columns_of_parts_may_stand_in_another_order(tmp_path):
    folder = write_parts(tmp_path / "parts", parted_table(), ends=(30,))
    turned = parted_table().iloc[30:]
    turned[turned.columns[::-1]].to_parquet(folder / "part-001.parquet", index=False)
    source, whole = open_source(str(folder)), tmp_path / "whole.parquet"
    parted_table().to_parquet(whole, index=False)
    expected = read_splits(open_source(str(whole)))
    assert all(np.array_equal(split.x, expected[name].x) for name, split in read_splits(source).items())


def test_a_bad_row_is_named_with_its_part(tmp_path):
    whole = parted_table()
    whole.loc[50, "label"] = None
    assert_refused("part-003.parquet, row 5", write_parts(tmp_path / "parts", whole))


def test_patterns_of_other_files_are_refused(tmp_path):
    (tmp_path / "a.csv").touch()
    assert_refused("a.csv is not a Parquet file", tmp_path / "*.csv")
    assert_refused("no such files", tmp_path / "*.parquet")


def test_parts_are_a_task_of_the_name_of_their_folder(tmp_path):
    write_parts(tmp_path / "parts", parted_table())
    assert own_name(str(tmp_path / "parts" / "*.parquet")) == own_name(str(tmp_path / "parts")) == "parts"


@pytest.mark.parametrize("origin", ["./mnist", "data/mnist/", "mnist/*.parquet", "hf:user/mnist"])
def test_own_data_never_has_the_name_of_a_named_task(origin):
    assert own_name(origin) == "mnist-data" and own_name(origin.replace("mnist", "mnist-1")) == "mnist-1"


def test_names_that_differ_in_letters_beyond_ascii_are_different_tasks():
    names = [own_name(f"folder/{letters}.csv") for letters in ("\u6570\u636e", "\u56f3\u8868", "\u00e9", "\u00e8")]
    assert len(set(names)) == 4 and all(re.fullmatch(r"csv-[0-9a-f]{8}", name) for name in names)
    assert own_name("donne\u0301es.csv") == own_name("donn\u00e9es.csv") != own_name("donnees.csv")
    assert own_name("\udce9.csv")  # no valid UTF-8
    assert own_name("my data.csv") == "my-data.csv" and own_name("mnist") == "mnist-data"


def test_a_folder_with_the_name_of_a_named_task_is_read_as_any_other(tmp_path):
    for number in range(12):
        path = tmp_path / "mnist" / KIND[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    task = open_source(str(tmp_path / "mnist")).task
    assert (task.name, kind_of(task)) == ("mnist-data", "pictures")
    new = read_new(tmp_path / "mnist", task)
    assert encode_values(task, new.x)[0].shape == (12,)


def test_recordings_in_parquet_are_still_recordings(tmp_path):
    for number in range(20):
        folder = tmp_path / "runs" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).normal(size=12)
        pd.DataFrame({"force": values}).to_parquet(folder / f"{number}.parquet", index=False)
    task = open_source(str(tmp_path / "runs")).task
    assert task.parameters["recordings"] and task.max_tokens == 12
    assert len(read_new(tmp_path / "runs" / "a", task).x) == 10  # a flat folder of recordings of the readout


def test_the_command_line_reads_parts(tmp_path, call, cache):
    folder, model = (
        write_parts(tmp_path / "parts", parted_table()),
        "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64",
    )
    pattern = folder / "*.parquet"
    assert call("extract", pattern, "--backbone", model, "--init", "random", "--pool", "mean")[0] == 0
    assert call("fit", pattern, "--out", tmp_path / "r")[0] == 0
    code, printed, err = call("predict", tmp_path / "r", pattern)
    assert code == 0 and len(printed.splitlines()) == 60 and "fitted on rows of this file" in err


def test_names_of_columns_that_are_numbers_are_no_series(tmp_path):
    wavelengths = [str(400 + 10 * n) for n in range(5)]
    spectra = [[n % 3 / 4, n % 5 / 4, n % 7 / 4, n % 2 + 0.5, n % 11] for n in range(ROWS)]
    lines = ["\t".join(map(str, row)) for row in spectra]
    labelled, new = tmp_path / "labelled.tsv", tmp_path / "new.tsv"
    labelled.write_text(
        "\n".join(["\t".join(["label", *wavelengths]), *(f"{KIND[n % 2]}\t{line}" for n, line in enumerate(lines))])
    )
    new.write_text("\n".join(["\t".join(wavelengths), *lines]))
    x = read_new(new, open_source(str(labelled)).task).x
    np.testing.assert_allclose(x, spectra)
    # Without a readout, the file may be one of the UCR archive.
    assert "if they are names of columns" in str(open_source(str(new)).notes())
    published = tmp_path / "published.tsv"
    published.write_text("\n".join(f"{n % 2}\t{line}" for n, line in enumerate(lines)))
    assert not open_source(str(published)).notes()


def test_an_empty_last_cell_of_a_new_row_is_missing_if_no_row_of_the_fit_ended_early(tmp_path):
    rows = [[n % 3 / 4, n % 5 / 4, n % 7 / 4, KIND[n % 2]] for n in range(ROWS)]
    new = [[0.5, 0.5, "", ""], [0.5, "", 0.5, ""], [0.5, 0.5, 0.5, ""]]
    path = table(tmp_path / "new.csv", new, "age,dose,pulse,label")
    complete = open_source(table(tmp_path / "t.csv", rows, "age,dose,pulse,label")).task
    found = read_new(path, complete)
    assert len(found.x) == 1 and [*found.skipped] == [0, 1] and "'pulse'" in str(found.skipped)
    rows[4][2] = ""
    path = table(tmp_path / "new.csv", new, "t0,t1,t2,label")
    found = read_new(path, open_source(table(tmp_path / "t.csv", rows, "t0,t1,t2,label")).task)
    assert found.lengths is not None and found.lengths.tolist() == [2, 3] and [*found.skipped] == [1]


def test_rows_end_early_only_in_numbered_columns(tmp_path):
    rows = [[n % 3 / 4, n % 5 / 4, "" if n == 4 else n % 7 / 4, KIND[n % 2]] for n in range(ROWS)]
    named = table(tmp_path / "named.csv", rows, "age,dose,pulse,label")
    assert_refused("an empty cell in column 'pulse'", named)
    gases = table(tmp_path / "gases.csv", rows, "pm10,pm25,no2,label")
    assert_refused("an empty cell in column 'no2'", gases)
    assert all(len(x) == 3 for x in stored(open_source(named, missing="mask"))[0])
    numbered = table(tmp_path / "numbered.csv", rows, "t0,t1,t2,label")
    assert {len(x) for x in stored(open_source(numbered))[0]} == {2, 3}


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_rows_of_arrays_that_share_an_id_stay_together(tmp_path, suffix):
    path, ids = tmp_path / f"d{suffix}", np.repeat(np.arange(20), 3)
    arrays = {"x": RNG.normal(size=(60, 4)), "y": np.arange(60) // 3 % 2, "ids": ids}
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    source = open_source(str(path))
    assert "rows with the same id are kept in one split" in str(source.notes())
    parts = [part for piece in source.pieces() for part in source.read(piece).items()]
    splits_of_ids = {}
    for name, split in parts:
        for identifier in split.ids:
            splits_of_ids.setdefault(str(identifier).partition("#")[0], set()).add(name)
    assert len(splits_of_ids) == 20 and all(len(splits) == 1 for splits in splits_of_ids.values())


def test_what_a_bad_row_lacks_differs_from_nothing(tmp_path):
    rows = [[f"s{n // 4}", n % 4, n % 5 / 4, KIND[n // 4 % 2]] for n in range(4 * ROWS)]
    rows[6][0] = rows[13][0] = ""  # of sequences with different labels
    source = open_source(table(tmp_path / "t.csv", rows, "id,time,v,label"), skip_bad_rows=True)
    assert len(stored(source)[0]) == ROWS
    rows[20][3] = KIND[0] if rows[20][3] == KIND[1] else KIND[1]
    assert_refused("line 2[23].*label differs", table(tmp_path / "t.csv", rows, "id,time,v,label"), skip_bad_rows=True)


def test_the_label_of_a_recording_is_no_channel(tmp_path):
    for n in range(20):
        folder = tmp_path / "runs" / KIND[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        table(folder / f"{n:02d}.csv", [[*RNG.normal(size=2).round(3), n % 2] for _ in range(5)], "a,b,label")
    assert_refused("'label' is the same in the whole recording.*--drop label", tmp_path / "runs")
    assert len(stored(open_source(str(tmp_path / "runs"), drop="label"))[0]) == 20
