"""A power loss at any moment leaves the old or the new, and every fsync is needed for that; the campaign tries more."""

import os
import random

from tests.faults.power_loss import Named, Replayer, Stage, Step, Synced, Written, record, replay
from tests.faults.power_stages import CACHE, PIPELINES

SHORT = [stage for stage in (*CACHE, *PIPELINES) if stage.name in ("prepare", "reproduce: cells and tables")]


def text(root):
    path = root / "file"
    return path.read_text() if path.exists() else None


def states(steps, tmp_path, **options):
    """Record some steps that write ``file`` and return what may be read of it at their end."""
    trace = record(Stage("steps", tuple(map(Step, steps)), text), tmp_path / "stage")
    found = trace.crashes(len(trace.events), random.Random(0), 100)
    return trace, {state.get("file") for state in found}


def test_what_was_not_synced_may_be_lost_torn_or_zero(tmp_path):
    content = b"a" * 512 + b"b" * 512
    trace, found = states([lambda root: (root / "file").write_bytes(content)], tmp_path)
    assert [type(event) for event in trace.events[:2]] == [Named, Written]
    zeros = bytes(512)
    assert found == {None, b"", content, bytes(1024), b"a" * 512, b"a" * 512 + zeros, zeros + b"b" * 512}


def test_a_rename_may_come_before_the_content_of_its_file(tmp_path):
    def write(root):
        (root / "new").write_text("new")
        (root / "new").replace(root / "file")

    (tmp_path / "stage").mkdir()
    _, found = states([lambda root: (root / "file").write_text("old"), write], tmp_path / "stage")
    assert {b"old", b"new", b"", None} <= found


def test_a_synced_file_and_folder_are_kept(tmp_path):
    def write(root):
        with (root / "file").open("w") as file:
            file.write("new")
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    trace, found = states([write], tmp_path)
    assert found == {b"new"} and sum(isinstance(event, Synced) for event in trace.events) == 2


def test_a_file_replaced_without_fsync_is_found(tmp_path):
    def write(root, content):
        (root / "new").write_text(content)
        (root / "new").replace(root / "file")

    stage = Stage("careless", (Step(lambda root: write(root, "one")), Step(lambda root: write(root, "two"))), text)
    assert Replayer(stage, tmp_path / "work").replay(record(stage, tmp_path / "stage")).wrong


def test_a_power_loss_leaves_the_old_or_the_new_and_every_fsync_is_needed(tmp_path):
    *stages, fsyncs = replay([*CACHE, *SHORT], tmp_path, most=5, recoveries=2)
    for count in stages:
        assert count.tried > 40, count.fault
        assert count.lost == [], count.fault
    assert fsyncs.tried >= 9
    assert fsyncs.lost == []
