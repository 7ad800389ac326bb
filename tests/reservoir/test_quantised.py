"""Folders of quantised weights: the values of each tensor, their digest, and what is refused."""

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reservoir.backbones import find, load_backbone, weights_digest
from reservoir.backbones.quantised import RULES, _block_of_groups, check_method, expanded
from reservoir.backbones.stored import is_finite
from reservoir.errors import InputError
from tests.reservoir.models import save

FP8 = torch.float8_e4m3fn
Parts = dict[str, Tensor]
"""The stored tensors of a linear map by the ending of their names."""


def fp8(weight: Tensor, block: tuple[int, int] | None, ending: str, by_row: bool = False) -> tuple[Parts, Tensor]:
    rows, columns = weight.shape
    high, wide = block or ((1, columns) if by_row else (rows, columns))
    grid = torch.zeros(-(-rows // high), -(-columns // wide))
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            part = weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
            grid[i, j] = part.abs().max() / 448
    scale = grid.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    values = (weight / scale).to(FP8)
    scales = grid if block else grid.reshape(-1, 1) if by_row else grid.reshape(())
    return {".weight": values, f".weight{ending}": scales, ".input_scale": torch.ones(())}, values.float() * scale


def words_of(integers: Tensor, bits: int, dimension: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Pack integers along a dimension into words of 32 bits; ``order`` has the places of a word from its low bits."""
    numbers, fields = integers.movedim(dimension, -1).numpy(), 32 // bits
    words = np.zeros((*numbers.shape[:-1], math.ceil(numbers.shape[-1] / fields)), np.uint32)
    for number in range(numbers.shape[-1]):
        word, place = divmod(number, fields)
        field = order.index(place) if order else place
        words[..., word] |= numbers[..., number].astype(np.uint32) << np.uint32(bits * field)
    return torch.from_numpy(words.view(np.int32)).movedim(-1, dimension).contiguous()


class Rounded:
    """A matrix whose values are integers minus a zero point, times the scale of the group of their input."""

    def __init__(self, weight: Tensor, bits: int, size: int | None, shuffled: bool = False, symmetric: bool = False):
        outputs, inputs = weight.shape
        self.groups = torch.arange(inputs) // (size or inputs)
        if shuffled:
            self.groups = self.groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        count = int(self.groups.max()) + 1
        self.scales, self.zeros = torch.empty(outputs, count), torch.empty(outputs, count)
        for group in range(count):
            members = weight[:, self.groups == group]
            low, high = members.amin(1).clamp(max=0), members.amax(1).clamp(min=0)
            if symmetric:
                low, high = -members.abs().amax(1), members.abs().amax(1)
            self.scales[:, group] = ((high - low) / (2**bits - 1)).half().float()
            self.zeros[:, group] = 2 ** (bits - 1) if symmetric else (-low / self.scales[:, group]).round()
        scales, zeros = self.scales[:, self.groups], self.zeros[:, self.groups]
        self.integers = (weight / scales + zeros).round().clamp(0, 2**bits - 1)
        self.values = (self.integers - zeros) * scales


def gptq(weight: Tensor, bits: int, size: int | None, v2: bool = False, **options: bool) -> tuple[Parts, Tensor]:
    matrix = Rounded(weight, bits, size, **options)
    zeros = words_of(matrix.zeros.T.int(), bits, 1)
    if not v2:  # subtracted from whole words, so that a zero point of 0 borrows from its neighbour
        zeros = zeros - sum(2**place for place in range(0, 32, bits))
    parts = {".qweight": words_of(matrix.integers.T.int(), bits, 0), ".qzeros": zeros.to(torch.int32)}
    parts |= {".scales": matrix.scales.T.half().contiguous(), ".bias": torch.zeros(len(weight)).half()}
    if options:
        parts[".g_idx"] = matrix.groups.int()
    return parts, matrix.values


def awq(weight: Tensor, size: int) -> tuple[Parts, Tensor]:
    matrix, order = Rounded(weight, 4, size), (0, 2, 4, 6, 1, 3, 5, 7)
    integers, zeros = (words_of(values.T.int(), 4, 1, order) for values in (matrix.integers, matrix.zeros))
    parts = {".qweight": integers, ".qzeros": zeros, ".scales": matrix.scales.T.half().contiguous()}
    return parts, matrix.values


def compressed(weight: Tensor, bits: int, size: int | None, packed: bool = True, **options) -> tuple[Parts, Tensor]:
    matrix, half = Rounded(weight, bits, size, **options), 2 ** (bits - 1)
    integers, zeros = matrix.integers, matrix.zeros
    parts = {".weight_scale": matrix.scales}
    if packed:
        parts |= {".weight_packed": words_of(integers.int(), bits, 1), ".weight_shape": torch.tensor(weight.shape)}
        zeros = words_of(zeros.int(), bits, 0)
    else:
        parts[".weight"], zeros = (integers - half).to(torch.int8), (zeros - half).to(torch.int8)
    if not options.get("symmetric"):
        parts[".weight_zero_point"] = zeros
    if options.get("shuffled"):
        parts[".weight_g_idx"] = matrix.groups.int()
    return parts, matrix.values


def llm_int8(weight: Tensor) -> tuple[Parts, Tensor]:
    largest = weight.abs().amax(1)
    integers = (weight / largest[:, None] * 127).round()
    parts = {".weight": integers.to(torch.int8), ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, integers * largest[:, None] * (1 / 127)


def tables(weight: Tensor, kind: str, nested: bool, block: int = 64, dtype: str = "float32") -> tuple[Parts, Tensor]:
    """Round to values of a table of 16, as bitsandbytes does; with ``nested``, maxima to those of a table of 256."""
    table = torch.randn(16, generator=torch.Generator().manual_seed(0)).sort().values
    values = weight.flatten()
    padded = torch.nn.functional.pad(values, (0, -len(values) % block)).view(-1, block)
    maxima = padded.abs().amax(1)
    parts = {".weight.quant_map": table, ".weight.absmax": maxima}
    state = {"quant_type": kind, "blocksize": block, "dtype": dtype, "shape": list(weight.shape)}
    if nested:
        large, offset = torch.linspace(-1, 1, 256), float(maxima.mean())
        state |= {"nested_blocksize": 32, "nested_dtype": "float32", "nested_offset": offset}
        tail = torch.nn.functional.pad(maxima - offset, (0, -len(maxima) % 32)).view(-1, 32)
        largest = tail.abs().amax(1, keepdim=True)
        numbers = (tail / largest - large[:, None, None]).abs().argmin(0)
        parts[".weight.absmax"] = numbers.flatten()[: len(maxima)].to(torch.uint8)
        parts |= {".weight.nested_absmax": largest.flatten(), ".weight.nested_quant_map": large}
        maxima = (large[numbers] * largest).flatten()[: len(maxima)] + offset
    numbers = (padded / maxima[:, None] - table[:, None, None]).abs().argmin(0)
    expected = (table[numbers] * maxima[:, None]).flatten()[: len(values)].view(weight.shape)
    numbers = numbers.flatten()[: len(values)].to(torch.uint8)
    parts[".weight"] = (numbers[::2] * 16 + numbers[1::2])[:, None]
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return parts | {f".weight.quant_state.bitsandbytes__{kind}": text}, expected.to(getattr(torch, dtype)).float()


def groups_of(size: int | None) -> dict[str, object]:
    return {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"group_size": size}}}}


Quantiser = Callable[[Tensor], tuple[Parts, Tensor]]
GPTQ, AWQ, BNB = {"quant_method": "gptq"}, {"quant_method": "awq"}, {"quant_method": "bitsandbytes"}
PACKED = {"format": "pack-quantized"}
FORMATS: dict[str, tuple[Quantiser, dict[str, object]]] = {
    "blocks": (
        partial(fp8, block=(8, 16), ending="_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [8, 16]},
    ),
    "blocks with a rest": (
        partial(fp8, block=(5, 7), ending="_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [5, 7]},
    ),
    "one scale": (partial(fp8, block=None, ending="_scale_inv"), {"quant_method": "fp8"}),
    "rows": (partial(fp8, block=None, ending="_scale", by_row=True), {"quant_method": "fbgemm_fp8"}),
    "compressed floats": (
        partial(fp8, block=None, ending="_scale", by_row=True),
        groups_of(None) | {"format": "float-quantized"},
    ),
    "gptq": (partial(gptq, bits=4, size=8), GPTQ | {"bits": 4, "group_size": 8, "checkpoint_format": "gptq"}),
    "gptq by rows": (partial(gptq, bits=4, size=None), GPTQ | {"bits": 4, "group_size": -1}),
    "gptq shuffled": (partial(gptq, bits=4, size=8, shuffled=True), GPTQ | {"bits": 4, "group_size": 8}),
    "gptq symmetric": (partial(gptq, bits=8, size=8, symmetric=True), GPTQ | {"bits": 8, "group_size": 8}),
    "gptq v2": (
        partial(gptq, bits=8, size=8, v2=True),
        GPTQ | {"bits": 8, "group_size": 8, "checkpoint_format": "gptq_v2"},
    ),
    "awq": (partial(awq, size=8), AWQ | {"bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}),
    "packed": (partial(compressed, bits=4, size=8), groups_of(8) | PACKED),
    "packed symmetric": (partial(compressed, bits=4, size=None, symmetric=True), groups_of(None) | PACKED),
    "packed shuffled": (partial(compressed, bits=8, size=8, shuffled=True), groups_of(8) | PACKED),
    "integers": (partial(compressed, bits=8, size=None, packed=False), groups_of(None) | {"format": "int-quantized"}),
    "llm.int8": (llm_int8, BNB | {"load_in_8bit": True}),
    "nf4": (partial(tables, kind="nf4", nested=False), BNB),
    "nf4 nested": (partial(tables, kind="nf4", nested=True, block=32, dtype="bfloat16"), BNB),
    "fp4": (partial(tables, kind="fp4", nested=False, dtype="float16"), BNB),
}


def quantise(folder: Path, quantiser: Quantiser, **settings: object) -> dict[str, Tensor]:
    """Quantise the matrices of the blocks of a folder in place, and return the tensors that they stand for."""
    weights = load_file(folder / "model.safetensors")
    stored, expected = dict(weights), dict(weights)
    for name, weight in weights.items():
        if name.endswith(("_proj.weight", "c_attn.weight", "c_fc.weight")):
            path = name.removesuffix(".weight")
            # GPT-2 has its matrices as (inputs, outputs), which quantised ones are not.
            is_transposed = "c_" in name
            parts, values = quantiser(weight.T.contiguous() if is_transposed else weight)
            expected[name] = values.T.contiguous() if is_transposed else values
            del stored[name]
            stored = {f"{path}{ending}": part for ending, part in parts.items()} | stored
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    set_quantisation(folder, **settings)
    return expected


def set_quantisation(folder: Path, **settings: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return save("llama", tmp_path_factory.mktemp("quantised") / "llama")


def quantised_copy(plain: Path, folder: Path, layout: str) -> tuple[Path, dict[str, Tensor]]:
    quantiser, settings = FORMATS[layout]
    shutil.copytree(plain, folder)
    return folder, quantise(folder, quantiser, **settings)


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


@pytest.mark.parametrize("layout", FORMATS)
def test_weights_are_those_of_their_format(llama, tmp_path, monkeypatch, layout):
    for module in ("integers", "nf4"):  # a part of a tiny matrix at a time
        monkeypatch.setattr(f"reservoir.backbones.{module}.SLAB", 64)
    folder, expected = quantised_copy(llama, tmp_path / "quantised", layout)
    plain = shutil.copytree(llama, tmp_path / "plain")
    save_file(expected, plain / "model.safetensors", {"format": "pt"})
    weights = load_file(llama / "model.safetensors")
    errors = {name: float((values - weights[name]).abs().mean()) for name, values in expected.items()}
    assert all(0.0001 < error < 0.1 if "_proj" in name else error == 0 for name, error in errors.items()), errors
    backbone = load_backbone(str(folder), "pretrained")
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
        hidden = load_backbone(str(plain), "pretrained")(embeds)
        assert torch.equal(backbone(embeds), hidden)
        assert torch.equal(streamed(embeds), hidden)


def test_memory_is_that_of_expanded_weights(llama, tmp_path):
    folder, _ = quantised_copy(llama, tmp_path / "quantised", "gptq")
    family, config = find(str(folder))
    for dtype in (torch.float32, torch.bfloat16):
        size = family.loader.size(family.loader.lean(config, None, with_token_embeddings=False)).bytes(dtype)
        for limit, is_streamed in ((size, False), (size - 1, True)):
            own_precision = dtype == torch.bfloat16
            backbone = load_backbone(str(folder), "pretrained", own_precision=own_precision, memory_limit=limit)
            assert (backbone.streamed is not None) == is_streamed


@pytest.mark.parametrize("layout", ["gptq", "nf4"])
def test_matrices_of_gpt2_are_transposed(tmp_path, layout):
    plain = save("gpt2", tmp_path / "plain")
    folder, expected = quantised_copy(plain, tmp_path / "quantised", layout)
    save_file(expected, plain / "model.safetensors", {"format": "pt"})
    model = load_backbone(str(folder), "pretrained").model
    for name, values in load_backbone(str(plain), "pretrained").model.named_parameters():
        assert torch.equal(model.get_parameter(name), values), name


def test_the_values_are_those_of_transformers(llama, tmp_path):
    from transformers import AutoModel, FineGrainedFP8Config

    folder = shutil.copytree(llama, tmp_path / "quantised")
    blocks = {"block": (8, 8), "ending": "_scale_inv"}
    quantise(folder, partial(fp8, **blocks), quant_method="fp8", weight_block_size=[8, 8])
    mine = load_backbone(str(folder), "pretrained")
    config = FineGrainedFP8Config(weight_block_size=(8, 8), dequantize=True)
    theirs = AutoModel.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    for name, parameter in mine.blocks.named_parameters():
        assert torch.allclose(parameter, theirs.layers.get_parameter(name), rtol=1e-6), name


PARTS = {
    "blocks": ("weight", "weight_scale_inv"),
    "gptq shuffled": ("qweight", "qzeros", "scales", "g_idx"),
    "nf4 nested": ("weight", "weight.absmax", "weight.nested_absmax", "weight.quant_state.bitsandbytes__nf4"),
}


@pytest.mark.parametrize("layout", PARTS)
def test_the_digest_covers_all_parts_and_the_rule(llama, tmp_path, monkeypatch, layout):
    folder, _ = quantised_copy(llama, tmp_path / "quantised", layout)
    file = folder / "model.safetensors"
    weights = load_file(file)
    first = weights_digest(load_backbone(str(folder), "pretrained"))
    names = [f"model.layers.1.mlp.up_proj.{part}" for part in PARTS[layout]]
    for changed in (*names, "model.layers.0.input_layernorm.weight"):
        other = weights[changed].clone()
        if "quant_state" in changed:
            other = torch.tensor(list(bytes(other.tolist()).replace(b"bfloat16", b"float16")), dtype=torch.uint8)
        else:
            other.view(-1).view(torch.uint8)[0] ^= 1
        save_file(weights | {changed: other}, file, {"format": "pt"})
        assert weights_digest(load_backbone(str(folder), "pretrained")) != first, changed
    other = weights["model.embed_tokens.weight"] + 1  # is not part of the backbone
    save_file(weights | {"model.embed_tokens.weight": other}, file, {"format": "pt"})
    assert weights_digest(load_backbone(str(folder), "pretrained")) == first
    method = FORMATS[layout][1]["quant_method"]
    monkeypatch.setitem(RULES, method, dict.fromkeys(RULES[method], "another rule"))
    assert weights_digest(load_backbone(str(folder), "pretrained")) != first


def test_the_same_words_have_two_meanings_in_the_two_formats_of_gptq(llama, tmp_path):
    folder, _ = quantised_copy(llama, tmp_path / "quantised", "gptq")
    first = load_backbone(str(folder), "pretrained")
    set_quantisation(folder, **FORMATS["gptq"][1] | {"checkpoint_format": "gptq_v2"})
    second = load_backbone(str(folder), "pretrained")
    assert weights_digest(first) != weights_digest(second)
    name = "0.mlp.up_proj.weight"
    assert (first.blocks.get_parameter(name) < second.blocks.get_parameter(name)).all()


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


UNREAD = {
    "a new method": ({"quant_method": "new"}, "method 'new'"),
    "exl2": ({"quant_method": "exl2"}, "exl2"),
    "no method": ({"group_size": 64}, "method 'None'"),
    "gptq for marlin": (GPTQ | {"checkpoint_format": "marlin"}, "marlin"),
    "gptq of old versions for marlin": (GPTQ | {"is_marlin_format": True}, "marlin"),
    "gptq of 3 bits": (GPTQ | {"bits": 3}, "3 bits"),
    "gptq rotated": (GPTQ | {"rotation": "hadamard"}, "transforms"),
    "awq for vectors": (AWQ | {"version": "GEMV"}, "gemv"),
    "awq of its authors": (AWQ | {"backend": "llm-awq"}, "llm-awq"),
    "nvfp4": (groups_of(16) | {"format": "nvfp4-pack-quantized"}, "nvfp4"),
    "mixed": (
        {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {"a": {"format": "new"}}},
        "'new'",
    ),
    "compressed and rotated": (groups_of(8) | PACKED | {"transform_config": {"R1": {}}}, "transforms"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_other_methods_are_refused_by_name(llama, tmp_path, case):
    settings, message = UNREAD[case]
    folder = shutil.copytree(llama, tmp_path / "llama")
    set_quantisation(folder, **settings)
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder), "pretrained")


def test_settings_without_transforms_pass():
    check_method("x", groups_of(8) | PACKED | {"transform_config": {}})
    mixed = {"format": "mixed-precision", "config_groups": {"a": {"format": "int-quantized"}}}
    check_method("x", {"quant_method": "compressed-tensors"} | mixed)


UP = "model.layers.1.mlp.up_proj"


def damage(layout: str, part: str, change: Callable[[Tensor], Tensor | None], message: str, **settings: object):
    return pytest.param(layout, f"{UP}.{part}", change, settings, message, id=f"{layout}: {part} {message}")


def without_end(values: Tensor) -> Tensor:
    return values[:-1].contiguous()


def described(**changes: object) -> Callable[[Tensor], Tensor]:
    def change(stored: Tensor) -> Tensor:
        state = json.loads(bytes(stored.tolist())) | changes
        return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

    return change


STATE = "weight.quant_state.bitsandbytes__nf4"
FORMAT_OF_GPU = torch.tensor(2, dtype=torch.uint8)
DAMAGES = [
    damage("blocks", "weight_scale_inv", lambda _: None, "without scales"),
    damage("blocks", "weight_scale_inv", without_end, "does not fit"),
    damage("blocks", "weight_scale_inv", Tensor.clone, "does not fit", weight_block_size=[10**15, 10**15]),
    damage("gptq shuffled", "qzeros", lambda _: None, "no qzeros"),
    damage("gptq shuffled", "g_idx", without_end, "g_idx"),
    damage("gptq shuffled", "g_idx", lambda groups: groups + 1, "no scale"),
    damage("gptq", "scales", without_end, "does not fit"),
    damage("gptq", "scales", lambda scales: scales.fill_(torch.nan), "NaN"),
    damage("gptq", "qzeros", lambda zeros: zeros.repeat(1, 3), "does not fit"),
    # Two groups of 9 and 7 inputs, or of 8 and 8: the shapes are the same.
    damage("gptq", "qweight", Tensor.clone, "does not fit", group_size=9),
    damage("awq", "qweight", lambda words: words[:, :-1].contiguous(), "does not fit"),
    damage("packed", "weight_shape", lambda shape: shape + 8, "weight_shape"),
    damage("packed", "weight_shape", lambda shape: shape * torch.tensor([1, -1]), "weight_shape"),
    damage("packed", "weight_zero_point", without_end, "does not fit"),
    damage("llm.int8", "SCB", lambda _: None, "no SCB"),
    damage("llm.int8", "SCB", without_end, "does not fit"),
    damage("llm.int8", "weight_format", lambda _: FORMAT_OF_GPU, "GPU"),
    damage("nf4", STATE, lambda _: None, "without scales"),
    damage("nf4", STATE, described(shape=[10**9, 10**9]), "does not fit"),
    damage("nf4", STATE, described(shape=[24, -16]), "not that of a matrix"),
    damage("nf4", STATE, described(blocksize=10**9), "blocks"),
    damage("nf4", STATE, described(dtype="int8"), "int8"),
    damage("nf4", STATE, described(padding="x" * 5000), "does not fit"),
    damage("nf4", "weight.absmax", without_end, "does not fit"),
    damage("nf4", "weight.quant_map", without_end, "does not fit"),
]


@pytest.mark.parametrize(("layout", "name", "change", "settings", "message"), DAMAGES)
def test_damaged_parts_are_refused(llama, tmp_path, layout, name, change, settings, message):
    folder, _ = quantised_copy(llama, tmp_path / "quantised", layout)
    weights = load_file(folder / "model.safetensors")
    changed = change(weights.pop(name))
    save_file(weights | ({} if changed is None else {name: changed}), folder / "model.safetensors", {"format": "pt"})
    set_quantisation(folder, **FORMATS[layout][1] | settings)
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder), "pretrained")


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes"])
def test_weights_that_are_not_quantised_after_all_are_refused(llama, tmp_path, method):
    folder = shutil.copytree(llama, tmp_path / "llama")
    set_quantisation(folder, quant_method=method)
    with pytest.raises(InputError, match="none of its weights"):
        load_backbone(str(folder), "pretrained")
