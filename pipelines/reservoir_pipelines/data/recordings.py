"""Long recordings as rows: resampled to one number of steps, and cut into windows (``--resample``, ``--window``).

Rows that ``--missing interpolate`` cannot fill are skipped here, too, because that depends on their windows.

Windows of one recording are alike, so each recording is in one split and one fold. A single recording is
divided into stretches instead, each of which is a group.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.rows import SPLIT_SHARES, grouped
from reservoir_pipelines.data.rows import (
    EVERY_ROW,
    UNUSED_BY_KIND,
    BadRows,
    RecordingWindows,
    Rows,
    Sequences,
    Skipped,
)
from reservoir_pipelines.data.values import clean_lengths, read_labels


def prepare_recordings(
    where: str, rows: Rows, options: OwnDataOptions, *, labels_tokens: bool | None = None
) -> Rows:
    """Return rows as ``--resample`` and ``--window`` ask for, without those that cannot be interpolated, if asked.

    Parameters
    ----------
    where : str
        The path of the data, for messages.
    rows : Rows
        One row per recording.
    options : OwnDataOptions
        The user's options, or those that a readout was fitted with.
    labels_tokens : bool, optional
        For new rows of a readout, whether every step has a label: they may have no labels, or some of another shape.
        For rows of a task, `Rows.labels_tokens` decides.
    """
    is_new = labels_tokens is not None
    shape = rows.x.shape
    has_steps = len(shape) in (2, 3) and 0 not in shape  # other shapes are refused later, in one place
    # Texts and images are not cut, and the options are refused.
    may_be_cut = "window" not in UNUSED_BY_KIND[rows.holds]
    if not has_steps or not may_be_cut:
        return rows
    if not options.resample and not options.window:
        return _without_empty_channels(where, rows, options)
    if labels_tokens is None:
        labels_tokens = rows.labels_tokens
    if labels_tokens:
        _refuse_other_labels(where, rows)
    # All rows get explicit lengths, which are checked before anything is computed from them.
    lengths = np.full(shape[0], shape[1], np.int32) if rows.lengths is None else rows.lengths
    rows = replace(rows, lengths=clean_lengths(where, lengths, *shape[:2]))
    if options.resample:
        rows = _resampled_rows(rows, options.resample, labels_tokens=labels_tokens)
    rows = _without_empty_channels(where, rows, options)
    if options.window:
        step = options.step or options.window
        if labels_tokens and step > options.window:
            raise InputError(
                f"{where}: every step has a label, but --step {step} leaves out steps between windows of "
                f"{options.window}",
                f"pass a --step of at most {options.window}",
            )
        if _is_divided(rows, is_new=is_new):
            stretches = _stretches_of_one(where, rows, options.window, labels_tokens=labels_tokens)
        else:
            stretches = _whole_recordings(rows)
        rows = _cut_rows(rows, stretches, options.window, step, labels_tokens=labels_tokens)
    return rows


def _is_divided(rows: Rows, *, is_new: bool) -> bool:
    """Return whether the rows are a single recording that is divided into stretches, each of which is in one split.

    A recording with one split for all of its steps is not. A label of the recording would be that of all its stretches,
    which is refused where labels are read.
    """
    has_one_split = rows.split is not None and rows.split.ndim == 1  # (1,), not (1, steps)
    return len(rows) == 1 and not is_new and not has_one_split


def _refuse_other_labels(where: str, rows: Rows) -> None:
    """Refuse labels of steps, an array, whose shape is not that of the steps.

    Labels of new rows are lists, which have the lengths of their recordings.
    """
    rows_and_steps = tuple(rows.x.shape[:2])
    if rows.y is not None and rows.y.dtype != object and rows.y.shape[:2] != rows_and_steps:
        raise InputError(
            f"{where}: the labels have the shape {rows.y.shape}, not one label for each of {rows_and_steps} steps",
            "correct or remove them",
        )


# ---- channels without values


def _without_empty_channels(where: str, rows: Rows, options: OwnDataOptions) -> Rows:
    """Return the rows that ``--missing interpolate`` can fill, if bad rows are skipped; else all rows.

    A channel without any value cannot be filled: neither in a row, nor in a window of a recording, which is then
    skipped as a whole. If no row can be filled, all stay, and are refused where their values are stored.
    """
    skips_rows = options.skip_bad_rows and options.missing == "interpolate"
    # Sounds and integers have no NaN, and forecasts leave out windows without values themselves.
    may_lack_values = rows.holds == "numbers" and rows.x.dtype.kind == "f" and not options.forecast
    if not skips_rows or not may_lack_values:
        return rows
    lengths = np.full(len(rows), rows.x.shape[1]) if rows.lengths is None else rows.lengths
    lengths = clean_lengths(where, lengths, *rows.x.shape[:2])
    places = [
        f"row {number}" if rows.ids is None else f"row {number} ({name})"
        for number, name in zip(rows.numbers.tolist(), rows.names.tolist(), strict=True)
    ]
    bad = BadRows(where, places, skip=True)
    # As many rows at a time as fit into memory.
    piece_rows = min(rows.piece_rows, len(rows))
    for low in range(0, len(rows), piece_rows):
        x = rows.x[low : low + piece_rows]
        is_gap = np.isnan(x.reshape(*x.shape[:2], -1))
        for row in np.flatnonzero(is_gap.any(axis=(1, 2))).tolist():
            reason = _empty_channel(is_gap[row, : lengths[low + row]], options)
            if reason:
                bad.add(low + row, reason)
    if not 0 < len(bad.reasons) < len(rows):
        return rows
    return replace(rows.without(bad.reasons), notes=(*rows.notes, *bad.notes()))


def _empty_channel(is_gap: np.ndarray, options: OwnDataOptions) -> str:
    """Return that a channel has no value in a row, or in one of its windows with ``--window``; "" if none is empty.

    ``is_gap`` (steps, channels) is where values are missing.
    """
    steps = len(is_gap)
    window = options.window or steps
    for start in window_starts(steps, window, options.step or window):
        end = min(start + window, steps)
        is_empty = is_gap[start:end].all(axis=0)
        if is_empty.any():
            in_window = f" of the window [{start}:{end}]" if options.window else ""
            return f"no value at all in column {int(np.argmax(is_empty))}{in_window}"
    return ""


# ---- resampling


class _Resampled:
    """Sequences ``x``, of ``lengths`` (rows,), that get a number of ``steps`` each when they are read."""

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
    """Return a recording (length, ...) as (steps, ...): the new steps are the middles of equal stretches of it.

    More steps are interpolated linearly. Fewer are means over their stretches, which is a low-pass
    filter, so that fast oscillations do not appear as slow ones. A mean leaves out missing values, and
    a step is missing (NaN) if its stretch has no value, or if a neighbour in the interpolation has none.
    Nothing beyond the ends is invented: the first and the last half step repeat the value at the end.
    """
    length = len(values)
    if steps == length:
        return values
    convert: Callable[[np.ndarray, int], np.ndarray] = _interpolated if steps > length else _means
    # Each channel by itself; all axes but the first are channels.
    channels = values.reshape(length, -1).astype(np.float64).T
    new_channels = np.stack([convert(channel, steps) for channel in channels], axis=1)
    return new_channels.reshape(steps, *values.shape[1:])


def _interpolated(values: np.ndarray, steps: int) -> np.ndarray:
    """Return the values (steps,) on the lines between neighbours in ``values`` (length,); the ends are constant."""
    # A step of a recording lasts from its number to the next one, so step 0 of the old ones is at the time 0.5. The
    # middles of the new steps are counted from there.
    middles = (np.arange(steps) + 0.5) * len(values) / steps - 0.5
    return np.interp(middles, np.arange(len(values)), values)


def _means(values: np.ndarray, steps: int) -> np.ndarray:
    """Return the means of ``values`` (length,) over equal stretches, whose ends may be within a step, (steps,).

    With the sum S(t) of all values before the time t, between whole t on a line, the mean over a
    stretch from a to b is (S(b) - S(a)) / (b - a). Values are centred, so that a large offset does not
    round their differences.
    """
    present = ~np.isnan(values)
    offset = values[present].mean() if present.any() else 0.0
    borders = np.arange(steps + 1) * len(values) / steps  # of the stretches, in steps of ``values``

    def sums(terms: np.ndarray) -> np.ndarray:
        """Return the sum of ``terms`` (length,) over each stretch, (steps,), as S(b) - S(a)."""
        sums_before = np.concatenate([[0.0], np.cumsum(terms)])  # S at whole times 0 ... length
        return np.diff(np.interp(borders, np.arange(len(sums_before)), sums_before))

    # Missing values count as nothing in the sums, and b - a becomes the number of values that are present.
    counts = sums(present.astype(np.float64))
    has_value = counts > 1e-9  # a stretch that only touches a value has the count of a rounding error
    totals = sums(np.where(present, values - offset, 0.0))
    return np.where(has_value, offset + totals / np.where(has_value, counts, 1.0), np.nan)


def nearest_steps(length: int, steps: int) -> np.ndarray:
    """Return the old step, of ``length``, in which the middle of each new step of a recording lies, (steps,) of int."""
    return ((np.arange(steps) + 0.5) * length / steps).astype(np.int64)


def _resampled_rows(rows: Rows, steps: int, *, labels_tokens: bool) -> Rows:
    """Return recordings that are resampled when they are read; a new step has the label of the nearest old one."""
    assert rows.lengths is not None  # `prepare_recordings` sets them
    old_lengths = rows.lengths
    shortest, longest = int(old_lengths.min()), int(old_lengths.max())
    old_steps = f"{longest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    y = rows.y
    if labels_tokens and y is not None:
        nearest = [nearest_steps(int(length), steps) for length in old_lengths]
        y = _labels_at(y, np.arange(len(rows)), nearest)
    # As many values as before fit into memory at a time, where both the old and the new ones are read.
    old_width = rows.x.shape[1]
    piece_rows = max(1, rows.piece_rows * old_width // max(old_width, steps))
    return replace(
        rows,
        x=_Resampled(rows.x, old_lengths, steps),
        lengths=np.full(len(rows), steps, np.int32),
        y=y,
        piece_rows=piece_rows,
        notes=(*rows.notes, f"each recording of {old_steps} steps is resampled to {steps:,}"),
    )


# ---- stretches of recordings


MIN_STRETCHES = 10
"""Fewest stretches of a single recording: two of them are test, two valid, and six are left to fit."""

MAX_STRETCHES = 50
"""Most stretches of a single recording, ten of which are test: more would add borders, across which steps are alike."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretches:
    """Contiguous parts of recordings, each of which is cut into windows by itself, in the order of the recordings.

    Parameters
    ----------
    recording : array (stretches,) of int
        The number of the recording.
    start, length : array (stretches,) of int
        The first step of the stretch in its recording, and the number of its steps.
    groups : array (stretches,)
        The group of the stretch.
    split : array (stretches,), optional
        The split of the stretch; None if it is decided later, by the groups.
    noun : str
        What messages call the stretches.
    """

    recording: np.ndarray
    start: np.ndarray
    length: np.ndarray
    groups: np.ndarray
    split: np.ndarray | None
    noun: str = "stretches of one recording"


def _whole_recordings(rows: Rows) -> Stretches:
    """Return each recording as one stretch, which is a group if the recordings have none."""
    assert rows.lengths is not None  # `prepare_recordings` sets them
    return Stretches(
        recording=np.arange(len(rows)),
        start=np.zeros(len(rows), np.int64),
        length=rows.lengths,
        groups=_groups_by_name(rows) if rows.groups is None else rows.groups,
        split=rows.split,
        noun="recordings",
    )


def _groups_by_name(rows: Rows) -> np.ndarray:
    """Return the group of each recording, (recordings,): its name, after that of its split if splits share names.

    Recordings with one name belong together, but where the data say the splits, names may count anew in each, as those
    of two published files do.
    """
    names, names_in_splits = rows.names, _names_in_splits(rows)
    splits_share_names = len(np.unique(names_in_splits)) > len(np.unique(names))
    return names_in_splits if splits_share_names else names


def _names_in_splits(rows: Rows) -> np.ndarray:
    """Return the split and the name of each recording, (recordings,) of str, such as "train/7"; else its name."""
    splits_are_those_of_steps = rows.split is not None and rows.split.ndim > 1  # of a single recording
    if rows.split is None or splits_are_those_of_steps:
        return rows.names
    pairs = zip(rows.split.tolist(), rows.names.tolist(), strict=True)
    return np.array([f"{split}/{name}" for split, name in pairs])


def stretch_of_steps(steps: int, window: int) -> np.ndarray:
    """Return the number of the stretch of each step of a recording, (steps,) of int.

    ``steps`` is the length of the recording, and ``window`` that of the windows. Stretches are as many as
    `MAX_STRETCHES` and a window in each allow, because intervals of scores need several test stretches. They hold whole
    windows, and the last one also the steps that are left.
    """
    length = _stretch_length(steps, window)
    last_stretch = max(0, steps // length - 1)
    return np.minimum(np.arange(steps) // length, last_stretch)


def _stretch_length(steps: int, window: int) -> int:
    """Return the steps of a stretch: the fewest whole windows of which at most `MAX_STRETCHES` cover ``steps``."""
    return window * math.ceil(steps / (MAX_STRETCHES * window))


def _stretches_of_one(where: str, rows: Rows, window: int, *, labels_tokens: bool) -> Stretches:
    """Return the stretches of a single recording, with the splits of its steps if they have any.

    Else the stretches are divided into splits: those of each split come from the whole recording, with about its share
    of the steps of each class, so that no split lacks a class that occurs in several stretches. Only steps at a border
    of a stretch have a neighbour in another split.
    """
    assert rows.lengths is not None  # `prepare_recordings` sets them
    steps = int(rows.lengths[0])
    if rows.split is not None:
        return _stretches_of_splits(where, rows.split[0, :steps], window)
    if steps < MIN_STRETCHES * window:
        a_window_fits = steps >= 2 * MIN_STRETCHES  # a window has two steps at least
        at_most = f"pass --window {steps // MIN_STRETCHES} or less, or " if a_window_fits else ""
        raise InputError(
            f"{where}: one recording of {steps:,} steps is divided into at least {MIN_STRETCHES} stretches, which are "
            f"shorter than --window {window}",
            f"{at_most}give more steps or recordings",
        )
    stretch_of_step = stretch_of_steps(steps, window)
    # Balance the splits by the classes of the steps. Targets of a regression are not balanced, and neither are several
    # outputs: then all steps are of one class.
    classes = np.zeros(steps, np.int64)
    if labels_tokens and rows.y is not None and rows.y.ndim == 2:
        y = rows.y[0, :steps]
        are_classes = y.dtype.kind == "U" or (y.dtype.kind in "iu" and read_labels(y).are_names)
        classes = y if are_classes else classes
    split_of_step = grouped(stretch_of_step, classes, SPLIT_SHARES)
    start = np.unique(stretch_of_step, return_index=True)[1]  # the first step of each stretch
    return Stretches(
        recording=np.zeros(len(start), np.int64),
        start=start,
        length=np.diff(start, append=steps),
        groups=np.arange(len(start)),
        split=split_of_step[start],
    )


def _stretches_of_splits(where: str, split: np.ndarray, window: int) -> Stretches:
    """Return the stretches of a recording whose steps have a ``split`` (steps,): parts of each run of one split."""
    # A run begins at the first step, and where the split changes.
    run_starts = np.flatnonzero(np.concatenate([[True], split[1:] != split[:-1]]))
    run_lengths = np.diff(run_starts, append=len(split))
    if np.median(run_lengths) < window:
        raise InputError(
            f"{where}: the split changes every {np.median(run_lengths):.0f} steps, within a window of {window}",
            "give each split stretches of at least a window, or pass --drop split",
        )
    # Longer runs are divided, because folds need several groups. The last stretch of a run also has the steps that are
    # left.
    stretch_length = _stretch_length(len(split), window)
    start = np.concatenate(
        [
            first + stretch_length * np.arange(max(1, length // stretch_length))
            for first, length in zip(run_starts, run_lengths, strict=True)
        ]
    )
    return Stretches(
        recording=np.zeros(len(start), np.int64),
        start=start,
        length=np.diff(start, append=len(split)),
        groups=np.arange(len(start)),
        split=split[start],
    )


# ---- windows of recordings


class _Cut:
    """Windows (rows, steps, ...) of the recordings ``x``, which are read when the windows are.

    The windows have ``lengths`` (rows,), after which they are zero.
    """

    def __init__(self, x: Sequences, windows: RecordingWindows, lengths: np.ndarray, steps: int):
        self._x, self._windows, self._lengths = x, windows, lengths
        self.shape = (len(windows.recording), steps, *x.shape[2:])
        self.dtype = x.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        recording, start = self._windows.recording[rows], self._windows.start[rows]
        if not len(recording):
            return np.zeros((0, *self.shape[1:]), self.dtype)
        # The windows of a recording follow each other, so a range of windows needs a range of recordings.
        first, last = int(recording[0]), int(recording[-1])
        recordings = self._x[first : last + 1]
        # The steps of each window, (windows, steps). Those after the end of a short window are cleared afterwards: they
        # may be after the end of the array, or belong to another stretch.
        offsets = np.arange(self.shape[1])
        steps = np.minimum(start[:, None] + offsets, recordings.shape[1] - 1)
        windows = recordings[recording[:, None] - first, steps]
        windows[offsets >= self._lengths[rows][:, None]] = 0
        return windows


def window_starts(length: int, window: int, step: int) -> list[int]:
    """Return the first steps of the windows of a recording of ``length`` steps, one every ``step`` steps.

    A recording that is not longer than a window is one window. If steps are left at the end, one more
    window ends with the recording, unless windows are meant to leave steps out (``step`` above
    ``window``).
    """
    starts = list(range(0, max(length - window, 0) + 1, step))
    if step <= window and starts[-1] + window < length:
        starts.append(length - window)
    return starts


def _cut_rows(rows: Rows, stretches: Stretches, window: int, step: int, *, labels_tokens: bool) -> Rows:
    """Return the windows of the stretches of recordings as rows, which are read when they are needed.

    ``rows`` has a row per recording. A window of ``window`` steps begins every ``step`` steps of a stretch.
    """
    stretch_of_window, start_of_window = _windows_of_stretches(stretches, window, step)
    recording_of_window = stretches.recording[stretch_of_window]
    recording_names = _recording_names(rows)
    windows = RecordingWindows(recording=recording_of_window, start=start_of_window, names=recording_names)

    # A stretch that is shorter than a window is one shorter window.
    steps = min(window, rows.x.shape[1])
    ends = stretches.start + stretches.length
    lengths = np.minimum(ends[stretch_of_window] - start_of_window, steps).astype(np.int32)
    y = _labels_of_windows(rows.y, windows, lengths, steps, labels_tokens=labels_tokens)
    ids = [
        window_name(recording_names[recording], first_step, first_step + length)
        for recording, first_step, length in zip(recording_of_window, start_of_window, lengths, strict=True)
    ]
    # A piece may hold as many steps as before. Each of its windows holds ``window`` steps, and is cut from about
    # ``step`` new steps of a recording; the larger of the two limits the number of windows.
    steps_of_piece = rows.piece_rows * rows.x.shape[1]
    piece_rows = min(EVERY_ROW, max(1, steps_of_piece // max(window, step)))
    windows_of_recording = np.bincount(recording_of_window, minlength=len(rows))
    return replace(
        rows,
        x=_Cut(rows.x, windows, lengths, steps),
        lengths=lengths,
        y=y,
        groups=stretches.groups[stretch_of_window],
        split=None if stretches.split is None else stretches.split[stretch_of_window],
        ids=np.array(ids),
        windows=windows,
        skipped=_skipped_among_windows(rows.skipped, windows_of_recording),
        piece_rows=piece_rows,
        notes=(*rows.notes, _note_on_windows(stretches, len(start_of_window), window, step)),
    )


def _recording_names(rows: Rows) -> np.ndarray:
    """Return what names each recording, (recordings,), differently within a split.

    If ids repeat there, ``#`` and the number of the recording follow, as in tables: the windows of a recording are
    found again by its name.
    """
    names_in_splits = _names_in_splits(rows)
    if len(np.unique(names_in_splits)) == len(rows):
        return rows.names
    pairs = zip(rows.names.tolist(), rows.numbers.tolist(), strict=True)
    return np.array([f"{name}#{number}" for name, number in pairs])


def _windows_of_stretches(stretches: Stretches, window: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the stretch of each window, and its first step in the recording, (windows,) each."""
    starts_by_stretch = [
        first + np.array(window_starts(int(length), window, step), np.int64)
        for first, length in zip(stretches.start, stretches.length, strict=True)
    ]
    counts = [len(starts) for starts in starts_by_stretch]
    return np.repeat(np.arange(len(counts)), counts), np.concatenate(starts_by_stretch)


def _note_on_windows(stretches: Stretches, windows: int, window: int, step: int) -> str:
    """Return a line that says how many ``windows``, of ``window`` steps, the stretches make, and how far apart."""
    count = f"{len(stretches.start):,} {stretches.noun}"
    note = f"{count} make {windows:,} windows of {window:,} steps, every {step:,}"
    short_stretches = int((stretches.length < window).sum())
    if short_stretches:
        note += f"; {short_stretches:,} shorter ones are one window each"
    return note


def _labels_of_windows(
    y: np.ndarray | None,
    windows: RecordingWindows,
    lengths: np.ndarray,
    steps: int,
    *,
    labels_tokens: bool,
) -> np.ndarray | None:
    """Return the label of each window, that of its recording, or with ``labels_tokens`` those of its steps.

    ``y`` has the labels of the recordings as `_labels_at` describes them, ``lengths`` (windows,) are the lengths of the
    windows, and ``steps`` is the length to which they are padded.
    """
    if y is None:
        return None
    if not labels_tokens:
        return y[windows.recording]
    # The steps of each window. Labels in an array are padded after the end of a short window, with any labels, which
    # are not read; lists are not padded.
    is_array = y.ndim > 1
    counts = np.full(len(lengths), steps) if is_array else lengths
    steps_of_windows = [
        first + np.arange(count) for first, count in zip(windows.start, counts, strict=True)
    ]
    if is_array:
        last_step = y.shape[1] - 1
        steps_of_windows = [np.minimum(steps_of_window, last_step) for steps_of_window in steps_of_windows]
    return _labels_at(y, windows.recording, steps_of_windows)


def _labels_at(y: np.ndarray, recording: np.ndarray, steps_of_rows: list[np.ndarray]) -> np.ndarray:
    """Return the labels of some steps of recordings, a row for each entry of ``steps_of_rows``.

    Row r has the labels of the steps ``steps_of_rows[r]`` of the recording with the number ``recording[r]``. ``y`` has
    the labels of recordings, an array (recordings, steps); those of new recordings are objects (recordings,), each a
    list or None. The result has the same form.
    """
    if y.ndim > 1:
        return np.stack([y[number, steps] for number, steps in zip(recording, steps_of_rows, strict=True)])
    labels = np.empty(len(recording), object)
    for row, (number, steps) in enumerate(zip(recording, steps_of_rows, strict=True)):
        labels_of_recording = y[number]
        if labels_of_recording is not None:  # else the row keeps None
            labels[row] = [labels_of_recording[step] for step in steps]
    return labels


def _skipped_among_windows(skipped: Skipped, counts: np.ndarray) -> Skipped:
    """Return the recordings that cannot be read by their numbers among the windows, where each counts as one window.

    ``skipped`` has them by their numbers among all recordings, and ``counts`` (recordings,) are the numbers of windows
    of the others.
    """
    counts_left = iter(counts.tolist())
    among_windows: Skipped = {}
    window = 0
    for recording in range(len(counts) + len(skipped)):
        if recording in skipped:
            among_windows[window] = skipped[recording]
            window += 1
        else:
            window += next(counts_left)
    return among_windows


_WINDOW_NAME = re.compile(r"(.*)\[\d+:\d+\]", re.DOTALL)


def window_name(recording: object, start: int, end: int) -> str:
    """Return the name of a window: its recording, and its steps as Python writes a slice, such as ``"walk[0:50]"``."""
    return f"{recording}[{start}:{end}]"


def recording_name(window: str | int) -> str | int:
    """Return the name of a window's recording, the inverse of `window_name`; other names stay as they are."""
    match = _WINDOW_NAME.fullmatch(str(window))
    return match[1] if match else window
