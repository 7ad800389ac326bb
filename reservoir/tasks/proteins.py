"""Remote homology: the fold of a protein from its amino acids, in the data sets of TAPE."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.source import Piece, Source, classes_of, find_file, padded_bytes, read_texts
from reservoir.tasks.task import Split, Task, Tokens

LETTERS = "ACDEFGHIKLMNPQRSTVWY" + "BOUXZ"  # the 20 common amino acids and 5 uncommon ones
AMINO_SYMBOLS = ("<pad>", *LETTERS)  # the vocabulary, which never changes
FOLDS = 1195  # classes of the task: the folds of SCOP in the data of TAPE

PARTS = {  # the part of TAPE for each split
    "train": "train",
    "valid": "valid",
    "test": "test_fold_holdout",
    "test_superfamily": "test_superfamily_holdout",
    "test_family": "test_family_holdout",
}
FOLDERS = ("", "remote_homology", "homology")


@dataclass(frozen=True, kw_only=True)
class Homology(Source):
    """Classify proteins into 1,195 folds.

    TAPE (Rao et al. 2019) holds out whole folds (the split ``test``), superfamilies and families
    (further splits). Proteins longer than ``max_tokens`` are dropped, and counted.
    """

    data: Path | None = None  # the folder with remote_homology_train.json and the other parts
    max_tokens: int = 1024

    raw = "texts of amino acids, or "
    symbols: ClassVar[tuple[str, ...]] = AMINO_SYMBOLS
    splits: ClassVar[tuple[str, ...]] = tuple(PARTS)
    class_count: ClassVar[int] = FOLDS

    @property
    def task(self) -> Task:
        """The description of the task."""
        return Task(
            name="homology",
            form=Tokens(len(self.symbols)),
            max_tokens=self.max_tokens,
            classes=self.class_count,
            parameters={"max_tokens": self.max_tokens},
        )

    def files(self) -> list[Path]:
        """Return one file per split."""
        return [self._file(split) for split in self.splits]

    def pieces(self) -> list[Piece]:
        """Return one piece per file."""
        return [Piece(split, 0, 1) for split in self.splits]

    def read(self, piece: Piece) -> dict[str, Split]:
        """Return the proteins of one file that are short enough, as the split of this file."""
        path = self._file(piece.part)
        with as_input_error(f"{path}: not a complete JSON file", "fetch the file again"):
            records = json.loads(path.read_bytes())
        if not isinstance(records, list):
            raise InputError(
                f"{path}: not a list of proteins", "check that it is a file of TAPE's raw data"
            )
        proteins: list[bytes] = []
        folds: list[int] = []
        for row, record in enumerate(records):
            problem = f"{path}, row {row}: not a protein with 'primary' and 'fold_label'"
            with as_input_error(problem, "fetch the file again"):
                proteins.append(self._encoded(record["primary"]))
                folds.append(record["fold_label"])
                if folds[-1] not in range(FOLDS):
                    raise ValueError(f"its fold_label is {folds[-1]!r}, not in 0..{FOLDS - 1}")
        # The lengths that the model reads decide which proteins are dropped; ids are the numbers in the file.
        x, lengths = padded_bytes(proteins, self.max_tokens)
        lengths = self.lengths_read(lengths, piece.part)
        short_rows = np.flatnonzero(lengths <= self.max_tokens)
        split = Split(
            x=x[short_rows],
            y=classes_of(np.array(folds)[short_rows]),
            lengths=lengths[short_rows],
            dropped=len(proteins) - len(short_rows),
            ids=short_rows,
        )
        return {piece.part: split}

    def lengths_read(self, lengths: np.ndarray, _split: str) -> np.ndarray:
        """Return how many tokens the model reads of each row of a split, from its number of symbols: by default all.

        ``lengths`` and the result are (rows,).
        """
        return lengths

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return an array of texts (rows,), or of symbols (rows, tokens) with lengths, as sequences."""
        are_texts = x.dtype.kind == "U" and x.ndim == 1
        if not are_texts:
            return super().encode(x, lengths)
        proteins = read_texts(x.tolist(), self._encoded, self.max_tokens)
        return padded_bytes(proteins, self.max_tokens)

    def _file(self, split: str) -> Path:
        """Return the file of a split; raise `InputError` if there is none."""
        return find_file("homology", self.data, FOLDERS, (f"remote_homology_{PARTS[split]}.json",))

    def _encoded(self, protein: str) -> bytes:
        """Return the symbols of a protein, one byte each; raise `ValueError` if it is empty or has another letter."""
        if unknown := sorted(set(protein) - set(LETTERS)):
            raise ValueError(f"{unknown[0]!r} is not an amino acid; the letters are {LETTERS}")
        if not protein:
            raise ValueError("it has no amino acids")
        return bytes(map(self.symbols.index, self.words(protein)))

    def words(self, protein: str) -> Sequence[str]:
        """Return the symbols of a protein as texts, by default its letters; a variant of the task has others."""
        return protein
