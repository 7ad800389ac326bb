"""FORMAT.md agrees with the code and its files, keys depend on every field, and imports load few modules."""

import dataclasses
import io
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import reservoir_cache
from reservoir_cache import FORMAT, Spec, paths, publish, save_arrays, save_input
from reservoir_cache.shard import OPTIONAL_TARGETS, TARGET_RANKS, Encoded, file_content, shard_content
from reservoir_cache.spec import BackboneSpec, DataSpec, InitSpec, InputSpec, canonical_json

TEXT = (Path(__file__).resolve().parents[2] / "cache" / "FORMAT.md").read_text()


def table(heading):
    """Return the rows of the table whose first heading is ``heading``, cells stripped."""
    lines = TEXT.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")]
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def first_table_after(title):
    """Return the names in the first table below a heading of the text."""
    names = []
    for line in TEXT.partition(f"\n### {title}\n")[2].splitlines():
        if line.startswith("| `"):
            names.append(line.split("`")[1])
        elif names:
            return names
    return names


def names(heading):
    return [row[0].strip("`") for row in table(heading)]


def test_the_version_and_the_required_parts_of_a_specification():
    assert f"format version {FORMAT}\n" in TEXT
    required = {row[0].strip("`"): tuple(re.findall("`(.*?)`", row[2])) for row in table("field of `spec`")}
    parts = {"data": DataSpec, "backbone": BackboneSpec, "init": InitSpec, "input": InputSpec}
    fields = {name: dataclasses.fields(part) for name, part in parts.items()}
    always = {name: tuple(f.name for f in of if f.default is f.default_factory) for name, of in fields.items()}
    assert {name: names for name, names in required.items() if names} == {"task": ("name",), **always}
    optional = {f.name for of in fields.values() for f in of if f.default is not f.default_factory} - {"more"}
    text = {name: row[1] for name, row in zip(required, table("field of `spec`"), strict=True)}
    assert {name for name in optional if f"`{name}`" not in " ".join(text.values())} == set()


def test_the_tables_name_what_is_in_the_json_files(full, toy):
    spec = json.loads((full.path / "spec.json").read_text())
    manifest = json.loads((full.path / "train" / "manifest.json").read_text())
    assert sorted(spec) == sorted(first_table_after("spec.json"))
    assert sorted(spec["spec"]) == sorted(names("field of `spec`"))
    assert {*spec["layout"], "offset_rows"} == {*names("field of `layout`")}
    assert sorted(manifest) == sorted(first_table_after("manifest.json of a split"))
    assert sorted(manifest["columns"]["final/last"]) == sorted(names("field of a column"))
    assert sorted(manifest["shards"][0]) == sorted(names("field of a shard"))
    assert sorted(manifest["targets"]) == sorted(names("field of targets"))
    with toy.claim(full, "train", 0):
        (record,) = (full.path / "runs").glob("*.json")
        content = json.loads(record.read_text())
    assert sorted(content) == sorted(names("field of a run"))


@pytest.mark.parametrize("store", ["float16", "bfloat16", "float32"])
def test_the_tables_name_what_is_in_a_shard(tmp_path, toy, store):
    entry = toy.fill(toy.entry(tmp_path, store=store))
    types = {row[0].strip("`"): row[1] for row in table("attribute of a shard")}
    dtype = {"float16": "<f2", "bfloat16": "<u2", "float32": "<f4"}[store]
    found = {}
    with h5py.File(entry.path / "train" / "00002-0.h5", "r") as file:
        assert {
            name: "int64" if value.dtype == np.int64 else "fixed string" for name, value in file.attrs.items()
        } == types
        assert (file.attrs["block"], file.attrs["low"], file.attrs["high"]) == (2, 8, 10)
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        parts = {row[0].strip("`").rpartition("/")[2] for row in table("dataset of a shard")}
        parts -= {"offset"} if store == "float32" else set()
        assert set(found) == {f"{column}/{part}" for column in toy.shapes for part in parts}
        for column, shape in toy.shapes.items():
            values = file[f"{column}/values"]
            assert (values.shape, values.dtype, values.chunks) == ((2, *shape), np.dtype(dtype), None)
            assert sorted(values.attrs) == sorted(names("attribute of values"))
            assert values.attrs["encoding"] == store.encode()
            if store != "float32":
                assert (file[f"{column}/offset"].shape, file[f"{column}/offset"].dtype) == ((shape[1],), np.float32)
    with h5py.File(entry.path / "train" / "targets.h5", "r") as file:
        assert {*names("dataset of targets")} == {*TARGET_RANKS}
        assert {*file} == {*TARGET_RANKS} - OPTIONAL_TARGETS, "rows have neither groups nor ids here, and no texts"


def test_the_tree_in_the_format_names_every_file(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("reservoir_cache.entry.PAGE_BLOCKS", 2)
    full = toy.fill(toy.entry(tmp_path))
    save_arrays(full, "ridge", {"n": np.arange(3)}, {})
    save_input(full, "units", {"n": np.arange(3)})
    tree = re.findall(r"^        (\S+)", TEXT.partition("## Folders")[2].partition("\n##")[0], re.MULTILINE)
    patterns = [re.sub("<[a-z]+>", "[A-Za-z0-9._-]+", re.escape(name).replace(r"\.", ".")) for name in tree]
    with toy.claim(full, "train", 0):
        paths = [str(path.relative_to(full.path)) for path in full.path.rglob("*") if path.is_file()]
    assert all(any(re.fullmatch(pattern, path) for pattern in patterns) for path in paths)
    assert all(any(re.fullmatch(pattern, path) for path in paths) for pattern in patterns)


def test_pages_and_lock_bytes_are_those_of_the_text():
    from reservoir_cache.entry import PAGE_BLOCKS
    from reservoir_cache.locks import FIRST_BLOCK_BYTE, MUTEX_BYTE

    assert f"pages of {PAGE_BLOCKS} blocks" in TEXT
    assert f"blocks {PAGE_BLOCKS} n to {PAGE_BLOCKS} n + {PAGE_BLOCKS - 1}" in TEXT
    assert [row[0] for row in table("byte")] == [str(MUTEX_BYTE), f"{FIRST_BLOCK_BYTE} + n"]


def test_a_document_can_be_checked_by_the_text_alone(full):
    for path, indent in ((full.path / "spec.json", 2), (full.path / "train" / "manifest.json", None)):
        content = json.loads(path.read_text())
        crc = content.pop("crc32")
        compact = json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n"
        assert f"{zlib.crc32(compact.encode()):08x}" == crc
        separators = None if indent else (",", ":")
        again = json.dumps({**content, "crc32": crc}, sort_keys=True, indent=indent, separators=separators) + "\n"
        assert path.read_text() == again


def reordered(value):
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(list(value))}
    return value


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path


def test_every_field_changes_the_key(toy):
    paths = list(leaves(toy.spec().to_json()))
    assert len(paths) == 19
    for path in paths:
        values = toy.spec().to_json()
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        inner[path[-1]] = "float32" if path == ("store",) else old + 1 if not isinstance(old, str) else old + "x"
        assert Spec.from_json(values).key != toy.spec().key, path


def test_key_does_not_depend_on_order_or_on_how_a_number_is_written(toy):
    spec = toy.spec()
    assert Spec.from_json(reordered(spec.to_json())).key == spec.key
    assert toy.spec(input={**spec.input.to_json(), "seed": 0.0, "patch": 1.0}).key == spec.key
    assert toy.spec(task={**spec.task, "x": (1, 2)}).key == toy.spec(task={**spec.task, "x": [1, 2]}).key
    assert toy.spec(task={**spec.task, "x": -0.0}).key == toy.spec(task={**spec.task, "x": 0}).key
    assert toy.spec(task={**spec.task, "x": True}).key != toy.spec(task={**spec.task, "x": 1}).key
    assert toy.spec(task={**spec.task, "x": 1e16}).key == toy.spec(task={**spec.task, "x": 10**16}).key


def test_a_later_change_of_the_callers_dictionary_changes_nothing(toy):
    task = {"name": "toy", "nested": {"a": [1]}}
    spec = toy.spec(task=task)
    before = canonical_json(spec.to_json())
    task["nested"]["a"].append(2)
    spec.to_json()["task"]["nested"]["a"].append(3)
    assert canonical_json(spec.to_json()) == before


def test_importing_the_package_and_listing_imports_no_h5py_or_numpy(tmp_path):
    code = (
        "import sys; from reservoir_cache import CacheError, Entry, Spec, list_entries\n"
        f"assert list_entries({str(tmp_path)!r}) == []\n"
        "print([m for m in ('h5py', 'numpy', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_published_file_is_either_complete_or_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "readout.bin"
    assert publish.publish(path, b"first") == (5, "9271ee57")  # as computed by gzip
    assert reservoir_cache.file_crc32(path) == "9271ee57"

    with monkeypatch.context() as patch:
        patch.setattr(publish, "sync", Mock(side_effect=OSError(28, "No space left on device")))
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
    assert publish._holds(tmp_path / "file", content[: size // 2], content[size // 2 :])
    for other in {content + b"x", content[:-1] + b"y", content[:-1]} - {content}:
        assert not publish._holds(tmp_path / "file", other)


@pytest.mark.parametrize("size", [0, 1, 100, 2**16 + 3])
def test_checksums_are_those_of_zlib_with_and_without_isal(size):
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    start = zlib.crc32(b"start")
    assert paths.crc32_of(memoryview(content), start) == zlib.crc32(content, start)
    assert paths.joined_crc32(start, zlib.crc32(content), size) == zlib.crc32(b"start" + content)
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert paths.crc32_of is isal_zlib.crc32


def test_a_file_in_pieces_has_the_bytes_that_h5py_writes():
    large, flags = np.random.default_rng(0).normal(size=(300, 400)), np.arange(2**16) % 3 == 0
    arrays = {"a/b/c": large, "a/t": large.T, "flags": flags, "small": large[0], "none": large[:0], "one": large[0, 0]}
    with h5py.File(image := io.BytesIO(), "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, track_times=False)
    assert b"".join(file_content(arrays)) == image.getvalue()
    pieces, crc = shard_content({}, {f"a/{rows}": Encoded(large[:rows], None) for rows in (300, 217)}, "float64")
    assert len(pieces) > 3 and crc == zlib.crc32(b"".join(pieces))
