"""Pictures of tasks: patches, whitened and plain overlapping windows, augmentation, and the decoding of image files.

Images of your own are stored as the bytes of their files, and decoded when a model reads them. Pictures of named tasks
are stored as patches, which are tokens; for ``--input patches``, overlapping windows of the pictures become tokens.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.rows import row_hash
from reservoir.tasks.task import Task, Vectors
from reservoir.tasks.windows import Windows

if TYPE_CHECKING:
    from PIL.Image import Image

# Augmentation.
PADDING = 4  # width in pixels of the black border that a crop may include
MAX_DEGREES = 20.0  # largest angle of a rotation, to either side

# Overlapping windows.
MARGIN = 2  # width in pixels of the border, a copy of the outermost pixels, that windows may include
LEVELS = 24  # stored levels per unit of whitened values
BLOCK = 512  # images worked on at once, so that the index arrays stay in the processor's cache
MAX_WINDOW_VALUES = 1024  # 200,000 windows, from which whitening is learnt, then take at most 2 GB

# Files of images. Other decoders of Pillow are rarely used, and so rarely tested.
PICTURE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
# Those of several frames or pages. JPEG files may have several, too, but these are versions of one photo.
FORMATS_OF_FRAMES = ("WEBP", "GIF", "TIFF")
MAX_PIXELS = 2**26  # an image of 8,192 x 8,192 takes 200 MB in RGB

# Sides of an image and of its patches in pixels, as in CIFAR-10, for backbones without patches of their own.
SIDE = 32
PATCH = 4
PATCHES = (SIDE // PATCH) ** 2  # of an image


def patches(images: np.ndarray, size: int) -> np.ndarray:
    """Cut images (rows, height, width[, channels]) into (rows, tokens, size**2 * channels), channels fastest."""
    rows, height, width = images.shape[:3]
    # Divide both sides, then bring the two axes of patches to the front: (rows, down, right, size, size, channels).
    grid = images.reshape(rows, height // size, size, width // size, size, -1).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(rows, (height // size) * (width // size), -1)


def joined(tokens: np.ndarray, side: int, size: int) -> np.ndarray:
    """Return square images (rows, side, side, channels) from their tokens; the inverse of `patches`."""
    rows = len(tokens)
    patches_along = side // size  # each side
    grid = tokens.reshape(rows, patches_along, patches_along, size, size, -1)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(rows, side, side, -1)


def whitened_windows(images: np.ndarray, window: int, stride: int) -> np.ndarray:
    """Return overlapping windows, bytes (rows, tokens, dim), of images (rows, side, side, channels) of bytes.

    As in Coates, Ng and Lee (2011), each window of ``window`` pixels a side is centred, divided by
    its standard deviation, and multiplied by the fixed matrix of `whitening`. Values are stored as
    bytes, ``128 + 24 * value``.
    """
    matrix = whitening(window, images.shape[3])
    margins = (MARGIN, MARGIN)
    tokens = []
    for lo in range(0, len(images), BLOCK):
        # Cut the windows of some images, whose edges are continued: (images, down, right, channels, window, window).
        block = images[lo : lo + BLOCK]
        framed = np.pad(block, ((0, 0), margins, margins, (0, 0)), mode="edge").astype(np.float32)
        windows = sliding_window_view(framed, (window, window), axis=(1, 2))[:, ::stride, ::stride]
        # Order the values of each window by pixel, then by channel, as the matrix has them.
        values = windows.transpose(0, 1, 2, 4, 5, 3).reshape(len(block), -1, len(matrix))
        levels = np.rint(contrast_normalised(values) @ matrix * LEVELS + 128)
        tokens.append(np.clip(levels, 0, 255).astype(np.uint8))
    return np.concatenate(tokens)


def contrast_normalised(windows: np.ndarray, noise: float = 10) -> np.ndarray:
    """Return windows (..., values) as floats, each centred and divided by its standard deviation.

    ``noise`` is added to each variance, so that the noise of uniform windows is not scaled up to contrast; the
    default is for values from 0 to 255.
    """
    centred = windows - windows.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + noise)


@cache
def whitening(window: int, channels: int) -> np.ndarray:
    """Return the symmetric whitening matrix (dim, dim) of windows, float32, for correlations as in photographs.

    The correlation of pixels at distance d is 0.95 ** d, and of colours 0.9; the mean of a window is
    projected out. Eigenvalues are scaled to mean 1, and 0.05 is added to each, so that the finest,
    noisy directions are not amplified.
    """
    # Covariance of the values of a window, (dim, dim): that of two pixels times that of two colours.
    places = np.stack(np.divmod(np.arange(window**2), window), 1)  # row and column of each pixel
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    colours = np.full((channels, channels), 0.9) + 0.1 * np.eye(channels)  # 1 on the diagonal
    covariance = np.kron(0.95**distance, colours)
    # Subtracting the mean of a window is a product with this matrix.
    dim = window**2 * channels
    centring = np.eye(dim) - 1 / dim
    # With eigenvalues l and vectors V of the covariance C without the mean, C^-1/2 = V l^-1/2 V'.
    eigenvalues, vectors = np.linalg.eigh(centring @ covariance @ centring)
    # Rounding may give eigenvalues below 0.
    roots = np.sqrt(np.maximum(eigenvalues / eigenvalues.mean(), 0) + 0.05)
    return ((vectors / roots) @ vectors.T).astype(np.float32)


def augmented(images: np.ndarray, rows: np.ndarray, view: int) -> np.ndarray:
    """Return augmented view number ``view``, from 1, of images (rows, height, width, channels), in their dtype.

    A view is a crop of the image with a black margin, flipped in half of the cases, and rotated by at
    most 20 degrees; each pixel takes the value of the nearest original pixel. Row number and view
    alone determine crop, flip and angle.
    """
    transformed: list[np.ndarray] = []
    for lo in range(0, len(images), BLOCK):
        block = slice(lo, lo + BLOCK)
        random_bits = row_hash(rows[block], seed=view)
        transformed.append(_transformed(images[block], random_bits))
    return np.concatenate(transformed)


def _transformed(images: np.ndarray, random_bits: np.ndarray) -> np.ndarray:
    """Return images (rows, height, width, channels) cropped, flipped and rotated at random.

    ``random_bits`` (rows,) of uint64 decide for each image.
    """
    rows, height, width, channels = images.shape
    # Each decision has bits of its own: 16 for each shift of the crop, one for the flip, 31 for the angle.
    shifts = np.uint64(2 * PADDING + 1)  # how many there are, from -PADDING to PADDING
    down = (_bits(random_bits, 0, 16) % shifts).astype(np.int32) - PADDING
    right = (_bits(random_bits, 16, 16) % shifts).astype(np.int32) - PADDING
    is_flipped = _bits(random_bits, 32, 1).astype(bool)
    angle = np.deg2rad(MAX_DEGREES * (_bits(random_bits, 33, 31) / 2**30 - 1)).astype(np.float32)
    # Each new pixel looks up the row and the column of an old one, (rows, height, width), so the steps are undone in
    # their order from the last. First the rotation, around the centre of the image.
    y, x = np.meshgrid(
        *(np.arange(n, dtype=np.float32) - (n - 1) / 2 for n in (height, width)), indexing="ij"
    )
    cosine = np.cos(angle)[:, None, None]
    sine = np.sin(angle)[:, None, None]
    row = np.rint(cosine * y + sine * x + (height - 1) / 2).astype(np.int32)
    column = np.rint(cosine * x - sine * y + (width - 1) / 2).astype(np.int32)
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    # Then the flip and the crop.
    column = np.where(is_flipped[:, None, None], width - 1 - column, column)
    row = row + down[:, None, None]
    column = column + right[:, None, None]
    is_inside &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    # Pixels outside take the value of an additional black one, which stands at the end.
    old_pixel = np.where(is_inside, row * width + column, height * width)
    pixels = np.pad(images.reshape(rows, height * width, channels), ((0, 0), (0, 1), (0, 0)))
    return np.take_along_axis(pixels, old_pixel.reshape(rows, -1, 1), axis=1).reshape(images.shape)


def _bits(numbers: np.ndarray, start: int, count: int) -> np.ndarray:
    """Return ``count`` bits of each number from bit ``start`` on, counted from the lowest, as a number."""
    return (numbers >> np.uint64(start)) & np.uint64(2**count - 1)


def check_pillow() -> None:
    """Raise `InputError` if Pillow, which reads images, is not installed."""
    with as_input_error("images need Pillow", "run pip install 'reservoir-features[images]'"):
        import PIL  # noqa: F401


def _has_more_than_a_byte(image: Any) -> bool:
    """Return whether the file of an opened image, which is not loaded yet, has more than 8 bits per value."""
    if image.mode.startswith(("I", "F")):  # grey values that are integers of 16 or 32 bits, or floats
        return True
    # Pillow opens colours of 16 bits in a mode of bytes, and would cut them to their high bytes. Only what it passes to
    # the decoder tells them apart: a raw mode such as RGB;16B, or the largest value of PPM. BMP has BGR;16, too, for
    # pixels of 16 bits, whose values have at most 6.
    for tile in image.tile:
        arguments = tile.args if isinstance(tile.args, tuple) else (tile.args,)
        if image.format == "PPM" and any(isinstance(value, int) and value > 255 for value in arguments[1:]):
            return True
        if image.format != "BMP" and ";16" in str(arguments[0]):
            return True
    return False


def decoded(stored: np.ndarray, where: str = "an image", *, rough: bool = False) -> "Image":
    """Return the image of the bytes of a file, an array (bytes,) of uint8, upright, in RGB on white.

    Parameters
    ----------
    stored : array of uint8
        The bytes of the file.
    where : str
        The file, for messages.
    rough : bool, default False
        Whether a JPEG may be decoded at a lower resolution, of at least 2 * `SIDE` pixels a side, which is faster.
    """
    check_pillow()
    from PIL import Image, ImageOps

    with (
        as_input_error(f"{where}: not a readable image", "repair it, or remove it"),
        warnings.catch_warnings(),
    ):
        # Pillow warns about odd metadata and large sizes; sizes are checked below
        warnings.simplefilter("ignore")
        with Image.open(BytesIO(stored.tobytes()), formats=PICTURE_FORMATS) as image:
            # The header says the size; pixels are read by `load`.
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"it claims {image.width:,}x{image.height:,} pixels, more than {MAX_PIXELS:,}"
                )
            if _has_more_than_a_byte(image):
                raise ValueError("its values have more than 8 bits, which is the maximum")
            if rough:
                image.draft("RGB", (2 * SIDE, 2 * SIDE))
            image.load()
            try:
                upright = ImageOps.exif_transpose(image)
            except Exception:  # damaged metadata is ignored, because the pixels have been read
                upright = image
            may_be_transparent = "A" in upright.getbands() or "transparency" in upright.info
            if not may_be_transparent:
                return upright.convert("RGB")
            foreground = upright.convert("RGBA")
            background = Image.new("RGBA", foreground.size, "white")
            return Image.alpha_composite(background, foreground).convert("RGB")


def has_several_frames(path: Path) -> bool:
    """Return whether a file has several pages or frames, of which `decoded` reads the first; False if it is damaged."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in `decoded`
            with Image.open(path, formats=FORMATS_OF_FRAMES) as image:
                return getattr(image, "is_animated", False)  # looks for a second frame without decoding one
    except Exception:  # Pillow has many; a damaged file is refused when it is decoded
        return False


def as_patches(x: np.ndarray) -> np.ndarray:
    """Return stored images (rows,), each the bytes of a file, as patches (rows, tokens, values) of bytes.

    They are resized to `SIDE` pixels a side before.
    """
    from PIL import Image

    size = (SIDE, SIDE)
    small = [np.asarray(decoded(row, rough=True).resize(size, Image.Resampling.BILINEAR)) for row in x]
    return patches(np.stack(small), PATCH)


@dataclass(frozen=True)
class Picture:
    """A square picture as the tokens of a task, and its windows.

    Parameters
    ----------
    side, channels : int
        Pixels along a side, and values of a pixel: 1 or 3.
    patch : int
        The side of the stored tokens in pixels: 1 if each pixel is a token, as in CIFAR-10-LRA.
    window, stride : int
        The side of the windows in pixels, and the pixels from one window to the next.
    """

    side: int
    channels: int
    patch: int
    window: int
    stride: int

    @classmethod
    def of(cls, task: Task, window: int, stride: int) -> "Picture":
        """Return the picture of a task's rows, with windows of this side and stride.

        Raise `InputError` if the rows are not square pictures, or if the windows do not fit them.
        """
        # A token is a pixel or a patch; a task with windows of its own stores whitened windows instead.
        tokens_along_side = math.isqrt(task.max_tokens)
        is_square = tokens_along_side**2 == task.max_tokens and tokens_along_side > 1
        stores_windows = bool(task.parameters.get("window"))
        patch_shape = _side_and_channels(task.form.dim) if isinstance(task.form, Vectors) else None
        if patch_shape is None or not is_square or stores_windows:
            raise InputError(
                f"--input patches: the rows of task {task.name!r} are not square pictures of plain pixels or patches",
                "use another --input, or a task of pictures without --param window",
            )
        patch, channels = patch_shape
        side = tokens_along_side * patch
        # Steps of the stride must lead from the first window, in one corner of the margin, exactly to the last.
        remainder = (side + 2 * MARGIN - window) % stride
        is_valid = 3 <= window <= side and stride <= window
        if not is_valid or remainder:
            raise InputError(
                f"--patch {window} --stride {stride}: windows do not fill pictures of {side} pixels and a margin of "
                f"{MARGIN} on each side",
                "try --patch 6 --stride 2",
            )
        if window**2 * channels > MAX_WINDOW_VALUES:
            raise InputError(
                f"--patch {window}: windows of {window**2 * channels:,} values are too large to whiten",
                "try --patch 6",
            )
        return cls(side, channels, patch, window, stride)

    @property
    def inner_window(self) -> int:
        """The side of the smaller window in the middle of a window: about half of it, with equal margins around."""
        half = self.window // 2
        return half + (self.window - half) % 2

    @property
    def window_values(self) -> int:
        """The number of values of a window."""
        return self.window**2 * self.channels

    @property
    def places(self) -> int:
        """The number of windows of a picture."""
        windows_along_side = (self.side + 2 * MARGIN - self.window) // self.stride + 1
        return windows_along_side**2


def _side_and_channels(values: int) -> tuple[int, int] | None:
    """Return the side in pixels and the channels of a square patch of so many values; None if no patch has so many."""
    for channels in (1, 3):  # grey or in colour
        side = math.isqrt(values // channels)
        if side**2 * channels == values:
            return side, channels
    return None


@dataclass(frozen=True, kw_only=True)
class PictureWindows(Windows):
    """Windows of pictures of a fixed size, instead of windows along a sequence."""

    stored: int  # stored tokens of a row, which are a picture together
    places: int  # windows of a picture, each of which is a token of the model

    @property
    def plain(self) -> bool:
        """Whether each value is a token, unchanged: never."""
        return False

    @property
    def read_share(self) -> float:
        """The share of a row's values that are in at least one window: all."""
        return 1.0

    @property
    def reach(self) -> int:
        """Number of stored tokens that a row needs for its windows: a whole picture."""
        return self.stored

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return the number of windows of rows of these lengths, int32; 0 for rows that are not a whole picture."""
        return np.where(lengths == self.stored, self.places, 0).astype(np.int32)
