"""What the axes of an array mean: steps and channels in either order, images, or images with all pixels in one row."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.pictures import check_pillow
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import IF_IMAGES, IMAGE_NOTE, OR_PASS, Rows, Sequences
from reservoir_pipelines.data.values import MIN_SIDE, SAMPLE, read_pixel_rows, side_and_channels

CHANNELS = (1, 3)
"""Numbers of channels that an image may have: grey, or red, green and blue."""

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
    # Images with all pixels in one row have no axis of channels to move: `read_pixels` reads the order of the colours.
    has_flat_images = len(rows.x.shape) == 2 and bool(options.pixels)
    if options.channels_first and not has_flat_images:
        are_images = bool(options.pixels) or (task is not None and task.pictures > 0)
        rows = _with_channels_last(where, rows, pixels=are_images)
    rows = read_pixels(where, rows, options)
    if rows.holds == "images":
        return rows
    if _holds_images(rows, options, task):
        return _as_images(where, rows)
    notes = [] if task else _notes_on_axes(rows, options)
    return replace(rows, notes=(*rows.notes, *notes))


# ---- steps and channels


class _Converted:
    """The array ``x``, of which ``convert`` makes one of another ``shape`` and ``dtype``, range of rows by range."""

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
    """Return rows, which are images if they hold ``pixels``, with their channels, the second axis, as the last one."""
    x = rows.x
    axes_with_channels = (4,) if pixels else (3, 4)  # images of three axes are grey
    if len(x.shape) not in axes_with_channels:
        raise InputError(
            f"{where}: x has the shape {x.shape}, without an axis of channels, or of rows",
            "add the axis, or leave out --channels-first",
        )
    count, channels, *others = x.shape
    moved = _Converted(
        x, (count, *others, channels), x.dtype, convert=lambda part: np.moveaxis(part, 1, -1)
    )
    return replace(rows, x=moved, parameters={**rows.parameters, "channels_first": True})


def channels_seem_first(x: np.ndarray) -> bool:
    """Return whether values (rows, tokens, dim) are probably (rows, channels, steps).

    Steps in time change little from one to the next, channels more. If neither axis is clearly smoother, the longer
    one is probably that of the steps.
    """
    along_second, along_third = _change_along(x, 1), _change_along(x, 2)
    one_is_clearly_smoother = min(along_second, along_third) < CLEARLY_SMOOTHER * max(
        along_second, along_third
    )
    if one_is_clearly_smoother:
        return along_third < along_second
    return x.shape[2] > x.shape[1] > 1


def _change_along(x: np.ndarray, axis: int) -> float:
    """Return the mean absolute difference of neighbours along an axis; infinite if the axis has no neighbours."""
    if x.shape[axis] < 2:
        return np.inf
    # Values may be infinite; their differences are left out.
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
    sampled_rows = max(1, SAMPLE // (steps * channels))
    sample = rows.x[:sampled_rows]
    reading = f"x read as {steps:,} steps of {channels:,} channels"
    # Bytes, and square rows without negative values, may be grey images. An infinite value is refused later, with its
    # place.
    has_sides = min(steps, channels) >= MIN_SIDE and (steps == channels or sample.dtype == np.uint8)
    may_be_images = has_sides and sample.min() >= 0 and bool(np.isfinite(sample.max()))
    offers = []
    if may_be_images and not _reads_sequences(rows, options):
        offers.append(f"pass --pixels {_suggested_white(sample)} {IF_IMAGES} of {steps}x{channels} pixels")
    if channels_seem_first(sample):
        offers.append("pass --channels-first if x is (rows, channels, steps)")
    return [f"{reading}; {', or '.join(offers)}"] if offers else []


# ---- images


def _reads_sequences(rows: Rows, options: OwnDataOptions) -> bool:
    """Return whether rows are meant as sequences: each step has a label, or an option of sequences is given."""
    have_steps = len(rows.x.shape) == 3
    labels_steps = have_steps and rows.y is not None and rows.y.shape[:2] == rows.x.shape[:2]
    has_option_of_sequences = bool(
        options.values
        or options.symbols
        or options.window
        or options.resample
        or options.channels_first
        or options.missing != "refuse"
    )
    return labels_steps or has_option_of_sequences


def _holds_images(rows: Rows, options: OwnDataOptions, task: Task | None) -> bool:
    """Return whether rows are to be read as images: arrays of four axes, or square bytes of three.

    `_as_images` refuses those that are not bytes, or whose channels are not last. Square bytes are steps of several
    channels if every step has a label, or with an option of sequences, such as ``--values``. New rows are read as those
    of their ``task``.
    """
    x = rows.x
    if task is not None:
        return task.pictures > 0 and len(x.shape) in (3, 4)
    if len(x.shape) == 4:
        return True
    is_square = len(x.shape) == 3 and x.shape[1] == x.shape[2] >= MIN_SIDE
    return x.dtype == np.uint8 and is_square and not _reads_sequences(rows, options)


def _as_images(where: str, rows: Rows) -> Rows:
    """Return rows whose ``x`` is an array of images as rows of images; refuse what is not a byte per channel.

    Images are grey, (rows, height, width), or have channels, (rows, height, width, channels).
    """
    check_pillow()
    x = rows.x
    _refuse_other_pixels(where, x)
    if rows.lengths is not None:
        raise InputError(f"{where}: x holds images, which have no lengths", "remove the array 'lengths'")
    # Square bytes are taken for images by a rule alone, so the note says how to read them as series.
    height, width = x.shape[1:3]
    note = f"x read as images of {height}x{width} pixels"
    are_grey = len(x.shape) == 3
    if are_grey and "pixels" not in rows.parameters:
        note += "; pass --values to read them as steps of several channels"

    def as_files(part: np.ndarray) -> np.ndarray:
        """Return images as the bytes of PNG files, (rows,) of objects, as those of files of images are stored."""
        return np.fromiter(map(_png, part), object)

    return replace(
        rows,
        x=_Converted(x, x.shape[:1], np.dtype(object), as_files),
        holds="images",
        piece_rows=min(PIECE_ROWS, rows.piece_rows),
        notes=(*rows.notes, note, IMAGE_NOTE),
    )


def _refuse_other_pixels(where: str, x: Sequences) -> None:
    """Refuse an array of three or four axes, as images have, unless it has a byte per channel, and channels last.

    An array (height, width, channels) is a single image without an axis of rows, not grey images of few pixels.
    """
    are_bytes = x.dtype == np.uint8
    are_grey = len(x.shape) == 3
    if are_grey and x.shape[2] in CHANNELS:
        raise InputError(
            f"{where}: x has the shape {x.shape}, that of one image with channels, not of several",
            "add the axis of rows: (rows, height, width, channels)",
        )
    are_channels_last = are_grey or x.shape[3] in CHANNELS
    if are_bytes and are_channels_last and 0 not in x.shape:
        return
    remedy = "give images as bytes (uint8) from 0 to 255, (rows, height, width, 3), or grey ones (rows, height, width)"
    if not are_channels_last and x.shape[1] in CHANNELS:
        remedy += f"{OR_PASS}channels-first for (rows, 3, height, width)"
    if not are_bytes:
        remedy += f"{OR_PASS}pixels 1 for pixels from 0 to 1"
    remedy += f"{OR_PASS}pixels 255 for grey ones that are not as high as wide"
    raise InputError(f"{where}: x has the shape {x.shape} and holds {x.dtype} values", remedy)


def _png(pixels: np.ndarray) -> np.ndarray:
    """Return the bytes of an image as a PNG file, which keeps every pixel.

    ``pixels`` are bytes (height, width) or (height, width, channels).
    """
    from PIL import Image

    file = BytesIO()
    is_grey = pixels.ndim == 2 or pixels.shape[2] == 1
    if is_grey:
        pixels = pixels.reshape(pixels.shape[:2])  # Pillow reads no axis of one channel
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)  # the fastest compression
    return np.frombuffer(file.getvalue(), np.uint8)


# ---- images with all pixels in one row, or with pixels that are not bytes


def read_pixels(where: str, rows: Rows, options: OwnDataOptions) -> Rows:
    """Return rows of numbers as images if ``--pixels`` gives the value of white; else the rows as they are."""
    white = options.pixels
    if not white or rows.holds != "numbers":
        return rows
    shape = _shape_of_images(where, rows.x.shape, options)
    # A table has lengths, which for images must be those of all pixels.
    if rows.lengths is not None:
        if (rows.lengths < rows.x.shape[1]).any():
            raise InputError(
                f"{where}: rows of images end early", "give every pixel, or leave out --pixels"
            )
        rows = replace(rows, lengths=None)
    # In images with all pixels in one row, the colours may be one after the other; `read_axes` moves other channels.
    is_flat = len(rows.x.shape) == 2
    colours_are_apart = bool(options.channels_first) and is_flat and len(shape) == 3

    def as_bytes(part: np.ndarray) -> np.ndarray:
        """Return numbers (rows, ...) from 0 to ``white`` as bytes (rows, height, width[, channels])."""
        low, high = part.min(initial=0), part.max(initial=0)
        if not (low >= 0 and high <= white):  # this way round, NaN is refused, too
            wrong = high if low >= 0 else low
            raise InputError(
                f"{where}: x holds {wrong}, but --pixels {white} reads pixels from 0 to {white}",
                "pass the largest value that a pixel can have, or correct the pixels",
            )
        if colours_are_apart:
            height, width, channels = shape
            part = np.moveaxis(part.reshape(len(part), channels, height, width), 1, -1)
        return np.rint(part.reshape(len(part), *shape) * (255 / white)).astype(np.uint8)

    images = _Converted(rows.x, (rows.x.shape[0], *shape), np.dtype(np.uint8), as_bytes)
    parameters = {**rows.parameters, "pixels": white}
    if options.channels_first:
        parameters["channels_first"] = True
    return _as_images(where, replace(rows, x=images, parameters=parameters))


def _shape_of_images(where: str, shape: tuple[int, ...], options: OwnDataOptions) -> tuple[int, ...]:
    """Return the height, the width and, unless they are grey, the channels of the images in an array of a shape."""
    if len(shape) == 2:  # all pixels in one row, of square images
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
    are_numbers = rows.holds == "numbers" and x.dtype.kind in "uif"  # NumPy's kinds: integers and floats
    is_flat = len(x.shape) == 2 and 0 not in x.shape
    may_be_images = are_numbers and is_flat and not is_padded
    if not may_be_images or rows.labels_tokens or _reads_sequences(rows, options):
        return []
    sampled_rows = max(1, SAMPLE // x.shape[1])
    sample = x[:sampled_rows]
    picture = read_pixel_rows(sample)
    if picture is None:
        return []
    flags = f"--pixels {_suggested_white(sample)}"
    if picture.channels_first:
        flags += " --channels-first"
    return [
        f"the {x.shape[1]:,} values of a row are probably an image of {picture.side}x{picture.side} pixels, because "
        f"values one row of pixels apart are alike; pass {flags} to read images"
    ]


def _suggested_white(sample: np.ndarray) -> int:
    """Return the value of white that pixels with the values of a sample probably have.

    It is 1 for shares, and 255 or 65535 for one or two bytes.
    """
    largest = float(sample.max())
    usual_whites = [white for white in (1, 255, 65535) if largest <= white]
    # Bytes of a few grey levels, such as scikit-learn's digits from 0 to 16, have the largest level as white.
    has_few_levels = 1 < largest < MAX_GREY_LEVELS
    return int(np.ceil(largest)) if has_few_levels or not usual_whites else usual_whites[0]
