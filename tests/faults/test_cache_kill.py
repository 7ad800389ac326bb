"""The cache against kill -9 at any moment: the bytes on disk are always those of an undisturbed run."""

import os
import random
import signal
import sys

from reservoir_cache import repair, write_block, write_targets

from tests.cache.conftest import SHAPES, digest, features, make_entry, targets


def extract(root):
    """Write what is missing of an entry, as an extraction does."""
    entry = make_entry(root)
    repair(entry)
    for split, rows in entry.spec.rows.items():
        write_targets(entry, split, targets(rows))
        for block in entry.missing(split, SHAPES):
            with entry.claim(split, block) as mine:
                assert mine
                write_block(entry, split, block, features(entry, split, block))


def killed_at(root, moment):
    """Extract in a forked process, which kills itself when so many lines of the package have run; return its end."""
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
        sys.settrace(lambda frame, *_: lines if "reservoir_cache" in frame.f_code.co_filename else None)
        extract(root)
        status = 0
    finally:
        os._exit(status)


def test_killed_at_any_line_and_rerun_the_bytes_are_those_of_an_undisturbed_run(tmp_path):
    extract(tmp_path / "whole")
    whole, draw = digest(tmp_path / "whole"), random.Random(7)
    assert len(whole) == 1 + 3 + 1 + 2 + 2  # the specification, shards of both splits, labels and manifests
    assert killed_at(tmp_path / "short", 3000) == -signal.SIGKILL
    for number in range(10):
        root = tmp_path / str(number)
        ends = [killed_at(root, draw.randrange(1, 3000)), killed_at(root, draw.randrange(1, 1500))]
        assert set(ends) <= {0, -signal.SIGKILL} and ends[0] != 0  # the second may come after the end
        extract(root)
        assert digest(root) == whole, number
