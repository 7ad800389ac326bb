"""Images in arrays, such as ``x`` (rows, height, width, 3) of an ``.npz``: stored as files of images are, as PNG."""

from dataclasses import replace
from io import BytesIO

import numpy as np

from reservoir.errors import InputError
from reservoir.options import OwnDataOptions
from reservoir.tasks.pictures import check_pillow
from reservoir.tasks.task import Task
from reservoir_pipelines.data.rows import IMAGE_NOTE, Rows, Sequences

CHANNELS = (1, 3)
"""Numbers of channels of an image in an array, last: grey, or red, green and blue."""

MIN_SIDE = 8
"""Fewest pixels of a side of grey images: smaller square arrays are steps of several channels."""

PIECE_ROWS = 1024  # images that are in memory at a time


class ImageArray:
    """An array of images (rows, height, width[, channels]) as an array (rows,) of the bytes of PNG files."""

    dtype = np.dtype(object)

    def __init__(self, pixels: Sequences):
        self._pixels = pixels
        self.shape = pixels.shape[:1]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.fromiter(map(_png, self._pixels[rows]), object)


def holds_images(rows: Rows, options: OwnDataOptions, task: Task | None) -> bool:
    """Return whether rows are images in an array: bytes with channels last, or square ones of one channel.

    Square bytes are steps of several channels if every step has a label, or with an option of sequences, such as
    ``--values``. New rows are read as those of their ``task``.
    """
    x = rows.x
    is_of_bytes, has_channels = x.dtype == np.uint8, len(x.shape) == 4
    is_square = len(x.shape) == 3 and x.shape[1] == x.shape[2] >= MIN_SIDE
    if task is not None:
        return task.pictures > 0 and len(x.shape) in (3, 4)
    labels_steps = rows.y is not None and rows.y.shape[:2] == x.shape[:2]
    of_sequences = options.values or options.symbols or options.window or options.resample
    are_steps = labels_steps or of_sequences or options.missing != "refuse"
    return has_channels or (is_of_bytes and is_square and not are_steps)


def rows_of_images(where: str, rows: Rows) -> Rows:
    """Return rows whose ``x`` is an array of images as rows of images; refuse what is not a byte per channel."""
    check_pillow()
    x = rows.x
    has_channels = len(x.shape) == 3 or x.shape[3] in CHANNELS
    if x.dtype != np.uint8 or not has_channels or 0 in x.shape:
        raise InputError(
            f"{where}: x has the shape {x.shape} and holds {x.dtype} values",
            "give images as bytes (uint8) from 0 to 255, (rows, height, width, 3), or grey ones (rows, height, width)",
        )
    if rows.lengths is not None:
        raise InputError(f"{where}: x holds images, which have no lengths", "remove the array 'lengths'")
    size = "x".join(map(str, x.shape[1:3]))
    escape = "; pass --values to read them as steps of several channels" if len(x.shape) == 3 else ""
    note = f"x read as images of {size} pixels{escape}"
    return replace(
        rows,
        x=ImageArray(x),
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
