"""Pictures decoded by Pillow, in common formats and of bounded size."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir.errors import InputError, first_line
from reservoir.tasks.images.patches import patches

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

MOST_BYTES = 2**27
MOST_PIXELS = 2**26

SIDE, PATCH = 32, 4
"""Side of a picture and of its patches in pixels, for backbones without patches of their own: those of CIFAR-10."""

DEEP = ("I", "F")
"""First letters of the modes with more than a byte per value."""


def check_pillow() -> None:
    """Refuse pictures if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InputError("pictures need Pillow: pip install 'reservoir-features[images]'") from None


def stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of a picture file, after checking that they can be decoded."""
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}; check that it is a picture")
    found = np.frombuffer(path.read_bytes(), np.uint8)
    decoded(found, str(path), rough=True)
    return found


def decoded(stored: np.ndarray | Path, where: str = "", *, rough: bool = False) -> Image:
    """Return the picture of a file, or of its bytes, upright, on a white background, in RGB.

    A ``rough`` one may have fewer pixels, at least twice `SIDE` on each side.
    """
    check_pillow()
    from PIL import Image

    where = where or (str(stored) if isinstance(stored, Path) else "a picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata; sizes are checked below
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
        raise InputError(f"{where}: not a readable picture ({first_line(error)}); repair it, or remove it") from None


def _upright(image: Image) -> Image:
    """Return a photo turned as its metadata says; damaged metadata is ignored."""
    from PIL import ImageOps

    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # in the metadata alone: the pixels are read already
        return image


def _on_white(image: Image) -> Image:
    """Return a picture in RGB, with white where it is transparent."""
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
