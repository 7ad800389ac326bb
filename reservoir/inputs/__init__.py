"""Native inputs: texts, pictures and sounds as the tokens of a pretrained backbone, by its own preprocessing."""

from reservoir.inputs.native import Native, NativeInput, Reader, open_native, open_reader

__all__ = ["Native", "NativeInput", "Reader", "open_native", "open_reader"]
