"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass."""
