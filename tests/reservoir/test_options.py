"""Which settings are refused before anything is built, and which are the same."""

import json
from dataclasses import fields
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from reservoir import InputError, options
from reservoir.option_fields import KINDS, Options
from reservoir.options import ExtractOptions, FitOptions, ReservoirOptions, TaskOptions, TrainOptions


@pytest.mark.parametrize("seed", [-1, 2**63, 10**26])
def test_seeds_that_torchs_generators_do_not_take_are_refused(seed):
    with pytest.raises(InputError, match=rf"--seed {seed}: give a whole number from 0 to 9223372036854775807$"):
        ReservoirOptions(seed=seed)
    assert ReservoirOptions(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (FitOptions, {"alphas": [1, 10]}, "--alphas [1, 10]: give a text. Penalties to try, LO:HI:N"),
        (FitOptions, {"select": 5}, "--select 5: give a text. Choose by valid"),
        (FitOptions, {"columns": ("final/mean", 3)}, "--columns ('final/mean', 3): give a text or a list of texts"),
        (FitOptions, {"one_standard_error": "yes"}, "--one-standard-error 'yes': give True or False"),
        (ExtractOptions, {"layers": 1}, "--layers 1: give a text or a list of texts. Layers"),
        (ExtractOptions, {"limit": "60"}, "--limit '60': give a whole number. Maximum number of rows"),
        (ExtractOptions, {"cache": 3}, "--cache 3: give a path. Root folder of the cache."),
        (ExtractOptions, {"backbone": np.zeros((500, 3))}, "--backbone array("),
        (ExtractOptions, {"backbone": np.zeros((2, 1))}, "--backbone array([[0.], [0.]]): give a text. Frozen model"),
        (TrainOptions, {"learning_rate": "fast"}, "--learning-rate 'fast': give a number."),
        (TaskOptions, {"parameters": ["rows", 3]}, "--param ['rows', 3]: give names with values."),
    ],
)
def test_what_is_of_another_kind_is_one_line(kind, wrong, words):
    with pytest.raises(InputError) as caught:
        kind(**wrong)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_numbers_of_numpy_and_paths_are_those_of_python():
    plain = {"seed": 3, "gain": 1.5, "limit": 60, "backbone": "folder", "parameters": {"rows": 3, "of": [0.5]}}
    other = {
        "seed": np.int32(3),
        "gain": np.float32(1.5),
        "limit": np.int64(60),
        "backbone": Path("folder"),
        "parameters": {"rows": np.uint8(3), "of": [np.float64(0.5)]},
    }
    assert ExtractOptions(**other) == ExtractOptions(**plain)
    assert json.dumps(ExtractOptions(**other).to_dict()) == json.dumps(ExtractOptions(**plain).to_dict())
    assert isinstance(ExtractOptions(cache=cast("Path", "here")).cache, Path)
    assert ExtractOptions(standardise=True).standardise is True


def test_every_option_has_a_type_that_is_checked():
    groups = [kind for kind in vars(options).values() if isinstance(kind, type) and issubclass(kind, Options)]
    types = {str(item.type) for kind in groups for item in fields(kind)}
    assert {part for each in types for part in each.split(" | ")} <= KINDS.keys()
    for kind in groups:
        kind()
