"""Trained parameters, compared with lists written by hand for every family."""

import pytest
import torch

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.tasks.task import Task, Vectors
from reservoir.training.groups import default_groups, frozen_digest, parse_groups, set_dropout, trained_layer, unfreeze
from reservoir.training.steps import row_losses
from tests.reservoir.models import save

TASK = Task(name="t", form=Vectors(3), max_tokens=8, classes=4)
ENDS = ["inputs.map.weight", "inputs.map.bias", "output.weight", "output.bias"]


def affine(*norms):
    """Return the names of the parameters of norms."""
    return [f"{norm}.{end}" for norm in norms for end in ("weight", "bias")]


# Of block 0 (and, for the second entry, outside of the blocks): norms and positions, by the family's own names.
BLOCK = {
    "gpt2": ("h.{}.", affine("ln_1", "ln_2")),
    "bert": ("encoder.layer.{}.", affine("attention.output.LayerNorm", "output.LayerNorm")),
    "distilbert": ("transformer.layer.{}.", affine("sa_layer_norm", "output_layer_norm")),
    "t5": ("encoder.block.{}.", ["layer.0.layer_norm.weight", "layer.1.layer_norm.weight"]),
    "vit": ("layers.{}.", affine("layernorm_before", "layernorm_after")),
    "llama": ("layers.{}.", ["input_layernorm.weight", "post_attention_layernorm.weight"]),
    "lstm": ("blocks.{}.cell.", affine("input_norm", "hidden_norm", "cell_norm")),
    "esn": ("blocks.{}.", []),
    "wav2vec2": ("encoder.layers.{}.", affine("layer_norm", "final_layer_norm")),
    "hubert": ("encoder.layers.{}.", affine("layer_norm", "final_layer_norm")),
    "dinov2": ("encoder.layer.{}.", affine("norm1", "norm2")),
    "esm": ("encoder.layer.{}.", affine("attention.LayerNorm", "LayerNorm")),
}
for same in ("roberta", "xlm-roberta", "longformer"):
    BLOCK[same] = BLOCK["bert"]
_MORE = ("pre_feedforward_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm")
BLOCK["gemma3_text"] = ("layers.{}.", BLOCK["llama"][1] + [f"{norm}.weight" for norm in _MORE])
BLOCK["lstm-star"] = BLOCK["lstm"]
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
OUTSIDE["llama"] = OUTSIDE["gemma3_text"] = ["norm.weight"]


def model(kind, folder):
    return FPT(TASK, load_backbone(str(save(kind, folder / kind)), "random"))


@pytest.mark.parametrize("kind", BLOCK)
def test_fpt_trains_the_listed_parameters(kind, tmp_path):
    fpt = model(kind, tmp_path)
    pattern, names = BLOCK[kind]
    inside = [pattern.format(i) + name for i in range(fpt.backbone.depth) for name in names]
    expected = ENDS + [f"backbone.model.{name}" for name in inside + OUTSIDE.get(kind, [])]
    trained = unfreeze(fpt, default_groups(fpt.backbone))
    assert sorted(trained) == sorted(expected)
    assert sorted(n for n, p in fpt.named_parameters() if p.requires_grad) == sorted(expected)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "llama", "lstm-star", "esn"])
def test_only_trained_parameters_get_gradients_and_change(kind, tmp_path):
    fpt = model(kind, tmp_path)
    groups = [name for name in ("attention", "recurrent", "output") if name in (*fpt.backbone.groups, "output")]
    trained = unfreeze(fpt, groups)
    before, kept = {n: p.clone() for n, p in fpt.named_parameters()}, frozen_digest(fpt)
    optimizer = torch.optim.Adam([p for p in fpt.parameters() if p.requires_grad], lr=0.01)
    logits = fpt.train()(torch.randn(3, 8, 3), torch.tensor([8, 5, 3]))
    row_losses(logits, torch.zeros(3, 1, 1, dtype=torch.int64), 4).mean().backward()
    assert {n for n, p in fpt.named_parameters() if p.grad is not None} <= set(trained)
    optimizer.step()
    moved = {n for n, p in fpt.named_parameters() if not torch.equal(p, before[n])}
    assert "output.weight" in moved and len(moved) > 2 and moved <= set(trained)
    assert frozen_digest(fpt) == kept
    with torch.no_grad():
        next(p for p in fpt.parameters() if not p.requires_grad).view(-1)[0] += 1e-3
    assert frozen_digest(fpt) != kept


def test_groups_of_gpt2(tmp_path):
    fpt = model("gpt2", tmp_path)
    assert unfreeze(fpt, ["output"]) == ("output.weight", "output.bias")
    assert set(unfreeze(fpt, ["last-attention"])) == {
        f"backbone.model.h.2.attn.{part}.{end}" for part in ("c_attn", "c_proj") for end in ("weight", "bias")
    }
    assert len(unfreeze(fpt, ["all"])) == len(list(fpt.parameters()))
    assert {n.split(".")[4] for n in unfreeze(fpt, ["feedforward"])} == {"mlp"}


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
    fpt = model("gpt2", tmp_path)
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
    with pytest.raises(InputError, match="--train norms: no such group; choose among input, output"):
        parse_groups("input, norms")
    with pytest.raises(InputError, match="name at least one"):
        parse_groups(" ,")
    with pytest.raises(InputError, match="--train layernorm: this esn has no such parameters; it has input, output"):
        unfreeze(model("esn", tmp_path), ["layernorm"])
    assert parse_groups("input,output,input") == ("input", "output")
