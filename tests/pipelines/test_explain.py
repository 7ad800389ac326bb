"""explain: contributions add up to the score and equal a computation by hand."""

import numpy as np
import pytest
import torch
from reservoir_pipelines import explain, extract, fit
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.prediction.explain import explain_rows
from reservoir_pipelines.prediction.export import build

from reservoir import InputError
from reservoir.features import forward
from reservoir.reservoir import load_model


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_gpt2):
    """Return a function that fits columns of one small task: (readout, its file)."""
    root = tmp_path_factory.mktemp("explain")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 20, 2)).astype(np.float32)
    x[30:, 5:9, 0] += 2
    np.savez(root / "rows.npz", x=x, y=np.repeat(["flat", "bump"], 30))
    shape = {"backbone": str(tiny_gpt2), "layers": "embed,block01", "compute": "float32", "cache": root / "cache"}
    features = extract(str(root / "rows.npz"), pool="mean,last,segments8,tokens,quantiles3", **shape, patch=2)
    return lambda columns: (fit(features, columns=columns, alphas="1e0:1e2:2").saved, root / "rows.npz")


def explained(saved, file):
    bundle = Bundle.load(saved)
    with np.load(file) as arrays:
        x = arrays["x"]
    return bundle, x, explain_rows(build(bundle, saved), bundle.task, x, np.full(len(x), x.shape[1]))


def test_with_sums_over_positions_the_rest_of_the_score_is_the_same_for_all_rows(made):
    bundle, _, rows = explained(*made("block01/mean+block01/last+embed/segments8+embed/tokens+raw"))
    rest = {label: [row.elsewhere for row in rows if row.label == label] for label in bundle.task.labels}
    assert all(np.ptp(values) < 1e-3 for values in rest.values())
    assert all(abs(row.score) > 0.01 for row in rows)
    _, _, other = explained(*made("block01/quantiles3"))
    assert not np.any([row.added for row in other]), "quantiles are no sum over positions"


def test_contributions_to_a_mean_equal_those_computed_by_hand(made):
    saved, file = made("block01/mean")
    bundle, x, rows = explained(saved, file)
    (part,) = bundle.parts
    model = load_model(bundle.task, part.reservoir, "cpu", part.compute)
    hidden = forward(model, bundle.scaling, x, np.full(len(x), 20), ["block01/all"], 8)["block01/all"].astype(
        np.float64
    )
    weight = bundle.readout.targets.logits(bundle.readout.coef)[:, 0] / bundle.readout.temperature
    by_hand = (hidden - hidden.mean((0, 1))) @ (weight - weight.mean(1, keepdims=True)) / hidden.shape[1]
    for got, want in zip(rows, by_hand, strict=True):
        of = bundle.task.labels.index(got.label)
        np.testing.assert_allclose(np.reshape(got.added, (10, 2)), want[:, of, None].repeat(2, 1) / 2, atol=1e-4)


def test_occlusion_equals_the_model_on_the_changed_row(made):
    saved, file = made("embed/segments8")
    bundle, x, rows = explained(saved, file)
    changed = x[:1].copy()
    changed[0, 7] = x[0].mean(axis=0)
    with torch.no_grad():
        logits = build(bundle, saved)(torch.from_numpy(np.concatenate([x[:1], changed])), torch.tensor([20, 20]))
    before, after = (logits.flatten(1) - logits.flatten(1).mean(1, keepdim=True))[
        :, bundle.task.labels.index(rows[0].label)
    ]
    assert rows[0].occluded[7] == pytest.approx(float(before - after), abs=1e-4)


def test_the_command_draws_and_refuses(made, call, tmp_path, painted):
    saved, file = made("embed/segments8+raw")
    code, out, _ = call("explain", saved, file, "--first", 2, "--out", tmp_path / "e.png")
    assert code == 0
    assert "largest drop if hidden" in out
    assert len(out.strip().splitlines()) == 5
    assert (tmp_path / "e.png").stat().st_size > 2000
    _, out, error = call("explain", made("embed/quantiles3")[0], file, "--first", 1)
    assert "cannot be attributed to positions" in error and "(+0)" not in out
    with np.load(file) as arrays:
        np.savez(tmp_path / "two.npz", x=arrays["x"], y=arrays["x"][:, 0] > 0)
    features = extract(str(tmp_path / "two.npz"), backbone="mini:n_layer=1,n_embd=16", init="random", cache=tmp_path)
    with pytest.raises(InputError, match="several labels"):
        explain(fit(features, columns="raw").saved, file)
