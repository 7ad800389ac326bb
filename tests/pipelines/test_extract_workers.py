"""Workers and dask clusters write the same bytes as one process, even if a worker or the connection is lost."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reservoir_cache import Entry, FeatureStore, verify
from reservoir_pipelines import extract, prepare, workers
from reservoir_pipelines.extraction import entries, extractor, sharing

from reservoir import InputError
from reservoir.options import ExtractOptions
from reservoir.plan.precision import BLOCK_ROWS
from tests.helpers import contents
from tests.reservoir.models import save_with_chat_template, save_with_tokenizer
from tests.tasks.samples import write_csv

SETTINGS = {"limit": 100, "compute": "float32", "layers": "embed,final"}


@pytest.fixture(scope="module", autouse=True)
def short_blocks():
    """Cut 300 rows into 21 blocks, one block per task of a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BLOCK_ROWS, "cpu", 16)
        patch.setitem(entries.MAX_TOKENS, "cpu", 1)
        patch.setattr(workers, "PAYS_OFF", 0)  # use processes even for little work
        yield


@pytest.fixture(scope="module")
def alone(tiny_gpt2, tmp_path_factory):
    return extract("digits", backbone=str(tiny_gpt2), cache=tmp_path_factory.mktemp("alone"), **SETTINGS)


@pytest.fixture(scope="module")
def expected(alone):
    return files_of(alone)


def files_of(done):
    assert verify(done.store.entry) == []
    return contents(done.entry, "*.h5")


def after_shards(root, act):
    """Start a thread that calls ``act`` when five of the 21 blocks exist; return the thread."""

    def count():
        # A folder may vanish while it is listed, which `os.walk` ignores and `Path.rglob` does not.
        names = [name for _, _, files in os.walk(root) for name in files]
        return sum(name.startswith("0") and name.endswith("-0.h5") for name in names)

    def watch():
        while count() < 5:
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_broken_connection_is_opened_again(cluster, expected, tiny_gpt2, tmp_path, capsys, monkeypatch):
    import distributed
    from distributed.comm.core import CommClosedError

    wait, calls = distributed.wait, []

    def lose_the_connection(futures, **settings):
        calls.append(len(futures))
        if len(calls) == 5:
            raise CommClosedError
        return wait(futures, **settings)

    monkeypatch.setattr(distributed, "wait", lose_the_connection)
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    assert files_of(extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings)) == expected
    assert len(calls) > 5 and "the connection was lost" in capsys.readouterr().err


@contextmanager
def dask_worker(cluster, name, path=()):
    """Start another worker in a process of its own, which imports packages from the folders ``path`` first."""
    import distributed

    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    worker = subprocess.Popen([*command, "--nthreads", "1", "--name", name], env=environment, **quiet)
    try:
        with distributed.Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(2)
        yield worker
    finally:
        worker.kill()
        worker.wait()
        with distributed.Client(cluster, set_as_default=False) as client:
            while len(client.scheduler_info()["workers"]) > 1:
                time.sleep(0.01)


def changed_packages(folder):
    """Copy the packages into a folder, and add a comment to one of their files."""
    for package in workers.PACKAGES:
        shutil.copytree(Path(find_spec(package).origin).parent, folder / package)
    with (folder / "reservoir" / "pooling.py").open("a") as file:
        file.write("# another commit\n")


def test_a_worker_of_another_commit_is_left_out_and_the_others_go_on(cluster, expected, tiny_gpt2, tmp_path, capsys):
    changed_packages(tmp_path / "other")
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    with dask_worker(cluster, "old-node", [tmp_path / "other"]):
        done = extract("digits", backbone=str(tiny_gpt2), cache=tmp_path / "cache", **settings)
    assert files_of(done) == expected
    said = [line for line in capsys.readouterr().err.splitlines() if "continuing without" in line]
    assert len(said) == 1
    assert re.search(
        r"without worker old-node: reservoir is SHA-256 \w{16} there, but SHA-256 \w{16} where .*; give", said[0]
    )


def test_if_no_worker_can_be_used_the_command_is_refused(cluster, tiny_gpt2, tmp_path, monkeypatch):
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    monkeypatch.setattr(workers, "difference", lambda answer: "torch is 1.0 there")
    with pytest.raises(InputError, match=r"worker 0: torch is 1\.0"):
        extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings)


def test_a_worker_that_computes_other_features_is_left_out(cluster, expected, tiny_gpt2, tmp_path, capsys):
    """Its code is the same, but it cannot read the backbone's folder, as on a machine without it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import builtins, io, pathlib\n"
        "is_dir = pathlib.Path.is_dir\n"
        f"pathlib.Path.is_dir = lambda self: str(self) != {str(tiny_gpt2)!r} and is_dir(self)\n"
    )
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    with dask_worker(cluster, "empty-node", [tmp_path / "site"]):
        done = extract("digits", backbone=str(tiny_gpt2), cache=tmp_path / "cache", **settings)
    assert files_of(done) == expected
    assert "continuing without worker empty-node: backbone" in capsys.readouterr().err


def test_all_workers_are_asked_for_whatever_the_default_of_distributed_is():
    class Client:
        def scheduler_info(self, n_workers=5):
            names = range(8)[: n_workers if n_workers >= 0 else None]
            return {"workers": {f"tcp://{name}": {"name": name, "nthreads": 1} for name in names}}

    assert len(workers.Crew(Client(), "tcp://scheduler").present()) == 8


def test_a_worker_without_the_program_is_told_from_one_of_another_commit():
    assert workers.difference(workers.program_versions()) == ""
    assert "No module named 'reservoir'" in workers.difference(ModuleNotFoundError("No module named 'reservoir'"))
    older = {"reservoir-features": "0.1.0", "torch": "2.0"}
    assert workers.difference(older).startswith("reservoir is another version there, but SHA-256")


@pytest.mark.parametrize("change", ["content", "name", "order", "table"])
def test_the_checksum_of_a_package_depends_on_every_file_that_computes(tmp_path, monkeypatch, change):
    def write(folder, files):
        for name, text in files.items():
            (folder / "thing" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "thing" / name).write_text(text)

    files = {"__init__.py": "", "a.py": "x = 1", "sub/b.py": "y = 2", "table.toml": "z = 3"}
    changed = {
        "content": files | {"a.py": "x = 2"},
        "name": {**files, "sub/c.py": files["sub/b.py"]},
        "order": files | {"a.py": files["sub/b.py"], "sub/b.py": files["a.py"]},
        "table": files | {"table.toml": "z = 4"},
    }[change]
    digests = []
    for number, texts in enumerate([files, changed, files | {"notes.md": "more"}]):
        write(tmp_path / str(number), texts)
        monkeypatch.setattr(sys, "path", [str(tmp_path / str(number)), *sys.path])
        invalidate_caches()
        digests.append(workers.package_digest("thing"))
    assert digests[0] == digests[2] != digests[1]


def test_blocks_of_a_killed_worker_go_to_another_and_its_end_is_said(
    cluster, expected, tiny_gpt2, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(workers, "CHECK", 0.05)
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    with dask_worker(cluster, "short-lived") as other:
        watch = after_shards(tmp_path, other.kill)  # after it has been given blocks
        done = extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings)
        watch.join()
        assert other.wait() == -signal.SIGKILL
    lost = [line for line in capsys.readouterr().err.splitlines() if "short-lived" in line]
    assert len(lost) == 1
    assert "was lost with the pieces that it was computing; the job goes on with 1 other worker" in lost[0]
    assert files_of(done) == expected
    assert extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings).reused


def test_a_worker_that_is_killed_near_the_end_is_said_too(cluster, expected, tiny_gpt2, tmp_path, capsys, monkeypatch):
    """The command asks the scheduler for its workers only once before the last piece is computed."""
    monkeypatch.setattr(workers, "CHECK", 600)
    settings = SETTINGS | {"scheduler": cluster.scheduler_address}
    with dask_worker(cluster, "short-lived") as other:
        watch = after_shards(tmp_path, other.kill)
        done = extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, **settings)
        watch.join()
    assert "worker short-lived was lost" in capsys.readouterr().err
    assert files_of(done) == expected


def test_an_address_without_a_scheduler_is_refused_before_anything_is_written(tiny_gpt2, tmp_path):
    with pytest.raises(InputError, match="no dask scheduler answers at nonsense://x"):
        extract("digits", backbone=str(tiny_gpt2), cache=tmp_path, scheduler="nonsense://x", **SETTINGS)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_workers_get_full_paths(expected, tiny_gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_gpt2.parent)
    shares_sent = []

    def note(work, tasks, **_):
        shares_sent.extend(share for share, *_ in tasks)
        return []

    monkeypatch.setattr(sharing, "map_pieces", note)
    client = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("reservoir_pipelines.extraction.extract.connect", lambda address: client)
    extract("digits", backbone=tiny_gpt2.name, cache=tmp_path, scheduler="tcp://nowhere:1", **SETTINGS)
    assert {share.options.backbone for share in shares_sent} == {str(tiny_gpt2)}
    assert all(share.prepared.is_absolute() and share.options.cache.is_absolute() for share in shares_sent)


@pytest.fixture
def share(tiny_gpt2, tmp_path):
    options = ExtractOptions(backbone=str(tiny_gpt2), cache=tmp_path, pool="mean", **SETTINGS)
    ours = extractor.load_extractor(options, prepare("digits", cache=tmp_path), tmp_path)
    return sharing.Share(options, ours.prepared.path, ours.spec.key, None, sharing.probe(ours))


@pytest.mark.parametrize("change", ["added", "reordered"])
def test_a_worker_is_accepted_unless_it_computes_other_features(share, monkeypatch, change):
    from reservoir.pooling import Mean

    assert sharing.open_share(share).spec.key == share.key
    mean = Mean.of
    # The order of the channels changes no mean and no deviation.
    changed = {"added": lambda x: x + 1.5, "reordered": lambda x: x.flip(-1)}[change]
    monkeypatch.setattr(Mean, "of", lambda self, states: changed(mean(self, states)))
    sharing._extractors.clear()  # as in a new process
    with pytest.raises(InputError, match=r"^worker \S+, process \d+: its features of embed/mean differ"):
        sharing.open_share(share)


@pytest.mark.usefixtures("one_renderer")
def test_a_worker_makes_the_masks_of_each_command_that_adds_columns_to_an_entry(tmp_path):
    """The template prints special tokens, which the pooling ``words`` leaves out and ``mean`` reads."""
    folder = save_with_chat_template(tmp_path / "llama")
    messages = [{"role": "user", "content": "a cow"}, {"role": "assistant", "content": "the cat sat on a mat"}]
    rows = [{"messages": messages, "label": "ab"[row % 2]} for row in range(30)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def compute(pool, root):
        """Compute all blocks of one pooling as a worker does, in this process; return the features."""
        options = ExtractOptions(
            backbone=str(folder), chat=True, pool=pool, layers="block01", compute="float32", cache=root
        )
        ours = extractor.load_extractor(options, prepare(tmp_path / "chats.jsonl", chat=True, cache=root), root)
        entry, missing = ours.open({})
        share = sharing.Share(options, ours.prepared.path, entry.key, probe=sharing.probe(ours))
        sharing.work(share, entry.path, ours.columns, missing)
        return FeatureStore(entry.path)["train"][f"block01/{pool}"][:]

    sharing._extractors.clear()  # as in a new process
    mean, words, answers = (compute(pool, tmp_path / "one") for pool in ("mean", "words", "assistant"))
    sharing._extractors.clear()
    assert np.array_equal(words, compute("words", tmp_path / "other")) and not np.array_equal(words, mean)
    assert not np.array_equal(words, answers)


def test_rounding_and_a_few_values_at_the_edge_of_a_share_are_no_difference():
    draw = np.random.default_rng(0)
    x = draw.normal(size=4000).astype(np.float32)
    x[::400] = 3000  # massive channels, which would hide any difference if they counted in the deviation
    rounded = x + 0.03 * draw.uniform(-1, 1, 4000)
    rounded[::60] += 0.3
    assert sharing.different_column({"a": x}, {"a": rounded}) == ""
    assert sharing.different_column({"a": x, "b": x}, {"a": x, "b": x[::-1]}) == "b"


def test_workers_write_the_bytes_of_one_process_even_if_one_is_killed(alone, expected, tiny_gpt2, tmp_path, capsys):
    root, call = tmp_path / "shared", partial(extract, "digits", backbone=str(tiny_gpt2), workers=2, **SETTINGS)
    killer = after_shards(root, lambda: os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL))
    shared = call(cache=root)
    killer.join()
    assert "a worker process was killed; this process computes the rest" in capsys.readouterr().err
    assert files_of(shared) == expected and call(cache=root).reused
    made = [{**Entry.open(done.entry).made_with["call"], "command": ""} for done in (shared, alone)]
    assert made[0] == made[1], "the features do not depend on who computes them"


@pytest.mark.parametrize("how", ["workers", "scheduler"])
def test_texts_that_workers_cut_are_counted_as_in_one_process(how, cluster, tmp_path, capsys, monkeypatch):
    def map_as_in_another_process(work, tasks, *, on_result, **_):
        """Compute all pieces here, but with an extractor of their own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharing, "_extractors", {})
            pieces = [work(*task) for task in tasks]
        for piece in pieces:
            on_result(piece)
        return pieces

    folder = save_with_tokenizer("gpt2", tmp_path / "gpt2")
    long, short = "the cat sat on a mat and " * 9, "a cow"  # the model cuts the first before its span
    rows = [(long, 200, 203, "a") if row % 3 else (short, 2, 5, "b") for row in range(60)]
    path = write_csv(tmp_path / "texts.csv", rows, "text,start,end,label")
    settings = {"backbone": str(folder), "layers": "embed", "pool": "mean,span", "span": "start,end"}
    shared = {"scheduler": cluster.scheduler_address} if how == "scheduler" else {"workers": 2}
    notes = []
    for number, several in enumerate([{}, shared]):
        if "workers" in several:
            monkeypatch.setattr(sharing, "map_pieces", map_as_in_another_process)
        extract(path, cache=tmp_path / str(number), **settings, **several)
        notes.append([line for line in capsys.readouterr().err.splitlines() if "texts have" in line])
    assert notes[0] == notes[1] and len(notes[0]) == 1
    assert "40 of 60 texts have more than 32 tokens and are cut" in notes[0][0]
    assert "40 of 60 texts have no token for the pooling span" in notes[0][0]


def test_a_worker_with_another_model_is_refused(alone, tiny_gpt2):
    root, backbone = alone.entry.parents[2], str(tiny_gpt2)
    options = ExtractOptions(backbone=backbone, limit=100, compute="float32", layers="embed,final", cache=root)
    share = sharing.Share(options, prepare("digits", cache=root).path, alone.store.entry.key)
    assert sharing.work(share, alone.entry, alone.columns, [("train", 0)]).rows == 0  # the block exists already
    (alone.entry / "train" / "00001-0.h5").unlink()
    assert sharing.work(share, alone.entry, alone.columns, [("train", 0), ("train", 1)]).rows == 16
    other = replace(share, options=replace(options, seed=1))
    sharing._extractors.clear()  # as in a new process
    with pytest.raises(InputError, match=r"cache key is .* there, but"):
        sharing.work(other, alone.entry, alone.columns, [("train", 0)])
