"""FORMAT.md against the code and against files it writes, in both directions."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from reservoir_cache import FORMAT, save_arrays
from reservoir_cache.spec import _REQUIRED

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
    assert {name: parts for name, parts in required.items() if parts} == _REQUIRED


def test_the_tables_name_what_is_in_the_json_files(full):
    spec = json.loads((full.path / "spec.json").read_text())
    manifest = json.loads((full.path / "train" / "manifest.json").read_text())
    assert sorted(spec) == sorted(first_table_after("spec.json"))
    assert sorted(spec["spec"]) == sorted(names("field of `spec`"))
    assert {*spec["layout"], "offset_rows"} == {*names("field of `layout`")}
    assert sorted(manifest) == sorted(first_table_after("manifest.json of a split"))
    assert sorted(manifest["columns"]["final/last"]) == sorted(names("field of a column"))
    assert sorted(manifest["shards"][0]) == sorted(names("field of a shard"))
    assert sorted(manifest["targets"]) == sorted(names("field of targets"))
    with full.claim("train", 0):
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
        assert {*file} == {*names("dataset of targets")} - {"groups"}, "rows are in no groups here"


def test_the_tree_names_every_file(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("reservoir_cache.entry.PAGE_BLOCKS", 2)
    full = toy.fill(toy.entry(tmp_path))
    save_arrays(full, "ridge", {"n": np.arange(3)}, {})
    tree = re.findall(r"^        (\S+)", TEXT.partition("## Folders")[2].partition("\n##")[0], re.MULTILINE)
    patterns = [re.sub("<[a-z]+>", "[A-Za-z0-9._-]+", re.escape(name).replace(r"\.", ".")) for name in tree]
    with full.claim("train", 0):
        paths = [str(path.relative_to(full.path)) for path in full.path.rglob("*") if path.is_file()]
    assert all(any(re.fullmatch(pattern, path) for pattern in patterns) for path in paths)
    assert all(any(re.fullmatch(pattern, path) for path in paths) for pattern in patterns)


def test_the_pages_have_as_many_blocks_as_the_text_says():
    from reservoir_cache.entry import PAGE_BLOCKS

    assert f"pages of {PAGE_BLOCKS} blocks" in TEXT
    assert f"blocks {PAGE_BLOCKS} n to {PAGE_BLOCKS} n + {PAGE_BLOCKS - 1}" in TEXT


def test_the_lock_bytes_are_those_of_the_text():
    from reservoir_cache.locks import FIRST_BLOCK_BYTE, MUTEX_BYTE

    assert [row[0] for row in table("byte")] == [str(MUTEX_BYTE), f"{FIRST_BLOCK_BYTE} + n"]


def test_a_document_can_be_checked_by_the_text_alone(full):
    import zlib

    for path, indent in ((full.path / "spec.json", 2), (full.path / "train" / "manifest.json", None)):
        content = json.loads(path.read_text())
        crc = content.pop("crc32")
        compact = json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n"
        assert f"{zlib.crc32(compact.encode()):08x}" == crc
        separators = None if indent else (",", ":")
        again = json.dumps({**content, "crc32": crc}, sort_keys=True, indent=indent, separators=separators) + "\n"
        assert path.read_text() == again
