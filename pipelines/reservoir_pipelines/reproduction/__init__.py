"""The stage ``reproduce``: tables and figures as data; each of their cells is saved when it finishes."""
