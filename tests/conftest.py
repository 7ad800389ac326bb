"""Fixtures shared by several tests: no network, few threads, and small model folders with real weights."""

import base64
import gc
import gzip
import json
import os
import pkgutil
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

os.environ["HF_HUB_OFFLINE"] = "1"
# Child processes must import the same packages, and numpy reads its number of threads when it is imported.
os.environ["PYTHONPATH"] = os.pathsep.join(
    str(Path(__file__).resolve().parents[1] / p) for p in ("", "cache", "pipelines")
)
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from reservoir.readouts.penalties import DEFAULT_ALPHAS, LOGISTIC_ALPHAS

# In memory, tests do not wait for the disk, which takes longer than their computations. They need less than 2 GB.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A search for garbage goes through all that torch, transformers and scikit-learn have made, and by default is frequent.
gc.set_threshold(50_000, 20, 50)

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the job of the oldest dependencies installs no test library but pytest
    stub = MagicMock(given=lambda *_, **__: pytest.mark.skip("hypothesis is not installed"))
    stub.settings, stub.__spec__ = (lambda *_, **__: lambda test: test), ModuleSpec("hypothesis", None)
    for module in ("hypothesis", "hypothesis.strategies", "hypothesis.extra", "hypothesis.extra.numpy"):
        sys.modules[module] = stub
else:
    # Every run draws the same examples, without a time limit, because the machine may be busy.
    settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("steady")

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


def pytest_collection_modifyitems(items):
    """Begin with the documents, whose tests are long: at the end, one worker would wait for another."""
    items.sort(key=lambda item: item.path.name != "test_documents.py")


def pytest_collection_finish():
    """Have searches for garbage skip what the imports made, which lives to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


def _write_pixel(_figure, file, **_):
    if hasattr(file, "write"):
        file.write(PIXEL)
    else:
        Path(file).write_bytes(PIXEL)


def _plot_pixel(path, *_, **__):
    from reservoir_cache import replace_file

    replace_file(path, lambda part: part.write_bytes(PIXEL))


PIXELS = {"matplotlib.figure.Figure.savefig": _write_pixel}
PIXELS |= {f"reservoir_pipelines.fitting.save.{name}": _plot_pixel for name in ("plot", "plot_sweep")}
PIXELS |= {f"reservoir_pipelines.{name}": _plot_pixel for name in ("plots.plot", "training.train.plot_training")}


@pytest.fixture(scope="session", autouse=True)
def _paint():
    """Write a pixel for each plot, because rendering takes longer than most fits; yield what renders."""
    drawing = {name: pkgutil.resolve_name(name) for name in PIXELS}
    with pytest.MonkeyPatch.context() as patch:
        for name, pixel in PIXELS.items():
            patch.setattr(name, pixel)
        yield drawing


@pytest.fixture
def painted(_paint, monkeypatch):
    """Render the plots of this test; for each kind of plot, at least one test uses this fixture."""
    for name, draw in _paint.items():
        monkeypatch.setattr(name, draw)


@pytest.fixture
def figures(monkeypatch):
    """Draw each figure of this test instead of saving it; return the list to which it is added."""
    from matplotlib.figure import Figure

    drawn = []

    def keep(figure, *_, **__):
        figure.draw_without_rendering()
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    monkeypatch.setattr("reservoir_pipelines.plots.replace_file", lambda path, write: write(path))
    return drawn


# Fits of a few hundred rows spend their time on the grid, and take every branch with a quarter of it.
SMALL_DEFAULTS = {
    "reservoir.inputs.patch_units.WHITENING_WINDOWS": 20_000,
    "reservoir.plan.candidates._repeats_of": lambda train_rows: 2 if train_rows < 600 else 1,
    "reservoir_pipelines.fitting.baselines.ALPHAS": np.array([1.0, 100.0]),
    "reservoir_pipelines.fitting.candidates.LOGISTIC_ALPHAS": LOGISTIC_ALPHAS[3::3],
}
DEFAULTS_OF = ("fitting.baselines", "fitting.candidates", "estimators.predictor")
SMALL_DEFAULTS |= {f"reservoir_pipelines.{module}.DEFAULT_ALPHAS": DEFAULT_ALPHAS[::4] for module in DEFAULTS_OF}


@pytest.fixture(scope="session", autouse=True)
def _small_defaults():
    """Try fewer penalties and draw fewer folds and windows than a user; yield the defaults that a user has."""
    shipped = {name: pkgutil.resolve_name(name) for name in SMALL_DEFAULTS}
    with pytest.MonkeyPatch.context() as patch:
        for name, small in SMALL_DEFAULTS.items():
            patch.setattr(name, small)
        yield shipped


@pytest.fixture
def shipped_defaults(_small_defaults, monkeypatch):
    """Use the defaults that a user has, for tests of these defaults."""
    for name, default in _small_defaults.items():
        monkeypatch.setattr(name, default)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory):
    """Return a folder with a GPT-2 of 3 blocks and width 16 as transformers saves it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_embd=16, n_head=2, n_positions=80, vocab_size=30, initializer_range=0.3)
    config.bos_token_id = config.eos_token_id = None
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def _narrow(tmp_path_factory):
    """Return a copy of mini's folder with an eighth of the width and random weights, and its configuration."""
    import torch
    from safetensors.torch import save_file

    from reservoir.backbone_names import SHIPPED
    from reservoir.backbones import find, load_backbone

    name, folder = "mini:n_embd=32,initializer_range=0.2", tmp_path_factory.mktemp("narrow") / "mini"
    shutil.copytree(SHIPPED["mini"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_embd": 32}))
    drawn = load_backbone(name, "random").model.state_dict()
    tensors = {"wte.weight": torch.zeros(256, 32)} | drawn
    save_file({f"transformer.{k}": v for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder, find(name)[1]


@pytest.fixture
def narrow_mini(_narrow, monkeypatch):
    """Replace mini by a narrow model, for tests that do not depend on its weights."""
    from reservoir import backbone_names

    folder, config = _narrow
    monkeypatch.setitem(backbone_names.SHIPPED, "mini", folder)
    monkeypatch.setitem(backbone_names.KNOWN_BACKBONES, "mini", ("gpt2", config.to_dict()))


@pytest.fixture(scope="module")
def one_renderer():
    """Render the chats of a model in one process, however often it is loaded, because a start takes a second."""
    from reservoir.inputs import text_reader
    from reservoir.inputs.chat_template import ChatTemplate

    templates = {}

    def template_of(template, special_tokens, where):
        key = template, json.dumps(special_tokens), where
        if key not in templates:
            templates[key] = ChatTemplate(template, special_tokens, where)
        return templates[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_reader, "ChatTemplate", template_of)
        yield


@pytest.fixture(scope="module")
def few_bits():
    """Give bit-memory a few hundred rows by default."""
    from reservoir.tasks.bits import BitMemory

    with pytest.MonkeyPatch.context() as patch:
        for name, rows in (("train_rows", 400), ("valid_rows", 100), ("test_rows", 100)):
            patch.setitem(BitMemory.__init__.__kwdefaults__, name, rows)
        yield


@pytest.fixture(scope="module")
def short_streams():
    """Make streams hold out few tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reservoir.pretraining.corpora.HELD_OUT_TOKENS", 2**12)
        yield


@pytest.fixture
def cuda_streams(monkeypatch):
    """Replace the streams and events of GPUs on a machine that has none; return the stream of computations."""
    import torch

    from tests.helpers import Event, Stream

    computing = Stream()
    if not torch.cuda.is_available():
        for name, value in (("Stream", Stream), ("Event", Event), ("stream", lambda stream: stream)):
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    return computing


@pytest.fixture(scope="module", autouse=True)
def _hdf5_in_this_process(request):
    """Check HDF5 files in this process in the tests of tasks, because a process for each file takes a second.

    The tests of faults and of the pipelines check them in a process with limits, as users do.
    """
    from reservoir_pipelines.data.hdf5 import read_once

    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name == "tasks":
            patch.setattr("reservoir_pipelines.data.hdf5._check_in_child", read_once)
        yield


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache root that every stage of the test uses; publishers' data is found only by --data."""
    root = tmp_path / "cache"
    monkeypatch.setenv("RESERVOIR_CACHE", str(root))
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    return root


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory):
    """Return a cache root that the tests of a module share, so that each task is prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cluster():
    """Start a scheduler and one worker, both in this process, where torch is loaded already."""
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(protocol="tcp://", **settings) as cluster:
        yield cluster


@pytest.fixture
def mnist_files(tmp_path):
    return write_mnist(tmp_path / "mnist-files")


def write_mnist(folder):
    """Write four small idx files in the form of MNIST's, gzipped and not."""
    from tests.tasks import samples

    samples.mnist_files(folder, 60, 20)
    for path in folder.glob("*images*"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


@pytest.fixture
def call(capfd):
    """Run a command in this process; return its exit code, stdout and stderr."""

    def calling(*arguments):
        from reservoir_pipelines.cli import run

        code = run([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return calling


@pytest.fixture
def refusal(call):
    """Run a command that must be refused in one line; return that line, which may follow progress."""

    def refused(*arguments, code=2):
        found, out, err = call(*arguments)
        errors = [line for line in err.splitlines() if line.startswith("reservoir: ")]
        assert (found, out, len(errors), "Traceback" in err) == (code, "", 1, False), (arguments, out, err)
        assert err.splitlines()[-1] == errors[0]
        return errors[0]

    return refused


@pytest.fixture
def answer(call):
    """Run a command with --json that must succeed; return what it prints."""

    def answered(*arguments):
        code, out, err = call(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return answered
