"""The stage ``report``: one self-contained page about reproductions, fits and runs."""
