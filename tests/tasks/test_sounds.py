"""Sounds: samples equal scipy's, folders and tables are read as frames of a spectrum, and wrong headers are refused."""

import struct
import sys

import numpy as np
import pytest
from reservoir_pipelines.data import formats
from reservoir_pipelines.data import sounds as sounds_module
from reservoir_pipelines.data.sounds import BANDS, frame_count, mel_frames, open_sound, read_samples
from reservoir_pipelines.preparation.prepare import open_source
from scipy.io import wavfile

from reservoir.errors import InputError
from reservoir.tasks import Vectors
from tests.tasks.samples import assert_refused, read_new

pytest.importorskip("soundfile")

RATE = 16_000
TONE = np.sin(2 * np.pi * 1000 * np.arange(RATE // 4) / RATE)


def write(path, samples=TONE, rate=RATE, kind: type = np.int16):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.issubdtype(kind, np.integer)
    top = np.iinfo(kind).max if whole else 1
    wavfile.write(path, rate, (samples * top).astype(kind))
    return path


def samples_of(path, rate=RATE):
    return read_samples(open_sound(path), rate)


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.float32, np.float64])
def test_samples_are_scipys(tmp_path, kind):
    path = write(tmp_path / "a.wav", np.stack([TONE, TONE / 3], axis=1), kind=kind)
    read = wavfile.read(path)[1].astype(np.float64)
    expected = read.mean(axis=1) / (2.0 ** (8 * np.dtype(kind).itemsize - 1) if np.issubdtype(kind, np.integer) else 1)
    assert np.allclose(samples_of(path), expected, atol=1e-7)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000])
def test_another_rate_keeps_the_tone_and_the_time(tmp_path, rate):
    tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate // 4) / rate)
    path = write(tmp_path / "a.wav", tone, rate, np.float32)
    found = samples_of(path)
    assert len(found) == open_sound(path).count(RATE) and abs(len(found) - len(TONE)) <= 1
    middle = slice(400, 3600)
    assert np.abs(found[middle] - 0.5 * TONE[: len(found)][middle]).max() < 0.01


def test_a_tone_is_in_its_band_and_each_frame_is_its_own():
    frames = mel_frames(TONE.astype(np.float32), RATE)
    assert frames.shape == (frame_count(len(TONE), RATE), BANDS) == (23, 40)
    edges = np.expm1(np.linspace(np.log1p(20 / 700), np.log1p(8000 / 700), BANDS + 2)) * 700
    assert np.abs(edges[1 + int(frames[0].argmax())] - 1000) < 60
    assert np.array_equal(mel_frames(TONE[: 160 * 5 + 400].astype(np.float32), RATE), frames[:6])
    assert mel_frames(TONE[:10], RATE).shape == (1, 40) and np.isfinite(mel_frames(np.zeros(999), RATE)).all()


def make_folder(folder):
    for n in range(10):
        write(folder / "high" / f"{n}.wav", TONE[: 1000 + 160 * n])
        write(folder / "low" / f"{n}.WAV", np.sin(np.arange(2000) / 50))
    return folder


def test_a_folder_has_a_class_per_folder(tmp_path):
    source = open_source(str(make_folder(tmp_path / "calls")))
    assert source.task.labels == ("high", "low") and source.task.form == Vectors(BANDS)
    assert len(source.files()) == 20 and "16,000 Hz" in source.notes()[0]
    parts = [source.read(piece) for piece in source.pieces()]
    train = parts[0]["train"]
    assert len(train) == 12 and source.task.max_tokens == frame_count(2440, RATE) >= train.lengths.max()
    x, lengths, ids, y, *_ = read_new(tmp_path / "calls", source.task)
    assert len(ids) and lengths is not None and y is not None
    assert ids[0] == "high/0.wav" and y[0] == "high" and x.shape == (20, 13, 40) and lengths[0] == 4
    x, _, ids, y, *_ = read_new(tmp_path / "calls" / "high" / "3.wav", source.task)
    assert (
        ids == ["3.wav"]
        and y is None
        and np.array_equal(x[0], mel_frames(samples_of(tmp_path / "calls/high/3.wav"), RATE))
    )


def test_new_sounds_are_decoded_when_their_rows_are_read(tmp_path, monkeypatch):
    calls = make_folder(tmp_path / "calls")
    task = open_source(str(calls)).task
    rows = formats.read_new(calls, task)
    expected, decoded = rows.x[3:5], []

    def read_and_count(sound, rate):
        decoded.append(sound.path.name)
        return read_samples(sound, rate)

    monkeypatch.setattr(sounds_module, "read_samples", read_and_count)
    encoded = formats.encode_rows(rows, task, str(calls))
    assert np.array_equal(encoded.x[3:5], expected) and encoded.x.shape == (20, 13, 40)
    assert decoded == ["0.wav", "3.wav", "4.wav"]  # the first one shows what kind of data it is
    assert np.array_equal(encoded.without({0: "short"}).x[2:4], expected)


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
def test_compressed_sounds_are_decoded(tmp_path, suffix):
    pytest.importorskip("soundfile").write(tmp_path / f"a.{suffix}", 0.5 * TONE, RATE)
    found = samples_of(tmp_path / f"a.{suffix}")
    middle = slice(1000, 3000)
    shift = {"mp3": np.arange(-1200, 1200)}.get(suffix, np.arange(1))  # MP3 adds silence at the beginning
    assert min(np.abs(np.roll(found, -n)[middle] - 0.5 * TONE[middle]).max() for n in shift) < 0.05


def test_a_missing_package_is_one_line_with_the_extra_to_install(tmp_path, monkeypatch):
    write(tmp_path / "calls" / "a" / "b.wav")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    message = r"sounds need soundfile .*; run pip install 'reservoir-features\[audio\]'"
    assert_refused(message, tmp_path / "calls")


def test_a_table_of_paths_with_samples_as_they_are(tmp_path):
    make_folder(tmp_path / "calls")
    rows = [f"calls/{kind}/{n}.{end},{n},{kind}" for kind, end in (("high", "wav"), ("low", "WAV")) for n in range(10)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["file,speaker,label", *rows]) + "\n")
    source = open_source(str(table), group="speaker", waveform=True, rate=8000)
    x = np.concatenate([part.x for piece in source.pieces() for part in source.read(piece).values()])
    assert source.task.form == Vectors(1) and x.shape == (20, 1220, 1) and source.task.labels == ("high", "low")
    assert len(source.files()) == 21 and np.array_equal(source.scaling()(x[:1]), x[:1])  # pyright: ignore
    x, lengths, _, y, *_ = read_new(table, source.task)
    assert (
        lengths is not None
        and y is not None
        and lengths[9] == 1220
        and y[9] == "high"
        and np.array_equal(x[9, :, 0], samples_of(tmp_path / "calls/high/9.wav", 8000))
    )
    table.write_text("file,label\ncalls/high/0.wav,a\ncalls/none.wav,b\n" * 1)
    assert_refused(r"line 3: no file 'calls/none\.wav' in the table's folder", table)


def header(claimed, kind=1, channels=1, rate=RATE, bits=16, align=None):
    align = channels * bits // 8 if align is None else align
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * align, align, bits)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + claimed)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + struct.pack("<I", claimed)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(100, rate=10**6) + b"\0" * 100, "50 samples, 1000000 per second; give .* 1,000 to 768,000"),
        (header(100)[:30], "not a readable sound"),
        (b"", "not a readable sound"),
        (b"RIFF" + b"\xff" * 4 + b"WAVE" + b"junk" + struct.pack("<I", 2**32 - 2), "not a readable sound"),
        (header(8, kind=3, bits=32) + struct.pack("<ff", 0.5, float("nan")), "sample 1 is not finite"),
    ],
)
def test_a_wav_with_a_false_header_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "calls" / "bad" / "a.wav"
    write(tmp_path / "calls" / "good" / "b.wav", TONE[:1000])
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        source = open_source(str(tmp_path / "calls"))
        source.read(source.pieces()[0])
    assert "\n" not in str(refused.value) and "a.wav" in str(refused.value)
