"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass.

| file | contents |
|---|---|
| `targets` | `Targets` codes labels as regression targets; `samples` reshapes a cached column and its labels |
| `moments` | `accumulate` streams data into `Moments`, all that ridge regression needs of it |
| `ridge` | `ridge_path` solves every penalty from moments, `KernelMatrix` for fewer samples than features |
| `logistic` | `logistic_sweep` solves every penalty of multinomial logistic regression in the same passes |
| `weighted` | `learn_layers` and `weighted_sweep` read a sum of layers with learned weights |
| `sweep` | choice of a penalty by a validation split, `forward_selection` of columns |
| `folds` | choice of a penalty by K folds: `cross_sweep`, `score_by_kernel` |
| `linear` | `LinearReadout` predicts; `LinearPath` holds the models of all penalties |
| `evaluation` | scores on test rows, intervals and p-values |
| `estimators` | labels, weights and folds of scikit-learn's estimators, as the readouts take them |
| `device` | inside ``with products_on(Arithmetic("cuda"))`` all matrix products run on a GPU |
"""
