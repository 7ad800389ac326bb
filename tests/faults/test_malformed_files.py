"""Malformed and hostile data and models: read or refused in one line, in bounded time and memory; no files are left."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickle
import platform
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from reservoir_pipelines.cli import run
from reservoir_pipelines.preparation.prepare import open_source

from reservoir.backbones import content_digest, find, load_backbone, load_native
from reservoir.errors import InputError
from reservoir.inputs.native import open_reader
from reservoir.inputs.text_reader import read_tokenizer
from reservoir.pretraining.corpora import Text
from reservoir.tasks import task_named
from reservoir.tasks.images import read_pickle
from reservoir.tasks.texts import codes_of
from tests.faults.damage import mutated, read_all
from tests.helpers import outcome
from tests.reservoir.models import save, save_as_gguf, save_with_tokenizer
from tests.tasks import samples

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(change):
    """Return a case: MNIST's files with one of them changed."""

    def case(folder):
        samples.mnist_files(folder)
        change(folder)
        return ["mnist", "--data", str(folder)]

    return case


def replaced(name, edit):
    def change(folder):
        (folder / name).write_bytes(edit((folder / name).read_bytes()))

    return change


def header(kind, *shape):
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape)


def packed_and_cut(folder):
    data = gzip.compress((folder / IMAGES).read_bytes())
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}.gz").write_bytes(data[: len(data) // 2])


def cifar(change, *, binary=True):
    """Return a case: CIFAR's files with one of them changed."""

    def case(folder):
        samples.cifar_files(folder, samples.cifar_arrays(), binary=binary)
        change(folder)
        return ["cifar10", "--data", str(folder)]

    return case


def in_batch(name, edit):
    def change(folder):
        path = next(folder.rglob(name))
        path.write_bytes(edit(path.read_bytes()))

    return change


def pickled(**values):
    images, labels = samples.cifar_arrays()[0]
    batch = {"data": images, "labels": labels.tolist()} | values
    return lambda _: pickle.dumps({k.encode(): v for k, v in batch.items()}, protocol=2)


def listops(train):
    """Return a case: Long Range Arena's files with these lines for training."""

    def case(folder):
        folder.mkdir()
        good = "Source\tTarget\n" + "( ( ( [MAX 2 ) 3 ) ] )\t3\n" * 3
        for name in ("val", "test"):
            (folder / f"basic_{name}.tsv").write_text(good)
        (folder / "basic_train.tsv").write_bytes(train if isinstance(train, bytes) else train.encode())
        return ["listops", "--data", str(folder)]

    return case


def homology(valid):
    """Return a case: TAPE's files with these bytes for validation."""

    def case(folder):
        folder.mkdir()
        for part in ("train", "test_fold_holdout", "test_superfamily_holdout", "test_family_holdout"):
            (folder / f"remote_homology_{part}.json").write_text(json.dumps([{"primary": "ACD", "fold_label": 1}]))
        data = valid if isinstance(valid, str) else json.dumps(valid)
        (folder / "remote_homology_valid.json").write_text(data)
        return ["homology", "--data", str(folder)]

    return case


def npz(*flags, **changed):
    """Return a case: a valid file with some arrays changed; None leaves an array out."""

    def case(folder):
        folder.mkdir()
        arrays = {"x": np.ones((30, 4, 2)), "y": np.arange(30) % 3} | changed
        np.savez(folder / "mine.npz", **{k: v for k, v in arrays.items() if v is not None})
        return [str(folder / "mine.npz"), *flags]

    return case


def file(name, data):
    def case(folder):
        folder.mkdir()
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return [str(folder / name)]

    return case


def with_value(value):
    x = np.ones((30, 4, 2))
    x[7, 2, 1] = value
    return x


def npz_with_a_long_header(folder):
    folder.mkdir()
    header = ("{'descr': '<f8', 'fortran_order': False, 'shape': (30, 4), }" + " " * 12_000 + "\n").encode()
    array = b"\x93NUMPY\x02\0" + struct.pack("<I", len(header)) + header + np.ones((30, 4)).tobytes()
    with zipfile.ZipFile(folder / "mine.npz", "w") as archive:
        archive.writestr("x.npy", array)
    return [str(folder / "mine.npz")]


def npz_cut(folder):
    arguments = npz()(folder)
    path = Path(arguments[0])
    path.write_bytes(path.read_bytes()[:-40])
    return arguments


def h5_ragged(folder):
    folder.mkdir()
    with h5py.File(folder / "mine.h5", "w") as file:
        x = file.create_dataset("x", (5,), dtype=h5py.vlen_dtype(np.float32))
        x[:] = [np.ones(n + 1, np.float32) for n in range(5)]
        file["y"] = np.arange(5) % 2
    return [str(folder / "mine.h5")]


def h5_of_texts(folder):
    folder.mkdir()
    with h5py.File(folder / "mine.h5", "w") as file:
        file["x"], file["y"] = ["a" * 20_000, *["a"] * 10**5], np.arange(10**5 + 1) % 2
    return [str(folder / "mine.h5")]


def h5_cut(folder):
    folder.mkdir()
    with h5py.File(folder / "mine.h5", "w") as file:
        file["x"], file["y"] = np.ones((300, 20, 2)), np.arange(300) % 2
    data = (folder / "mine.h5").read_bytes()
    (folder / "mine.h5").write_bytes(data[: len(data) // 2])
    return [str(folder / "mine.h5")]


CASES = {
    # name: (case, pattern of the message)
    "idx cut short": (idx(replaced(IMAGES, lambda d: d[:-100])), "t10k-images-idx3-ubyte: .* array of size 9308"),
    "idx too long": (idx(replaced(IMAGES, lambda d: d + b"x")), "array of size 9409"),
    "idx of another type": (idx(replaced(IMAGES, lambda d: b"\0\0\x0d\3" + d[4:])), "its header is 00000d03"),
    "idx exchanged": (idx(lambda f: (f / IMAGES).rename(f / LABELS)), "no file t10k-images"),
    "idx empty": (idx(replaced(LABELS, lambda d: b"")), "requires a buffer of 8 bytes"),
    "idx fewer labels": (idx(replaced(LABELS, lambda d: header(8, 11) + d[8:-1])), "12 images and 11 labels"),
    "idx label 10": (idx(replaced(LABELS, lambda d: d[:-1] + b"\n")), "labels up to 10"),
    "idx hostile header": (idx(replaced(IMAGES, lambda d: header(8, 2**32 - 1, 28, 28) + d[16:])), "4,294,967,295"),
    "idx no rows": (idx(replaced(IMAGES, lambda d: header(8, 0, 28, 28))), "0 images and 12 labels"),
    "gzip cut short": (idx(packed_and_cut), "ended before the end-of-stream"),
    "batch cut short": (cifar(in_batch("data_batch_2.bin", lambda d: d[:-5])), "data_batch_2.bin: not a batch"),
    "batch missing": (cifar(lambda f: next(f.rglob("data_batch_5.bin")).unlink()), "no file data_batch_5.bin"),
    "pickle that runs code": (
        cifar(in_batch("data_batch_4", pickled(labels=samples.Payload(Path("ran")))), binary=False),
        "40 images and 0 labels",
    ),
    "pickle cut short": (cifar(in_batch("data_batch_4", lambda d: d[:-9]), binary=False), "not a batch"),
    "pickle without data": (cifar(in_batch("test_batch", pickled(data=3)), binary=False), "not a batch"),
    "pickle of odd labels": (cifar(in_batch("test_batch", pickled(labels=[-1])), binary=False), "-1 out of bounds"),
    "listops other columns": (listops("Text,Label\n1,1\n"), "not Source and Target"),
    "listops wrong value": (listops("Source\tTarget\n[MAX 1 2 ]\t1\n"), "line 2: .*its value is not 1"),
    "listops packed": (listops(gzip.compress(b"Source\tTarget\n")), "not Source"),
    "listops empty": (listops(""), "not Source"),
    "json cut short": (homology('[{"primary": "AC'), "not a complete JSON"),
    "json too deep": (homology("[" * 100_000), "not a complete JSON"),
    "json no list": (homology({"primary": "ACD"}), "not a list of proteins"),
    "own without rows": (npz(x=np.ones((0, 4, 2)), y=np.ones(0)), "x has the shape"),
    "own fewer labels": (npz(y=np.zeros(29)), r"y \(29,\); give one entry of y per row"),
    "own NaN": (npz(x=with_value(np.nan)), "nan in row 7, token 2, column 1"),
    "own infinity": (npz(x=with_value(1e300)), "1e.300 in row 7, token 2, column 1"),
    "own NaN target": (npz(y=np.r_[np.ones(29), np.nan]), "y is nan in row 29, which is not a finite"),
    "own objects": (npz(x=np.array([[1, 2], [3]], dtype=object)), "Python objects.*an array 'lengths'"),
    "own flat": (npz(x=np.ones(30)), r"shape \(30,\)"),
    "own texts": (npz(x=np.full((30, 4), "a")), "and holds <U1 values"),
    "own negative symbols": (npz("--symbols", x=np.full((30, 4), -1)), "row 0, token 0: -1 is not a symbol"),
    "own huge symbols": (npz("--symbols", x=np.full((30, 4), 10**7)), "too large for a symbol; leave out --symbols"),
    "own halves as symbols": (npz("--symbols", x=np.full((30, 4), 0.5)), "row 0, token 0: 0.5 is not a symbol"),
    "own X": (npz(x=None, X=np.ones((30, 4, 2))), "no array 'x'; call the sequences x and the labels y, not X"),
    "own bad lengths": (npz(lengths=np.full(30, 5)), "length 5 in row 0 is not between 1 and 4"),
    "own odd split": (npz(split=np.array(["train", "later"] * 15)), "split is 'later' in row 1"),
    "own no test": (npz(split=np.array(["train", "valid"] * 15)), "the split 'test'"),
    "own few rows": (npz(x=np.ones((2, 4, 2)), y=np.array([0.5, 2])), "give more rows"),
    "own short for the labels": (
        npz(y=np.eye(30, 3, dtype=int)[:, :, None], lengths=np.full(30, 2)),
        "length 2 is not between 3",
    ),
    "npz of Latin-1 labels": (
        npz(y=np.array([b"caf\xe9", b"bar"] * 15)),
        "not a readable .npz archive .'utf-8' codec",
    ),
    "npz with a long header": (npz_with_a_long_header, r"Header info length \(12\d+\) is large"),
    "npz of values near 1e-40": (
        npz(x=1e-40 * np.random.default_rng(0).normal(size=(30, 4, 2))),
        r"column 0 deviate by 9\.\d+e-41, too little for float32",
    ),
    "npz that runs code": (npz(y=np.array([samples.Payload(Path("ran"))] * 30, dtype=object)), "Python objects"),
    "npz cut short": (npz_cut, "not a readable .npz"),
    "h5 ragged": (h5_ragged, "ragged"),
    "h5 cut short": (h5_cut, "not a readable HDF5"),
    "csv of names": (file("mine.csv", f"{','.join(f'a{n}' for n in range(10**5))},a7\n1\n"), "columns are called 'a7'"),
    "jsonl with lone surrogates": (
        file("mine.jsonl", '{"x": ["\\ud800", "b"], "y": 1}\n{"x": ["b", "c"], "y": 0}\n'),
        "line 1: .* surrogates not allowed",
    ),
    "jsonl of other names": (
        file("mine.jsonl", "".join(f'{{"y": 1, "x{n}": 1, "z{n}": 1}}\n' for n in range(10**4))),
        "10,000 rows and 20,001 columns in .* nearly all cells are empty",
    ),
    "h5 of one long text": (h5_of_texts, "claims 2000020000 bytes"),
    "csv of bytes": (file("mine.csv", b"y,a\n\xff\xfe,1\n"), "line 2: not UTF-8"),
    "csv of UTF-16": (
        file("mine.csv", "y,a\n1,2\n".encode("utf-16")),
        "a NUL byte; perhaps run iconv -f UTF-16 -t UTF-8",
    ),
    "csv of Latin-1": (file("mine.csv", "y,a\né,2\n".encode("latin1")), "iconv -f LATIN1 -t UTF-8 .* > NEW.csv"),
    "a file of another kind": (file("mine.docx", "hello"), "files of type '.docx' are not read"),
    "a packed file": (file("mine.csv.gz", "hello"), "files of type '.gz' are not read; unpack it"),
    "an array": (file("x.npy", "hello"), "files of type '.npy' are not read; write the arrays into one file"),
    "no such file": (lambda folder: [str(folder / "none.npz")], "no such file"),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed_files_end_in_one_line_and_leave_no_files(name, tmp_path, cache, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case, expected = CASES[name]
    arguments = case(tmp_path / "data")
    code = run(["prepare", *arguments])
    out, err = capsys.readouterr()
    assert code == 2 and out == ""
    (line,) = err.splitlines()
    assert re.search(expected, line), line
    assert not [p for p in cache.rglob("*") if p.is_file()], "nothing prepared, nothing half-written"
    assert not (tmp_path / "ran").exists() and not (tmp_path / "data" / "ran").exists(), "no payload ran"


MEGABYTE = 2**20


def small_in_memory(name, message, **parameters):
    line, peak = traced(lambda: outcome(read_all, name, **parameters))
    assert message in line, line
    assert peak < 400 * MEGABYTE


def traced(call):
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def zeros(size):
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
    small_in_memory("mnist", "300,000 rows", data=tmp_path)


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


def test_an_array_of_empty_texts_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<U0", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())
    small_in_memory(tmp_path / "mine.npz", "needs 0 bytes")


PICKLES = {
    # Pairs nested sixty deep: each tuple holds the previous one twice, so the last has more than 10^18 leaves.
    "a tuple of tuples": b"\x80\x02K\x01\x85" + b"q\x00h\x00\x86" * 60 + b".",
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
def test_reading_a_pickle_takes_memory_in_proportion_to_its_size(name):
    def read():
        with suppress(ValueError):
            read_pickle(PICKLES[name])

    assert traced(read)[1] < MEGABYTE


def test_a_corpus_that_unpacks_to_gigabytes(tmp_path):
    with gzip.open(tmp_path / "corpus.gz", "wb", compresslevel=1) as file:
        for block in zeros(2**29):
            file.write(block)
    with pytest.raises(InputError, match=r"'text' claims 4\d+ bytes"):
        Text(tmp_path / "corpus.gz")


def test_a_sound_that_is_resampled_to_gigabytes(tmp_path):
    (tmp_path / "a").mkdir()
    pytest.importorskip("soundfile").write(tmp_path / "a" / "a.flac", np.zeros(2**23, np.int16), 1000)
    assert "claims 1073741824 bytes" in outcome(read_all, tmp_path)


def test_a_line_of_listops_without_end(tmp_path):
    good_lines = "Source\tTarget\n" + "( ( ( [MAX 2 ) 3 ) ] )\t3\n" * 3
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text(good_lines)
    with (tmp_path / "basic_train.tsv").open("w") as file:
        file.write("Source\tTarget\n[MAX")
        for _ in range(80):
            file.write(" 1" * 2**19)
        file.write(" ]\t1\n")
    small_in_memory("listops", "do not balance", data=tmp_path)


def test_tables_of_nearly_empty_cells_are_refused(tmp_path):
    (tmp_path / "mine.csv").write_text(2 * f"y{',' * 10**4}\n" + "1\n" * 10**5)
    small_in_memory(tmp_path / "mine.csv", "100,001 rows and 10,001 columns in 220,004 bytes, so nearly all cells are")


def test_one_text_far_longer_than_the_others_is_refused(tmp_path):
    rows = "".join(f"{'ab'[n % 2]},{'ACGT' * (500_000 if n == 7 else 1)}\n" for n in range(1000))
    (tmp_path / "mine.csv").write_text("label,seq\n" + rows)
    small_in_memory(tmp_path / "mine.csv", "row 7: 2000000 tokens, to which all 1000 rows would be padded")


def write_hdf5(path, **datasets):
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(12) % 2
        for name, make in datasets.items():
            make(file, name)
    return path


def test_values_that_lie_in_other_files_are_refused(tmp_path):
    write_hdf5(tmp_path / "other.h5", x=lambda file, name: file.create_dataset(name, data=np.ones((12, 4))))
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
        assert "is not stored in this file alone" in outcome(read_all, write_hdf5(tmp_path / "mine.h5", x=make))


def test_pipes_empty_folders_and_links_out_of_a_folder_are_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.npz")
    assert "not a regular file" in outcome(read_all, tmp_path / "mine.npz")
    with pytest.raises(InputError, match=r"a folder without images, .*\.csv, .* give the path of"):
        open_source(str(tmp_path)).files()
    with pytest.raises(InputError, match="not a regular file"):
        open_source(str(tmp_path / "mine.npz")).files()
    for name in ("A_TRAIN.ts", "A_TEST.ts"):
        (tmp_path / name).symlink_to(__file__)
    assert "A_TRAIN.ts: the file is outside" in outcome(read_all, tmp_path)
    (tmp_path / "A_TRAIN.ts").unlink()
    (tmp_path / "A_TRAIN.ts").write_text(SERIES)
    assert "A_TEST.ts: the file is outside" in outcome(read_all, tmp_path / "A_TRAIN.ts")


HEAD = "@problemName p\n@timeStamps false\n@missing false\n@classLabel true a b\n@data\n"
SERIES = HEAD + "".join(f"{n},2.5,{n % 3}:1,2,{n}:{'ab'[n % 2]}\n" for n in range(12))
BARE = "".join(f"{n % 2}\t{n}.5\t{n}\tNaN\n" for n in range(12))


@pytest.fixture
def refused(cache, refusal):
    return lambda *arguments: refusal("extract", *arguments)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".fasta", ".ts"])
def test_many_megabytes_of_nuls_and_two_encodings_in_one_file(tmp_path, refused, suffix):
    path = tmp_path / f"mine{suffix}"
    path.write_text({".ts": HEAD, ".fasta": ">a b\n"}.get(suffix, "label,text\n"))
    os.truncate(path, 2**26)
    assert "a NUL" in refused(path)
    text = {".ts": SERIES, ".fasta": ">a b\nACGT\n", ".jsonl": '{"text": "a b", "label": 1}\n', ".tsv": BARE}
    path.write_bytes(text.get(suffix, "label,text\na,b c\n").encode() + "é\n".encode("latin-1"))
    assert "not UTF-8" in refused(path)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc which libraries it opens")
@pytest.mark.parametrize(
    ("code", "opened"),
    [
        ("import h5py; h5py.File(path)['x'][:]", True),
        ("from reservoir_cache import open_hdf5; open_hdf5(path)['x'][:]", False),
        ("from reservoir_pipelines.data.hdf5 import datasets; datasets(path)['x'][:8]", False),
        (
            "from reservoir_pipelines.data.hdf5 import read; read(str(path), None)",
            False,
        ),  # reads the file in a child process
        ("from reservoir_pipelines.extraction.feature_files import open_arrays; open_arrays(path, s)['x'][:]", False),
    ],
)
def test_no_library_is_loaded_for_a_filter_that_a_file_names(tmp_path, code, opened):
    path = tmp_path / "mine.h5"
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(8) % 2
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((8, 3))
        properties.set_filter(32123, h5py.h5z.FLAG_OPTIONAL, ())  # nobody has registered this number
        space = h5py.h5s.create_simple((8, 3))
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, space, properties)
        dataset.write_direct_chunk((0, 0), np.zeros((8, 3), "f4").tobytes(), 0)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "libfake.so").write_bytes(b"not a library")
    start = f"from contextlib import ExitStack; from pathlib import Path; path = Path({str(path)!r}); s = ExitStack(); "
    settings = {
        "HDF5_PLUGIN_PATH": str(tmp_path / "plugins"),
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": str(tmp_path / "log"),
    }
    command, quiet = [sys.executable, "-c", start + code], {"capture_output": True, "text": True, "check": False}
    found = subprocess.run(command, env=os.environ | settings, **quiet)
    assert found.returncode == 1 and ("plugin" in found.stderr or "InputError" in found.stderr)
    assert any("libfake.so" in log.read_text() for log in tmp_path.glob("log.*")) == opened


# Damaged and hostile models: each one loads or is refused in one line, and no file outside its folder is read.


TRIALS = 30
WRONG = [None, True, -1, 0, 1, 3, 2**31, 2**62, 1e308, "", "gelu", "../secret", [], [-1], {}, {"a": 1}, [[[]]]]


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value inside nested lists and dictionaries."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutated_json(document: Any, rng: np.random.Generator) -> Any:
    """Return a copy in which one value is removed, doubled or replaced by one of another type or size."""
    root = value = {"document": copy.deepcopy(document)}
    every = list(places(value))
    *above, last = every[rng.integers(len(every))]
    for key in above:
        value = value[key]
    kind = rng.integers(4)
    if kind == 0 and above and isinstance(value, dict):
        del value[last]
    elif kind == 1 and isinstance(value[last], int | float) and not isinstance(value[last], bool):
        value[last] = value[last] * 2 + 1
    else:
        value[last] = copy.deepcopy(WRONG[rng.integers(len(WRONG))])
    return root["document"]


def mutated_safetensors(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a safetensors file with another header, or with bytes changed, repeated or lost in it or anywhere."""
    (size,) = struct.unpack("<Q", data[:8])
    header, rest = data[: 8 + size], data[8 + size :]
    kind = rng.integers(3)
    if kind < 2:
        return mutated(data, rng) if kind else mutated(header, rng) + rest
    text = json.dumps(mutated_json(json.loads(header[8:]), rng)).encode()
    return struct.pack("<Q", len(text)) + text + rest


def load_folder(folder: Path) -> None:
    """Load a folder in each way that ``extract`` supports."""
    family, _ = find(str(folder))
    load_backbone(str(folder), "random")
    load_native(str(folder)) if family.native_input else load_backbone(str(folder), "pretrained")


@pytest.mark.parametrize(
    "kind",
    ["gpt2", "bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "vit", "wav2vec2")), "lstm"],
)
def test_mutated_model_folders_load_or_are_refused(kind: str, tmp_path: Path):
    folder, rng = save(kind, tmp_path / kind), np.random.default_rng(0)
    config = json.loads((folder / "config.json").read_text())
    weights, refused = (folder / "model.safetensors").read_bytes(), 0
    for trial in range(TRIALS):
        (folder / "config.json").write_text(json.dumps(mutated_json(config, rng) if trial % 2 else config))
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(weights if trial % 2 else mutated_safetensors(weights, rng))
        refused += outcome(lambda: load_folder(folder)) != ""
    assert refused > TRIALS / 10
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    load_folder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 2**20, "n_head": 1}, "GB of memory"),
        ({"n_positions": 2**40}, "GB of memory"),
        ({"n_layer": 10**9}, "more than 1,000"),
        ({"model_type": "swin", "depths": [1, 10**9]}, "depths is 1,000,000,001, more than 1,000"),
        ({"model_type": "efficientnet", "num_block_repeats": [1, 10**9]}, "num_block_repeats is 1,000,000,001"),
        ({"model_type": "albert", "inner_group_num": 10**9}, "more than 1,000"),
        ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "more than 1,000"),
        ({"n_head": 0}, "sets attention heads to 0"),
        ({"model_type": {}}, "is not known"),
        ({"model_type": "vit", "num_labels": 10**9}, "more than a million"),
        (None, "not readable"),
    ],
)
def test_configurations_beyond_the_machine_are_refused_before_they_are_built(changes, message, tmp_path: Path):
    folder = save("gpt2", tmp_path / "gpt2")
    config = json.loads((folder / "config.json").read_text())
    nested = '{"model_type": ' + "[" * 10**6
    (folder / "config.json").write_text(json.dumps(config | changes) if changes else nested)
    for init in ("random", "pretrained"):
        assert message in outcome(lambda init=init: load_backbone(str(folder), init))


def test_tokens_without_an_embedding_are_refused(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["vocab"]["cat"] = 25  # the model has 20 embeddings
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    reader = read_tokenizer("bert", folder, 32)
    reader.embeddings = 20
    assert "token ID 25" in outcome(lambda: reader(*codes_of("here", ["the cat"])))


def test_mutated_tokenizers_read_texts_or_are_refused(tmp_path: Path):
    folder, rng = save_with_tokenizer("bert", tmp_path / "bert"), np.random.default_rng(0)
    texts = codes_of("here", ["the cat sat", "a dog <unk> 😀"])
    files = {name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    for trial in range(2 * TRIALS):
        for name, text in files.items():
            mine = trial % 2 == (name == "tokenizer.json")
            (folder / name).write_text(json.dumps(mutated_json(json.loads(text), rng)) if mine else text)
        outcome(lambda: read_tokenizer("bert", folder, 32)(*texts))


def test_a_tokenizer_whose_regular_expression_panics_is_refused(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    rules = json.loads((folder / "tokenizer.json").read_text())
    # Oniguruma gives up after too many steps, and tokenizers then panics.
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(rules | {"pre_tokenizer": split}))
    reader = read_tokenizer("bert", folder, 32)
    line = outcome(lambda: reader(*codes_of("here", ["the cat", "x" * 40])))
    assert "tokenizer: it cannot read the texts (Onig: Regex search error" in line


def test_mutated_gguf_files_are_read_or_refused(tmp_path: Path, monkeypatch):
    pytest.importorskip("gguf")
    file, rng = tmp_path / "model.gguf", np.random.default_rng(0)
    save_as_gguf(save("llama", tmp_path / "model"), file)
    data = file.read_bytes()
    end = data.index(b"token_embd") + 1000  # counts, settings and descriptions precede the values
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / file.name).touch()  # a file of the same name in the current folder is not read
    monkeypatch.chdir(tmp_path / "here")

    def use() -> None:
        load_backbone(str(file), "pretrained")

    assert not outcome(use)
    for _ in range(TRIALS):
        file.write_bytes(mutated(data[:end], rng) + data[end:])
        outcome(use)


METADATA = {"image_processor_type": "OneFormerImageProcessor", "class_info_file": "a.json", "repo_path": "any/data"}
PROCESSOR = {"image_processor_type": "AutoProcessorFastFast"}
ENORMOUS = {"image_processor_type": "ViTImageProcessor", "size": {"height": 5000, "width": 8}}
REFUSED = [
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.0.json"]}, "names other files"),
    ("tokenizer_config.json", {"vocab": "/etc/hostname"}, "names other files, vocab"),
    ("tokenizer_config.json", {"merges": "/etc/hostname"}, "names other files, merges"),
    ("tokenizer_config.json", {"gguf_file": "../secret.gguf"}, "names other files, gguf_file"),
    ("tokenizer_config.json", {"init_inputs": ["/etc/hostname"]}, "names other files, init_inputs"),
    ("special_tokens_map.json", {"vocab_file": "/etc/hostname"}, "'vocab_file', which is not a token"),
    ("preprocessor_config.json", PROCESSOR, "'AutoProcessorFastFast', which is not a BaseImageProcessor"),
    ("preprocessor_config.json", METADATA, "another file, 'a.json'"),
    ("preprocessor_config.json", ENORMOUS, "5,000 pixels, more than"),
]


@pytest.mark.parametrize(("file", "content", "message"), REFUSED)
def test_files_that_name_others_or_make_enormous_images_are_refused(file, content, message, tmp_path: Path):
    folder = str(save("vit", tmp_path / "vit"))
    (tmp_path / "vit" / file).write_text(json.dumps(content))
    reader = open_reader, task_named("digits").task, folder, "pretrained"
    others = (read_tokenizer, "vit", Path(folder), 32) if "token" in file else (load_native, folder)
    assert message in outcome(*(reader if "preprocessor" in file else others))


def test_adapters_indexes_and_settings_that_name_other_weights_are_not_read(tmp_path: Path):
    folder = save("vit", tmp_path / "vit")
    before = content_digest(load_backbone(str(folder), "pretrained").model)
    settings = json.loads((folder / "config.json").read_text()) | {"transformers_weights": "../secret.safetensors"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "a/b"}))
    (folder / "shard-00000-model-00000-of-00001.safetensors").touch()
    assert content_digest(load_backbone(str(folder), "pretrained").model) == before


@pytest.mark.parametrize("where", ["tokenizer_config.json", "config.json"])
def test_a_tokenizer_that_is_another_class_is_refused_and_nobody_is_asked(where: str, tmp_path: Path, monkeypatch):
    folder, marker = save_with_tokenizer("bert", tmp_path / "bert"), tmp_path / "marker"
    (folder / "tokenizer_config.json").write_text("{}")
    settings = json.loads((folder / where).read_text())
    (folder / where).write_text(json.dumps(settings | {"tokenizer_class": "AutoProcessorFast"}))
    (folder / "processor_config.json").write_text(json.dumps({"auto_map": {"AutoProcessor": "code.Reader"}}))
    (folder / "code.py").write_text(f"open(r'{marker}', 'w')\n")
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    assert "not a PreTrainedTokenizerBase" in outcome(read_tokenizer, "bert", folder, 32)
    assert not marker.exists()
