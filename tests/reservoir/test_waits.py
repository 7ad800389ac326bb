"""Features on a GPU never wait for it: its branches run on the CPU, and operations that would wait fail.

What waits is reading a value on the host, an operation whose result has as many values as the data say, and a copy of
Python values to the device.
"""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from reservoir_pipelines.extraction.extractor import start_encoding
from torch.utils._python_dispatch import TorchDispatchMode

from reservoir import devices
from reservoir.backbones import load_backbone
from reservoir.batches import load, load_tokens
from reservoir.column import Column
from reservoir.features import column_masks, launch
from reservoir.hidden_states import HiddenStates, RealTokens
from reservoir.inputs.patch_units import draw_units
from reservoir.inputs.text_tokens import TokenPart
from reservoir.loaded_model import load_model
from reservoir.options import PRECISIONS, TrainOptions
from reservoir.plan.columns import KERNEL_POOLINGS, VALUE_POOLINGS
from reservoir.pooling import POOLINGS as ALL_POOLINGS
from reservoir.pooling import find_pooling
from reservoir.reservoir import Reservoir
from reservoir.tasks.pictures import Picture
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.texts import codes_of, with_span
from reservoir.training.rows import TrainingBatch
from reservoir.training.steps import FPTSteps
from reservoir.training.trainable import default_groups, set_dropout, unfreeze
from reservoir.training.trainer import Processes
from tests.reservoir import test_generic
from tests.reservoir.models import KINDS, make_fpt, save, save_with_chat_template, save_with_tokenizer

WAITING = {
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "equal", "bincount", "histc", "repeat_interleave",
}  # fmt: skip
TOKENS = 12
TASK = Task(name="t", form=Vectors(5), max_tokens=TOKENS, classes=3)


class WaitingError(AssertionError):
    """An operation would wait for a GPU."""


class NoWaits(TorchDispatchMode):
    """Refuses operations that wait for a GPU."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function._schema.name.removeprefix("aten::")
        if name in WAITING:
            raise WaitingError(name)
        if name == "lift_fresh":  # of every torch.tensor
            raise WaitingError("a tensor is made from Python values")
        # A mask as an index becomes a list of places, unless one value is written there.
        masks = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in _indices(arguments)
        )
        if masks and not (name.startswith("index_put") and arguments[2].numel() == 1):
            raise WaitingError("a mask is an index")
        return function(*arguments, **(options or {}))


def _indices(arguments):
    return arguments[1] if len(arguments) > 1 and isinstance(arguments[1], (list, tuple)) else ()


@pytest.fixture
def gpu(monkeypatch, cuda_streams):
    """Treat the CPU as a GPU, without page-locked memory."""
    monkeypatch.setattr(devices, "on_gpu", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


@pytest.mark.parametrize("operation", [
    lambda x: x.max().item(), lambda x: bool((x > 0).all()), lambda x: x[x > 0], lambda x: x.nonzero(),
    torch.inference_mode()(lambda x: 1 if (x > 0).all() else 0),
    lambda x: torch.tensor([1.0], device=x.device), lambda x: torch.masked_select(x, x > 0), lambda x: x[:, [0, 1]],
])  # fmt: skip
def test_operations_that_wait_are_refused(operation):
    with NoWaits(), pytest.raises(WaitingError):
        operation(torch.ones(2, 3))


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return save(kind, tmp_path_factory.mktemp("waits") / kind)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name == "bfloat16-all" else []) for name in PRECISIONS],
)
def fpt(request, folder):
    backbone = load_backbone(str(folder), "pretrained", seed=5)
    backbone.set_compute(request.param)
    return make_fpt(TASK, backbone, seed=3)


def features_of(fpt, x, lengths, is_full):
    columns = [Column(layer, pooling) for layer in fpt.backbone.layers for pooling in ("last", "mean", "max")]
    return fpt.features(x, lengths, columns, is_full)


# The code of transformers waits: of Longformer for its global tokens, of the others for a mask that it builds itself.
STILL_WAIT = {("longformer", True), ("longformer", False), ("wav2vec2", False), ("hubert", False)}


@pytest.mark.parametrize("lengths", [[12, 12, 12], [12, 7, 2]], ids=["full", "padded"])
def test_families_do_not_wait_and_give_the_bits_of_the_cpu(kind, fpt, lengths, gpu, monkeypatch):
    x, counts = torch.randn(3, TOKENS, 5, generator=torch.Generator().manual_seed(1)), torch.tensor(lengths)
    is_full = min(lengths) == TOKENS
    on_gpu = features_of(fpt, x, counts, is_full)
    with pytest.raises(WaitingError) if (kind, is_full) in STILL_WAIT else nullcontext(), NoWaits():
        features_of(fpt, x, counts, is_full)
    monkeypatch.undo()
    for expected in (features_of(fpt, x, counts, is_full), features_of(fpt, x, counts, None)):
        for column, values in expected.items():
            # torch built for CUDA multiplies packed rows of an LSTM in another order on the CPU.
            largest_difference = (on_gpu[column] - values).abs().max().item()
            assert largest_difference <= (1e-6 if kind == "lstm" else 0), column


SERIES_WINDOWS = {"patch": 3, "dilations": "1,2", "pad": "same", "normalise": "differences"}
MODELS = {
    "kernels": (Vectors(2), {"backbone": "kernels:width=32", "input": "kernels", **SERIES_WINDOWS}),
    "windows": (Vectors(2), {"backbone": "gpt2:n_layer=2,n_embd=16,n_head=2", "input": "kernels", **SERIES_WINDOWS}),
    "symbols": (Tokens(4), {"backbone": "gpt2:n_layer=2,n_embd=16,n_head=2", "patch": 3, "pad": "same"}),
    "pixels": (Vectors(1), {"backbone": "gpt2:n_layer=2,n_embd=16,n_head=2"}),
    "patches": (Vectors(4), {"backbone": "kernels:width=8", "input": "patches", "patch": 5}),
    "counter": (Tokens(4), {"backbone": "kernels:width=16", "input": "counter"}),
}
PICTURES = ("pixels", "patches")  # which have one length
POOLINGS = {
    "kernels": (*KERNEL_POOLINGS, "std", "max"),
    "windows": (*VALUE_POOLINGS, "segments8"),
    "pixels": ("grid2", "excess2"),
    "patches": ("excess2", "mirrored2"),
    "counter": ("counts2",),
}
PICTURE = Picture(side=8, channels=1, patch=2, window=5, stride=1)  # of the 16 tokens of a row of "patches"


@pytest.mark.parametrize(("name", "lengths"), [
    *((name, [16, 16, 16]) for name in MODELS), *((name, [16, 9, 4]) for name in MODELS if name not in PICTURES),
])  # fmt: skip
def test_batches_of_stored_rows_are_computed_without_waiting(name, lengths, gpu):
    form, settings = MODELS[name]
    alphabet = "()ab" if isinstance(form, Tokens) else ""
    task = Task(name="t", form=form, max_tokens=16, classes=2, alphabet=alphabet)
    draw = np.random.default_rng(0)
    units = draw_units(draw.random((30, 8, 8, 1), np.float32), PICTURE, 8, seed=0) if name == "patches" else None
    model = load_model(task, Reservoir(init="random", **settings), "cpu", "float32", units=units)
    values = draw.integers(4, size=(3, 16)) if isinstance(form, Tokens) else draw.normal(size=(3, 16, form.dim))
    loaded = load(model, None, values.astype(np.float32), np.array(lengths), 3)
    names = [f"{model.fpt.backbone.layers[-1]}/{pooling}" for pooling in POOLINGS.get(name, ("mean", "max"))]
    first = launch(model, loaded, names).columns  # constants are copied once
    with NoWaits():
        launched = launch(model, loaded, names)
        start_encoding(launched, "float16", 0)
    for column, values in launched.columns.items():
        assert torch.equal(values, first[column]), column


# Models that no family describes run as transformers calls them: it reads from the positions of a causal model whether
# rows hold several sequences, and from the mask of others whether tokens are padded.
CAUSAL_GENERIC = ("gpt_neox", "olmo2", "phi3", "gpt_oss", "mamba2")
MASKED_GENERIC = ("modernbert", "esmc")
IMAGES_GENERIC = ("dinov3_vit", "siglip_vision_model")


@pytest.mark.parametrize("kind", [*CAUSAL_GENERIC, *MASKED_GENERIC, *IMAGES_GENERIC])
def test_other_families_wait_where_transformers_reads_values(kind, tmp_path, gpu):
    backbone = load_backbone(str(test_generic.save(kind, tmp_path / kind)), "pretrained")
    fpt = make_fpt(TASK, backbone, seed=3)
    x = torch.randn(3, TOKENS, 5)
    for lengths in torch.tensor([[12, 12, 12], [12, 7, 2]]):
        is_full = int(lengths.min()) == TOKENS
        if not is_full and not backbone.can_pad:
            continue
        features_of(fpt, x, lengths, is_full)  # constants are copied once
        waits = kind in CAUSAL_GENERIC or (kind in MASKED_GENERIC and not is_full)
        with pytest.raises(WaitingError) if waits else nullcontext(), NoWaits():
            features_of(fpt, x, lengths, is_full)


@pytest.mark.parametrize(("pattern", "lengths"), [
    *((pattern, [16, 16, 16]) for pattern in ALL_POOLINGS),
    *((pattern, [16, 9, 4]) for pattern in ALL_POOLINGS if pattern not in ("gridK", "excessK", "mirroredK")),
])  # fmt: skip
def test_no_pooling_waits(pattern, lengths, gpu):
    pooling = find_pooling(pattern.replace("K", "2"))
    hidden, counts, is_full = torch.randn(3, 16, 8), torch.tensor(lengths), min(lengths) == 16
    masks = {pooling.mask: torch.arange(16) < counts[:, None]} if pooling.mask else {}

    def pooled():
        return pooling.of(HiddenStates(hidden, counts, real_tokens=RealTokens(counts, 16, is_full, masks)))

    first = pooled()  # constants are copied once
    with NoWaits():
        again = pooled()
    assert torch.equal(again, first)


TEXTS = ["the cat sat on a mat", "a dog", "the cow and the dog sat on the mat"]
CHAT = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "a dog sat"}]
TEXT_TASK = Task(name="t", form=Tokens(99), max_tokens=200, classes=2, alphabet=" abc")


@pytest.mark.parametrize(("kind", "of_texts", "texts", "settings"), [
    ("bert", {}, TEXTS, {}), ("llama", {}, [" ".join([text] * 6) for text in TEXTS], {"long": "windows"}),
    ("bert", {"span": "a,b"}, [with_span(text, 2, 5) for text in TEXTS], {}),
    ("llama", {"chat": True}, [json.dumps(CHAT), json.dumps(CHAT[:1])], {}),
], ids=["texts", "pieces", "spans", "chats"])  # fmt: skip
def test_batches_of_texts_are_computed_without_waiting(kind, of_texts, texts, settings, tmp_path, gpu):
    save_model = save_with_chat_template if "chat" in of_texts else lambda folder: save_with_tokenizer(kind, folder)
    reservoir = Reservoir(backbone=str(save_model(tmp_path / kind)), init="pretrained", input="native", **settings)
    model = load_model(replace(TEXT_TASK, parameters=of_texts), reservoir, "cpu", "float32")
    masked = {"span": ["span"], "chat": ["last-prompt", "assistant"]}
    poolings = ["last", "mean", "words", *(name for key in of_texts for name in masked[key])]
    names = [f"block02/{pooling}" for pooling in poolings]
    loaded = load(model, None, *codes_of("here", texts), 32, column_masks(names))
    with NoWaits():
        start_encoding(launch(model, loaded, names), "float16", 0)


def test_batches_of_single_tokens_are_computed_without_waiting(tmp_path, gpu):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    model = load_model(TEXT_TASK, Reservoir(backbone=str(folder), init="pretrained", input="native"), "cpu", "float32")
    places = {"sequence": np.array([0, 0, 1, 2]), "position": np.array([1, 5, 2, 3])}
    part = TokenPart(x=np.full((3, 6), 7), lengths=np.array([6, 4, 5]), **places)
    loaded = load_tokens(model, part, 32)
    with NoWaits():
        launch(model, loaded, ["block02/all"])


@pytest.mark.parametrize("lengths", [[12, 12, 12], [12, 7, 2]], ids=["full", "padded"])
def test_steps_of_training_wait_only_in_families_whose_steps_are_not_captured(kind, lengths, tmp_path, gpu):
    fpt = make_fpt(TASK, load_backbone(str(save(kind, tmp_path / kind)), "random")).train()
    unfreeze(fpt, default_groups(fpt.backbone))
    set_dropout(fpt, 0.1)
    x, y = torch.randn(3, TOKENS, 5), torch.randint(3, (3, 1, 1))
    batch = [TrainingBatch(x, y, torch.tensor(lengths), min(lengths) == TOKENS)]
    engine = FPTSteps(fpt, fpt, None, TrainOptions(batch=3, dropout=0.1), 1e-3, 0, Processes())
    engine.take(0, batch)
    reads_values = fpt.backbone.family.reads_values
    may_wait = (kind, min(lengths) == TOKENS) in STILL_WAIT
    assert reads_values or not may_wait
    with nullcontext() if reads_values else NoWaits():
        values = engine.take(1, batch)
    assert values.isfinite().all()
