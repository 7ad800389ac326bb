"""Files from somebody else run nothing: readouts that name calls, entries that name modules, models with code."""

import inspect
import io
import json
import pickle
import shutil
import sys
import warnings
import zipfile

import numpy as np
import pytest
import skops.io
from reservoir_cache import Entry
from reservoir_cache.publish import publish_json, read_json
from reservoir_pipelines import extract, fit, predict
from reservoir_pipelines.cli import run
from reservoir_pipelines.files import file_digest, read_checked, write_checked
from reservoir_pipelines.fitting import estimator_files
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.fitting.estimator_files import load_estimator, save_estimator
from reservoir_pipelines.fitting.seeds import fit_seeds

from reservoir import InputError
from reservoir.backbones import load_backbone
from reservoir.backbones.gpt2_model import GPT2Model
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


@pytest.fixture(scope="module")
def saved(extracted, tmp_path_factory):
    """Return the folder of a readout that is an estimator, which nobody changes."""
    folder = tmp_path_factory.mktemp("estimator")
    fit(extracted, readout="sklearn.linear_model.LogisticRegression", out=folder)
    return folder


@pytest.fixture
def bundle(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "bundle")


@pytest.fixture
def inputs(tmp_path):
    path = tmp_path / "new.npz"
    np.savez(path, x=np.zeros((2, 6, 2), np.float32))
    return path


def archive_of(folder):
    (file,) = folder.glob("readout-*.skops")
    return file.read_bytes()


def schema_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return json.loads(archive.read("schema.json"))


def rewritten(data, schema, compression=zipfile.ZIP_STORED, more=None):
    """Return the archive with another description, and further members."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", compression) as new:
        for member in old.infolist():
            if member.filename != "schema.json":
                new.writestr(member.filename, old.read(member))
        for name, content in (more or {}).items():
            new.writestr(name, content)
        new.writestr("schema.json", schema if isinstance(schema, str) else json.dumps(schema))
    return out.getvalue()


def with_node(data, node, **more):
    """Return the archive with one more attribute on the estimator: predictions would not change."""
    schema = schema_of(data)
    schema["content"]["content"]["zzz"] = node
    schema["content"]["key_types"]["content"].append(dict(schema["content"]["key_types"]["content"][0]))
    return rewritten(data, schema, **more)


def node(loader, module, name, **more):
    return {"__loader__": loader, "__module__": module, "__class__": name, "__id__": 99, **more}


def arguments(*values):
    found = schema_of(skops.io.dumps(values))
    return without_ids({k: v for k, v in found.items() if k not in ("protocol", "_skops_version")})


def without_ids(value):
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k != "__id__"}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


def commands(bundle, inputs, tmp_path):
    yield ["predict", str(bundle), str(inputs)]
    yield ["export", str(bundle), "--out", str(tmp_path / "model.pt2")]


def one_line(capfd):
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_readout_that_names_a_call_is_refused_before_anything_of_it_runs(bundle, inputs, tmp_path, capfd):
    (file,), marker = bundle.glob("readout-*.skops"), tmp_path / "marker"
    call = node(
        "ConstructorFromReduceNode",
        "sklearn.utils._testing",
        "check_output",
        content=arguments(["touch", str(marker)]),
    )
    file.write_bytes(with_node(file.read_bytes(), call))
    card = read_checked(bundle / "readout.json")  # whose checksum is no secret
    card["files"][file.name] = file_digest(file)
    write_checked(bundle / "readout.json", card)
    before = {*sys.modules}
    for command in commands(bundle, inputs, tmp_path):
        assert run(command) == 2
        assert "'sklearn.utils._testing.check_output'" in one_line(capfd)
        assert not marker.exists()
    assert "sklearn.utils._testing" not in {*sys.modules} - before
    # The same archive does run it where it is loaded as somebody would who trusts all that is scikit-learn's.
    data = file.read_bytes()
    skops.io.loads(data, trusted=skops.io.get_untrusted_types(data=data))
    assert marker.exists()


NAMED = {
    "os.system": node("TypeNode", "os", "system"),
    "numpy.load": node("FunctionNode", "numpy", "load"),
    "numpy.abs": node("FunctionNode", "numpy", "abs"),  # which skops itself trusts
    "scipy.special._ufuncs.expit": node("FunctionNode", "scipy.special._ufuncs", "expit"),
    "functools.partial": node("PartialNode", "functools", "partial", content={}),
    "operator.attrgetter": node("OperatorFuncNode", "operator", "attrgetter", attrs={}),
    "builtins.str": node("MethodNode", "builtins", "str", content={"func": "format", "obj": {}}),
    "sklearn.svm._classes.SVC": node("ConstructorFromReduceNode", "sklearn.svm._classes", "SVC", content={}),
    "sklearn.tree._tree.Tree": node("ConstructorFromReduceNode", "sklearn.tree._tree", "Tree", content={}),
    "sklearn.utils._testing.check_output": node("ListNode", "sklearn.utils._testing", "check_output", content=[]),
    "sklearn.model_selection._search.GridSearchCV": node(
        "ObjectNode", "sklearn.model_selection._search", "GridSearchCV"
    ),
    "sklearn.svm._classes.": node("ObjectNode", "sklearn.svm._classes", ""),
    "builtins.bytes": node("BytesNode", "builtins", "bytes", file="schema.json"),
    "somebody.Model": node("ObjectNode", "somebody", "Model"),
    "None.None": node(["ListNode"], None, None),
}


@pytest.mark.parametrize("name", NAMED)
def test_every_other_name_is_refused(saved, name):
    data = with_node(archive_of(saved), NAMED[name])
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load_estimator(data, "readout")


def test_an_object_array_with_a_pickle_inside_is_not_unpickled(saved, tmp_path):
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], dtype=object), allow_pickle=True)
    array = node("NdArrayNode", "numpy", "ndarray", type="numpy", file="evil.npy")
    data = archive_of(saved)
    for content in (buffer.getvalue(), pickle.dumps(Evil())):
        with pytest.raises(InputError, match="not readable"):
            load_estimator(with_node(data, array, more={"evil.npy": content}), "readout")
        assert not marker.exists()


def test_descriptions_that_would_grow_or_nest_are_refused(saved, monkeypatch):
    data = archive_of(saved)
    bomb = rewritten(data, '{"a": "' + " " * 10**7 + '"}', zipfile.ZIP_DEFLATED)
    assert len(bomb) < 10**5
    with pytest.raises(InputError, match="packed"):
        load_estimator(bomb, "readout")
    with pytest.raises(InputError, match="not readable"):
        load_estimator(rewritten(data, "[" * 10**6), "readout")
    for torn in (b"", data[: len(data) // 2], rewritten(data, "[]"), rewritten(data, '{"protocol": 2}')):
        with pytest.raises(InputError, match="readout: "):
            load_estimator(torn, "readout")
    monkeypatch.setattr(estimator_files, "MOST_SCHEMA_BYTES", 1000)
    with pytest.raises(InputError, match="bytes of description"):
        load_estimator(data, "readout")


def test_one_stored_member_listed_many_times_is_refused(saved):
    """Overlapping members are the way to a bomb without packing: each is the whole of the file again."""
    data = archive_of(saved)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("schema.json", json.dumps(schema_of(data)))
        archive.writestr("large.npy", b"0" * 10**6)
        for number in range(20):
            entry = zipfile.ZipInfo(f"{number}.npy")
            large = archive.getinfo("large.npy")
            entry.header_offset, entry.file_size, entry.compress_size = large.header_offset, 10**6, 10**6
            entry.CRC = large.CRC
            archive.filelist.append(entry)
            archive.NameToInfo[entry.filename] = entry
    with pytest.raises(InputError, match="as fit never writes"):
        load_estimator(out.getvalue(), "readout")


def estimators():
    from sklearn import (
        calibration,
        discriminant_analysis,
        ensemble,
        gaussian_process,
        linear_model,
        naive_bayes,
        neighbors,
        neural_network,
        svm,
        tree,
    )

    yield from (linear_model.LogisticRegression(), linear_model.RidgeClassifier(), linear_model.Ridge())
    yield from (linear_model.SGDClassifier(loss=loss) for loss in ("hinge", "log_loss", "modified_huber"))
    yield from (linear_model.SGDRegressor(loss=loss) for loss in ("squared_error", "huber", "epsilon_insensitive"))
    yield from (linear_model.LogisticRegressionCV(Cs=2, cv=2), linear_model.TweedieRegressor())
    yield from (svm.LinearSVC(), svm.SVC(), svm.SVR(), naive_bayes.GaussianNB())
    yield from (
        discriminant_analysis.LinearDiscriminantAnalysis(),
        discriminant_analysis.QuadraticDiscriminantAnalysis(),
    )
    yield from (tree.DecisionTreeClassifier(), tree.DecisionTreeRegressor())
    few = {"n_estimators": 3}
    yield from (ensemble.RandomForestClassifier(**few), ensemble.ExtraTreesRegressor(**few))
    yield from (ensemble.AdaBoostClassifier(**few), ensemble.BaggingClassifier(**few))
    yield from (ensemble.GradientBoostingClassifier(**few), ensemble.GradientBoostingRegressor(loss="huber", **few))
    yield from (ensemble.HistGradientBoostingClassifier(max_iter=2), ensemble.HistGradientBoostingRegressor(max_iter=2))
    yield from (neighbors.KNeighborsClassifier(algorithm=kind) for kind in ("kd_tree", "ball_tree", "brute"))
    yield from (neighbors.KNeighborsRegressor(metric=kind) for kind in ("manhattan", "chebyshev"))
    yield neighbors.KNeighborsRegressor(p=3, algorithm="kd_tree")
    yield from (neural_network.MLPClassifier(max_iter=2), neural_network.MLPRegressor(max_iter=2, solver="sgd"))
    yield from (gaussian_process.GaussianProcessClassifier(), gaussian_process.GaussianProcessRegressor())
    yield calibration.CalibratedClassifierCV(cv=2)


@pytest.mark.parametrize("estimator", [*estimators()], ids=lambda one: f"{one!r}".replace(" ", ""))
@pytest.mark.parametrize("outputs", [1, 2])
def test_estimators_of_scikit_learn_are_loaded_as_they_were_saved(estimator, outputs):
    from sklearn.base import is_classifier
    from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    draw = np.random.default_rng(1)
    x = draw.normal(size=(48, 3)).astype(np.float32)
    y = (x[:, :2] > 0).astype(np.int64) if is_classifier(estimator) else x[:, :2] + draw.normal(size=(48, 2))
    if outputs == 2:
        estimator = (MultiOutputClassifier if is_classifier(estimator) else MultiOutputRegressor)(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(StandardScaler(), estimator).fit(x, y if outputs == 2 else y[:, 0])
    loaded = load_estimator(save_estimator(model), "readout")
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


def test_the_allowed_names_are_classes_of_scikit_learn_and_numpy_alone():
    """No function, no exception, nothing of a test module stands among the names that a file may use."""
    from importlib import import_module

    for names in (*estimator_files._NODES.values(), estimator_files._estimators()):
        for name in names:
            module, _, last = name.rpartition(".")
            assert module.split(".")[0] in ("sklearn", "numpy", "builtins")
            assert not {"tests", "testing", "_testing", "externals", "experimental"} & {*module.split(".")}
            found = getattr(import_module(module), last, None)
            # Of two names that versions of NumPy have for one type, a version may know one only.
            assert inspect.isclass(found) or (found is None and module == "numpy"), name


def test_what_will_not_be_loaded_again_is_said_when_it_is_saved(capfd):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    data = save_estimator(make_pipeline(FunctionTransformer(np.abs)).fit(np.ones((2, 1))))
    assert "FunctionTransformer: it names 'numpy.absolute'" in one_line(capfd)
    with pytest.raises(InputError, match=r"numpy\.absolute"):
        load_estimator(data, "readout")
    with pytest.raises(InputError, match="FunctionTransformer: it cannot be kept"):
        save_estimator(make_pipeline(FunctionTransformer(kw_args={"gaps": (n for n in ())})))


def test_linear_readouts_never_go_through_skops(extracted, tmp_path, inputs, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("skops was asked")

    for name in ("dumps", "loads", "get_untrusted_types"):
        monkeypatch.setattr(skops.io, name, refuse)
    for readout in ("ridge", "logistic"):
        done = fit(extracted, readout=readout, alphas="1e0:1e1:2", out=tmp_path / readout)
        assert not list((tmp_path / readout).glob("*.skops"))
        (tmp_path / readout / "readout-0.skops").write_bytes(b"somebody put this here")
        assert len(list(predict(done.saved, inputs))) == 2
    assert isinstance(Bundle.load(tmp_path / "ridge").readout, type(done.readout))


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
    assert "does not tell how it was extracted" in one_line(capfd)


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

    from reservoir.backbones import find, names

    asked = []
    change_config(model_folder, auto_map={"AutoConfig": "code.Config"}, model_type="somebodys")
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "no")
    load = AutoConfig.from_pretrained
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda _, **more: load(str(model_folder), **more))
    monkeypatch.setattr(names, "offline", lambda _: True)
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
