"""Power loss: record what a stage does to a folder, and build the folders that a crash may leave.

POSIX promises little. What was written to a file is on disk only after an fsync of the file; that a name exists, was
removed or leads to another file is on disk only after an fsync of its folder. Before that, any subset of the changes
may be on disk: a crash may keep a rename and lose the content of the renamed file, or keep the second of two renames
alone. A rename itself is atomic, as every journaling file system makes it. Unsynced content may be absent, cut at a
multiple of 512 bytes, zero, or complete.

`Recorder` compares the folder before and after every call that changes it, so it also sees what libraries write
without Python. `Trace.crashes` yields these states: the content of every file by its path.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from unittest import mock

from tests.faults.rounds import Count

SECTOR = 512
CHANGES = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link")
PACKAGES = ("reservoir_cache", "reservoir_pipelines")

State = dict[str, bytes | None]
"""The content of every file by its path below the folder; None for folders."""


@dataclass(frozen=True)
class Written:
    """The new content of a file."""

    node: int
    content: bytes


@dataclass(frozen=True)
class Named:
    """Names changed in one step: each (folder, name) now refers to a node, or to None."""

    names: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Synced:
    """An fsync of a file's content or of a folder's names; ``site`` is the line that called it and which of them."""

    node: int
    site: str


@dataclass(frozen=True)
class Returned:
    """The end of a step of the stage: the files that it published must survive from now on."""

    durable: bool


@dataclass
class Trace:
    """The events in a folder, in order, beginning with those that describe its initial content."""

    root: int
    kinds: dict[int, bool] = field(default_factory=dict)  # by node: whether it is a folder
    events: list[Written | Named | Synced | Returned] = field(default_factory=list)
    start: int = 0  # number of events that describe the initial content, which is on disk

    def sites(self) -> list[str]:
        return sorted({event.site for event in self.events if isinstance(event, Synced)})

    def without(self, site: str) -> Trace:
        events = [event for event in self.events if not (isinstance(event, Synced) and event.site == site)]
        return Trace(self.root, self.kinds, events, self.start)

    def moments(self) -> range:
        """Return the moments at which the power may fail, as numbers of preceding events."""
        return range(self.start, len(self.events) + 1)

    def actual(self, moment: int) -> State:
        return self._state([e for e in self.events[:moment] if isinstance(e, Written | Named)])

    def crashes(self, moment: int, draw: random.Random, most: int) -> Iterator[State]:
        """Yield states that a crash after ``moment`` events may leave: a sample of at most four times ``most``.

        They are prefixes, states with one or two lost changes or one kept change, and states drawn at random.
        """
        changes = [(n, e) for n, e in enumerate(self.events[:moment]) if isinstance(e, Written | Named)]
        safe = self._safe(moment)
        pending = [n for n, _ in changes if n not in safe]
        synced = {e.node: e.content for n, e in changes if n in safe and isinstance(e, Written)}
        variants = {n: self._variants(n, synced) for n in pending}
        losses = [dict.fromkeys(pending[end:]) for end in range(len(pending) + 1)]
        losses += [{n: variant} for n in pending for variant in variants[n]]
        losses += [{other: None for other in pending if other != n} for n in pending]
        pairs = list(itertools.combinations(pending, 2))
        for pair in draw.sample(pairs, min(len(pairs), most)):
            losses.append({n: draw.choice(variants[n]) for n in pair})
        losses += [{n: draw.choice(variants[n]) for n in pending if draw.random() < 0.5} for _ in range(most)]
        for lost in draw.sample(losses, min(len(losses), 4 * most)):
            kept = list[Written | Named]()
            for n, event in changes:  # without the lost changes, and with the content of the torn ones
                if n not in lost:
                    kept.append(event)
                elif (content := lost[n]) is not None and isinstance(event, Written):
                    kept.append(Written(event.node, content))
            yield self._state(kept)

    def _safe(self, moment: int) -> set[int]:
        """Return the numbers of the changes that are on disk: those before an fsync of their node or folder."""
        safe, waiting = set(range(self.start)), dict[int, list[int]]()
        for n in range(self.start, moment):
            event = self.events[n]
            if isinstance(event, Synced):
                safe.update(waiting.pop(event.node, []))
            elif not isinstance(event, Returned):
                node = event.node if isinstance(event, Written) else event.names[0][0]
                waiting.setdefault(node, []).append(n)
        return safe

    def _variants(self, number: int, synced: dict[int, bytes]) -> list[bytes | None]:
        """Return what a crash may leave of a change: nothing, or for content also zeros and torn sectors."""
        event = self.events[number]
        if not isinstance(event, Written) or not event.content:
            return [None]
        old = synced.get(event.node, b"")
        kept = old if event.content.startswith(old) else b""  # only the appended part is not on disk
        new = event.content[len(kept) :]
        cut = max(len(new) // 2 // SECTOR, min(1, len(new) // (SECTOR + 1))) * SECTOR
        zeros = bytes(len(new))
        torn = (zeros, new[:cut], new[:cut] + zeros[cut:], zeros[:cut] + new[cut:])
        return [None, *(kept + content for content in dict.fromkeys(torn) if content != new)]

    def _state(self, changes: list[Written | Named]) -> State:
        names: dict[int, dict[str, int]] = {}
        contents: dict[int, bytes] = {}
        for change in changes:
            if isinstance(change, Written):
                contents[change.node] = change.content
            else:
                for folder, name, node in change.names:
                    if node is None:
                        names.get(folder, {}).pop(name, None)
                    else:
                        names.setdefault(folder, {})[name] = node
        found: State = {}

        def walk(folder: int, path: str) -> None:
            for name, node in names.get(folder, {}).items():
                if self.kinds[node]:
                    found[path + name] = None
                    walk(node, f"{path}{name}/")
                else:
                    found[path + name] = contents.get(node, b"")

        walk(self.root, "")
        return found


class Recorder:
    """Records what happens in a folder while it is used as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._guard = threading.RLock()
        self._numbers = {folder.stat().st_ino: 0}  # the node of each inode
        self._tree: dict[tuple[int, str], int] = {}
        self._contents: dict[int, bytes] = {}
        self.trace = Trace(0, {0: True})
        self._look()
        self.trace.start = len(self.trace.events)

    @contextmanager
    def recording(self) -> Iterator[Trace]:
        """Record all changes of this process within the context."""
        patches = [mock.patch.object(os, name, self._change(getattr(os, name))) for name in CHANGES]
        patches.append(mock.patch.object(os, "fsync", self._fsync(os.fsync)))
        try:
            for patch in patches:
                patch.start()
            yield self.trace
        finally:
            for patch in patches:
                patch.stop()
            self._look()

    def returned(self, *, durable: bool) -> None:
        """Note that a step of the stage has returned."""
        with self._guard:
            self._look()
            self.trace.events.append(Returned(durable))

    def _change(self, function: Callable[..., object]) -> Callable[..., object]:
        def changing(*args: object, **kwargs: object) -> object:
            with self._guard:
                self._look()
                try:
                    return function(*args, **kwargs)
                finally:
                    self._look()

        return changing

    def _fsync(self, function: Callable[..., None]) -> Callable[..., None]:
        def syncing(handle: int) -> None:
            with self._guard:
                self._look()
                number = self._numbers.get(os.fstat(handle).st_ino)
                if number is not None:
                    # One line may sync files and their folder: these are two sites.
                    what = "a folder" if self.trace.kinds[number] else "a file"
                    self.trace.events.append(Synced(number, f"{call_site()}, of {what}"))
                # A real fsync would only take time.

        return syncing

    def _node(self, inode: int, *, folder: bool) -> int:
        number = self._numbers.get(inode)
        if number is None or self.trace.kinds[number] != folder:
            number = self._numbers[inode] = len(self.trace.kinds)
            self.trace.kinds[number] = folder
        return number

    def _look(self) -> None:
        tree, files = self._scan()
        gone = {key: node for key, node in self._tree.items() if tree.get(key) != node}
        new = {key: node for key, node in tree.items() if self._tree.get(key) != node}
        moved = {node: key for key, node in gone.items()}
        events = self.trace.events
        for key, node in new.items():
            # The content of a file that is seen for the first time was written after its creation.
            names, old = [(*key, node)], moved.get(node)
            if old in gone and old[0] == key[0]:  # between two folders: two changes with an fsync each
                del gone[old]
                names.insert(0, (*old, None))
            gone.pop(key, None)
            events.append(Named(tuple(names)))
        events += [Named(((*key, None),)) for key in gone]
        for node, path in files.items():
            content = path.read_bytes()  # modification times are too coarse to detect changes
            if content != self._contents.get(node, b""):
                events.append(Written(node, content))
                self._contents[node] = content
        self._tree = tree
        present = set(tree.values())
        for inode in [inode for inode, node in self._numbers.items() if node and node not in present]:
            del self._numbers[inode]  # the system may reuse the inode

    def _scan(self) -> tuple[dict[tuple[int, str], int], dict[int, Path]]:
        tree: dict[tuple[int, str], int] = {}
        files: dict[int, Path] = {}

        def walk(folder: Path, number: int) -> None:
            for item in sorted(os.scandir(folder), key=lambda each: each.name):
                directory = item.is_dir(follow_symlinks=False)
                node = self._node(item.stat(follow_symlinks=False).st_ino, folder=directory)
                tree[number, item.name] = node
                if directory:
                    walk(Path(item.path), node)
                else:
                    files[node] = Path(item.path)

        walk(self.folder, self.trace.root)
        return tree, files


def call_site() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None:
        package, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if package.startswith(PACKAGES) and name != "sync":
            return f"{package}.{name}, line {frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


@dataclass(frozen=True)
class Step:
    """A part of a stage: its function of the folder, and whether its results must survive after it has returned."""

    run: Callable[[Path], object]
    durable: bool = True


@dataclass(frozen=True)
class Stage:
    """A stage that publishes files: ``prepare`` makes its initial folder, and ``outcome`` reads the folder.

    ``outcome`` must return equal values for states that a user would call equal, and must not raise an error.
    """

    name: str
    steps: tuple[Step, ...]
    outcome: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda _folder: None
    recovers: bool = False  # whether running the steps again on a crashed folder must give the final outcome


def record(stage: Stage, folder: Path) -> Trace:
    """Run a stage once in a new folder, and return the trace."""
    folder.mkdir()
    stage.prepare(folder)
    recorder = Recorder(folder)
    with recorder.recording() as trace:
        for step in stage.steps:
            step.run(folder)
            recorder.returned(durable=step.durable)
    return trace


class Replayer:
    """Opens crash states of a stage; equal states, even of different traces, only once."""

    def __init__(self, stage: Stage, work: Path) -> None:
        self.stage, self._work = stage, work
        self._outcomes: dict[str, str] = {}
        self._blobs: dict[bytes, Path] = {}
        (work / "blobs").mkdir(parents=True, exist_ok=True)

    def replay(self, trace: Trace, *, most: int = 64, stop: bool = False, recoveries: int = 0) -> Count:
        """Open the states that crashes may leave, ``most`` per moment; with ``stop``, end at the first wrong one."""
        found, draw = Count(f"power loss in {self.stage.name}"), random.Random(0)
        seen = set[tuple[str, frozenset[str]]]()
        legal, last = set[str](), ""
        candidates = list[State]()
        for moment in trace.moments():
            event = trace.events[moment - 1] if moment > trace.start else None
            actual = self.open(trace.actual(moment))
            if isinstance(event, Returned) and event.durable:
                legal = set()  # the state before the step must not come back
            legal.add(actual)
            if isinstance(event, Synced):
                continue  # has no states that the previous moment did not have
            for state in trace.crashes(moment, draw, most):
                key = digest(state), frozenset(legal)
                if key in seen:
                    continue
                seen.add(key)
                found.tried += 1
                candidates.append(state)
                outcome = self.open(state)
                if outcome not in legal:
                    found.lost.append(f"{self.stage.name}, after {repr(event)[:120]}: {outcome[:300]}")
                    if stop:
                        return found
            last = actual
        for state in draw.sample(candidates, min(recoveries, len(candidates))) if self.stage.recovers else ():
            folder = self.make(state, copy=True)
            for step in self.stage.steps:
                step.run(folder)
            if (outcome := repr(self.stage.outcome(folder))) != last:
                found.lost.append(f"{self.stage.name}, run again after a crash: {outcome[:300]}")
        return found

    def open(self, state: State) -> str:
        key = digest(state)
        if key not in self._outcomes:
            folder = self.make(state)
            try:
                self._outcomes[key] = repr(self.stage.outcome(folder))
            except Exception as error:
                self._outcomes[key] = f"error: {error!r}"
            shutil.rmtree(folder, ignore_errors=True)
        return self._outcomes[key]

    def make(self, state: State, *, copy: bool = False) -> Path:
        """Make the folder of a state, always at the same path; unless ``copy``, its files are read-only links."""
        folder = self._work / "state"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, content in state.items():
            place = folder / path
            if content is None:
                place.mkdir(exist_ok=True)
            elif copy or not content:
                place.write_bytes(content)  # empty files are locks, which must be separate files
            else:
                if content not in self._blobs:
                    self._blobs[content] = self._work / "blobs" / str(len(self._blobs))
                    self._blobs[content].write_bytes(content)
                os.link(self._blobs[content], place)
        return folder


def fsync_lines() -> Iterator[str]:
    """Yield the lines of our packages that call `sync`, named as `call_site` names them."""
    for package in PACKAGES:
        root = Path(import_module(package).__file__ or "").parent
        for path in sorted(root.rglob("*.py")):
            module = ".".join([package, *path.relative_to(root).with_suffix("").parts])
            text = path.read_text()
            if "sync(" not in text:
                continue
            functions = {}  # the innermost function of each call: a later one of the walk is inside an earlier one
            for function in ast.walk(ast.parse(text)):
                if isinstance(function, ast.FunctionDef):
                    functions |= {node: function.name for node in ast.walk(function) if isinstance(node, ast.Call)}
            for call, name in functions.items():
                if isinstance(call.func, ast.Name) and call.func.id == "sync":
                    yield f"{module}.{name}, line {call.lineno}"


def replay(stages: Sequence[Stage], folder: Path, most: int, recoveries: int = 10) -> Iterator[Count]:
    """Open the states that a power loss may leave in each stage; then remove each fsync, which must break the stage.

    ``most`` limits the states per moment, and ``recoveries`` the states on which the same command is run again. An
    fsync in our packages that no stage calls counts as lost, because its removal would not be noticed.
    """
    called, removed = set[str](), Count("fsync removed, and noticed by the replay")
    for number, stage in enumerate(stages):
        work = folder / f"power-{number}"
        work.mkdir(parents=True)
        trace, replayer = record(stage, work / "stage"), Replayer(stage, work)
        yield replayer.replay(trace, most=most, recoveries=recoveries)
        called.update(trace.sites())
        for site in trace.sites():
            # The states that a missing fsync makes possible may be few, so more are tried if the first do not show it.
            without = trace.without(site)
            noticed = any(replayer.replay(without, most=count, stop=True).lost for count in (most, 16))
            removed.add(noticed, f"{stage.name}: {site}")
    for line in fsync_lines():
        if not any(site.startswith(f"{line}, of ") for site in called):
            removed.add(sound=False, where=f"no stage: {line}")
    yield removed


def digest(state: State) -> str:
    whole = hashlib.sha256()
    for path, content in sorted(state.items()):
        whole.update(f"{path}\0{'folder' if content is None else len(content)}\0".encode())
        whole.update(content or b"")
    return whole.hexdigest()
