"""What is computed: tasks, frozen backbones, the one model, and linear readouts. Writes no files."""

from reservoir.errors import InputError

__all__ = ["InputError"]
