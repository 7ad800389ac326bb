"""Every public function has an example in its docstring that runs."""

import doctest
import inspect

import pytest
import reservoir_cache
import reservoir_pipelines
import torch

import reservoir

FUNCTIONS = [n for n in reservoir_pipelines.__all__ if inspect.isfunction(getattr(reservoir_pipelines, n))]
ESTIMATORS = [name for name in reservoir_pipelines.__all__ if name.startswith("Reservoir")]


def run(name, thing):
    """Run the examples of a docstring, of which there is at least one."""
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)
    assert found.examples, f"{name} has no example"
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=failures.append)
    assert failures == [], "".join(failures)


@pytest.mark.parametrize("name", [*FUNCTIONS, *ESTIMATORS, "reservoir_pipelines"])
def test_each_public_function_has_an_example_that_runs(name, one_cache, painted, short_streams, tmp_path, monkeypatch):
    if name == "export" and torch.__version__.startswith("2.6."):
        pytest.skip("export needs torch 2.7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESERVOIR_CACHE", str(one_cache))
    run(name, getattr(reservoir_pipelines, name, reservoir_pipelines))


@pytest.mark.parametrize("package", [reservoir, reservoir_cache, reservoir_pipelines])
def test_dir_lists_what_a_package_gives(package):
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
