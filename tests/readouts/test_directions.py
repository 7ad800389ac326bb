"""A vector that is added to all hidden states of a layer moves the scores of a readout as its gradient says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reservoir_pipelines import extract, fit
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.preparation.prepared import Prepared

from reservoir import InputError
from reservoir.features import forward
from reservoir.loaded_model import load_model
from reservoir.readouts.directions import ReadColumn
from reservoir.readouts.linear import LinearReadout, Targets
from reservoir.reservoir import Reservoir

POOLINGS = "last,mean,std,min,max,first,segments2,quantiles3,sustained2"


def write_rows(path, classes):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(150, 12, 2)).astype(np.float32)
    np.savez(path, x=x, y=np.digitize(x[:, :, 0].mean(axis=1), [0] if classes == 2 else [-0.1, 0.1]))
    return path


@pytest.fixture(scope="module", params=[2, 3])
def extracted(request, tmp_path_factory, tiny_gpt2):
    folder = tmp_path_factory.mktemp("directions")
    options = {"backbone": str(tiny_gpt2), "patch": 1, "layers": "embed,block01,block02", "pool": POOLINGS}
    exact = {"store": "float32", "compute": "float32"}
    return extract(write_rows(folder / "rows.npz", request.param), cache=folder / "cache", **options, **exact)


@pytest.mark.parametrize("layer", ["block01", "block02"])
def test_a_vector_added_to_a_block_moves_the_scores_by_its_product_with_the_gradient(extracted, layer, tmp_path):
    names = [name for name in extracted.columns if name.startswith(layer)]
    assert len(names) == len(POOLINGS.split(","))
    saved = fit(extracted, columns="+".join(names), select="valid", out=tmp_path)
    readout = Bundle.load(tmp_path).readout  # read again, with the names of its columns
    np.testing.assert_array_equal(readout.direction(layer), saved.readout.direction(layer))
    entry = extracted.store.entry
    prepared = Prepared.open(Path(entry.made_with["prepared"]))
    model = load_model(prepared.task, Reservoir(**entry.made_with["reservoir"]), "cpu", "float32")
    rows = prepared.split("test").read(0, 9)

    def scores(vector):
        block = model.fpt.backbone.blocks[int(layer[-2:]) - 1]
        block_forward = block.forward

        def add(*inputs, **named):
            output = block_forward(*inputs, **named)
            hidden, *rest = output if isinstance(output, tuple) else (output,)
            moved = hidden + torch.tensor(vector, dtype=hidden.dtype)
            return (moved, *rest) if isinstance(output, tuple) else moved

        block.forward = add
        features = forward(model, prepared.scaling, rows.x, rows.lengths, names, 9)
        block.forward = block_forward
        return readout.scores(np.concatenate([features[name].reshape(9, -1) for name in names], axis=1))

    before = scores(np.zeros(16))
    directions = np.atleast_2d(readout.direction(layer))
    gradient = readout.gradient(layer)
    assert directions.shape == gradient.T.shape == ((1 if before.shape[1] == 1 else 3), 16)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    for number, direction in enumerate(directions):
        moved = scores(0.7 * direction) - before
        np.testing.assert_allclose(moved, np.tile(0.7 * direction @ gradient, (9, 1)), atol=2e-4)
        # Along its own direction, a score grows by the length of its gradient.
        np.testing.assert_allclose(moved[:, number], 0.7 * np.linalg.norm(gradient[:, number]), atol=2e-4)
    with pytest.raises(InputError, match=layer):
        readout.direction("embed")


def test_the_gradient_sums_the_vectors_of_the_poolings_of_one_layer():
    draw = np.random.default_rng(0)
    columns = [("block01/mean", 4, 1), ("block02/last", 8, 2), ("raw", 3, 1), ("block01/segments2", 8, 2)]
    columns = tuple(ReadColumn(*column) for column in [*columns, ("block01/std", 4, 1)])
    coef = draw.normal(size=(27, 1))
    readout = LinearReadout(coef=coef, intercept=np.zeros(1), targets=Targets(1, 0), columns=columns)
    np.testing.assert_allclose(readout.gradient("block01"), coef[:4] + coef[15:19] + coef[19:23])
    np.testing.assert_allclose(readout.gradient("block02"), coef[4:8] + coef[8:12])
    unlike = (ReadColumn("block01/shares3", 27, 3),)
    with pytest.raises(InputError, match="not linear"):
        LinearReadout(coef=coef, intercept=np.zeros(1), targets=Targets(1, 0), columns=unlike).direction("block01")
    with pytest.raises(InputError, match="no layer"):
        LinearReadout(coef=coef, intercept=np.zeros(1), targets=Targets(1, 0)).direction("block01")


@pytest.mark.parametrize("columns", [[["block01/mean", 5, 1]], [["block01/mean", 4, 0]], [["block01/mean", "4", 1]], 3])
def test_columns_that_a_file_cannot_have_are_refused(columns):
    readout = LinearReadout(coef=np.ones((4, 1)), intercept=np.zeros(1), targets=Targets(1, 0))
    arrays, settings = readout.to_arrays()
    with pytest.raises(ValueError, match="its columns"):
        LinearReadout.from_arrays(arrays, {**settings, "columns": columns})
