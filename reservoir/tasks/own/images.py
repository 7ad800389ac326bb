"""Your own images: files are stored as they are, and decoded when a model reads them."""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.images.patches import patches
from reservoir.tasks.own.arrays import Arrays
from reservoir.tasks.own.tables import BadRows

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_BYTES = 2**27
MAX_PIXELS = 2**26

SIDE, PATCH = 32, 4
"""Side of an image and of its patches in pixels, as in CIFAR-10, for backbones without patches of their own."""

TOKENS = (SIDE // PATCH) ** 2


class Images(Arrays):
    """Images as ``x``, the bytes of each file, with other arrays; ``x`` has the shape of their patches."""

    piece_rows = 64
    unused_options = ("values", "symbols", "missing", "standardise", "rate", "waveform")

    def __init__(self, files: Sequence[Path], arrays: Mapping[str, np.ndarray], bad: BadRows):
        check_pillow()
        self._all_files, self._bad = list(files), bad
        if bad.skip:
            bad.read_files(files, lambda file: _stored_bytes(file).size)
        kept = bad.kept()
        arrays = {name: array[kept] for name, array in arrays.items()}
        super().__init__(arrays, x=((int(kept.sum()), TOKENS, 3 * PATCH**2), np.dtype(np.uint8)))
        self.files = [file for file, good in zip(files, kept, strict=True) if good]
        self.notes = [f"backbones that do not read images get {SIDE}x{SIDE} pixels in {TOKENS} patches"]

    def sequences(self, lo: int, hi: int) -> np.ndarray:
        """Return the files of the rows ``lo`` to ``hi``, (rows,) of arrays."""
        try:
            return np.fromiter(map(_stored_bytes, self.files[lo:hi]), object)
        except InputError:
            # The error counts all unreadable files.
            self._bad.read_files(self._all_files, lambda file: _stored_bytes(file).size)
            self._bad.kept()
            raise


def check_pillow() -> None:
    """Refuse images if Pillow is not installed."""
    with as_input_error("images need Pillow", "run pip install 'reservoir-features[images]'"):
        import PIL  # noqa: F401


def _stored_bytes(path: Path) -> np.ndarray:
    """Return the bytes of an image file, after checking that they can be decoded."""
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}", "check that it is an image"
        )
    found = np.frombuffer(path.read_bytes(), np.uint8)
    decoded(found, str(path), rough=True)
    return found


def decoded(stored: np.ndarray | Path, where: str = "", *, rough: bool = False) -> "Image":
    """Return the image of a file or its bytes, upright, in RGB on white; ``rough`` may reduce it to 2 * `SIDE`."""
    check_pillow()
    from PIL import Image, ImageOps

    where = where or (str(stored) if isinstance(stored, Path) else "an image")
    file = stored if isinstance(stored, Path) else BytesIO(stored.tobytes())
    with (
        as_input_error(f"{where}: not a readable image", "repair it, or remove it"),
        warnings.catch_warnings(),
    ):
        # Pillow warns about odd metadata and large sizes; sizes are checked below
        warnings.simplefilter("ignore")
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"it claims {image.width:,}x{image.height:,} pixels, more than {MAX_PIXELS:,}"
                )
            if image.mode.startswith(("I", "F")):
                raise ValueError("its values have more than 8 bits, which is the maximum")
            if rough:
                image.draft("RGB", (2 * SIDE, 2 * SIDE))
            image.load()
            try:
                upright = ImageOps.exif_transpose(image)
            except Exception:  # damaged metadata is ignored, because the pixels have been read
                upright = image
            if "A" not in upright.getbands() and "transparency" not in upright.info:
                return upright.convert("RGB")
            seen = upright.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")


def as_patches(x: np.ndarray) -> np.ndarray:
    """Return stored images, resized to `SIDE` pixels, as patches (rows, tokens, values) of bytes."""
    from PIL import Image

    size = (SIDE, SIDE)
    small = [np.asarray(decoded(row, rough=True).resize(size, Image.Resampling.BILINEAR)) for row in x]
    return patches(np.stack(small), PATCH)
