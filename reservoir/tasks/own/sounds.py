"""Your own sounds, ``.wav`` files, as frames of a mel spectrum or as their samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from reservoir.tasks.own.columns import Columns, check_padding
from reservoir.tasks.own.wav import BANDS, RATE, frame_count, mel_frames, read_header, read_samples
from reservoir.tasks.task import Task, Vectors

PIECE_VALUES = 2**25


class Sounds(Columns):
    """Sounds as ``x``, decoded stretch by stretch, beside arrays that are known already."""

    unheard = ()

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


def holds_samples(task: Task) -> bool:
    """Return whether the sequences of a task are sounds as their samples."""
    return bool(task.parameters.get("waveform")) and task.form == Vectors(1)
