"""The stage ``report``: one page, complete in itself, about a reproduction, a fit, a run, or all that is kept."""
