"""Helpers of many tests: comparisons of files and tensors, programs in forked processes, and streams of a GPU."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from torch.utils._python_dispatch import TorchDispatchMode

from reservoir.errors import InputError


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """Return the bytes of every file below a folder by its path in it."""
    files = (path for path in sorted(folder.rglob(pattern)) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def assert_same_bits(first, second):
    """Assert that two runs have equal tensors under equal names."""
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name


def outcome(action: Callable[..., object], *arguments: object, **options: object) -> str:
    """Return the one line of an `InputError`, or "" after success."""
    try:
        action(*arguments, **options)
    except InputError as error:
        assert "\n" not in str(error) and str(error)
        return str(error)
    return ""


# Commands run in processes forked from one that has imported their modules, so that they need not import them again.
# Tests of imports, of the end of a process, or of environment variables that are read on import need `subprocess`.

COMMAND = "import sys; from reservoir_pipelines.cli import run; sys.exit(run(sys.argv[1:]))"
IMPORTED = ["torch", "safetensors.torch", "sklearn.datasets", "sklearn.linear_model", "matplotlib.backends.backend_agg"]
IMPORTED += ["reservoir.backbones.gpt2", "reservoir_cache.writer"]
IMPORTED += [f"reservoir_pipelines.{name}" for name in ("cli", "preparation.prepare", "extraction.extract")]
IMPORTED += [f"reservoir_pipelines.{name}" for name in ("fitting.fit", "training.train", "paper.pretrain")]

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(IMPORTED)


def pair(program: str, *arguments: object, forked: bool = False) -> list[tuple[int | None, str, str]]:
    """Run a program in two processes, as a launcher would; return their exit codes, stdout and stderr.

    They use a store of this process, because a port that is free now may be taken when one of them opens it.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    if forked:
        return [child.ended() for child in [Child(program, *arguments, **shared, RANK=rank) for rank in "01"]]
    command = [sys.executable, "-c", program, *map(str, arguments)]
    both = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": rank}, text=True, stdout=-1, stderr=-1)
        for rank in "01"
    ]
    answers = [process.communicate() for process in both]
    return [(process.returncode, out, err) for process, (out, err) in zip(both, answers, strict=True)]


class Child:
    """A program in a forked process, with arguments as for ``python -c``."""

    def __init__(self, program: str, *arguments: object, **environment: str) -> None:
        self._folder = Path(tempfile.mkdtemp())
        words = [str(a) for a in arguments]
        given = (program, words, {**os.environ, **environment}, Path.cwd(), self._folder)
        self._process = _fork.Process(target=_run, args=given)
        self._process.start()

    def running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()

    def ended(self) -> tuple[int | None, str, str]:
        """Wait for the process; return its exit code (negative: the signal that ended it), stdout and stderr."""
        self._process.join()
        out, err = ((self._folder / name).read_text() for name in ("out", "err"))
        return self._process.exitcode, out, err


def _run(program: str, arguments: list[str], environment: Mapping[str, str], folder: Path, out: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(out / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})


# Streams and events that behave as those of a GPU, on the CPU.


class Stream(TorchDispatchMode):
    """A stream of a GPU that makes its copies as late as it may: when an event after them is waited for."""

    def __init__(self, device=None):
        super().__init__()
        self.work = []

    def wait_event(self, event):
        self.work.append(event.synchronize)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function._schema.name != "aten::copy_":
            return function(*arguments, **(options or {}))
        self.work.append(lambda: function(*arguments, **(options or {})))
        return arguments[0]


class Event:
    """An event of such a stream."""

    def __init__(self, blocking=False):
        self.stream, self.place = None, 0

    def record(self, stream):
        self.stream, self.place = stream, len(stream.work)

    def synchronize(self):
        assert self.stream is not None, "an event was waited for that was never recorded"
        for number in range(self.place):
            self.stream.work[number]()
            self.stream.work[number] = lambda: None
