"""The writer thread: all blocks are on disk afterwards, and a failure is raised."""

import threading

import numpy as np
import pytest
import reservoir_cache.writer as writer_module
from reservoir_cache import CacheError, ShardWriter, verify, write_targets


def test_what_is_put_is_on_disk_on_leaving(tmp_path, toy):
    direct, threaded = toy.fill(toy.entry(tmp_path / "a")), toy.entry(tmp_path / "b")
    with ShardWriter(threaded, maxsize=1) as writer:
        for split, rows in threaded.spec.rows.items():
            write_targets(threaded, split, toy.targets(rows))
            for block in threaded.missing(split, toy.shapes):
                with threaded.claim(split, block) as mine:
                    assert mine
                    writer.put(split, block, toy.features(threaded, split, block))
    assert toy.digest(threaded.path) == toy.digest(direct.path)
    assert writer.bytes_written == sum(path.stat().st_size for path in threaded.path.glob("*/*-*.h5"))
    assert threaded.running() == []


def test_a_block_stays_claimed_until_it_is_on_disk(entry, toy, monkeypatch):
    gate = threading.Event()
    write = writer_module.write_block
    monkeypatch.setattr(writer_module, "write_block", lambda *args: gate.wait(10) and write(*args))
    with ShardWriter(entry) as writer:
        with entry.claim("train", 0):
            writer.put("train", 0, toy.features(entry, "train", 0))
        with entry.claim("train", 0) as again:
            assert not again
        assert len(entry.running()) == 1
        gate.set()
    with entry.claim("train", 0) as free:
        assert free
    assert 0 not in entry.missing("train", toy.shapes)


def test_an_error_surfaces_on_leaving(entry, toy):
    bad = toy.features(entry, "train", 0)
    bad["final/last"][0, 0, 0] = np.inf
    with pytest.raises(CacheError, match="not finite"), ShardWriter(entry) as writer:
        writer.put("train", 0, bad)
    with entry.claim("train", 0) as free:
        assert free


def test_an_error_surfaces_at_a_later_put_which_never_hangs(entry, toy):
    bad = toy.features(entry, "train", 0)
    bad["final/last"][0, 0, 0] = np.inf
    put = 0
    with pytest.raises(CacheError, match="not finite"), ShardWriter(entry, maxsize=1) as writer:
        writer.put("train", 0, bad)
        for _ in range(1000):
            writer.put("train", 1, toy.features(entry, "train", 1))
            put += 1
    assert put < 1000
    for block in (0, 1):
        with entry.claim("train", block) as free:
            assert free


def test_an_exception_in_the_body_is_the_one_seen_and_whole_blocks_are_kept(entry, toy):
    with pytest.raises(KeyError, match="body"), ShardWriter(entry) as writer:
        writer.put("train", 0, toy.features(entry, "train", 0))
        raise KeyError("body")
    assert sorted(entry.missing("train", toy.shapes)) == [1, 2]
    assert [problem.path.name for problem in verify(entry)] == ["test", "train"]  # not finished, but nothing damaged
