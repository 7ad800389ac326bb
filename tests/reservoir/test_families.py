"""Every family, layer and pooling equals the model run by hand, for any padding and batch."""

import itertools

import numpy as np
import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.fpt import FPT
from reservoir.tasks.task import Task, Vectors
from tests.reservoir.models import KINDS, RECURRENT, hand_run, layer_names, save

TOKENS = 12
LENGTHS = (12, 9, 2, 12, 5)
READOUT_TOKENS = 2
POOLINGS = ("last", "mean", "max", "first", "segments8", "all")
TASK = Task(name="t", form=Vectors(5), max_tokens=TOKENS, classes=3, readout_tokens=READOUT_TOKENS)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return save(kind, tmp_path_factory.mktemp("families") / kind)


@pytest.fixture(scope="module")
def model(folder):
    return FPT(TASK, load_backbone(str(folder), "pretrained", seed=5), seed=3)


@pytest.fixture(scope="module")
def batch():
    lengths = torch.tensor(LENGTHS)
    x = torch.randn(5, TOKENS, 5, generator=torch.Generator().manual_seed(1))
    x[torch.arange(TOKENS) >= lengths[:, None]] = 7.0  # what stands at padding must not matter
    return x, lengths


@pytest.fixture(scope="module")
def by_hand(kind, folder, model, batch):
    x, lengths = batch
    positions = getattr(getattr(model.backbone.model, "embeddings", None), "position_embeddings", None)
    rows = [x[row, :n] @ model.inputs.map.weight.T.detach() for row, n in enumerate(lengths.tolist())]
    return [hand_run(kind, folder, row, positions) for row in rows]


def hand_pool(h, pooling):
    """Pool one unpadded sequence (tokens, width), written out in NumPy."""
    n = len(h)
    if pooling == "last":
        return h[-READOUT_TOKENS:]
    if pooling == "all":
        return np.concatenate([h, np.zeros((TOKENS - n, h.shape[1]), h.dtype)])
    if pooling == "segments8":
        bounds = [i * n // 8 for i in range(9)]
        return np.concatenate([h[a : max(b, a + 1)].mean(0) for a, b in itertools.pairwise(bounds)])[None]
    return {"mean": h.mean(0), "max": h.max(0), "first": h[0]}[pooling][None]


def all_columns(model):
    return [f"{layer}/{pooling}" for layer in model.backbone.layers for pooling in POOLINGS]


def test_features_equal_a_model_run_by_hand(kind, model, batch, by_hand):
    assert list(model.backbone.layers) == layer_names(kind)
    features = model.features(*batch, all_columns(model))
    for column, values in features.items():
        layer, pooling = column.split("/")
        for row, states in enumerate(by_hand):
            expected = hand_pool(states[layer], pooling)
            np.testing.assert_allclose(values[row], expected, atol=1e-5, rtol=1e-5, err_msg=f"{column}, row {row}")


def test_features_do_not_depend_on_batch_mates_or_padding(model, batch):
    x, lengths = batch
    columns = all_columns(model)
    together = model.features(x, lengths, columns)
    for row, n in enumerate(LENGTHS):
        alone = model.features(x[row : row + 1, :n], lengths[row : row + 1], columns)
        for column in columns:
            kept = together[column][row][: alone[column].shape[1]]
            torch.testing.assert_close(kept, alone[column][0], atol=1e-5, rtol=1e-5)


def test_bfloat16_equals_float32_up_to_rounding(kind, folder, model, batch):
    rounded = FPT(TASK, load_backbone(str(folder), "pretrained", seed=5), seed=3)
    rounded.backbone.set_compute(torch.bfloat16)
    columns = all_columns(model)
    exact, rough = model.features(*batch, columns), rounded.features(*batch, columns)
    for column in columns:
        assert rough[column].dtype == torch.float32
        # Each product rounds its factors to 8 bits, and three blocks of large weights pass that on and add to it.
        assert (rough[column] - exact[column]).norm() < exact[column].norm() * 2**-5, column
    assert (kind in RECURRENT) == torch.equal(rough["final/mean"], exact["final/mean"])


def test_every_parameter_belongs_to_a_group(model):
    names = [name for name, _ in model.backbone.named_parameters()]
    assert sorted(name for group in model.backbone.groups.values() for name in group) == sorted(names)
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())


def test_depth_keeps_the_first_blocks_and_the_final_norm(kind, folder, model, batch):
    if kind == "esn":
        pytest.skip("an echo state network has one layer")
    cut = FPT(TASK, load_backbone(str(folder), "pretrained", seed=5, depth=2), seed=3)
    assert cut.backbone.layers == ("embed", "block01", "block02", "final")
    features = cut.features(*batch, ["block02/all", "final/all"])
    whole = model.features(*batch, ["block02/all"])["block02/all"]
    torch.testing.assert_close(features["block02/all"], whole)
    norm_path = cut.backbone.family.final_norm
    if norm_path:
        real = torch.arange(TOKENS) < batch[1][:, None]
        with torch.no_grad():
            expected = cut.backbone.model.get_submodule(norm_path)(whole)
        torch.testing.assert_close(features["final/all"][real], expected[real])
    else:
        torch.testing.assert_close(features["final/all"], whole)
