"""The stage ``prepare``: raw files become typed arrays in fixed splits."""
