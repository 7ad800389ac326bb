"""Native input of vision models, compared with transformers' processor and model run by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir import InputError
from reservoir.features import forward
from reservoir.options import ReservoirOptions
from reservoir.plan import resolve_model
from reservoir.reservoir import LoadedModel, load_model
from reservoir.tasks.images import Cifar10, Cifar10Lra, Digits, Mnist
from reservoir.tasks.images.patches import patches
from reservoir.tasks.task import Task, Vectors
from tests.reservoir.models import PIXELS, layer_names, save_with_processor

TASK = Task(name="cifar10", form=Vectors(48), max_tokens=64, classes=10)
SETTINGS = {
    "vit": {"size": {"height": 8, "width": 8}},
    "vit-larger": {"size": {"height": 16, "width": 12}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    "dinov2": {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}},
    "dinov2-odd": {"size": {"shortest_edge": 20}, "crop_size": {"height": 17, "width": 14}},
}


def load(folder: Path, task: Task = TASK) -> LoadedModel:
    return load_model(task, resolve_model(ReservoirOptions(backbone=str(folder), input="native")), "cpu", "float32")


def images(rows: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)


def features(model: LoadedModel, shown: np.ndarray, columns: list[str], batch_rows: int = 32) -> dict[str, np.ndarray]:
    x = patches(shown, 4)
    return forward(model, None, x, np.full(len(x), x.shape[1], np.int32), columns, batch_rows)


@torch.no_grad()
def by_hand(folder: Path, shown: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a script with transformers alone has of images: all layers, pooled."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = AutoModel.from_pretrained(folder).eval()
    pixels = processor([Image.fromarray(image) for image in shown], return_tensors="pt")["pixel_values"]
    more = {"interpolate_pos_encoding": True} if "ViT" in type(model).__name__ else {}
    out = model(pixel_values=pixels, output_hidden_states=True, **more)
    names = layer_names("vit")
    states = dict(zip(names, [*out.hidden_states[:4], out.last_hidden_state], strict=True))
    if torch.equal(out.hidden_states[3], out.last_hidden_state):
        del states["block03"]  # where transformers gives it after the norm
    pools = {"cls": lambda h: h[:, 0], "mean": lambda h: h.mean(1), "last": lambda h: h[:, -1]}
    pools["segments2"] = lambda h: torch.cat(
        [half.mean(1) for half in (h[:, : h.shape[1] // 2], h[:, h.shape[1] // 2 :])], 1
    )
    return {f"{layer}/{pool}": of(h).numpy() for layer, h in states.items() for pool, of in pools.items()}


@pytest.mark.parametrize("case", SETTINGS)
def test_features_equal_a_script_with_transformers(case: str, tmp_path: Path):
    folder = save_with_processor(case.partition("-")[0], tmp_path / case, **SETTINGS[case])
    expected = by_hand(folder, images())
    model = load(folder)
    found = features(model, images(), list(expected))
    for column, values in expected.items():
        np.testing.assert_allclose(found[column][:, 0], values, atol=1e-5, err_msg=column)
    alone = [features(model, one[None], list(expected), 1) for one in images()]
    for column in expected:
        np.testing.assert_allclose(np.concatenate([one[column] for one in alone]), found[column], atol=1e-5)
    assert model.fpt.task.max_tokens == model.fpt.backbone.max_tokens


def test_input_digests_depend_on_processor_and_patches(tmp_path: Path):
    folder = save_with_processor("vit", tmp_path / "vit", **SETTINGS["vit"])
    first = load(folder)
    assert load(folder).input_digests == first.input_digests and set(first.input_digests) == {"processor", "embeddings"}
    path = folder / "preprocessor_config.json"
    path.write_text(path.read_text().replace("0.5", "0.25"))
    changed = load(folder)
    assert changed.input_digests["processor"] != first.input_digests["processor"] and changed.digest == first.digest
    assert changed.input_digests["embeddings"] == first.input_digests["embeddings"]
    # Positions at another size are other weights.
    save_with_processor("vit", folder, **SETTINGS["vit-larger"])
    assert load(folder).digest != first.digest


def test_named_image_tasks_are_read_as_published():
    draw = np.random.default_rng(0)
    grey = draw.integers(0, 256, (2, 28, 28), np.uint8)
    np.testing.assert_array_equal(Mnist().pictures(Mnist().encode(grey)[0]), grey)
    np.testing.assert_array_equal(Cifar10().pictures(Cifar10().encode(images())[0]), images())
    assert Cifar10Lra().pictures(Cifar10Lra().encode(images())[0]).shape == (5, 32, 32, 1)
    digit = draw.integers(0, 17, (2, 8, 8), np.uint8)
    np.testing.assert_array_equal(Digits().pictures(Digits().encode(digit)[0]), np.rint(digit * 15.9375))


def test_data_that_the_model_cannot_read_is_refused(tmp_path: Path):
    folder = save_with_processor("vit", tmp_path / "vit", **SETTINGS["vit"])

    def refused(task: Task = TASK) -> str:
        with pytest.raises(InputError) as caught:
            load(folder, task)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "vit reads pixels" in refused(replace(TASK, name="homology"))
    config = folder / "preprocessor_config.json"
    config.write_text(config.read_text().replace('"height": 8', '"shortest_edge": 8').replace('"width": 8', '"x": 8'))
    assert "preprocessor_config.json is not usable" in refused()
    config.write_text('{"image_processor_type": "Evil", "auto_map": {"AutoImageProcessor": "evil.Evil"}}')
    assert "preprocessor_config.json is not usable" in refused()
    config.unlink()
    assert "preprocessor_config.json is not usable (the folder has none)" in refused()


def test_vision_models_still_read_vectors(tmp_path: Path):
    """Nothing of its pictures is counted where none are read."""
    from reservoir.backbones import load_backbone

    for kind in PIXELS:
        backbone = load_backbone(str(save_with_processor(kind, tmp_path / kind)), "pretrained")
        assert not [name for name, _ in backbone.named_parameters() if "pictures" in name]
