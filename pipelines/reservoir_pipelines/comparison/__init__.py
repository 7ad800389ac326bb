"""The stage ``compare``: two fits or runs on the same test rows."""
