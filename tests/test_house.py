"""The shape of the house: imports run one way, and --help is quick because nothing heavy is imported."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

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


def imported(path):
    """Top-level names that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_the_cache_needs_h5py_and_numpy_only():
    allowed = {"h5py", "numpy", "reservoir_cache"} | set(sys.stdlib_module_names)
    for path in PACKAGES["reservoir_cache"].rglob("*.py"):
        assert imported(path) <= allowed, path.name


def test_help_imports_nothing_heavy():
    heavy = ["torch", "transformers", "sklearn", "h5py", "dask", "numpy", "matplotlib", "scipy"]
    code = (
        "import sys; from reservoir_pipelines.cli import run; code = run(['--help']); "
        f"assert not [m for m in {heavy} if m in sys.modules]; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "extract" in done.stdout


def test_files_are_short_enough_to_hold_one_idea():
    long = {}
    for folder in PACKAGES.values():
        for path in folder.rglob("*.py"):
            lines = len(path.read_text().splitlines())
            if lines > 320:
                long[path.name] = lines
    assert long == {}


def test_nothing_unpickles():
    for folder in PACKAGES.values():
        for path in folder.rglob("*.py"):
            text = path.read_text()
            assert "allow_pickle=True" not in text, path
            assert "pickle.load" not in text, path
            assert "torch.load(" not in text or "weights_only=True" in text, path
