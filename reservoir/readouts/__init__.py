"""Linear readouts: from features and labels to the most accurate linear model, every penalty in one pass.

| file | contents |
|---|---|
| `targets` | `Targets` codes labels as regression targets; `samples` reshapes a cached column and its labels |
| `moments` | `accumulate` streams data into `Moments`, all that ridge regression needs of it |
| `ridge` | `ridge_path` solves every penalty from moments, `KernelMatrix` for fewer samples than features |
| `logistic` | `logistic_sweep` solves every penalty of multinomial logistic regression in the same passes |
| `sweep` | choice of a penalty by a validation split, `forward_selection` of columns |
| `folds` | choice of a penalty by K folds: `cross_sweep`, `score_by_kernel` |
| `linear` | `LinearReadout` predicts; `LinearPath` holds the models of all penalties |
| `evaluation` | scores on test rows, intervals and p-values |
| `estimators` | `RidgeSweepClassifier` and `RidgeSweepRegressor`, scikit-learn estimators for arrays in memory |
| `device` | inside ``with products_on(Arithmetic("cuda"))`` all matrix products run on a GPU |
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir.readouts.estimators import RidgeSweepClassifier, RidgeSweepRegressor

__all__ = ["RidgeSweepClassifier", "RidgeSweepRegressor"]


def __getattr__(name: str) -> Any:
    """Import scikit-learn only when one of the estimators is used."""
    if name in __all__:
        from reservoir.readouts import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
