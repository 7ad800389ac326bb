"""Weights come from the stated source, or are drawn as `--init` says, and have the stated digest."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from reservoir.backbone_names import SHIPPED
from reservoir.backbones import choose_init, describe_weights, find, load_backbone, weights_digest
from reservoir.backbones.tied import orthonormal_rows
from reservoir.backbones.weights import draw_parameters
from reservoir.column import Column
from reservoir.errors import InputError
from reservoir.options import ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.readouts.ridge import ridge_by_definition
from reservoir.reservoir import Reservoir
from reservoir.tasks.bits import BitMemory
from reservoir.tasks.task import Task, Vectors
from tests.helpers import outcome
from tests.reservoir.models import MODELS, WIDTH, make_fpt, save, save_as_gguf
from tests.reservoir.test_generic import save as save_generic

# Parameters of the published models without pooling layer and head, from their papers and model cards.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base-uncased": 109_482_240 - 590_592,
    "distilbert-base-uncased": 66_362_880,
    "t5-base": 109_628_544,
    "allenai/longformer-base-4096": 148_659_456 - 590_592,
    "google/vit-base-patch16-224-in21k": 86_389_248 - 590_592,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
}


GATES = "blocks.1.cell.hidden.weight"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save("llama", tmp_path_factory.mktemp("weights") / "llama")


@pytest.fixture
def copy(llama, tmp_path):
    return shutil.copytree(llama, tmp_path / "copy")


def change(folder, change_tensors):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change_tensors(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_parts_of_two_models_in_one_folder_are_not_mixed(copy):
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    load_backbone(str(copy), "pretrained")
    shutil.copy(copy / "model-00001-of-00002.safetensors", copy / "model-00001-of-00001.safetensors")
    assert "00002.safetensors and another file have the tensor" in outcome(load_backbone, str(copy), "pretrained")


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_configurations_have_the_published_number_of_parameters(name):
    family, config = find(name)
    assert family.loader.size(config).parameters == PUBLISHED[name]


def test_seed_decides_random_weights_also_of_a_shallower_model():
    name = "gpt2:n_layer=3,n_embd=16,n_head=2,n_positions=20"
    whole, again, cut = load_backbone(name), load_backbone(name), load_backbone(name, depth=2)
    for parameter, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[parameter])
    for parameter, tensor in cut.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[parameter])
    assert len({weights_digest(b) for b in (whole, again, cut, load_backbone(name, seed=1))}) == 3


def test_random_weights_are_the_same_on_every_machine():
    weights = load_backbone("gpt2:n_layer=1,n_embd=4,n_head=1,n_positions=2").model.get_parameter("wpe.weight")
    # Philox keyed by the first half of the SHA-256 of "0/wpe.weight", NumPy's ziggurat in float32, times 0.02.
    expected = [0.0303772055, -0.014048853, 0.0057907938, 0.00832299516]
    np.testing.assert_array_equal(weights[0].numpy(), np.array(expected, np.float32))


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2"])
def test_random_weights_have_the_deviation_of_transformers(name):
    from transformers import GPT2Config, GPT2Model

    wide = {"bert": "bert-base-uncased:num_hidden_layers=1", "t5": "t5-small:num_layers=1", "gpt2": "gpt2:n_layer=1"}[
        name
    ]
    family, config = find(wide)
    torch.manual_seed(0)
    theirs = GPT2Model(GPT2Config(n_layer=1)) if name == "gpt2" else family.loader.build(config)
    built = dict(theirs.named_parameters())
    for parameter, drawn in load_backbone(wide).model.named_parameters():
        if drawn.numel() > 4000:
            theirs = built[parameter].std()
            assert abs(drawn.std() - theirs) < 0.05 * theirs, parameter


def test_random_flat_gpt2_does_not_scale_projections():
    """Transformers 4.1.1 drew matrices of standard deviation 0.02; later ones divide `c_proj` by sqrt(2 x blocks)."""
    name = "gpt2:n_layer=2,n_embd=128,n_head=2"
    flat, scaled = load_backbone(name, "random-flat"), load_backbone(name, "random")
    for parameter, drawn in flat.model.named_parameters():
        other = scaled.model.get_parameter(parameter)
        if drawn.dim() == 2:
            assert drawn.std().item() == pytest.approx(0.02, rel=0.03)
            assert other.std().item() == pytest.approx(0.02 / (2 if "c_proj" in parameter else 1), rel=0.03)
        if "c_proj.weight" not in parameter:
            assert torch.equal(drawn, other)
    assert weights_digest(flat) != weights_digest(scaled)
    assert "c_proj divided by sqrt(2 x blocks)" in describe_weights(scaled, "random")
    assert describe_weights(flat, "random-flat").startswith("every matrix normal with standard deviation")


def test_statistics_keep_mean_and_deviation_of_every_tensor(llama):
    pretrained = load_backbone(str(llama), "pretrained")
    drawn = load_backbone(str(llama), "statistics", seed=4)
    other = load_backbone(str(llama), "statistics", seed=5)
    draws = dict(drawn.model.named_parameters())
    for name, parameter in pretrained.model.named_parameters():
        error = parameter.std() / parameter.numel() ** 0.5
        assert abs(draws[name].mean() - parameter.mean()) < 5 * error
        assert abs(draws[name].std() / parameter.std() - 1) < 5 / parameter.numel() ** 0.5
        assert not torch.equal(draws[name], other.model.get_parameter(name))
    draw_parameters(pretrained.model, None, None, 4)
    assert weights_digest(pretrained) == weights_digest(drawn)


def test_echo_state_network_equals_reservoirpy():
    nodes = pytest.importorskip("reservoirpy.nodes")
    task = Task(name="t", form=Vectors(4), max_tokens=50, classes=2)
    fpt = make_fpt(
        task, load_backbone("esn:units=80,sr=1.2,lr=0.35,input_scaling=1.7,rc_connectivity=0.3", seed=2), seed=2
    )
    x = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(0))
    column = Column("block01", "all")
    ours = fpt.features(x, torch.tensor([50]), [column])[column][0]
    theirs = nodes.Reservoir(
        W=fpt.backbone.blocks[0].recurrent.weight.double().numpy(),
        Win=1.7 * fpt.inputs.map.weight.detach().double().numpy(),
        lr=0.35,
    )
    np.testing.assert_allclose(ours, theirs.run(x[0].double().numpy()), atol=1e-6)


def test_digest_depends_on_the_weights_and_not_on_the_folder(llama, copy, tmp_path):
    digest = weights_digest(load_backbone(str(llama), "pretrained"))
    moved = copy.rename(tmp_path / "another name")
    assert weights_digest(load_backbone(str(moved), "pretrained")) == digest

    def touch(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, 2] += 1e-3

    change(moved, touch)
    assert weights_digest(load_backbone(str(moved), "pretrained")) != digest
    assert weights_digest(load_backbone(str(llama), "pretrained", depth=2)) != digest


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "vit", "wav2vec2", "esm", "llama", "gemma2"])
def test_weights_in_half_precision_have_the_digest_and_the_products_of_their_float32_copy(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    file = folder / "model.safetensors"
    halves = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(halves, file, metadata={"format": "pt"})
    whole = load_backbone(str(folder), "pretrained", seed=2)
    half = load_backbone(str(folder), "pretrained", seed=2, own_precision=True)
    types = {parameter.dtype for parameter in half.blocks.parameters()}
    assert torch.bfloat16 in types, "nothing was left in its own precision"
    assert weights_digest(half) == weights_digest(whole)
    embeds = torch.randn(2, 6, half.width, generator=torch.Generator().manual_seed(0))
    for backbone in (whole, half):
        backbone.set_compute("bfloat16")
    assert torch.equal(half(embeds), whole(embeds))


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "vit", "dinov2", "esm", "llama", "longformer"])
def test_blocks_that_are_cut_off_are_not_read(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    path = {"gpt2": "h", "llama": "layers", "t5": "encoder.block"}.get(kind, "encoder.layer")

    def poison_later_blocks(tensors):
        later = [name for name in tensors if re.search(rf"(^|\.){path}\.[12]\.", name)]
        for name in later:
            tensors[name].fill_(float("nan"))

    change(folder, poison_later_blocks)
    assert load_backbone(str(folder), "pretrained", depth=1).depth == 1
    assert "NaN" in outcome(load_backbone, str(folder), "pretrained", depth=2)


def test_the_check_of_memory_counts_the_blocks_that_are_kept(copy, monkeypatch):
    """A machine with room for one block takes one, and refuses the whole model with the option that helps."""
    one_block = sum(p.numel() for p in load_backbone(str(copy), "pretrained", depth=1).model.parameters())
    memory = 4 * one_block + 1000  # bytes; the kept embedding of one token takes 64
    monkeypatch.setattr("os.sysconf", lambda name: memory if name == "SC_PHYS_PAGES" else 1)
    assert load_backbone(str(copy), "pretrained", depth=1).depth == 1
    assert "--depth" in outcome(load_backbone, str(copy), "pretrained")


def test_digest_depends_on_where_the_positions_of_a_longformer_begin(tmp_path):
    folder, digests = save("longformer", tmp_path / "longformer"), set()
    for change in ({"pad_token_id": 1}, {"pad_token_id": 0}, {"pad_token_id": 0, "bos_token_id": 5}):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 24} | change))
        digests.add(weights_digest(load_backbone(str(folder), "pretrained")))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "No such file"),
        ("{", "not readable"),
        ({"model_type": "nothing"}, "family 'nothing' is not known"),
        ({"model_type": "lstm", "hight": 3}, "hight"),
        ({"model_type": "gpt2", "n_embd": 10, "n_head": 3}, "configuration"),
        ({"model_type": "lstm", "depth": 0}, "blocks to 0"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "foo"}}, "this configuration is invalid ('foo')"),
    ],
)
def test_wrong_folders_are_refused(config, words, tmp_path):
    if config:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert words in outcome(load_backbone, str(tmp_path))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("no/where", {}, "no such folder"),
        ("gpt2", {"init": "pretraind"}, "choose one of pretrained, random, random-flat, statistics"),
        ("gpt2", {"depth": 13}, "keep 1 to 12"),
        ("gpt2:n_layer=3", {"init": "pretrained"}, "--init random"),
        ("lstm", {"init": "pretrained"}, "--init random"),
        ("lstm", {"init": "random-flat"}, "lstm has no initializer_range"),
        ("lstm:cell=gru", {}, "cell=gru is not known; use cell=released"),
        ("lstm:width=1", {}, "two channels or more; use width=2 or more"),
        ("esn:sr=-1", {}, "sr=-1"),
        ("esn:units=20000", {}, "at most 10000"),
        ("esn:units=2,rc_connectivity=0.01", {}, "recurrent"),
        ("esn:unit=3", {}, "'unit=3' is not NAME=VALUE"),
        ("linformer", {"init": "pretrained"}, "--init random"),
        ("linformer:width=60", {}, "width 60 is not a multiple of 8 heads"),
        ("linformer:rank=0", {}, "sets rank to 0; give at least 1"),
        ("linformer:rank=100000000000", {}, "GB of memory; choose a smaller backbone"),
        ("cnn:kernel=0", {}, "kernel=0; give 1 to 32"),
        ("cnn:kernel=a", {}, "kernel takes int, not 'a'"),
        ("mini:n_embd=abc", {}, "n_embd takes int, not 'abc'); give the setting another value"),
        ("mini:n_layer=1,initializer_range=abc", {}, "initializer_range takes float, not 'abc'"),
        ("bert-base-uncased:num_hidden_layers=x", {}, "Field 'num_hidden_layers' expected int"),
        ("allenai/longformer-base-4096:attention_window=0", {}, "modulo by zero); change a setting"),
        ("mini:activation_function=foo", {}, "this configuration is invalid ('foo')"),
        ("distilbert-base-uncased:activation=foo", {}, "function foo not found"),
        ("mini:n_layer=0", {}, "its configuration sets blocks to 0; give at least 1"),
        ("mini:n_positions=0", {}, "positions to 0; give"),
        ("mini:n_head=-4", {}, "sets attention heads to -4"),
        ("HuggingFaceTB/SmolLM2-135M:num_key_value_heads=0", {}, "modulo by zero"),
        ("HuggingFaceTB/SmolLM2-135M:num_attention_heads=-9", {}, "attention heads to -9"),
    ],
)
def test_wrong_settings_are_refused(name, settings, words):
    message = outcome(load_backbone, name, **settings)
    assert words in message and (settings or name.partition(":")[0] in message)


def poisoned(tensors):
    tensors["model.layers.2.mlp.down_proj.weight"][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("kind", "change_tensors", "words"),
    [
        ("llama", lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"), "misses weight layers.1.self_attn.k_proj"),
        ("llama", lambda t: t.update({"model.layers.1.gate": torch.ones(3)}), "extra weight model.layers.1.gate"),
        ("llama", lambda t: t.update({"model.norm.weight": torch.ones(5)}), "another shape for weight"),
        ("llama", poisoned, "layers.2.mlp.down_proj.weight holds NaN"),
        ("lstm", lambda t: t.update({GATES: torch.ones(5)}), f"size mismatch for {GATES}"),
        ("lstm", lambda t: t.pop(GATES), f"misses weight {GATES}"),
    ],
)
def test_a_wrong_weight_is_named(kind, change_tensors, words, tmp_path):
    folder = save(kind, tmp_path / kind)
    change(folder, change_tensors)
    assert words in outcome(load_backbone, str(folder), "pretrained")


def test_loading_in_threads_leaves_transformers_unchanged(tiny_gpt2):
    """Transformers replaces its own functions while it loads a model; loading in threads must restore them."""
    from concurrent.futures import ThreadPoolExecutor

    from transformers import T5Config, T5EncoderModel

    with ThreadPoolExecutor(4) as pool:
        digests = set(pool.map(lambda _: weights_digest(load_backbone(str(tiny_gpt2), "pretrained")), range(12)))
    assert len(digests) == 1
    model = T5EncoderModel(T5Config(d_model=8, d_ff=8, d_kv=4, num_heads=2, num_layers=1, vocab_size=10))
    assert model.shared.weight is model.encoder.embed_tokens.weight


def test_an_activation_whose_parameters_are_in_bfloat16_is_loaded_in_float32(tmp_path):
    config = json.loads((save("llama", tmp_path / "llama") / "config.json").read_text())
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config | {"hidden_act": "xielu"}))
    model = load_backbone(str(tmp_path / "llama"), "random").model
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


def test_a_gguf_file_is_a_backbone_with_its_weights(tmp_path):
    pytest.importorskip("gguf")
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
    reader = "reservoir.backbones.gguf_file.GGUFFile.stored_bytes"
    monkeypatch.setattr(reader, lambda *_: pytest.fail("the weights were read"))
    values = answer("extract", "digits", "--backbone", tmp_path / "tiny.gguf", "--dry-run")
    assert values["layers"]["value"] == "embed,block01,block02,block03,final"


# With ``--init tied`` the keys equal the queries, which are orthogonal by head; all else is as in ``random``.


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


# The model that comes with the package.


MINI = SHIPPED["mini"]


@pytest.fixture
def decoy(tmp_path, monkeypatch, tiny_gpt2):
    """Change to a folder that contains another model in a folder called mini."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(tiny_gpt2, tmp_path / "mini")


def test_the_weights_of_mini_are_float16_in_at_most_12_megabytes():
    assert (MINI / "model.safetensors").stat().st_size <= 12e6
    with safe_open(MINI / "model.safetensors", "np") as file:
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert dtypes == {"F16"}


def test_mini_has_the_configuration_and_tokenizer_of_its_name():
    kept, named = (find(name)[1] for name in (str(MINI), "mini"))
    settings = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "activation_function", "initializer_range")
    for setting in settings:
        assert getattr(kept, setting) == getattr(named, setting), setting
    tokenizer, text = AutoTokenizer.from_pretrained(MINI), " Reservoir – ein Speicher .\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_mini_is_loaded_from_the_package_in_float32_from_any_folder(decoy):
    stored = load_file(MINI / "model.safetensors")
    loaded = dict(load_backbone("mini", "pretrained").model.named_parameters())
    assert len(loaded) == 6 * 12 + 3  # all tensors except the token embeddings
    for name, parameter in loaded.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, stored[f"transformer.{name}"].float()), name


def test_mini_has_three_inits_and_other_shapes_only_random_weights():
    inits = {weights_digest(load_backbone("mini", init)) for init in ("pretrained", "random", "statistics")}
    assert len(inits) == 3
    altered = "mini:n_layer=2"
    assert choose_init(altered, None) == "random" and load_backbone(altered).depth == 2
    with pytest.raises(InputError, match="nobody has published weights for it; use --init random"):
        load_backbone(altered, "pretrained")


def choose(**options):
    return resolve_model(ReservoirOptions(**options))


def test_mini_is_the_default_backbone(decoy):
    assert choose() == Reservoir(backbone="mini", init="pretrained")
    for init in ("random", "statistics"):
        assert choose(init=init) == Reservoir(backbone="mini", init=init)
    assert choose(backbone="gpt2") == Reservoir(backbone="gpt2", init="pretrained")
    # A folder called mini is used only if the name is written as a path.
    assert choose(backbone="mini").backbone == "mini"
    assert choose(backbone="./mini").backbone == choose(init="mini").backbone == str(decoy)
