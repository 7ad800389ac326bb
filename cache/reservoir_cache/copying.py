"""Copy finished entries to and from a folder behind a URL, as "Copies" in FORMAT.md describes.

A copy holds the features and labels of an entry: its specification, its manifests, and the files that they list. The
specification is written last, on both sides, so that a half-made copy is not an entry. A copy that was stopped goes on
where it stopped: a file that exists with the listed size and checksum is not sent again.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from reservoir_cache.catalog import ENTRY_FOLDER, check_space
from reservoir_cache.derived import fault
from reservoir_cache.entry import Entry, Shard, TargetFile, page_name
from reservoir_cache.errors import CacheError, repair_command
from reservoir_cache.locks import LOCK_FILE, entry_locks, mark_last
from reservoir_cache.paths import file_crc32, is_regular, read_regular, refuse_links
from reservoir_cache.publish import make_folder, publish, replacing
from reservoir_cache.remote import RemoteError, RemoteFolder
from reservoir_cache.spec import SPEC_FILE

DOCUMENT_BYTES = 2**30
"""Most bytes of the specification and the manifests of a copy.

Those of an entry with a million blocks, the most that an entry can have, of 26 columns take about 0.8 GB.
"""

Progress = Callable[[int], AbstractContextManager[Callable[[], object]]]
"""Is called with the number of files, and returns a context whose value is called after each of them."""


@dataclass(frozen=True)
class Copied:
    """The result of a copy."""

    entry: Path  # folder of the entry in the cache
    url: str  # of the entry's copy, without credentials
    files: int  # copied files of features and labels
    skipped: int  # files that had been copied before
    bytes: int  # size of the copied files


@dataclass(frozen=True)
class _Documents:
    """The specification and the manifests of a finished entry, in a folder of their own that has no other files."""

    entry: Entry
    names: tuple[str, ...]  # paths in the folder: the pages of all manifests, then spec.json

    @property
    def files(self) -> dict[str, Shard | TargetFile]:
        """Every file that the manifests list, by its path in the entry."""
        return {
            f"{split}/{file}": line
            for split in self.entry.splits
            for file, line in self.entry.manifest(split).files.items()
        }

    def content(self, name: str) -> bytes:
        """Return a document."""
        return (self.entry.path / name).read_bytes()


def copy_to(
    entry: Entry, url: str, progress: Progress = lambda _files: nullcontext(lambda: None)
) -> Copied:
    """Copy a finished entry into the folder ``url``, as ``<task>/<name of the entry's folder>``.

    Raises CacheError if the entry is unfinished, damaged or in use, if the URL cannot be written, or if it holds a
    copy with files that this entry lacks. The entry is not changed or locked.
    """
    # Refuse an entry that cannot be copied, and a folder that is not for copies.
    if not ENTRY_FOLDER.fullmatch(entry.path.name):
        raise CacheError(f"{entry.path}: not named <name>-<first 16 digits of its key>; rename the folder")
    for user in entry.running():
        name = f"process {user.get('pid')} on {user.get('host')} since {user.get('started')}"
        raise CacheError(f"{entry.path}: used by {name}; copy it when that process has ended")
    folder = RemoteFolder.open(url).below(entry.spec.task_name, entry.path.name)
    if folder.size(LOCK_FILE) is not None:
        raise CacheError(
            f"{folder.title}: belongs to a cache that processes may use; to copy into it, pass its root as --cache"
        )
    # Find the files that the copy lacks, send them, and then the documents that list them.
    with TemporaryDirectory() as temporary:
        documents = _documents(
            _reader_of_entry(entry.path), str(entry.path), entry.path, Path(temporary, "own")
        )
        existing = _existing_copy(folder, entry.path, Path(temporary, "copy"))
        missing = _missing_files(folder, documents, existing)
        if existing and not missing and _same_documents(documents, existing):
            return Copied(entry.path, folder.title, 0, len(documents.files), 0)
        # Without its specification, the copy is none until all its files are there.
        folder.remove(SPEC_FILE)
        with progress(len(missing)) as advance:
            for file, line in missing.items():
                path = entry.path / file
                if what := fault(path, vars(line)):
                    raise CacheError(f"{path}: {what}; {repair_command(entry.key)}")
                folder.send(path, file)
                advance()
        for name in documents.names:
            folder.send(documents.entry.path / name, name)
        return _result(entry.path, folder, documents, missing)


def copy_from(
    url: str, name: str, root: Path, progress: Progress = lambda _files: nullcontext(lambda: None)
) -> Copied:
    """Copy an entry from the folder ``url`` into the cache ``root``, and make it the last entry of its task.

    ``name`` is its task, the name of its folder, or the first digits of its key. Every file is compared with the
    checksum of the manifest before it appears in the cache. Raises CacheError if the copy is unfinished or damaged,
    or if the cache has this entry with other files.
    """
    # The copy, whose specification and manifests are checked before anything is written.
    copy = _find(RemoteFolder.open(url), name)
    folder = copy.folder
    path = Path(root) / "features" / copy.task / copy.name
    with TemporaryDirectory() as temporary:
        documents = _documents(folder.read, folder.title, path, Path(temporary))
        entry = documents.entry
        if entry.spec.task_name != copy.task or not copy.name.endswith(f"-{entry.key[:16]}"):
            raise CacheError(
                f"{folder.title}: holds an entry of another task or key; copy the entry there again"
            )
        # An entry that exists keeps its files, which must be those of the copy.
        refuse_links(path, *path.parents[:2], *(path / split for split in entry.splits))
        if (path / SPEC_FILE).exists():
            _refuse_other_files(Entry.open(path), documents, folder)
            return Copied(path, folder.title, 0, len(documents.files), 0)
        # Files appear first, and the documents that name them last, so that an interrupted copy is not an entry.
        make_folder(path)
        locks = entry_locks(path, create=True)
        with locks.at_work(needs_spec=False):
            missing = {
                file: line for file, line in documents.files.items() if not _is_stored(path / file, line)
            }
            check_space(root, sum(line.bytes for line in missing.values()), "choose another disk")
            with progress(len(missing)) as advance:
                for file, line in missing.items():
                    with _unless_created(path):
                        _fetch(folder, file, line, path / file)
                    advance()
            with _unless_created(path):
                for document in documents.names:
                    publish(path / document, documents.content(document))
            mark_last(path, new=True)
        return _result(path, folder, documents, missing)


def _result(
    path: Path, folder: RemoteFolder, documents: _Documents, missing: dict[str, Shard | TargetFile]
) -> Copied:
    """Return the result of copying the ``missing`` files; the others were there already."""
    size = sum(line.bytes for line in missing.values())
    return Copied(path, folder.title, len(missing), len(documents.files) - len(missing), size)


def _documents(
    read: Callable[[str, int], bytes | None], title: str, path: Path, folder: Path
) -> _Documents:
    """Return the specification and manifests that ``read`` returns, checked as those of an entry at ``path``.

    They are written to ``folder``, so that the code that opens entries checks every name and number in them. ``title``
    says in messages where they come from. Raises CacheError unless the entry is finished.
    """
    # The parents of the copy have the names of those of the entry, which are checked when it is opened.
    copy = folder / "features" / path.parent.name / path.name
    remaining = DOCUMENT_BYTES  # that may still be read

    def store(name: str) -> bool:
        nonlocal remaining
        content = read(name, remaining)
        if content is not None:
            remaining -= len(content)
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)
        return content is not None

    try:
        if not store(SPEC_FILE):
            raise CacheError(
                f"{title}: not a finished copy, because it has no {SPEC_FILE}; copy the entry again"
            )
        entry = Entry.open(copy)
        pages: list[str] = []
        for split in entry.splits:
            names = [f"{split}/{page_name(page)}" for page in range(entry.page_count(split))]
            pages += [name for name in names if store(name)]
        progress = entry.progress()
    except RemoteError:
        raise
    except CacheError as error:
        raise CacheError(str(error).replace(str(copy), title)) from error
    finished, blocks = (sum(counts) for counts in zip(*progress.values(), strict=True))
    if finished < blocks:
        raise CacheError(
            f"{title}: not finished, {finished} of {blocks} blocks exist; finish it with its extract"
        )
    return _Documents(entry, (*pages, SPEC_FILE))


def _reader_of_entry(path: Path) -> Callable[[str, int], bytes | None]:
    """Return what reads the documents of an entry in a cache."""

    def read(name: str, _limit: int) -> bytes | None:
        try:
            return read_regular(path / name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CacheError(f"{path / name}: cannot be read ({error}); check permissions") from error

    return read


def _existing_copy(folder: RemoteFolder, path: Path, place: Path) -> _Documents | None:
    """Return the documents of a finished copy of the entry at ``path``, None if there is none."""
    try:
        return _documents(folder.read, folder.title, path, place)
    except RemoteError:
        raise
    except CacheError:
        return None  # damaged or unfinished, so that nothing is lost by writing it again


def _missing_files(
    folder: RemoteFolder, documents: _Documents, existing: _Documents | None
) -> dict[str, Shard | TargetFile]:
    """Return the files that a copy lacks or has with other content; refuse a copy with files of its own."""
    files = documents.files
    others = existing.files.keys() - files.keys() if existing else set()
    if others:
        raise CacheError(
            f"{folder.title}: has {len(others)} files that this entry lacks, such as {min(others)}; copy to another URL"
        )
    return {file: line for file, line in files.items() if not folder.holds(file, line.bytes, line.crc32)}


def _same_documents(first: _Documents, second: _Documents) -> bool:
    return first.names == second.names and all(
        first.content(name) == second.content(name) for name in first.names
    )


@dataclass(frozen=True)
class _Copy:
    """A copy of an entry: its folder, the task, and the name of the folder, which ends in digits of the key."""

    folder: RemoteFolder
    task: str
    name: str

    def is_named(self, name: str) -> bool:
        """Return whether a name is that of the task or of the folder, or at least 6 first digits of the key."""
        digits = self.name.rpartition("-")[2]
        may_be_digits = len(name) > 5
        return name in (self.task, self.name) or (may_be_digits and digits.startswith(name[:16]))


def _find(folder: RemoteFolder, name: str) -> _Copy:
    """Return the one copy that ``name`` selects in a folder of copies."""
    # Other folders may lie beside the copies; a name of another form is never used.
    copies = [
        _Copy(folder.below(task, entry), task, entry)
        for task in folder.folders()
        for entry in folder.below(task).folders()
        if ENTRY_FOLDER.fullmatch(entry)
    ]
    matching = [copy for copy in copies if copy.is_named(name)]
    if not matching:
        names = ", ".join(copy.name for copy in copies) or "no entries"
        raise CacheError(f"{folder.title}: no entry {name!r}; it has {names}")
    if len(matching) > 1:
        names = ", ".join(copy.name for copy in matching)
        raise CacheError(f"{folder.title}: {name!r} matches {len(matching)} entries; name one of {names}")
    return matching[0]


def _refuse_other_files(entry: Entry, documents: _Documents, folder: RemoteFolder) -> None:
    """Raise CacheError unless the cache has every file of a copy, undamaged."""
    own = {
        f"{split}/{file}": line
        for split in entry.splits
        for file, line in entry.manifest(split).files.items()
    }
    for file, line in documents.files.items():
        if own.get(file) != line:
            problem = f"{entry.path}: the cache has this entry with other files than {folder.title}"
            raise CacheError(f"{problem}; remove it first, or copy to another --cache")
        if what := fault(entry.path / file, vars(line)):
            raise CacheError(f"{entry.path / file}: {what}; {repair_command(entry.key)}")


def _is_stored(path: Path, line: Shard | TargetFile) -> bool:
    return is_regular(path, line.bytes) and file_crc32(path) == line.crc32


@contextmanager
def _unless_created(path: Path) -> Iterator[None]:
    """Hold the mutex of an entry that is being copied; raises CacheError if another process has created it."""
    with entry_locks(path).mutex(needs_spec=False):
        # An extraction chooses its own blocks and lists its own shards, which must not be replaced.
        if (path / SPEC_FILE).exists():
            raise CacheError(
                f"{path}: another process has created this entry; run 'reservoir cache list' to see it"
            )
        yield


def _fetch(folder: RemoteFolder, file: str, line: Shard | TargetFile, path: Path) -> None:
    """Publish a file of a copy after comparing its size and its checksum with its line in the manifest."""
    make_folder(path.parent)
    with replacing(path) as temporary:
        with temporary.open("r+b") as target:
            target.writelines(folder.parts(file, line.bytes))
        # What has reached the disk is compared, not what was received.
        if not _is_stored(temporary, line):
            raise CacheError(
                f"{folder.title}/{file}: damaged, its checksum does not match; copy the entry there again"
            )
