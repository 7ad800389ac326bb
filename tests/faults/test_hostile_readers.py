"""Damaged and hostile series, sounds and tables: one line, or the data, and exit code 2 on the command line."""

import os
import struct

import numpy as np
import pytest
from scipy.io import wavfile

from reservoir.errors import InputError
from reservoir.tasks import task_named
from tests.faults.test_hostile_files import mutated

HEAD = "@problemName p\n@timeStamps false\n@missing false\n@classLabel true a b\n@data\n"
SERIES = HEAD + "".join(f"{n},2.5,{n % 3}:1,2,{n}:{'ab'[n % 2]}\n" for n in range(12))
BARE = "".join(f"{n % 2}\t{n}.5\t{n}\tNaN\n" for n in range(12))


def outcome(name):
    """Return the one line of an `InputError`, or "" where the data was read."""
    try:
        source = task_named(str(name))
        for piece in source.pieces():
            source.read(piece)
        source.scaling()
    except InputError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def sounds(folder):
    for n in range(10):
        path = folder / "ab"[n % 2] / f"{n}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        wavfile.write(path, 16_000, np.sin(np.arange(300 + n)).astype(np.float32))
    return folder / "a" / "0.wav"


@pytest.mark.parametrize(("name", "text"), [("mine.ts", SERIES), ("mine.tsv", BARE)])
def test_mutated_series_are_read_or_refused(tmp_path, name, text):
    path, refused = tmp_path / name, 0
    path.write_text(text)
    assert outcome(path) == ""
    for copy in mutated(text.encode(), 150, seed=2):
        path.write_bytes(copy)
        refused += bool(outcome(path))
    assert refused > 15


def test_mutated_sounds_are_read_or_refused(tmp_path):
    path = sounds(tmp_path / "calls")
    data, refused = path.read_bytes(), 0
    assert outcome(tmp_path / "calls") == ""
    # Of the header, and what a byte of samples may do.
    for copy in mutated(data[:80], 80, seed=3):
        path.write_bytes(copy + data[80:])
        refused += bool(outcome(tmp_path / "calls"))
    assert refused > 20


@pytest.fixture
def refused(cache, capsys):
    """Return the one line that the command line says of data that it refuses."""
    from reservoir_pipelines.cli import run

    def refuse(*arguments):
        assert run(["extract", *map(str, arguments)]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and "Traceback" not in said.err
        return said.err

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


def test_sounds_with_false_headers_are_refused(tmp_path, refused):
    path = sounds(tmp_path / "calls")
    path.write_bytes(b"\0" * 4096)
    assert "file a/0.wav: not a readable sound" in refused(tmp_path / "calls")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16)
    path.write_bytes(b"RIFF\0\0\0\0WAVE" + form + struct.pack("<4sI", b"data", 0))
    assert "no samples" in refused(tmp_path / "calls")


def test_the_script_of_a_dataset(tmp_path, refused):
    folder = tmp_path / "reviews"
    folder.mkdir()
    (folder / "reviews.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    said = refused(f"hf:{folder}")
    assert "a script, which is not run" in said or "need a package" in said
    assert not (tmp_path / "ran").exists()
