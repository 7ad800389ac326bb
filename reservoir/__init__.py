"""Tasks, frozen backbones, the model and linear readouts. This package writes no files."""

from reservoir.errors import InputError

__all__ = ["InputError"]
