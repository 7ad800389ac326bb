"""Entries are found, claimed, removed and repaired, and the space that they need is computed."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from pytest import approx
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    ShardWriter,
    broken_entries,
    folder_bytes,
    last_entry,
    list_entries,
    prunable,
    remove,
    repair,
    required_bytes,
    summarize,
    untracked,
    verify,
    write_targets,
)
from reservoir_cache.locks import entry_locks
from reservoir_cache.publish import process_identity

from tests.cache.conftest import write_block
from tests.helpers import flip


def test_entries_are_listed_and_broken_folders_reported(tmp_path, toy):
    good = [toy.entry(tmp_path), toy.entry(tmp_path, padding="none")]
    bad = toy.entry(tmp_path, compute="bfloat16")
    (bad.path / "spec.json").write_text("{")
    (tmp_path / "features" / "toy" / "notes").mkdir()
    (tmp_path / "features" / "toy" / "file.txt").write_text("not a folder")
    assert list_entries(tmp_path) == sorted(good, key=lambda entry: entry.path)
    found = {problem.path: problem.what for problem in broken_entries(tmp_path)}
    assert set(found) == {bad.path, tmp_path / "features" / "toy" / "notes"}
    assert "not a valid specification" in found[bad.path]
    assert str(tmp_path) not in found[tmp_path / "features" / "toy" / "notes"]
    remove(bad.path)
    assert not bad.path.exists()
    assert list_entries(tmp_path / "nothing") == broken_entries(tmp_path / "nothing") == []


def test_the_last_entry_is_the_one_last_created_or_opened_for_writing(tmp_path, toy):
    assert last_entry(tmp_path, "toy") is None
    first, second = toy.entry(tmp_path), toy.entry(tmp_path, padding="none")
    toy.entry(tmp_path, task={"name": "other"})
    assert last_entry(tmp_path, "toy") == second
    toy.entry(tmp_path)
    assert last_entry(tmp_path, "toy") == first
    remove(first.path)
    assert last_entry(tmp_path, "toy") == second


def test_untracked_entries_do_not_become_the_last(tmp_path, toy):
    with untracked():
        first, second = toy.entry(tmp_path), toy.entry(tmp_path, padding="none")
        assert last_entry(tmp_path, "toy") == second
    _ = FeatureStore(first)
    assert last_entry(tmp_path, "toy") == first  # without a tracked extraction, the entry last used
    mine = toy.entry(tmp_path, compute="bfloat16")
    with pytest.raises(ZeroDivisionError), untracked():
        toy.entry(tmp_path)
        toy.entry(tmp_path, store="float32")
        raise ZeroDivisionError
    assert last_entry(tmp_path, "toy") == mine
    assert toy.entry(tmp_path) == last_entry(tmp_path, "toy") == first


def test_remove_deletes_an_entry_and_nothing_else(tmp_path, toy):
    entry, other = toy.fill(toy.entry(tmp_path)), toy.entry(tmp_path, padding="none")
    for wrong in (tmp_path, entry.path.parent, entry.path / "train", tmp_path / "nothing"):
        with pytest.raises(CacheError, match="not an entry"):
            remove(wrong)
    with toy.claim(entry, "train", 0), pytest.raises(CacheError, match=rf"used by process {os.getpid()} "):
        remove(entry.path)
    remove(entry.path)
    assert not entry.path.exists()
    assert list_entries(tmp_path) == [other] and verify(toy.fill(toy.entry(tmp_path))) == []


@pytest.mark.parametrize("when", range(12))
def test_a_removal_killed_at_any_step_can_be_repeated(tmp_path, toy, monkeypatch, when):
    entry, steps = toy.fill(toy.entry(tmp_path)), []

    def counted(function):
        def step(*args, **kwargs):
            steps.append(function)
            if len(steps) == when + 1:
                raise KeyboardInterrupt  # as a signal would
            return function(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", counted(Path.unlink))
        patch.setattr("pathlib.Path.rmdir", counted(Path.rmdir))
        patch.setattr("shutil.rmtree", counted(shutil.rmtree))
        try:
            remove(entry.path)
        except KeyboardInterrupt:
            assert entry.path.exists()
        else:
            assert len(steps) <= when  # the removal ended before this step
    if entry.path.exists():
        assert (when == 0) == (list_entries(tmp_path) == [entry])
        assert (when == 0) or "reservoir cache remove" in str(broken_entries(tmp_path)[0])
        remove(entry.path)
    assert not entry.path.exists()


def test_an_interrupt_while_a_block_is_queued_leaves_the_blocks_before_it_listed(tmp_path, toy, monkeypatch):
    entry, is_counted = toy.entry(tmp_path), threading.Event()
    columns = tuple(toy.features(entry, "train", 0))

    def interrupted(*_):
        is_counted.set()
        raise KeyboardInterrupt

    def arrays():
        is_counted.wait(10)  # the first block ends after the second one is counted
        return toy.features(entry, "train", 0)

    with pytest.raises(KeyboardInterrupt), ShardWriter(entry) as writer:
        writer.claim("train", 0, columns)
        writer.claim("train", 1, columns)
        writer.put("train", 0, arrays)
        monkeypatch.setattr(writer._threads, "submit", interrupted)
        writer.put("train", 1, toy.features(entry, "train", 1))
    assert [*entry.missing("train", columns)] == [1, 2]
    assert verify(toy.fill(entry)) == []


@pytest.mark.parametrize(
    "step",
    [
        lambda entry, toy: write_targets(entry, "train", toy.targets(10)),
        lambda entry, toy: toy.claim(entry, "train", 0).__enter__(),
        lambda entry, _: ShardWriter(entry).__enter__(),
    ],
    ids=["labels", "claim", "writer"],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_removal_between_the_steps_of_an_extract_leaves_no_entry_without_specification(tmp_path, toy, step, again):
    """The next step raises an error and makes no folder, unless another run has created the entry again."""
    entry = toy.entry(tmp_path)
    subprocess.run([sys.executable, "-c", f"from reservoir_cache import remove; remove('{entry.path}')"], check=True)
    if again:
        with toy.claim(toy.entry(tmp_path), "train", 0):
            pass
        step(entry, toy)  # the same key, so the step continues in the new entry
        assert list_entries(tmp_path) == [entry]
        return
    with pytest.raises(CacheError, match=r"removed .*run the same command again"):
        step(entry, toy)
    assert not entry.path.exists()


def test_a_removed_lock_that_a_backup_holds_by_a_hard_link_is_not_that_of_a_new_entry(tmp_path, toy):
    entry = toy.entry(tmp_path)
    os.link(entry.path / "lock", tmp_path / "backup")
    locks = entry_locks(entry.path)
    subprocess.run([sys.executable, "-c", f"from reservoir_cache import remove; remove('{entry.path}')"], check=True)
    toy.entry(tmp_path)
    with pytest.raises(CacheError, match="removed during this run"), locks.mutex():
        pass


def test_an_entry_knows_whether_it_is_finished(tmp_path, toy):
    entry = toy.entry(tmp_path)

    def state():
        summary = summarize(entry)
        unfinished = {problem.path.name for problem in verify(entry)}
        return entry.progress(), summary.blocks_done, summary.finished, unfinished

    assert state() == ({"test": (0, 1), "train": (0, 3)}, 0, False, {"test", "train"})
    write_targets(entry, "train", toy.targets(10))
    write_block(entry, "train", 1, toy.features(entry, "train", 1))
    assert state() == ({"test": (0, 1), "train": (1, 3)}, 1, False, {"test", "train"})
    toy.fill(entry, ["final/last"])
    assert state() == ({"test": (0, 1), "train": (1, 3)}, 1, False, {"test", "train"})
    toy.fill(entry)
    assert state() == ({"test": (1, 1), "train": (3, 3)}, 4, True, set())
    assert summarize(entry).columns == tuple(sorted(toy.shapes))
    write_block(entry, "test", 0, {"new/one": np.ones((4, 1, 2), np.float32)})
    assert state() == ({"test": (1, 1), "train": (0, 3)}, 1, False, {"train"})


def test_a_summary_has_size_and_dates(tmp_path, toy):
    before = datetime.now(UTC) - timedelta(seconds=1)
    entry = toy.fill(toy.entry(tmp_path))
    summary = summarize(entry)
    assert summary.bytes == sum(path.stat().st_size for path in entry.path.rglob("*") if path.is_file())
    assert before <= summary.created <= summary.used <= datetime.now(UTC)
    set_used(entry, days=3)
    other = toy.entry(tmp_path, padding="none")
    assert (summarize(entry).used - (datetime.now(UTC) - timedelta(days=3))) / timedelta(minutes=5) == approx(0, abs=1)
    _ = FeatureStore(entry)["train"].read("final/last")
    assert summarize(entry).used > before
    assert last_entry(tmp_path, "toy") == other  # reading counts as use, but not as extraction


def set_used(entry, days):
    then = (datetime.now(UTC) - timedelta(days=days)).timestamp()
    os.utime(entry.path / "lock", (then, then))


def sized(root, toy, sizes, *, unfinished=()):
    """Make entries of these sizes, in units of 10 kB, least recently used first; leave some unfinished."""
    entries = []
    for number, size in enumerate(sizes):
        entry = toy.entry(root, init={"kind": "random", "seed": number})
        if number not in unfinished:
            toy.fill(entry)
        room = size * 10_000 - folder_bytes(entry.path)
        (entry.path / "padding").write_bytes(bytes(room))
        set_used(entry, len(sizes) - number)
        entries.append(entry)
    return entries


def chosen(root, **options):
    return [each.entry.spec.init.seed for each in prunable(root, **options)]


def test_prunable_chooses_entries_not_used_for_long_but_none_at_work(tmp_path, toy):
    entries = sized(tmp_path, toy, [10] * 4)
    for entry, days in zip(entries, (40, 1, 50, 31), strict=True):
        set_used(entry, days)
    with toy.claim(entries[3], "train", 0):
        assert chosen(tmp_path, older=timedelta(days=30)) == [2, 0]
    assert chosen(tmp_path) == [] and len(list_entries(tmp_path)) == 4


@pytest.mark.parametrize(
    ("sizes", "keep", "expected"),
    [
        ([10, 10, 10, 10], 20, [0, 1]),
        ([10, 10, 10, 10], 40, []),
        ([10, 10, 10, 10], 0, [0, 1, 2, 3]),
        ([50, 10, 10], 45, [0]),
    ],
)
def test_prunable_chooses_the_least_recently_used_until_the_others_fit(tmp_path, toy, sizes, keep, expected):
    sized(tmp_path, toy, sizes)
    assert chosen(tmp_path, keep_bytes=keep * 10_000) == expected


def test_prunable_chooses_unfinished_extractions_last_and_only_on_request(tmp_path, toy):
    sized(tmp_path, toy, [40, 10, 10], unfinished=[0])
    assert chosen(tmp_path, keep_bytes=300_000) == [1, 2]
    assert chosen(tmp_path, keep_bytes=0, unfinished=True) == [1, 2, 0]
    assert chosen(tmp_path, older=timedelta(0)) == [1, 2]


@pytest.mark.parametrize("store", ["float16", "float32"])
@pytest.mark.parametrize("width", [8, 3000])
def test_required_bytes_are_just_above_the_bytes_written(tmp_path, toy, store, width):
    shapes = {f"block{n:02d}/mean": (1, width) for n in range(5)}
    entry = toy.entry(tmp_path, block_rows=32, data={"digest": "d", "rows": {"train": 70}}, store=store)
    needed = required_bytes(entry.spec, entry.layout, {"train": 70}, shapes)
    for block, (low, high) in enumerate(entry.blocks("train")):
        write_block(entry, "train", block, {name: np.ones((high - low, 1, width), np.float32) for name in shapes})
    raw = 70 * 5 * width * (2 if store == "float16" else 4)
    written = sum(path.stat().st_size for path in (entry.path / "train").iterdir())
    assert raw < written <= needed < 1.15 * written + 3 * 5 * 4096
    assert required_bytes(entry.spec, entry.layout, {}, shapes) == 0


SHARDS = ["train/00000-0.h5", "train/00001-0.h5", "train/00002-0.h5", "test/00000-0.h5"]
FILES = [*SHARDS, "train/targets.h5", "test/targets.h5", "train/manifest.json", "test/manifest.json"]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_anywhere_in_any_file_is_found_and_named(full, file):
    path = full.path / file
    good = path.read_bytes()
    for position in sorted({*range(0, len(good), max(1, len(good) // 40)), len(good) - 1}):
        flip(path, position, position % 8)
        assert [problem.path for problem in verify(full)] == [path]
        path.write_bytes(good)
    assert verify(full) == []


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_repair_then_a_rerun_gives_the_same_bytes(full, toy, file, damage):
    before, path = toy.digest(full.path), full.path / file
    size = path.stat().st_size
    if damage == "flip":
        flip(path, size // 2)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: size - 7 if damage == "cut" else 0])
    problems = verify(full)
    assert [problem.path for problem in problems] == [path]
    assert full.key[:16] in str(problems[0]) and repair(full, problems) == problems
    (unfinished,) = verify(full)  # until extract writes the file again
    assert unfinished.path == path.parent and ("labels" in str(unfinished)) == (file not in SHARDS)
    missing = {split: full.missing(split, toy.shapes) for split in full.splits}
    if file in SHARDS:
        split, name = file.split("/")
        assert missing[split] == {int(name[:5]): tuple(toy.shapes)}
        assert not any(missing[other] for other in full.splits if other != split)
    else:
        assert not any(missing.values())
    toy.fill(full)
    assert toy.digest(full.path) == before


def test_repair_leaves_blocks_that_another_run_writes(full, toy):
    flip(full.path / SHARDS[1], 100)
    with toy.claim(full, "train", 1):
        assert repair(full) == []
    assert (full.path / SHARDS[1]).exists() and len(repair(full)) == 1


def test_a_manifest_is_rebuilt_without_damaged_or_foreign_shards(full, toy, tmp_path):
    other = toy.fill(toy.entry(tmp_path, padding="none"))
    before = toy.digest(full.path)
    flip(full.path / "train" / "manifest.json", 10)
    values = full.path / SHARDS[0]
    data = values.read_bytes()
    needle = np.float32(toy.features(full, "train", 0, ["final/last"])["final/last"].mean(axis=(0, 1))).tobytes()
    flip(values, data.index(needle))  # an offset
    (full.path / SHARDS[1]).write_bytes((other.path / SHARDS[1]).read_bytes())
    repair(full)
    assert sorted(full.missing("train", toy.shapes)) == [0, 1]
    toy.fill(full)
    assert toy.digest(full.path) == before


HOLD = """
import sys, time
from pathlib import Path
from reservoir_cache import Entry, ShardWriter
with ShardWriter(Entry.open(Path(sys.argv[1]))) as writer:
    print(len(writer.claim("train", int(sys.argv[2]), ["not/written"])), flush=True)
    sys.stdin.readline()
"""
FORK = """
import os, sys
from pathlib import Path
from reservoir_cache import Entry, ShardWriter
entry = Entry.open(Path(sys.argv[1]))
with ShardWriter(entry) as writer:
    mine = len(writer.claim("train", 0, ["not/written"]))
    child = os.fork()
    if child == 0:
        with ShardWriter(entry) as theirs:
            os._exit(sum(10**block * len(theirs.claim("train", 1 - block, ["not/written"])) for block in (0, 1)))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(mine, status, len(writer.claim("train", 1, ["not/written"])))
"""


def hold(entry, block):
    """Start a process that claims a block; return it and whether it got the block."""
    command = [sys.executable, "-c", HOLD, str(entry.path), str(block)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, bool(int(process.stdout.readline()))


def end(process):
    process.communicate("\n")
    assert process.returncode == 0


def test_a_block_has_one_holder_in_a_process(entry, toy):
    with toy.claim(entry, "train", 1) as first:
        with toy.claim(entry, "train", 1) as second, toy.claim(Entry.open(entry.path), "train", 1) as third:
            assert (first, second, third) == (True, False, False)
        with toy.claim(entry, "train", 0) as other, toy.claim(entry, "test", 0) as another:
            assert (other, another) == (True, True)
    with toy.claim(entry, "train", 1) as again:
        assert again


def test_a_block_has_one_holder_among_threads(entry, toy):
    got, start = [], threading.Barrier(8)
    done = threading.Barrier(8)

    def work():
        start.wait()
        with toy.claim(entry, "train", 0) as mine:
            got.append(mine)
            done.wait()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]


def test_a_block_has_one_holder_among_processes(full, toy):
    with toy.claim(full, "train", 1) as mine:
        assert mine
        # Reading must not release our lock; closing a descriptor of the lock file would release it.
        full.running(), verify(full), folder_bytes(full.path), FeatureStore(full.path)["train"].read("final/last")
        Entry.open(full.path).missing("train", ["a/b"])
        process, theirs = hold(full, 1)
        assert not theirs
        end(process)
        process, theirs = hold(full, 2)
        assert theirs
        with toy.claim(full, "train", 2) as taken:
            assert not taken
        assert {run["pid"] for run in full.running()} == {os.getpid(), process.pid}
        end(process)
    assert full.running() == []


def test_a_killed_holder_leaves_nothing(entry, toy):
    process, theirs = hold(entry, 0)
    assert theirs
    record = next(path for path in (entry.path / "runs").iterdir())
    left = entry.path / "train" / f".00000-0.h5.3.{record.stem}.tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with toy.claim(entry, "train", 0) as mine:
        assert not mine
    assert left.exists()  # the process that owns it is alive
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert entry.running() == []
    with toy.claim(entry, "train", 0) as mine:
        assert mine
        assert not left.exists()
        assert not record.exists()


def test_own_temporary_files_are_not_swept(entry, toy):
    mine = entry.path / f".x.0.{process_identity()}.tmp"
    mine.write_bytes(b"")
    with toy.claim(entry, "train", 0):
        assert mine.exists()


def test_a_forked_child_has_none_of_its_parents_claims(entry):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(entry.path)], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["1", "1", "1"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named(entry, monkeypatch, code, toy):
    monkeypatch.setattr("fcntl.lockf", Mock(side_effect=OSError(code, os.strerror(code))))
    with pytest.raises(CacheError, match=r"does not support file locks.*--cache"), toy.claim(entry, "train", 0):
        pass
