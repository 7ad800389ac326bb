"""Attention maps equal those of transformers on the real tokens."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from reservoir.backbones import attention_maps, load_backbone
from reservoir.errors import InputError
from tests.reservoir.models import MODELS, PIXELS, SOUNDS, WIDTH, save

LENGTHS = torch.tensor([7, 4])
EMBEDS = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "longformer"])
def test_attention_maps_equal_those_of_transformers(kind, tmp_path):
    from transformers import AutoModel, T5EncoderModel

    folder = save(kind, tmp_path / kind)
    backbone = load_backbone(str(folder), "pretrained")
    maps = attention_maps(backbone, EMBEDS, LENGTHS, layer=2)
    if kind in SOUNDS:  # transformers' own takes samples alone
        theirs, name = partial(_of_encoder, backbone.model.encoder), "hidden_states"
        backbone.model.set_attn_implementation("eager")
    elif kind in PIXELS:  # transformers' own takes images alone: its layers are walked with what enters them here
        theirs, name = backbone.model, "pixel_values"
        theirs.set_attn_implementation("eager")
    else:
        made = (T5EncoderModel if kind == "t5" else AutoModel).from_pretrained(folder, attn_implementation="eager")
        theirs, name = made.eval(), "inputs_embeds"
    for row, n in enumerate(LENGTHS.tolist()):
        alone = theirs(**{name: EMBEDS[row : row + 1, :n]}, output_attentions=True).attentions[1][0]
        torch.testing.assert_close(maps[row, :, :n, :n], alone, atol=1e-6, rtol=1e-5)
    for row, n in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(maps[row, :, :n].sum(-1), torch.ones(maps.shape[1], n))
        assert not maps[row, :, n:].any() and not maps[row, :, :, n:].any()


def _of_encoder(encoder, hidden_states, output_attentions):
    maps = []
    handles = [each.attention.register_forward_hook(lambda _m, _i, out: maps.append(out[1])) for each in encoder.layers]
    encoder(hidden_states.clone())
    for handle in handles:
        handle.remove()
    return SimpleNamespace(attentions=maps)


def test_attention_maps_leave_the_model_unchanged(tmp_path):
    backbone = load_backbone(str(save("llama", tmp_path / "llama")), "pretrained")
    before = backbone(EMBEDS, LENGTHS)
    attention_maps(backbone, EMBEDS, LENGTHS, layer=1)
    assert backbone.model.config._attn_implementation == "sdpa"
    assert torch.equal(backbone(EMBEDS, LENGTHS), before)


def test_models_without_attention_maps_are_refused(tmp_path):
    with pytest.raises(InputError, match="esn has no attention map"):
        attention_maps(load_backbone(f"esn:units={WIDTH}"), EMBEDS, LENGTHS)
    backbone = load_backbone(str(save("gpt2", tmp_path / "gpt2")))
    for layer in (0, 4):
        with pytest.raises(InputError, match="blocks 1 to 3"):
            attention_maps(backbone, EMBEDS, LENGTHS, layer=layer)
