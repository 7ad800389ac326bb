"""Your own data: sequences with labels from a file or a folder."""
