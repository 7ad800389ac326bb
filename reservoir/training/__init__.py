"""Training end to end: rows, objective, loop, and what is trained."""
