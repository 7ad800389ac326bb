"""`cache` lists and removes what is stored; `doctor` finds what is broken and names a remedy."""

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from reservoir_pipelines import extract, fit, train

ONE_BLOCK = "mini:n_layer=1,n_embd=16,n_head=2"
SMALL = {"backbone": ONE_BLOCK, "init": "random", "limit": 60, "layers": "final", "pool": "mean"}


@pytest.fixture
def listed(call, answer):
    def listing():
        return answer("cache", "list"), call("cache", "list")[1]

    return listing


def test_readouts_runs_and_prepared_data_are_listed_and_removed(answer, cache, listed):
    extraction = extract("digits", **SMALL)
    fit(extraction)
    train("digits", backbone=ONE_BLOCK, init="random", limit=60, steps=1)
    found = [folder for kind in ("readouts", "runs", "prepared") for folder in cache.glob(f"{kind}/*/*")]
    kept = [str(folder.relative_to(cache)) for folder in found]
    assert len(kept) == 3
    for name in kept:
        assert name in listed()[1]
        assert answer("cache", "remove", name)["removed"] == str(cache / name)
        assert name not in listed()[1]
        assert not (cache / name).exists()
    assert [each["entry"] for each in listed()[0]] == [str(extraction.entry)]


def test_removing_a_task_names_the_entry_that_it_selects(call, cache, listed):
    first, last = (extract("digits", **SMALL, seed=seed).entry for seed in (0, 1))
    _, out, _ = call("cache", "remove", "digits")
    assert str(last) in out and str(first) not in out
    assert [each["entry"] for each in listed()[0]] == [str(first)]


@pytest.fixture
def two_entries(cache):
    """Return an entry last used 40 days ago and one used just now."""
    old, new = (extract("digits", **SMALL, seed=seed).entry for seed in (0, 1))
    long_ago = (datetime.now(UTC) - timedelta(days=40)).timestamp()
    os.utime(old / "lock", (long_ago, long_ago))
    return old, new


def test_prune_removes_old_entries_and_keeps_a_size(answer, refusal, two_entries):
    old, new = two_entries
    assert answer("cache", "prune", "--older", "30d", "--dry-run")["would_remove"] == [str(old)] and old.exists()
    assert answer("cache", "prune", "--older", "30d", "--yes")["removed"] == [str(old)] and not old.exists()
    assert answer("cache", "prune", "--keep", "20GB")["removed"] == []
    assert answer("cache", "prune", "--keep", "1kB", "--yes")["removed"] == [str(new)]
    for wrong in ((), ("--older", "soon"), ("--keep", "much"), ("--keep=-5GB",), ("--keep", "GB")):
        refusal("cache", "prune", *wrong)


def test_prune_removes_nothing_without_a_yes_where_nobody_can_be_asked(refusal, two_entries):
    err = refusal("cache", "prune", "--keep", "1kB")
    assert "2 entries" in err and "--yes" in err
    assert all(entry.exists() for entry in two_entries)


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0), ("\x04", 130)], ids=["no", "yes", "Ctrl-D"])
def test_prune_asks_on_a_terminal(cache, two_entries, answer, code):
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "reservoir_pipelines", "cache", "prune", "--older", "30d"]
    process = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal)
    os.write(master, answer.encode())
    assert process.wait() == code
    shown = os.read(master, 10_000).decode()
    assert two_entries[0].name in shown and "Remove 1 entries" in shown and "Traceback" not in shown
    assert two_entries[0].exists() == (code != 0) and two_entries[1].exists()


def test_copy_takes_an_entry_to_a_url_and_back_into_another_cache(answer, call, cache, tmp_path):
    entry, url, other = extract("digits", **SMALL).entry, f"file://{tmp_path}/share", tmp_path / "other"
    sent = answer("cache", "copy", "digits", url)
    assert (sent["entry"], sent["url"]) == (str(entry), f"{url}/digits/{entry.name}") and sent["files"] > 2
    code, out, err = call("cache", "copy", url, "digits", "--cache", other)
    assert code == 0 and str(other / "features" / "digits" / entry.name) in out, err
    for name in (entry.name, tmp_path / "digits"):  # the task of own data may be named by its path
        assert answer("cache", "copy", url, name, "--cache", other)["files"] == 0
    assert answer("cache", "verify", "--cache", other) == {"entries": 1, "problems": []}
    tables = []
    for root in (cache, other):
        answer("fit", "digits", "--cache", root)
        tables += [table.read_text() for table in root.glob("readouts/*/*/results.csv")]
    assert len(tables) == 2 and tables[0] == tables[1]


def test_copy_refuses_what_it_cannot_copy_without_showing_a_password(refusal, cache, tmp_path):
    extract("digits", **SMALL)
    url = "ftp://user:SECRET@nowhere.invalid/a"
    for arguments in (
        ("digits", "elsewhere"),
        (url, url),
        ("digits", url),
        (url, "digits"),
        ("digits", "memory://user:SECRET@bucket"),
        ("digits", "nothing://user:SECRET@bucket"),
        ("digits", "file:///tmp", url),
        ("no-such-task", url),
        ("memory://nowhere", "digits"),
    ):
        assert "SECRET" not in refusal("cache", "copy", *arguments)


def test_doctor_finds_nothing_wrong_with_a_working_machine(cache, answer):
    found = {finding["what"]: finding for finding in answer("doctor")}
    assert {"python", "device", "precision", "cache", "disk", "entries", "data", "extras"} <= found.keys()
    assert not any(finding["remedy"] for finding in found.values())


def test_doctor_names_a_cache_that_cannot_be_made(call, monkeypatch):
    monkeypatch.setenv("RESERVOIR_CACHE", "/proc/nowhere")
    code, out, _ = call("doctor")
    assert code == 1 and "/proc/nowhere: [Errno 2]" in out and "default" not in out


def test_doctor_finds_a_damaged_entry_and_its_remedy_works(cache, call):
    entry = extract("digits", **SMALL).entry
    manifest = entry / "train" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    code, out, _ = call("doctor", "--json")
    wrong = [finding for finding in json.loads(out) if finding["remedy"]]
    assert code == 1 and len(wrong) == 1
    assert str(manifest) in wrong[0]["found"]
    code, out, _ = call("cache", "verify", "--json")
    assert (code, [problem["path"] for problem in json.loads(out)["problems"]]) == (1, [str(manifest)])
    assert call(*wrong[0]["remedy"].split()[1:])[0] == 0
    extract("digits", **SMALL)
    assert call("doctor")[0] == 0
    (entry / "spec.json").write_text("{")
    code, out, _ = call("doctor")
    assert code == 1 and f"reservoir cache remove {entry}" in out
    other = entry.rename(entry.with_name("a; echo"))  # as an entry of another person may be called
    assert f"reservoir cache remove '{other}'" in call("doctor")[1]
