"""Sounds as your own data: a folder of ``.wav`` files by class, a table of their paths, or one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.own.columns import Columns, check_inside, check_padding, files_beside
from reservoir.tasks.own.labels import folder_splits, is_hidden
from reservoir.tasks.own.letters import texts_of
from reservoir.tasks.own.tables import lines_of
from reservoir.tasks.own.wav import BANDS, RATE, frame_count, mel_frames, read_header, read_samples
from reservoir.tasks.task import Task, Vectors

SUFFIX = ".wav"
TABLES = (".csv", ".tsv", ".jsonl")
PIECE_VALUES = 2**25


class Sounds(Columns):
    """Sounds as ``x``, decoded stretch by stretch, beside arrays that are known already."""

    def __init__(self, files: Sequence[Path], arrays: Mapping[str, np.ndarray], rate: int | None, *, waveform: bool):
        self.files, self._rate, self._waveform = list(files), rate or RATE, waveform
        self._wavs = [read_header(file) for file in files]
        samples = np.array([wav.count(self._rate) for wav in self._wavs], np.int64)
        lengths = samples if waveform else np.array([frame_count(int(n), self._rate) for n in samples], np.int64)
        dim = 1 if waveform else BANDS
        check_padding(str(files[int(np.argmax(lengths))]), lengths, 4 * dim)
        shape = (len(files), int(lengths.max()), dim)
        super().__init__({**arrays, "lengths": lengths}, x=(shape, np.dtype(np.float32)))
        self.piece_rows = max(1, PIECE_VALUES // (shape[1] * dim))
        form = "as their samples" if waveform else f"as {BANDS} bands of the mel scale every 10 ms"
        rates = sorted({wav.rate for wav in self._wavs} - {self._rate})
        also = f", brought there from {', '.join(f'{rate:,}' for rate in rates[:5])} Hz" if rates else ""
        longest = samples.max() / self._rate
        self.notes = [f"{len(files):,} sounds of up to {longest:.3g} s, {form}, at {self._rate:,} Hz{also}"]

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the sounds of the rows ``lo`` to ``hi``."""
        x = np.zeros((hi - lo, *self.shapes["x"][1:]), np.float32)
        for row, wav in zip(x, self._wavs[lo:hi], strict=True):
            samples = read_samples(wav, self._rate)
            found = samples[:, None] if self._waveform else mel_frames(samples, self._rate)
            row[: len(found)] = found
        return x


def sound_files(path: Path) -> list[Path]:
    """Return the sounds of a folder and of those in it, in the order of their names; or the one that a path names."""
    found = path.rglob("*") if path.is_dir() else [path]
    named = (file for file in found if file.suffix.lower() == SUFFIX and not is_hidden(file, path))
    return sorted(file for file in named if file.is_file())


def has_sounds(path: Path) -> bool:
    """Return whether a path is a sound, or a folder or a table of such."""
    return bool(sound_files(path)) or (path.is_file() and names_sounds(path))


def holds_samples(task: Task) -> bool:
    """Return whether the sequences of a task are sounds as their samples."""
    return bool(task.parameters.get("waveform")) and task.form == Vectors(1)


def folder_arrays(folder: Path, files: Sequence[Path], *, labelled: bool) -> dict[str, np.ndarray]:
    """Return labels by the folders of files, splits by those above, where they are called so, and names."""
    for file in files if folder.is_dir() else ():
        check_inside(file, folder)
    inside: list[tuple[str, ...]] = [
        file.relative_to(folder).parts if folder != file else (file.name,) for file in files
    ]
    arrays = {"ids": np.array(["/".join(parts) for parts in inside])}
    splits = folder_splits(folder, dict.fromkeys(parts[0] for parts in inside), labelled=labelled)
    split = bool(splits) and all(len(parts) == 3 for parts in inside)
    if split:
        arrays["split"] = np.array([splits[parts[0]] for parts in inside])
    if split or all(len(parts) == 2 for parts in inside):
        arrays["y"] = np.array([parts[-2] for parts in inside])
    elif labelled:
        odd = next(parts for parts in inside if len(parts) != 2)
        raise InputError(f"{folder}: {'/'.join(odd)} is in no folder of a class; put each sound into CLASS/NAME.wav")
    return arrays


def names_sounds(path: Path) -> bool:
    """Return whether a text's second line says so: then the table names sounds, most likely."""
    return path.suffix in TABLES and any(SUFFIX in line.lower() for line in islice(lines_of(path), 2))


def named_sounds(path: Path, columns: Columns) -> list[Path]:
    """Return the files that the texts of a table name, where all of them name sounds; from the table's folder."""
    if not columns.letters or not _all_named(texts_of(*_texts(columns, 1))):
        return []
    texts = texts_of(*_texts(columns, columns.shapes["x"][0]))
    return files_beside(path, texts) if _all_named(texts) else []


def _texts(columns: Columns, rows: int) -> tuple[np.ndarray, np.ndarray]:
    return columns.read("x", 0, rows), columns.read("lengths", 0, rows)


def _all_named(texts: Iterable[str]) -> bool:
    return all(text.lower().endswith(SUFFIX) for text in texts)
