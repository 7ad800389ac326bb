"""Readouts: linear and kernel models that are fitted to features and labels, for every penalty at once."""
