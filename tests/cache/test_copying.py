"""A copied entry has the same bytes; a copy that was stopped is not an entry and continues; no credential is shown."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    ShardWriter,
    copy_from,
    copy_to,
    list_entries,
    load_input,
    move_input,
    publish_json,
    repair,
    save_arrays,
    save_input,
    verify,
    without_credentials,
)

from tests.cache.conftest import write_block
from tests.helpers import flip

SECRET = "k3y/with@slash"


class StoppedError(OSError):
    """What a connection raises that breaks."""


class HostFileSystem(MemoryFileSystem):
    """Files in memory behind ``host://user:password@name/path``, which can break, and whose errors repeat the URL."""

    protocol = "host"
    store = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    operations = []  # noqa: RUF012
    most = None  # operations before the connection breaks

    @classmethod
    def _strip_protocol(cls, path):
        parts = infer_storage_options(path.replace(f":{SECRET}@", "@"))
        return f"/{parts['host']}{parts['path']}".rstrip("/") if "host" in parts else path.rstrip("/")

    def _count(self, what, path):
        if self.most is not None and len(self.operations) >= self.most:
            raise StoppedError(f"host://user:{SECRET}@name{path}?signature={SECRET} is gone, said {SECRET}")
        self.operations.append((what, path))

    def put_file(self, lpath, rpath, **more):
        self._count("put", rpath)
        return super().put_file(lpath, rpath, **more)

    def open(self, path, mode="rb", **more):
        if mode == "rb":  # put_file opens its target, too
            self._count("open", path)
        return super().open(path, mode, **more)


fsspec.register_implementation("host", HostFileSystem, clobber=True)


@pytest.fixture(autouse=True)
def _empty():
    for kind in (MemoryFileSystem, HostFileSystem):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
    HostFileSystem.operations.clear()
    HostFileSystem.most = None


def stored(url):
    """Return the bytes of each file below a URL by its path in it."""
    filesystem, path = fsspec.url_to_fs(url)
    return {name.removeprefix(path).lstrip("/"): filesystem.cat_file(name) for name in filesystem.find(path)}


def place_of(entry):
    return f"{entry.spec.task_name}/{entry.path.name}"


@pytest.fixture(params=["memory://bucket/features", "file"])
def url(request, tmp_path):
    return f"file://{tmp_path}/share" if request.param == "file" else request.param


def test_an_entry_goes_and_comes_back_with_the_same_bytes(full, toy, tmp_path, url):
    sent = copy_to(full, url)
    assert (sent.url, sent.files, sent.skipped) == (f"{url}/{place_of(full)}", 6, 0)
    assert sent.bytes == sum(path.stat().st_size for path in full.path.glob("*/*.h5"))
    files = {name: path.read_bytes() for path in full.path.rglob("*") if (name := str(path.relative_to(full.path)))
             in toy.digest(full.path)}  # fmt: skip
    assert stored(f"{url}/{place_of(full)}") == files
    back = copy_from(url, "toy", tmp_path / "other")
    assert (back.url, back.files, back.skipped, back.bytes) == (sent.url, 6, 0, sent.bytes)
    assert toy.digest(back.entry) == toy.digest(full.path) and verify(Entry.open(back.entry)) == []
    for split in ("train", "test"):
        for column in toy.shapes:
            np.testing.assert_array_equal(
                FeatureStore(back.entry)[split][column][:], FeatureStore(full)[split][column][:]
            )
    assert [entry.key for entry in list_entries(tmp_path / "other")] == [full.key]


def test_several_pages_are_copied_and_moments_are_not(tmp_path, toy, monkeypatch):
    monkeypatch.setattr("reservoir_cache.entry.PAGE_BLOCKS", 2)
    entry = toy.fill(toy.entry(tmp_path, block_rows=2))
    before = toy.digest(entry.path)
    (entry.path / "moments").mkdir()
    (entry.path / "moments" / "ridge.h5").write_bytes(b"recomputable")
    copy_to(entry, "memory://bucket")
    back = copy_from("memory://bucket", "toy", tmp_path / "other")
    assert toy.digest(back.entry) == before and "train/manifest-2.json" in before


def test_arrays_of_the_input_layer_are_copied_verified_and_repaired_like_features(full, tmp_path, url):
    save_input(full, "units", {"a": np.arange(5)})
    assert (copy_to(full, url).files, copy_to(full, url).skipped) == (7, 7)
    back = copy_from(url, "toy", tmp_path / "other")
    entry = Entry.open(back.entry)
    assert back.files == 7 and verify(entry) == []
    np.testing.assert_array_equal(load_input(entry, "units")["a"], np.arange(5))
    flip(back.entry / "input" / "units.h5", 1000)
    (problem,) = verify(entry)
    assert "checksum" in problem.what and "repair" in problem.repair and load_input(entry, "units") is None
    with pytest.raises(CacheError, match=r"input/units\.h5: damaged.*repair"):
        copy_to(entry, f"{url}/again")
    assert repair(entry) == [problem] and verify(entry) == []


@pytest.mark.parametrize("line", [{"bytes": -1}, {"crc32": "../../.."}, {"bytes": "5"}, {"more": 1}])
def test_a_copy_with_a_damaged_manifest_of_the_input_layer_is_refused(full, tmp_path, line):
    save_input(full, "units", {"a": np.arange(5)})
    copy_to(full, f"file://{tmp_path}/share")
    files = {"units.h5": {"bytes": 5, "crc32": "00000000", **line}}
    publish_json(tmp_path / "share" / place_of(full) / "input" / "manifest.json", {"files": files})
    with pytest.raises(CacheError, match=r"input/manifest\.json: damaged"):
        copy_from(f"file://{tmp_path}/share", "toy", tmp_path / "other")
    assert not list_entries(tmp_path / "other")


def test_arrays_of_the_input_layer_of_an_older_entry_are_read_and_can_be_moved(full):
    save_arrays(full, "units", {"a": np.arange(5)}, {})
    np.testing.assert_array_equal(load_input(full, "units")["a"], np.arange(5))
    for _ in range(2):
        move_input(full, "units")
        (full.path / "moments" / "manifest.json").unlink(missing_ok=True)
        np.testing.assert_array_equal(load_input(full, "units")["a"], np.arange(5))
    move_input(full, "other")
    assert load_input(full, "other") is None


def test_copying_again_sends_nothing_and_checks_every_file(full, tmp_path, url):
    copy_to(full, url)
    before = stored(url)
    again = copy_to(full, url)
    assert (again.files, again.skipped, again.bytes) == (0, 6, 0) and stored(url) == before
    first = copy_from(url, full.key[:9], tmp_path / "other")
    again = copy_from(url, full.path.name, tmp_path / "other")
    assert (again.entry, again.files, again.skipped) == (first.entry, 0, 6)
    flip(first.entry / "test" / "00000-0.h5", 1000)
    with pytest.raises(CacheError, match=r"test/00000-0\.h5: damaged.*repair"):
        copy_from(url, "toy", tmp_path / "other")


def test_a_damaged_file_of_a_copy_is_sent_again(full, tmp_path):
    url = f"file://{tmp_path}/share"
    copy_to(full, url)
    before = stored(url)
    flip(tmp_path / "share" / place_of(full) / "train" / "00001-0.h5", 900)
    (tmp_path / "share" / place_of(full) / "test" / "manifest.json").unlink()
    again = copy_to(full, url)
    assert (again.files, again.skipped) == (1, 5) and stored(url) == before


def test_columns_that_were_added_are_added_to_the_copy_but_none_are_lost(tmp_path, toy):
    entry = toy.fill(toy.entry(tmp_path / "a"), ["final/last"])
    copy_to(entry, "memory://bucket")
    toy.fill(entry)
    assert (copy_to(entry, "memory://bucket").files, copy_to(entry, "memory://bucket").files) == (4, 0)
    smaller, before = toy.fill(toy.entry(tmp_path / "b"), ["final/last"]), stored("memory://bucket")
    with pytest.raises(CacheError, match="lacks 2 of its 3 columns, such as block01/mean"):
        copy_to(smaller, "memory://bucket")
    with pytest.raises(CacheError, match="with other files"):
        copy_from("memory://bucket", "toy", tmp_path / "b")
    in_fewer_files = toy.fill(toy.entry(tmp_path / "c"))
    with pytest.raises(CacheError, match="lacks 4 of its 10 files"):
        copy_to(in_fewer_files, "memory://bucket")
    assert stored("memory://bucket") == before and verify(smaller) == []


@pytest.mark.parametrize("block_rows", [4, 2])
def test_no_columns_are_lost_that_lie_in_files_of_the_same_names(full, tmp_path, toy, block_rows):
    copy_to(full, "memory://bucket")
    before = stored("memory://bucket")
    smaller = toy.fill(toy.entry(tmp_path / "b", block_rows=block_rows), ["final/last"])
    with pytest.raises(CacheError, match="lacks 2 of its 3 columns, such as block01/mean"):
        copy_to(smaller, "memory://bucket")
    assert stored("memory://bucket") == before
    toy.fill(smaller)
    copy_to(smaller, "memory://bucket")
    back = copy_from("memory://bucket", "toy", tmp_path / "c")
    assert FeatureStore(back.entry)["train"].columns == sorted(toy.shapes)


@pytest.mark.parametrize("most", range(16))
def test_a_connection_that_breaks_anywhere_leaves_no_entry_and_the_copy_continues(full, toy, tmp_path, most):
    url, root = "host://name/features", tmp_path / "other"
    HostFileSystem.most = most
    sends = 0
    for _ in range(30):
        try:
            copy_to(full, url)
        except CacheError as error:
            assert "is gone" in str(error) and "spec.json" not in {*stored_names(place_of(full))}
            sends += len([1 for what, name in HostFileSystem.operations if what == "put" and name.endswith(".h5")])
            HostFileSystem.operations.clear()
            HostFileSystem.most += 4
        else:
            break
    HostFileSystem.most = None
    assert stored(f"{url}/{place_of(full)}").keys() == toy.digest(full.path).keys()
    assert sends <= 6  # no file was sent twice
    HostFileSystem.operations.clear()
    HostFileSystem.most, fetched = most, []
    for _ in range(30):
        try:
            back = copy_from(url, "toy", root)
        except CacheError:
            assert list_entries(root) == []
            fetched += [name for what, name in HostFileSystem.operations if name.endswith(".h5")]
            HostFileSystem.operations.clear()
            HostFileSystem.most = most + 5
        else:
            break
    assert toy.digest(back.entry) == toy.digest(full.path)
    assert back.files + back.skipped == 6 and len(fetched) <= 6 + 1


def stored_names(place):
    return [name.rpartition(f"{place}/")[2] for name in HostFileSystem.store]


COPY = """
import sys, time, reservoir_cache, reservoir_cache.copying as copying
from pathlib import Path
slow = lambda function: lambda *a, **k: (function(*a, **k), print(flush=True), time.sleep(0.3))[0]
copying.RemoteFolder.send, copying._fetch = slow(copying.RemoteFolder.send), slow(copying._fetch)
way, entry, url = sys.argv[1:]
if way == "to":
    reservoir_cache.copy_to(reservoir_cache.Entry.open(Path(entry)), url)
else:
    reservoir_cache.copy_from(url, "toy", Path(entry))
"""


def kill_after(files, *arguments):
    """Run a copy in another process, and kill it after some files have been copied."""
    process = subprocess.Popen([sys.executable, "-c", COPY, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    for _ in range(files):
        assert process.stdout.readline() == "\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("files", [1, 4, 7])
def test_a_killed_copy_continues_and_ends_with_the_same_bytes(full, toy, tmp_path, files):
    url, root, folder = f"file://{tmp_path}/share", tmp_path / "other", tmp_path / "share" / place_of(full)
    kill_after(files, "to", full.path, url)
    assert not (folder / "spec.json").exists()
    with pytest.raises(CacheError, match=r"spec\.json"):
        copy_from(url, "toy", root)
    assert list_entries(root) == []
    sent = copy_to(full, url)
    assert sent.skipped == min(files, 6) and toy.digest(folder) == toy.digest(full.path)
    files = min(files, 5)  # while a download publishes files, not documents
    kill_after(files, "from", root, url)
    assert list_entries(root) == []
    back = copy_from(url, "toy", root)
    assert back.skipped == files and toy.digest(back.entry) == toy.digest(full.path)
    assert list(back.entry.rglob(".*.tmp")) == [] and Entry.open(back.entry).running() == []


def test_a_torn_file_and_a_torn_specification_of_a_killed_copy_are_no_entry(full, toy, tmp_path):
    url, folder = f"file://{tmp_path}/share", tmp_path / "share" / place_of(full)
    copy_to(full, url)
    for name in ("spec.json", "train/manifest.json", "train/00001-0.h5"):
        os.truncate(folder / name, (folder / name).stat().st_size // 2)
        with pytest.raises(CacheError):
            copy_from(url, "toy", tmp_path / "other")
        assert list_entries(tmp_path / "other") == []
        copy_to(full, url)
        assert toy.digest(folder) == toy.digest(full.path)


@pytest.mark.parametrize("damage", ["flip", "longer", "gone"])
def test_a_damaged_file_is_refused_and_not_published(full, tmp_path, damage):
    url, root = f"file://{tmp_path}/share", tmp_path / "other"
    copy_to(full, url)
    path = tmp_path / "share" / place_of(full) / "test" / "00000-0.h5"
    if damage == "flip":
        flip(path, 1000)
    elif damage == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        path.unlink()
    with pytest.raises(CacheError, match=r"test/00000-0\.h5: (damaged|larger|missing)"):
        copy_from(url, "toy", root)
    assert list_entries(root) == [] and not list(root.rglob("spec.json")) and not list(root.rglob("manifest*"))
    assert not list((root / "features" / place_of(full) / "test").glob("*00000-0.h5*"))
    copy_to(full, url)
    copy_from(url, "toy", root)
    assert len(list_entries(root)) == 1


def rewrite(path, change):
    """Change a document of a copy and write it with a matching checksum, as an attacker can."""
    content = json.loads(path.read_text())
    del content["crc32"]
    change(content)
    publish_json(path, content, indent=2 if path.name == "spec.json" else None)


@pytest.mark.parametrize("name", ["../../../../x.h5", "/tmp/x.h5", "00000-0.h5/../../x", "x.h5", "00000-0.h5\0"])
def test_names_that_the_format_does_not_allow_are_refused(full, tmp_path, name):
    url, root = f"file://{tmp_path}/share", tmp_path / "other"
    copy_to(full, url)
    manifest = tmp_path / "share" / place_of(full) / "test" / "manifest.json"
    rewrite(manifest, lambda content: content["shards"][0].update(file=name))
    with pytest.raises(CacheError, match="not the name of a shard") as refused:
        copy_from(url, "toy", root)
    assert "\n" not in str(refused.value) and not list(root.rglob("*"))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("spec.json", lambda content: content["spec"]["data"]["rows"].update({"../up": 3}), "not a valid spec"),
        ("spec.json", lambda content: content["spec"]["task"].update(name="other"), "hashes to"),
        ("test/manifest.json", lambda content: content["shards"][0].update(bytes=2**60), "GB are needed"),
        ("test/manifest.json", lambda content: content["targets"].update(file="../targets.h5"), "not the name"),
    ],
)
def test_false_documents_are_refused_before_anything_is_fetched(full, tmp_path, file, change, message):
    url, root = f"file://{tmp_path}/share", tmp_path / "other"
    copy_to(full, url)
    rewrite(tmp_path / "share" / place_of(full) / file, change)
    with pytest.raises(CacheError, match=message):
        copy_from(url, "toy", root)
    assert not list(root.rglob("*.h5")) and list_entries(root) == []


def test_documents_of_any_size_do_not_fill_the_disk(full, tmp_path, monkeypatch):
    copy_to(full, "memory://bucket")
    size = (full.path / "spec.json").stat().st_size
    monkeypatch.setattr("reservoir_cache.copying.DOCUMENT_BYTES", size)
    with pytest.raises(CacheError, match="larger than"):
        copy_from("memory://bucket", "toy", tmp_path / "other")


def test_a_copy_under_the_name_of_another_entry_is_refused(full, tmp_path):
    copy_to(full, f"file://{tmp_path}/share")
    folder = tmp_path / "share" / place_of(full)
    for name in (f"toy/gpt2-random-{'0' * 16}", f"another/{folder.name}"):
        (tmp_path / "share" / name).parent.mkdir(exist_ok=True)
        folder = folder.rename(tmp_path / "share" / name)
        with pytest.raises(CacheError, match="another task or key"):
            copy_from(f"file://{tmp_path}/share", folder.parent.name, tmp_path / "other")


def test_links_on_either_side_are_neither_read_nor_written(full, tmp_path):
    url, folder = f"file://{tmp_path}/share", tmp_path / "share" / place_of(full)
    copy_to(full, url)
    victim = tmp_path / "victim"
    for name in ("train/00001-0.h5", "train/manifest.json", "spec.json", "test"):
        path, aside = folder / name, tmp_path / "aside"
        path.rename(aside)
        victim.mkdir() if name == "test" else victim.write_text("keep me")
        path.symlink_to(victim)
        for attempt in (lambda: copy_to(full, url), lambda: copy_from(url, "toy", tmp_path / "other")):
            with pytest.raises(CacheError, match=r"link|not a regular file"):
                attempt()
        assert [*victim.iterdir()] == [] if name == "test" else victim.read_text() == "keep me"
        victim.rmdir() if name == "test" else victim.unlink()
        path.unlink()
        aside.rename(path)
        copy_to(full, url)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "features").symlink_to(tmp_path / "share")
    with pytest.raises(CacheError, match="symbolic link"):
        copy_from(url, "toy", tmp_path / "linked")


def test_unfinished_damaged_and_busy_entries_are_refused(entry, full, toy, tmp_path):
    (full.path / "train" / "00002-0.h5").unlink()
    with pytest.raises(CacheError, match=r"00002-0\.h5: missing.*repair"):
        copy_to(full, "memory://bucket")
    repair(full)
    with pytest.raises(CacheError, match=r"not finished, 3 of 4 blocks") as refused:
        copy_to(full, "memory://bucket")
    assert str(full.path) in str(refused.value)
    toy.fill(full)
    with ShardWriter(full), pytest.raises(CacheError, match=rf"used by process {os.getpid()}"):
        copy_to(full, "memory://bucket")
    assert "spec.json" not in {name.rpartition("/")[2] for name in stored("memory://bucket")}


def test_an_unfinished_entry_behind_a_url_is_refused(tmp_path, toy):
    entry = toy.entry(tmp_path)
    write_block(entry, "train", 1, toy.features(entry, "train", 1))
    with pytest.raises(CacheError, match="not finished, 0 of 4 blocks"):
        copy_from(f"file://{tmp_path}/features", "toy", tmp_path / "other")


def test_an_entry_in_use_by_a_cache_is_not_overwritten(full, tmp_path, toy):
    other = toy.entry(tmp_path / "other")
    with pytest.raises(CacheError, match="--cache"):
        copy_to(full, f"file://{tmp_path}/other/features")
    assert list(toy.digest(other.path)) == ["spec.json"]
    # reading from a cache that other processes only read is like reading from a copy
    assert toy.digest(copy_from(f"file://{tmp_path}/features", "toy", tmp_path / "third").entry) == toy.digest(
        full.path
    )


def test_an_extraction_that_creates_the_entry_meanwhile_keeps_it(full, toy, tmp_path):
    copy_to(full, "memory://bucket")
    created = []

    @contextmanager
    def progress(_files):
        def create():
            if not created:
                created.append(toy.fill(toy.entry(tmp_path / "other", block_rows=5)))

        yield create

    with pytest.raises(CacheError, match="another process has created"):
        copy_from("memory://bucket", "toy", tmp_path / "other", progress)
    assert verify(created[0]) == [] and created[0].layout.block_rows == 5


def test_an_extraction_goes_on_after_a_copy_that_stopped_before_the_specification(full, toy, tmp_path, monkeypatch):
    from reservoir_cache import copying

    copy_to(full, "memory://bucket")
    real = copying.publish

    def publish(path, *content):
        if path.name == "spec.json":
            raise StoppedError("killed")
        return real(path, *content)

    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr(copying, "publish", publish)
        copy_from("memory://bucket", "toy", tmp_path / "other")
    assert (tmp_path / "other" / "features" / place_of(full) / "train" / "manifest.json").exists()
    # the extraction has other blocks than the copy, whose manifests must not be taken for its own
    entry = toy.fill(toy.entry(tmp_path / "other", block_rows=5))
    assert verify(entry) == []
    for column in toy.shapes:
        values = FeatureStore(entry)["train"].read(column)
        assert abs(values - toy.expected(entry, "train", column)).max() < 0.02


def test_a_copy_that_is_being_made_is_not_removed(full, tmp_path):
    from reservoir_cache import remove

    copy_to(full, "memory://bucket")
    refused = []

    @contextmanager
    def progress(_files):
        def attempt():
            with pytest.raises(CacheError, match="used by"):
                remove(tmp_path / "other" / "features" / place_of(full))
            refused.append(True)

        yield attempt

    copy_from("memory://bucket", "toy", tmp_path / "other", progress)
    assert len(refused) == 6 and len(list_entries(tmp_path / "other")) == 1


def test_the_copied_entry_is_the_last_one_of_its_task(full, toy, tmp_path):
    from reservoir_cache import last_entry

    copy_to(full, "memory://bucket")
    root = tmp_path / "other"
    later = toy.fill(toy.entry(root, compute="bfloat16"))
    os.utime(later.path / "lock", (time.time() + 1000,) * 2)
    copy_from("memory://bucket", full.key[:6], root)
    assert last_entry(root, "toy").key == full.key


def test_a_name_selects_one_entry_or_the_names_are_listed(full, toy, tmp_path):
    copy_to(full, "memory://bucket")
    other = toy.fill(toy.entry(tmp_path, compute="bfloat16"))
    copy_to(other, "memory://bucket")
    for name in ("toy", "nothing", "t"):
        with pytest.raises(CacheError, match="matches 2" if name == "toy" else "no entry") as refused:
            copy_from("memory://bucket", name, tmp_path / "other")
        assert full.path.name in str(refused.value) and other.path.name in str(refused.value)
    assert copy_from("memory://bucket", other.key, tmp_path / "other").entry.name == other.path.name
    with pytest.raises(CacheError, match="no entries"):
        copy_from("memory://nowhere", "toy", tmp_path / "other")


def test_credentials_reach_no_message_no_traceback_and_no_file(full, toy, tmp_path, caplog):
    url, root = f"host://user:{SECRET}@name/features", tmp_path / "other"
    seen = []
    for most in range(0, 40, 3):
        HostFileSystem.most = most
        for attempt in (lambda: copy_to(full, url), lambda: copy_from(url, "toy", root)):
            HostFileSystem.operations.clear()
            try:
                seen.append(repr(attempt()))
            except CacheError as error:
                seen.append("".join(traceback.format_exception(error)))
                assert "\n" not in str(error)
    assert any("is gone" in text for text in seen) and any(text.startswith("Copied(") for text in seen)
    for secret in (SECRET, "k3y", "slash", "user:", "signature"):
        assert not any(secret in text for text in seen), secret
        assert secret not in caplog.text
        assert not any(secret in name for name in HostFileSystem.store)
    for folder in (full.path, root):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files and not any(b"k3y" in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("s3://KEY:SECRET@bucket/folder", "s3://bucket/folder"),
        ("s3://KEY:SEC/RET@bucket/folder", "s3://bucket/folder"),
        ("https://TOKEN@host:8080/a?signature=SECRET#SECRET", "https://host:8080/a"),
        ("ftp://u:SEC?RET@host/a", "ftp://***"),
        ("unexpected argument (sftp://u:SECRET@host:22/a) here", "unexpected argument (sftp://host:22/a) here"),
        ("no URL: a@b?c", "no URL: a@b?c"),
    ],
)
def test_urls_are_shown_without_credentials(text, shown):
    assert without_credentials(text) == shown and without_credentials(shown) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing://bucket/a", "cannot be opened .*nothing"),
        ("memory://user:SECRET@bucket/a", "takes no user or password"),
        ("https://host/a?signature=SECRET", "not the URL of a folder"),
        ("simplecache::memory://bucket", "not the URL of a folder"),
    ],
)
def test_urls_that_are_no_folder_are_refused_in_one_line(full, tmp_path, url, message):
    for attempt in (lambda: copy_to(full, url), lambda: copy_from(url, "toy", tmp_path / "other")):
        with pytest.raises(CacheError, match=message) as refused:
            attempt()
        assert "SECRET" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_local_url_is_refused_if_its_codes_would_become_the_name_of_a_folder(full, tmp_path):
    url = f"file://{tmp_path}/my%20share"
    with pytest.raises(CacheError, match=r"give 'file://\S+/my share'"):
        copy_to(full, url)
    assert not (tmp_path / "my%20share").exists()
    (tmp_path / "my%20share").mkdir()  # a folder that really has this name
    for folder in ("my%20share", "my share"):
        assert copy_to(full, f"file://{tmp_path}/{folder}").files == 6


def test_a_missing_package_is_named(full, monkeypatch):
    fsspec.register_implementation("absent", "no_such_module.FileSystem", clobber=True, errtxt="Install no_such_module")
    with pytest.raises(CacheError, match=r"reservoir-features\[remote\]"):
        copy_to(full, "absent://bucket")


@pytest.fixture
def bucket(monkeypatch):
    """Return the URL of an empty bucket of a local server with S3's interface."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    settings |= {"AWS_ACCESS_KEY_ID": "testing-key", "AWS_SECRET_ACCESS_KEY": "testing-secret"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
    yield "s3://bucket/features"
    server.stop()


def test_an_entry_goes_to_a_server_of_s3_and_back(full, toy, tmp_path, bucket):
    assert copy_to(full, bucket).files == 6 and copy_to(full, bucket).skipped == 6
    filesystem, path = fsspec.url_to_fs(bucket)
    name = f"{path}/{place_of(full)}/train/00001-0.h5"
    content = filesystem.cat_file(name)
    filesystem.pipe_file(name, content[:-1] + b"x")
    with pytest.raises(CacheError, match=r"00001-0\.h5: damaged"):
        copy_from(bucket, "toy", tmp_path / "other")
    assert list_entries(tmp_path / "other") == []
    assert (again := copy_to(full, bucket)).files == 1 and again.skipped == 5
    back = copy_from(bucket, "toy", tmp_path / "other")
    assert back.skipped > 0 and toy.digest(back.entry) == toy.digest(full.path)
    with pytest.raises(CacheError, match="bucket") as refused:
        copy_to(full, "s3://no-such-bucket/features")
    assert "testing" not in str(refused.value) and filesystem.ls("") == ["bucket"]
