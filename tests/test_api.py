"""The public functions have the same signatures for editors, type checkers and a running program."""

import importlib.util
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reservoir_pipelines

from reservoir import InputError

ROOT = Path(__file__).resolve().parents[1]
RIGHT = """
from pathlib import Path

from reservoir_pipelines import Extraction, extract, fit, predict, report, train

features: Extraction = extract("digits", backbone="gpt2", layers=["block01"], limit=60, cache=Path("cache"))
found = fit(features, columns="block01/mean", select="cv5", out="readout")
score: float = found.best.valid_score
labels = [each.label for each in predict(found.saved, Path("new.csv"), device="cpu")]
steps: int = train("bit-xor", train="output", learning_rate=1e-3, resume=True).steps
page: Path = report([found.saved.parent], out="page.html", markdown=False).page
print(features.rows, score, labels, steps, page)
"""
WRONG_KEYWORD = """
from reservoir_pipelines import extract

extract("digits", bakbone="gpt2")
"""
WRONG_TYPE = """
from reservoir_pipelines import extract

extract("digits", limit="sixty")
"""


@pytest.fixture(scope="module")
def pyright(tmp_path_factory):
    """Return the rules that strict pyright reports for each file of a client outside the repository."""
    checker = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if checker is None:
        pytest.skip("needs pyright")
    folder = tmp_path_factory.mktemp("client")
    sources = {"right": RIGHT, "wrong_keyword": WRONG_KEYWORD, "wrong_type": WRONG_TYPE}
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text)
    paths = [str(ROOT / path) for path in (".", "cache", "pipelines")]
    settings = {"typeCheckingMode": "strict", "extraPaths": paths, "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [checker, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {name: [each for each in found if Path(each["file"]).stem == name] for name in sources}


def test_right_keywords_pass_strict_pyright(pyright):
    assert pyright["right"] == []


@pytest.mark.parametrize(
    ("client", "rule", "word"),
    [("wrong_keyword", "reportCallIssue", "bakbone"), ("wrong_type", "reportArgumentType", "limit")],
)
def test_a_wrong_keyword_or_type_is_an_error_of_pyright(pyright, client, rule, word):
    (found,) = pyright[client]
    assert found["rule"] == rule and word in found["message"]


def test_the_stub_is_current():
    spec = importlib.util.spec_from_file_location("stub", ROOT / "docs" / "stub.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.STUB.read_text() == module.stub(), "run: python docs/stub.py"


@pytest.mark.parametrize("name", reservoir_pipelines.FUNCTIONS)
def test_each_function_describes_each_of_its_keywords(name):
    function = getattr(reservoir_pipelines, name)
    text = inspect.getdoc(function)
    assert "**" not in text
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is not parameter.VAR_KEYWORD and f"\n{parameter.name} : " in text


@pytest.mark.parametrize("name", reservoir_pipelines.FUNCTIONS)
def test_a_wrong_keyword_is_a_type_error_before_anything_runs(name):
    function = getattr(reservoir_pipelines, name)
    own = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    with pytest.raises(TypeError, match=rf"{name}\(\) has no keyword 'devise'"):
        function(**{p.name: "no-such-file" for p in own}, devise="cpu")


def test_keywords_and_options_are_checked_before_anything_runs():
    with pytest.raises(TypeError, match=r"extract\(\) has no keyword 'bakbone'; did you mean 'backbone'"):
        reservoir_pipelines.extract("digits", bakbone="gpt2")
    with pytest.raises(InputError, match="--seed -1"):
        reservoir_pipelines.extract("digits", seed=-1)
    with pytest.raises(InputError, match=r"extract: task is of type list.*ReservoirClassifier"):
        reservoir_pipelines.extract([1, 2])  # pyright: ignore
    with pytest.raises(InputError, match=r"predict: readout is of type list.*the attribute saved of the result of fit"):
        reservoir_pipelines.predict([1], "new.csv")  # pyright: ignore
