"""scikit-learn estimators of raw sequences, with features cached by row."""
