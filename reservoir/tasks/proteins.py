"""Remote homology: the fold of a protein from its amino acids, in the layouts of TAPE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.source import Piece, Source, check_protocol, check_symbols, classes_of, find_file
from reservoir.tasks.tape import read_proteins
from reservoir.tasks.task import Split, Task, Tokens

LETTERS = "ACDEFGHIKLMNPQRSTVWY" + "BOUXZ"
"""The 20 common amino acids and 5 uncommon ones."""

SYMBOLS = ("<pad>", *LETTERS)
"""The vocabulary, fixed for good."""

TAPE_SYMBOLS = ("<pad>", "<mask>", "<cls>", "<sep>", "<unk>", *sorted(LETTERS))
"""The vocabulary of TAPE's tokenizer, which puts ``<cls>`` before a protein and ``<sep>`` behind it."""

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


@dataclass(frozen=True, kw_only=True)
class Homology(Source):
    """Which of 1,195 folds a protein has.

    TAPE (Rao et al. 2019) holds out whole folds, superfamilies and families. The split ``test`` is its headline, the
    held-out folds; ``test_superfamily`` and ``test_family`` are splits of their own. Proteins longer than
    ``max_tokens`` are dropped, and counted.

    ``protocol="paper"`` writes proteins in TAPE's 30 symbols, two of which enclose each and count, reads padding as
    input (the last position is read), and tests on the validation split. The authors pad to the longest of a batch, not
    to ``max_tokens``, and multiply accuracy by the share of sequences that is kept.
    """

    data: Path | None = None  # the folder with remote_homology_train.json and its kin, or the same as .lmdb
    max_tokens: int = 1024
    protocol: str = "ours"

    def __post_init__(self) -> None:
        check_protocol("homology", self.protocol)
        if self.max_tokens < 1:
            raise InputError(f"homology: max_tokens is {self.max_tokens}; give a number above 0")

    @property
    def task(self) -> Task:
        """The description."""
        return Task(
            name="homology",
            form=Tokens(len(self._symbols)),
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
        for row, (sequence, fold) in enumerate(read_proteins(path)):
            if not 0 <= fold < FOLDS:
                raise InputError(f"{path}, row {row}: fold_label is {fold}, not a number from 0 to {FOLDS - 1}")
            letters.append(_amino_acids(f"{path}, row {row}", sequence))
            folds.append(fold)
        longest = self.max_tokens - 2 * self._paper
        kept = [row for row, sequence in enumerate(letters) if len(sequence) <= longest]
        if not kept:
            raise InputError(f"{path}: none of {len(letters)} proteins has {longest} amino acids or less")
        x, lengths = self._rows([letters[row] for row in kept])
        y = classes_of(np.array([folds[row] for row in kept]))
        rows = Split(x=x, y=y, lengths=lengths, dropped=len(letters) - len(kept))
        return {"valid": rows, "test": rows} if self._paper and piece.part == "valid" else {piece.part: rows}

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return an array of texts (rows,), or of symbols (rows, tokens) with lengths, as sequences."""
        if x.dtype.kind == "U" and x.ndim == 1:
            texts = [_amino_acids(f"row {row}", text) for row, text in enumerate(x.tolist())]
            longest = self.max_tokens - 2 * self._paper
            if max(map(len, texts)) > longest:
                row = int(np.argmax([len(text) for text in texts]))
                raise InputError(f"row {row}: {len(texts[row])} amino acids; the task has at most {longest}")
            return self._rows(texts)
        return check_symbols(self.task, x, lengths, "texts of amino acids")

    def notes(self) -> list[str]:
        """Return by what the authors multiply the accuracy."""
        if not self._paper:
            return []
        rows = self.read(Piece("valid", 0, 1))["valid"]
        share = len(rows) / (len(rows) + rows.dropped)
        return [f"homology: the authors multiply accuracy by the share of sequences that is kept, here {share:.4f}"]

    @property
    def _paper(self) -> bool:
        return self.protocol == "paper"

    @property
    def _symbols(self) -> tuple[str, ...]:
        return TAPE_SYMBOLS if self._paper else SYMBOLS

    @property
    def _splits(self) -> list[str]:
        return ["train", "valid"] if self._paper else list(PARTS)

    def _file(self, split: str) -> Path:
        name = f"remote_homology_{PARTS[split]}"
        # A database is a folder with a file data.mdb, or that file alone.
        return find_file("homology", self.data, FOLDERS, (f"{name}.json", f"{name}.lmdb/data.mdb", f"{name}.lmdb"))

    def _rows(self, proteins: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return proteins, as code points, as symbols with zeros behind, and their lengths."""
        place = np.zeros(128, np.uint8)
        place[[ord(letter) for letter in LETTERS]] = [self._symbols.index(letter) for letter in LETTERS]
        x = np.zeros((len(proteins), self.max_tokens), np.uint8)
        first = int(self._paper)
        for row, letters in enumerate(proteins):
            x[row, first : first + len(letters)] = place[letters]
        lengths = np.array([len(letters) for letters in proteins], np.int32)
        if not self._paper:
            return x, lengths
        x[:, 0] = TAPE_SYMBOLS.index("<cls>")
        x[np.arange(len(x)), lengths + 1] = TAPE_SYMBOLS.index("<sep>")
        return x, np.full_like(lengths, self.max_tokens)


def _amino_acids(where: str, text: str) -> np.ndarray:
    """Return the letters of a protein as code points, or refuse it."""
    letters = np.frombuffer(text.encode("latin-1", "replace"), np.uint8)
    if not len(letters):
        raise InputError(f"{where}: an empty sequence")
    known = np.isin(letters, np.frombuffer(LETTERS.encode(), np.uint8))
    if not known.all():
        place = int(np.argmin(known))
        raise InputError(f"{where}, letter {place}: {text[place]!r} is no amino acid; they are {LETTERS}")
    return letters
