"""The models' own ways in: how what a task holds becomes what enters the first block of a pretrained backbone."""

from reservoir.inputs.native import Native, NativeInput, Reader, open_native, open_reader

__all__ = ["Native", "NativeInput", "Reader", "open_native", "open_reader"]
