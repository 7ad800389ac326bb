"""The commands of ``reservoir``, their shared options and their output."""
