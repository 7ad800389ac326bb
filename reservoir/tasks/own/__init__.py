"""Your own data: sequences with labels from a file, a folder or a function."""
