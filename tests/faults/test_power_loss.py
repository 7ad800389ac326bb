"""A power loss at any moment leaves the old or the new, and every fsync is needed for that; the campaign tries more."""

from tests.faults.power_loss import Replayer, Stage, Step, record, replay
from tests.faults.power_stages import CACHE, PIPELINES

SHORT = [stage for stage in (*CACHE, *PIPELINES) if stage.name in ("prepare", "reproduce: cells and tables")]


def text(root):
    path = root / "file"
    return path.read_text() if path.exists() else None


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
