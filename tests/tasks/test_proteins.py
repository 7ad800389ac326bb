import json
import string

import numpy as np
import pytest

from reservoir.errors import InputError
from reservoir.tasks import Tokens, check_split, encode, task_named
from reservoir.tasks.proteins import LETTERS, PARTS, batch_lengths


def proteins(rows=12, seed=0, longest=40):
    rng = np.random.default_rng(seed)
    return [
        {
            "id": f"d{seed}{row}",
            "primary": "".join(rng.choice(list(LETTERS), rng.integers(1, longest))),
            "fold_label": int(rng.integers(0, 1195)),
        }
        for row in range(rows)
    ]


def write(folder, **changed):
    """Write the five parts and return them by split."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {split: proteins(seed=i) for i, split in enumerate(PARTS)} | changed
    for split, records in parts.items():
        (folder / f"remote_homology_{PARTS[split]}.json").write_text(json.dumps(records))
    return parts


def read(source):
    splits = {}
    for piece in source.pieces():
        splits |= source.read(piece)
    for name, split in splits.items():
        check_split(source.task, name, split)
    return splits


def texts(split):
    return ["".join(LETTERS[s - 1] for s in x[:n]) for x, n in zip(split.x, split.lengths, strict=True)]


def test_the_files_of_tape_give_the_proteins(tmp_path):
    parts = write(tmp_path / "remote_homology")
    source = task_named("homology", data=tmp_path)
    assert len(source.files()) == 5 and all(file.is_file() for file in source.files())
    for split, rows in read(source).items():
        assert texts(rows) == [record["primary"] for record in parts[split]]
        assert rows.y.ravel().tolist() == [record["fold_label"] for record in parts[split]]


def test_proteins_that_are_too_long_are_dropped_and_counted(tmp_path):
    parts = write(tmp_path)
    lengths = [len(record["primary"]) for record in parts["train"]]
    edge = sorted(lengths)[6]
    ours = read(task_named("homology", data=tmp_path, max_tokens=edge))
    assert ours["train"].dropped == sum(n > edge for n in lengths) > 0
    assert len(ours["train"]) + ours["train"].dropped == 12
    paper = read(task_named("homology", data=tmp_path, max_tokens=edge, protocol="paper", batch=1))
    assert paper["train"].dropped == sum(n + 2 > edge for n in lengths) > ours["train"].dropped
    assert set(paper) == {"train", "valid", "test"} and np.array_equal(paper["test"].x, paper["valid"].x)


def test_the_papers_protocol_writes_proteins_as_tape_does(tmp_path):
    parts = write(tmp_path)
    source = task_named("homology", data=tmp_path, max_tokens=30, protocol="paper", batch=1)
    assert source.task.form == Tokens(30)
    valid = read(source)["valid"]
    # TAPE's vocabulary: padding, mask, class, separator, unknown, then the letters from A (5) to Z (29), without J.
    alphabet = [letter for letter in string.ascii_uppercase if letter != "J"]
    texts = [record["primary"] for record in parts["valid"]]
    # Four rows a batch, of like length; each is read up to the longest of its batch, and all go where that is too long.
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    longest = {row: len(texts[order[at // 4 * 4 + 3]]) + 2 for at, row in enumerate(order)}
    kept = [row for row in range(len(texts)) if longest[row] <= 30]
    assert 0 < len(kept) < len(texts) and valid.lengths.tolist() == [longest[row] for row in kept]
    texts = [texts[row] for row in kept]
    for row, text in zip(valid.x.tolist(), texts, strict=True):
        assert row == [2, *(5 + alphabet.index(letter) for letter in text), 3, *[0] * (28 - len(text))]
    x, lengths = encode(source.task, np.array(texts))
    assert np.array_equal(x, valid.x) and np.array_equal(lengths, valid.lengths)
    again = encode(source.task, x)
    assert np.array_equal(again[0], x) and np.array_equal(again[1], lengths)
    with pytest.raises(InputError, match="29 amino acids; the task has at most 28"):
        encode(source.task, np.array(["A" * 29]))


def test_batches_of_like_length_are_dealt_among_a_hundred():
    lengths = np.random.default_rng(0).integers(5, 900, 523)
    expected = np.zeros_like(lengths)
    for bucket in (range(200), range(200, 400), range(400, 523)):
        rows = sorted(bucket, key=lambda row: lengths[row])
        for pair in zip(rows[::2], [*rows[1::2], rows[-1]], strict=False):
            expected[list(pair)] = max(lengths[row] for row in pair)
    assert np.array_equal(batch_lengths(lengths, 2), expected)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"primary": "ACJD", "fold_label": 3}, r"row 2, letter 2: 'J' is no amino acid"),
        ({"primary": "ACd", "fold_label": 3}, r"letter 2: 'd'"),
        ({"primary": "ACé", "fold_label": 3}, r"letter 2: 'é'"),
        ({"primary": "", "fold_label": 3}, "an empty sequence"),
        ({"primary": "ACD", "fold_label": 1195}, "fold_label is '1195'"),
        ({"primary": "ACD"}, "fold_label is 'None'"),
        ({"primary": 5, "fold_label": 1}, "primary is int"),
        ("ACD", "no record"),
    ],
)
def test_a_bad_record_is_named(tmp_path, record, message):
    write(tmp_path, valid=[*proteins(2), record])
    source = task_named("homology", data=tmp_path)
    with pytest.raises(InputError, match=message):
        read(source)
