"""Remote homology: the fold of a protein from its amino acids, in the data sets of TAPE."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.source import Piece, Source, classes_of, find_file, padded, read_texts
from reservoir.tasks.task import Split, Task, Tokens

LETTERS = "ACDEFGHIKLMNPQRSTVWY" + "BOUXZ"  # the 20 common amino acids and 5 uncommon ones
SYMBOLS = ("<pad>", *LETTERS)  # the vocabulary, which never changes
TAPE_SYMBOLS = ("<pad>", "<mask>", "<cls>", "<sep>", "<unk>", *sorted(LETTERS))  # of TAPE's tokenizer
FOLDS = 1195
PAPER_OUTPUTS = 1200  # outputs of the authors' output layer; five of them are unused

PARTS = {  # the part of TAPE for each split
    "train": "train",
    "valid": "valid",
    "test": "test_fold_holdout",
    "test_superfamily": "test_superfamily_holdout",
    "test_family": "test_family_holdout",
}
FOLDERS = ("", "remote_homology", "homology")
BUCKET = 100  # number of batches that TAPE's loader sorts by length together


@dataclass(frozen=True, kw_only=True)
class Homology(Source):
    """Classify proteins into 1,195 folds.

    TAPE (Rao et al. 2019) holds out whole folds (the split ``test``), superfamilies and families
    (further splits). Proteins longer than ``max_tokens`` are dropped, and counted.

    ``protocol="paper"`` uses TAPE's 30 symbols, ``<cls>`` and ``<sep>`` as tokens, and 1,200 outputs,
    and tests on the validation split, so that `train` scores its last step there and chooses none. As
    in the code of Lu et al. (2021), each protein is padded to the longest of its batch, the last position
    is read, and whole batches longer than ``max_tokens`` are dropped. `batch_lengths` assigns the
    batches of prepared data: ``batch`` rows for training and four times as many for validation. `train`
    draws new training batches in each epoch.
    """

    data: Path | None = None  # the folder with remote_homology_train.json and the other parts
    max_tokens: int = 1024
    protocol: str = "ours"
    batch: int = 2  # rows of a batch under the paper's protocol, padded to one length

    raw = "texts of amino acids, or "
    paper_valid_is_test = True

    @property
    def task(self) -> Task:
        """The description of the task."""
        return Task(
            name="homology",
            form=Tokens(len(self._symbols)),
            max_tokens=self.max_tokens,
            classes=PAPER_OUTPUTS if self._paper else FOLDS,
            parameters={"max_tokens": self.max_tokens, "protocol": self.protocol}
            | ({"batch": self.batch} if self._paper else {}),
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
        with as_input_error(f"{path}: not a complete JSON file", "fetch the file again"):
            records = json.loads(path.read_bytes())
        if not isinstance(records, list):
            raise InputError(
                f"{path}: not a list of proteins", "check that it is a file of TAPE's raw data"
            )
        proteins, folds = [], []
        for row, record in enumerate(records):
            problem = f"{path}, row {row}: not a protein with 'primary' and 'fold_label'"
            with as_input_error(problem, "fetch the file again"):
                proteins.append(self._encoded(record["primary"]))
                folds.append(record["fold_label"])
                if folds[-1] not in range(FOLDS):
                    raise ValueError(f"its fold_label is {folds[-1]!r}, not in 0..{FOLDS - 1}")
        x, lengths = self._padded(proteins, self.batch if piece.part == "train" else 4 * self.batch)
        kept = np.flatnonzero(lengths <= self.max_tokens)
        y = classes_of(np.array(folds)[kept])
        rows = Split(x=x[kept], y=y, lengths=lengths[kept], dropped=len(proteins) - len(kept), ids=kept)
        return (
            {"valid": rows, "test": rows} if self._paper and piece.part == "valid" else {piece.part: rows}
        )

    def encode(self, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return an array of texts (rows,), or of symbols (rows, tokens) with lengths, as sequences."""
        if x.dtype.kind == "U" and x.ndim == 1:
            return self._padded(read_texts(x.tolist(), self._encoded, self.max_tokens), 4 * self.batch)
        x, found = super().encode(x, lengths)
        return x, batch_lengths(found, 4 * self.batch) if self._paper and lengths is None else found

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
        return find_file("homology", self.data, FOLDERS, (f"remote_homology_{PARTS[split]}.json",))

    def _encoded(self, protein: str) -> bytes:
        """Return the symbols of a protein; raise `ValueError` if it is empty or has another letter."""
        if unknown := sorted(set(protein) - set(LETTERS)):
            raise ValueError(f"{unknown[0]!r} is not an amino acid; the letters are {LETTERS}")
        if not protein:
            raise ValueError("it has no amino acids")
        return bytes(map(self._symbols.index, ("<cls>", *protein, "<sep>") if self._paper else protein))

    def _padded(self, proteins: list[bytes], batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return symbols (rows, max_tokens), and lengths (rows,), with padding under the paper's protocol."""
        x, lengths = padded(proteins, self.max_tokens)
        return x, batch_lengths(lengths, batch) if self._paper else lengths


def batch_lengths(lengths: np.ndarray, batch: int) -> np.ndarray:
    """Return the longest length in each row's batch; batches are those of TAPE's loader, without shuffling."""
    padded = np.empty_like(lengths)
    for rows in similar_lengths(lengths, batch):
        padded[rows] = lengths[rows].max()
    return padded


def similar_lengths(lengths: np.ndarray, batch: int) -> list[np.ndarray]:
    """Return the rows of each batch; as in TAPE's loader, `BUCKET` batches at a time are sorted by length."""
    batches = []
    for start in range(0, len(lengths), BUCKET * batch):
        bucket = start + np.argsort(lengths[start : start + BUCKET * batch], kind="stable")
        batches += [bucket[first : first + batch] for first in range(0, len(bucket), batch)]
    return batches
