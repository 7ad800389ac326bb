"""What the operating system refuses: one line with the path and what to do, and never a traceback."""

import errno
import os

import pytest
from reservoir_pipelines.cli import run
from reservoir_pipelines.preparation import prepare

from tests.processes import COMMAND, Child

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70"


def one_line(capfd):
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("reservoir: ")
    return err


@pytest.mark.parametrize("command", ["prepare", "extract", "train"])
def test_a_cache_that_cannot_be_made(tmp_path, capfd, command):
    (tmp_path / "file").write_text("no folder")
    options = [] if command == "prepare" else ["--init", "random", "--backbone", TINY, "--device", "cpu"]
    for place, why in (
        ("/proc/nowhere", "No such file or directory"),
        (tmp_path / "file" / "cache", "Not a directory"),
    ):
        assert run([command, "bit-xor", *options, "--cache", str(place)]) == 2
        line = one_line(capfd)
        assert str(place) in line
        assert why in line


def test_a_cache_that_is_a_file(tmp_path, capfd):
    (tmp_path / "file").touch()
    assert run(["cache", "list", "--cache", str(tmp_path / "file")]) == 2
    assert one_line(capfd).endswith("file is not a folder; name another with --cache DIR or RESERVOIR_CACHE\n")


WIDE = "gpt2:n_layer=2,n_embd=64,n_head=2,n_positions=70"
FEW = ["--param", "train_rows=64", "--param", "valid_rows=20", "--param", "test_rows=20"]


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (["prepare", "digits"], 4_000),
        (["train", "bit-xor", *FEW, "--steps", "2", "--init", "random", "--backbone", WIDE, "--train", "all"], 60_000),
    ],
)
def test_a_disk_that_takes_no_more(tmp_path, arguments, most):
    """HDF5 would crash the process after a failed write; a limit on the size of files stands in for a full disk."""
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); {COMMAND}"
    )
    code, out, err = Child(limited, *arguments, "--cache", tmp_path).ended()
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("reservoir: File too large; raise the limit")
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.part"))
    assert run([*arguments, "--cache", str(tmp_path)]) == 0


def test_a_picture_that_cannot_be_written_is_told_by_its_folder(capfd):
    assert run(["backbone", TINY, "--init", "random", "--out", "/proc/nowhere/card.png"]) == 2
    assert one_line(capfd) == "reservoir: /proc/nowhere: No such file or directory; check the path\n"


@pytest.mark.parametrize(
    ("number", "path", "code", "remedy"),
    [
        (errno.EACCES, "/some/place", 2, "permissions"),
        (errno.EROFS, "/some/place", 2, "can be written"),
        (errno.EISDIR, "/some/place", 2, "not a folder"),
        (errno.ENOSPC, "/some/place", 1, "make room"),
        (errno.ENOSPC, None, 1, "make room"),  # a write names no path
        (errno.EIO, None, 1, "check the disk"),
        (errno.EBUSY, "/some/place", 1, "fix it"),
    ],
)
def test_the_line_and_the_exit_code_of_an_error(monkeypatch, capfd, number, path, code, remedy):
    def fails(**_settings):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(prepare, "task_table", fails)
    assert run(["tasks"]) == code
    line = one_line(capfd)
    assert line.startswith(f"reservoir: {path}: " if path else f"reservoir: {os.strerror(number)}")
    assert os.strerror(number) in line
    assert remedy in line


@pytest.mark.parametrize("error", [OSError("no number"), OSError(errno.EBADF, "Bad file descriptor")])
def test_an_error_that_no_path_explains_keeps_its_traceback(monkeypatch, error):
    def fails(**_settings):
        raise error

    monkeypatch.setattr(prepare, "task_table", fails)
    with pytest.raises(OSError, match=str(error.args[-1])):
        run(["tasks"])
