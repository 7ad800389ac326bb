"""Remote homology: the fold of a protein from its amino acids, in the layouts of TAPE."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.source import Piece, Source, classes_of, find_file
from reservoir.tasks.task import Split, Task, Tokens
from reservoir.tasks.unpickle import UnsafePickle, read_pickle

LETTERS = "ACDEFGHIKLMNPQRSTVWY" + "BOUXZ"
"""The 20 common amino acids and 5 uncommon ones; the first is symbol 1, and 0 is padding."""

FOLDS = 1195

PARTS = {
    "train": "train",
    "valid": "valid",
    "test": "test_fold_holdout",
    "test_superfamily": "test_superfamily_holdout",
    "test_family": "test_family_holdout",
}
"""Splits, and the parts of TAPE they come from."""

FOLDERS = ("", "remote_homology", "homology")

_SYMBOLS = np.zeros(256, np.uint8)
_SYMBOLS[np.frombuffer(LETTERS.encode(), np.uint8)] = np.arange(1, len(LETTERS) + 1)


@dataclass(frozen=True, kw_only=True)
class Homology(Source):
    """Which of 1,195 folds a protein has.

    TAPE (Rao et al. 2019) holds out whole folds, superfamilies and families. The split ``test`` is its headline, the
    held-out folds; ``test_superfamily`` and ``test_family`` are splits of their own. Proteins longer than
    ``max_tokens`` are dropped, and counted.

    ``protocol="paper"`` drops proteins of ``max_tokens`` or longer, reads padding as input (the last position is read),
    and tests on the validation split.
    """

    data: Path | None = None  # the folder with remote_homology_train.json and its kin, or the same as .lmdb
    max_tokens: int = 1024
    protocol: str = "ours"

    def __post_init__(self) -> None:
        if self.protocol not in {"ours", "paper"}:
            raise InputError(f"homology: protocol is {self.protocol!r}; give ours or paper")
        if self.max_tokens < 1:
            raise InputError(f"homology: max_tokens is {self.max_tokens}; give a number above 0")

    @property
    def task(self) -> Task:
        """The description."""
        return Task(
            name="homology",
            form=Tokens(len(LETTERS) + 1),
            max_tokens=self.max_tokens,
            classes=FOLDS,
            parameters={"max_tokens": self.max_tokens, "protocol": self.protocol},
        )

    def files(self) -> list[Path]:
        """Return one file per split."""
        return [self._file(split) for split in self._splits]

    def pieces(self) -> list[Piece]:
        """Return one piece per file."""
        return [Piece(split, 0, 1) for split in self._splits]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the proteins of one file that are short enough."""
        path = self._file(piece.part)
        letters, folds = [], []
        for row, record in enumerate(_records(path)):
            sequence, fold = _fields(f"{path}, row {row}", record)
            letters.append(sequence)
            folds.append(fold)
        longest = self.max_tokens - (self.protocol == "paper")
        kept = [row for row, sequence in enumerate(letters) if len(sequence) <= longest]
        if not kept:
            raise InputError(f"{path}: none of {len(letters)} proteins has {longest} amino acids or less")
        x, lengths = self._rows([letters[row] for row in kept])
        y = classes_of(np.array([folds[row] for row in kept]))
        rows = Split(x=x, y=y, lengths=lengths, dropped=len(letters) - len(kept))
        return (
            {"valid": rows, "test": rows} if self.protocol == "paper" and piece.part == "valid" else {piece.part: rows}
        )

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return an array of texts (rows,), or of symbols (rows, tokens) with lengths, as sequences."""
        if x.dtype.kind == "U" and x.ndim == 1:
            texts = [_amino_acids(f"row {row}", text) for row, text in enumerate(x.tolist())]
            if max(map(len, texts)) > self.max_tokens:
                row = int(np.argmax([len(text) for text in texts]))
                raise InputError(f"row {row}: {len(texts[row])} amino acids; the task has at most {self.max_tokens}")
            return self._rows(texts)
        if x.ndim != 2 or x.dtype.kind not in "ui" or x.shape[1] > self.max_tokens or x.max() > len(LETTERS):
            raise InputError(
                f"task 'homology': inputs of shape {x.shape} and type {x.dtype}; give texts of amino acids, or "
                f"symbols of shape (rows, at most {self.max_tokens})"
            )
        return x, np.maximum((x != 0).sum(axis=1), 1).astype(np.int32) if lengths is None else lengths

    @property
    def _splits(self) -> list[str]:
        return ["train", "valid"] if self.protocol == "paper" else list(PARTS)

    def _file(self, split: str) -> Path:
        name = f"remote_homology_{PARTS[split]}"
        # A database is a folder with a file data.mdb, or that file alone.
        return find_file("homology", self.data, FOLDERS, (f"{name}.json", f"{name}.lmdb/data.mdb", f"{name}.lmdb"))

    def _rows(self, sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        x = np.zeros((len(sequences), self.max_tokens), np.uint8)
        lengths = np.array([len(sequence) for sequence in sequences], np.int32)
        for row, sequence in enumerate(sequences):
            x[row, : len(sequence)] = sequence
        return x, np.full_like(lengths, self.max_tokens) if self.protocol == "paper" else lengths


def _records(path: Path) -> Iterator[Any]:
    """Yield the records of a JSON file or a database."""
    if path.suffix == ".json":
        try:
            records = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: no complete JSON ({error}); fetch the file again") from None
        if not isinstance(records, list) or not records:
            raise InputError(f"{path}: no list of proteins; is it a file of TAPE's raw data?")
        yield from records
        return
    yield from _database(path)


def _database(path: Path) -> Iterator[Any]:
    try:
        import lmdb
    except ImportError:
        raise InputError(f"{path}: LMDB needs a package: pip install lmdb; or fetch TAPE's JSON files") from None
    try:
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as view:
            number = read_pickle(view.get(b"num_examples") or b"")
            if type(number) is not int or number < 1:
                raise InputError(f"{path}: 'num_examples' is {number!r}; fetch the database again")
            for row in range(number):
                record = view.get(str(row).encode())
                if record is None:
                    raise InputError(f"{path}: record {row} of {number} is missing; fetch the database again")
                yield read_pickle(bytes(record))
    except UnsafePickle as error:
        raise InputError(f"{path}: refused, as a record holds {error}; fetch the database again") from None
    except lmdb.Error as error:
        raise InputError(f"{path}: no readable database ({error}); fetch it again") from None


def _fields(where: str, record: Any) -> tuple[np.ndarray, int]:
    """Return the symbols and the fold of a record."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: no record with 'primary' and 'fold_label', but {type(record).__name__}")
    sequence, fold = (record.get(name, record.get(name.encode())) for name in ("primary", "fold_label"))
    if isinstance(fold, np.ndarray) and fold.size == 1 and fold.dtype.kind in "ui":
        fold = int(fold.item())
    if type(fold) is not int or not 0 <= fold < FOLDS:
        raise InputError(f"{where}: fold_label is {fold!r}, not a number from 0 to {FOLDS - 1}")
    if isinstance(sequence, bytes):
        sequence = sequence.decode("latin-1")
    if not isinstance(sequence, str):
        raise InputError(f"{where}: primary is {type(sequence).__name__}, not a text of amino acids")
    return _amino_acids(where, sequence), fold


def _amino_acids(where: str, text: str) -> np.ndarray:
    symbols = _SYMBOLS[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    if not len(symbols):
        raise InputError(f"{where}: an empty sequence")
    if not symbols.all():
        place = int(np.argmin(symbols))
        raise InputError(f"{where}, letter {place}: {text[place]!r} is no amino acid; they are {LETTERS}")
    return symbols
