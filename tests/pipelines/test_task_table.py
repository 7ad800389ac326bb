import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tasks"))
import samples
from reservoir_pipelines import prepare
from reservoir_pipelines.preparation.prepare import task_table

from reservoir.tasks import TASKS


def test_every_task_says_where_its_data_is(cache, tmp_path, monkeypatch):
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    table = {row["task"]: row for row in task_table()}
    assert list(table) == list(TASKS)
    for name in ("bit-memory", "bit-xor", "listops", "digits"):
        assert table[name]["data"] == "generated" and table[name]["remedy"] == ""
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar10-lra", "homology"):
        assert table[name]["data"] == "missing" and "--data DIR" in table[name]["remedy"]
    assert "--download" in table["mnist"]["remedy"] and "--download" not in table["homology"]["remedy"]
    assert table["mnist"]["input"] == "16 values" and table["listops"]["input"] == "16 symbols"
    assert table["bit-memory"]["labels_per_row"] == 1000 and table["listops"]["splits"]["test"] == 2000


def test_data_is_listed_as_here_then_as_prepared(cache, tmp_path, monkeypatch):
    samples.mnist_files(tmp_path)
    row = {row["task"]: row for row in task_table(tmp_path)}["mnist"]
    assert (row["data"], row["splits"]) == ("here", None)
    prepared = prepare("mnist", data=tmp_path)
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    row = {row["task"]: row for row in task_table()}["mnist"]
    assert (row["data"], row["splits"], row["remedy"]) == ("prepared", prepared.rows, "")
