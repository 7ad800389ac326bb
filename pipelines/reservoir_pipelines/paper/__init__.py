"""The stage ``reproduce``: tables and figures as data, whose cells are saved as they finish."""
