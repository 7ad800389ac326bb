"""Files from other people do not decide where work runs, where results are written, or which code is run."""

import json
import operator
import os
import shutil
import socket
import sys
import warnings
import zipfile
from contextlib import suppress
from dataclasses import fields

import numpy as np
import pytest
import skops.io
from reservoir_cache.publish import publish_json, read_json
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.cli import run
from reservoir_pipelines.files import file_digest, read_checked, write_checked
from safetensors.numpy import load_file, save_file
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from transformers import AutoModel

from reservoir import InputError, options
from reservoir.backbones import load_backbone
from reservoir.backbones.gpt2 import GPT2Model
from reservoir.option_fields import without_where
from tests.reservoir.models import save

RECIPE = """
title = "Mine"
{top}
[[columns]]
name = "accuracy"
cell = "readout"
{column}
[[rows]]
name = "digits"
task = "digits"
{row}
"""
WHERE = dict.fromkeys(("out", "cache", "data"), "/tmp/elsewhere")
WHERE |= {"scheduler": "tcp://127.0.0.1:9", "workers": 2, "device": "cuda:7"}


@pytest.fixture
def listening(monkeypatch):
    """Yield a socket that detects connections, and its address."""
    monkeypatch.setattr("reservoir_pipelines.workers.PATIENCE", 1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        yield server, f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 6, 2)).astype(np.float32)
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(path, x=x, y=(x[:, :, 0].mean(axis=1) > 0).astype(np.int64))
    return path


@pytest.fixture(scope="module")
def extracted(rows, tiny_gpt2):
    settings = {"backbone": str(tiny_gpt2), "layers": "final", "pool": "mean", "init": "random"}
    return extract(str(rows), cache=rows.parent / "cache", **settings)


@pytest.fixture(scope="module")
def linear(extracted, tmp_path_factory):
    """Return the folder of a ridge readout, which tests copy before they change it."""
    folder = tmp_path_factory.mktemp("linear")
    fit(extracted, readout="ridge", alphas="1:10:2", columns="final/mean", out=folder)
    return folder


@pytest.fixture
def entry(extracted, cache):
    folder = extracted.entry
    return shutil.copytree(folder, cache / "features" / folder.parent.name / folder.name)


def change_call(entry, **changes):
    """Change the call recorded in an entry, as anyone can: the key does not cover it, and a checksum is not secret."""
    content = read_json(entry / "spec.json", indent=2)
    call, more = content["made_with"]["call"], changes.pop("more", {})
    call.update(changes)
    if more:
        call["settings"] |= more
    publish_json(entry / "spec.json", content, indent=2)


def test_seeds_of_an_entry_contact_no_scheduler_that_the_entry_names(entry, call, listening):
    server, address = listening
    change_call(entry, more={"scheduler": address, "workers": 2})
    code, out, err = call("fit", entry, "--seeds", 2)
    with pytest.raises(TimeoutError):
        server.accept()
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_seeds_of_an_entry_read_no_data_folder_that_the_entry_names(entry, answer, tmp_path):
    change_call(entry, more={"data": str(tmp_path / "missing")})
    assert len(answer("fit", entry, "--seeds", 1)["seeds"]) == 1


@pytest.mark.parametrize("name", WHERE)
@pytest.mark.parametrize("place", ["top", "column", "row"])
def test_a_recipe_that_says_where_is_refused(tmp_path, cache, refusal, name, place):
    value = json.dumps(WHERE[name])
    parts = dict.fromkeys(("top", "column", "row"), "") | {place: f"settings = {{ {name} = {value} }}"}
    (tmp_path / "r.toml").write_text(RECIPE.format(**parts))
    err = refusal("reproduce", tmp_path / "r.toml", "--out", tmp_path / "out")
    assert (f"'{name}' says where" in err and f"--{name}" in err) or f"no setting '{name}'" in err
    assert not (tmp_path / "out").exists()


def test_only_another_cell_may_be_the_run_of_a_recipe(tmp_path, cache, refusal):
    row = f'settings = {{ run = "{tmp_path}/run" }}\ncell = "fpt"'
    (tmp_path / "r.toml").write_text(RECIPE.format(top="", column="", row=row))
    assert "'run' says where" in refusal("reproduce", tmp_path / "r.toml", "--out", tmp_path / "out")


def test_a_task_parameter_is_no_way_to_name_a_folder(refusal, cache, tmp_path):
    assert "write --data" in refusal("prepare", "mnist", "--param", f"data={tmp_path}")


def test_the_options_that_say_where_are_these():
    groups = [kind for kind in vars(options).values() if isinstance(kind, type) and issubclass(kind, options.Options)]
    declared = {item.name for group in groups for item in fields(group) if item.metadata.get("where")}
    assert declared >= {"cache", "data", "out", "run", "device", "workers", "scheduler", "fetch"}
    assert without_where(dict.fromkeys(declared, 1) | {"seed": 3}) == {"seed": 3}
    with pytest.raises(InputError, match=r"spec\.json: 'device'"):
        without_where({"seed": 3, "device": "cuda"}, "spec.json")


MODULE = """
from pathlib import Path
from sklearn.linear_model import LogisticRegression

Path({marker!r}).write_text("imported")

class Est(LogisticRegression):
    pass
"""


@pytest.fixture
def evil(tmp_path, monkeypatch, cache):
    """Put a module into the current folder, on the import path; return the file that it writes when imported."""
    marker = tmp_path / "imported"
    (tmp_path / "evilmod.py").write_text(MODULE.format(marker=str(marker)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield marker
    sys.modules.pop("evilmod", None)


def refused(refusal, marker, *arguments):
    """Run a command that must end in one line and import nothing; return the line."""
    err = refusal(*arguments)
    assert not marker.exists()
    return err


@pytest.mark.parametrize("place", ["top", "column", "row"])
def test_a_recipe_names_nothing_to_import(evil, tmp_path, refusal, place):
    parts = dict.fromkeys(("top", "column", "row"), "") | {place: 'settings = { readout = "evilmod.Est" }'}
    (tmp_path / "r.toml").write_text(RECIPE.format(**parts))
    line = refused(refusal, evil, "reproduce", "r.toml", "--out", tmp_path / "out")
    assert "readout 'evilmod.Est' would import a module" in line and "type it on the command line" in line


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ('[fit]\nreadout = "evilmod.Est"', ("fit", "digits"), "c.toml: the readout"),
        ('[reproduce]\noverride = [" readout=evilmod.Est"]', ("reproduce", "r.toml"), "c.toml: the readout 'evilmod"),
        ("[predict]\ntrust = true", ("predict", ".", "."), "c.toml: 'trust' lets a readout run code"),
        ("x = " + "[" * 10**4, ("fit", "digits"), "c.toml: not readable"),
        # Names in scikit-learn that are not estimators: a class without predict, a module, and functions.
        ('[fit]\nreadout = "sklearn.base.BaseEstimator"', ("fit", "digits"), "not a scikit-learn classifier"),
        ('[fit]\nreadout = "sklearn.utils.validation.np"', ("fit", "digits"), "not a scikit-learn classifier"),
        ('[fit]\nreadout = "sklearn.os.system"', ("fit", "digits"), "no such readout"),
        ('[fit]\nreadout = "sklearn.datasets._openml.urlopen"', ("fit", "digits"), "not a scikit-learn classifier"),
        ('[fit]\nreadout = "sklearn.linear_model.LogisticRegression.__init__"', ("fit", "digits"), "no such readout"),
    ],
)
def test_a_configuration_file_names_nothing_to_import_and_nothing_to_trust(
    evil, entry, tmp_path, refusal, settings, arguments, message
):
    (tmp_path / "r.toml").write_text(RECIPE.format(top="", column="", row=""))
    (tmp_path / "c.toml").write_text(settings + "\n")
    arguments = [str(entry) if each == "digits" else each for each in arguments]
    assert message in refused(refusal, evil, *arguments, "--config", "c.toml")


def test_a_readout_that_is_typed_is_imported(evil, entry, tmp_path, call):
    (tmp_path / "c.toml").write_text('[fit]\nselect = "valid"\n')
    code, _, err = call("fit", entry, "--readout", "evilmod.Est", "--config", "c.toml")
    assert code == 0, err
    assert evil.exists()


def test_a_configuration_file_may_name_an_estimator_of_scikit_learn(entry, tmp_path, call):
    (tmp_path / "c.toml").write_text('[fit]\nreadout = "sklearn.linear_model.RidgeClassifier"\n')
    code, out, err = call("fit", entry, "--config", tmp_path / "c.toml")
    assert code == 0, err
    assert "RidgeClassifier" in out


def test_an_estimator_that_a_module_of_scikit_learn_merely_holds_is_refused(evil, entry, tmp_path, refusal):
    import sklearn.dummy

    class Foreign(sklearn.dummy.DummyClassifier):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.dummy, "Foreign", Foreign, raising=False)
        refused(refusal, evil, "fit", entry, "--readout", "sklearn.dummy.Foreign")


def test_an_entry_that_names_a_module_does_not_have_it_imported(entry, evil, refusal):
    change_call(entry, task="evilmod:go")
    assert "no task 'evilmod:go'" in refused(refusal, evil, "fit", entry, "--seeds", 2)


@pytest.mark.parametrize(
    "changes",
    [{"settings": {"cache": "/elsewhere"}}, {"settings": {"nothing": 1}}, {"settings": None}, {"task": ["digits"]}],
    ids=["cache", "unknown", "none", "list"],
)
def test_an_entry_does_not_say_where_to_write(entry, changes, refusal):
    change_call(entry, **changes)
    error = refusal("fit", entry, "--seeds", 2)
    assert "does not record how it was extracted" in error or "which a file may not decide" in error


PARTS = [("call", []), ("kept", 7), ("kept", {"test": "x"}), ("prepared", 7), ("reservoir", {"a": 1}), ("scaling", {})]


@pytest.mark.parametrize(("part", "value"), PARTS)
def test_an_entry_with_another_type_in_its_record_is_refused_in_one_line(entry, part, value, call):
    content = read_json(entry / "spec.json", indent=2)
    content["made_with"][part] = value
    del content["made_with"]["device"]
    publish_json(entry / "spec.json", content, indent=2)
    assert call("cache", "show", entry)[0] in (0, 2)
    code, out, err = call("fit", entry)
    assert (code, out, err.count("\n")) == (2, "", 1) and "spec.json" in err


@pytest.fixture
def model_folder(tiny_gpt2, tmp_path):
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
    from reservoir.backbones import find

    asked = []
    change_config(model_folder, auto_map={"AutoConfig": "code.Config"}, model_type="somebodys")
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "no")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda _, **__: str(model_folder))
    with pytest.raises(InputError, match="somebodys"):
        find("somebody/model")
    assert not asked
    assert not (tmp_path / "marker").exists()


KERNELS = ["attn_implementation", "somebody/kernel"], ["_attn_implementation", "flash_attention_2"]


@pytest.mark.parametrize(("key", "value"), KERNELS)
def test_a_model_folder_does_not_have_kernels_fetched(tmp_path, key, value):
    folder = save("llama", tmp_path / "llama")
    change_config(folder, **{key: value})
    for init in ("pretrained", "random"):
        with pytest.raises(InputError, match=r"its config\.json asks for code"):
            load_backbone(str(folder), init)
    # transformers reads the weights of a GPT-2 that are in shards.
    AutoModel.from_pretrained(save("gpt2", tmp_path / "gpt2")).save_pretrained(tmp_path / "shards", max_shard_size=9000)
    change_config(tmp_path / "shards", **{key: value})
    assert type(load_backbone(str(tmp_path / "shards"), "pretrained").model) is GPT2Model


WIDTH = 16  # of the tiny GPT-2 in conftest.py


@pytest.fixture(scope="module")
def neighbours(extracted, tmp_path_factory):
    """Return the folder of a readout that is not linear."""
    folder = tmp_path_factory.mktemp("neighbours")
    fit(extracted, readout="sklearn.neighbors.KNeighborsClassifier:n_neighbors=3", out=folder, columns="final/mean")
    return folder


def training_rows():
    return np.random.default_rng(1).normal(size=(20, WIDTH)).astype(np.float32), np.arange(20) % 2


def scaled(estimator):
    return make_pipeline(StandardScaler(), estimator).fit(*training_rows())


def put(folder, data):
    """Replace the archive of a readout and update every checksum, as any previous owner can."""
    (file,) = folder.glob("readout-*.skops")
    file.write_bytes(data)
    card = read_checked(folder / "readout.json")
    card["files"][file.name] = file_digest(file)
    write_checked(folder / "readout.json", card)


def shadowed_method(marker):
    """Return an estimator whose method is replaced by an attribute that writes its argument to a file."""
    model = scaled(KNeighborsClassifier())
    model[-1].predict = operator.methodcaller("tofile", str(marker))
    return model


def bound_method(marker):
    """Return a transformer whose function is a method of an object in the file."""
    model = scaled(KNeighborsClassifier())
    model.steps.insert(1, ("call", FunctionTransformer(marker.write_bytes)))
    return model


GADGETS = {"shadowed_method": shadowed_method, "bound_method": bound_method}


def load_and_predict(folder, inputs):
    (file,) = folder.glob("readout-*.skops")
    data = file.read_bytes()
    model = skops.io.loads(data, trusted=skops.io.get_untrusted_types(data=data))
    model.predict(training_rows()[0])


@pytest.fixture
def gift(neighbours, tmp_path):
    return shutil.copytree(neighbours, tmp_path / "gift")


SKIP_PATHS = pytest.mark.skipif(sys.version_info >= (3, 13), reason="skops cannot load a path there")


@pytest.mark.parametrize("name", ["shadowed_method", pytest.param("bound_method", marks=SKIP_PATHS)])
def test_gadgets_run_when_trusted_and_are_never_opened_otherwise(gift, rows, tmp_path, name, capfd, monkeypatch):
    marker = tmp_path / "marker"
    put(gift, skops.io.dumps(GADGETS[name](marker)))
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_and_predict(gift, rows)
    assert marker.exists()  # the gadget works
    marker.unlink()

    with monkeypatch.context() as patch:
        for place, method in ((zipfile.ZipFile, "__init__"), (skops.io, "loads")):
            patch.setattr(place, method, lambda *_, **__: pytest.fail("the archive was opened"))
        for command in ("predict", "export", "explain"):
            file = [str(rows)] * (command != "export")
            assert run([command, str(gift), *file]) == 2
            lines = capfd.readouterr().err.strip().splitlines()
            assert len(lines) == 1
            assert ("--trust" in lines[0] and "KNeighborsClassifier" in lines[0]) or command != "predict"
        with pytest.raises(InputError, match="trust=True"):
            list(predict(gift, rows))
    assert not marker.exists()


def test_a_trusted_readout_is_loaded_and_its_types_are_printed(neighbours, rows, capfd):
    assert run(["predict", str(neighbours), str(rows), "--trust", "--json"]) == 0
    out, err = capfd.readouterr()
    assert "loading 'sklearn.neighbors.KNeighborsClassifier' with --trust; its archive contains " in err
    assert len(json.loads(out)["predictions"]["label"]) == 90
    assert len(list(predict(neighbours, rows, trust=True))) == 90


def test_an_archive_without_a_pipeline_is_refused_even_if_it_is_trusted(neighbours, rows, tmp_path, refusal):
    folder, data = shutil.copytree(neighbours, tmp_path / "readout"), skops.io.dumps(KNeighborsClassifier())
    card = read_checked(folder / "readout.json")
    write_checked(folder / "readout.json", card | {"parts": []})
    assert "it names no features" in refusal("predict", folder, rows, "--trust")
    (name,) = (name for name in card["files"] if name.endswith(".skops"))
    (folder / name).write_bytes(data)
    card["files"][name] = file_digest(folder / name)
    write_checked(folder / "readout.json", card)
    assert "not a fitted pipeline" in refusal("predict", folder, rows, "--trust")


def test_fit_says_that_a_readout_will_need_trust(extracted, tmp_path, capfd):
    fit(extracted, readout="sklearn.naive_bayes.GaussianNB", columns="final/mean", out=tmp_path)
    assert "GaussianNB is not linear: it is saved with skops" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("readout", {"link": "os.system"}, "unknown link 'os.system'"),
        ("readout", {"link": ["softmax"]}, "unknown link"),
        ("readout", {"classes": 3}, "coef is float64 of the shape (16, 1), not float32 or float64 of (16, 3)"),
        ("readout", {"classes": "os"}, "not readable"),
        ("readout", {"classes": -1}, "not those of its task"),
        ("readout", {"temperature": 1e-320}, "not between 1e-6 and 1e6"),
        ("arrays", {"coef": np.full((16, 1), np.nan)}, "coef holds NaN or infinity"),
        ("arrays", {"coef": np.full((16, 1), 1e308)}, "scores overflow"),
        ("arrays", {"offset": np.zeros(3)}, "offset is float32 of the shape (3,)"),
        ("arrays", {"held_out": np.zeros((2, 2))}, "held_out is float64 of the shape (2, 2)"),
        ("parts", {"compute": "load"}, "unknown precision 'load'"),
        ("parts", {"columns": []}, "a part reads no known column"),
        ("parts", {"digest": None}, "the wrong value None of 'digest'"),
        ("reservoir", {"patch": -1}, "--patch -1: give a whole number of at least 1"),
        ("reservoir", {"stride": 10**30}, "give a smaller number"),
        ("reservoir", {"seed": True}, "--seed True: give a whole number"),
        ("reservoir", {"dilations": "9" * 20}, "give auto, or up to 1,000 positive whole numbers"),
        ("reservoir", {"dilations": ",".join(map(str, range(1, 1002)))}, "give auto, or up to 1,000 positive"),
        ("reservoir", {"patch": 2**31 - 1, "pad": "same"}, "each token would have 4,294,967,294 values, more than"),
        ("task", {"max_tokens": 10**30}, "its description is damaged"),
        ("task", {"name": ["x"]}, "its description is damaged"),
        ("task", {"outputs": [1]}, "its description is damaged"),
        ("task", {"classes": 7, "labels": ["a"]}, "its description is damaged"),
        ("task", {"parameters": {"columns": 3}}, "its description is damaged"),
        ("task", {"parameters": {"columns": ["a", "a"]}}, "the name of a column or an event twice"),
        ("task", {"classes": 999_999}, "999,999 classes are more than 50,000; merge rare classes"),
    ],
)
def test_settings_of_a_linear_readout_name_nothing_to_call(linear, rows, tmp_path, part, change, message, refusal):
    shutil.copytree(linear, tmp_path, dirs_exist_ok=True)
    card = read_checked(tmp_path / "readout.json")
    model, (name,) = card["parts"][0], card["files"]
    arrays = load_file(tmp_path / name)
    (card | {"parts": model, "reservoir": model["reservoir"], "arrays": arrays})[part].update(change)
    save_file(arrays, tmp_path / name)
    card["files"][name] = file_digest(tmp_path / name)
    write_checked(tmp_path / "readout.json", card)
    assert message in refusal("predict", tmp_path, rows)


@pytest.mark.parametrize("pattern", ["readout.json", "readout-*.safetensors"])
def test_a_pipe_in_place_of_a_file_of_a_readout_is_refused(linear, rows, tmp_path, pattern, refusal):
    shutil.copytree(linear, tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob(pattern)
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in refusal("predict", tmp_path, rows)


def test_a_pipe_in_place_of_the_table_of_a_fit_is_refused(linear, tmp_path, refusal):
    shutil.copytree(linear, tmp_path, dirs_exist_ok=True)
    (tmp_path / "results.csv").unlink()
    os.mkfifo(tmp_path / "results.csv")
    assert "not a regular file" in refusal("report", tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_the_folder_of_a_model_is_refused(model_folder, rows, name, refusal):
    (model_folder / name).unlink(missing_ok=True)
    os.mkfifo(model_folder / name)
    assert f"{name} is not a regular file" in refusal("extract", rows, "--backbone", model_folder)
