"""Model types that nobody has described by hand run as transformers runs them, or are refused with the reason."""

import functools
import json
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from reservoir.backbones import attention_maps, find, load_backbone, load_native, weights_digest
from reservoir.backbones.generic import generic_family, names_with_heads
from reservoir.backbones.loading import check_memory
from reservoir.batches import check_lengths, length_limits, token_batches
from reservoir.column import Column
from reservoir.loaded_model import load_model
from reservoir.options import PRECISIONS
from reservoir.reservoir import Reservoir
from reservoir.tasks.pictures import patches
from reservoir.tasks.task import Task, Vectors
from tests.helpers import outcome
from tests.reservoir.models import make_fpt

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from model_types import VARIANTS, results_of, tiny_config

WIDTH, DEPTH, VOCABULARY = 16, 3, 40
TASK = Task(name="vectors", form=Vectors(4), max_tokens=7, classes=2)

SETTINGS = {
    "num_hidden_layers": DEPTH,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {"image_size": 8, "patch_size": 4}
# What else the tiny model of a type needs.
MODELS = {
    "modernbert": {"global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    "gpt_neox": {},
    "olmo2": {},
    "phi3": {},
    "mamba2": {"num_heads": 4, "state_size": 8, "n_groups": 1},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "deberta-v2": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "camembert": {},
}
# Models without input embeddings, and parts of models.
OTHERS = {
    "esmc": {},
    "electra": {"embedding_size": 8},  # which it projects to the width of its blocks
    "dinov3_vit": VISION | {"num_register_tokens": 2},
    "siglip_vision_model": VISION,
    "siglip_text_model": {},
    "wavlm": {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2}
    | {"num_conv_pos_embeddings": 6, "num_conv_pos_embedding_groups": 2},
    "whisper": {"d_model": WIDTH, "encoder_layers": DEPTH, "decoder_layers": 2, "max_source_positions": 10}
    | {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 4}
    | {"decoder_start_token_id": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24},
    "bart": {"d_model": WIDTH, "encoder_layers": DEPTH, "decoder_layers": 2, "encoder_ffn_dim": 24}
    | {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
    "mt5": {"d_model": WIDTH, "num_layers": DEPTH, "num_heads": 2, "d_kv": 8, "d_ff": 24},
}
# Models with a setting that a single test is about.
WITH_ONE_TEST = {
    "big_bird": {"block_size": 4, "num_random_blocks": 1},
    "minicpm3": {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
}
# What runs of models that have several parts, and the part of their configuration.
HALVES = {
    "siglip": ("vision_model", "vision_config", VISION),
    "clip": ("vision_model", "vision_config", VISION),
    "gemma3": ("language_model", "text_config", {}),
    "bart": ("encoder", "", {}),
    "mt5": ("encoder", "", {}),
    "whisper": ("encoder", "", {}),
}
# The families that most people ask for. Qwen3, Gemma 3 and Llama are described by hand.
NAMED = ("qwen3", "gemma3_text", "llama", "modernbert", "dinov3_vit", "siglip_vision_model", "gpt_neox", "olmo2")
NAMED += ("phi3", "mamba2", "esmc", "gpt_oss")


def save(kind, folder):
    """Write a tiny model of a type, with random weights of all its tensors."""
    torch.manual_seed(0)
    config_class = transformers.CONFIG_MAPPING[kind]
    accepted = config_class().to_dict() | {"head_dim": 0}
    settings = {name: value for name, value in SETTINGS.items() if name in accepted}
    settings |= (MODELS | OTHERS | WITH_ONE_TEST).get(kind, {})
    if kind in HALVES and HALVES[kind][1]:
        _, name, more = HALVES[kind]
        settings = {"text_config": SETTINGS, "vision_config": SETTINGS | VISION} | {name: SETTINGS | more}
    if kind == "siglip_text_model":  # a class outside the list of models without a head
        model = transformers.SiglipTextModel(config_class(**settings))
    else:
        model = transformers.AutoModel.from_config(config_class(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    return save(request.param, tmp_path_factory.mktemp("generic") / request.param)


def test_layers_and_features_are_those_of_transformers_with_and_without_padding(folder):
    backbone = load_backbone(str(folder), "pretrained")
    fpt = make_fpt(TASK, backbone, seed=1)
    x, lengths = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(3)), torch.tensor([7, 4, 6])
    columns = [Column(layer, "mean") for layer in backbone.layers if layer != f"block{DEPTH:02d}"]
    features = fpt.features(x, lengths, columns)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    for row, length in enumerate(lengths):
        with torch.inference_mode():
            embeds = fpt.inputs(x[row : row + 1, :length])
            output = model(inputs_embeds=embeds, output_hidden_states=True, use_cache=False)
        states = output.hidden_states[:-1]
        first = 0 if model.config.model_type != "mamba2" else 1
        named = dict(zip(backbone.layers[first:-1], states, strict=False)) | {"final": output.last_hidden_state}
        for column in columns:
            if column.layer in named:
                expected = named[column.layer].mean(1)
                torch.testing.assert_close(features[column][row], expected, atol=1e-5, rtol=1e-4)


def test_causal_models_are_recognised(folder):
    kinds = {"gpt_neox", "olmo2", "phi3", "mamba2", "gpt_oss", "qwen3_moe", "opt"}
    assert load_backbone(str(folder), "pretrained").causal == (folder.name in kinds)


def test_a_text_enters_by_the_token_embeddings(folder):
    backbone, words = load_native(str(folder))
    tokens = torch.randint(20, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(input_ids=tokens, use_cache=False).last_hidden_state
        torch.testing.assert_close(backbone(words(tokens)), expected, atol=1e-5, rtol=1e-4)


def own_input(model, tokens=6):
    """Return random input of a model of transformers, by the name of its argument."""
    draw = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        width = 12 if model.config.model_type == "dinov3_vit" else 8  # it has relative positions
        return {"pixel_values": torch.randn(2, 3, 8, width, generator=draw)}
    return {"input_ids": torch.randint(20, VOCABULARY, (2, tokens), generator=draw)}


def recorded_layers(backbone, embeds):
    with torch.inference_mode():
        return dict(backbone.run_layers(embeds))


@pytest.mark.parametrize("kind", NAMED)
def test_hidden_states_of_named_families_are_those_of_transformers(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    native = own_input(model)
    with torch.inference_mode():
        options = {} if "pixel_values" in native else {"use_cache": False}
        output = model(**native, output_hidden_states=True, **options)
    backbone, front_end = load_native(str(folder))
    (values,) = native.values()
    if "pixel_values" in native:
        front_end.set_pixels(tuple(values.shape[1:]))
        values = torch.from_numpy(patches(values.permute(0, 2, 3, 1).numpy(), 4))
    with torch.inference_mode():
        embeds = front_end(values)
    layers = recorded_layers(backbone, embeds)
    first = 1 if kind == "mamba2" else 0  # whose hidden states begin after the first block
    expected = dict(zip(backbone.layers[first:-1], output.hidden_states[:-1], strict=False))
    assert len(expected) >= DEPTH
    for layer, hidden in (expected | {"final": output.last_hidden_state}).items():
        torch.testing.assert_close(layers[layer], hidden, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", OTHERS)
def test_vectors_take_the_place_of_what_enters_the_first_block(kind, tmp_path):
    backbone = load_backbone(str(save(kind, tmp_path / kind)), "pretrained")
    embeds = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(2))
    layers = recorded_layers(backbone, embeds)
    assert [hidden.shape for hidden in layers.values()] == [(2, 7, WIDTH)] * (DEPTH + 2)
    # The order of tokens always counts, and without padding each row is computed as it is alone.
    swapped = recorded_layers(backbone, embeds.flip(1))["final"].flip(1)
    assert (swapped - layers["final"]).abs().max() > 1e-3
    torch.testing.assert_close(layers["final"][:1], recorded_layers(backbone, embeds[:1])["final"])
    if backbone.can_pad:
        with torch.inference_mode():
            padded = backbone(embeds, torch.tensor([7, 4]))[1, :4]
            torch.testing.assert_close(padded, backbone(embeds[1:, :4])[0], atol=1e-5, rtol=1e-4)
    else:
        assert "equal length" in outcome(backbone, embeds, torch.tensor([7, 4]))


@pytest.mark.parametrize("kind", HALVES)
def test_one_part_of_a_model_runs_and_nothing_else_is_kept(kind, tmp_path, monkeypatch):
    part, settings, _ = HALVES[kind]
    folder = save(kind, tmp_path / kind)
    whole = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    build_for_names = Mock(side_effect=names_with_heads)
    monkeypatch.setattr("reservoir.backbones.loading.names_with_heads", build_for_names)
    backbone = load_backbone(str(folder), "pretrained")
    assert build_for_names.call_count == 1  # not once for each tensor of the other part
    expected = dict(whole.get_submodule(part).named_parameters())
    parameters = {name.removeprefix("model."): value for name, value in backbone.model.named_parameters()}
    assert set(parameters) >= {name for name in expected if "embed_tokens" not in name}
    for name, parameter in parameters.items():
        assert torch.equal(parameter, expected[name]), name
    assert backbone.depth == (getattr(whole.config, settings) if settings else whole.config).num_hidden_layers
    assert weights_digest(load_backbone(str(folder), "pretrained", depth=1)) != weights_digest(backbone)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [1, None])
def test_need_of_positions_depends_on_neither_seed_nor_depth(seed, depth, tmp_path):
    for kind, adds_positions in [("dinov3_vit", False), ("siglip_vision_model", True)]:
        sizes = SETTINGS | VISION | {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
        settings = {name: sizes[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", *VISION)}
        transformers.CONFIG_MAPPING[kind](**settings).save_pretrained(tmp_path / kind)
        backbone = load_backbone(str(tmp_path / kind), "random", seed, depth)
        assert backbone.model.adds_positions is adds_positions


def test_an_encoder_that_was_saved_alone_is_that_of_its_model(tmp_path):
    whole = save("mt5", tmp_path / "whole")
    transformers.MT5EncoderModel.from_pretrained(whole).save_pretrained(tmp_path / "alone")
    alone, expected = (load_backbone(str(folder), "pretrained") for folder in (tmp_path / "alone", whole))
    embeds = torch.randn(2, 5, WIDTH)
    assert torch.equal(alone(embeds), expected(embeds))


def test_depth_and_seed_decide_what_is_drawn(folder):
    one, again, other = (load_backbone(str(folder), "random", seed, depth=1) for seed in (1, 1, 2))
    assert one.depth == 1 and weights_digest(one) == weights_digest(again) != weights_digest(other)
    assert torch.isfinite(one(torch.randn(2, 5, WIDTH))).all()
    pretrained = load_backbone(str(folder), "pretrained", depth=2)
    whole = load_backbone(str(folder), "pretrained")
    for name, parameter in pretrained.blocks.named_parameters():
        assert torch.equal(parameter, whole.blocks.get_parameter(name)), name


@pytest.fixture
def memory_of_nan():
    """Let torch fill new memory with NaN, so that a tensor without a value shows."""
    torch.use_deterministic_algorithms(True)  # `torch.utils.deterministic.fill_uninitialized_memory` is set by default
    yield
    torch.use_deterministic_algorithms(False)


# Their classes draw parameters that have several axes and other names than weights, or the decay of a recurrent state.
@pytest.mark.parametrize("kind", ["inkling_text", "hy_v4_vl_text", "qwen3_5_text", "olmo_hybrid", "recurrent_gemma"])
def test_all_that_a_class_draws_is_drawn_from_the_seed(kind, memory_of_nan, tmp_path):
    variant = VARIANTS[2 if kind == "hy_v4_vl_text" else 1]  # whose rotated channels fit the heads
    tiny_config(transformers.CONFIG_MAPPING[kind], variant).save_pretrained(tmp_path)
    drawn = load_backbone(str(tmp_path), "random")
    for name, parameter in drawn.named_parameters():
        assert parameter.isfinite().all(), name
        if name.endswith((".fn", ".proj")):
            assert 0 < parameter.std() < 0.1, name
    assert weights_digest(load_backbone(str(tmp_path), "random")) == weights_digest(drawn)


@pytest.mark.filterwarnings("error")
def test_statistics_of_a_parameter_without_values_raise_no_warning(tmp_path):
    settings = {name: SETTINGS[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")}
    config = transformers.DINOv3ViTConfig(**settings, **VISION, intermediate_size=24, num_register_tokens=0)
    transformers.DINOv3ViTModel(config).save_pretrained(tmp_path)
    drawn = load_backbone(str(tmp_path), "statistics")
    assert any(not parameter.numel() for parameter in drawn.parameters())


def test_a_model_that_changes_the_width_after_its_blocks_is_refused(tmp_path):
    settings = SETTINGS | MODELS["opt"] | {"word_embed_proj_dim": WIDTH // 2}
    transformers.OPTModel(transformers.OPTConfig(**settings)).save_pretrained(tmp_path)
    assert "not as wide as its blocks" in outcome(load_backbone, str(tmp_path), "pretrained")


def test_attention_says_that_its_place_is_not_known(tmp_path):
    backbone = load_backbone(str(save("gpt_neox", tmp_path)), "pretrained")
    message = outcome(attention_maps, backbone, torch.zeros(1, 4, WIDTH), torch.tensor([4]))
    assert "where its maps are is not known" in message


def test_a_parameter_that_is_not_finite_is_refused(tmp_path, monkeypatch):
    folder = save("olmo2", tmp_path)
    model = transformers.models.olmo2.modeling_olmo2.Olmo2RMSNorm
    build = model.__init__

    def with_nan(self, *arguments, **named):
        build(self, *arguments, **named)
        with torch.no_grad():
            self.weight.fill_(torch.nan)

    monkeypatch.setattr(model, "__init__", with_nan)
    monkeypatch.setattr(model, "reset_parameters", lambda self: None, raising=False)
    monkeypatch.setattr(transformers.PreTrainedModel, "_init_weights", lambda self, module: None)
    assert "to values that are not finite" in outcome(load_backbone, str(folder), "random")


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("detr", {}, "contains another model|an encoder with a decoder"),
        ("patchtst", {}, "takes past_values"),
        ("superpoint", {}, "no model without a head"),
    ],
)
def test_models_of_other_kinds_are_refused_with_the_reason(kind, settings, reason, tmp_path):
    config = {"model_type": kind, **settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = outcome(find, str(tmp_path))
    assert any(part in message for part in reason.split("|")), message


@pytest.mark.parametrize("kind", ["esmc", "minicpm3"])
def test_fewer_blocks_scale_what_they_add_as_those_of_the_whole_model(kind, tmp_path):
    folder = save(kind, tmp_path)
    embeds = torch.randn(2, 5, WIDTH)
    whole, cut = (load_backbone(str(folder), "pretrained", depth=depth) for depth in (None, 2))
    for layer in ("block01", "block02"):
        expected, found = (dict(model.run_layers(embeds, layers=[layer]))[layer] for model in (whole, cut))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_sparse_attention_is_full_attention_from_the_beginning(tmp_path):
    backbone = load_backbone(str(save("big_bird", tmp_path)), "pretrained")
    assert backbone.config.attention_type == backbone.model.attention_type == "original_full"
    model = transformers.BigBirdModel.from_pretrained(tmp_path, attention_type="original_full")
    embeds = torch.randn(2, 30, WIDTH)  # more than its sparse attention needs
    with torch.no_grad():
        expected = model(inputs_embeds=embeds).last_hidden_state
        torch.testing.assert_close(backbone(embeds), expected, atol=1e-5, rtol=1e-5)


def test_rows_of_several_lengths_share_no_batch_if_the_longest_decides_their_positions(tmp_path):
    assert load_backbone(str(save("phi3", tmp_path)), "pretrained").can_pad
    config = json.loads((tmp_path / "config.json").read_text())
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    scaling = factors | {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    config |= {"rope_parameters": scaling, "original_max_position_embeddings": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    backbone = load_backbone(str(tmp_path), "pretrained")
    embeds, lengths = torch.randn(2, 20, WIDTH), torch.tensor([20, 12])
    assert not backbone.can_pad and "equal length" in outcome(backbone, embeds, lengths)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("olmo2", {"attn_implementation": "someone/kernels"}, "asks for code"),
        ("olmo2", {"num_hidden_layers": 1001}, "more than 1,000"),
        ("qwen3_moe", {"num_experts": 10**9}, "more than 1,000"),
        ("gemma3", {"vision_config": {"num_hidden_layers": 1001}}, "more than 1,000"),
        ("gemma3n", {}, "contains another model"),
    ],
)
def test_what_a_configuration_asks_for_is_checked_before_its_model_is_built(
    kind, settings, reason, tmp_path, monkeypatch
):
    monkeypatch.setattr("reservoir.backbones.generic._find_parts", lambda *_: pytest.fail("the model was built"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **settings}))
    assert reason in outcome(find, str(tmp_path))


def test_a_configuration_inside_another_may_not_ask_for_code_either(tmp_path, monkeypatch):
    config = transformers.Gemma3Config()
    config.text_config._attn_implementation = "someone/kernels"
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: config)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    assert "asks for code" in outcome(find, str(tmp_path))


@pytest.fixture
def halves(folder, tmp_path):
    """Return a copy of a model in bfloat16, as today's models are published."""
    return in_bfloat16(folder, tmp_path)


def in_bfloat16(folder, tmp_path):
    """Write a copy of a model in bfloat16 to another folder, and return this one."""
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor.bfloat16() for name, tensor in stored.items()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    return tmp_path


def matrices(backbone):
    return [module.weight for module in backbone.blocks.modules() if isinstance(module, torch.nn.Linear)]


def test_a_model_that_is_stored_in_half_precision_stays_in_it(halves):
    exact = load_backbone(str(halves), "pretrained")
    own = load_backbone(str(halves), "pretrained", own_precision=True)
    assert {weight.dtype for weight in matrices(exact)} == {torch.float32}
    assert {weight.dtype for weight in matrices(own)} == {torch.bfloat16}
    assert (own.causal, own.can_pad) == (exact.causal, exact.can_pad) and weights_digest(own) == weights_digest(exact)
    for weight, expected in zip(matrices(own), matrices(exact), strict=True):
        assert torch.equal(weight.float(), expected)
    column = Column("final", "mean")
    x, lengths = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([7, 4])
    features = {
        compute: load_model(TASK, Reservoir(backbone=str(halves), init="pretrained"), "cpu", compute)
        for compute in PRECISIONS
    }
    expected, *others = (model.fpt.features(x, lengths, [column])[column] for model in features.values())
    assert all(0 < (values - expected).norm() < 0.05 * expected.norm() for values in others)
    _, words = load_native(str(halves), own_precision=True)
    assert next(words.parameters()).dtype == torch.bfloat16


def test_all_in_bfloat16_is_what_transformers_computes_in_bfloat16(folder):
    model = load_model(TASK, Reservoir(backbone=str(folder), init="pretrained"), "cpu", "bfloat16-all")
    embeds = torch.randn(1, 7, WIDTH, generator=torch.Generator().manual_seed(2))
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        expected = theirs(inputs_embeds=embeds.bfloat16(), use_cache=False).last_hidden_state
        assert torch.equal(model.fpt.backbone(embeds), expected.float())


@pytest.mark.parametrize("kind", ["electra", "siglip_vision_model", "wavlm"])
def test_models_without_input_embeddings_run_in_bfloat16_or_are_refused(kind, tmp_path, monkeypatch):
    folder = str(save(kind, tmp_path / kind))
    settings = Reservoir(backbone=folder, init="pretrained")
    exact, rounded = (load_model(TASK, settings, "cpu", compute) for compute in ("float32", "bfloat16-all"))
    embeds = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        values, expected = rounded.fpt.backbone(embeds), exact.fpt.backbone(embeds)
    assert 0 < (values - expected).norm() < 0.05 * expected.norm()
    monkeypatch.setattr("reservoir.backbones.generic_checks.HALF_TOLERANCE", 0)
    assert "does not run in bfloat16" in outcome(load_model, TASK, settings, "cpu", "bfloat16-all")


def test_a_model_that_half_precision_changes_becomes_float32(halves, monkeypatch):
    monkeypatch.setattr("reservoir.backbones.generic_checks.HALF_TOLERANCE", 0)
    model = load_model(TASK, Reservoir(backbone=str(halves), init="pretrained"), "cpu", "bfloat16")
    assert model.compute == "float32"
    assert {weight.dtype for weight in matrices(model.fpt.backbone)} == {torch.float32}


def test_a_second_test_in_float32_finds_the_same_need_of_positions(tmp_path, monkeypatch):
    (tmp_path / "half").mkdir()
    folder = in_bfloat16(save("electra", tmp_path / "electra"), tmp_path / "half")
    assert load_backbone(str(folder), "pretrained").model.adds_positions
    # The first test finds that half precision changes the layers.
    monkeypatch.setattr("reservoir.backbones.generic_checks.HALF_TOLERANCE", 0)
    backbone = load_backbone(str(folder), "pretrained", own_precision=True)
    assert not backbone.allows_bfloat16 and backbone.model.adds_positions


def test_a_layer_that_is_not_what_transformers_calls_so_is_refused(tmp_path, monkeypatch):
    folder = save("olmo2", tmp_path / "olmo2")
    model = transformers.models.olmo2.modeling_olmo2.Olmo2Model
    forward = model.forward

    @functools.wraps(forward)
    def with_other_layers(self, *arguments, **named):
        output = forward(self, *arguments, **named)
        if output.hidden_states:
            output.hidden_states = tuple(2 * hidden for hidden in output.hidden_states)
        return output

    monkeypatch.setattr(model, "forward", with_other_layers)
    assert "hidden states" in outcome(load_backbone, str(folder), "pretrained")


@pytest.mark.parametrize(
    ("name", "is_of_head"),
    [
        ("embed_out.weight", True),  # of the class that the configuration names
        ("gpt_neox.embed_out.weight", True),
        ("gpt_neox.embed_in_norm.weight", False),
        ("gpt_neox.layers.0.gate.weight", False),
        ("unusual_head.weight", False),
    ],
)
def test_a_tensor_that_the_model_lacks_is_refused_unless_it_is_of_a_head(name, is_of_head, tmp_path):
    folder = save("gpt_neox", tmp_path / "gpt_neox")
    expected = load_backbone(str(folder), "pretrained")
    tensors = {f"gpt_neox.{key}": value for key, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors | {name: torch.ones(20, WIDTH)}, folder / "model.safetensors", metadata={"format": "pt"})
    if is_of_head:
        assert weights_digest(load_backbone(str(folder), "pretrained")) == weights_digest(expected)
    else:
        assert name in outcome(load_backbone, str(folder), "pretrained")


def test_a_head_that_only_the_named_class_has_is_no_part_of_the_model(tmp_path):
    folder = save("splinter", tmp_path / "splinter")
    with_head = transformers.SplinterForQuestionAnswering.from_pretrained(folder)
    with_head.save_pretrained(tmp_path / "with_head")
    names = load_file(tmp_path / "with_head" / "model.safetensors")
    assert any(name.startswith("splinter_qass.") for name in names)  # no usual name of a head
    loaded = load_backbone(str(tmp_path / "with_head"), "pretrained")
    assert weights_digest(loaded) == weights_digest(load_backbone(str(folder), "pretrained"))
    config = json.loads((tmp_path / "with_head" / "config.json").read_text())
    config["architectures"] = ["SplinterModel"]
    (tmp_path / "with_head" / "config.json").write_text(json.dumps(config))
    assert "extra weight splinter_qass" in outcome(load_backbone, str(tmp_path / "with_head"), "pretrained")


def test_masks_that_a_model_builds_count_as_memory():
    def sized(positions):
        attention = {"attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 2}
        return transformers.GPTNeoConfig(hidden_size=WIDTH, max_position_embeddings=positions, **attention)

    family = generic_family(sized(300))
    masks = sum(buffer.nbytes for buffer in family.loader.build(sized(300)).buffers())
    assert family.loader.size(sized(300)).buffer_bytes == masks >= 2 * 300**2
    family = generic_family(sized(2**22))
    assert family.loader.size(sized(2**22)).parameters < 2**27
    assert "of memory" in outcome(check_memory, "x", family, sized(2**22), torch.float32)


def test_a_model_that_calls_its_blocks_in_another_way_is_refused(tmp_path, monkeypatch):
    folder = save("olmo2", tmp_path / "olmo2")
    layer = transformers.models.olmo2.modeling_olmo2.Olmo2DecoderLayer
    monkeypatch.setattr(layer, "__call__", layer.forward, raising=False)
    assert "one after the other" in outcome(load_backbone, str(folder), "pretrained")


def test_a_row_with_fewer_tokens_than_a_model_reads_is_named(tmp_path):
    settings = Reservoir(backbone=str(save("audio-spectrogram-transformer", tmp_path)), init="pretrained")
    model = load_model(TASK, settings, "cpu", "float32")
    assert length_limits(model) == (2, np.inf)
    message = outcome(check_lengths, model, np.array([5, 2, 1]), "row")
    assert "row 2: a sequence of 1 token is too short" in message and "which needs 2" in message
    check_lengths(model, np.array([5, 2]), "row")


def test_rows_of_different_lengths_never_share_a_batch_without_padding():
    lengths = np.array([5, 3, 5, 4, 3, 5])
    rows = list(token_batches(lengths, lengths, most_tokens=100, max_padding=None))
    assert sorted(np.concatenate(rows)) == [*range(6)]
    assert all(len({*lengths[batch]}) == 1 for batch in rows)


def test_a_model_that_sees_padding_gets_rows_of_equal_length(tmp_path, monkeypatch):
    folder = save("olmo2", tmp_path / "olmo2")
    model = transformers.models.olmo2.modeling_olmo2.Olmo2Model
    forward = model.forward

    @functools.wraps(forward)
    def with_mean(self, *arguments, **named):
        output = forward(self, *arguments, **named)
        output.last_hidden_state = output.last_hidden_state + named["inputs_embeds"].mean(1, keepdim=True)
        return output

    monkeypatch.setattr(model, "forward", with_mean)
    monkeypatch.setattr("reservoir.backbones.generic._PARTS", {})
    backbone = load_backbone(str(folder), "pretrained")
    assert not backbone.can_pad
    assert "equal length" in outcome(backbone, torch.zeros(2, 4, WIDTH), torch.tensor([4, 3]))
    # Half precision changes the layers, so that the model is tested a second time, in float32.
    (tmp_path / "half").mkdir()
    half = in_bfloat16(folder, tmp_path / "half")
    monkeypatch.setattr("reservoir.backbones.generic_checks.HALF_TOLERANCE", 0)
    backbone = load_backbone(str(half), "pretrained", own_precision=True)
    assert not backbone.can_pad and not backbone.allows_bfloat16


# Every model type of transformers runs with a tiny model, or is listed with the reason why it does not.


RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "RESULTS.md"
GOAL = 350  # model types that run


def listed() -> set[str]:
    """Return the model types that RESULTS.md lists with a reason why they do not run."""
    text = RESULTS.read_text().partition("| reason | model types |")[2]
    rows = re.findall(r"^\| .* \| ([\w ,.-]+) \|$", text.partition("<!-- end -->")[0], re.MULTILINE)
    return {kind.strip() for row in rows for kind in row.split(",")}


def test_types_that_do_not_run_are_listed():
    assert {"albert", "swin", "got_ocr2_vision"} <= listed()
    assert not listed() & {"llama", "modernbert", "dinov3_vit"}
    assert dict(results_of(["instructblip", "llama", "swin"])) == {
        "instructblip": "runs: text, language_model",
        "llama": "own family",
        "swin": "refused: backbone 'folder': its configuration sets attention heads to [3, 6, 12, 24], and sizes that "
        "differ between stages are not supported; choose another model",
    }


@pytest.mark.slow
def test_every_model_type_runs_or_is_listed():
    results = dict(results_of(sorted(transformers.CONFIG_MAPPING.keys())))
    others = {kind for kind, text in results.items() if not text.startswith(("runs", "own family"))}
    assert others <= listed()
    assert len(results) - len(others) >= GOAL


def test_a_limit_of_tokens_is_found_under_each_of_its_names():
    sizes = {"d_model": WIDTH, "vocab_size": VOCABULARY}

    def max_tokens(kind, **limit):
        config = transformers.CONFIG_MAPPING[kind](**sizes, **limit)
        return generic_family(config).shape(config).max_tokens

    assert max_tokens("mpt", n_layers=2, n_heads=2, max_seq_len=24) == 24
    # Files of T5 have a number of positions that the model does not use: its positions are relative.
    assert max_tokens("mt5", num_layers=2, num_heads=2, d_kv=8, n_positions=16) is None
