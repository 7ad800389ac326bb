"""Native input of audio models, compared with transformers' feature extractor and model run by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir import InputError
from reservoir.features import forward
from reservoir.options import ReservoirOptions
from reservoir.plan import resolve_model
from reservoir.reservoir import LoadedModel, load_model
from reservoir.tasks.task import Task, Vectors
from tests.reservoir.models import MODELS, WIDTH, save_with_extractor

TASK = Task(name="calls", form=Vectors(1), max_tokens=400, classes=2, parameters={"waveform": True})
LENGTHS = np.array([400, 33, 6, 250, 251])


@pytest.fixture(scope="module", params=["wav2vec2-group", "wav2vec2-layer", "hubert-group", "hubert-layer"])
def folder(request, tmp_path_factory):
    """Return a model of either family with either norm; those with a norm of each layer are scaled before."""
    kind, norm = request.param.split("-")
    name, settings = MODELS[kind]
    large = norm == "layer"
    changed = {"feat_extract_norm": norm, "do_stable_layer_norm": large, "conv_bias": large}
    before, MODELS[kind] = MODELS[kind], (name, settings | changed)
    try:
        return save_with_extractor(kind, tmp_path_factory.mktemp("sounds") / request.param, do_normalize=large)
    finally:
        MODELS[kind] = before


def load(folder: Path, task: Task = TASK) -> LoadedModel:
    return load_model(task, resolve_model(ReservoirOptions(backbone=str(folder), input="native")), "cpu", "float32")


def sounds() -> np.ndarray:
    x = np.random.default_rng(0).normal(0.1, 0.4, (5, 400, 1)).astype(np.float32)
    x[np.arange(400) >= LENGTHS[:, None]] = 9  # what stands behind a sound must not matter
    return x


def columns(model: LoadedModel) -> list[str]:
    return [f"{layer}/{pool}" for layer in model.fpt.backbone.layers for pool in ("mean", "std", "last", "first")]


@torch.no_grad()
def by_hand(folder: Path, samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a script with transformers alone has of one sound: all layers, pooled."""
    from transformers import AutoModel, Wav2Vec2FeatureExtractor

    extractor = Wav2Vec2FeatureExtractor.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    last: list[torch.Tensor] = []
    model.encoder.layers[-1].register_forward_hook(lambda _m, _i, o: last.append(o))
    out = model(**extractor(samples, sampling_rate=16000, return_tensors="pt"), output_hidden_states=True)
    states = [*out.hidden_states[:3], last[0], out.last_hidden_state]
    layers = ["embed", "block01", "block02", "block03", "final"]
    pools = {"mean": lambda h: h.mean(0), "last": lambda h: h[-1], "first": lambda h: h[0]}
    pools["std"] = lambda h: h.std(0, correction=0)
    return {
        f"{layer}/{pool}": of(h[0]).numpy()
        for layer, h in zip(layers, states, strict=True)
        for pool, of in pools.items()
    }


def test_features_equal_a_script_with_transformers_in_any_batch(folder):
    model, x = load(folder), sounds()
    found = forward(model, None, x, LENGTHS, columns(model), 32)
    for row, n in enumerate(LENGTHS):
        if n >= 20:  # a shorter one has no token there
            expected = by_hand(folder, x[row, :n, 0])
            for column, values in expected.items():
                np.testing.assert_allclose(found[column][row, 0], values, atol=1e-5, rtol=1e-5, err_msg=column)
    single = forward(model, None, x, LENGTHS, columns(model), 1)
    for column in single:
        np.testing.assert_allclose(single[column], found[column], atol=1e-5, rtol=1e-5)
    assert np.isfinite(found["final/mean"][2]).all()


def test_input_digests_depend_on_the_content(folder, tmp_path):
    model = load(folder)
    assert model.fpt.task.form == Vectors(8) and model.fpt.backbone.width == WIDTH
    assert sorted(model.input_digests) == ["embeddings", "processor"] and model.reader
    assert model.reader.description.endswith("up to 39 tokens")
    before = dict(model.input_digests)
    with torch.no_grad():
        next(model.fpt.inputs.map.parameters()).add_(1)
    assert dict(load(folder).input_digests) == before


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (Task(name="t", form=Vectors(1), max_tokens=9, classes=2), {}, "reads sounds, which task 't' does not have"),
        (TASK, {"sampling_rate": 8000}, "reads 8000 samples per second, not 16000; pass --rate 8000"),
        (TASK, {"feature_size": 80}, "gives 80 values per sample"),
    ],
)
def test_sounds_that_the_model_cannot_read_are_refused(tmp_path, task, settings, message):
    folder = save_with_extractor("wav2vec2", tmp_path / "model", **settings)
    with pytest.raises(InputError, match=message):
        load(folder, task)


def test_a_model_without_a_preprocessor_is_refused(tmp_path):
    folder = save_with_extractor("wav2vec2", tmp_path / "model")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"preprocessor_config\.json is not usable"):
        load(folder)
