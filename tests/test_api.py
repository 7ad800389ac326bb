"""The public functions have the same signatures for editors, type checkers and a running program."""

import ast
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
result = fit(features, columns="block01/mean", select="cv5", out="readout")
score: float = result.best.valid_score
labels = [prediction.label for prediction in predict(result.saved, Path("new.csv"), device="cpu")]
steps: int = train(task="bit-xor", train="output", learning_rate=1e-3, resume=True).steps
page: Path = report([result.saved.parent], out="page.html", markdown=False).page
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
NOT_NAMED = """
from reservoir_pipelines import extract

extract("digits", "gpt2")
"""
NOT_GIVEN = """
from reservoir_pipelines import pretrain

pretrain("zipf")
"""
REVEALED = "\n".join(
    ["import reservoir_pipelines", *(f"reveal_type(reservoir_pipelines.{n})" for n in reservoir_pipelines.FUNCTIONS)]
)


@pytest.fixture(scope="module")
def pyright(tmp_path_factory):
    """Return what strict pyright reports for each file of a client outside the repository."""
    checker = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if checker is None:
        pytest.skip("needs pyright")
    folder = tmp_path_factory.mktemp("client")
    sources = {
        "right": RIGHT,
        "wrong_keyword": WRONG_KEYWORD,
        "wrong_type": WRONG_TYPE,
        "not_named": NOT_NAMED,
        "not_given": NOT_GIVEN,
        "revealed": REVEALED,
    }
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text)
    paths = [str(ROOT / path) for path in (".", "cache", "pipelines")]
    settings = {"typeCheckingMode": "strict", "extraPaths": paths, "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [checker, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    reports = json.loads(done.stdout)["generalDiagnostics"]
    return {name: [report for report in reports if Path(report["file"]).stem == name] for name in sources}


def test_right_keywords_pass_strict_pyright(pyright):
    assert pyright["right"] == []


@pytest.mark.parametrize(
    ("client", "rule", "word"),
    [
        ("wrong_keyword", "reportCallIssue", "bakbone"),
        ("wrong_type", "reportArgumentType", "limit"),
        ("not_named", "reportCallIssue", "1 positional"),
        ("not_given", "reportCallIssue", "out"),
    ],
)
def test_a_wrong_call_is_an_error_of_pyright(pyright, client, rule, word):
    (report,) = pyright[client]
    assert report["rule"] == rule and word in report["message"]


def test_pyright_shows_every_keyword_of_every_function_with_its_help(pyright):
    texts = [report["message"] for report in pyright["revealed"] if report["severity"] == "information"]
    assert len(texts) == len(reservoir_pipelines.FUNCTIONS)
    for name, text in zip(reservoir_pipelines.FUNCTIONS, texts, strict=True):
        function = getattr(reservoir_pipelines, name)
        signature = inspect.signature(function)
        assert f"-> {signature.return_annotation}" in text
        for parameter in signature.parameters:
            assert f"{parameter}: " in text, (name, parameter)
    assert "Maximum rows per split" in texts[reservoir_pipelines.FUNCTIONS.index("extract")]


def test_type_checkers_import_each_name_from_the_module_that_defines_it():
    tree = ast.parse(Path(reservoir_pipelines.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = {alias.name: node.module for node in block.body for alias in node.names}
    package = reservoir_pipelines.__name__
    functions = dict.fromkeys(reservoir_pipelines.FUNCTIONS, "api")
    assert imports == {n: f"{package}.{place}" for n, place in (reservoir_pipelines.PLACES | functions).items()}


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
    with pytest.raises(TypeError, match="did you mean 'backbone'"):
        reservoir_pipelines.extract("digits", bakbone="gpt2")
    with pytest.raises(TypeError, match=r"predict\(\).*'file'"):
        reservoir_pipelines.predict("readout")
    with pytest.raises(InputError, match="--seed -1"):
        reservoir_pipelines.extract("digits", seed=-1)
    with pytest.raises(InputError, match=r"extract: task.*list"):
        reservoir_pipelines.extract([1, 2])  # pyright: ignore
    with pytest.raises(InputError, match=r"predict: readout.*list"):
        reservoir_pipelines.predict([1], "new.csv")  # pyright: ignore
