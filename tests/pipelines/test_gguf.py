"""A GGUF file is a backbone."""

from pathlib import Path

import pytest
import torch

from reservoir.backbones import load_backbone, weights
from tests.reservoir.models import save, save_as_gguf


def test_a_gguf_file_is_a_backbone_with_its_weights(tmp_path: Path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    folder = save("llama", tmp_path / "llama")
    save_as_gguf(folder, tmp_path / "tiny.gguf")
    from_gguf, from_folder = (load_backbone(str(path), "pretrained") for path in (tmp_path / "tiny.gguf", folder))
    for name, parameter in from_folder.named_parameters():
        assert torch.equal(from_gguf.get_parameter(name), parameter), name


def test_a_dry_run_reads_the_settings_of_a_gguf_file_and_dequantises_nothing(cache, tmp_path, monkeypatch, answer):
    gguf = pytest.importorskip("gguf")
    save_as_gguf(save("llama", tmp_path / "llama"), tmp_path / "tiny.gguf")
    for place in (gguf, gguf.quants):
        monkeypatch.setattr(place, "dequantize", lambda *_: pytest.fail("the weights were dequantised"))
    monkeypatch.setattr(weights, "_read_gguf_tensors", lambda name: pytest.fail("the weights were read"))
    values = answer("extract", "digits", "--backbone", tmp_path / "tiny.gguf", "--dry-run")
    assert values["layers"]["value"] == "embed,block01,block02,block03,final"
