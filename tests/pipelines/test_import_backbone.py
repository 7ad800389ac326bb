"""Weights in other formats become a backbone with the same outputs, and no code in a file is run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reservoir_pipelines import import_backbone

from reservoir.backbones import load_backbone, weights, weights_digest
from reservoir.errors import InputError
from tests.reservoir.models import save, save_as_gguf, save_with_tokenizer


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
    found = session.run(None, {session.get_inputs()[0].name: pixels.numpy()})[0]
    return file, pixels.numpy(), np.asarray(found)


@pytest.mark.parametrize(("kind", "dynamo"), [("vit", False), ("dinov2", False), ("dinov2", True)])
def test_onnx_import_equals_onnxruntime(kind: str, dynamo: bool, tmp_path: Path):
    from transformers import AutoModel

    file, pixels, expected = exported(kind, tmp_path, dynamo=dynamo)
    with pytest.raises(InputError, match=r"config\.json are missing"):
        import_backbone(file, tmp_path / "out")
    settings = json.loads((tmp_path / kind / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(settings | {"image_size": pixels.shape[2] if dynamo else settings["image_size"]})
    )
    done = import_backbone(file, tmp_path / "out")
    assert done.family == kind and done.left_out == ("decoder.bias",)
    assert "does not state the licence and origin" in done.notes[-1]
    model = AutoModel.from_pretrained(done.folder).eval()
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.tensor(pixels)).last_hidden_state, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_pickled_weights_are_imported(kind, tmp_path, answer):
    folder = save_with_tokenizer(kind, tmp_path / kind) if kind == "bert" else save(kind, tmp_path / kind)
    before = weights_digest(load_backbone(str(folder), "pretrained"))
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert answer("backbone", "--import", folder, "--out", tmp_path / "out")["family"] == kind
    assert weights_digest(load_backbone(str(tmp_path / "out"), "pretrained")) == before
    assert (tmp_path / "out" / "tokenizer.json").is_file() == (kind == "bert")


def test_a_gguf_file_is_a_backbone_with_its_weights(tmp_path: Path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    folder = save("llama", tmp_path / "llama")
    save_as_gguf(folder, tmp_path / "tiny.gguf")
    read, made = (load_backbone(str(path), "pretrained") for path in (tmp_path / "tiny.gguf", folder))
    for name, parameter in made.named_parameters():
        assert torch.equal(read.get_parameter(name), parameter), name


def test_code_in_a_pickle_is_not_run(tmp_path: Path, refusal):
    folder, sign = save("gpt2", tmp_path / "gpt2"), tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return open, (str(sign), "w")

    torch.save({"wte.weight": Evil()}, folder / "pytorch_model.bin")
    error = refusal("backbone", "--import", folder / "pytorch_model.bin", "--out", tmp_path / "out")
    assert "not readable without running code" in error
    assert not sign.exists() and not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_sources_that_are_no_backbone_are_refused_in_one_line(tmp_path: Path, refusal):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "text.onnx").write_text("no")
    (tmp_path / "there").mkdir()
    graph = onnx.helper.make_graph([], "g", [], [], [onnx.helper.make_tensor("w", 1, [1], [1.0])])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    patches = "embeddings.patch_embeddings.projection.weight"
    graph = onnx.helper.make_graph([], "g", [], [], [onnx.helper.make_tensor(patches, 8, [1], [b"text"])])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "texts.onnx")
    torch.save({"w": torch.zeros(3, device="meta")}, tmp_path / "meta.bin")
    torch.save({1: torch.zeros(3)}, tmp_path / "number.bin")
    cases = {
        ("text.onnx", "out"): "not a readable ONNX file",
        ("texts.onnx", "out"): "not a readable ONNX file",
        ("meta.bin", "out"): "its tensors have no values",
        ("number.bin", "out"): "config.json is not readable",
        ("other.onnx", "out"): "no tensor is named",
        ("other.onnx", "there"): "already exists",
        ("none.onnx", "out"): "No such file",
        ("there", "out"): "config.json are missing",
    }
    for (source, out), message in cases.items():
        assert message in refusal("backbone", "--import", tmp_path / source, "--out", tmp_path / out)
    for arguments in ([], ["--import", tmp_path / "other.onnx"], ["mini", "--import", "x.onnx", "--out", "y"]):
        assert "--out FOLDER" in refusal("backbone", *arguments)


def test_a_dry_run_reads_the_settings_of_a_gguf_file_and_dequantises_nothing(cache, tmp_path, monkeypatch, answer):
    gguf = pytest.importorskip("gguf")
    save_as_gguf(save("llama", tmp_path / "llama"), tmp_path / "tiny.gguf")
    for place in (gguf, gguf.quants):
        monkeypatch.setattr(place, "dequantize", lambda *_: pytest.fail("the weights were dequantised"))
    monkeypatch.setattr(weights, "_read_gguf_tensors", lambda name: pytest.fail("the weights were read"))
    found = answer("extract", "digits", "--backbone", tmp_path / "tiny.gguf", "--dry-run")
    assert found["layers"]["value"] == "embed,block01,block02,block03,final"
