"""Your own data: sequences with labels from a file or a function."""

from reservoir.tasks.own.data import FUNCTION, OwnData, own_name
from reservoir.tasks.own.encode import clean_lengths, encode_own, letter_symbols
from reservoir.tasks.own.hub import is_hub
from reservoir.tasks.own.kinds import Reading, read_integers, read_labels
from reservoir.tasks.own.new import read_new

__all__ = [
    "FUNCTION",
    "OwnData",
    "Reading",
    "clean_lengths",
    "encode_own",
    "is_hub",
    "letter_symbols",
    "own_name",
    "read_integers",
    "read_labels",
    "read_new",
]
