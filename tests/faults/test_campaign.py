"""A few rounds of kills, power losses and flipped bits lose nothing; ``make faults`` runs all rounds."""

import os
import random
import signal
import sys
import threading

import pytest
from reservoir_cache import repair, write_targets

from reservoir.plan.precision import BLOCK_ROWS
from tests.cache.conftest import SHAPES, digest, features, make_entry, targets, write_block
from tests.faults import kills
from tests.faults.power_loss import replay
from tests.faults.power_stages import CACHE, EXTRACT, PIPELINES
from tests.faults.rounds import Count
from tests.helpers import Child

CAMPAIGN = "import sys; from tests.faults.__main__ import main; sys.exit(main())"


def test_nothing_is_lost(tmp_path):
    table = tmp_path / "table.md"
    code, out, err = Child(CAMPAIGN, "--scale", "0.001", "--parts", "bits,inputs", "--out", table).ended()
    assert code == 0, err + out
    assert table.read_text().splitlines()[-1].endswith("| **0** |")


def extract_all(root):
    entry = make_entry(root)
    repair(entry)
    for split, rows in entry.spec.rows.items():
        write_targets(entry, split, targets(rows))
        for block in entry.missing(split, SHAPES):
            write_block(entry, split, block, features(entry, split, block))


def killed_at(root, moment):
    """Extract in a forked process that kills itself after ``moment`` lines of our packages; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = moment

    def lines(_frame, event, _argument):
        nonlocal left
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return lines

    status = 1
    try:
        for settrace in (threading.settrace, sys.settrace):
            settrace(lambda frame, *_: lines if "reservoir_cache" in frame.f_code.co_filename else None)
        extract_all(root)
        status = 0
    finally:
        os._exit(status)


def test_killed_at_any_line_and_rerun_the_bytes_are_those_of_an_undisturbed_run(tmp_path):
    extract_all(tmp_path / "whole")
    whole, draw = digest(tmp_path / "whole"), random.Random(7)
    assert len(whole) == 1 + 3 + 1 + 2 + 2  # specification, shards, labels, manifests
    assert killed_at(tmp_path / "short", 3000) == -signal.SIGKILL
    for number in range(10):
        root = tmp_path / str(number)
        ends = [killed_at(root, draw.randrange(1, 3000)), killed_at(root, draw.randrange(1, 1500))]
        assert set(ends) <= {0, -signal.SIGKILL} and ends[0] != 0  # the second run may end before it is killed
        extract_all(root)
        assert digest(root) == whole, number


@pytest.fixture(scope="module")
def extraction(tmp_path_factory):
    """Return an extraction that can be disturbed; blocks of 16 rows give many moments for a kill."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BLOCK_ROWS, "cpu", 16)
        yield kills.Disturbed(EXTRACT, tmp_path_factory.mktemp("extraction"))


def test_an_extraction_that_is_killed_and_run_again_gives_the_same_bytes(extraction):
    count = Count("kill -9 of extract")
    for fault in ("open:5", "os.rename:8", "os.rename:11", "os.mkdir:2"):
        kills.disturb(extraction, count, fault)
    assert (count.tried, count.lost) == (4, [])


def test_two_extractions_at_once_give_the_same_bytes(extraction):
    assert kills.together(extraction, 1).lost == []


NAMES = "prepare", "reproduce: cells and tables", "train: a run and its checkpoints"
SHORT = [stage for stage in PIPELINES if stage.name in NAMES]  # these call every fsync of the pipelines


def test_a_power_loss_leaves_the_old_or_the_new_and_every_fsync_is_needed(tmp_path):
    *stages, fsyncs = replay([*CACHE, *SHORT], tmp_path, most=3, recoveries=2)
    for count in stages:
        assert count.tried > 40, count.fault
        assert count.lost == [], count.fault
    assert (fsyncs.tried, fsyncs.lost) == (28, [])


def test_an_fsync_that_no_stage_calls_counts_as_lost(tmp_path):
    (_, fsyncs) = replay([stage for stage in PIPELINES if stage.name == "export-features: a folder"], tmp_path, most=4)
    lost = " ".join(fsyncs.lost)
    assert "publish.new_folder" not in lost
    assert all(name in lost for name in ("checkpoints.keep", "catalog.remove", "publish.replacing"))
