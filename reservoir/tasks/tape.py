"""The records of TAPE's remote homology: JSON files, or databases, whose library works in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.isolated import Isolated
from reservoir.tasks.unpickle import UnsafePickle, read_pickle

RECORDS = 1000
"""Records of a database that are read at a time."""


def read_proteins(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the letters and the fold of each protein."""
    if path.suffix == ".json":
        try:
            records = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: no complete JSON ({error}); fetch the file again") from None
        if not isinstance(records, list) or not records:
            raise InputError(f"{path}: no list of proteins; is it a file of TAPE's raw data?")
        yield from (_fields(f"{path}, row {row}", record) for row, record in enumerate(records))
        return
    database = Isolated(__name__, path)
    number = database.ask(lo=0, hi=0)
    for lo in range(0, number, RECORDS):
        yield from database.ask(lo=lo, hi=min(lo + RECORDS, number))


def answer(path: Path, request: dict[str, Any]) -> Any:
    """Return the number of records, or some of them: called in the process that may die of it."""
    try:
        import lmdb
    except ImportError:
        raise InputError(f"{path}: LMDB needs a package: pip install lmdb; or fetch TAPE's JSON files") from None
    try:
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as view:
            if not request["hi"]:
                number = read_pickle(view.get(b"num_examples") or b"")
                if type(number) is not int or number < 1:
                    raise InputError(f"{path}: 'num_examples' is no number; fetch the database again")
                return number
            records = []
            for row in range(request["lo"], request["hi"]):
                record = view.get(str(row).encode())
                if record is None:
                    raise InputError(f"{path}: record {row} is missing; fetch the database again")
                records.append(_fields(f"{path}, row {row}", read_pickle(bytes(record))))
            return records
    except UnsafePickle as error:
        raise InputError(f"{path}: refused, as a record holds {error}; fetch the database again") from None
    except lmdb.Error as error:
        raise InputError(f"{path}: no readable database ({error}); fetch it again") from None


def _fields(where: str, record: Any) -> tuple[str, int]:
    if not isinstance(record, dict):
        raise InputError(f"{where}: no record with 'primary' and 'fold_label', but {type(record).__name__}")
    sequence, fold = (record.get(name, record.get(name.encode())) for name in ("primary", "fold_label"))
    if isinstance(fold, np.ndarray) and fold.size == 1 and fold.dtype.kind in "ui":
        fold = int(fold.item())
    if type(fold) is not int:
        raise InputError(f"{where}: fold_label is {str(fold)[:40]!r}, not a number")
    if isinstance(sequence, bytes):
        sequence = sequence.decode("latin-1")
    if not isinstance(sequence, str):
        raise InputError(f"{where}: primary is {type(sequence).__name__}, not a text of amino acids")
    return sequence, fold
