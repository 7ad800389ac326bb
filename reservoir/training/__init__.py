"""Training end to end: rows, loss, training loop, and groups of trained parameters."""
