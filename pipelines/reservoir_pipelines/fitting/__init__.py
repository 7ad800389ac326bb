"""The stage ``fit``: readouts of cached columns."""
