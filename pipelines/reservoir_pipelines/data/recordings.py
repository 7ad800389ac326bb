"""Long recordings as rows: resampled to one number of steps, and cut into windows (``--resample``, ``--window``)."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir_pipelines.data.rows import EVERY_ROW, UNUSED, RecordingWindows, Rows, Sequences, Skipped
from reservoir_pipelines.data.values import clean_lengths


def prepare_recordings(
    where: str, rows: Rows, options: OwnDataOptions, *, labels_tokens: bool | None = None
) -> Rows:
    """Return rows as ``--resample`` and ``--window`` ask for, or unchanged without these options.

    Parameters
    ----------
    where : str
        The path of the data, for messages.
    rows : Rows
        One row per recording.
    options : OwnDataOptions
        The user's options, or those that a readout was fitted with.
    labels_tokens : bool, optional
        Whether every step has a label; by default `Rows.labels_tokens` decides. New rows of a readout may
        have no labels, or some of another shape.
    """
    shape = rows.x.shape
    has_steps = len(shape) in (2, 3) and 0 not in shape  # other shapes are refused later, in one place
    if not has_steps or "window" in UNUSED[rows.holds] or not (options.resample or options.window):
        return rows
    if labels_tokens is None:
        labels_tokens = rows.labels_tokens
    y = rows.y
    are_arrays = y is not None and y.dtype != object  # not lists, which have the length of their recording
    if labels_tokens and y is not None and are_arrays and y.shape[:2] != tuple(shape[:2]):
        raise InputError(
            f"{where}: the labels have the shape {y.shape}, not one label for each of {tuple(shape[:2])} steps",
            "correct or remove them",
        )
    lengths = np.full(shape[0], shape[1], np.int32) if rows.lengths is None else rows.lengths
    rows = replace(rows, lengths=clean_lengths(where, lengths, *shape[:2]))
    if options.resample:
        rows = _resampled_rows(rows, options.resample, labels_tokens=labels_tokens)
    if options.window:
        step = options.step or options.window
        if labels_tokens and step > options.window:
            raise InputError(
                f"{where}: every step has a label, but --step {step} leaves out steps between windows of "
                f"{options.window}",
                f"pass a --step of at most {options.window}",
            )
        rows = _cut_rows(rows, options.window, step, labels_tokens=labels_tokens)
    return rows


# ---- resampling


class _Resampled:
    """Sequences (rows, steps, ...) that are resampled when they are read."""

    def __init__(self, x: Sequences, lengths: np.ndarray, steps: int):
        self._x, self._lengths = x, lengths
        self.shape = (x.shape[0], steps, *x.shape[2:])
        self.dtype = np.result_type(x.dtype, np.float32)  # whole numbers have means between them

    def __getitem__(self, rows: slice) -> np.ndarray:
        sequences = self._x[rows]
        resampled_x = np.zeros((len(sequences), *self.shape[1:]), self.dtype)
        for row, (values, length) in enumerate(zip(sequences, self._lengths[rows], strict=True)):
            resampled_x[row] = resampled(values[:length], self.shape[1])
        return resampled_x


def resampled(values: np.ndarray, steps: int) -> np.ndarray:
    """Return a recording (length, ...) with ``steps`` steps, each in the middle of an equal stretch of the recording.

    More steps are interpolated linearly. Fewer are means over their stretches, which is a low-pass
    filter, so that fast oscillations do not appear as slow ones. A mean leaves out missing values, and
    a step is missing (NaN) if its stretch has no value, or if a neighbour in the interpolation has none.
    Nothing beyond the ends is invented: the first and the last half step repeat the value at the end.
    """
    length = len(values)
    if steps == length:
        return values
    channels = values.reshape(length, -1).astype(np.float64).T
    convert: Callable[[np.ndarray, int], np.ndarray] = _interpolated if steps > length else _means
    return np.stack([convert(channel, steps) for channel in channels], axis=1).reshape(
        steps, *values.shape[1:]
    )


def _interpolated(values: np.ndarray, steps: int) -> np.ndarray:
    """Return the values (steps,) on the lines between neighbours; the ends continue as constants."""
    middles = (np.arange(steps) + 0.5) * len(values) / steps - 0.5
    return np.interp(middles, np.arange(len(values)), values)


def _means(values: np.ndarray, steps: int) -> np.ndarray:
    """Return the means over equal stretches, whose ends may be within a step, (steps,).

    With the sum S(t) of all values before the time t, between whole t on a line, the mean over a
    stretch from a to b is (S(b) - S(a)) / (b - a). Values are centred, so that a large offset does not
    round their differences.
    """
    present = ~np.isnan(values)
    offset = values[present].mean() if present.any() else 0.0
    ends = np.arange(steps + 1) * len(values) / steps

    def sums(terms: np.ndarray) -> np.ndarray:
        before = np.concatenate([[0.0], np.cumsum(terms)])
        return np.diff(np.interp(ends, np.arange(len(before)), before))

    counts = sums(present.astype(np.float64))
    has_value = counts > 1e-9  # a stretch that only touches a value has the count of a rounding error
    totals = sums(np.where(present, values - offset, 0.0))
    return np.where(has_value, offset + totals / np.where(has_value, counts, 1.0), np.nan)


def nearest_steps(length: int, steps: int) -> np.ndarray:
    """Return the step of a recording in which the middle of each resampled step lies, (steps,) of int."""
    return ((np.arange(steps) + 0.5) * length / steps).astype(np.int64)


def _resampled_rows(rows: Rows, steps: int, *, labels_tokens: bool) -> Rows:
    """Return recordings that are resampled when they are read; a label of a step goes to the nearest new step."""
    assert rows.lengths is not None
    old_lengths = rows.lengths
    shortest, longest = int(old_lengths.min()), int(old_lengths.max())
    between = f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    y = rows.y
    if labels_tokens and y is not None:
        places = [nearest_steps(int(length), steps) for length in old_lengths]
        y = _labels_at(y, np.arange(len(rows)), places)
    # As many values as before fit into memory at a time.
    piece_rows = max(1, rows.piece_rows * rows.x.shape[1] // max(rows.x.shape[1], steps))
    return replace(
        rows,
        x=_Resampled(rows.x, old_lengths, steps),
        lengths=np.full(len(rows), steps, np.int32),
        y=y,
        piece_rows=piece_rows,
        notes=(*rows.notes, f"each recording of {between} steps is resampled to {steps:,}"),
    )


# ---- windows of recordings


class _Cut:
    """Windows (rows, steps, ...) of recordings, which are read when the windows are."""

    def __init__(self, x: Sequences, windows: RecordingWindows, steps: int):
        self._x, self._windows = x, windows
        self.shape = (len(windows.recording), steps, *x.shape[2:])
        self.dtype = x.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        recording, start = self._windows.recording[rows], self._windows.start[rows]
        if not len(recording):
            return np.zeros((0, *self.shape[1:]), self.dtype)
        # The windows of a recording follow each other, so a range of windows needs a range of recordings.
        first, last = int(recording[0]), int(recording[-1])
        recordings = self._x[first : last + 1]
        return recordings[recording[:, None] - first, start[:, None] + np.arange(self.shape[1])]


def window_starts(length: int, window: int, step: int) -> list[int]:
    """Return the first steps of the windows of a recording.

    A recording that is not longer than a window is one window. If steps are left at the end, one more
    window ends with the recording, unless windows are meant to leave steps out (``step`` above
    ``window``).
    """
    starts = list(range(0, max(length - window, 0) + 1, step))
    if step <= window and starts[-1] + window < length:
        starts.append(length - window)
    return starts


def _cut_rows(rows: Rows, window: int, step: int, *, labels_tokens: bool) -> Rows:
    """Return the windows of recordings as rows, which are read when they are needed."""
    assert rows.lengths is not None
    # The recording and the first step of each window.
    starts_by_recording = [window_starts(int(length), window, step) for length in rows.lengths]
    counts = np.array([len(starts) for starts in starts_by_recording])
    recording_of_window = np.repeat(np.arange(len(rows)), counts)
    start_of_window = np.concatenate([np.array(starts, np.int64) for starts in starts_by_recording])
    recording_names = rows.names
    windows = RecordingWindows(recording=recording_of_window, start=start_of_window, names=recording_names)

    # A recording that is shorter than a window is one shorter window.
    steps = min(window, rows.x.shape[1])
    lengths = np.minimum(rows.lengths[recording_of_window] - start_of_window, steps).astype(np.int32)
    y = _labels_of_windows(rows.y, windows, lengths, steps, labels_tokens=labels_tokens)
    # A recording is a group: its windows are alike, so they are never on both sides of a split.
    groups = recording_names if rows.groups is None else rows.groups
    ids = [
        window_name(recording_names[recording], first_step, first_step + length)
        for recording, first_step, length in zip(recording_of_window, start_of_window, lengths, strict=True)
    ]
    shorter = int((rows.lengths < window).sum())
    note = f"{len(rows):,} recordings make {len(start_of_window):,} windows of {window:,} steps, every {step:,}"
    if shorter:
        note += f"; {shorter:,} shorter recordings are one window each"
    # A piece may hold as many steps as before. Each of its windows holds ``window`` steps, and is cut from about
    # ``step`` new steps of a recording; the larger of the two limits the number of windows.
    steps_of_piece = rows.piece_rows * rows.x.shape[1]
    piece_rows = min(EVERY_ROW, max(1, steps_of_piece // max(window, step)))
    return replace(
        rows,
        x=_Cut(rows.x, windows, steps),
        lengths=lengths,
        y=y,
        groups=groups[recording_of_window],
        split=None if rows.split is None else rows.split[recording_of_window],
        ids=np.array(ids),
        windows=windows,
        skipped=_skipped_among_windows(rows.skipped, counts),
        piece_rows=piece_rows,
        notes=(*rows.notes, note),
    )


def _labels_of_windows(
    y: np.ndarray | None,
    windows: RecordingWindows,
    lengths: np.ndarray,
    steps: int,
    *,
    labels_tokens: bool,
) -> np.ndarray | None:
    """Return the label of each window: that of its recording, or those of its steps."""
    if y is None:
        return None
    if not labels_tokens:
        return y[windows.recording]
    # An array has padding after the end of a short recording; a list of labels has none.
    counts = np.full(len(lengths), steps) if y.ndim > 1 else lengths
    places = [first + np.arange(count) for first, count in zip(windows.start, counts, strict=True)]
    return _labels_at(y, windows.recording, places)


def _labels_at(y: np.ndarray, recording: np.ndarray, places: list[np.ndarray]) -> np.ndarray:
    """Return the labels of some steps of recordings: an array, or of new rows objects (rows,) that may be None."""
    if y.ndim > 1:
        return np.stack([y[r, at] for r, at in zip(recording, places, strict=True)])
    labels = np.empty(len(recording), object)
    for row, (r, at) in enumerate(zip(recording, places, strict=True)):
        labels[row] = None if y[r] is None else [y[r][place] for place in at]
    return labels


def _skipped_among_windows(skipped: Skipped, counts: np.ndarray) -> Skipped:
    """Return the recordings that cannot be read, counted among windows: each counts as one."""
    windows_of = iter(counts.tolist())
    among_windows: Skipped = {}
    number = 0
    for recording in range(len(counts) + len(skipped)):
        if recording in skipped:
            among_windows[number] = skipped[recording]
            number += 1
        else:
            number += next(windows_of)
    return among_windows


_WINDOW_NAME = re.compile(r"(.*)\[\d+:\d+\]", re.DOTALL)


def window_name(recording: object, start: int, end: int) -> str:
    """Return the name of a window: its recording, and its steps as Python writes a slice."""
    return f"{recording}[{start}:{end}]"


def recording_name(window: str | int) -> str | int:
    """Return the name of a window's recording, the inverse of `window_name`; other names stay as they are."""
    match = _WINDOW_NAME.fullmatch(str(window))
    return match[1] if match else window
