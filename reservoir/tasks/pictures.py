"""Images of your own as a task stores them: the bytes of their files, decoded when a model reads them."""

import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir.errors import as_input_error
from reservoir.tasks.patches import patches

if TYPE_CHECKING:
    from PIL.Image import Image

# Other decoders of Pillow are rarely used, and so rarely tested.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 2**26  # an image of 8,192 x 8,192 takes 200 MB in RGB

# Sides of an image and of its patches in pixels, as in CIFAR-10, for backbones without patches of their own.
SIDE = 32
PATCH = 4

TOKENS = (SIDE // PATCH) ** 2  # patches of an image


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
        with Image.open(BytesIO(stored.tobytes()), formats=FORMATS) as image:
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


def as_patches(x: np.ndarray) -> np.ndarray:
    """Return stored images (rows,), each the bytes of a file, as patches (rows, tokens, values) of bytes.

    They are resized to `SIDE` pixels a side before.
    """
    from PIL import Image

    size = (SIDE, SIDE)
    small = [np.asarray(decoded(row, rough=True).resize(size, Image.Resampling.BILINEAR)) for row in x]
    return patches(np.stack(small), PATCH)
