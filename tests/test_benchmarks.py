"""Tables come from their commands and committed results, a dry run measures a GPU, and weights are converted."""

import importlib.util
import json
import re
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reservoir_pipelines import report, reproduce
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.paper.reproduction_folder import Cell, ReproductionFolder
from safetensors.torch import load_file

from reservoir.backbones import load_backbone, weights_digest
from reservoir.tasks import variant_of
from reservoir.tasks.source import Source
from tests.reservoir.models import save, save_with_tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))  # its scripts import each other

from import_weights import import_weights

ROOT = Path(__file__).resolve().parents[1]


def script(name):
    """Return a script of the folder benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results():
    return script("results")


@pytest.fixture(scope="module")
def reproductions():
    return script("reproductions")


def test_every_table_has_a_command_and_marks_around_it(results):
    text, tables = results.RESULTS.read_text(), tomllib.loads(results.TABLES.read_text())
    for name, table in tables.items():
        block = results.block(name)
        assert text.count(f"<!-- {name} -->\n") == 1 and ("|--" in block or "```text" in block), name
        assert all(command in block for command in results.commands(table)), name
        assert re.search(r"\n20\d\d-\d\d-\d\d, .*\n$", block), name
    assert "depends on the instruction set" in results.__doc__


def test_a_table_agrees_within_its_last_digit_and_no_further(results):
    table = "| task | test |\n|---|--:|\n| a | **90.1** |\n| b | `x` |\n"
    assert results.differences(table, table.replace("**90.1**", "90.2").replace("`x`", "`y`")) == []
    assert len(results.differences(table, table.replace("90.1", "90.3"))) == 1
    assert len(results.differences(table, table.replace("| b |", "| c |"))) == 2
    with_kind = "| task | test | instructions |\n|---|--:|---|\n| a | {} | {} |\n"
    assert results.differences(with_kind.format(1, "bfloat16"), with_kind.format(2, "float32")) == []
    assert len(results.differences(with_kind.format(1, "any"), with_kind.format(3, "any"))) == 1


def test_other_pages_cite_numbers_of_the_results(results):
    readme = (ROOT / "README.md").read_text()
    native, in_float32 = results.parsed(results.block("digits"))
    assert f"In float32 the test accuracy on the digits is {in_float32['test']}%" in " ".join(readme.split())
    assert f"{native['valid']}%  {native['test']}%" in readme
    mean = next(row for row in results.parsed(results.block("series")) if row["set"] == "mean")
    text = " ".join((ROOT / "docs" / "comparison.md").read_text().split())
    default, mini, hydra, raw = (mean[k] for k in ("default", "MiniRocket", "MultiRocket-Hydra", "raw ridge"))
    assert f"a mean accuracy of {default}, MiniRocket {mini}, MultiRocket-Hydra {hydra}," in text
    assert f"and a ridge on the raw values {raw}" in text


def committed_results():
    """Return the lines of all committed results, each with the name of its file."""
    committed = script("committed")
    return [
        (path.name, result)
        for path in sorted((ROOT / committed.RESULTS).glob("*.jsonl"))
        for result in committed.read_results(path)
    ]


def test_committed_results_name_their_versions_and_no_folder_of_a_machine():
    results = committed_results()
    names = ("hour", "day", "full", "mpnet", "minilm", "stories15M", "paper")
    assert {name for name, _ in results} == {f"{name}.jsonl" for name in names}
    for name, cell in results:
        assert not re.search(r"""["' =(][/~]""", json.dumps(cell)), (name, cell["key"])
        assert cell["key"] == Cell(cell["stage"], cell["task"], cell["settings"]).key
        assert cell["made_with"]["torch"] and cell["commands"] and cell["cpu_seconds"] > 0


def test_cells_become_lines_without_paths_of_a_machine_and_lines_become_cells_again(tmp_path):
    committed = script("committed")
    mine, other = ReproductionFolder(tmp_path / "mine"), ReproductionFolder(tmp_path / "other")
    mine.create()
    cells = [Cell("train", task, {"seed": seed, "steps": 5}) for task in ("mnist", "bit-xor") for seed in (1, 0)]
    for cell in cells:
        result = {
            "commands": [
                f"reservoir train {cell.task} --data '/my files' --run /a/b/cache/runs/x/mini-1 --cache /a/b/cache"
            ],
            "notes": [
                "train: 5 of 9 (55%), 1.94 steps/s",
                "all rows are in /a/b/cache/features/mnist/1; no forward pass",
            ],
            "values": {"test_score": 0.5, "losses": [[1.0, 2.0]]},
            "folder": str(mine.work / cell.key if cell.task == "mnist" else Path("/a b/cache/runs/bit-xor/mini-1")),
            **{"bytes": 1, "seconds": 2.0, "cpu_seconds": 1.0, "made_with": {"torch": "2"}},
        }
        mine.save_result(cell.key, {**cell.to_dict(), **result})
    text = committed.results_text(mine.results(), {cells[0].key: {"table1 | FPT | mnist"}})
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["task"], line["settings"]["seed"]) for line in lines] == [
        *(("bit-xor", 0), ("bit-xor", 1), ("mnist", 0), ("mnist", 1)),
    ]
    assert lines[0]["commands"] == ["reservoir train bit-xor --data data --run cache/runs/x/mini-1 --cache cache"]
    assert lines[0]["notes"] == ["all rows are in cache/features/mnist/1; no forward pass"]
    assert (lines[0]["folder"], lines[3]["folder"]) == ("cache/runs/bit-xor/mini-1", f"work/{cells[0].key}")
    assert (lines[0]["values"], lines[3]["numbers"]) == ({"test_score": 0.5}, ["table1 | FPT | mnist"])

    # Unpacked and packed again, the text is the same; cells that the folder has are kept.
    path = tmp_path / "day.jsonl"
    path.write_text(text)
    assert (committed.unpack(path, other), committed.unpack(path, other)) == (4, 0)
    assert committed.results_text(other.results(), {cells[0].key: {"table1 | FPT | mnist"}}) == text
    assert committed.add(mine, other) == {"new": 0, "changed": 0, "the same": 4}

    # A line that was edited by hand, and a path without a meaning elsewhere, are refused.
    path.write_text(text.replace("0.5", "0.6", 1))
    with pytest.raises(SystemExit, match=r"day\.jsonl, line 1: damaged; restore"):
        committed.read_results(path)
    result = mine.result(cells[0].key)
    assert result
    with pytest.raises(SystemExit, match=rf"cell {cells[0].key}: the path '/a/text"):
        committed.result_line({**result, "commands": ["reservoir pretrain /a/text"]}, {})


@pytest.mark.usefixtures("few_bits")
def test_reproduce_continues_from_unpacked_cells_and_report_shows_them(cache, tmp_path):
    recipe, path = tmp_path / "my.toml", tmp_path / "my.jsonl"
    recipe.write_text(
        """title = "a table of mine"
columns = ["bit-xor"]
rows = [
    { name = "FPT", cell = "fpt", settings = { steps = 3, eval_every = 3 } },
    { name = "readout", cell = "readout-last", settings = { limit = 60 } },
]
settings = { backbone = "mini:n_layer=1,n_embd=16,n_head=2", depth = "", init = "random" }
"""
    )
    committed, done = script("committed"), reproduce([str(recipe)])
    assert (done.ran, done.failed) == (2, {})
    path.write_text(committed.results_text(ReproductionFolder(done.folder).results(), {}))
    other = ReproductionFolder(tmp_path / "other")
    committed.unpack(path, other)
    again = reproduce([str(recipe)], out=other.path)
    assert (again.ran, again.reused, again.tables) == (0, 2, done.tables)
    assert "2 finished, 0 failed" in report(other.path).page.read_text()


@pytest.mark.slow
def test_adding_an_unpacked_folder_restores_removed_lines_and_changes_nothing_else(
    tmp_path, reproductions, monkeypatch
):
    root, folder, paper = tmp_path / "copy", tmp_path / "cells", Path("benchmarks/results/paper.jsonl")
    for name in ("benchmarks", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("build", "__pycache__"))
    shutil.copy(ROOT / "README.md", root)
    monkeypatch.setattr(reproductions, "ROOT", root)
    assert reproductions.main(["--unpack", str(folder), "--scale", "paper"]) == 0
    assert len(list(folder.glob("cells/*.json"))) == 3 and list(folder.glob("tables/*.json"))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    (root / paper).write_text("")
    assert reproductions.main(["--add", str(folder), "--scale", "paper"]) == 0
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    with pytest.raises(SystemExit):
        reproductions.main(["--add", str(root), "--scale", "paper"])


def test_a_committed_result_can_be_found_by_table_row_and_seed():
    lines = (ROOT / "benchmarks" / "results" / "day.jsonl").read_text().splitlines()
    (line,) = [line for line in lines if "table1 | FPT | mnist" in line and '"seed": 0' in line]
    assert json.loads(line)["settings"]["backbone"] == "mini"


def test_pages_and_results_are_what_their_finished_cells_give(tmp_path, reproductions):
    cells = tmp_path / "cells"
    reproductions.unpack_all(ROOT, cells)
    settings = reproductions.read_settings(ROOT)
    numbers = reproductions.save_tables(cells, settings)
    changed = reproductions.changes(ROOT, cells, numbers)
    assert [str(path) for path in changed] == [], "run make reproductions"
    assert [picture.path for picture in reproductions.pictures(cells, numbers) if not picture.is_current(ROOT)] == []
    # A cell with another number changes the page and the sentence that names it.
    key = read_checked(cells / "day" / "tables" / "table-xor.json")["rows"][0]["spots"][1]["cells"][0][0]
    path = cells / "day" / "cells" / f"{key}.json"
    cell = read_checked(path)
    cell["values"]["test_score"] = 0.7345
    write_checked(path, cell)
    day = reproductions.save_tables(cells, settings | {"folders": {"day": settings["folders"]["day"]}})
    changed = reproductions.changes(ROOT, cells, replace(numbers, tables={**numbers.tables, **day.tables}))
    results = Path("benchmarks/results/day.jsonl")
    assert {*changed} == {results, reproductions.PAGE, reproductions.LEADERBOARD, Path("docs/log.md")}
    before, after = (ROOT / results).read_text().splitlines(), changed[results].splitlines()
    assert [f'"{key}"' in new for old, new in zip(before, after, strict=True) if old != new] == [True]
    assert "| 64.3% | 73.5% (64.4% to 64.7%) |" in changed[Path("docs/log.md")]


def test_a_sentence_gets_its_numbers_even_where_a_line_breaks_in_it(reproductions):
    numbers = SimpleNamespace(text={"a": "97.1", "b": "2,493"}.get)
    page = "| x | 5 |\nIt has 96.9%\n  after 2,500\nsteps.\n"
    filled = reproductions.fill_sentence(page, "It has {a}% after {b} steps.", numbers, "a.md")
    assert filled == page.replace("96.9", "97.1").replace("2,500", "2,493")
    for sentence in ("It had {a}%", "{a}"):
        with pytest.raises(SystemExit, match=r"a\.md: \d sentences like"):
            reproductions.fill_sentence(page, sentence, numbers, "a.md")


def test_no_score_of_a_finished_training_was_chosen_on_its_test_rows():
    for name, cell in committed_results():
        path = name, cell["key"]
        source = variant_of(cell["settings"]).sources.get(cell["task"], Source)
        if cell["stage"] == "train" and source.no_selection:
            values = cell["values"]
            assert values["best_step"] == values["steps"], path
            assert values["test_score"] == values["validations"][-1][1], path


# The program that measures a GPU: a dry run on the CPU, its continuation, and the tables of its page.


STAGES = [
    "ceilings",
    "precisions",
    "extract",
    "training",
    "fit",
    "headline",
]  # other tests run the others


@pytest.fixture
def measure(monkeypatch):
    """Return a function that runs the program, whose stages run in this process, and returns the stages that ran."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("gpu_evidence", ROOT / "benchmarks" / "gpu_evidence.py")
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_evidence", program)  # its dataclasses look their module up
    spec.loader.exec_module(program)
    ran = []

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpu_evidence.py", *map(str, arguments)])
        program.main()
        return ran

    def run_stage(command, limit):
        ran.append(command[command.index("--stage") + 1])
        run(*command[2:])
        return "finished"

    monkeypatch.setattr(program, "run_limited", run_stage)
    return run


def test_a_dry_run_measures_everything_once_and_writes_its_tables(measure, tmp_path):
    arguments = ("--out", tmp_path / "evidence", "--scale", "smoke", "--only", ",".join(STAGES))
    assert measure(*arguments) == STAGES
    assert measure(*arguments) == STAGES  # nothing runs again
    records = [json.loads(line) for line in (tmp_path / "evidence" / "results.jsonl").read_text().splitlines()]
    assert [r["stage"] for r in records if r["measurement"] == "finished"] == STAGES

    page, marks = (
        tmp_path / "gpu.md",
        [f"<!-- {words} -->" for words in ("tables of benchmarks/gpu_evidence.py", "end of these tables")],
    )
    page.write_text(f"Before.\n\n{marks[0]}\nold\n{marks[1]}\nAfter.\n")
    measure("--out", tmp_path / "evidence", "--write", page)
    text = page.read_text()
    assert text.startswith("Before.") and text.endswith("After.\n") and "old" not in text
    values = {r["measurement"]: r for r in records}
    assert f"| {values['8 tokens, 4 rows, ordinary']['steps_per_second']:.1f} |" in text
    assert f"| {values['digits']['test_score']:.1%} |" in text
    for name in ("drain", "reading of a column", "moments of a column", "systems of 64 columns, on the host"):
        assert f"| {name} | {values[name]['seconds']:.2f} |" in text
    assert 0 == values["float32"]["deviation"] < values["bfloat16"]["deviation"]
    of_all = values["bfloat16-all"]
    assert f"| bfloat16-all | {of_all['rows_per_second']:,.0f} | {of_all['deviation']:.3f} |" in text
    of_fit = values["fit of embed/mean"]
    assert of_fit["rows"] == 400 and f"from one of 400 rows | {of_fit['seconds'] * 33 * 2500:.0f} | 120 |" in text
    for place, speed in values["all layers, 8 tokens"]["by_place"].items():
        where = "memory" if place == "/dev/shm" else "disk"
        assert f"| all layers, 8 tokens | {where} | {speed['rows_per_second']:,.0f} |" in text


def test_a_line_that_was_cut_off_is_measured_again(measure, tmp_path):
    arguments = ("--out", tmp_path, "--scale", "smoke", "--only", "ceilings")
    measure(*arguments)
    file = tmp_path / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][:10])
    assert measure(*arguments) == ["ceilings", "ceilings"]
    assert json.loads(file.read_text().splitlines()[-1])["measurement"] == "finished"


def test_stages_without_their_data_are_left_out(measure, tmp_path):
    assert measure("--out", tmp_path, "--only", "science,pretrained,headline") == []


# The script that converts weights in other formats: the same outputs, and no code in a file is run.


class Exported(torch.nn.Module):
    """A vision model as a part of a larger module, with a layer after it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.backbone, self.decoder = model, torch.nn.Linear(16, 2)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.backbone(pixels).last_hidden_state
        return states, self.decoder(states)


def exported(kind: str, folder: Path, *, dynamo: bool) -> tuple[Path, np.ndarray, np.ndarray]:
    """Write a tiny model as ONNX; return the file, pixels, and the output of onnxruntime for them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from transformers import AutoModel

    pytest.importorskip("onnxscript")
    save(kind, folder / kind)
    options = {"add_pooling_layer": False} if kind == "vit" else {}
    model = AutoModel.from_pretrained(folder / kind, **options)
    side = {"vit": 8, "dinov2": 16}[kind]
    file, pixels = folder / f"{kind}.onnx", torch.randn(2, 3, side, side)
    batch = {"dynamic_shapes": ({0: "batch"},)} if dynamo else {"dynamic_axes": {"pixels": {0: "batch"}}}
    torch.onnx.export(
        Exported(model).eval(), (pixels,), file, input_names=["pixels"], external_data=False, dynamo=dynamo, **batch
    )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    states = session.run(None, {session.get_inputs()[0].name: pixels.numpy()})[0]
    return file, pixels.numpy(), np.asarray(states)


@pytest.mark.parametrize(
    ("kind", "dynamo"),
    [("vit", False), ("dinov2", False), pytest.param("dinov2", True, marks=pytest.mark.slow)],
)
def test_weights_of_an_onnx_file_give_the_outputs_of_onnxruntime(kind: str, dynamo: bool, tmp_path: Path):
    from transformers import AutoModel

    file, pixels, expected = exported(kind, tmp_path, dynamo=dynamo)
    with pytest.raises(SystemExit, match=r"config\.json"):
        import_weights(file, tmp_path / "out")
    settings = json.loads((tmp_path / kind / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(settings | {"image_size": pixels.shape[2] if dynamo else settings["image_size"]})
    )
    model = AutoModel.from_pretrained(import_weights(file, tmp_path / "out")).eval()
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.tensor(pixels)).last_hidden_state, expected, atol=1e-5)


def as_pickle(folder: Path) -> Path:
    """Replace the weights of a model folder by a file of torch."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_weights_of_a_file_of_torch_keep_their_digest(kind: str, tmp_path: Path):
    folder = save_with_tokenizer(kind, tmp_path / kind) if kind == "bert" else save(kind, tmp_path / kind)
    before = weights_digest(load_backbone(str(folder), "pretrained"))
    out = import_weights(as_pickle(folder), tmp_path / "out")
    assert weights_digest(load_backbone(str(out), "pretrained")) == before
    assert (out / "tokenizer.json").is_file() == (kind == "bert")


def test_code_in_a_file_of_torch_is_not_run(tmp_path: Path):
    folder, sign = as_pickle(save("gpt2", tmp_path / "gpt2")), tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return open, (str(sign), "w")

    torch.save({"wte.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(Exception, match="Weights only load failed"):
        import_weights(folder, tmp_path / "out")
    assert not sign.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "secret.bin"])
def test_weights_of_an_onnx_file_in_other_files_are_refused_and_not_read(location: str, tmp_path: Path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    tensor = onnx.helper.make_tensor("w", 1, [1], [1.0])
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    (tmp_path / "hostile.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    monkeypatch.setattr(
        onnx.external_data_helper, "load_external_data_for_tensor", lambda *_: pytest.fail("another file was opened")
    )
    with pytest.raises(ValueError, match="another file"):
        import_weights(tmp_path / "hostile.onnx", tmp_path / "out")
