"""Files from somebody else run nothing: entries that name modules, and models with code."""

import json
import shutil
import sys

import numpy as np
import pytest
from reservoir_cache import Entry
from reservoir_cache.publish import publish_json, read_json
from reservoir_pipelines import extract
from reservoir_pipelines.cli import run
from reservoir_pipelines.fitting.seeds import fit_seeds

from reservoir import InputError
from reservoir.backbones import load_backbone
from reservoir.backbones.gpt2 import GPT2Model
from tests.reservoir.models import save


def write_rows(path, count=90):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 6, 2)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, :, 0].mean(axis=1) > 0).astype(np.int64))
    return path


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    folder = tmp_path_factory.mktemp("foreign")
    data = write_rows(folder / "rows.npz")
    return extract(str(data), backbone=str(tiny_gpt2), cache=folder / "cache", layers="final", pool="mean")


def one_line(capfd):
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


FUNCTION = """
from pathlib import Path
Path(r"{marker}").touch()
def go():
    import numpy as np
    draw = np.random.default_rng(0)
    for number in range(40):
        yield draw.normal(size=(5, 2)), number % 2, ("train", "train", "valid", "test")[number // 10]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the mark of a module in the current folder, which leaves it when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign_module.py").write_text(FUNCTION.format(marker=tmp_path / "imported"))
    yield tmp_path / "imported"
    sys.modules.pop("foreign_module", None)


def change_call(entry, **changes):
    """Write another call into an entry, as whoever hands it on can: no key covers it, and a checksum is no secret."""
    values = read_json(entry / "spec.json", indent=2)
    values["made_with"]["call"].update(changes)
    publish_json(entry / "spec.json", values, indent=2)


def test_an_entry_that_names_a_module_does_not_have_it_imported(extracted, module, tmp_path, capfd):
    entry = tmp_path / "features" / extracted.entry.parent.name / extracted.entry.name
    shutil.copytree(extracted.entry, entry)
    change_call(entry, task="foreign_module:go")
    for name in (str(entry), entry.name, Entry.open(entry).key[:12]):
        assert run(["fit", name, "--seeds", "2", "--cache", str(tmp_path)]) == 2
        assert "foreign_module:go" in one_line(capfd)
        assert not module.exists()
    with pytest.raises(InputError, match="only where you name it"):
        fit_seeds([Entry.open(entry)], 2)
    assert not module.exists()


def test_a_module_that_the_user_names_is_imported(tiny_gpt2, cache, module, tmp_path):
    task, flags = "foreign_module:go", ["--layers", "final", "--pool", "mean"]
    assert run(["extract", task, "--backbone", str(tiny_gpt2), "--init", "random", *flags]) == 0
    assert module.exists()
    assert run(["fit", task, "--seeds", "2", "--alphas", "1:10:2", "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"seed0", "seed1"}


@pytest.mark.parametrize(
    "changes",
    [{"settings": {"cache": "/elsewhere"}}, {"settings": {"nothing": 1}}, {"settings": None}, {"task": ["digits"]}],
    ids=["cache", "unknown", "none", "list"],
)
def test_an_entry_does_not_say_where_to_write(extracted, tmp_path, changes, capfd):
    entry = tmp_path / "features" / "rows.npz" / extracted.entry.name
    shutil.copytree(extracted.entry, entry)
    change_call(entry, **changes)
    assert run(["fit", str(entry), "--seeds", "2"]) == 2
    assert "does not record how it was extracted" in one_line(capfd)


@pytest.fixture
def model_folder(tiny_gpt2, tmp_path):
    """Return a model folder that brings code."""
    folder = shutil.copytree(tiny_gpt2, tmp_path / "model")
    (folder / "code.py").write_text(f"open(r'{tmp_path / 'marker'}', 'w')\n")
    return folder


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_code_in_a_model_folder_is_not_imported(model_folder, tmp_path):
    classes = {"AutoConfig": "code.Config", "AutoModel": "code.Model", "AutoModelForCausalLM": "code.Model"}
    change_config(model_folder, auto_map=classes, trust_remote_code=True)
    assert type(load_backbone(str(model_folder), "pretrained").model) is GPT2Model
    change_config(model_folder, model_type="somebodys")
    with pytest.raises(InputError, match="somebodys"):
        load_backbone(str(model_folder), "pretrained")
    assert not (tmp_path / "marker").exists()


def test_a_model_of_the_hub_with_code_is_refused_and_nobody_is_asked(model_folder, tmp_path, monkeypatch):
    from transformers import AutoConfig

    from reservoir.backbones import find

    asked = []
    change_config(model_folder, auto_map={"AutoConfig": "code.Config"}, model_type="somebodys")
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "no")
    load = AutoConfig.from_pretrained
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda _, **more: load(str(model_folder), **more))
    with pytest.raises(InputError, match="custom code"):
        find("somebody/model")
    assert not asked
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_model_folder_does_not_have_kernels_fetched(tmp_path, key):
    folder = save("llama", tmp_path / "llama")
    change_config(folder, **{key: "somebody/kernel"})
    for init in ("pretrained", "random"):
        with pytest.raises(InputError, match="somebody/kernel"):
            load_backbone(str(folder), init)
