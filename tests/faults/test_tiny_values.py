"""Values that float32 can hardly hold, and numbers that JSON cannot."""

import warnings

import numpy as np
from reservoir_pipelines import ReservoirClassifier
from reservoir_pipelines.output import as_json

BACKBONE = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"


def test_estimators_scale_values_near_1e_40():
    x = (np.random.default_rng(0).normal(size=(90, 6, 2)) * 1e-40).astype(np.float32)
    y = x[:, :, 0].mean(axis=1) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = ReservoirClassifier(backbone=BACKBONE, init="random", layers="embed", pool="mean").fit(x, y)
    assert classifier.score(x, y) > 0.8


def test_numbers_that_json_does_not_have_become_null():
    values = {"a": [float("nan"), 1.0], "b": (float("inf"), -float("inf")), "c": np.float64("nan")}
    assert as_json(values) == {"a": [None, 1.0], "b": [None, None], "c": None}
