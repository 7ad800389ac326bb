"""GGUF files: their values, what is read of them, their digest, and files that are refused."""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir.backbones import load_backbone, load_native, weights_digest
from reservoir.backbones.gguf_file import gguf_package, open_gguf
from reservoir.errors import InputError

gguf = pytest.importorskip("gguf")
WIDTH, HEADS, DEPTH, WORDS = 256, 4, 2, 40


def save_llama(folder: Path, **settings: object) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": DEPTH, "vocab_size": WORDS}
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 64}
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.06, **settings)).save_pretrained(folder)
    return folder


def write_gguf(
    folder: Path, file: Path, kind: str = "F32", factors: np.ndarray | None = None, of_factors: str = "rope_freqs"
) -> Path:
    """Write a Llama as the converter of llama.cpp does, its matrices in blocks of a kind."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # in GGUF the values of a rotary pair are adjacent
            rows, columns = values.shape
            half = config["head_dim"] // 2
            values = np.ascontiguousarray(values.reshape(-1, 2, half, columns).swapaxes(1, 2).reshape(rows, columns))
        number = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        writer.add_tensor(table.get_name(name, (".weight",)), stored(values, number), raw_dtype=number)
    if factors is not None:
        writer.add_tensor(f"{of_factors}.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def stored(values: np.ndarray, kind: "gguf.GGMLQuantizationType") -> np.ndarray:
    """Return blocks of a kind: those of the values, or random ones where gguf does not quantise."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows = np.random.default_rng(values.size).integers(0, 255, (len(values), values.shape[1] // block, size))
        rows = rows.astype(np.uint8)
        # The scales of a block, in half precision: d at the end of Q6_K, d and the minimum at the start of Q4_K.
        places = (size - 2,) if kind.name == "Q6_K" else (0, 2)
        for place in places:
            rows[..., place : place + 2] = np.array([0.002], np.float16).view(np.uint8)
        return rows.reshape(len(values), -1)


def hidden_of_transformers(file: Path, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    with torch.no_grad():
        output = model(input_ids=words, output_hidden_states=True)
    return (*output.hidden_states[:-1], output.last_hidden_state)


def hidden_of(name: Path, words: torch.Tensor, **options: object) -> list[torch.Tensor]:
    backbone, embeddings = load_native(str(name), **options)
    with torch.no_grad():
        layers = dict(backbone.run_layers(embeddings(words)))
    return [hidden for layer, hidden in layers.items() if layer != backbone.layers[-2]]


TEXT = torch.arange(2 * 9).reshape(2, 9) % WORDS


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return save_llama(tmp_path_factory.mktemp("gguf") / "llama")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_hidden_states_equal_those_of_transformers(llama, tmp_path, kind):
    pytest.importorskip("accelerate")
    file = write_gguf(llama, tmp_path / "a.gguf", kind)
    expected = hidden_of_transformers(file, TEXT)
    computed = hidden_of(file, TEXT)
    assert len(computed) == len(expected) == DEPTH + 1
    for mine, theirs in zip(computed, expected, strict=True):
        assert torch.isfinite(theirs).all()
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_rounded_weights_are_those_of_the_folder_but_for_a_step(llama, tmp_path, kind, bits):
    file = write_gguf(llama, tmp_path / "a.gguf", kind)
    rounded, exact = (load_backbone(str(path), "pretrained") for path in (file, llama))
    for name, weight in exact.named_parameters():
        # A block's values are rounded to steps of at most its range divided by their number.
        step = 2.2 * weight.abs().max() / 2**bits if weight.dim() > 1 else 0
        assert (rounded.get_parameter(name) - weight).abs().max() <= step, name


def test_only_kept_blocks_are_read(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "a.gguf", "Q8_0")
    whole = load_backbone(str(file), "pretrained")
    second = open_gguf(file).tensors["blk.1.ffn_up.weight"]
    data = bytearray(file.read_bytes())
    data[second.start : second.start + 2] = struct.pack("<e", float("nan"))  # the scale of its first block
    file.write_bytes(data)
    first = load_backbone(str(file), "pretrained", depth=1)
    for name, weight in first.blocks.named_parameters():
        assert torch.equal(weight, whole.blocks.get_parameter(name)), name
    with pytest.raises(InputError, match="NaN"):
        load_backbone(str(file), "pretrained")


def test_the_digest_is_that_of_the_stored_tensors(llama, tmp_path, monkeypatch):
    file = write_gguf(llama, tmp_path / "a.gguf", "Q4_0")
    digest = weights_digest(load_backbone(str(file), "pretrained"))
    assert weights_digest(load_native(str(file))[0]) == digest
    assert weights_digest(load_backbone(str(file), "statistics")) != digest
    assert weights_digest(load_backbone(str(file), "pretrained", depth=1)) != digest
    stored_tensor = open_gguf(file).tensors["blk.1.ffn_up.weight"]
    # Another value of a kept tensor and another rule change it, and neither do a token's vector nor a dropped block.
    changed = tmp_path / "b.gguf"
    for tensor, same, depth in (
        (stored_tensor, False, None),
        (stored_tensor, True, 1),
        (open_gguf(file).tensors["token_embd.weight"], True, None),
    ):
        data = bytearray(file.read_bytes())
        data[tensor.start + 5] ^= 1
        changed.write_bytes(data)
        digests = {weights_digest(load_backbone(str(path), "pretrained", depth=depth)) for path in (file, changed)}
        assert (len(digests) == 1) == same
    monkeypatch.setattr("reservoir.backbones.loading.GGUF_RULE", "ggml 2")
    assert weights_digest(load_backbone(str(file), "pretrained")) != digest


def test_a_folder_with_one_gguf_file_is_that_file(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "a.gguf", "Q4_0")
    digests = {weights_digest(load_backbone(str(path), "pretrained")) for path in (file, tmp_path)}
    assert len(digests) == 1
    shutil.copy(file, tmp_path / "b.gguf")
    with pytest.raises(InputError, match="has 2 GGUF files"):
        load_backbone(str(tmp_path), "pretrained")


def test_factors_of_rotary_positions_are_applied(tmp_path):
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    folder = save_llama(tmp_path / "llama3", rope_parameters=rope)
    scaled = load_backbone(str(folder), "pretrained").model.get_submodule("rotary_emb").inv_freq
    plain = 10000.0 ** -(torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"]["factor"] == 8.0
    file = write_gguf(folder, tmp_path / "a.gguf", factors=(plain / scaled).numpy())
    for mine, theirs in zip(hidden_of(file, TEXT), hidden_of(folder, TEXT), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)
    unscaled = hidden_of(write_gguf(folder, tmp_path / "b.gguf"), TEXT)
    assert not torch.allclose(unscaled[-1], hidden_of(folder, TEXT)[-1], atol=1e-2)
    short = write_gguf(folder, tmp_path / "c.gguf", factors=np.ones(3))
    other = write_gguf(folder, tmp_path / "d.gguf", factors=np.ones(32), of_factors="rope_factors_long")
    for path, tensor_name in ((short, "rope_freqs"), (other, "rope_factors_long")):
        with pytest.raises(InputError, match=tensor_name):
            load_backbone(str(path), "pretrained")


def header(tensors: int, settings: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, settings) + rest


def named(name: str) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode()


def array(of: int, length: int) -> bytes:
    return named("a") + struct.pack("<IIQ", 9, of, length)


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return named("t") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)


HOSTILE = {
    "an array that is longer than the file": (header(0, 1, array(0, 10**6)), "longer than the file"),
    "an array without end": (header(0, 1, array(0, 2**60)), "2,000,000 entries"),
    "a list of strings without end": (header(0, 1, array(8, 2**60)), "2,000,000 entries"),
    "strings that are longer than the file": (header(0, 1, array(8, 3) + struct.pack("<Q", 2**62)), "longer"),
    "arrays of arrays": (header(0, 1, array(9, 3)), "array of arrays"),
    "a name that is longer than the file": (header(0, 1, struct.pack("<Q", 2**62)), "longer than the file"),
    "settings without end": (header(0, 2**60), "longer than the file"),
    "tensors without end": (header(2**60, 0), "tensors, more than"),
    "a tensor that is larger than the file": (header(1, 0, tensor((2**40,))), "does not fit"),
    "sizes whose product overflows": (header(1, 0, tensor((2**32, 2**32))), "does not fit"),
    "a tensor after the end": (header(1, 0, tensor((1,), offset=2**63)), "does not fit"),
    "a row that is not a whole number of blocks": (header(1, 0, tensor((33,), kind=2)), "does not fit"),
    "another version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "two tensors of one name": (header(2, 0, tensor((1,)) + tensor((1,)) + bytes(100)), "same name"),
    "an alignment of zero": (
        header(0, 1, named("general.alignment") + struct.pack("<II", 4, 0)), "alignment is 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_sizes_of_a_file_are_checked_before_anything_is_allocated(tmp_path, case):
    data, word = HOSTILE[case]
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(InputError, match=word):
        load_backbone(str(tmp_path / "a.gguf"), "pretrained")


def test_a_missing_package_is_named(llama, tmp_path, monkeypatch):
    file = write_gguf(llama, tmp_path / "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    gguf_package.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'reservoir-features\[gguf\]'"):
        load_backbone(str(file), "pretrained")


def test_a_part_of_a_split_model_is_refused(llama, tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(header(0, 1, named("split.count") + struct.pack("<IH", 2, 3)))
    with pytest.raises(InputError, match="--merge"):
        load_backbone(str(file), "pretrained")
