"""The rules by which the columns of a table get their roles, one test per rule, and errors whose command works."""

import json
import shlex
from itertools import permutations

import numpy as np
import pytest
from reservoir_pipelines.cli import run
from reservoir_pipelines.data.counters import change_between_neighbours
from reservoir_pipelines.data.roles import CONVENTIONAL
from reservoir_pipelines.preparation.prepare import open_source

from reservoir.errors import InputError
from reservoir.tasks import Vectors
from tests.tasks.samples import assert_refused, read_new, read_splits

ROWS = 40
LABEL = np.array(["a", "b"])[np.arange(ROWS) % 2]
VALUES = np.random.default_rng(0).normal(size=(ROWS, 3)).round(3)
WIDE = {f"v{n}": VALUES[:, n] for n in range(3)}
WORDS = ["ACGT"[n % 4] * (n % 5 + 2) for n in range(ROWS)]
LISTS = [[n, n + 1] for n in range(ROWS)]


def write(path, columns):
    """Write columns of one length to a table; cells with commas are quoted."""
    if path.suffix == ".jsonl":
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        path.write_text("".join(json.dumps(row, default=lambda cell: cell.item()) + "\n" for row in rows))
        return path
    lines = [columns, *zip(*columns.values(), strict=True)]
    cells = ([f'"{cell}"' if "," in str(cell) else str(cell) for cell in line] for line in lines)
    path.write_text("\n".join(map(",".join, cells)) + "\n")
    return path


def message_of(path, **asked):
    with pytest.raises(InputError) as refused:
        _ = open_source(str(path), **asked).task
    assert "\n" not in str(refused.value)
    return str(refused.value)


def command_in(message):
    """Return the arguments of the command that a message shows: an extraction, of which `prepare` is the first step."""
    program, *arguments = shlex.split(message.partition("for example: ")[2] or message.rpartition(": ")[2])
    assert program == "reservoir"
    return arguments


@pytest.mark.parametrize("name", [*CONVENTIONAL["label"], "Label", "TARGET", "Class", "Y"])
def test_a_label_has_a_conventional_name_in_lower_or_upper_case(tmp_path, name):
    path = write(tmp_path / "t.csv", {**WIDE, name: LABEL})
    task = open_source(str(path)).task
    assert task.labels == ("a", "b") and task.parameters["columns"] == [*WIDE]
    assert np.asarray(read_new(path, task).y).tolist() == LABEL.tolist()


@pytest.mark.parametrize("name", [*CONVENTIONAL["group"], "Subject"])
def test_a_group_has_a_conventional_name_which_the_readout_remembers(tmp_path, name):
    group = np.arange(ROWS) // 4
    path = write(tmp_path / "t.csv", {name: group, **WIDE, "label": LABEL})
    source = open_source(str(path))
    assert "10 groups, each in one split" in " ".join(source.notes())
    assert source.task.parameters["columns"] == [*WIDE]
    assert np.asarray(read_new(path, source.task).groups).tolist() == group.astype(str).tolist()
    new = write(tmp_path / "new.csv", {"group": LABEL, **{n: WIDE[n] for n in WIDE}, name: group})
    assert name in {"group", "groups"} or np.asarray(read_new(new, source.task).groups)[0] == "0"


@pytest.mark.parametrize("name", ["id", "ID"])
def test_ids_have_a_conventional_name_and_flags_take_it_away(tmp_path, name):
    ids = [f"p{n // 2}" for n in range(ROWS)]
    path = write(tmp_path / "t.csv", {name: ids, **WIDE, "label": LABEL})
    assert "20 groups" in " ".join(open_source(str(path), group=name).notes())
    write(path, {name: [f"p{n}" for n in range(ROWS)], **WIDE, "label": LABEL})
    source = open_source(str(path))
    assert "p5" in np.asarray(source.read(source.pieces()[0])["train"].ids)


@pytest.mark.parametrize("name", ["split", "Split"])
@pytest.mark.parametrize("names", [("train", "valid", "test"), ("Train", "Validation", "TEST")])
def test_a_split_has_a_conventional_name(tmp_path, name, names):
    split = [names[n % 3] for n in range(ROWS)]
    source = open_source(str(write(tmp_path / "t.csv", {**WIDE, name: split, "label": LABEL})))
    assert {part: len(rows.x) for part, rows in read_splits(source).items()} == {"train": 14, "valid": 13, "test": 13}


@pytest.mark.parametrize("name", ["time", "timestamp", "Time"])
def test_times_of_rows_that_are_sequences_are_left_out(tmp_path, name):
    source = open_source(str(write(tmp_path / "t.csv", {name: VALUES[:, 0], **WIDE, "label": LABEL})))
    assert source.task.parameters["columns"] == [*WIDE] and f"{name!r} is left out" in " ".join(source.notes())


@pytest.mark.parametrize("name", [*CONVENTIONAL["text"], "Text"])
@pytest.mark.parametrize("cells", [WORDS, LISTS])
def test_a_sequence_has_a_conventional_name_and_other_columns_are_ignored(tmp_path, name, cells):
    source = open_source(str(write(tmp_path / "t.csv", {"site": LABEL, name: cells, **WIDE, "label": LABEL})))
    assert f"only {name!r} is read, not the columns site, v0" in " ".join(source.notes())
    assert bool(source.task.alphabet) == (cells is WORDS)
    assert read_new(write(tmp_path / "new.csv", {name: cells, "site": LABEL}), source.task).ids.tolist() == [
        *range(ROWS)
    ]


@pytest.mark.parametrize("label", [LABEL, np.arange(ROWS) % 2])
@pytest.mark.parametrize("name", ["sequence", "TEXT", "x"])
def test_the_only_column_beside_a_sequence_is_the_label(tmp_path, name, label):
    source = open_source(str(write(tmp_path / "t.csv", {"rating": label, name: WORDS})))
    assert source.task.classes == 2 and source.task.parameters["label"] == "rating"
    assert "the column 'rating' is the label" in " ".join(source.notes())


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("cells", [WORDS, LISTS])
def test_the_only_column_left_is_the_sequence(tmp_path, suffix, cells):
    columns = {"time": range(ROWS), "reads": cells, "label": LABEL, "id": range(ROWS)}
    task = open_source(str(write(tmp_path / f"t{suffix}", columns))).task
    assert task.parameters["text"] == "reads" and bool(task.alphabet) == (cells is WORDS)
    assert len(read_new(write(tmp_path / f"new{suffix}", {"site": LABEL, "reads": cells}), task).x) == ROWS


@pytest.mark.parametrize("name", ["temperature", "x"])
def test_the_only_column_left_is_a_value_if_its_cells_are_single_numbers(tmp_path, name):
    cells = ["ERR", *VALUES[1:, 0]]  # one bad cell does not make a column of numbers a column of words
    path = write(tmp_path / "t.csv", {name: cells, "label": LABEL})
    assert_refused(f"line 2: 'ERR' is not a number in column '{name}'", path)
    task = open_source(str(path), skip_bad_rows=True).task
    assert task.form == Vectors(1) and task.max_tokens == 1 and task.parameters["columns"] == [name]


@pytest.mark.parametrize("name", ["words", "tokens"])
def test_numbers_of_words_or_tokens_are_values(tmp_path, name):
    counts = np.arange(ROWS) * 7 % 50
    task = open_source(str(write(tmp_path / "t.csv", {name: counts, **WIDE, "label": LABEL}))).task
    assert task.parameters["columns"] == [name, *WIDE] and task.classes == 2
    task = open_source(str(write(tmp_path / "t.csv", {"text": WORDS, name: counts, "label": LABEL}))).task
    assert task.parameters["text"] == "text"


def test_a_text_beside_words_with_labels_needs_a_flag(tmp_path):
    columns = {"text": ["a cat"] * ROWS, "tokens": [["a", "cat"]] * ROWS, "tags": [[0, 1]] * ROWS}
    path = write(tmp_path / "t.jsonl", columns)
    message = message_of(path)
    assert "the columns text, tokens all have conventional names" in message and "--text tokens" in message
    assert open_source(str(path), text="tokens").task.parameters["each"] == "word"
    write(path, {**columns, "tags": LABEL})  # a label of the text
    assert open_source(str(path)).task.parameters["text"] == "text"


@pytest.mark.parametrize("columns", [{"label": LABEL}, {"y0": VALUES[:, 0], "y1": VALUES[:, 1]}])
def test_tags_are_values_beside_a_label(tmp_path, columns):
    table = {**WIDE, "tags": np.arange(ROWS) % 3, "ner_tags": np.arange(ROWS) % 7, **columns}
    task = open_source(str(write(tmp_path / "t.csv", table))).task
    assert task.parameters["columns"] == [*WIDE, "tags", "ner_tags"] and task.outputs == len(columns)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_column_of_spans_has_a_conventional_name_only_if_its_cells_are_lists(tmp_path, suffix):
    columns = {"text": WORDS, "span": np.arange(ROWS), "label": LABEL}
    task = open_source(str(write(tmp_path / f"t{suffix}", columns))).task
    assert "span" not in task.parameters and task.parameters["text"] == "text"
    del columns["label"]  # the only column left is the label, whatever its name
    columns["span"] = np.arange(ROWS) % 2
    assert open_source(str(write(tmp_path / f"t{suffix}", columns))).task.parameters["label"] == "span"
    columns |= {"span": [[0, 1]] * ROWS, "label": LABEL}
    assert open_source(str(write(tmp_path / f"t{suffix}", columns))).task.parameters["span"] == "span"


def test_several_outputs_are_called_y0_y1_and_so_on(tmp_path):
    columns = {**WIDE, "y0": VALUES[:, 0], "Y10": VALUES[:, 1]}
    assert open_source(str(write(tmp_path / "t.csv", columns))).task.outputs == 2
    task = open_source(str(write(tmp_path / "t.csv", {**columns, "kind": LABEL})), label="kind").task
    assert task.parameters["columns"] == [*WIDE, "y0", "Y10"]


def test_columns_that_may_all_be_labels_are_to_be_called_y0_y1(tmp_path):
    sport, tech = np.arange(ROWS) % 2, np.arange(ROWS) // 3 % 2
    path = write(tmp_path / "t.csv", {"text": WORDS, "sport": sport, "tech": tech})
    assert "or rename sport, tech to y0, y1 ... if each row has several labels" in message_of(path)
    assert "rename these, and pass no --label" in message_of(path, label="sport,tech")
    source = open_source(str(write(path, {"text": WORDS, "y0": sport, "y1": tech})))
    assert "with 2 labels per row, 2 classes" in source.summary()
    path = write(tmp_path / "t.jsonl", {"text": WORDS, "label": [["sport", "tech"][: n % 3] for n in range(ROWS)]})
    assert "for several labels per row, give columns y0, y1" in message_of(path)


@pytest.mark.parametrize("name", ["index", "row_id", "series_id", "step", "fault"])
def test_no_other_name_has_a_meaning(tmp_path, name):
    source = open_source(str(write(tmp_path / "t.csv", {name: VALUES[:, 0], **WIDE, "label": LABEL})))
    assert source.task.parameters["columns"] == [name, *WIDE]
    assert f"4 values per row: {name}, v0, v1, v2" in " ".join(source.notes())


LONG = {"u": VALUES[:, 0], "label": np.repeat(LABEL[:20], 2)}
STEPS, SERIES = np.arange(ROWS) % 2, np.arange(ROWS) // 2
COMMAS = [str(value).replace(".", ",") for value in VALUES[:, 0]]
DAYS = np.arange("2024-01-01", 3 * ROWS, dtype="datetime64[D]").astype(str)
REFUSALS = {
    # name: (columns, options, what the message says, options in its command)
    "no label": ({**WIDE, "outcome": LABEL}, {}, "no column is called label", "--label outcome"),
    "no label among numbers": ({**WIDE, "out": STEPS, "v9": VALUES[:, 0]}, {}, "among v0", "--label out"),
    "no label beside a sequence": ({"seq": WORDS, "rating": STEPS}, {}, "no column is called label", "--label rating"),
    "no label of a series": ({"date": DAYS, "load": np.arange(3 * ROWS) % 7 / 4 + np.arange(3 * ROWS)}, {},
                             "pass --label NAME, and --forecast 6", "--label load --forecast 6"),
    "no label, other flags": ({**WIDE, "g": SERIES, "o k": LABEL}, {"group": "g"}, "label", "--label 'o k' --group g"),
    "two labels": ({**WIDE, "Target": STEPS, "label": LABEL}, {}, "label, Target all", "--label label --drop Target"),
    "a label and outputs": ({**WIDE, "y0": STEPS, "label": LABEL}, {}, "label, y0 all", "--label label --drop y0"),
    "two ids": ({"id": range(ROWS), "Id": SERIES, **WIDE, "y": LABEL}, {}, "of the id", "--id id --drop Id"),
    "two groups": ({"patient": SERIES, "subject": SERIES, **WIDE, "y": LABEL}, {}, "of the group", "--group subject"),
    "two times": ({"time": STEPS, "timestamp": SERIES, **WIDE, "y": LABEL}, {}, "of the time", "--time time"),
    "two splits": ({"split": ["train", "test"] * 20, "SPLIT": LABEL, **WIDE, "y": LABEL}, {}, "split", "--drop SPLIT"),
    "two sequences": ({"text": WORDS, "x": LISTS, "y": LABEL}, {}, "of the sequence", "--text x"),
    "ids without times": ({"id": SERIES, "step": STEPS, **LONG}, {}, "repeats the same ids", "--group id"),
    "--id without times": ({"who": SERIES, "step": STEPS, **LONG}, {"id": "who"}, "repeats", "--group who"),
    "texts": ({"title": WORDS, "body": WORDS, "label": LABEL}, {}, "'AA' is not a number", "--text title"),
    "texts beside names": ({"name": [f"P{n}" for n in range(ROWS)], "seq": [word * 9 for word in WORDS], "y": LABEL},
                           {}, "'P0' is not a number", "--text seq"),
    "a text beside values": ({"note": WORDS, **WIDE, "label": LABEL}, {}, "'AA' is not a number", "--drop note"),
    "two texts beside values": ({"a": WORDS, "n": WORDS, **WIDE, "y": LABEL}, {"drop": "n"}, "'AA'", "--drop n,a"),
    "dates": ({"day": ["2024-01-01"] * ROWS, **WIDE, "label": LABEL}, {}, "is not a number", "--time day"),
    "decimal commas": ({"u": COMMAS, "v": COMMAS, "label": LABEL}, {}, "is not a number", "--decimal ,"),
    "one column of decimal commas": ({"u": COMMAS, "label": LABEL}, {}, "neither single numbers", "--decimal ,"),
    "numbers with units": ({"u": [f"{n} mV" for n in range(ROWS)], "label": LABEL}, {}, "neither single", "--text u"),
    "a counter of rows": ({**WIDE, "n": range(1, 41), "label": LABEL}, {}, "counts the rows", "--drop n"),
    "a second counter": ({"n": range(40), "m": range(5, 45), **WIDE, "y": LABEL}, {"drop": "n"}, "rows", "--drop n,m"),
    "a counter of steps": ({"case": SERIES // 4, "t": np.arange(ROWS) % 8, "u": VALUES[:, 0],
                            "label": np.repeat(LABEL[:5], 8)}, {}, "counts the steps", "--id case --time t"),
    "times in groups": ({"patient": SERIES // 4, "time": range(ROWS), **WIDE, "y": np.repeat(LABEL[:5], 8)},
                        {}, "increase within each", "--id patient"),
    "times that begin again": ({"case": SERIES // 4, "time": [f"2024-01-0{1 + n % 8}" for n in range(ROWS)],
                                **WIDE, "y": np.repeat(LABEL[:5], 8)}, {}, "begin again", "--id case"),
    "a log": ({"timestamp": range(ROWS), **WIDE, "state": np.repeat(LABEL[:8], 5)}, {"label": "state"},
              "changes little", "--label state --window 2"),
    "a log, newest first": ({"t": range(ROWS, 0, -1), **WIDE, "y": np.repeat([3, 1, 2, 7], 10)}, {"time": "t"},
                            "changes little", "--time t --window 2"),
    "a log with a target": ({"time": range(ROWS), **WIDE, "y": VALUES[:, 0].cumsum()}, {},
                            "--forecast 6 --label y to forecast it, or --drop time", "--window 2"),
    "a clock that steps back": ({"time": [5.5, *range(1, ROWS)], **WIDE, "y": np.repeat(["a", "b"], 20)}, {},
                                "changes little", "--window 2"),
    "a shuffled counter": ({**WIDE, "n": np.random.default_rng(1).permutation(ROWS), "label": LABEL}, {},
                           "counts the rows", "--drop n"),
    "times without a name": ({"case": SERIES // 4, "t": (np.arange(ROWS) % 8) ** 2 / 10, **WIDE,
                              "y": np.repeat(LABEL[:5], 8)}, {}, "increase within each 'case'", "--id case --time t"),
    "a log without a name": ({"t": np.arange(ROWS) / 100, **WIDE, "y": np.repeat(LABEL[:8], 5)}, {},
                             "in the order of 't'", "--time t --window 2"),
    "a log of a group": ({"subject": SERIES % 3, "t": -np.arange(ROWS) / 100, **WIDE, "y": np.repeat(LABEL[:8], 5)}, {},
                         "in the order of 't'", "--drop t"),
    "numbers that name rows": ({"sampleID": np.arange(ROWS) ** 2 % 4099, **WIDE, "y": LABEL}, {},
                               "probably names", "--id sampleID"),
    "numbers of patients": ({"patient_id": SERIES * 7 % 20, **WIDE, "y": LABEL}, {}, "probably names",
                            "--group patient_id"),
    "numbers of people": ({"Participant": SERIES // 2, **WIDE, "y": LABEL}, {}, "probably names",
                          "--group Participant"),
    "numbers beside a group": ({"group": SERIES, "room id": SERIES * 7 % 20, **WIDE, "y": LABEL}, {}, "probably names",
                               "--drop 'room id'"),
    "digits": ({"bits": [f"{n % 16:04b}" for n in range(ROWS)], "label": LABEL}, {}, "neither single", "--text bits"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_no_rule_decides_is_refused_with_a_command_that_works(tmp_path, cache, name):
    columns, asked, problem, options = REFUSALS[name]
    message = message_of(write(tmp_path / "t.csv", columns), **asked)
    assert problem in message, message
    arguments = command_in(message)
    assert arguments[:2] == ["extract", str(tmp_path / "t.csv")]
    assert shlex.join(shlex.split(options)) in shlex.join(arguments), message
    assert run(["prepare", *arguments[1:]]) == 0


def test_times_of_groups_are_left_out_if_the_user_says_that_rows_are_sequences(tmp_path):
    columns = {"patient": SERIES // 4, "time": np.arange(ROWS) % 8, **WIDE, "label": LABEL}
    source = open_source(str(write(tmp_path / "t.csv", columns)), group="patient")
    assert source.task.parameters["columns"] == [*WIDE] and "5 groups" in " ".join(source.notes())


@pytest.mark.parametrize("label", [LABEL, VALUES[:, 1], np.random.default_rng(2).integers(0, 3, ROWS)])
def test_times_are_left_out_if_labels_change_as_if_shuffled_or_if_the_user_drops_them(tmp_path, label):
    path = write(tmp_path / "t.csv", {"time": range(ROWS), **WIDE, "label": label})
    source = open_source(str(path))
    assert source.task.parameters["columns"] == [*WIDE] and "'time' is left out" in " ".join(source.notes())
    write(path, {"time": range(ROWS), **WIDE, "label": sorted(label)})
    assert_refused("changes little", path)
    source = open_source(str(path), drop="time")
    assert source.task.parameters["columns"] == [*WIDE] and source.task.max_tokens == 3


def test_a_log_without_labels_may_be_one_recording_or_be_forecast(tmp_path):
    path = write(tmp_path / "t.csv", {"time": range(ROWS), **WIDE})
    notes = " ".join(open_source(str(path)).notes())
    assert "--window 2" in notes and "--forecast" in notes
    source = open_source(str(path), window=2)
    assert source.task.unlabelled and source.task.max_tokens == 2 and "stretches" in " ".join(source.notes())


@pytest.mark.parametrize("labels", [["a", "a", "b", "c", "a"], ["1", "4", "4", "9.5", "-2"]])
def test_the_change_between_neighbours_is_a_share_of_its_mean_over_all_orders(labels):
    changes = [change_between_neighbours(np.array(order)) for order in permutations(labels)]
    assert np.mean(changes) == pytest.approx(1) and min(changes) < 0.8
    assert change_between_neighbours(np.array(["a"] * 5)) == 1


def test_a_counter_is_a_value_if_the_user_says_so(tmp_path):
    path = write(tmp_path / "t.csv", {"n": range(ROWS), **WIDE, "label": LABEL})
    assert open_source(str(path), values=True).task.parameters["columns"] == ["n", *WIDE]
    path = write(tmp_path / "t.csv", {"humid": SERIES, "case_id": SERIES, "t": VALUES[:, 0].cumsum(), "label": LABEL})
    assert open_source(str(path), values=True).task.parameters["columns"] == ["humid", "case_id", "t"]
    assert "'case_id'" in message_of(path)
    for labels, v in ((LABEL, VALUES[:, 0]), (np.sort(LABEL), np.arange(ROWS) / 9)):  # shuffled, or a second column
        path = write(tmp_path / "t.csv", {"u": np.arange(ROWS) / 7, "v": v, "label": labels})
        assert open_source(str(path)).task.parameters["columns"] == ["u", "v"]


@pytest.mark.parametrize("others", [{}, WIDE])
@pytest.mark.parametrize("cell", ["1,037", "1,037,000"])
def test_a_comma_that_may_separate_thousands_is_refused_without_choosing_for_the_user(tmp_path, others, cell):
    message = message_of(write(tmp_path / "t.csv", {"u": [cell] * ROWS, **others, "label": LABEL}))
    assert "may separate thousands" in message and "for example" not in message


@pytest.mark.parametrize("header", ["run,fault,severity", "run,label,target"])
def test_a_table_of_labels_follows_the_same_rules(tmp_path, cache, header):
    (tmp_path / "runs").mkdir()
    for n in range(ROWS):
        (tmp_path / "runs" / f"{n:02d}.csv").write_text(f"u\n{n}\n{n + 1}\n")
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join([header, *(f"{n:02d},{LABEL[n]},s{n % 4}" for n in range(ROWS))]))
    message = message_of(tmp_path / "runs", labels=str(labels))
    arguments = command_in(message)
    assert arguments[:2] == ["extract", str(tmp_path / "runs")] and "--label" in arguments
    assert run(["prepare", *arguments[1:]]) == 0
    labels.write_text(labels.read_text().replace(header, "run,fault,PATIENT"))
    source = open_source(str(tmp_path / "runs"), labels=str(labels))
    assert source.task.labels == ("a", "b") and "4 groups" in " ".join(source.notes())


def test_two_times_in_a_recording_are_refused_with_a_command_that_works(tmp_path, cache):
    for n in range(ROWS):
        file = tmp_path / "runs" / LABEL[n] / f"{n}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"time,timestamp,u\n0,9,{n}\n1,8,{n + 1}\n")
    arguments = command_in(message_of(tmp_path / "runs"))
    assert arguments == ["extract", str(tmp_path / "runs"), "--time", "time"]
    assert run(["prepare", *arguments[1:]]) == 0


def test_columns_of_a_readout_keep_their_role_whatever_they_are_called(tmp_path):
    columns = {"x": VALUES[:, 0], "y": VALUES[:, 1], "class": VALUES[:, 2], "label": LABEL}
    task = open_source(str(write(tmp_path / "t.csv", columns)), label="label").task
    assert task.parameters["columns"] == ["x", "y", "class"]
    new = read_new(write(tmp_path / "new.csv", {"time": range(ROWS), **columns, "target": LABEL}), task)
    assert np.array_equal(new.x.reshape(ROWS, 3), VALUES) and np.asarray(new.y).tolist() == LABEL.tolist()


VALUES_AS_TEXT = [",".join(map(str, row)) for row in VALUES]


@pytest.mark.parametrize("others", ["", ",a", ",7,a"])
def test_a_first_line_of_values_is_not_taken_for_names(tmp_path, others):
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{row}{others}\n" for row in VALUES_AS_TEXT))
    assert "line 1: numbers such as 0.126 are not names of columns" in message_of(path)
    path.write_text("\n\n" + path.read_text())
    assert "line 3: numbers" in message_of(path)


@pytest.mark.parametrize("names", ["400,410.5,421", "2020,2019,2018", "1,10,2", "0,1,2"])
def test_numbers_in_order_are_names_of_columns(tmp_path, names):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([f"{names},label", *(f"{VALUES_AS_TEXT[n]},{LABEL[n]}" for n in range(ROWS))]))
    assert open_source(str(path)).task.parameters["columns"] == names.split(",")


def test_a_sequence_with_a_bad_row_is_said_to_be_left_out(tmp_path):
    columns = {"id": SERIES // 4, "time": np.arange(ROWS) % 8, "u": VALUES[:, 0], "label": np.repeat(LABEL[:5], 8)}
    columns["u"] = [*map(str, VALUES[:-1, 0]), "ERR"]
    notes = " ".join(open_source(str(write(tmp_path / "t.csv", columns)), skip_bad_rows=True).notes())
    assert "1 of 5 sequences are left out with all their rows" in notes and "the later ones: 4" in notes


def test_ids_that_begin_again_in_each_group_are_refused_with_what_to_do(tmp_path):
    columns = {"subject": SERIES // 4, "id": SERIES % 4, "time": np.arange(ROWS), "u": VALUES[:, 0]}
    message = message_of(write(tmp_path / "t.csv", {**columns, "label": np.repeat(LABEL[:20], 2)}), drop="label")
    assert "the group differs" in message and "an id of its own if the same 'id' stand in several groups" in message
