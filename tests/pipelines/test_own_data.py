"""Own data is known by its content, and prepared data by its bytes."""

import json

import numpy as np
import pytest
from reservoir_pipelines import extract, prepare
from reservoir_pipelines.cli import run
from reservoir_pipelines.extraction.extract import find_entry

from reservoir import InputError

SHAPE = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random", "layers": "final"}


def write(path, seed):
    draw = np.random.default_rng(seed)
    path.parent.mkdir(exist_ok=True)
    np.savez(path, x=draw.normal(size=(60, 8, 2)), y=draw.integers(0, 2, 60))
    return path


def test_files_of_one_name_are_told_apart(cache, tmp_path):
    first, second = write(tmp_path / "a" / "data.npz", 1), write(tmp_path / "b" / "data.npz", 2)
    of_first = extract(str(first), **SHAPE).entry
    with pytest.raises(InputError, match=r"what is cached under this name was made of .*a.data\.npz"):
        find_entry(cache, str(second))
    of_second = extract(str(second), **SHAPE).entry
    assert find_entry(cache, str(first)).path == of_first
    assert find_entry(cache, str(second)).path == of_second


def test_a_changed_file_is_not_fitted_with_old_features(cache, tmp_path):
    path = write(tmp_path / "a" / "data.npz", 1)
    before = extract(str(path), **SHAPE).entry
    write(path, 2)
    with pytest.raises(InputError, match="has changed since it was extracted; run reservoir extract"):
        find_entry(cache, str(path))
    after = extract(str(path), **SHAPE).entry
    assert find_entry(cache, str(path)).path == after != before
    write(path, 1)  # as it was: another time of change, the same content
    assert find_entry(cache, str(path)).path == before


def test_a_flipped_bit_of_prepared_data_is_found_and_mended(cache, tmp_path):
    path = str(write(tmp_path / "a" / "data.npz", 1))
    prepared = prepare(path)
    whole = {file: file.read_bytes() for file in prepared.path.rglob("*") if file.is_file()}
    for file, content in whole.items():
        for at in range(0, len(content), 1 + len(content) // 5):
            damaged = bytearray(content)
            damaged[at] ^= 16
            file.write_bytes(damaged)
            again = prepare(path)
            assert not again.reused
            assert again.digest == prepared.digest
            assert file.read_bytes() == content


def letters(path, rows, seed, *, labelled=True):
    """Write a table of DNA, or a FASTA file of proteins, of which one letter is commoner in one class."""
    draw = np.random.default_rng(seed)
    lines = [] if path.suffix == ".fasta" else ["sequence,label" if labelled else "sequence"]
    for row in range(rows):
        text = "".join(draw.choice([*"ACGT", *("A" if row % 2 else "C") * 3], draw.integers(20, 40)))
        kind = ["left", "right"][row % 2] if labelled else ""
        lines.append(
            f">s{row} {kind}\n{text[:15]}\n{text[15:]}" if path.suffix == ".fasta" else f"{text},{kind}".strip(",")
        )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".fasta"])
def test_new_letters_are_labelled_in_the_form_of_the_old(cache, tmp_path, capsys, suffix):
    """Tables of pictures and texts: `test_pictures`, `test_native`."""
    file, new = letters(tmp_path / f"old{suffix}", 80, 0), letters(tmp_path / f"new{suffix}", 6, 1, labelled=False)
    small = ["--backbone", SHAPE["backbone"], "--init", "random"]
    assert run(["extract", file, *small]) == run(["fit", file, "--out", str(tmp_path / "readout")]) == 0
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "readout"), new]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in found] == ["left", "right"] * 3
    assert suffix == ".csv" or [row["id"] for row in found] == [f"s{row}" for row in range(6)]


def test_a_note_says_which_share_of_letters_windows_cover(cache, call, tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    rows = ["".join(draw.choice(list("ACGT"), 60)) + f",{n % 2}" for n in range(40)]
    (tmp_path / "dna.csv").write_text("\n".join(["sequence,label", *rows]) + "\n")
    messages = []
    for most, more in ((2**21, ("--pool", "max")), (40 * 6, ("--pool", "min")), (40 * 6, ("--stride", 5))):
        monkeypatch.setattr("reservoir.plan.MAX_TOKENS", most)
        messages.append(call("extract", tmp_path / "dna.csv", "--layers", "embed", *more)[2])
    assert ["windows of" in text for text in messages] == [False, True, False]
    assert "windows of 5 with stride 10 cover 50% of each row; --stride 5 covers more" in messages[1]
