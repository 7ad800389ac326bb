"""The commands of ``reservoir``: thin functions over the stages, their shared options and their output."""
