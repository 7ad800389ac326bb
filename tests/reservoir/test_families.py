"""For every family, each layer and pooling equals a direct computation, and the trained parameters equal a list."""

import itertools
import json

import numpy as np
import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.backbones.weights import frozen_unchanged
from reservoir.column import Column
from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.pooling import Last
from reservoir.tasks.task import Task, Vectors
from reservoir.training.steps import row_losses
from reservoir.training.trainable import default_groups, set_dropout, trained_layer, unfreeze
from tests.reservoir.models import (
    KINDS,
    MODELS,
    PIXELS,
    RECURRENT,
    SOUNDS,
    WIDTH,
    hand_run,
    hidden_states,
    layer_names,
    make_fpt,
    save,
)

TOKENS = 12
LENGTHS = (12, 9, 2, 12, 5)
READOUT_TOKENS = 2
POOLINGS = ("last", "mean", "max", "first", "segments8", "all")
TASK = Task(name="t", form=Vectors(5), max_tokens=TOKENS, classes=3, readout_tokens=READOUT_TOKENS)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return save(kind, tmp_path_factory.mktemp("families") / kind)


@pytest.fixture(scope="module")
def model(folder):
    return make_fpt(TASK, load_backbone(str(folder), "pretrained", seed=5), seed=3)


@pytest.fixture(scope="module")
def batch():
    lengths = torch.tensor(LENGTHS)
    x = torch.randn(5, TOKENS, 5, generator=torch.Generator().manual_seed(1))
    x[torch.arange(TOKENS) >= lengths[:, None]] = 7.0  # padding must have no influence
    return x, lengths


@pytest.fixture(scope="module")
def by_hand(kind, folder, model, batch):
    x, lengths = batch
    positions = getattr(getattr(model.backbone.model, "embeddings", None), "position_embeddings", None)
    rows = [x[row, :n] @ model.inputs.map.weight.T.detach() for row, n in enumerate(lengths.tolist())]
    return [hand_run(kind, folder, row, positions) for row in rows]


def hand_pool(h, pooling):
    """Pool one unpadded sequence (tokens, width) with NumPy."""
    n = len(h)
    if pooling == "last":
        return h[-READOUT_TOKENS:]
    if pooling == "all":
        return np.concatenate([h, np.zeros((TOKENS - n, h.shape[1]), h.dtype)])
    if pooling == "segments8":
        bounds = [i * n // 8 for i in range(9)]
        return np.concatenate([h[a : max(b, a + 1)].mean(0) for a, b in itertools.pairwise(bounds)])[None]
    return {"mean": h.mean(0), "max": h.max(0), "first": h[0]}[pooling][None]


def all_columns(model):
    return [Column(layer, pooling) for layer in model.backbone.layers for pooling in POOLINGS]


def test_features_equal_a_model_run_by_hand(kind, model, batch, by_hand):
    assert list(model.backbone.layers) == layer_names(kind)
    features = model.features(*batch, all_columns(model))
    for column, values in features.items():
        for row, states in enumerate(by_hand):
            expected = hand_pool(states[column.layer], column.pooling)
            np.testing.assert_allclose(values[row], expected, atol=1e-5, rtol=1e-5, err_msg=f"{column}, row {row}")


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_vectors_that_enter_a_model_stay_as_they_are(model, lengths):
    draw = torch.Generator().manual_seed(0)
    embeds = torch.randn(len(LENGTHS), TOKENS, model.backbone.width, generator=draw)
    before = embeds.clone()
    with torch.no_grad():
        model.backbone(embeds, None if lengths is None else torch.tensor(lengths))
    assert torch.equal(embeds, before)


def test_a_family_of_causal_models_sees_no_padding_if_its_tokens_see_later_ones(tmp_path):
    folder = save("qwen2", tmp_path / "qwen2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    backbone = load_backbone(str(folder), "pretrained")
    embeds = torch.randn(2, 8, backbone.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        padded = backbone(embeds, torch.tensor([8, 5]))
        alone, shorter = backbone(embeds[1:, :5]), backbone(embeds[1:, :4])
    torch.testing.assert_close(padded[1:, :5], alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(alone[:, :4], shorter, atol=1e-3)


def test_embeddings_alone_run_no_block(model, batch):
    columns, ran = [Column("embed", pooling) for pooling in POOLINGS], []
    whole = model.features(*batch, all_columns(model))
    hooks = [block.register_forward_hook(lambda *_: ran.append(1)) for block in model.backbone.blocks]
    alone = model.features(*batch, columns)
    for hook in hooks:
        hook.remove()
    assert not ran and len(model.backbone.blocks) > 0
    for column in columns:
        assert torch.equal(alone[column], whole[column]), column


@pytest.mark.parametrize("compute", ["bfloat16", "bfloat16-all"])
def test_bfloat16_equals_float32_up_to_rounding(kind, compute, folder, model, batch):
    rounded = make_fpt(TASK, load_backbone(str(folder), "pretrained", seed=5), seed=3)
    rounded.backbone.set_compute(compute)
    columns = all_columns(model)
    exact, rough = model.features(*batch, columns), rounded.features(*batch, columns)
    for column in columns:
        assert rough[column].dtype == torch.float32
        # Each product rounds its factors to 8 bits, and the errors grow through three blocks of large weights.
        assert (rough[column] - exact[column]).norm() < exact[column].norm() * 2**-5, column
    assert (kind in RECURRENT) == torch.equal(rough[Column("final", "mean")], exact[Column("final", "mean")])


def test_all_in_bfloat16_is_what_transformers_computes_in_bfloat16(kind, folder):
    if kind not in MODELS or kind in (*PIXELS, *SOUNDS):
        pytest.skip("transformers does not run this model on vectors")
    embeds = torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    backbone = load_backbone(str(folder), "pretrained")
    backbone.set_compute("bfloat16-all")
    with torch.inference_mode():
        layers = dict(backbone.run_layers(embeds, layers=backbone.layers))
        expected = hidden_states(kind, folder, torch.bfloat16, inputs_embeds=embeds.bfloat16())
    # transformers rounds the steps of this form of GELU one by one. It pads the tokens of a Longformer.
    has_other_gelu = kind in ("gpt2", "t5")
    for (layer, ours), theirs in zip(layers.items(), (states[:, :9] for states in expected), strict=True):
        assert ours.dtype == theirs.dtype == torch.bfloat16
        assert (ours - theirs).norm() <= (theirs.norm() * 2**-6 if has_other_gelu else 0), layer


def test_every_parameter_belongs_to_a_group(model):
    names = [name for name, _ in model.backbone.named_parameters()]
    assert sorted(name for group in model.backbone.groups.values() for name in group) == sorted(names)
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())


def test_depth_keeps_the_first_blocks_and_the_final_norm(kind, folder, model, batch):
    if kind == "esn":
        pytest.skip("an echo state network has one layer")
    cut = make_fpt(TASK, load_backbone(str(folder), "pretrained", seed=5, depth=2), seed=3)
    assert cut.backbone.layers == ("embed", "block01", "block02", "final")
    features = cut.features(*batch, [Column("block02", "all"), Column("final", "all")])
    whole = model.features(*batch, [Column("block02", "all")])[Column("block02", "all")]
    torch.testing.assert_close(features[Column("block02", "all")], whole)
    norm_path = cut.backbone.family.final_norm
    if norm_path:
        real = torch.arange(TOKENS) < batch[1][:, None]
        with torch.no_grad():
            expected = cut.backbone.model.get_submodule(norm_path)(whole)
        torch.testing.assert_close(features[Column("final", "all")][real], expected[real])
    else:
        torch.testing.assert_close(features[Column("final", "all")], whole)


def test_only_the_blocks_below_the_deepest_wanted_layer_run(tiny_gpt2, batch):
    ran, tiny_model = [], make_fpt(TASK, load_backbone(str(tiny_gpt2), "pretrained"), seed=3)
    handles = [
        block.attn.register_forward_pre_hook(lambda _m, _i, n=number: ran.append(n))
        for number, block in enumerate(tiny_model.backbone.blocks, start=1)
    ]
    tiny_model.features(*batch, [Column("block02", "mean"), Column("block01", "last")])
    for handle in handles:
        handle.remove()
    assert ran == [1, 2] and len(tiny_model.backbone.blocks) == 3


def test_losses_of_rows():
    logits, y = torch.randn(5, 2, 3, 4), torch.randint(0, 4, (5, 2, 3))
    losses = row_losses(logits, y, 4)
    for row in range(5):
        each = [-logits[row, t, o].log_softmax(0)[y[row, t, o]] for t in range(2) for o in range(3)]
        torch.testing.assert_close(losses[row], torch.stack(each).mean())
    values = torch.randn(6, 1, 2)
    torch.testing.assert_close(row_losses(values[..., None], values + 2, 0), torch.full((6,), 4.0))


SHORTER = torch.tensor([9, 2, 6])


def run(backbone, last, count):
    """Return the last ``count`` tokens' final states, and the gradient of the embeddings through them."""
    embeds = torch.randn(3, 9, backbone.width, generator=torch.Generator().manual_seed(0)).requires_grad_()
    read = Last().of(HiddenStates(backbone(embeds, SHORTER, last), SHORTER, count))
    (gradient,) = torch.autograd.grad(read.square().sum(), embeds)
    return read.detach(), gradient


@pytest.mark.parametrize("kind", KINDS)
def test_last_tokens_equal_those_of_the_whole_model(kind, tmp_path):
    backbone = load_backbone(str(save(kind, tmp_path / kind)), "pretrained")
    seen = []
    for path in backbone.family.feedforward:
        module = backbone.blocks[-1].get_submodule(path)
        module.register_forward_pre_hook(lambda _module, inputs: seen.append({x.shape[1] for x in inputs}))
    for count in (1, 2):
        for one, other in zip(run(backbone, count, count), run(backbone, None, count), strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    parts = len(backbone.family.feedforward)
    assert bool(parts) == (kind not in (*RECURRENT, "cnn"))
    tokens = -(-9 // backbone.shape.multiple) * backbone.shape.multiple
    assert seen == [*[{1}] * parts, *[{tokens}] * parts, *[{2}] * parts, *[{tokens}] * parts]


TRAINED_TASK = Task(name="t", form=Vectors(3), max_tokens=8, classes=4)
ENDS = ["inputs.map.weight", "inputs.map.bias", "output.weight", "output.bias"]


def affine(*norms):
    """Return the names of the weights and biases of norms."""
    return [f"{norm}.{end}" for norm in norms for end in ("weight", "bias")]


# Prefix of a block's parameters, and its norms and positions (`OUTSIDE`: those outside the blocks), by family.
BLOCK = {
    "gpt2": ("h.{}.", affine("ln_1", "ln_2")),
    "bert": ("encoder.layer.{}.", affine("attention.output.LayerNorm", "output.LayerNorm")),
    "distilbert": ("transformer.layer.{}.", affine("sa_layer_norm", "output_layer_norm")),
    "t5": ("encoder.block.{}.", ["layer.0.layer_norm.weight", "layer.1.layer_norm.weight"]),
    "vit": ("layers.{}.", affine("layernorm_before", "layernorm_after")),
    "llama": ("layers.{}.", ["input_layernorm.weight", "post_attention_layernorm.weight"]),
    "lstm": ("blocks.{}.cell.", affine("input_norm", "hidden_norm", "cell_norm")),
    "esn": ("blocks.{}.", []),
    "cnn": ("blocks.{}.", affine("norm")),
    "wav2vec2": ("encoder.layers.{}.", affine("layer_norm", "final_layer_norm")),
    "hubert": ("encoder.layers.{}.", affine("layer_norm", "final_layer_norm")),
    "dinov2": ("encoder.layer.{}.", affine("norm1", "norm2")),
    "esm": ("encoder.layer.{}.", affine("attention.LayerNorm", "LayerNorm")),
}
BLOCK["mpnet"] = ("encoder.layer.{}.", affine("attention.LayerNorm", "output.LayerNorm"))
for same in ("roberta", "xlm-roberta", "longformer"):
    BLOCK[same] = BLOCK["bert"]
_MORE = ("pre_feedforward_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm")
BLOCK["gemma3_text"] = ("layers.{}.", BLOCK["llama"][1] + [f"{norm}.weight" for norm in _MORE])
BLOCK["lstm-star"], BLOCK["linformer"] = BLOCK["lstm"], BLOCK["gpt2"]
_BERT_OUTSIDE = [
    f"embeddings.{name}"
    for name in ("position_embeddings.weight", "token_type_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
]
OUTSIDE = {
    "gpt2": ["wpe.weight", "ln_f.weight", "ln_f.bias"],
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "longformer"), _BERT_OUTSIDE),
    "distilbert": [name for name in _BERT_OUTSIDE if "token_type" not in name],
    "t5": ["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "encoder.final_layer_norm.weight"],
    "esm": ["encoder.emb_layer_norm_after.weight", "encoder.emb_layer_norm_after.bias"],
    "vit": ["embeddings.position_embeddings", "layernorm.weight", "layernorm.bias"],
    "lstm-star": ["positions"],
}
_CONVOLUTION = ("bias", "parametrizations.weight.original0", "parametrizations.weight.original1")
_POSITIONS = [f"encoder.pos_conv_embed.conv.{name}" for name in _CONVOLUTION]
OUTSIDE["wav2vec2"] = [*_POSITIONS, "encoder.layer_norm.weight", "encoder.layer_norm.bias"]
OUTSIDE["hubert"] = [*_POSITIONS, "final.weight", "final.bias"]
OUTSIDE["dinov2"] = OUTSIDE["vit"]
OUTSIDE["linformer"], OUTSIDE["cnn"] = OUTSIDE["gpt2"], ["norm.weight", "norm.bias"]
OUTSIDE["mpnet"] = [*OUTSIDE["distilbert"], "encoder.relative_attention_bias.weight"]
OUTSIDE["llama"] = OUTSIDE["gemma3_text"] = ["norm.weight"]


def drawn_model(kind, folder):
    folder.mkdir(exist_ok=True)
    return make_fpt(TRAINED_TASK, load_backbone(str(save(kind, folder / kind)), "random"))


@pytest.mark.parametrize("kind", BLOCK)
def test_fpt_trains_the_listed_parameters(kind, tmp_path):
    fpt = drawn_model(kind, tmp_path)
    pattern, names = BLOCK[kind]
    inside = [pattern.format(i) + name for i in range(fpt.backbone.depth) for name in names]
    expected = ENDS + [f"backbone.model.{name}" for name in inside + OUTSIDE.get(kind, [])]
    assert sorted(unfreeze(fpt, default_groups(fpt.backbone))) == sorted(expected)
    assert sorted(n for n, p in fpt.named_parameters() if p.requires_grad) == sorted(expected)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "llama", "lstm-star", "esn", "linformer"])
def test_only_trained_parameters_get_gradients_and_change(kind, tmp_path):
    fpt = drawn_model(kind, tmp_path)
    groups = [name for name in ("attention", "recurrent", "output") if name in (*fpt.backbone.groups, "output")]
    trained = unfreeze(fpt, groups)
    before = {n: p.clone() for n, p in fpt.named_parameters()}
    optimizer = torch.optim.Adam([p for p in fpt.parameters() if p.requires_grad], lr=0.01)
    logits = fpt.train()(torch.randn(3, 8, 3), torch.tensor([8, 5, 3]))
    row_losses(logits, torch.zeros(3, 1, 1, dtype=torch.int64), 4).mean().backward()
    assert {n for n, p in fpt.named_parameters() if p.grad is not None} <= set(trained)
    with frozen_unchanged(fpt):
        optimizer.step()
    moved = {n for n, p in fpt.named_parameters() if not torch.equal(p, before[n])}
    assert "output.weight" in moved and len(moved) > 2 and moved <= set(trained)
    with pytest.raises(RuntimeError, match="frozen tensor has changed"), frozen_unchanged(fpt), torch.no_grad():
        next(p for p in fpt.parameters() if not p.requires_grad).view(-1)[0] += 1e-3


@pytest.mark.parametrize(
    ("groups", "layer"),
    [
        (["output"], "final"),
        (["last-attention", "output"], "block02"),
        (["layernorm"], "embed"),
        (["attention"], "embed"),
        (["positions"], None),
        (["input", "output"], None),
    ],
)
def test_lowest_trained_layer(groups, layer, tmp_path):
    fpt = drawn_model("gpt2", tmp_path)
    unfreeze(fpt, groups)
    assert trained_layer(fpt) == layer
    set_dropout(fpt, 0.25)
    rates = {n: m.p for n, m in fpt.named_modules() if isinstance(m, torch.nn.Dropout)}
    dropped = {name for name, rate in rates.items() if rate}
    above = {None: set(rates), "final": set(), "block02": {n for n in rates if ".h.2." in n}}
    assert dropped == above.get(layer, {n for n in rates if ".h." in n})
    assert set(rates.values()) <= {0.0, 0.25}
    set_dropout(fpt, 0.25, below=True)
    assert {m.p for m in fpt.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}


def test_missing_groups_are_refused(tmp_path):
    for name in ("layernorm", "norms"):
        with pytest.raises(InputError, match=f"--train {name}: not in this esn; it has input, output"):
            unfreeze(drawn_model("esn", tmp_path / name), [name])
