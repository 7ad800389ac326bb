"""The packages import one way, declare each option once, start fast, and have the same signatures for all tools."""

import ast
import functools
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
PACKAGES = {
    "reservoir": ROOT / "reservoir",
    "reservoir_cache": ROOT / "cache" / "reservoir_cache",
    "reservoir_pipelines": ROOT / "pipelines" / "reservoir_pipelines",
}
FORBIDDEN = {
    "reservoir": {"reservoir_cache", "reservoir_pipelines", "typer", "rich"},
    "reservoir_cache": {"reservoir", "reservoir_pipelines", "torch", "transformers", "sklearn", "typer", "rich"},
    "reservoir_pipelines": set(),
}


@functools.cache  # most tests of this module read every file
def tree_of(path):
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def imported(path):
    """Return the top-level names that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package):
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert len(files) > 5
    wrong = {str(f.relative_to(ROOT)): sorted(imported(f) & FORBIDDEN[package]) for f in files}
    assert {f: names for f, names in wrong.items() if names} == {}


@functools.cache
def modules():
    """Return the path of every module by its name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports_of_modules():
    """Return the modules that each module imports, also for type checkers and inside functions."""
    known = modules()
    found = {name: set() for name in known}
    for name, path in known.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= inner & known.keys() or {node.module}
    return {name: targets - {name} for name, targets in found.items()}


def cycles(graph):
    """Return the nodes on the cycles of a graph."""
    left = dict(graph)
    while True:
        reached = {target for targets in left.values() for target in targets}
        free = [name for name, targets in left.items() if not targets & left.keys() or name not in reached]
        if not free:
            return sorted(left)
        for name in free:
            del left[name]


def facade(name, path):
    """Return whether a module only re-exports names, so that its imports count for the modules that import from it."""
    return path.name == "__init__.py" and not any(
        isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in ("__getattr__", "__dir__")
        for node in tree_of(path).body
    )


def test_no_files_and_no_folders_import_each_other_in_a_cycle():
    known = modules()
    files = {name: found for name, found in imports_of_modules().items() if not facade(name, known[name])}
    assert cycles(files) == []

    def folder_of(name):
        """Return the folder of a module; modules directly in a package, and __init__ files, count as folders."""
        if known[name].name == "__init__.py":
            return f"{name}.__init__"
        folder = name.rpartition(".")[0]
        return name if folder in PACKAGES else folder

    folders = {}
    for name, targets in files.items():
        others = {folder_of(target) for target in targets} - {folder_of(name)}
        folders.setdefault(folder_of(name), set()).update(others)
    assert cycles(folders) == []


def imported_when_loaded(path):
    """Return the top-level names that a file imports when it is imported, outside of functions."""
    tree = tree_of(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    inside = {id(inner) for function in functions for inner in ast.walk(function)}
    types_only = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    inside |= {id(inner) for node in types_only for inner in ast.walk(node)}
    names = set()
    for node in ast.walk(tree):
        if id(node) not in inside and isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif id(node) not in inside and isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_numeric_core_loads_no_reader_of_files():
    readers = {"pandas", "pyarrow", "h5py", "PIL", "soundfile", "datasets"}
    loaded = {path: imported_when_loaded(path) & readers for path in PACKAGES["reservoir"].rglob("*.py")}
    assert {path: names for path, names in loaded.items() if names} == {}


def test_data_is_the_lowest_floor_of_the_pipelines():
    floor = "reservoir_pipelines.data"
    for name, targets in imports_of_modules().items():
        if name.startswith(f"{floor}.") or name == floor:
            above = {target for target in targets if target.startswith("reservoir_pipelines.")}
            assert {target for target in above if not target.startswith(f"{floor}.")} == set(), name


def test_what_selects_does_not_import_the_code_that_reads_test_rows():
    imports, reached = imports_of_modules(), {}
    fitting = "reservoir_pipelines.fitting"
    for start in (f"{fitting}.select", f"{fitting}.refit", "reservoir_pipelines.estimators.estimators"):
        reached[start], waiting = set(), [start]
        while waiting:
            new = imports[waiting.pop()] - reached[start]
            # A facade and the public functions import their modules when they are called.
            new -= {"reservoir_pipelines", "reservoir_pipelines.api"}
            reached[start] |= new
            waiting += new
        assert f"{fitting}.fitter" in reached[start]
        assert f"{fitting}.evaluate" not in reached[start], start


PAPER = "reservoir_pipelines.paper"
SHOW_THE_PAPER = {
    "reservoir_pipelines",  # names its results, for type checkers
    *(f"reservoir_pipelines.{name}" for name in ("api", "cli")),
}
"""The modules that make functions and commands of the paper's room."""

OPEN_TO_THE_PAPER = {
    "reservoir_pipelines",  # the public functions and their results
    *(f"reservoir_pipelines.{name}" for name in ("card", "files", "output", "plots", "workers")),
    # Its command is declared and answers as the others are.
    *(f"reservoir_pipelines.{name}" for name in ("command", "tables")),
    *(f"reservoir_pipelines.reports.{name}" for name in ("report", "views")),
    "reservoir_pipelines.data.formats",  # attention replaces no file that it reads
    "reservoir_pipelines.data.own_data",  # the name of a task of own data
    "reservoir_pipelines.preparation.prepare",  # attention reads the data that an extraction of the same model reads
    "reservoir_pipelines.preparation.prepared",  # the scaling of a run
    # Attention reads the folder of a run, and pretrain writes one.
    *(f"reservoir_pipelines.training.{name}" for name in ("checkpoints", "run_folder")),
}
"""What the paper's room may use of this package besides itself."""


COUNTED_AS_IN_THE_PAPER = {"reservoir_pipelines.commands.stage_commands", "reservoir_pipelines.paper.stages"}
"""The modules that show numbers of parameters as the paper counts them."""


def test_the_paper_and_its_protocol_stay_in_its_rooms():
    imports = imports_of_modules()
    inside = {name for name in imports if name == "reservoir.paper" or name.startswith("reservoir.paper.")}
    assert len(inside) > 4
    users = {name for name, targets in imports.items() if targets & inside}
    assert users - inside <= COUNTED_AS_IN_THE_PAPER
    # Outside, only the option names the protocol.
    named = []
    for name, path in modules().items():
        if name not in inside and not name.startswith(PAPER):
            lines = path.read_text().splitlines()
            named += [line.strip() for line in lines if "protocol" in line]  # the class `Protocol` has a capital
    assert named == ["protocol: str | None = option("]


def test_the_rooms_of_the_paper_use_public_parts_and_serve_the_commands_alone():
    imports = imports_of_modules()
    inside = {name for name in imports if name == PAPER or name.startswith(f"{PAPER}.")}
    assert len(inside) > 5
    users = {name for name, targets in imports.items() if targets & inside}
    assert users - inside <= SHOW_THE_PAPER
    used = {target for name in inside for target in imports[name] if target.startswith("reservoir_pipelines")}
    assert used - inside <= OPEN_TO_THE_PAPER


def test_a_name_that_modules_share_has_one_owner():
    # A verb is the function of the library, its part of the command line, and the work behind it; each format of data
    # has its suffixes and its reader, which one module calls by the name of the format's module.
    verbs = {*reservoir_pipelines.__all__, "card", "remove", "repair", "verify", "run"}
    of_formats = {"SUFFIXES", "accepts", "read"}
    owners, imported_names = {}, set()
    for name, path in modules().items():
        for node in tree_of(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            defined = [target.id for target in targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                defined = [node.name]
            for item in defined:
                owners.setdefault(item, set()).add(name)
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                imported_names |= {(node.module, alias.name) for alias in node.names}
    shared = {item: names for item, names in owners.items() if any((name, item) in imported_names for name in names)}
    assert len(shared) > 500
    several = {item: sorted(names) for item, names in shared.items() if len(names) > 1 and not item.startswith("__")}
    assert {item: names for item, names in several.items() if item not in verbs | of_formats} == {}


def test_no_module_hides_a_public_name():
    import reservoir_pipelines

    # Importing a module sets its name in the package, in place of the function that `__getattr__` returns.
    files = {path.stem for path in PACKAGES["reservoir_pipelines"].iterdir()}
    assert files & set(reservoir_pipelines.__all__) == set()


def test_each_option_is_declared_once():
    from reservoir import options

    kinds = [kind for kind in vars(options).values() if isinstance(kind, type) and issubclass(kind, options.Options)]
    declared = [name for kind in kinds for name in vars(kind).get("__annotations__", {})]
    assert len(declared) > 40 and sorted(declared) == sorted(set(declared))


def test_no_function_is_longer_than_a_screen():
    long = {}
    for name, path in modules().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
                lines = node.end_lineno - node.lineno + 1 - docstring
                long |= {f"{name}.{node.name}": lines} if lines > 75 else {}
    assert long == {}


def test_the_cache_needs_h5py_and_numpy_only_and_further_packages_in_one_file_each():
    allowed = {"h5py", "numpy", "reservoir_cache"} | set(sys.stdlib_module_names)
    for path in PACKAGES["reservoir_cache"].rglob("*.py"):
        extra = {"reader.py": {"dask"}, "remote.py": {"fsspec"}}.get(path.name, set())
        assert imported(path) <= allowed | extra, path.name


def test_one_file_writes_for_all_and_one_locks_for_all():
    def places(*words):
        files = [path for folder in PACKAGES.values() for path in folder.rglob("*.py")]
        return sorted(path.name for path in files if any(word in path.read_text() for word in words))

    # `doctor` tries whether the disk has locks.
    assert places("import fcntl", "from fcntl") == ["doctor.py", "locks.py"]
    assert places("os.fsync(", "os.replace(", "os.rename(") == ["publish.py"]


def test_hdf5_files_are_opened_for_reading_in_one_place():
    places = [
        path.relative_to(ROOT).as_posix()
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if "h5py.File(" in path.read_text().replace('h5py.File(image, "w")', "")
    ]
    assert sorted(places) == ["cache/reservoir_cache/shard.py"]


def test_nothing_unpickles():
    for folder in PACKAGES.values():
        for path in folder.rglob("*.py"):
            text = path.read_text()
            assert "allow_pickle=True" not in text, path
            assert "pickle.load" not in text, path
            assert "torch.load(" not in text or "weights_only=True" in text, path


# The public functions have the same signatures for editors, type checkers and a running program.


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


# `make lint` runs pyright too, on calls that are right; what makes a wrong call an error are the signatures.


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


@pytest.mark.slow
def test_right_keywords_pass_strict_pyright(pyright):
    assert pyright["right"] == []


@pytest.mark.slow
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


@pytest.mark.slow
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
