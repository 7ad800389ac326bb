"""An entry: everything cached for one (task, reservoir), in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_cache import derived, verification
from reservoir_cache.errors import CacheError, Problem, repair_command
from reservoir_cache.locks import entry_locks, live_runs
from reservoir_cache.manifest import Manifest, is_sound, read_manifest
from reservoir_cache.publish import make_folder, refuse_links
from reservoir_cache.spec import FORMAT, Layout, Spec, check_name
from reservoir_cache.specfile import NAME as SPEC_FILE
from reservoir_cache.specfile import SpecFile, read_spec_file
from reservoir_cache.storing import store_block
from reservoir_cache.targets import publish_targets


@dataclass(frozen=True)
class Entry:
    """One folder of the cache; make it with ``Entry.create`` or ``Entry.open``.

    Parameters
    ----------
    path : Path
        The folder ``<root>/features/<task>/<name>-<key16>``.
    spec : Spec
        What it holds.
    layout : Layout
        How it is cut.
    made_with : mapping
        Host, library versions and the like; for people, not part of the key.
    """

    path: Path
    spec: Spec
    layout: Layout
    made_with: Mapping[str, Any] = field(compare=False)

    @classmethod
    def create(cls, root: Path, name: str, spec: Spec, layout: Layout, made_with: Mapping[str, Any]) -> Entry:
        """Open the entry of a specification, creating it if it is not there, and make it the task's last.

        An existing entry keeps its layout. Two processes may do this at once.

        Parameters
        ----------
        root : Path
            The cache.
        name : str
            Readable first part of the folder's name, like ``gpt2-random``.
        spec, layout, made_with
            As of ``Entry``.

        Raises
        ------
        CacheError
            If the existing entry is of another format version or damaged, or the folder cannot be written.
        """
        if spec.format != FORMAT:
            raise CacheError(f"specification: format is {spec.format}; this program writes format {FORMAT}")
        folder = Path(root) / "features" / spec.task["name"]
        path = folder / f"{check_name(name, 'entry name')}-{spec.key[:16]}"
        _refuse_links(path)
        try:
            make_folder(path)
        except OSError as error:
            raise CacheError(
                f"{path}: cannot be created ({error.strerror}); choose another folder with --cache"
            ) from error
        locks = entry_locks(path)
        with locks.run() as run, locks.mutex():
            if not (path / SPEC_FILE).exists():
                SpecFile(spec, spec.key, layout, made_with).write(path, run)
            entry = cls.open(path)
            if entry.key != spec.key:
                raise CacheError(f"{path}: holds key {entry.key}, not {spec.key}; remove it")
        locks.touch()
        return entry

    @classmethod
    def open(cls, path: Path) -> Entry:
        """Open an existing entry; writes nothing.

        Raises
        ------
        CacheError
            If it is no entry, of another format version, or its specification does not hash to its key.
        """
        path = Path(path)
        _refuse_links(path)
        found = read_spec_file(path)
        return cls(path, found.spec, found.layout, found.made_with)

    @property
    def key(self) -> str:
        """The key of the specification."""
        return self.spec.key

    @property
    def splits(self) -> list[str]:
        """The splits of the specification, sorted."""
        return sorted(self.spec.rows)

    def blocks(self, split: str) -> list[tuple[int, int]]:
        """Return the row ranges [low, high) of a split's blocks."""
        return self.layout.blocks(self._rows(split))

    def manifest(self, split: str) -> Manifest:
        """Return what exists of a split; an empty manifest if nothing does.

        Raises
        ------
        CacheError
            If the manifest is damaged or belongs elsewhere.
        """
        empty = Manifest(FORMAT, self.key, split, self._rows(split))
        try:
            found = read_manifest(self.path / split)
        except FileNotFoundError:
            return empty
        for name in ("format", "key", "split", "rows"):
            if getattr(found, name) != getattr(empty, name):
                raise CacheError(
                    f"{self.path / split / 'manifest.json'}: its {name} is {getattr(found, name)!r}, not "
                    f"{getattr(empty, name)!r}; {repair_command(self.key)}"
                )
        if max((shard.block for shard in found.shards), default=0) >= len(self.blocks(split)):
            raise CacheError(
                f"{self.path / split / 'manifest.json'}: lists a block too many; {repair_command(self.key)}"
            )
        return found

    def missing(self, split: str, columns: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Return the blocks that lack any of the columns, with those they lack; ask again after claiming a block."""
        manifest = self.manifest(split)
        present: dict[int, set[str]] = {}
        for shard in manifest.shards:
            if is_sound(self.path / split, shard):
                present.setdefault(shard.block, set()).update(shard.columns)
        wanted = tuple(dict.fromkeys(columns))
        lacking = {
            block: tuple(name for name in wanted if name not in present.get(block, ()))
            for block in range(len(self.blocks(split)))
        }
        return {block: names for block, names in lacking.items() if names}

    @contextmanager
    def claim(self, split: str, block: int) -> Iterator[bool]:
        """Try to take a block for this process: yields whether it could, at once.

        The claim ends with the ``with``, or, if the block was handed to a ``ShardWriter`` meanwhile, when it is on
        disk; it ends with the process in any case. After taking it, ask ``missing`` again: another run may have
        finished the block in between.

        Raises
        ------
        CacheError
            If the file system has no locks.
        """
        number, locks = self.block_number(split, block), entry_locks(self.path)
        with locks.run():
            taken = locks.claim(number)
            try:
                yield taken
            finally:
                if taken:
                    locks.release(number)

    def running(self) -> list[dict[str, Any]]:
        """Return host, pid and start of the runs at work on this entry now."""
        return live_runs(self.path)

    def set_rows(self, split: str, rows: int, targets: Mapping[str, NDArray]) -> None:
        """Write the labels, lengths and source row numbers of a split, unless they are there.

        Parameters
        ----------
        split : str
        rows : int
            Must be the specification's.
        targets : mapping
            ``y`` (rows, readout_tokens, outputs), ``lengths`` (rows,) and ``index`` (rows,), the source row numbers.

        Raises
        ------
        CacheError
            If a shape is wrong or the file cannot be written.
        """
        if rows != self._rows(split):
            raise CacheError(f"split {split}: {rows} rows given, but the specification has {self._rows(split)}")
        folder, locks = self.path / split, entry_locks(self.path)
        make_folder(folder)
        with locks.run() as run, locks.mutex():
            manifest = self.manifest(split)
            if manifest.targets is None or not is_sound(folder, manifest.targets):
                publish_targets(folder, manifest, targets, run).write(folder, run)

    def write_block(self, split: str, block: int, arrays: Mapping[str, NDArray[np.float32]]) -> int:
        """Write one shard with the given columns of a block; columns that it has already are left alone.

        Parameters
        ----------
        split : str
        block : int
        arrays : mapping of column to ndarray of shape (rows of the block, tokens, width), float32

        Returns
        -------
        int
            Bytes written; 0 if every column was there.

        Raises
        ------
        CacheError
            If a shape or value cannot be stored, another process has the block, or the disk fails.
        """
        number, locks = self.block_number(split, block), entry_locks(self.path)
        if not locks.share(number):
            raise CacheError(f"{self.path}: block {block} of {split} is being written by another run; wait for it")
        try:
            make_folder(self.path / split)
            with locks.run() as run, locks.writing:
                return store_block(self, split, block, arrays, run)
        finally:
            locks.release(number)

    def save_arrays(self, name: str, arrays: Mapping[str, NDArray], meta: Mapping[str, Any]) -> None:
        """Keep derived arrays, such as moments, under a name; what was there is replaced.

        Parameters
        ----------
        name : str
        arrays : mapping of str to ndarray
            Numbers or booleans, of any shape; names may contain '/'.
        meta : mapping
            JSON values.
        """
        locks = entry_locks(self.path)
        with locks.run() as run, locks.mutex():
            derived.save(self.path / derived.FOLDER, name, arrays, meta, run)

    def load_arrays(self, name: str) -> tuple[dict[str, NDArray], dict[str, Any]] | None:
        """Return the arrays and the meta kept under a name, or None if they are absent or damaged."""
        return derived.load(self.path / derived.FOLDER, name)

    def verify(self, columns: Iterable[str] | None = None) -> list[Problem]:
        """Read every file (of the given columns, if any) and return everything that is wrong."""
        return verification.verify(self, columns)

    def repair(self, problems: Iterable[Problem] | None = None) -> list[Problem]:
        """Take what is damaged out of the manifests and delete it, so that a rerun of extract makes exactly that again.

        Parameters
        ----------
        problems : iterable of Problem, optional
            What ``verify`` found; by default it is run.

        Returns
        -------
        list of Problem
            What was repaired.
        """
        return verification.repair(self, self.verify() if problems is None else problems)

    def bytes(self) -> int:
        """Return the size of all files of the entry."""
        total = 0
        for path in self.path.rglob("*"):
            with suppress(FileNotFoundError):  # a run at work takes its temporary files away
                total += path.stat().st_size if path.is_file() else 0
        return total

    def block_number(self, split: str, block: int) -> int:
        """Return the number of a block in the whole entry: splits in sorted order, blocks in order within each.

        Raises
        ------
        CacheError
            If there is no such block.
        """
        count = len(self.blocks(split))
        if not 0 <= block < count:
            raise CacheError(f"{self.path}: split {split} has blocks 0 to {count - 1}, not {block}")
        return block + sum(len(self.blocks(name)) for name in self.splits if name < split)

    def _rows(self, split: str) -> int:
        if split not in self.spec.rows:
            raise CacheError(f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}")
        return self.spec.rows[split]


def _refuse_links(path: Path) -> None:
    """Refuse an entry that a link leads to or out of."""
    refuse_links(path, *path.parents[:2])
    if path.is_dir():
        refuse_links(*path.iterdir())
