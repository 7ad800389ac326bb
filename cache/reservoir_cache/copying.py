"""Copy finished entries to and from a folder behind a URL, as "Copies" in FORMAT.md describes.

A copy holds the features and labels of an entry, and the arrays of its input layer: its specification, the manifests
of these, and the files that they list. The
specification is written last, on both sides, so that a half-made copy is not an entry. A copy that was stopped goes on
where it stopped: a file that exists with the listed size and checksum is not sent again.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from reservoir_cache.catalog import ENTRY_FOLDER, check_space
from reservoir_cache.derived import ArrayFile, listed_arrays
from reservoir_cache.entry import MANIFEST_FILE, Entry, Shard, TargetFile, page_name
from reservoir_cache.errors import CacheError
from reservoir_cache.locks import LOCK_FILE, entry_locks, mark_last, process_text
from reservoir_cache.paths import fault, file_crc32, is_regular, read_regular, refuse_links
from reservoir_cache.publish import make_folder, publish, replacing
from reservoir_cache.remote import RemoteError, RemoteFolder
from reservoir_cache.spec import INPUT, SPEC_FILE

DOCUMENT_BYTES = 2**30
"""Most bytes of the specification and the manifests of a copy.

Those of an entry with a million blocks, the most that an entry can have, of 26 columns take about 0.8 GB.
"""

Line = Shard | TargetFile | ArrayFile
"""The line of a file in a manifest, with its size and checksum."""

Progress = Callable[[int], AbstractContextManager[Callable[[], object]]]
"""Is called with the number of files, and returns a context whose value is called after each of them."""


def _no_progress(_files: int) -> AbstractContextManager[Callable[[], object]]:
    """Return a `Progress` context that shows nothing."""
    return nullcontext(lambda: None)


@dataclass(frozen=True)
class Copied:
    """The result of a copy."""

    entry: Path  # folder of the entry in the cache
    url: str  # of the entry's copy, without credentials
    files: int  # number of copied files of features, labels and the input layer
    skipped: int  # number of files that had been copied before
    bytes: int  # total size of the copied files


@dataclass(frozen=True)
class _Documents:
    """The specification and the manifests of a finished entry, in a folder of their own that has no other files."""

    entry: Entry  # in the folder of the documents
    names: tuple[str, ...]  # paths in the folder: the pages of all manifests, then spec.json

    @property
    def files(self) -> dict[str, Line]:
        """Every file that the manifests list, by its path in the entry."""
        return _listed_files(self.entry)

    def content(self, name: str) -> bytes:
        """Return the content of the document that is called ``name`` in `names`."""
        return (self.entry.path / name).read_bytes()


def copy_to(entry: Entry, url: str, progress: Progress = _no_progress) -> Copied:
    """Copy a finished entry into the folder ``url``, as ``<task>/<name of the entry's folder>``.

    Raises CacheError if the entry is unfinished, damaged or in use, if the URL cannot be written, or if it holds a
    copy with columns or files that this entry lacks. The entry is not changed or locked.
    """
    _refuse_unfit_entry(entry)
    folder = RemoteFolder.open(url).below(entry.spec.task_name, entry.path.name)
    is_in_a_cache = folder.size(LOCK_FILE) is not None  # copies have no lock file
    if is_in_a_cache:
        raise CacheError(
            f"{folder.title}: belongs to a cache that processes may use; to copy into it, pass its root as --cache"
        )
    with TemporaryDirectory() as temporary:
        # Find the files that the copy lacks.
        read = _reader_of_entry(entry.path)
        documents = _documents(read, str(entry.path), entry.path, Path(temporary, "entry"))
        existing = _existing_copy(folder, entry.path, Path(temporary, "copy"))
        if existing:
            _refuse_losses(folder, documents, existing)
        missing = {
            file: line
            for file, line in documents.files.items()
            if not folder.holds(file, line.bytes, line.crc32)
        }
        if existing and not missing and _are_equal(documents, existing):
            return _result(entry.path, folder, documents, missing)
        # Send these files, then the documents that list them. The specification is removed first and written last:
        # without it, no reader takes the folder for a copy.
        folder.remove(SPEC_FILE)
        with progress(len(missing)) as advance:
            for file, line in missing.items():
                path = entry.path / file
                if problem := fault(path, vars(line)):
                    raise CacheError(f"{path}: {problem}; {entry.repair_command}")
                folder.send(path, file)
                advance()
        for name in documents.names:
            folder.send(documents.entry.path / name, name)
        return _result(entry.path, folder, documents, missing)


def copy_from(url: str, name: str, root: Path, progress: Progress = _no_progress) -> Copied:
    """Copy an entry from the folder ``url`` into the cache ``root``, and make it the last entry of its task.

    ``name`` is its task, the name of its folder, or the first digits of its key. Every file is compared with the
    checksum of the manifest before it appears in the cache. Raises CacheError if the copy is unfinished or damaged,
    or if the cache has this entry with other files.
    """
    copy = _find(RemoteFolder.open(url), name)
    folder = copy.folder
    path = Path(root) / "features" / copy.task / copy.name
    with TemporaryDirectory() as temporary:
        # The specification and the manifests of the copy are checked before anything is written to the cache.
        documents = _documents(folder.read, folder.title, path, Path(temporary))
        entry = documents.entry
        if entry.spec.task_name != copy.task or not copy.name.endswith(f"-{entry.key[:16]}"):
            raise CacheError(
                f"{folder.title}: holds an entry of another task or key; copy the entry there again"
            )
        # Neither the entry's folder, nor the two folders above it (of the task, and of all features), nor those in it
        # may be links, which could lead out of the cache.
        refuse_links(path, *path.parents[:2], *(path / name for name in (*entry.splits, INPUT)))
        # An entry that exists keeps its files, which must be those of the copy.
        if (path / SPEC_FILE).exists():
            _refuse_other_files(Entry.open(path), documents, folder)
            return _result(path, folder, documents, missing={})
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


def _listed_files(entry: Entry) -> dict[str, Line]:
    """Return the line of each file that the manifests of an entry list, but derived arrays, by its path in the entry.

    Raises CacheError if a manifest is damaged.
    """
    lines_of_input = listed_arrays(entry.path / INPUT)
    if lines_of_input is None:
        raise CacheError(f"{entry.path / INPUT / MANIFEST_FILE}: damaged; {entry.repair_command}")
    lines: dict[str, Line] = {f"{INPUT}/{file}": line for file, line in lines_of_input.items()}
    for split in entry.splits:
        lines |= {f"{split}/{file}": line for file, line in entry.manifest(split).files.items()}
    return lines


def _refuse_unfit_entry(entry: Entry) -> None:
    """Raise CacheError for an entry whose folder has another name than a copy may have, or that a process uses."""
    if not ENTRY_FOLDER.fullmatch(entry.path.name):
        raise CacheError(f"{entry.path}: not named <name>-<first 16 digits of its key>; rename the folder")
    if processes := entry.running():
        process = process_text(processes[0])
        raise CacheError(f"{entry.path}: used by {process}; copy it when that process has ended")


def _result(path: Path, folder: RemoteFolder, documents: _Documents, missing: dict[str, Line]) -> Copied:
    """Return the result of copying the ``missing`` files; the other listed files had been copied before."""
    return Copied(
        entry=path,
        url=folder.title,
        files=len(missing),
        skipped=len(documents.files) - len(missing),
        bytes=sum(line.bytes for line in missing.values()),
    )


def _documents(
    read: Callable[[str, int], bytes | None], title: str, path: Path, folder: Path
) -> _Documents:
    """Return the specification and manifests that ``read`` returns, checked as those of an entry at ``path``.

    ``read`` takes the path of a document in the entry and the most bytes that it may have, and returns its content, or
    None if it does not exist. The documents are written to ``folder``, so that the code that opens entries checks every
    name and number in them. ``title`` says in messages where they come from. Raises CacheError unless the entry is
    finished.
    """
    # The name of an entry's folder and of the two folders above it must be those of an entry, here too.
    copy = folder / "features" / path.parent.name / path.name
    remaining_bytes = DOCUMENT_BYTES  # that may still be read

    def store(name: str) -> bool:
        """Read a document and write it to the folder; return whether it exists."""
        nonlocal remaining_bytes
        content = read(name, remaining_bytes)
        if content is None:
            return False
        remaining_bytes -= len(content)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
        return True

    try:
        if not store(SPEC_FILE):
            raise CacheError(
                f"{title}: not a finished copy, because it has no {SPEC_FILE}; copy the entry again"
            )
        # The specification says which pages there may be; a page that does not exist lists nothing. Only an input layer
        # that was drawn from the data has a manifest.
        entry = Entry.open(copy)
        pages: list[str] = []
        for split in entry.splits:
            names = [f"{split}/{page_name(page)}" for page in range(entry.page_count(split))]
            pages += [name for name in names if store(name)]
        manifest_of_input = f"{INPUT}/{MANIFEST_FILE}"
        if store(manifest_of_input):
            pages.append(manifest_of_input)
        _listed_files(entry)  # raises CacheError for a damaged manifest
        progress = entry.progress()
    except RemoteError:
        raise  # its message names the URL already
    except CacheError as error:
        # The message names the temporary folder, about which the user knows nothing.
        raise CacheError(str(error).replace(str(copy), title)) from error
    finished_blocks = sum(finished for finished, _ in progress.values())
    blocks = sum(count for _, count in progress.values())
    if finished_blocks < blocks:
        raise CacheError(
            f"{title}: not finished, {finished_blocks} of {blocks} blocks exist; finish it with its extract"
        )
    return _Documents(entry, (*pages, SPEC_FILE))


def _reader_of_entry(path: Path) -> Callable[[str, int], bytes | None]:
    """Return the function ``read`` of `_documents` for the entry at ``path``, whose documents may have any size."""

    def read(name: str, _limit: int) -> bytes | None:
        try:
            return read_regular(path / name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CacheError(f"{path / name}: cannot be read ({error}); check permissions") from error

    return read


def _existing_copy(folder: RemoteFolder, path: Path, documents_folder: Path) -> _Documents | None:
    """Return the documents of a finished copy of the entry at ``path``, None if there is none.

    They are written to ``documents_folder``.
    """
    try:
        return _documents(folder.read, folder.title, path, documents_folder)
    except RemoteError:
        raise  # without access to the URL, nobody knows whether there is a copy
    except CacheError:
        return None  # damaged or unfinished, so that nothing is lost by writing it again


def _refuse_losses(folder: RemoteFolder, documents: _Documents, existing: _Documents) -> None:
    """Raise CacheError if a copy would lose columns or files.

    ``documents`` are those of the entry to copy, and ``existing`` those of the finished copy behind the URL.
    """
    entry_files = documents.files
    existing_files = existing.files
    # Names of files do not show which columns they hold: the first extraction of any columns writes 00000-0.h5.
    existing_columns = _columns(existing_files)
    if further_columns := existing_columns - _columns(entry_files):
        share = f"{len(further_columns)} of its {len(existing_columns)} columns"
        problem = f"the entry to copy lacks {share}, such as {min(further_columns)}"
        raise CacheError(
            f"{folder.title}: {problem}; extract these too (--layers, --pool), or copy to another URL"
        )
    if further_files := existing_files.keys() - entry_files.keys():
        share = f"{len(further_files)} of its {len(existing_files)} files"
        problem = f"the entry to copy lacks {share}, such as {min(further_files)}"
        raise CacheError(f"{folder.title}: {problem}; copy to another URL")


def _columns(files: dict[str, Line]) -> set[str]:
    """Return the columns of the listed files of a finished entry; every block of every split has each of them."""
    return {column for line in files.values() if isinstance(line, Shard) for column in line.columns}


def _are_equal(first: _Documents, second: _Documents) -> bool:
    """Return whether there are the same documents with the same content."""
    return first.names == second.names and all(
        first.content(name) == second.content(name) for name in first.names
    )


@dataclass(frozen=True)
class _Copy:
    """A copy of an entry below a URL."""

    folder: RemoteFolder
    task: str
    name: str  # of the folder: <name>-<first 16 digits of the key>

    def is_named(self, name: str) -> bool:
        """Return whether a name is that of the task or of the folder, or at least 6 first digits of the key."""
        first_digits_of_key = self.name.rpartition("-")[2]
        # A user may give all 64 digits of a key, of which the folder has 16.
        may_be_digits = len(name) >= 6
        has_these_digits = may_be_digits and first_digits_of_key.startswith(name[:16])
        return name in (self.task, self.name) or has_these_digits


def _find(folder: RemoteFolder, name: str) -> _Copy:
    """Return the copy that ``name`` selects in a folder of copies; raises CacheError unless it is exactly one."""
    # Folders that are no copies may lie beside them; they do not have the name of an entry's folder.
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
    """Raise CacheError unless the entry in the cache has every file of a copy, undamaged.

    ``documents`` are those of the copy, and ``folder`` is its folder.
    """
    files_in_cache = _listed_files(entry)
    for file, line in documents.files.items():
        if files_in_cache.get(file) != line:
            problem = f"{entry.path}: the cache has this entry with other files than {folder.title}"
            raise CacheError(f"{problem}; remove it first, or copy to another --cache")
        if problem := fault(entry.path / file, vars(line)):
            raise CacheError(f"{entry.path / file}: {problem}; {entry.repair_command}")


def _is_stored(path: Path, line: Line) -> bool:
    """Return whether a file exists with the size and checksum of its line in a manifest."""
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


def _fetch(folder: RemoteFolder, file: str, line: Line, path: Path) -> None:
    """Copy a file from ``folder`` to ``path``; it appears only if size and checksum match its line in the manifest."""
    make_folder(path.parent)
    with replacing(path) as temporary:
        with temporary.open("r+b") as target:
            target.writelines(folder.parts(file, line.bytes))
        # What has reached the disk is compared, not what was received.
        if not _is_stored(temporary, line):
            raise CacheError(
                f"{folder.title}/{file}: damaged, its checksum does not match; copy the entry there again"
            )
