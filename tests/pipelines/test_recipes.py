"""Recipes: all tables and figures are there, every setting is an option, every number is the paper's."""

import json
from pathlib import Path

import pytest
from reservoir_pipelines import reproduce
from reservoir_pipelines.reproduction.recipe import LARGE, OPTIONS, SCALES, load_recipe, recipe_names

from reservoir.errors import InputError

PAPER = Path(__file__).resolve().parents[3] / "shared" / "reference" / "paper_tables.json"


@pytest.mark.parametrize("scale", SCALES)
def test_every_table_and_figure_is_there_with_settings_that_exist(scale):
    names = recipe_names()
    wanted = {f"table{n}" for n in range(1, 23)} | {f"figure{n}" for n in (1, 3, 4, 5, 6)}
    assert wanted <= set(names)
    keys = {}
    for name in names:
        recipe = load_recipe(name, scale)
        for cell in recipe.cells:
            assert cell.settings.keys() <= OPTIONS[cell.stage]
            assert (cell.task is None) == (cell.stage in ("pretrain", "backbone"))
            keys.setdefault(cell.key, set()).add(name)
    fpt = {cell.key for cell in load_recipe("table9", scale).cells if cell.settings.get("init") == "pretrained"}
    assert all(len(keys[key]) >= 9 for key in fpt if "table17" in keys[key])  # shared, so that it runs once


def published(name, by_column=False):
    recipe = load_recipe(name, "smoke")
    outer, inner = (recipe.columns, recipe.rows) if by_column else (recipe.rows, recipe.columns)
    found = {((s.column, s.row) if by_column else (s.row, s.column)): s.published for s in recipe.spots}
    return {a: [found[a, b] for b in inner] for a in outer}


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper's numbers are not at hand")
def test_every_number_is_the_papers():
    paper = {key.split()[0].partition("_")[0]: value for key, value in json.loads(PAPER.read_text()).items()}
    paper["table15"] = paper["table19"]
    plain = {
        name: {key: row for key, row in paper[name].items() if key not in ("note", "columns", "unit")}
        for name in ("table1", "table2", "table3", "table4", "table5", "table6", "table9", "table13", "table15")
    }
    plain |= {name: {k: v for k, v in paper[name].items() if k != "columns"} for name in ("table18", "table20")}
    plain |= {name: {k: v for k, v in paper[name].items() if k != "columns"} for name in ("table19", "table21")}
    for name, rows in plain.items():
        assert list(published(name).values())[: len(rows)] == list(rows.values()), name
    assert published("figure1") == published("table1")
    nested = {name: [list(row.values()) for row in paper[name].values()] for name in ("table7", "table8", "table22")}
    nested |= {name: [list(row.values()) for row in paper[name].values()] for name in ("table11", "table12", "table16")}
    for name, rows in nested.items():
        assert list(published(name).values())[: len(rows)] == rows, name
    assert [row[0] for row in published("table14").values()] == list(paper["table14"].values())
    assert published("table17") == {task: paper["table17"][task] for task in ("listops", "cifar10")}
    for task, row in paper["table10"].items():
        ours = {s.row: s.published for s in load_recipe("table10", "smoke").spots if s.column == task}
        assert (ours["output only"], ours["FPT"], ours["Full"]) == (row["output_only"], row["FPT"], row["full"])
        assert ours["speedup per epoch after the first"] == "{} to {}".format(*row["speedup_per_epoch_after_the_first"])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("title = 'x'", "it has no rows"),
        ("title = 'x'\ncolumns = ['mnist']\nrows = [{ name = 'a', cell = 'fpd' }]", "no cell 'fpd'"),
        ("title = 'x'\ncolumns = ['mnist']\nrows = [{ name = 'a', cel = 'fpt' }]", "row 'a' has 'cel'"),
        (
            "title = 'x'\ncolumns = ['mnist']\nrows = [{ name = 'a', cell = 'fpt', settings = { stepz = 1 } }]",
            "'steps'?",
        ),
        ("title = 'x'\ncolumns = ['mnist']\nrows = [{ name = 'a', cell = 'fpt', measure = 'luck' }]", "'luck'"),
        ("title = 'x'\ncolumns = ['mnist']\nrows = [{ name = 'a', cell = 'fpt', published = [1, 2] }]", "2 published"),
        ("title = 3 4", "not readable"),
    ],
)
def test_mistakes_in_a_recipe_are_named(tmp_path, text, fault):
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(InputError, match=r"my\.toml") as error:
        load_recipe(str(tmp_path / "my.toml"), "smoke")
    assert fault in str(error.value)


def test_a_column_with_a_task_goes_before_a_row_named_like_a_task():
    spots = [spot for spot in load_recipe("table-pretraining", "smoke").spots if spot.row == "bit-memory"]
    assert [spot.cells[0][0].task for spot in spots] == ["bit-xor", "bit-xor", "listops", "listops"]
    assert {spot.cells[0][0].task for spot in load_recipe("table18", "smoke").spots if spot.row == "mnist"} == {"mnist"}


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="did you mean 'table1'"):
        load_recipe("tabel1", "smoke")
    with pytest.raises(InputError, match="did you mean 'backbone'"):
        load_recipe("table1", "smoke", override={"bakbone": "gpt2"})
    with pytest.raises(InputError, match="no such task"):
        reproduce(["table1"], only="digits")


def test_an_override_replaces_settings_of_the_scale_only():
    given = {"backbone": "bert-base-uncased"}
    cells = [s.cells[0][0] for s in load_recipe("table3", "paper", override=given).spots if s.column == "mnist"]
    assert [cell.settings["backbone"] for cell in cells] == ["bert-base-uncased", "lstm", "lstm-star"]
    assert [
        cell.settings["seed"] for cell in load_recipe("table9", "smoke", seeds=3).select(["Default"]).cells[:3]
    ] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "only", "rows", "columns"),
    [
        ("table9", ["mnist", "Default"], ["Default"], ["mnist"]),
        ("table9", ["mnist", "cifar10"], ["Pretrained", "Statistics only", "Default"], ["mnist", "cifar10"]),
        ("table18", ["mnist", "output"], ["mnist"], ["output"]),
        ("table-pretraining", ["bit-memory", "bit-xor"], ["bit-memory"], ["bit-xor, output only", "bit-xor, FPT"]),
        ("table9", ["mnist", "FPT"], [], []),  # it has no row FPT
        ("table5", ["homology"], [], []),
    ],
)
def test_only_crosses_tasks_with_rows_and_columns(name, only, rows, columns):
    found = load_recipe(name, "smoke").select(only)
    assert (list(found.rows), list(found.columns)) == (rows, columns)


def test_the_papers_scale_follows_the_papers_code_on_every_task():
    cells = [cell for cell in load_recipe("table9", "paper").cells if cell.task]
    assert {cell.task for cell in cells if cell.settings["protocol"] == "paper"} == set(
        load_recipe("table9", "paper").columns
    )


@pytest.mark.parametrize("scale", SCALES)
def test_the_headline_is_not_trained_and_limits_no_rows_at_full_scale(scale):
    recipe = load_recipe("headline", scale)
    assert {cell.stage for cell in recipe.cells} == {"fit"}
    assert {cell.settings["init"] for cell in recipe.cells} == {"random"}
    raw = {spot.combine for spot in recipe.spots if spot.row == "raw input, linear" and spot.task != "homology"}
    assert raw == {"best"}
    if scale in LARGE:
        assert not any("limit" in cell.settings for cell in recipe.cells)
        assert {cell.settings["seed"] for cell in recipe.cells} == {0, 1, 2}


def test_every_claim_is_about_numbers_of_its_table():
    count = 0
    for name in recipe_names():
        recipe = load_recipe(name, "paper")
        places = {(spot.row, spot.column) for spot in recipe.spots}
        for claim in recipe.claims:
            named = {tuple(place) for place in (claim["more"], *claim.get("than", ()))} if "more" in claim else set()
            assert named <= places, (name, claim)
            assert bool(named) != bool(claim.get("unseen")), (name, claim)
            assert ("than" in claim) + ("by" in claim) == bool(named), (name, claim)
            count += 1
    assert count > 50
