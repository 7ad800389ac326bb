"""The stage ``prepare``: raw files to typed arrays, split once and for all."""
