"""Datasets of Hugging Face's library: folders, splits, labels and texts are read in pieces, and scripts never run."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from reservoir_pipelines.data.formats import open_rows
from reservoir_pipelines.preparation.prepare import open_source

from reservoir.options import OwnDataOptions
from reservoir.tasks import Vectors
from reservoir.tasks.texts import texts_of
from tests.tasks.samples import assert_refused, read_new

NAMES = ["neg", "pos"]
TEXTS = [f"row {n} is {'good' if n % 2 else 'bad'}" + " so" * (n % 5) for n in range(30)]


class Part:
    """A stand-in for `datasets.Dataset` with the attributes that are used."""

    cache_files = ({"filename": __file__},)

    def __init__(self, columns, named=()):
        kinds = {list: SimpleNamespace(dtype="string"), int: SimpleNamespace(dtype="int64")}
        classes = SimpleNamespace(dtype="int64", int2str=NAMES.__getitem__)
        self.columns = columns
        texts = {name: isinstance((cells or [""])[0], str) for name, cells in columns.items()}
        self.features = {n: classes if n in named else kinds[list if text else int] for n, text in texts.items()}

    def __len__(self):
        return len(self.columns["text"])

    def with_format(self, _kind):
        return self

    def __getitem__(self, key):
        return self.columns[key] if isinstance(key, str) else {n: cells[key] for n, cells in self.columns.items()}


@pytest.fixture
def library(monkeypatch):
    """Replace the package, which need not be installed; the test sets the dataset that it loads."""
    made = ModuleType("datasets")
    vars(made).update(__version__="4.1.0", disable_progress_bars=lambda: None, found=None, calls=[])

    def load(*arguments):
        made.calls.append(arguments)
        if isinstance(made.found, Exception):
            raise made.found
        return made.found

    vars(made).update(load_dataset=load, load_from_disk=load)
    monkeypatch.setitem(sys.modules, "datasets", made)
    return made


def labelled(rows=slice(None)):
    return Part({"text": TEXTS[rows], "label": [n % 2 for n in range(30)][rows]}, {"label"})


def rows_of(source):
    pieces = [source.read(piece) for piece in source.pieces()]
    return {
        name: [text for piece in pieces if name in piece for text in texts_of(piece[name].x, piece[name].lengths)]
        for name in ("train", "valid", "test")
    }


def test_splits_and_classes_are_the_datasets_own(library, monkeypatch):
    monkeypatch.setattr("reservoir_pipelines.data.rows.PIECE_LETTERS", 300)
    library.found = {"train": labelled(slice(20)), "test": labelled(slice(20, 30)), "unsupervised": labelled()}
    source = open_source("hf:someone/reviews:plain")
    assert library.calls == [] and source.task.labels == ("neg", "pos") and len(source.pieces()) > 1
    assert library.calls == [("someone/reviews", "plain")]
    found = rows_of(source)
    assert found["test"] == TEXTS[20:] and sorted(found["train"] + found["valid"]) == sorted(TEXTS[:20])
    ids = [piece["test"].ids for piece in map(source.read, source.pieces()) if "test" in piece]
    assert np.concatenate(ids).tolist() == list(range(10))  # each split counts its own rows
    assert source.task.name == "reviews-plain" and "left out: unsupervised" in source.notes()[0]


def test_hidden_labels_make_validation_the_test(library):
    hidden = Part({"text": TEXTS[:3], "label": [-1] * 3}, {"label"})
    library.found = {"train": labelled(slice(20)), "validation": labelled(slice(20, 30)), "test": hidden}
    source = open_source("hf:glue:sst2")
    assert rows_of(source)["test"] == TEXTS[20:] and "'validation' is used as test" in " ".join(source.notes())


def test_splits_without_the_column_of_labels_or_with_gaps_in_it(library):
    gaps = Part({"text": TEXTS[:3], "label": [None, 1, 0]}, {"label"})
    plain = Part({"text": TEXTS[:3]})
    library.found = {"train": labelled(slice(20)), "validation": labelled(slice(20, 30)), "dev": gaps, "test": plain}
    source = open_source("hf:reviews")
    assert rows_of(source)["test"] == TEXTS[20:] and "left out: dev, test" in " ".join(source.notes())
    library.found = {"train": labelled(slice(20)), "test": gaps}
    assert_refused("row 20: no label in column 'label'", "hf:reviews")
    library.found = {"train": labelled(), "test": Part({"label": [0, 1], "text": ["a", "b"], "words": ["a", "b"]})}
    library.found["test"].features.pop("text")
    assert_refused("not every split has the column 'text'", "hf:reviews")


def test_new_texts_need_no_labels(library, tmp_path, monkeypatch):
    monkeypatch.setattr(Part, "cache_files", ())
    library.found = labelled()
    task = open_source("hf:reviews").task
    (tmp_path / "new").mkdir()
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / "new" / name).write_text("{}")
    library.found = Part({"text": TEXTS[:4]})
    x, lengths, _, y, *_ = read_new(tmp_path / "new", task)
    assert x.tolist() == TEXTS[:4] and lengths is None and y is None
    library.found = {"train": labelled(slice(2)), "test": library.found}
    assert read_new(tmp_path / "new", task)[3] is None


def test_lists_of_numbers_are_series(library, tmp_path, monkeypatch):
    monkeypatch.setattr(Part, "cache_files", ())
    library.found = Part({"text": [[n / 2, n % 2] for n in range(30)], "kind": ["a", "b"] * 15})
    task = open_source("hf:series", text="text", label="kind").task
    assert task.form == Vectors(1) and task.labels == ("a", "b")
    (tmp_path / "state.json").write_text("{}")
    assert read_new(tmp_path, task)[0][3].ravel().tolist() == [1.5, 1]


def with_files():
    part = labelled()
    part.features["label"] = SimpleNamespace(feature={"image": SimpleNamespace(decode_example=pytest.fail)})
    return part


@pytest.mark.parametrize(
    ("found", "asked", "message"),
    [
        (with_files(), {}, "column 'label': images, sounds or other files"),
        (labelled(), {"label": "stars"}, "not every split has the column 'stars'"),
        (labelled(), {"text": "label"}, "two flags name one column"),
        (Part({"text": ["a", " ", "b"], "label": [0, 1, 0]}), {}, "row 1: an empty text"),
        (Part({"text": []}), {}, "a dataset without rows"),
        (RuntimeError("Dataset scripts are no longer supported, but found x.py\nmore"), {}, "scripts are no longer"),
    ],
)
def test_unreadable_datasets_are_refused_in_one_line(library, found, asked, message):
    library.found = found
    assert_refused(message, "hf:reviews", **asked)


@pytest.mark.parametrize("file", ["set.py", "README.md"])
def test_a_folder_is_not_opened_as_a_name_of_the_hub(library, tmp_path, file):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / file).write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: http://localhost/x.csv\n---"
    )
    assert_refused("so it is not a name on the hub", f"hf:{tmp_path / 'set'}")
    assert library.calls == []


def test_a_saved_dataset_whose_rows_lie_outside_its_folder_is_refused(library, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["../elsewhere"]}')
    library.found = labelled()
    library.found.cache_files = [{"filename": str(tmp_path / "elsewhere" / "rows.arrow")}]
    assert_refused("the file is outside", tmp_path / "set")


@pytest.mark.parametrize(("version", "message"), [(None, "need a package"), ("3.6.0", "3.6.0 is too old")])
def test_a_missing_datasets_package_ends_in_one_line_with_the_remedy(library, monkeypatch, version, message):
    vars(library)["__version__"] = version
    if version is None:
        monkeypatch.setitem(sys.modules, "datasets", None)
    assert_refused(rf"{message}.*pip install 'datasets>=4'", "hf:reviews")


def test_datasets_of_the_real_library_are_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=NAMES)})
    made = datasets.Dataset.from_dict({"text": TEXTS, "label": [n % 2 for n in range(30)]}, features=features)
    datasets.DatasetDict({"train": made, "test": made.with_format(columns=["text"])}).save_to_disk(tmp_path / "kept")
    source = open_source(str(tmp_path / "kept"))
    assert rows_of(source)["test"] == TEXTS and source.task.labels == ("neg", "pos") and source.files()[0].is_file()
    made.to_json(tmp_path / "rows.jsonl")
    assert isinstance(open_rows(str(tmp_path / "kept"), OwnDataOptions(), source.task).x[:2], np.ndarray)
