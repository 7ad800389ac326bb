"""The stage ``tune``: which reservoirs suit some data."""
