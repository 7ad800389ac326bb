"""An entry: everything cached for one (task, reservoir), in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reservoir_cache.locks import entry_locks, live_runs, may_write, touch
from reservoir_cache.manifest import Manifest, is_sound, page_name, page_of, read_page
from reservoir_cache.publish import CacheError, make_folder, publish_json, refuse_links, repair_command
from reservoir_cache.spec import FORMAT, SPEC_FILE, Layout, Spec, check_name, read_spec

MOST_BLOCKS = 1_000_000


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

    def __post_init__(self) -> None:
        """Refuse more blocks than can be listed: a file may claim any number."""
        if sum(map(self.layout.count, self.spec.rows.values())) > MOST_BLOCKS:
            raise CacheError(
                f"{self.path / SPEC_FILE}: {sum(self.spec.rows.values()):,} rows in blocks of "
                f"{self.layout.block_rows:,} are more than {MOST_BLOCKS:,} blocks; extract fewer rows (--limit)"
            )

    @classmethod
    def create(cls, root: Path, name: str, spec: Spec, layout: Layout, made_with: Mapping[str, Any]) -> Entry:
        """Open the entry of a specification, creating it if it is not there, and make it the task's last.

        Within ``untracked`` it does not become the last.

        An existing entry keeps its layout, and may be one that this user can only read. Two processes may do this at
        once.

        Parameters
        ----------
        root : Path
            The cache.
        name : str
            Readable first part of the folder's name, like ``gpt2-random``.
        spec, layout, made_with
            As of ``Entry``.
        """
        if spec.format != FORMAT:
            raise CacheError(f"specification: format is {spec.format}; this program writes format {FORMAT}")
        folder = Path(root) / "features" / spec.task["name"]
        path = folder / f"{check_name(name, 'entry name')}-{spec.key[:16]}"
        _refuse_links(path)
        if not (path / SPEC_FILE).exists() or may_write(path):
            try:
                make_folder(path)
            except OSError as error:
                raise CacheError(
                    f"{path}: cannot be created ({error.strerror}); choose another folder with --cache"
                ) from error
            locks = entry_locks(path, create=True)
            with locks.run(whole=False), locks.mutex(whole=False):
                if not (path / SPEC_FILE).exists():
                    touch(path, new=True)
                    content = {"spec": spec.to_dict(), "key": spec.key, "layout": layout.to_dict()}
                    publish_json(path / SPEC_FILE, content | {"made_with": {**made_with}}, indent=2)
        entry = cls.open(path)
        if entry.key != spec.key:
            raise CacheError(f"{path}: holds key {entry.key}, not {spec.key}; remove it")
        touch(path)
        return entry

    @classmethod
    def open(cls, path: Path) -> Entry:
        """Open an existing entry; writes nothing, and follows no symbolic link to it or out of it."""
        path = Path(path)
        _refuse_links(path)
        return cls(path, *read_spec(path))

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

    def block_count(self, split: str) -> int:
        """Return the number of a split's blocks."""
        return self.layout.count(self._rows(split))

    def page_count(self, split: str) -> int:
        """Return the number of pages that a split's manifest may have."""
        return page_of(self.block_count(split) - 1) + 1

    def manifest(self, split: str) -> Manifest:
        """Return what exists of a split; an empty manifest if nothing does."""
        first, *others = (self.page(split, page) for page in range(self.page_count(split)))
        return first.joined(others)

    def page(self, split: str, page: int) -> Manifest:
        """Return what one page of a split's manifest lists; nothing where it is not written."""
        empty = Manifest(FORMAT, self.key, split, self._rows(split))
        try:
            found = read_page(self.path / split, page)
        except FileNotFoundError:
            return empty
        where = self.path / split / page_name(page)
        for name in ("format", "key", "split", "rows"):
            if getattr(found, name) != getattr(empty, name):
                raise CacheError(
                    f"{where}: its {name} is {getattr(found, name)!r}, not "
                    f"{getattr(empty, name)!r}; {repair_command(self.key)}"
                )
        if max((shard.block for shard in found.shards), default=0) >= self.block_count(split):
            raise CacheError(f"{where}: lists a block too many; {repair_command(self.key)}")
        return found

    def missing(self, split: str, columns: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Return the blocks that lack any of the columns, with those they lack."""
        wanted, held = dict.fromkeys(columns), self.manifest(split).held(self.path / split)
        lacking = {
            block: tuple(name for name in wanted if name not in held.get(block, ()))
            for block in range(self.block_count(split))
        }
        return {block: names for block, names in lacking.items() if names}

    def lacking(self, split: str, block: int, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of the columns that one block lacks; ask after claiming it."""
        shards = self.page(split, page_of(block)).of_block(block)
        sound = [shard for shard in shards if is_sound(self.path / split, shard)]
        return tuple(name for name in dict.fromkeys(columns) if not any(name in shard.columns for shard in sound))

    def progress(self, manifests: Mapping[str, Manifest] | None = None) -> dict[str, tuple[int, int]]:
        """Return for each split how many blocks are finished, and how many there are.

        A block is finished when the manifests list for it every column that they list for any block of any split; a
        split without labels has none. An entry is whole when all blocks of all splits are.
        """
        manifests = manifests or {split: self.manifest(split) for split in self.splits}
        columns = {name for manifest in manifests.values() for name in manifest.columns}
        done = {}
        for split, manifest in manifests.items():
            finished = sum(held.keys() == columns for held in manifest.held().values()) if manifest.targets else 0
            done[split] = finished, self.block_count(split)
        return done

    @contextmanager
    def claim(self, split: str, block: int) -> Iterator[bool]:
        """Try to take a block for this process: yields whether it could, at once.

        The claim ends with the context, or, if the block was given to a ``ShardWriter`` meanwhile, when it is on disk;
        it ends with the process in any case. Then ask ``lacking``: another run may have just finished the block.
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

    def block_number(self, split: str, block: int) -> int:
        """Return the number of a block in the whole entry: splits in sorted order, blocks in order within each."""
        count = self.block_count(split)
        if not 0 <= block < count:
            raise CacheError(f"{self.path}: split {split} has blocks 0 to {count - 1}, not {block}")
        return block + sum(self.block_count(name) for name in self.splits if name < split)

    def _rows(self, split: str) -> int:
        if split not in self.spec.rows:
            raise CacheError(f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}")
        return self.spec.rows[split]


def _refuse_links(path: Path) -> None:
    refuse_links(path, *path.parents[:2])
    try:
        refuse_links(*path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return  # which the caller finds and says
    except OSError as error:
        raise CacheError(f"{path}: cannot be read ({error.strerror}); check permissions") from error
