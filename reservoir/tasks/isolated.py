"""Foreign files are read in a process of its own with limits: what a C library does not survive ends only that process.

The process answers one request at a time: a line of JSON in, a line of JSON and the bytes of an array out. It ends with
its caller, as its input ends then. Limits are of memory and of processor time, so that a busy machine changes nothing.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import numpy as np

from reservoir.errors import InputError

MEMORY = 2**30
"""Bytes that a library may take beside the array that is asked for, and as many again three times."""

SECONDS = 20
"""Processor time of a request, and a second more for each `BYTES_PER_SECOND`."""

BYTES_PER_SECOND = 2 * 10**7


class Isolated:
    """A file in the hands of ``answer(path, request)`` of a module of ours, in a process started when needed."""

    def __init__(self, module: str, path: Path):
        self._module, self._path, self._turn = module, path, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, **request: Any) -> Any:
        """Return what the module answers: JSON values or an array; its errors, and its death, are an `InputError`."""
        with self._turn:
            return self._ask(request)

    def _ask(self, request: dict[str, Any]) -> Any:
        if self._process is None or self._owner != os.getpid():  # not that of the process we were forked from
            self._process, self._owner = self._start(), os.getpid()
        process = self._process
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            header = json.loads(process.stdout.readline() or b"null")
            if header is None:
                raise BrokenPipeError
            if "error" in header:
                raise InputError(header["error"])
            if "value" in header:
                return header["value"]
            array = np.empty(header["shape"], np.dtype(header["dtype"]))
            stdout = cast(BufferedReader, process.stdout)
            if array.nbytes and stdout.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
                raise BrokenPipeError
            return array
        except BrokenPipeError:
            self._process = None
            raise InputError(
                f"{self._path}: reading it ended the process that did (damaged, or hostile: it took more than the "
                f"memory or time allowed, or crashed, code {process.wait()}); write the file again"
            ) from None

    def _start(self) -> subprocess.Popen[bytes]:
        package = Path(__file__).resolve().parents[2]
        # A file may name a filter that the HDF5 library would load as code.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "HDF5_PLUGIN_PRELOAD": "::",
        }
        code = f"from {__name__} import serve; from {self._module} import answer; serve(answer)"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        weakref.finalize(self, _end, process, os.getpid())
        return process


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
    process.kill()
    process.wait()


def serve(answer: Callable[[Path, dict[str, Any]], Any]) -> None:
    """Answer the requests that come in, in the process that `Isolated` started."""
    path = Path(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit(0)
    for line in sys.stdin.buffer:
        value: Any = None
        try:
            value = answer(path, json.loads(line))
            header = {"value": value}
            if isinstance(value, np.ndarray):
                value = np.ascontiguousarray(value)
                header = {"shape": value.shape, "dtype": value.dtype.str}
        except InputError as error:
            header = {"error": str(error)}
        # A damaged file makes a library raise nearly anything.
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            header = {"error": f"{path}: cannot be read ({type(error).__name__}: {said}); write the file again"}
        out.write(json.dumps(header).encode() + b"\n")
        if "shape" in header:
            out.write(value.reshape(-1).view(np.uint8).data)
        out.flush()


def limit(size: int) -> None:
    """Allow this process what reading an array of so many bytes may take, from now on."""
    if sys.platform == "linux":
        # Of data, not of addresses: a database may map far more of the latter than it has bytes.
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        memory = pages * resource.getpagesize() + MEMORY + 4 * size
        _set(resource.RLIMIT_DATA, memory)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + SECONDS + size // BYTES_PER_SECOND
    _set(resource.RLIMIT_CPU, seconds)


def _set(kind: int, value: int) -> None:
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))
