"""Columns and their names: parsing inverts printing, and short names fit a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservoir import InputError
from reservoir.column import (
    RAW,
    Baseline,
    Column,
    common_place,
    joined_name,
    layers_first_to_last,
    parse_columns,
    short_name,
    single_column,
)

PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True)  # the names that the cache allows
COLUMNS = st.builds(Column, PARTS, PARTS, st.none() | st.integers(1, 99))
BASELINES = st.sampled_from([RAW, Baseline("tf-idf"), Baseline("raw, windows of 9"), Baseline("the mean")])


@given(COLUMNS)
def test_parsing_inverts_printing(column):
    assert Column.parse(str(column)) == column
    assert single_column(str(column)) == column
    assert Column.parse(column.name) == Column(column.layer, column.pooling)


@given(st.lists(COLUMNS | BASELINES, min_size=1, max_size=4).map(tuple))
def test_parsing_inverts_printing_of_columns_side_by_side(columns):
    assert parse_columns(joined_name(columns)) == columns


@pytest.mark.parametrize("text", ["mean", "/mean", "block01/", "a:block01/mean", ":block01/mean", ""])
def test_a_column_needs_a_layer_and_a_pooling(text):
    with pytest.raises(InputError, match="layer/pooling"):
        Column.parse(text)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("block01/mean+block02/max", "block01/mean+block02/max"),
        ("a/mean+b/mean+c/mean", "a+b+c (mean)"),
        ("a/mean+b/mean+c/mean+d/mean", "mean of 4 layers"),
        ("a/mean+a/max+b/mean", "a+b (3 columns)"),
        ("a/mean+b/mean+c/mean+d/max", "a ... d (4 columns)"),
        ("1:a/mean+2:a/mean+raw", "1:a+2:a+raw (3 columns)"),
    ],
)
def test_short_names(name, short):
    assert short_name(parse_columns(name)) == short


def test_the_common_layer_of_columns():
    assert common_place(parse_columns("2:a/mean+2:a/max")) == "2:a"
    assert common_place(parse_columns("a/mean+b/mean")) is None
    assert common_place((RAW,)) == "raw"
    assert layers_first_to_last(["raw", "final", "embed", "block01"]) == ["embed", "block01", "final", "raw"]
