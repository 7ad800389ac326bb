"""Damaged and hostile files: one line, or the data, in bounded time and memory; never anything else."""

import gzip
import io
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
from reservoir.tasks.images.cifar import read_pickle
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
    """Yield ``size`` zeros in blocks."""
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


def test_pipes_and_empty_folders_are_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.npz")
    assert "no regular file" in outcome(tmp_path / "mine.npz")
    with pytest.raises(InputError, match="a folder without pictures"):
        task_named(str(tmp_path)).files()
    with pytest.raises(InputError, match="no regular file"):
        task_named(str(tmp_path / "mine.npz")).files()


# ---- on the command line: one line and exit code 2

HEAD = "@problemName p\n@timeStamps false\n@missing false\n@classLabel true a b\n@data\n"
SERIES = HEAD + "".join(f"{n},2.5,{n % 3}:1,2,{n}:{'ab'[n % 2]}\n" for n in range(12))
BARE = "".join(f"{n % 2}\t{n}.5\t{n}\tNaN\n" for n in range(12))


@pytest.fixture
def refused(cache, capsys):
    """Return a function that runs extract on data that it must refuse, and returns its message of one line."""
    from reservoir_pipelines.cli import run

    def refuse(*arguments):
        assert run(["extract", *map(str, arguments)]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1 and "Traceback" not in printed.err
        return printed.err

    return refuse


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".fasta", ".ts"])
def test_a_line_of_a_quarter_gigabyte_of_nuls(tmp_path, refused, suffix):
    path = tmp_path / f"mine{suffix}"
    path.write_text({".ts": HEAD, ".fasta": ">a b\n"}.get(suffix, "label,text\n"))
    os.truncate(path, 2**28)
    assert "a NUL" in refused(path)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".fasta", ".ts"])
def test_two_encodings_in_one_file(tmp_path, refused, suffix):
    path = tmp_path / f"mine{suffix}"
    text = {".ts": SERIES, ".fasta": ">a b\nACGT\n", ".jsonl": '{"text": "a b", "label": 1}\n', ".tsv": BARE}
    path.write_bytes(text.get(suffix, "label,text\na,b c\n").encode() + "é\n".encode("latin-1"))
    assert "not UTF-8" in refused(path)
