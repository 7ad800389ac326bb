"""Folders in FP8 and MXFP4: the values of each tensor, their digest, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reservoir.backbones import load_backbone, weights_digest
from reservoir.backbones.stored import _block_of_groups, check_method, expanded, is_finite
from reservoir.errors import InputError
from tests.refusals import outcome
from tests.reservoir.models import save

FP8 = torch.float8_e4m3fn


def quantised(folder: Path, block: tuple[int, int] | None, ending: str, by_row: bool = False) -> dict[str, Tensor]:
    """Write the matrices of the blocks of a model in FP8, and return the values that they stand for."""
    weights = load_file(folder / "model.safetensors")
    stored, expected = dict(weights), dict(weights)
    for name, weight in weights.items():
        if "_proj" not in name:
            continue
        rows, columns = weight.shape
        high, wide = block or ((1, columns) if by_row else (rows, columns))
        grid = torch.zeros(-(-rows // high), -(-columns // wide))
        for i in range(grid.shape[0]):
            for j in range(grid.shape[1]):
                part = weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
                grid[i, j] = part.abs().max() / 448
        scale = grid.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
        stored[name] = (weight / scale).to(FP8)
        expected[name] = stored[name].float() * scale
        stored[name + ending] = grid if block else grid.reshape(-1, 1) if by_row else grid.reshape(())
        stored[name.removesuffix("weight") + "input_scale"] = torch.ones(())
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return expected


def set_quantisation(folder: Path, **settings: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


LAYOUTS = {
    "blocks": ((8, 16), "_scale_inv", False, {"quant_method": "fp8", "weight_block_size": [8, 16]}),
    "blocks with a rest": ((5, 7), "_scale_inv", False, {"quant_method": "fp8", "weight_block_size": [5, 7]}),
    "one scale": (None, "_scale_inv", False, {"quant_method": "fp8"}),
    "rows": (None, "_scale", True, {"quant_method": "fbgemm_fp8"}),
    "compressed": (None, "_scale", True, {"quant_method": "compressed-tensors", "format": "float-quantized"}),
}


def test_groups_of_compressed_tensors_have_one_size_of_blocks():
    def groups(*blocks):
        return {"config_groups": {str(n): {"weights": {"block_structure": block}} for n, block in enumerate(blocks)}}

    assert _block_of_groups(groups([128, 64])) == [128, 64]
    assert _block_of_groups(groups(None, None)) is None and _block_of_groups({}) is None
    for blocks in (([128, 128], [64, 64]), ([128, 128], None)):
        with pytest.raises(ValueError, match="several kinds"):
            _block_of_groups(groups(*blocks))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_not_finite_are_found_without_copies(dtype):
    values = torch.randn(300, 500).to(dtype)
    with torch.profiler.profile(profile_memory=True) as profile:
        assert is_finite(values) and is_finite(values[:0])
    assert sum(max(0, event.self_cpu_memory_usage) for event in profile.events()) < 1000
    for bad in ("nan", "inf", "-inf"):
        damaged = values.clone()
        damaged[7, 3] = float(bad)
        assert not is_finite(damaged)


def test_weights_that_were_rotated_are_refused(tmp_path):
    settings = LAYOUTS["compressed"][3]
    check_method("x", settings | {"transform_config": {}})
    rotations = {"config_groups": {"R1": {"type": "hadamard"}}}
    assert "transforms" in outcome(check_method, "x", settings | {"transform_config": rotations})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_is_multiplied_by_its_scales(tmp_path, layout):
    block, ending, by_row, settings = LAYOUTS[layout]
    folder = save("llama", tmp_path / "llama")
    expected = quantised(folder, block, ending, by_row)
    set_quantisation(folder, **settings)
    backbone = load_backbone(str(folder), "pretrained")
    for name, values in expected.items():
        path = name.removeprefix("model.")
        if path.startswith("layers."):
            assert torch.equal(backbone.model.get_parameter(path), values), name
    # In bfloat16 the same values are rounded, one tensor at a time.
    rounded = load_backbone(str(folder), "pretrained", own_precision=True)
    for name, values in backbone.blocks.named_parameters():
        expected_values = values.bfloat16() if "_proj" in name else values
        assert torch.equal(rounded.blocks.get_parameter(name), expected_values), name
    assert weights_digest(rounded) == weights_digest(backbone)
    streamed = load_backbone(str(folder), "pretrained", memory_limit=0)
    assert weights_digest(streamed) == weights_digest(backbone)
    embeds = torch.randn(2, 5, backbone.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(streamed(embeds), backbone(embeds))


def test_the_values_are_those_of_transformers(tmp_path):
    from transformers import AutoModel, FineGrainedFP8Config

    folder = save("llama", tmp_path / "llama")
    quantised(folder, (8, 8), "_scale_inv")
    set_quantisation(folder, quant_method="fp8", weight_block_size=[8, 8])
    mine = load_backbone(str(folder), "pretrained")
    config = FineGrainedFP8Config(weight_block_size=(8, 8), dequantize=True)
    theirs = AutoModel.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    for name, parameter in mine.blocks.named_parameters():
        assert torch.allclose(parameter, theirs.layers.get_parameter(name), rtol=1e-6), name


def test_the_digest_covers_values_scales_and_the_rule(tmp_path, monkeypatch):
    folder = save("llama", tmp_path / "llama")
    quantised(folder, (8, 8), "_scale_inv")
    set_quantisation(folder, quant_method="fp8", weight_block_size=[8, 8])
    file = folder / "model.safetensors"
    weights = load_file(file)
    first = weights_digest(load_backbone(str(folder), "pretrained"))
    name = "model.layers.1.mlp.up_proj.weight"
    for changed in (name, f"{name}_scale_inv", "model.layers.0.input_layernorm.weight"):
        other = weights[changed].float().clone()
        other[..., 0] *= 2
        save_file(weights | {changed: other.to(weights[changed].dtype)}, file, {"format": "pt"})
        assert weights_digest(load_backbone(str(folder), "pretrained")) != first, changed
    other = weights["model.embed_tokens.weight"] + 1  # is no part of the backbone
    save_file(weights | {"model.embed_tokens.weight": other}, file, {"format": "pt"})
    assert weights_digest(load_backbone(str(folder), "pretrained")) == first
    monkeypatch.setitem(__import__("reservoir.backbones.stored", fromlist=["RULES"]).RULES, "fp8", "fp8 2")
    assert weights_digest(load_backbone(str(folder), "pretrained")) != first


class Slice:
    """A tensor with the methods of a slice of safetensors."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index):
        return self.tensor[index]

    def get_shape(self):
        return list(self.tensor.shape)

    def get_dtype(self):
        return {FP8: "F8_E4M3"}.get(self.tensor.dtype, "F32" if self.tensor.is_floating_point() else "U8")


def test_mxfp4_has_the_values_of_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    draw = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), generator=draw, dtype=torch.uint8)
    scales = torch.randint(120, 134, (3, 10, 2), generator=draw, dtype=torch.uint8)
    stored = {"a.gate_up_proj_blocks": Slice(blocks), "a.gate_up_proj_scales": Slice(scales)}
    tensors = expanded(stored | {"a.bias": Slice(torch.ones(2))}, {"quant_method": "mxfp4"})
    assert sorted(tensors) == ["a.bias", "a.gate_up_proj"]
    values = tensors["a.gate_up_proj"][...]
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert list(values.shape) == tensors["a.gate_up_proj"].get_shape() == list(expected.shape)
    assert torch.equal(values, expected)


def test_gpt_oss_in_mxfp4_is_the_model_of_the_expanded_tensors(tmp_path):
    from transformers import GptOssConfig, GptOssModel
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 20, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2}
    model = GptOssModel(GptOssConfig(**sizes))
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for folder in (plain, packed):
        model.save_pretrained(folder)
    weights = load_file(plain / "model.safetensors")
    stored = dict(weights)
    draw = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = tensor.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=draw, dtype=torch.uint8)
            scales = torch.randint(118, 124, (experts, outputs, inputs // 32), generator=draw, dtype=torch.uint8)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            del stored[name]
            weights[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    set_quantisation(packed, quant_method="mxfp4")
    try:
        expected = load_backbone(str(plain), "pretrained")
    except InputError as error:
        pytest.skip(f"gpt-oss does not run yet: {error}")
    mine = load_backbone(str(packed), "pretrained")
    for name, parameter in expected.named_parameters():
        assert torch.equal(mine.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    ("method", "package"),
    [("bitsandbytes", "bitsandbytes"), ("awq", "gptqmodel"), ("gptq", "gptqmodel"), ("new", "the method 'new'")],
)
def test_other_methods_are_refused_with_their_package(tmp_path, method, package):
    folder = save("llama", tmp_path / "llama")
    set_quantisation(folder, quant_method=method)
    with pytest.raises(InputError, match=package):
        load_backbone(str(folder), "pretrained")


@pytest.mark.parametrize("case", ["no scales", "too few scales", "a block without end"])
def test_damaged_scales_are_refused(tmp_path, case):
    folder = save("llama", tmp_path / "llama")
    quantised(folder, (8, 8), "_scale_inv")
    weights = load_file(folder / "model.safetensors")
    name, block = "model.layers.1.mlp.up_proj.weight_scale_inv", [8, 8]
    if case == "no scales":
        del weights[name]
    elif case == "too few scales":
        weights[name] = weights[name][:-1].contiguous()
    else:
        block = [10**15, 10**15]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    set_quantisation(folder, quant_method="fp8", weight_block_size=block)
    with pytest.raises(InputError, match="without scales" if case == "no scales" else "does not fit"):
        load_backbone(str(folder), "pretrained")
