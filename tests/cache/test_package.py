"""The package as a whole: what it exports, what importing it costs, and that its files do not import in circles."""

import subprocess
import sys

import pytest
import reservoir_cache
from reservoir_cache import publish


def test_every_name_that_is_imported_late_exists():
    for name in reservoir_cache._LATER:
        assert getattr(reservoir_cache, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = reservoir_cache.nothing


def test_importing_the_package_and_listing_imports_no_h5py_or_numpy(tmp_path):
    code = (
        "import sys; from reservoir_cache import CacheError, Entry, Spec, list_entries\n"
        f"assert list_entries({str(tmp_path)!r}) == []\n"
        "print([m for m in ('h5py', 'numpy', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_published_file_is_complete_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "readout.bin"
    assert publish.publish(path, b"first") == (5, "9271ee57")  # by gzip
    assert reservoir_cache.file_crc32(path) == "9271ee57"

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "sync", full_disk)
        with pytest.raises(reservoir_cache.CacheError, match=r"readout\.bin: cannot be written .*check free space"):
            publish.publish(path, b"second")
    with monkeypatch.context() as patch:
        patch.setattr(publish, "_holds", lambda *_: False)
        with pytest.raises(reservoir_cache.CacheError, match="does not read back as written"):
            publish.publish(path, b"third")
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == {"readout.bin": b"first"}
    reservoir_cache.publish_json(tmp_path / "a.json", {"x": [1, 0.5]}, indent=2)
    assert reservoir_cache.read_json(tmp_path / "a.json", indent=2) == {"x": [1, 0.5]}


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1])
def test_a_file_of_any_size_is_compared_with_what_was_written(tmp_path, size):
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "file").write_bytes(content)
    assert publish._holds(tmp_path / "file", memoryview(content))
    assert not publish._holds(tmp_path / "file", memoryview(content + b"x"))
    assert size == 0 or not publish._holds(tmp_path / "file", memoryview(content[:-1] + b"y"))
