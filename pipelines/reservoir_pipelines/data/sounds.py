"""Your own sounds as frames of a mel spectrum or as samples; soundfile decodes WAV, FLAC, OGG and MP3."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import InputError, as_input_error, first_line
from reservoir.size_limits import check_expansion, check_padding
from reservoir.tasks.sound import RATE
from reservoir_pipelines.data.arrays import Arrays
from reservoir_pipelines.data.tables import BadRows

RATES = (1_000, 768_000)
BANDS = 40
WINDOW, STEP = 0.025, 0.010  # seconds that a frame spans, and from one frame to the next
LOWEST = 20.0
FLOOR = 1e-8  # added to the power of each band: log 0 is infinite; a 16-bit step has 1e-9 of full power
PIECE_VALUES = 2**25


class Sound(NamedTuple):
    """A sound file that can be opened."""

    path: Path
    rate: int  # samples per second
    frames: int  # samples of each channel

    def count(self, rate: int) -> int:
        """Return the number of samples at another rate."""
        ratio = _ratio(rate, self.rate)
        return -(-self.frames * ratio.numerator // ratio.denominator)


def open_sound(path: Path, rate: int = RATE) -> Sound:
    """Read a sound's rate and length from its header; refuse sizes, also at ``rate``, that the file cannot hold."""
    with _opened(path) as file:
        if not RATES[0] <= file.samplerate <= RATES[1] or file.frames < 1:
            raise InputError(
                f"{path}: {file.frames} samples, {file.samplerate} per second",
                f"give at least one, at {RATES[0]:,} to {RATES[1]:,} per second",
            )
        sound = Sound(path, file.samplerate, file.frames)
        size = 8 * max(file.frames * file.channels, sound.count(rate))
        check_expansion(path, "samples", size, path.stat().st_size)
        return sound


def read_samples(sound: Sound, rate: int) -> np.ndarray:
    """Return the samples of a file at a rate, the mean of its channels, float32 from -1 to 1."""
    with (
        _opened(sound.path) as file,
        as_input_error(f"{sound.path}: cannot be decoded", "write the file again"),
    ):
        mono = file.read(sound.frames, dtype="float64", always_2d=True).mean(axis=1)
    if len(mono) != sound.frames:
        raise InputError(
            f"{sound.path}: header claims {sound.frames} samples, but {len(mono)} follow", "write it again"
        )
    if not np.isfinite(mono).all():
        raise InputError(
            f"{sound.path}: sample {int(np.argmin(np.isfinite(mono)))} is not finite", "write it again"
        )
    ratio = _ratio(rate, sound.rate)
    if ratio != 1:
        from scipy.signal import resample_poly

        mono = resample_poly(mono, ratio.numerator, ratio.denominator)
    return mono.astype(np.float32)


def _opened(path: Path) -> Any:
    import soundfile

    try:
        return soundfile.SoundFile(path)
    except Exception as error:  # raised for a damaged file
        problem = first_line(error).removeprefix(f"Error opening {str(path)!r}: ")
        raise InputError(
            f"{path}: not a readable sound ({problem})", "write it as WAV, FLAC, OGG or MP3"
        ) from None


class Sounds(Arrays):
    """Sounds as ``x``, resampled to one rate, with other arrays; with ``waveform`` the tokens are samples."""

    unused_options = ()

    def __init__(
        self,
        files: Sequence[Path],
        arrays: Mapping[str, np.ndarray],
        bad: BadRows,
        rate: int | None,
        *,
        waveform: bool,
    ):
        with as_input_error("sounds need soundfile", "run pip install 'reservoir-features[audio]'"):
            import soundfile  # noqa: F401
        self._rate, self._waveform = rate or RATE, waveform

        def opened(file: Path) -> Sound:
            sound = open_sound(file, self._rate)
            if bad.skip:  # damage after the header must be detected before the rows are counted
                read_samples(sound, self._rate)
            return sound

        self._sounds = bad.read_files(files, opened)
        kept = bad.kept()
        samples = np.array([sound.count(self._rate) for sound in self._sounds], np.int64)
        lengths = (
            samples if waveform else np.array([frame_count(int(n), self._rate) for n in samples], np.int64)
        )
        dim = 1 if waveform else BANDS
        check_padding(str(self._sounds[int(np.argmax(lengths))].path), lengths, 4 * dim)
        shape = (len(self._sounds), int(lengths.max()), dim)
        arrays = {name: array[kept] for name, array in arrays.items()}
        super().__init__({**arrays, "lengths": lengths}, x=(shape, np.dtype(np.float32)))
        self.files = list(files)
        self.piece_rows = max(1, PIECE_VALUES // (shape[1] * dim))
        form = "as their samples" if waveform else f"as {BANDS} bands of the mel scale every 10 ms"
        longest = samples.max() / self._rate
        self.notes = [f"{len(samples):,} sounds of up to {longest:.3g} s, {form}, at {self._rate:,} Hz"]

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the sounds of the rows ``lo`` to ``hi``."""
        x = np.zeros((hi - lo, *self.shapes["x"][1:]), np.float32)
        for row, sound in zip(x, self._sounds[lo:hi], strict=True):
            samples = read_samples(sound, self._rate)
            found = samples[:, None] if self._waveform else mel_frames(samples, self._rate)
            row[: len(found)] = found
        return x


def frame_count(samples: int, rate: int) -> int:
    """Return the number of frames of ``samples`` samples; a sound shorter than a frame has one."""
    return 1 + max(0, samples - round(WINDOW * rate)) // round(STEP * rate)


def mel_frames(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return the logarithm of the power in `BANDS` bands, equally wide on the mel scale, (frames, bands) of float32."""
    window, step = round(WINDOW * rate), round(STEP * rate)
    whole = np.pad(samples, (0, max(0, window - len(samples))))
    cut = np.lib.stride_tricks.sliding_window_view(whole, window)[::step]
    size = 1 << (window - 1).bit_length()
    power = np.abs(np.fft.rfft(cut * np.hanning(window + 1)[:-1], size)) ** 2 / window**2
    return np.log(power @ _bands(size, rate) + FLOOR).astype(np.float32)


def _bands(size: int, rate: int) -> np.ndarray:
    """Return triangular filters over the bins of a Fourier transform, (bins, bands), each of sum one."""
    first, last = (1127 * float(np.log1p(hertz / 700)) for hertz in (LOWEST, rate / 2))
    mel = np.linspace(first, last, BANDS + 2)
    low, middle, high = ((700 * (np.exp(edge / 1127) - 1)) for edge in (mel[:-2], mel[1:-1], mel[2:]))
    hertz = np.arange(size // 2 + 1)[:, None] * rate / size
    rising, falling = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
    triangles = np.maximum(0, np.minimum(rising, falling))
    nearest = np.abs(hertz - middle).argmin(axis=0)  # a band between two bins gets the nearest bin
    triangles[nearest, np.arange(BANDS)] = np.maximum(triangles[nearest, np.arange(BANDS)], 1e-3)
    return triangles / triangles.sum(axis=0)


def _ratio(new: int, old: int) -> Fraction:
    """Return the ratio of two rates, rounded if unusual, so that the resampling filter stays short."""
    return Fraction(new, old).limit_denominator(2_000)
