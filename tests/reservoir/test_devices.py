"""All branches for a GPU run on a CPU that is treated as a GPU."""

import math
import tempfile
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from reservoir_cache import STORES, CacheError, encode, verify
from reservoir_pipelines import extract, plan
from reservoir_pipelines.extraction.entries import new_layout
from reservoir_pipelines.extraction.extractor import start_encoding
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from reservoir import devices
from reservoir.backbones.weights import load_backbone
from reservoir.batches import LoadedBatch
from reservoir.column import Column
from reservoir.devices import choose_compute
from reservoir.errors import InputError
from reservoir.features import Launched
from reservoir.hidden_states import HiddenStates
from reservoir.plan.columns import KERNEL_POOLINGS, VALUE_POOLINGS
from reservoir.pooling import find_pooling
from reservoir.tasks.task import Task, Vectors
from tests.helpers import contents, outcome
from tests.reservoir.models import make_fpt, save

SETTINGS = {"limit": 120, "compute": "float32", "layers": "embed,final", "pool": "quantiles3,shares5,min,max,last,std"}


@pytest.fixture
def gpu(monkeypatch, cuda_streams):
    """Treat the CPU as a GPU; return the number of pinned values by function."""
    pinned, empty = {"pin_memory": 0, "empty": 0}, torch.empty

    def pin_memory(tensor):
        pinned["pin_memory"] += tensor.numel()
        return tensor

    def plain(*shape, pin_memory=False, **settings):
        found = empty(*shape, **settings)
        pinned["empty"] += found.numel() * bool(pin_memory)
        return found.fill_(77) if pin_memory else found  # so that no value stands there before its copy

    monkeypatch.setattr(devices, "on_gpu", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch, "empty", plain)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "pretended")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 10**9)
    return pinned


@pytest.fixture
def on_cpu(cache, tiny_gpt2):
    return extract("digits", backbone=str(tiny_gpt2), **SETTINGS)


@pytest.fixture
def kernels_on_cpu(cache, tmp_path):
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "series.npz", x=draw.normal(size=(30, 40, 2)), y=np.arange(30) % 2)
    return extract(tmp_path / "series.npz")


def test_random_kernels_on_a_gpu_are_those_of_the_cpu(kernels_on_cpu, gpu, tmp_path):
    on_gpu = extract(tmp_path / "series.npz", cache=tmp_path / "gpu")
    assert on_gpu.store.entry.spec.backbone.family == "kernels" and gpu["pin_memory"] > 0
    assert on_gpu.columns == kernels_on_cpu.columns
    for column in on_gpu.columns:
        ours, theirs = (features["train"].read(column) for features in (on_gpu, kernels_on_cpu))
        assert np.isclose(ours, theirs, rtol=1e-3, atol=1e-3).mean() > 0.999, column


def test_features_of_a_gpu_are_those_of_the_cpu_under_another_key(on_cpu, gpu, tmp_path, tiny_gpt2):
    call = partial(extract, "digits", backbone=str(tiny_gpt2), cache=tmp_path / "gpu", **SETTINGS)
    found = call()
    spec = found.store.entry.spec
    assert spec.backbone == replace(on_cpu.store.entry.spec.backbone, device="cuda")
    assert on_cpu.store.entry.spec.backbone.device is None
    assert found.store.entry.made_with["instructions"] == "pretended"
    for split in on_cpu:
        for column in on_cpu.columns:
            # A GPU has larger batches, so products round differently.
            np.testing.assert_allclose(found[split].read(column), on_cpu[split].read(column), rtol=2e-3, atol=2e-3)
    stored = [found[split].read(column) for split in found for column in found.columns]
    assert gpu["empty"] == sum(2 * x.size + 4 * x.shape[2] + 1 for x in stored)  # float16, the offsets, and a flag
    assert gpu["pin_memory"] > gpu["empty"] / 100

    files = contents(found.entry, "*.h5")
    (found.entry / "train" / "00000-0.h5").unlink()
    again = call()
    assert again.computed_rows == 120 and verify(again.store.entry) == []
    assert contents(found.entry, "*.h5") == files


@pytest.mark.gpu  # on the CPU, too
@pytest.mark.parametrize("store", STORES)
def test_a_gpu_encodes_as_the_host(gpu, store):
    draw, device = np.random.default_rng(0), "cuda" if torch.cuda.is_available() else "cpu"
    x = draw.normal(size=(300, 3, 7)) * 2.0 ** draw.integers(-30, 12, (300, 3, 1)) + [0, 0.1, -3e3, 9e3, 1e-6, 7e-42, 3]
    columns = {"a/all": x.astype(np.float32), "b/last": x[:, :1, 1:4].astype(np.float32)}

    def encoded():
        on_device = {name: torch.from_numpy(x).to(device) for name, x in columns.items()}
        return start_encoding(Launched(on_device, LoadedBatch([], np.ones(300), None)), store, 7)()

    expected = {name: encode(x, store, column=name).crc32 for name, x in columns.items()}
    assert {name: found.crc32 for name, found in encoded().items()} == expected
    for wrong in (np.nan, np.inf, -np.inf, *[1e6, -1e6] * (store == "float16")):
        columns["b/last"][5, 0, 1] = wrong
        with pytest.raises(CacheError, match="row 12, column b/last, token 0, channel 1: "):
            encoded()
    columns["b/last"] = np.zeros((5, 1, 3), np.float32)
    assert not encoded()["b/last"].values.any()
    columns["b/last"][0, 0, 0] = 1e-10
    with pytest.raises(CacheError, match="too little") if store == "float16" else nullcontext():
        encoded()


def test_copies_to_the_host_begin_after_their_rows_and_float32_is_freed_before_them(gpu, monkeypatch):
    columns = {name: torch.randn(5, 1, 4) for name in ("a/last", "b/last")}
    features = [weakref.ref(x) for x in columns.values()]
    drain = start_encoding(Launched(columns, LoadedBatch([], np.ones(5), None)), "float16", 0)
    expected = {name: encode(x.numpy().copy(), "float16", column=name).crc32 for name, x in columns.items()}
    del columns
    copies = []

    def copied(*arguments, fetch=devices.fetch):
        copies.append([x() is not None for x in features])
        return fetch(*arguments)

    monkeypatch.setattr(devices, "fetch", copied)
    assert {name: column.crc32 for name, column in drain().items()} == expected
    assert copies == [[True, True], [False, False]] and not drain.rounded
    with pytest.raises(AssertionError, match="never recorded"):  # an event of no stream orders nothing
        devices.fetch([torch.ones(3)], torch.cuda.Event())


@pytest.mark.parametrize(("device", "tokens", "size"), [("cpu", 2**17, 2**24), ("cuda", 2**22, 2**26)])
def test_a_gpu_fills_larger_shards(device, tokens, size):
    plan = SimpleNamespace(device=device, store="float16", shapes={"a/last": (1, 768)}, block_rows=64, batch_rows=8)
    row_bytes = 2 * 768
    assert new_layout(plan, 1, 10**9).block_rows == size // row_bytes // 64 * 64
    assert new_layout(plan, 2048, 10**9).block_rows == min(tokens // 2048, size // row_bytes // 64 * 64)


@pytest.mark.parametrize("by_channel", [False, True])
def test_poolings_of_a_gpu_equal_those_of_the_cpu(by_channel, monkeypatch):
    lengths = torch.tensor([20, 3, 1, 17, 20, 9])
    hidden = torch.randn(6, 8, 20).transpose(1, 2) if by_channel else torch.randn(6, 20, 8)
    hidden[torch.arange(20) >= lengths[:, None]] = torch.inf
    names = ["quantiles4", "shares13", "compete8", "sustained3", "above3", "places3", "min", "max", "mean", "std"]
    names += ["segments3", "all", "tokens", "first"]
    on_cpu = HiddenStates(hidden, lengths)
    expected = {name: find_pooling(name).of(on_cpu) for name in names}
    monkeypatch.setattr(devices, "on_gpu", lambda device: True)
    on_gpu = HiddenStates(hidden, lengths)
    for name in names:
        if name == "places3":  # the sum of places is taken in another order
            torch.testing.assert_close(find_pooling(name).of(on_gpu), expected[name])
        else:
            assert torch.equal(find_pooling(name).of(on_gpu), expected[name]), name
    with pytest.raises(InputError, match="grid2: the rows differ in length"):
        find_pooling("grid2").of(on_gpu)


@pytest.mark.parametrize(
    ("names", "most_bytes"), [(KERNEL_POOLINGS, 175), ((*VALUE_POOLINGS, "segments8"), 85), (("last", "mean"), 22)]
)
def test_poolings_of_a_gpu_read_and_write_few_bytes_of_a_hidden_value(names, most_bytes, monkeypatch):
    monkeypatch.setattr(devices, "on_gpu", lambda device: True)
    hidden, lengths = torch.randn(4, 64, 128).transpose(1, 2).contiguous().transpose(1, 2), torch.tensor([64, 50, 9, 1])
    with torch.inference_mode(), Traffic() as traffic:
        states = HiddenStates(hidden, lengths)
        for name in names:
            find_pooling(name).of(states)
    assert most_bytes / 2 < traffic.bytes / hidden.numel() <= most_bytes


class Traffic(TorchDispatchMode):
    """Counts the bytes that the kernels of a GPU read and write; a dimension that is repeated is read once."""

    bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        result = function(*arguments, **options)
        read = tensors_in((arguments, {**options, "out": None}))
        is_view = any(
            t.untyped_storage().data_ptr() in {x.untyped_storage().data_ptr() for x in read} for t in tensors_in(result)
        )
        changes_memory = function._schema.is_mutable
        only_shape = function._schema.name.split("::")[1] in (
            "new_full",
            "new_empty",
            "empty_like",
            "empty",
            "ones_like",
        )
        if changes_memory or not is_view:
            self.bytes += sum(map(size_in_memory, [*tensors_in(result), *([] if only_shape else read)]))
        return result


def tensors_in(values):
    if isinstance(values, torch.Tensor):
        return [values]
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def size_in_memory(tensor):
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return tensor.element_size() * math.prod(sizes)


@pytest.mark.parametrize("backbone", ["lstm:width=8,depth=2", "esn:units=8,lr=0.5"])
def test_the_steps_of_recurrent_models_compile_as_a_whole_and_compute_the_same(backbone, monkeypatch):
    run, hidden = load_backbone(backbone, seed=1), torch.randn(3, 5, 8)
    expected = run.model(hidden)
    monkeypatch.setattr(devices, "on_gpu", lambda device: True)
    monkeypatch.setattr(devices, "find_spec", lambda name: name == "triton")
    calls = Mock(side_effect=partial(torch.compile, backend="aot_eager", fullgraph=True))
    monkeypatch.setattr(torch, "compile", calls)
    assert torch.equal(run.model(hidden), expected) and calls.called


def test_a_plan_for_a_gpu_names_its_memory_and_precision(gpu, cache, tiny_gpt2):
    found = plan("digits", backbone=str(tiny_gpt2), **SETTINGS)
    assert found.memory > 3 * 10**9 and choose_compute("auto", torch.device("cpu")) == "bfloat16"


def test_float32_is_multiplied_without_tf32_and_the_process_keeps_its_choice():
    torch.set_float32_matmul_precision("medium")
    try:
        before = torch.backends.cudnn.allow_tf32
        with devices.exact_products():
            assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "medium" and torch.backends.cudnn.allow_tf32 == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_workers_use_the_gpus_of_a_machine_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [devices.of_worker("auto", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices.of_worker("cuda:1", 2) == "cuda:1" and devices.of_worker("cpu", 1) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.of_worker("auto", 1) == "auto"


def test_equal_blocks_share_one_compilation(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    backbone = load_backbone("gpt2:n_layer=3,n_embd=16,n_head=2", "random")
    x, lengths = torch.randn(2, 8, 16), torch.tensor([8, 8])
    expected = backbone(x, lengths)
    devices.compile_blocks(backbone.blocks)
    torch._dynamo.reset()
    counters.clear()
    torch.testing.assert_close(backbone(x, lengths), expected)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.fixture
def traced(monkeypatch):
    """Compile without generating code: operations run as they are, in graphs that are right for all sizes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize(
    ("tokens", "rows", "compute"),
    [
        (14, 14, "float32"),
        pytest.param(16, 12, "float32", marks=pytest.mark.slow),
        (14, 16, "bfloat16-all"),
        pytest.param(14, 2, "float32", marks=pytest.mark.slow),
    ],
)  # the width is 16
def test_compiled_blocks_and_poolings_are_made_once_and_compute_the_same(tokens, rows, compute, tmp_path, gpu, traced):
    task = Task(name="t", form=Vectors(5), max_tokens=tokens, classes=3)
    fpt = make_fpt(task, load_backbone(str(save("bert", tmp_path / "bert")), "pretrained"), seed=3)
    fpt.backbone.set_compute(compute)
    columns = [Column(layer, "segments3") for layer in fpt.backbone.layers]

    def features(rows, tokens, is_full):
        x = torch.randn(rows, tokens, 5, generator=torch.Generator().manual_seed(rows))
        lengths = torch.full((rows,), tokens)
        lengths[0] -= 0 if is_full else 3
        return fpt.features(x, lengths, columns, is_full)

    shapes = [(*size, is_full) for size in ((5, 14), (14, 9), (2, 13), (1, 13)) for is_full in (True, False)]
    expected = [features(*shape) for shape in shapes]
    fpt.compile_for_gpu(rows, columns)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 4  # of the blocks and of the pooling, with and without padding
    for shape, eager in zip(shapes, expected, strict=True):
        for column, values in features(*shape).items():
            torch.testing.assert_close(values, eager[column], atol=1e-6, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == graphs


def test_compiled_features_have_an_entry_of_their_own_and_a_resumed_run_gives_their_bytes(gpu, traced, tmp_path):
    settings = {**SETTINGS, "layers": "block01,final", "pool": "last", "batch_rows": 16}
    eager = extract("digits", cache=tmp_path, **settings)
    settings |= {"compile_blocks": True}
    compiled = extract("digits", cache=tmp_path, **settings)
    assert compiled.store.entry.spec.backbone.compiled == "blocks" and compiled.entry != eager.entry
    for column in compiled.columns:
        np.testing.assert_allclose(compiled["train"].read(column), eager["train"].read(column), atol=2e-3)
    whole = contents(compiled.entry, "*.h5")
    next(compiled.entry.rglob("0*.h5")).unlink()
    again = extract("digits", cache=tmp_path, **settings)
    assert again.computed_rows and contents(again.entry, "*.h5") == whole


def test_a_model_that_torch_cannot_compile_is_refused_with_the_option_that_helps(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "compile", Mock(side_effect=RuntimeError("no compiler")))
    message = outcome(extract, "digits", cache=tmp_path, compile_blocks=True, **SETTINGS)
    assert "no compiler" in message and "--compile-blocks" in message


def test_nothing_is_compiled_into_a_folder_that_others_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it when it compiles
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    assert devices.compile_safely(len) is len
    (folder,) = tmp_path.iterdir()
    folder.chmod(0o777)
    with pytest.raises(InputError, match="another user may have written the compiled code"):
        devices.compile_safely(len)
