"""The models' own ways in: how what a task holds becomes what enters the first block of a pretrained backbone."""

from reservoir.inputs.native import Native, NativeInput, open_native
from reservoir.inputs.text import TextReader

__all__ = ["Native", "NativeInput", "TextReader", "open_native"]
