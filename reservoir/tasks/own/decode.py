"""Pictures as Pillow decodes them: of plain formats alone, and none that unpacks to more than a picture should."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir.errors import InputError
from reservoir.tasks.images.patches import patches

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

MOST_BYTES = 2**27
MOST_PIXELS = 2**26

SIDE, PATCH = 32, 4
"""Pixels of a picture, and of its patches, where no vision model reads it: those of CIFAR-10."""

DEEP = ("I", "F")
"""What the modes of pictures with more than a byte per value begin with."""


def check_pillow() -> None:
    """Refuse pictures where the package that reads them is not there."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InputError("pictures need a package: pip install pillow") from None


def stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of a picture, which can be decoded."""
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}; is it a picture?")
    found = np.frombuffer(path.read_bytes(), np.uint8)
    decoded(found, str(path), rough=True)
    return found


def decoded(stored: np.ndarray | Path, where: str = "", *, rough: bool = False) -> Image:
    """Return the picture of a file, or of its bytes, upright, on white, in RGB; a ``rough`` one may have fewer pixels.

    These are at least `SIDE` x 2.
    """
    check_pillow()
    from PIL import Image

    where = where or (str(stored) if isinstance(stored, Path) else "a picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata; what is too large is told here
            file = stored if isinstance(stored, Path) else BytesIO(stored.tobytes())
            with Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise ValueError(f"it claims {image.width:,}x{image.height:,} pixels, more than {MOST_PIXELS:,}")
                if image.mode.startswith(DEEP):
                    raise ValueError("its values have more than 8 bits; convert it to 8")
                if rough:
                    image.draft("RGB", (2 * SIDE, 2 * SIDE))
                return _on_white(_upright(image))
    except Exception as error:  # Pillow and its codecs raise all kinds
        said = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(f"{where}: no readable picture ({said}); repair it, or take it out") from None


def _upright(image: Image) -> Image:
    """Turn a photo as its camera says that it was held; what it says may be no more than odd metadata."""
    from PIL import ImageOps

    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # of the metadata alone: the pixels are there
        return image


def _on_white(image: Image) -> Image:
    """Return a picture in RGB, what is transparent white, as a page shows it."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")


def as_patches(x: np.ndarray) -> np.ndarray:
    """Return stored pictures as the patches of pictures of `SIDE` pixels, (rows, tokens, values) of bytes."""
    from PIL import Image

    size = (SIDE, SIDE)
    small = [np.asarray(decoded(row, rough=True).resize(size, Image.Resampling.BILINEAR)) for row in x]
    return patches(np.stack(small), PATCH)
