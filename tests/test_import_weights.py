"""The script that converts weights in other formats: the same outputs, and no code in a file is run."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reservoir.backbones import load_backbone, weights_digest
from tests.reservoir.models import save, save_with_tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from import_weights import import_weights


class Exported(torch.nn.Module):
    """A vision model as a part of a larger module, with a layer after it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.backbone, self.decoder = model, torch.nn.Linear(16, 2)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.backbone(pixels).last_hidden_state
        return states, self.decoder(states)


def exported(kind: str, folder: Path, *, dynamo: bool) -> tuple[Path, np.ndarray, np.ndarray]:
    """Write a tiny model as ONNX; return the file, pixels, and the output of onnxruntime for them."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from transformers import AutoModel

    pytest.importorskip("onnxscript")
    save(kind, folder / kind)
    options = {"add_pooling_layer": False} if kind == "vit" else {}
    model = AutoModel.from_pretrained(folder / kind, **options)
    side = {"vit": 8, "dinov2": 16}[kind]
    file, pixels = folder / f"{kind}.onnx", torch.randn(2, 3, side, side)
    batch = {"dynamic_shapes": ({0: "batch"},)} if dynamo else {"dynamic_axes": {"pixels": {0: "batch"}}}
    torch.onnx.export(
        Exported(model).eval(), (pixels,), file, input_names=["pixels"], external_data=False, dynamo=dynamo, **batch
    )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    states = session.run(None, {session.get_inputs()[0].name: pixels.numpy()})[0]
    return file, pixels.numpy(), np.asarray(states)


@pytest.mark.parametrize(("kind", "dynamo"), [("vit", False), ("dinov2", False), ("dinov2", True)])
def test_weights_of_an_onnx_file_give_the_outputs_of_onnxruntime(kind: str, dynamo: bool, tmp_path: Path):
    from transformers import AutoModel

    file, pixels, expected = exported(kind, tmp_path, dynamo=dynamo)
    with pytest.raises(SystemExit, match=r"config\.json"):
        import_weights(file, tmp_path / "out")
    settings = json.loads((tmp_path / kind / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(settings | {"image_size": pixels.shape[2] if dynamo else settings["image_size"]})
    )
    model = AutoModel.from_pretrained(import_weights(file, tmp_path / "out")).eval()
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.tensor(pixels)).last_hidden_state, expected, atol=1e-5)


def as_pickle(folder: Path) -> Path:
    """Replace the weights of a model folder by a file of torch."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_weights_of_a_file_of_torch_keep_their_digest(kind: str, tmp_path: Path):
    folder = save_with_tokenizer(kind, tmp_path / kind) if kind == "bert" else save(kind, tmp_path / kind)
    before = weights_digest(load_backbone(str(folder), "pretrained"))
    out = import_weights(as_pickle(folder), tmp_path / "out")
    assert weights_digest(load_backbone(str(out), "pretrained")) == before
    assert (out / "tokenizer.json").is_file() == (kind == "bert")


def test_code_in_a_file_of_torch_is_not_run(tmp_path: Path):
    folder, sign = as_pickle(save("gpt2", tmp_path / "gpt2")), tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return open, (str(sign), "w")

    torch.save({"wte.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(Exception, match="Weights only load failed"):
        import_weights(folder, tmp_path / "out")
    assert not sign.exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "secret.bin"])
def test_weights_of_an_onnx_file_in_other_files_are_refused_and_not_read(location: str, tmp_path: Path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    tensor = onnx.helper.make_tensor("w", 1, [1], [1.0])
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    (tmp_path / "hostile.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    monkeypatch.setattr(
        onnx.external_data_helper, "load_external_data_for_tensor", lambda *_: pytest.fail("another file was opened")
    )
    with pytest.raises(ValueError, match="another file"):
        import_weights(tmp_path / "hostile.onnx", tmp_path / "out")
