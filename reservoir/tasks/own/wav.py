"""Sounds: ``.wav`` files as samples of one channel at one rate, and as frames of a mel spectrum."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reservoir.errors import InputError

RATE = 16_000
"""Samples per second where nothing else is said: what models of speech take."""

RATES = (1_000, 768_000)
BANDS = 40
WINDOW, STEP = 0.025, 0.010
"""Seconds that a frame spans, and from one frame to the next."""

LOWEST = 20.0
FLOOR = 1e-8
"""Power that silence is taken to have: a step of 16 bits is 1e-9 of the loudest."""

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
KINDS = {(PCM, 8): "u1", (PCM, 16): "<i2", (PCM, 24): "u1", (PCM, 32): "<i4", (FLOAT, 32): "<f4", (FLOAT, 64): "<f8"}


class Wav(NamedTuple):
    """What a header says, checked against the size of the file."""

    path: Path
    kind: tuple[int, int]  # format, bits
    channels: int
    rate: int
    start: int  # of the samples in the file
    frames: int  # samples of each channel

    def count(self, rate: int) -> int:
        """Return the number of samples at another rate."""
        ratio = _ratio(rate, self.rate)
        return -(-self.frames * ratio.numerator // ratio.denominator)


def read_header(path: Path) -> Wav:
    """Return what the header of a file says; an `InputError` says what is wrong with it."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            begin = file.read(12)
            if begin[:4] != b"RIFF" or begin[8:] != b"WAVE":
                raise InputError(f"{path}: no WAV file; write it as PCM or float WAV, such as ffmpeg -i OLD NEW.wav")
            form, at = b"", 12
            while True:
                file.seek(at)
                name, length = struct.unpack("<4sI", file.read(8))
                if name == b"data":
                    return _checked(path, form, at + 8, length, size)
                if name == b"fmt ":
                    form = file.read(min(length, 40))
                at += 8 + length + length % 2
    except struct.error:
        raise InputError(f"{path}: no samples; the file ends inside its header") from None
    except OSError as error:
        raise InputError(f"{path}: not readable ({error.strerror})") from None


def read_samples(wav: Wav, rate: int) -> np.ndarray:
    """Return the samples of a file at a rate, the mean of its channels, float32 from -1 to 1."""
    kind, bits = wav.kind
    width = wav.channels * bits // 8
    raw = np.fromfile(
        wav.path, KINDS[wav.kind], wav.frames * width // np.dtype(KINDS[wav.kind]).itemsize, "", wav.start
    )
    if kind == FLOAT:
        with np.errstate(invalid="ignore"):  # what is no number is refused below
            values = raw.astype(np.float64)
    elif bits == 24:
        three = raw.reshape(-1, 3).astype(np.int32)
        values = ((three[:, 0] << 8 | three[:, 1] << 16 | three[:, 2] << 24) >> 8) / 2.0**23
    else:
        values = (raw.astype(np.float64) - (128 if bits == 8 else 0)) / 2.0 ** (bits - 1)
    mono = values.reshape(wav.frames, wav.channels).mean(axis=1)
    if not np.isfinite(mono).all():
        raise InputError(f"{wav.path}: sample {int(np.argmin(np.isfinite(mono)))} is not finite; write the file again")
    ratio = _ratio(rate, wav.rate)
    if ratio != 1:
        from scipy.signal import resample_poly

        mono = resample_poly(mono, ratio.numerator, ratio.denominator)
    return mono.astype(np.float32)


def frame_count(samples: int, rate: int) -> int:
    """Return the frames of so many samples; a sound shorter than a frame has one."""
    return 1 + max(0, samples - round(WINDOW * rate)) // round(STEP * rate)


def mel_frames(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return the logarithm of the power in `BANDS` bands, equally wide on the mel scale, (frames, bands) of float32."""
    window, step = round(WINDOW * rate), round(STEP * rate)
    padded = np.pad(samples, (0, max(0, window - len(samples))))
    cut = np.lib.stride_tricks.sliding_window_view(padded, window)[::step]
    size = 1 << (window - 1).bit_length()
    power = np.abs(np.fft.rfft(cut * np.hanning(window + 1)[:-1], size)) ** 2 / window**2
    return np.log(power @ _bands(size, rate) + FLOOR).astype(np.float32)


def _bands(size: int, rate: int) -> np.ndarray:
    """Return triangles of sum one over the bins of a transform, (bins, bands)."""
    mel = np.linspace(_mel(LOWEST), _mel(rate / 2), BANDS + 2)
    low, middle, high = ((700 * (np.exp(edge / 1127) - 1)) for edge in (mel[:-2], mel[1:-1], mel[2:]))
    hertz = np.arange(size // 2 + 1)[:, None] * rate / size
    rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
    triangles = np.maximum(0, np.minimum(rising, falling))
    nearest = np.abs(hertz - middle).argmin(axis=0)  # a band between two bins has the nearest
    triangles[nearest, np.arange(BANDS)] = np.maximum(triangles[nearest, np.arange(BANDS)], 1e-3)
    return triangles / triangles.sum(axis=0)


def _mel(hertz: float) -> float:
    return 1127 * float(np.log1p(hertz / 700))


def _ratio(new: int, old: int) -> Fraction:
    """Return how many samples there are for one; of odd rates nearly, so that no filter becomes enormous."""
    return Fraction(new, old).limit_denominator(2_000)


def _checked(path: Path, form: bytes, start: int, length: int, size: int) -> Wav:
    if len(form) < 16:
        raise InputError(f"{path}: no format before the samples; write the file again")
    kind, channels, rate, _, align, bits = struct.unpack("<HHIIHH", form[:16])
    if kind == EXTENSIBLE and len(form) >= 26:
        kind = struct.unpack("<H", form[24:26])[0]
    if (kind, bits) not in KINDS:
        raise InputError(f"{path}: format {kind} of {bits} bits; write PCM of 8, 16, 24 or 32 bits, or floats")
    if not channels or align != channels * bits // 8 or not RATES[0] <= rate <= RATES[1]:
        raise InputError(f"{path}: the header says {channels} channels, {align} bytes and {rate} Hz; write it again")
    if length > size - start:
        raise InputError(f"{path}: the header claims {length} bytes of samples, the file has {size - start}")
    if not length // align:
        raise InputError(f"{path}: no samples; leave the file out")
    return Wav(path, (kind, bits), channels, rate, start, length // align)
