"""What the axes of an array mean: steps and channels in either order, images, or images with all pixels in one row."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.pictures import check_pillow
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import IMAGE_NOTE, Rows, Sequences
from reservoir_pipelines.data.values import MIN_SIDE, SAMPLE, read_pixel_rows, side_and_channels

CHANNELS = (1, 3)
"""Numbers of channels of an image in an array, last: grey, or red, green and blue."""

PIECE_ROWS = 1024  # images that are in memory at a time

MAX_GREY_LEVELS = 64
"""Pixels below this number are grey levels of fewer than eight bits."""

CLEARLY_SMOOTHER = 0.5
"""Along time, smooth recordings change by less than this share of what they do from channel to channel."""


def read_axes(where: str, rows: Rows, options: OwnDataOptions, task: Task | None) -> Rows:
    """Return the rows of a file of arrays with steps before channels, or as images.

    Notes say what else the axes may mean. New rows are read as those of their ``task``.
    """
    if rows.holds != "numbers":
        return rows
    is_flat = len(rows.x.shape) == 2
    if options.channels_first and not (is_flat and options.pixels):
        rows = _with_channels_last(where, rows, pixels=bool(options.pixels))
    rows = read_pixels(where, rows, options)
    if rows.holds == "images":
        return rows
    if _holds_images(rows, options, task):
        return _as_images(where, rows)
    notes = [] if task else _notes_on_axes(rows, options)
    return replace(rows, notes=(*rows.notes, *notes))


# ---- steps and channels


class _Converted:
    """Sequences that are converted when a range of rows is read."""

    def __init__(
        self,
        x: Sequences,
        shape: tuple[int, ...],
        dtype: np.dtype,
        convert: Callable[[np.ndarray], np.ndarray],
    ):
        self._x, self._convert = x, convert
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._convert(self._x[rows])


def _with_channels_last(where: str, rows: Rows, *, pixels: bool) -> Rows:
    """Return rows, perhaps of ``pixels``, whose channels, the second axis, become the last one."""
    x = rows.x
    if len(x.shape) not in ((4,) if pixels else (3, 4)):  # images of three axes are grey
        raise InputError(
            f"{where}: x has the shape {x.shape}, without an axis of channels", "leave out --channels-first"
        )
    count, channels, *others = x.shape
    moved = _Converted(x, (count, *others, channels), x.dtype, lambda part: np.moveaxis(part, 1, -1))
    return replace(rows, x=moved, parameters={**rows.parameters, "channels_first": True})


def channels_seem_first(x: np.ndarray) -> bool:
    """Return whether values (rows, tokens, dim) are probably (rows, channels, steps).

    Steps in time change little from one to the next, channels more. If neither axis is clearly smoother, the longer
    one is probably that of the steps.
    """
    changes = [_change_along(x, axis) for axis in (1, 2)]
    if min(changes) < CLEARLY_SMOOTHER * max(changes):
        return changes[1] < changes[0]
    return x.shape[2] > x.shape[1] > 1


def _change_along(x: np.ndarray, axis: int) -> float:
    """Return the mean absolute difference of neighbours along an axis; infinite if the axis has no neighbours."""
    if x.shape[axis] < 2:
        return np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(np.diff(x.astype(np.float64), axis=axis))
    finite = differences[np.isfinite(differences)]
    return float(finite.mean()) if finite.size else np.inf


def _notes_on_axes(rows: Rows, options: OwnDataOptions) -> list[str]:
    """Return a note if arrays that are read as series may have their channels first, or hold images."""
    shape = rows.x.shape
    if 0 in shape or rows.x.dtype.kind not in "uif":
        return []
    if len(shape) == 2:
        return notes_on_pixels(rows, options)
    if len(shape) != 3 or options.channels_first:
        return []
    _, steps, channels = shape
    sample = rows.x[: max(1, SAMPLE // (steps * channels))]
    reading = f"x read as {steps:,} steps of {channels:,} channels"
    # Square rows without negative values may be grey images. An infinite value is refused later, with its place.
    may_be_images = steps == channels >= MIN_SIDE and sample.min() >= 0 and bool(np.isfinite(sample.max()))
    if may_be_images and not _reads_sequences(rows, options):
        return [
            f"{reading}; pass --pixels {_suggested_white(sample)} if the rows are images of {steps}x{channels} pixels"
        ]
    if channels_seem_first(sample):
        return [f"{reading}; pass --channels-first if x is (rows, channels, steps)"]
    return []


# ---- images


def _reads_sequences(rows: Rows, options: OwnDataOptions) -> bool:
    """Return whether each step has a label, or an option of sequences, such as ``--values``, is given."""
    labels_steps = rows.y is not None and rows.y.shape[:2] == rows.x.shape[:2] and len(rows.x.shape) == 3
    of_sequences = options.values or options.symbols or options.window or options.resample
    return bool(labels_steps or of_sequences or options.missing != "refuse" or options.channels_first)


def _holds_images(rows: Rows, options: OwnDataOptions, task: Task | None) -> bool:
    """Return whether rows are to be read as images: arrays of four axes, or square bytes of three.

    `_as_images` refuses those that are not bytes, or whose channels are not last. Square bytes are steps of several
    channels if every step has a label, or with an option of sequences, such as ``--values``. New rows are read as those
    of their ``task``.
    """
    x = rows.x
    is_of_bytes, has_four_axes = x.dtype == np.uint8, len(x.shape) == 4
    is_square = len(x.shape) == 3 and x.shape[1] == x.shape[2] >= MIN_SIDE
    if task is not None:
        return task.pictures > 0 and len(x.shape) in (3, 4)
    return has_four_axes or (is_of_bytes and is_square and not _reads_sequences(rows, options))


def _as_images(where: str, rows: Rows) -> Rows:
    """Return rows whose ``x`` is an array of images as rows of images; refuse what is not a byte per channel.

    Images are grey, (rows, height, width), or have channels, (rows, height, width, channels).
    """
    check_pillow()
    x = rows.x
    are_bytes, are_grey = x.dtype == np.uint8, len(x.shape) == 3
    has_readable_axes = are_grey or x.shape[3] in CHANNELS
    if not are_bytes or not has_readable_axes or 0 in x.shape:
        are_channels_first = not has_readable_axes and x.shape[1] in CHANNELS
        remedy = (
            "give images as bytes (uint8) from 0 to 255, (rows, height, width, 3), "
            "or grey ones (rows, height, width)"
        )
        if are_channels_first:
            remedy += "; --channels-first reads (rows, 3, height, width)"
        if not are_bytes:
            remedy += "; --pixels 1 reads pixels from 0 to 1"
        raise InputError(f"{where}: x has the shape {x.shape} and holds {x.dtype} values", remedy)
    if rows.lengths is not None:
        raise InputError(f"{where}: x holds images, which have no lengths", "remove the array 'lengths'")
    # Square bytes are only taken for images, so the note says how to read them as series. Each image is stored as a
    # PNG, as files of images are.
    height, width = x.shape[1:3]
    may_be_series = are_grey and "pixels" not in rows.parameters
    remedy = "; pass --values to read them as steps of several channels" if may_be_series else ""
    note = f"x read as images of {height}x{width} pixels{remedy}"
    return replace(
        rows,
        x=_Converted(x, x.shape[:1], np.dtype(object), lambda part: np.fromiter(map(_png, part), object)),
        holds="images",
        piece_rows=min(PIECE_ROWS, rows.piece_rows),
        notes=(*rows.notes, note, IMAGE_NOTE),
    )


def _png(pixels: np.ndarray) -> np.ndarray:
    """Return the bytes of an image as a PNG file, which keeps every pixel."""
    from PIL import Image

    file = BytesIO()
    is_grey = pixels.ndim == 2 or pixels.shape[2] == 1
    Image.fromarray(pixels.reshape(pixels.shape[:2]) if is_grey else pixels).save(
        file, "PNG", compress_level=1
    )
    return np.frombuffer(file.getvalue(), np.uint8)


# ---- images with all pixels in one row, or with pixels that are not bytes


def read_pixels(where: str, rows: Rows, options: OwnDataOptions) -> Rows:
    """Return rows of numbers as images if ``--pixels`` gives the value of white; else the rows."""
    white = options.pixels
    if not white or rows.holds != "numbers":
        return rows
    shape = _shape_of_images(where, rows.x.shape, options)
    if rows.lengths is not None:
        if (rows.lengths < rows.x.shape[1]).any():
            raise InputError(
                f"{where}: rows of images end early", "give every pixel, or leave out --pixels"
            )
        rows = replace(rows, lengths=None)
    is_flat = len(rows.x.shape) == 2
    channels_first = bool(options.channels_first and is_flat)

    def as_bytes(part: np.ndarray) -> np.ndarray:
        """Return numbers (rows, ...) from 0 to ``white`` as bytes (rows, height, width[, channels])."""
        low, high = part.min(initial=0), part.max(initial=0)
        if not (low >= 0 and high <= white):  # also if one of them is NaN
            wrong = high if low >= 0 else low
            raise InputError(
                f"{where}: x holds {wrong}, but --pixels {white} reads pixels from 0 to {white}",
                "pass the largest value that a pixel can have, or correct the pixels",
            )
        if channels_first and len(shape) == 3:
            part = np.moveaxis(part.reshape(len(part), shape[2], *shape[:2]), 1, -1)
        return np.rint(part.reshape(len(part), *shape) * (255 / white)).astype(np.uint8)

    images = _Converted(rows.x, (rows.x.shape[0], *shape), np.dtype(np.uint8), as_bytes)
    parameters = {**rows.parameters, "pixels": white}
    parameters |= {"channels_first": True} if options.channels_first else {}
    return _as_images(where, replace(rows, x=images, parameters=parameters))


def _shape_of_images(where: str, shape: tuple[int, ...], options: OwnDataOptions) -> tuple[int, ...]:
    """Return the height, the width and perhaps the channels of the images in an array of a shape."""
    if len(shape) == 2:
        size = side_and_channels(shape[1])
        if size is None:
            raise InputError(
                f"{where}: --pixels: {shape[1]:,} values are not a square image, grey or of three channels",
                "write an .npz with x (rows, height, width)",
            )
        side, channels = size
        return (side, side) if channels == 1 else (side, side, channels)
    if len(shape) not in (3, 4) or 0 in shape:
        raise InputError(
            f"{where}: --pixels: x has the shape {shape}", "give (rows, height, width[, channels])"
        )
    return shape[1:]


def notes_on_pixels(rows: Rows, options: OwnDataOptions) -> list[str]:
    """Return a note if rows of values, (rows, values), are probably images with all pixels in one row."""
    x = rows.x
    is_padded = rows.lengths is not None and bool((rows.lengths < x.shape[1]).any())
    is_flat = rows.holds == "numbers" and len(x.shape) == 2 and 0 not in x.shape and x.dtype.kind in "uif"
    if not is_flat or is_padded or rows.labels_tokens or _reads_sequences(rows, options):
        return []
    sample = x[: max(1, SAMPLE // x.shape[1])]
    picture = read_pixel_rows(sample)
    if picture is None:
        return []
    flags = f"--pixels {_suggested_white(sample)}" + (" --channels-first" if picture.channels_first else "")
    return [
        f"the {x.shape[1]:,} values of a row are probably an image of {picture.side}x{picture.side} pixels, because "
        f"values one row of pixels apart are alike; pass {flags} to read images"
    ]


def _suggested_white(sample: np.ndarray) -> int:
    """Return the value of white that pixels with the values of a sample probably have."""
    largest = float(sample.max())
    likely = [white for white in (1, 255, 65535) if largest <= white]
    # Bytes of a few grey levels, such as scikit-learn's digits from 0 to 16, have the largest level as white.
    few_levels = 1 < largest < MAX_GREY_LEVELS
    return int(np.ceil(largest)) if few_levels or not likely else likely[0]
