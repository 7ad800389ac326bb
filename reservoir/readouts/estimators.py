"""Labels, weights and folds of scikit-learn's estimators, in the form that the readouts need."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import check_cv
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from reservoir.readouts.linear import Targets, balanced_weights


def code_labels(
    labels: np.ndarray, class_weight: Mapping[Any, float] | str | None, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, Targets]:
    """Return the classes, the class number of each sample, and the coding of the labels.

    Classes whose samples all have weight 0 are left out, and these samples get an arbitrary number.
    Labels may be (n, classes), 1 for the classes of a sample and 0 for the others.
    """
    check_classification_targets(labels)
    if labels.ndim == 2:
        if not np.isin(labels, (0, 1)).all() or class_weight is not None:
            raise ValueError(
                f"y has the shape {labels.shape}: give multilabel targets as 0 or 1, without class_weight, "
                "or use MultiOutputClassifier of scikit-learn"
            )
        return np.arange(labels.shape[1]), labels.astype(np.int64), Targets(labels.shape[1], classes=2)
    # The classes of samples with a weight; a sample of another class gets the number of a neighbour.
    counted = labels if weights is None else labels[weights > 0]
    classes = np.unique(counted)
    if len(classes) < 2:
        raise ValueError(f"y has 1 class, {classes[0]!r}; a classifier needs at least two classes")
    codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    class_weights = None
    if isinstance(class_weight, str) and class_weight == "balanced":
        # By the sample weights of each class, which scikit-learn's function does not take.
        class_weights = balanced_weights(np.bincount(codes, weights))
    elif class_weight is not None:
        class_weights = tuple(compute_class_weight(class_weight, classes=classes, y=counted).tolist())
    return classes, codes, Targets(1, len(classes), class_weights)


def check_sample_weights(sample_weight: npt.ArrayLike | None, x: np.ndarray) -> np.ndarray | None:
    """Return the weights (n,) of samples, or None without weights; raise `ValueError` for invalid ones."""
    if sample_weight is None:
        return None
    weights = column_or_1d(sample_weight, dtype=np.float64)
    check_consistent_length(x, weights)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError("sample_weight needs finite values of at least zero, not all of them zero")
    return weights


def renumbered(fold: np.ndarray) -> np.ndarray:
    """Return fold numbers (n, repeats) from 0 without gaps, for samples of which some were left out."""
    return np.stack([np.unique(repeat, return_inverse=True)[1] for repeat in fold.T], axis=1)


def fold_numbers(
    cv: Any, x: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None, *, classifier: bool
) -> np.ndarray:
    """Return the fold of each sample, (n,); raise `ValueError` if a sample is not held out exactly once."""
    fold, times = np.zeros(len(x), np.int64), np.zeros(len(x), np.int64)
    splitter: Any = check_cv(cv, labels, classifier=classifier)
    for k, (_, held_out) in enumerate(splitter.split(x, labels, groups)):
        fold[held_out] = k
        times[held_out] += 1
    if (times != 1).any():
        row = int(np.argmax(times != 1))
        raise ValueError(
            f"cv={cv!r} holds sample {row} out {times[row]} times; use folds that hold each out once"
        )
    return fold
