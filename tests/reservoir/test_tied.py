"""With ``--init tied`` the keys equal the queries, which are orthogonal by head; all else is as in ``random``."""

import numpy as np
import pytest
import torch

from reservoir.backbones import describe_weights, load_backbone, weights_digest
from reservoir.backbones.tied import orthonormal_rows
from reservoir.column import Column
from reservoir.readouts.ridge import ridge_by_definition
from reservoir.tasks.bits import BitMemory
from tests.refusals import outcome
from tests.reservoir.models import MODELS, WIDTH, make_fpt, save
from tests.reservoir.test_generic import save as save_generic

HEADS, HEAD_WIDTH = 2, 8  # of the tiny models
KEY = 0xBF9B307B5387281C7293F6AD462E2153  # the first half of the SHA-256 of "0/h.0.attn.c_attn/tied"
GROUPED = ("llama", "smollm3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")  # one head of the keys
SMALL = "gpt2:n_layer=3,n_embd=16,n_head=2,n_positions=20"


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    return save(request.param, tmp_path_factory.mktemp("tied") / request.param)


def queries_and_keys(model):
    """Return the matrices (outputs, width) to queries and keys by name, and the names of these parameters."""
    matrices, names = {}, set()
    for name, parameter in model.named_parameters():
        part, _, kind = name.rpartition(".")
        module = part.rpartition(".")[2]
        if module == "c_attn":
            names.add(name)
            if kind == "weight":
                queries, keys, _values = parameter.T.chunk(3)
                matrices[part] = queries, keys
        elif module in ("q", "query", "q_proj", "q_lin"):
            key_part = part[: -len(module)] + module.replace("query", "key").replace("q", "k")
            names |= {name, f"{key_part}.{kind}"}
            if kind == "weight":
                matrices[part] = parameter, model.get_parameter(f"{key_part}.weight")
    return matrices, names


def test_keys_equal_queries_that_are_orthogonal_by_head_in_every_family(folder):
    model = load_backbone(str(folder), "tied", seed=3).model
    matrices, names = queries_and_keys(model)
    assert len(matrices) == 3
    own_score = HEAD_WIDTH if folder.name == "t5" else HEAD_WIDTH**0.5  # of a token with itself, for W W' = I
    key_heads = 1 if folder.name in GROUPED else HEADS
    for queries, keys in matrices.values():
        assert queries.shape == (HEADS * HEAD_WIDTH, WIDTH) and len(keys) == key_heads * HEAD_WIDTH
        for head in range(HEADS):
            query = queries.unflatten(0, (HEADS, HEAD_WIDTH))[head]
            assert torch.equal(query, keys.unflatten(0, (key_heads, HEAD_WIDTH))[head % key_heads])
            torch.testing.assert_close(query @ query.T, 8 / own_score * torch.eye(HEAD_WIDTH), atol=1e-6, rtol=0)
        if key_heads > 1:
            assert not torch.equal(queries[:HEAD_WIDTH], queries[HEAD_WIDTH:])
    random = load_backbone(str(folder), "random", seed=3).model
    for name, parameter in model.named_parameters():
        if name not in names:
            assert torch.equal(parameter, random.get_parameter(name)), name
        elif name.endswith("bias") and "c_attn" not in name:
            assert not parameter.any(), name


def test_values_and_bias_of_a_fused_projection(tiny_gpt2):
    tied, random = (load_backbone(str(tiny_gpt2), init).blocks[1].attn.c_attn for init in ("tied", "random"))
    assert torch.equal(tied.weight[:, 2 * WIDTH :], random.weight[:, 2 * WIDTH :])
    assert not tied.bias[: 2 * WIDTH].any()


def test_without_positions_a_token_attends_most_to_its_copies(tmp_path):
    """Of a head as wide as the model, which is 64 wide here, scores are exactly the inner products of tokens over 8."""
    backbone = load_backbone("gpt2:n_layer=1,n_embd=64,n_head=1,n_positions=8", "tied")
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    queries, keys, _values = backbone.blocks[0].attn.c_attn(x).chunk(3, -1)
    torch.testing.assert_close(queries @ keys.T, x @ x.T, atol=1e-4, rtol=1e-5)


def test_seed_decides_tied_weights_also_of_a_shallower_model():
    whole, again = load_backbone(SMALL, "tied"), load_backbone(SMALL, "tied")
    cut, other = load_backbone(SMALL, "tied", depth=2), load_backbone(SMALL, "tied", seed=1)
    for name, tensor in cut.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name]), name
    blocks = [block.attn.c_attn.weight for block in whole.blocks]
    assert not torch.equal(blocks[0], blocks[1])
    digests = [weights_digest(backbone) for backbone in (whole, again, cut, other, load_backbone(SMALL, "random"))]
    assert digests[0] == digests[1] and len(set(digests)) == 4
    assert "keys equal the queries" in describe_weights(whole, "tied")


def test_tied_weights_are_the_same_on_every_machine():
    weights = load_backbone("gpt2:n_layer=1,n_embd=4,n_head=1,n_positions=2", "tied").blocks[0].attn.c_attn.weight
    # The first row of the head is the first four values of its generator, float64, divided by their norm, times 2,
    # with which a token of norm 2 has a score of 8 with itself.
    random = np.random.Generator(np.random.Philox(key=KEY))
    first = random.standard_normal(4)
    np.testing.assert_array_equal(
        weights[:, 0].numpy(), (2 * (first / np.sqrt((first * first).sum()))).astype(np.float32)
    )


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 40), (1, 7)])
def test_orthonormal_rows_are_those_of_qr(rows, columns):
    drawn = orthonormal_rows(np.random.default_rng(1), rows, columns)
    q, r = np.linalg.qr(np.random.default_rng(1).standard_normal((rows, columns)).T)
    np.testing.assert_allclose(drawn, (q * np.sign(np.diag(r))).T, atol=1e-12)


def test_a_head_that_is_wider_than_the_model_keeps_the_squared_norm():
    drawn = orthonormal_rows(np.random.default_rng(1), 12, 3)
    np.testing.assert_allclose(drawn.T @ drawn, 4 * np.eye(3), atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "lstm-star", "esn", "kernels", "cnn", "linformer"])
def test_families_without_queries_and_keys_are_refused(name):
    message = outcome(load_backbone, name, "tied")
    assert f"{name.partition('-')[0]} has no attention" in message and "--init random" in message


def test_generic_families_are_refused(tmp_path):
    assert "gpt_neox has no" in outcome(load_backbone, str(save_generic("gpt_neox", tmp_path / "gpt_neox")), "tied")


def share_of_bits(init):
    """Return the share of the bits of new strings that ridge regression of one block recalls."""
    source = BitMemory(n=32, patterns=3, token_bits=16, train_rows=1000, valid_rows=1, test_rows=400)
    model = make_fpt(source.task, load_backbone("gpt2:n_layer=1,n_embd=256,n_head=8,n_positions=16", init))
    column, features, labels = Column("block01", "last"), {}, {}
    for piece in source.pieces():
        (part, split), = source.read(piece).items()  # fmt: skip
        states = model.features(torch.from_numpy(split.x).float(), torch.from_numpy(split.lengths), [column])[column]
        features[part], labels[part] = states.flatten(0, 1).numpy(), split.y.reshape(-1, 16)
    coef, intercept = ridge_by_definition(features["train"], 2.0 * labels["train"] - 1, 1e-3)
    return ((features["test"] @ coef + intercept > 0) == labels["test"]).mean()


def test_tied_attention_recalls_bits_that_random_attention_does_not():
    """Copying the visible bits and guessing the others gives 75%, by the majority of the three strings 87.5%."""
    assert share_of_bits("tied") > 0.94
    assert share_of_bits("random") < 0.83
