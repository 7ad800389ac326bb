"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass.

| file | contents |
|---|---|
| `linear` | `Targets` codes labels as regression targets; `LinearReadout` predicts them; `samples` reshapes a column |
| `ridge` | `Moments` hold what ridge regression needs of the data; `ridge_path` fits the readout of every penalty |
| `logistic` | `logistic_sweep` fits multinomial logistic regression for every penalty in the same passes |
| `weighted` | `learn_layers` and `weighted_sweep` read a sum of layers with learned weights |
| `sweep` | choice of a penalty, by a validation split or by K folds |
| `evaluation` | scores on test rows, intervals and p-values |
| `estimators` | labels, weights and folds of scikit-learn's estimators, in the form that the readouts need |
"""
