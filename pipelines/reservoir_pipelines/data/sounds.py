"""Your own sounds as frames of a mel spectrum or as samples; soundfile decodes WAV, FLAC, OGG and MP3."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reservoir.errors import InputError, as_input_error, first_line
from reservoir.file_checks import check_expansion, check_padding
from reservoir.tasks.task import SOUND_RATE
from reservoir_pipelines.data.rows import BadRows, Rows

RATES = (1_000, 768_000)  # samples per second that a file may have
BANDS = 40  # of the mel spectrum
WINDOW = 0.025  # seconds that a frame spans
STEP = 0.010  # seconds from the beginning of a frame to that of the next
LOWEST = 20.0  # Hz, the low edge of the lowest band, about where hearing begins
FLOOR = 1e-8  # added to the power of each band: log 0 is infinite; a 16-bit step has 1e-9 of full power
PIECE_VALUES = 2**25  # values of float32 that are decoded together, 128 MB


class Sound(NamedTuple):
    """A sound file that can be opened."""

    path: Path
    rate: int  # samples per second
    frames: int  # samples of each channel

    def count(self, rate: int) -> int:
        """Return the number of samples of each channel at another rate, rounded up, as ``resample_poly`` makes them."""
        ratio = _ratio(rate, self.rate)
        return -(-self.frames * ratio.numerator // ratio.denominator)


def open_sound(path: Path, rate: int = SOUND_RATE) -> Sound:
    """Return the rate and the length of a sound as its header has them.

    Refuse a length that the file cannot hold, or that would need far too much memory at ``rate`` samples per second.
    """
    with _opened(path) as file:
        if not RATES[0] <= file.samplerate <= RATES[1] or file.frames < 1:
            raise InputError(
                f"{path}: {file.frames} samples, {file.samplerate} per second",
                f"give at least one, at {RATES[0]:,} to {RATES[1]:,} per second",
            )
        sound = Sound(path, file.samplerate, file.frames)
        # Samples are decoded and resampled as float64, of 8 bytes each.
        size = 8 * max(file.frames * file.channels, sound.count(rate))
        check_expansion(path, "samples", size, path.stat().st_size)
        return sound


def read_samples(sound: Sound, rate: int) -> np.ndarray:
    """Return the samples of a file at a ``rate``, the mean of its channels, (samples,) of float32 from -1 to 1."""
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
    """Return a ``soundfile.SoundFile``, which the caller closes; refuse a file that cannot be opened."""
    import soundfile

    try:
        return soundfile.SoundFile(path)
    except Exception as error:  # a damaged file raises errors of several types
        problem = first_line(error).removeprefix(f"Error opening {str(path)!r}: ")
        raise InputError(
            f"{path}: not a readable sound ({problem})", "write it as WAV, FLAC, OGG or MP3"
        ) from None


class SoundFrames:
    """Sounds as an array (rows, tokens, values), which are decoded when they are read; zero after each sound's end.

    Tokens are the frames of a mel spectrum, of `BANDS` values, or with ``waveform`` the samples, of one value. All
    sounds are resampled to ``rate`` samples per second, and ``tokens`` is the length of the longest.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, sounds: Sequence[Sound], rate: int, tokens: int, *, waveform: bool):
        self._sounds, self._rate = sounds, rate
        self._waveform = waveform
        self.shape = (len(sounds), tokens, 1 if waveform else BANDS)

    def __getitem__(self, rows: slice) -> np.ndarray:
        sounds = self._sounds[rows]
        x = np.zeros((len(sounds), *self.shape[1:]), np.float32)
        for row, sound in zip(x, sounds, strict=True):  # each row is a view, so that x changes
            samples = read_samples(sound, self._rate)
            tokens = samples[:, None] if self._waveform else mel_frames(samples, self._rate)
            row[: len(tokens)] = tokens
        return x


def sound_rows(
    files: Sequence[Path], columns: Mapping[str, Any], bad: BadRows, rate: int | None, *, waveform: bool
) -> Rows:
    """Return sound files as rows, resampled to one rate, with further ``columns`` (files,) by their fields in `Rows`.

    ``rate`` is in samples per second, by default `SOUND_RATE`. ``bad`` has the files that cannot be read, to which more
    are added.
    """
    with as_input_error("sounds need soundfile", "run pip install 'reservoir-features[audio]'"):
        import soundfile  # noqa: F401
    rate = rate or SOUND_RATE

    def checked_sound(file: Path) -> Sound:
        """Return a sound; to skip damaged files, decode it, because rows are counted before they are read."""
        sound = open_sound(file, rate)
        if bad.skip:
            read_samples(sound, rate)
        return sound

    sounds = bad.read_files(files, checked_sound)
    readable = bad.readable()
    # Lengths follow from the headers; the sounds themselves are decoded later, piece by piece.
    sample_counts = np.array([sound.count(rate) for sound in sounds], np.int64)
    frame_counts = np.array([frame_count(int(count), rate) for count in sample_counts], np.int64)
    lengths = sample_counts if waveform else frame_counts
    x = SoundFrames(sounds, rate, int(lengths.max()), waveform=waveform)
    longest_sound = sounds[int(np.argmax(lengths))].path
    check_padding(str(longest_sound), lengths, x.dtype.itemsize * x.shape[2])
    form = "as their samples" if waveform else f"as {BANDS} bands of the mel scale every 10 ms"
    seconds = sample_counts.max() / rate
    return Rows(
        x=x,
        lengths=lengths,
        **{name: array[readable] for name, array in columns.items()},
        holds="sounds",
        piece_rows=max(1, PIECE_VALUES // (x.shape[1] * x.shape[2])),
        files=tuple(files),
        notes=(f"{len(sounds):,} sounds of up to {seconds:.3g} s, {form}, at {rate:,} Hz",),
    )


def frame_count(samples: int, rate: int) -> int:
    """Return how many frames `mel_frames` makes of so many ``samples``; a sound shorter than a frame has one."""
    return 1 + max(0, samples - round(WINDOW * rate)) // round(STEP * rate)


def mel_frames(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return the logarithm of the power in `BANDS` bands, equally wide on the mel scale, (frames, bands) of float32.

    ``samples`` (samples,) are at ``rate`` samples per second.
    """
    # Cut the samples into overlapping frames; a sound shorter than a frame is padded to one.
    window, step = round(WINDOW * rate), round(STEP * rate)  # in samples
    padded = np.pad(samples, (0, max(0, window - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::step]
    # The Fourier transform of frames that fade in and out, with the next power of two as its size.
    size = 1 << (window - 1).bit_length()
    hann = np.hanning(window + 1)[:-1]  # periodic, as spectra use it
    power = np.abs(np.fft.rfft(frames * hann, size)) ** 2 / window**2
    return np.log(power @ _bands(size, rate) + FLOOR).astype(np.float32)


def _bands(size: int, rate: int) -> np.ndarray:
    """Return triangular filters over the bins of a Fourier transform of a ``size``, (bins, bands), each of sum one."""
    # Points at equal distances on the mel scale, mel = 1127 log(1 + hertz / 700). Each band begins at a point, has its
    # middle at the next one, and ends at the one after that: (bands,) each, in hertz.
    first, last = (1127 * float(np.log1p(hertz / 700)) for hertz in (LOWEST, rate / 2))
    mel = np.linspace(first, last, BANDS + 2)
    low, middle, high = ((700 * (np.exp(edge / 1127) - 1)) for edge in (mel[:-2], mel[1:-1], mel[2:]))
    # The triangles rise from 0 at the low edge to 1 in the middle, and fall to 0 at the high edge.
    hertz = np.arange(size // 2 + 1)[:, None] * rate / size  # of each bin, (bins, 1)
    rising = (hertz - low) / (middle - low)
    falling = (high - hertz) / (high - middle)
    triangles = np.maximum(0, np.minimum(rising, falling))
    # A band between two bins would be empty: its nearest bin gets a small weight, which the division makes 1.
    nearest = np.abs(hertz - middle).argmin(axis=0)
    bands = np.arange(BANDS)
    triangles[nearest, bands] = np.maximum(triangles[nearest, bands], 1e-3)
    return triangles / triangles.sum(axis=0)


def _ratio(new: int, old: int) -> Fraction:
    """Return the ratio of two rates, rounded if unusual, so that the resampling filter stays short."""
    return Fraction(new, old).limit_denominator(2_000)
