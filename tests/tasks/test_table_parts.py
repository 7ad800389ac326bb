"""A folder of Parquet files, or a pattern of them, is read as the one table that they are parts of."""

import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines.data.own_data import own_name
from reservoir_pipelines.preparation.sources import open_source

from tests.tasks.samples import assert_refused, read_new, read_splits

pytest.importorskip("pyarrow")


def table(rows=60, seed=0):
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
    whole = table()
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
    whole = table()
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
    folder = write_parts(tmp_path / "parts", table(), ends=(30,))
    change(table().iloc[30:]).to_parquet(folder / "part-001.parquet", index=False)
    assert_refused(message, folder)


def test_columns_of_parts_may_stand_in_another_order(tmp_path):
    folder = write_parts(tmp_path / "parts", table(), ends=(30,))
    turned = table().iloc[30:]
    turned[turned.columns[::-1]].to_parquet(folder / "part-001.parquet", index=False)
    source, whole = open_source(str(folder)), tmp_path / "whole.parquet"
    table().to_parquet(whole, index=False)
    expected = read_splits(open_source(str(whole)))
    assert all(np.array_equal(split.x, expected[name].x) for name, split in read_splits(source).items())


def test_a_bad_row_is_named_with_its_part(tmp_path):
    whole = table()
    whole.loc[50, "label"] = None
    assert_refused("part-003.parquet, row 5", write_parts(tmp_path / "parts", whole))


def test_patterns_of_other_files_are_refused(tmp_path):
    (tmp_path / "a.csv").touch()
    assert_refused("a.csv is not a Parquet file", tmp_path / "*.csv")
    assert_refused("no such files", tmp_path / "*.parquet")


def test_parts_are_a_task_of_the_name_of_their_folder(tmp_path):
    write_parts(tmp_path / "parts", table())
    assert own_name(str(tmp_path / "parts" / "*.parquet")) == own_name(str(tmp_path / "parts")) == "parts"


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
    folder, model = write_parts(tmp_path / "parts", table()), "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"
    pattern = folder / "*.parquet"
    assert call("extract", pattern, "--backbone", model, "--init", "random", "--pool", "mean")[0] == 0
    assert call("fit", pattern, "--out", tmp_path / "r")[0] == 0
    code, printed, err = call("predict", tmp_path / "r", pattern)
    assert code == 0 and len(printed.splitlines()) == 60 and "fitted on rows of this file" in err
