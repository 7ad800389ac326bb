"""Your own data: sequences with labels from a file or a function."""

from reservoir.tasks.own.data import FUNCTION, OwnData, clean_lengths, encode_array, own_name

__all__ = ["FUNCTION", "OwnData", "clean_lengths", "encode_array", "own_name"]
