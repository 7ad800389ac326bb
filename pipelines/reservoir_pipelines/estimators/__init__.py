"""Estimators over raw sequences in scikit-learn's sense, with their features cached by row."""
