"""Damaged and hostile files: one line, or the data, in bounded time and memory; never anything else."""

import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile
from contextlib import suppress

import h5py
import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import task_named
from reservoir.tasks.images.cifar_files import read_pickle
from tests.tasks import samples

MEGABYTE = 2**20


def read_all(name, **parameters):
    source = task_named(str(name), **parameters)
    for piece in source.pieces():
        source.read(piece)
    source.scaling()
    return source.notes()


def outcome(name, **parameters):
    """Return the one line of an `InputError`, or "" where the file was read."""
    try:
        read_all(name, **parameters)
    except InputError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def mutated(data, number, *, seed):
    """Yield copies of a file with a few bytes changed, a stretch repeated or lost, or its end cut off."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        copy = bytearray(data)
        kind, place, size = rng.integers(4), int(rng.integers(len(data))), int(rng.integers(1, 9))
        if kind == 0:
            copy[place : place + size] = rng.bytes(size)
        elif kind == 1:
            copy[place] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            copy[place : place + size] = copy[place : place + 2 * size] * 2
        else:
            del copy[place:]
        yield bytes(copy)


def good(path):
    arrays = {"x": np.arange(48.0).reshape(12, 4), "y": np.arange(12) % 2, "lengths": np.full(12, 3)}
    split = np.array(["train", "valid", "test"] * 4)
    if path.suffix == ".npz":
        np.savez_compressed(path, **arrays, split=split)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, compression="gzip", chunks=True)
            file["split"] = split.astype(h5py.string_dtype())
    elif path.suffix == ".jsonl":
        rows = zip(arrays["x"].tolist(), arrays["y"].tolist(), split.tolist(), strict=True)
        path.write_text("".join(json.dumps(dict(zip(("x", "y", "split"), row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        from pyarrow import parquet
        from pyarrow import table as arrow_table

        columns = {f"v{n}": arrays["x"][:, n] for n in range(4)}
        parquet.write_table(arrow_table({"label": arrays["y"], **columns}), path)
    elif path.suffix == ".fasta":
        path.write_text("".join(f">r{n} {'ab'[n % 2]}\nACGT{'AC' * n}\n" for n in range(12)))
    else:
        rows = [",".join(map(str, row)) for row in np.column_stack([arrays["y"], arrays["x"]]).tolist()]
        path.write_text("\n".join(["id,label,a,b,c,d", *(f"r{n},{row}" for n, row in enumerate(rows))]))
    return path


@pytest.mark.parametrize(
    ("suffix", "number"),
    [(".npz", 300), (".h5", 12), (".csv", 200), (".jsonl", 200), (".fasta", 200), (".parquet", 200)],
)
def test_mutated_files_are_read_or_refused(tmp_path, suffix, number):
    data = good(tmp_path / f"good{suffix}").read_bytes()
    assert outcome(tmp_path / f"good{suffix}") == ""
    path, refused = tmp_path / f"mine{suffix}", 0
    for copy in mutated(data, number, seed=1):
        path.write_bytes(copy)
        refused += bool(outcome(path))
    assert refused > number / 10


# ---- files that cost more than they are


def small_in_memory(name, message, **parameters):
    """Refuse, without ever holding much; NumPy and Python count what they take."""
    line, peak = traced(lambda: outcome(name, **parameters))
    assert message in line, line
    assert peak < 400 * MEGABYTE


def traced(call):
    """Return what a call returns, and the most that it held."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def zeros(size):
    """Yield so many zeros in blocks."""
    for start in range(0, size, 2**24):
        yield bytes(min(2**24, size - start))


def test_an_idx_file_that_unpacks_to_gigabytes(tmp_path):
    samples.mnist_files(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    rows = 300_000
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(struct.pack(">HBB3I", 0, 8, 3, rows, 28, 28))
        for block in zeros(rows * 784):
            file.write(block)
    small_in_memory("mnist", "claims the shape (300000, 28, 28)", data=tmp_path)


def test_an_archive_of_small_members_that_unpack_to_gigabytes(tmp_path):
    for name, sizes in (("one.npz", {"x": 2**28}), ("two.npz", {"x": 2**10, "y": 2**28})):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for array, size in sizes.items():
                header = io.BytesIO()
                descr = {"descr": "|u1", "fortran_order": False, "shape": (size // 16, 16)}
                np.lib.format.write_array_header_1_0(header, descr)
                with archive.open(f"{array}.npy", "w", force_zip64=True) as member:
                    member.write(header.getvalue())
                    for block in zeros(size):
                        member.write(block)
        small_in_memory(tmp_path / name, "claims 2684")


def test_an_array_of_nothing_has_no_rows(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<U0", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())
    small_in_memory(tmp_path / "mine.npz", "needs 0 bytes")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_packed_otherwise(tmp_path, method):
    array = io.BytesIO()
    np.save(array, np.ones((12, 4)))
    with zipfile.ZipFile(tmp_path / "mine.npz", "w", method) as archive:
        archive.writestr("x.npy", array.getvalue())
    assert "packed otherwise" in outcome(tmp_path / "mine.npz")


def test_two_arrays_of_one_name(tmp_path):
    array = io.BytesIO()
    np.save(array, np.ones((12, 4)))
    for names in (("x", "x.npy"), ("x.npy", "x.npy")):
        with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
            for name in names:
                if name in archive.namelist():
                    with pytest.warns(UserWarning, match="Duplicate"):
                        archive.writestr(name, array.getvalue())
                else:
                    archive.writestr(name, array.getvalue())
            archive.writestr("y.npy", array.getvalue())
        assert "2 arrays are called 'x'" in outcome(tmp_path / "mine.npz")


def test_a_tar_of_members_that_nobody_asked_for(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for number in range(5):
            info = tarfile.TarInfo(f"more{number}")
            info.size = 2**26
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    small_in_memory("cifar10", "bytes unpacked", data=tmp_path)
    with tarfile.open(path, "w:gz") as archive:
        for number in range(200):
            archive.addfile(tarfile.TarInfo(f"more{number}"))
    small_in_memory("cifar10", "more than 100 members", data=tmp_path)


def nested(opcodes, times):
    return b"\x80\x02" + opcodes * times


PICKLES = {
    # A tuple of two of what came before, thirty times over, is a billion of them.
    "a tuple of tuples": nested(b"K\x01", 1) + b"\x85" + b"q\x00h\x00\x86" * 60 + b".",
    "a key of tuples": b"\x80\x02}K\x01\x85" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "a list in itself, twice": b"\x80\x02]q\x00(h\x00h\x00e.",
    "a gigabyte that is not there": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "a set": b"\x80\x04\x8f(K\x01\x90.",
    "a state for a function": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}X\x01\x00\x00\x00aK\x01sb.",
    "a memo far away": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    "an object": b"\x80\x02cnumpy\nndarray\n)\x81.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_takes_no_more_than_it_is_long(name):
    def read():
        with suppress(ValueError):
            read_pickle(PICKLES[name])

    assert traced(read)[1] < MEGABYTE


def test_a_line_of_listops_without_end(tmp_path):
    good_lines = "Source\tTarget\n" + "( ( ( [MAX 2 ) 3 ) ] )\t3\n" * 3
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text(good_lines)
    with (tmp_path / "basic_train.tsv").open("w") as file:
        file.write("Source\tTarget\n[MAX")
        for _ in range(80):
            file.write(" 1" * 2**19)
        file.write(" ]\t1\n")
    small_in_memory("listops", "a line of more than 1048576 characters", data=tmp_path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".fasta"])
def test_a_table_with_nul(tmp_path, suffix):
    (tmp_path / f"mine{suffix}").write_bytes("y,a\n1,2\n".encode("utf-16-le"))
    assert "line 1: a NUL" in outcome(tmp_path / f"mine{suffix}")


def test_one_text_far_longer_than_the_others(tmp_path):
    rows = "".join(f"{'ab'[n % 2]},{'ACGT' * (500_000 if n == 7 else 1)}\n" for n in range(1000))
    (tmp_path / "mine.csv").write_text("label,seq\n" + rows)
    small_in_memory(tmp_path / "mine.csv", "row 7: 2000000 tokens where 1000 rows have 2003996 in all")


# ---- HDF5


def hdf5(path, **datasets):
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(12) % 2
        for name, make in datasets.items():
            make(file, name)
    return path


def test_values_that_lie_in_other_files_are_refused(tmp_path):
    hdf5(tmp_path / "other.h5", x=lambda file, name: file.create_dataset(name, data=np.ones((12, 4))))
    (tmp_path / "raw").write_bytes(np.ones((12, 4)).tobytes())
    os.mkfifo(tmp_path / "pipe")

    def virtual(file, name):
        layout = h5py.VirtualLayout((12, 4), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "missing.h5"), "x", (12, 4))
        file.create_virtual_dataset(name, layout)

    def external(kept):
        return lambda file, name: file.create_dataset(name, (12, 4), "f8", external=[(str(kept), 0, 384)])

    def link(file, name):
        file[name] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")

    for make in (virtual, external(tmp_path / "raw"), external(tmp_path / "pipe"), link):
        assert "is no dataset of this file alone" in outcome(hdf5(tmp_path / "mine.h5", x=make))


def test_datasets_of_nothing_are_refused(tmp_path):
    def empty(file, name):
        file.create_dataset(name, (10**6, 50), "f8", chunks=(10**4, 50))

    assert "claims 400000000 bytes and 0 are stored" in outcome(hdf5(tmp_path / "mine.h5", x=empty))
    assert "no dataset" in outcome(
        hdf5(tmp_path / "null.h5", x=lambda f, n: f.create_dataset(n, data=h5py.Empty("f8")))
    )


def test_pipes_and_empty_folders_are_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.npz")
    assert "no regular file" in outcome(tmp_path / "mine.npz")
    with pytest.raises(InputError, match="a folder without pictures"):
        task_named(str(tmp_path)).files()
    with pytest.raises(InputError, match="no regular file"):
        task_named(str(tmp_path / "mine.npz")).files()
