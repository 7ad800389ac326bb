"""Extraction on a GPU: `make gpu` runs these tests if there is one, and prints speeds and memory."""

import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reservoir_cache import verify
from reservoir_pipelines import extract, fit, plan, predict, prepare, train, workers
from reservoir_pipelines.extraction import entries, extractor
from reservoir_pipelines.training import inputs

from reservoir import batches
from reservoir.backbones import load_backbone
from reservoir.batches import load
from reservoir.column import Column
from reservoir.features import forward, launch
from reservoir.loaded_model import load_model
from reservoir.options import PRECISIONS, ExtractOptions
from reservoir.plan import precision as defaults
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task, Vectors
from reservoir.training import steps
from tests.helpers import contents
from tests.pipelines.test_native import write_sounds, write_texts
from tests.reservoir.models import (
    KINDS,
    WIDTH,
    hidden_states,
    make_fpt,
    save,
    save_with_extractor,
    save_with_tokenizer,
)
from tests.reservoir.test_waits import STILL_WAIT

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

ROWS, TOKENS = 50_000, 64
DEVICE = "cuda"
SMALL = {"limit": 1000, "layers": "embed,block02,final", "pool": "last,mean,quantiles3,shares5"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    file, draw = tmp_path_factory.mktemp("data") / "random.npz", np.random.default_rng(0)
    np.savez(file, x=draw.normal(size=(ROWS, TOKENS, 4)).astype(np.float32), y=np.arange(ROWS) % 2)
    return str(file)


def test_float32_features_equal_those_of_the_cpu(tmp_path):
    ours, theirs = (
        extract("digits", device=device, compute="float32", cache=tmp_path / device, **SMALL)
        for device in ("cuda", "cpu")
    )
    assert ours.store.entry.key != theirs.store.entry.key
    for column in ours.columns:
        found, expected = (done["train"].read(column) for done in (ours, theirs))
        off = np.abs(found - expected) / expected.std()
        sys.stdout.write(f"\n{column}: largest difference {off.max():.1e} deviations")
        # a value that is almost equal to a limit of the shares can be counted on either side of it
        assert (off > 1e-2).mean() <= (1e-3 if "shares" in column else 0)


def test_memory_stays_within_the_plan(rows, tmp_path):
    settings = {"backbone": "gpt2", "init": "random", "input": "orthogonal", "patch": 1, "store": "float16"}
    settings |= {"cache": tmp_path, "device": "cuda"}
    planned, options = plan(rows, **settings), ExtractOptions(**settings)
    ours = extractor.load_extractor(options, prepare(rows, cache=tmp_path), tmp_path)
    entry, todo = ours.open({})
    index = ours.rows["train"][: 2 * ours.layout.offset_rows]
    part = ours.prepared.split("train").take(index)
    loaded = load(ours.model, ours.prepared.scaling, part.x, part.lengths, ours.layout.batch_rows)
    launch(ours.model, loaded, ours.columns)()  # warm up
    started = time.perf_counter()
    for batch in [*loaded.batches] * 4:
        ours.model.fpt.features(batch.x.to("cuda"), batch.lengths.to("cuda"), [*map(Column.parse, ours.columns)])
    torch.cuda.synchronize()
    bare = 4 * len(index) / (time.perf_counter() - started)
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    computed = ours.compute(entry, lambda rows, written: None)
    speed = computed / (time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated()
    sys.stdout.write(f"\nextract {speed:,.0f} rows/s, bare model {bare:,.0f}, planned {planned.rows_per_second:,.0f}")
    sys.stdout.write(f"\npeak memory of the GPU {peak / 1e9:.2f} GB, planned {planned.memory / 1e9:.2f} GB")
    assert computed == entries.row_count(entry, todo) and peak <= planned.memory


@pytest.mark.parametrize("backbone", ["mini", "gpt2"])
def test_padding_changes_the_speed_and_not_the_features(tmp_path, monkeypatch, backbone):
    """If other batches are faster on this GPU, `batches.BATCH_PRODUCTS` should be larger or smaller."""
    draw, count = np.random.default_rng(0), 4096
    x, lengths = draw.normal(size=(count, TOKENS, 4)).astype(np.float32), draw.integers(4, TOKENS + 1, count)
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(count) % 2, lengths=lengths)
    prepared = prepare(str(tmp_path / "rows.npz"), cache=tmp_path)
    settings = {"backbone": backbone, "input": "orthogonal", "patch": 1, "layers": "final", "pool": "mean"}
    settings |= {"init": "random", "compute": "float32"}
    ours = extractor.load_extractor(ExtractOptions(**settings, device=DEVICE, cache=tmp_path), prepared, tmp_path)
    train, found = prepared.split("train"), {}
    part = train.take(np.arange(len(train)))
    products = batches.BATCH_PRODUCTS["float32"]
    for factor in (0.0, 0.1, 0.3, 1.0, 3.0, 10.0):
        monkeypatch.setitem(batches.BATCH_PRODUCTS, "float32", factor * products)
        loaded = load(ours.model, prepared.scaling, part.x, part.lengths, ours.layout.batch_rows)
        launch(ours.model, loaded, ours.columns)()  # warm up
        started = time.perf_counter()
        found[factor] = launch(ours.model, loaded, ours.columns)()["final/mean"]
        speed = len(part.x) / (time.perf_counter() - started)
        count = len([*loaded.batches])
        sys.stdout.write(f"\n{backbone}, {factor:g} times the cost of a batch: {speed:,.0f} rows/s in {count} batches")
        np.testing.assert_allclose(found[factor], found[0.0], atol=1e-2 * found[0.0].std())


def test_a_resumed_run_and_two_processes_give_the_bytes_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "PAYS_OFF", 0)
    monkeypatch.setitem(defaults.BLOCK_ROWS, "cuda", 128)
    monkeypatch.setitem(entries.MAX_TOKENS, "cuda", 1)
    call = {"device": "cuda", **SMALL}
    alone = extract("digits", cache=tmp_path / "one", **call)
    expected = contents(alone.entry, "*.h5")
    two = extract("digits", cache=tmp_path / "two", workers=2, **call)
    assert contents(two.entry, "*.h5") == expected
    for file in list(two.entry.rglob("0*.h5"))[::2]:
        file.unlink()
    again = extract("digits", cache=tmp_path / "two", **call)
    assert again.computed_rows and verify(again.store.entry) == []
    assert contents(two.entry, "*.h5") == expected


# Compiled code keeps what it does not write in float32, so in bfloat16 it rounds at other places.
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-2), ("bfloat16-all", 0.3)])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "t5"])
def test_compiled_features_are_those_of_eager_blocks_and_the_same_in_a_second_run(kind, compute, tolerance, tmp_path):
    model = str(save(kind, tmp_path / kind))
    settings = {"backbone": model, "device": DEVICE, "input": "orthogonal", "patch": 1, "compute": compute, **SMALL}
    eager = extract("digits", cache=tmp_path, compile_blocks=False, **settings)
    compiled, again = (
        extract("digits", cache=tmp_path / name, compile_blocks=True, **settings) for name in ("first", "second")
    )
    assert compiled.store.entry.key != eager.store.entry.key
    for column in eager.columns:
        found, expected = (done["train"].read(column) for done in (compiled, eager))
        # A value that is almost equal to a limit of the shares can be counted on either side of it.
        few = 0.05 if compute != "float32" else 1e-3 if "shares" in column else 0
        assert (np.abs(found - expected) > tolerance * expected.std()).mean() <= few, column
    assert contents(again.entry, "*.h5") == contents(compiled.entry, "*.h5")


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "t5"])
def test_captured_batches_have_the_bytes_of_others(kind, tmp_path):
    task, draw = Task(name="t", form=Vectors(5), max_tokens=12, classes=3), np.random.default_rng(0)
    settings = Reservoir(backbone=str(save(kind, tmp_path / kind)), init="pretrained")
    x, lengths = draw.normal(size=(2000, 12, 5)).astype(np.float32), draw.integers(2, 13, 2000)
    names = ("embed/mean", "block01/max", "block03/quantiles3", "final/last")
    for compute in PRECISIONS:
        model = load_model(task, settings, DEVICE, compute)
        plain = forward(replace(model, repeated=None), None, x, lengths, names, 8)
        assert model.repeated is not None
        left = model.repeated._graphs_left
        captured = forward(model, None, x, lengths, names, 8)
        assert model.repeated._graphs_left < left
        for name in names:
            assert np.array_equal(captured[name], plain[name]), (name, compute)


@contextmanager
def without_waits():
    """Raise an error for an operation that waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_computes_what_it_computes_on_the_cpu_without_waiting(kind, tmp_path):
    task = Task(name="t", form=Vectors(5), max_tokens=12, classes=3)
    model = make_fpt(task, load_backbone(str(save(kind, tmp_path / kind)), "pretrained", seed=5), seed=3)
    columns = [Column(layer, pooling) for layer in model.backbone.layers for pooling in ("last", "mean", "max")]
    x, draws = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(1)), ([12, 12, 12], [12, 7, 2])
    expected = [model.features(x, torch.tensor(lengths), columns) for lengths in draws]
    model.to(DEVICE)
    for compute, largest in zip(PRECISIONS, (1e-3, 0.05, 0.05), strict=True):
        model.backbone.set_compute(compute)
        for lengths, on_cpu in zip(draws, expected, strict=True):
            arguments = x.to(DEVICE), torch.tensor(lengths, device=DEVICE), columns, min(lengths) == 12
            model.features(*arguments)  # constants are copied once
            may_wait = (kind, min(lengths) == 12) in STILL_WAIT
            with nullcontext() if may_wait else without_waits():
                on_gpu = model.features(*arguments)
            for column, values in on_gpu.items():
                off = (values.cpu() - on_cpu[column]).norm() / on_cpu[column].norm()
                assert off < largest, (column, compute, lengths)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "t5", "esm"])
def test_all_in_bfloat16_is_what_transformers_computes_in_bfloat16(kind, tmp_path):
    folder = save(kind, tmp_path / kind)
    embeds = torch.randn(3, 12, WIDTH, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    backbone = load_backbone(str(folder), "pretrained").to(DEVICE)
    backbone.set_compute("bfloat16-all")
    with torch.inference_mode():
        ours = dict(backbone.run_layers(embeds, layers=backbone.layers))
        theirs = hidden_states(kind, folder, torch.bfloat16, inputs_embeds=embeds.bfloat16())
    for (layer, hidden), expected in zip(ours.items(), theirs, strict=True):
        off = (hidden.float() - expected.float()).norm() / expected.float().norm()
        sys.stdout.write(f"\n{kind} {layer}: {off:.1e} of the norm from transformers in bfloat16")
        assert hidden.dtype == torch.bfloat16 and off < 2**-6, layer


@pytest.mark.parametrize("reader", ["text", "sounds"])
def test_the_readers_of_models_give_the_features_of_the_cpu(reader, tmp_path):
    if reader == "text":
        model, data = save_with_tokenizer("bert", tmp_path / "bert"), write_texts(tmp_path / "pets.jsonl", 60)
    else:
        model, data = save_with_extractor("wav2vec2", tmp_path / "wav"), write_sounds(tmp_path / "sounds", 40)
    settings: dict[str, Any] = {
        "backbone": str(model),
        "compute": "float32",
        "layers": "embed,final",
        "pool": "mean,std",
    }
    ours, theirs = (
        extract(str(data), device=device, cache=tmp_path / device, **settings) for device in (DEVICE, "cpu")
    )
    for column in ours.columns:
        found, expected = (done["train"].read(column) for done in (ours, theirs))
        assert np.abs(found - expected).max() < 1e-2 * expected.std(), column


@pytest.mark.parametrize("compiled", [False, True])
def test_training_reaches_the_loss_of_the_cpu(compiled, tmp_path):
    settings: dict[str, Any] = {
        "backbone": "gpt2:n_layer=2,n_embd=64,n_head=2",
        "init": "random",
        "steps": 20,
        "compute": "float32",
    }
    settings |= {"limit": 200, "dropout": 0.0}
    ours = train("digits", device=DEVICE, compiled=compiled, cache=tmp_path / "gpu", **settings)
    theirs = train("digits", device="cpu", cache=tmp_path / "cpu", **settings)
    assert ours.valid_loss == pytest.approx(theirs.valid_loss, rel=1e-3)


@pytest.fixture
def ragged(tmp_path):
    """Return options of short trainings on rows of 4 to 40 values, with dropout."""
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(90, 40, 2)).astype(np.float32), draw.integers(4, 41, 90)
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(90) % 3, lengths=lengths)
    settings: dict[str, Any] = {"backbone": "gpt2:n_layer=2,n_embd=64,n_head=2", "init": "random", "device": DEVICE}
    return settings | {"task": str(tmp_path / "rows.npz"), "steps": 60, "eval_every": 20, "dropout": 0.2}


@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-4), ("bfloat16", 2e-2)])
def test_captured_training_takes_the_steps_of_ordinary_training(compute, tolerance, ragged, tmp_path, monkeypatch):
    captures, capture = [], steps.CudaRecorder.capture
    monkeypatch.setattr(steps.CudaRecorder, "capture", lambda self, step: captures.append(step) or capture(self, step))
    settings = ragged | {"compute": compute}
    whole = train(**settings, run=tmp_path / "whole")
    assert len(captures) > 1, "several lengths are captured"
    train(**settings | {"steps": 27}, run=tmp_path / "stopped")
    resumed = train(**settings, resume=True, run=tmp_path / "stopped")
    monkeypatch.setattr(inputs, "capture_on_gpu", lambda *_: None)
    ordinary = train(**settings, run=tmp_path / "ordinary")
    for name, other in (("ordinary", ordinary), ("resumed", resumed)):
        # Sums of gradients in another order may change the last bits; other dropout changes the first digits.
        np.testing.assert_allclose(other.losses, whole.losses, rtol=tolerance)
        sys.stdout.write(f"\n{compute}: losses of the {name} run have equal bits: {other.losses == whole.losses}")


def test_training_goes_on_if_its_capture_fails(ragged, tmp_path, monkeypatch, capsys):
    forward = inputs.PreparedInputs.forward

    def wait_while_capturing(self, x, *arguments):
        if torch.cuda.is_current_stream_capturing():
            x.sum().item()
        return forward(self, x, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(inputs, "capture_on_gpu", lambda *_: None)
        ordinary = train(**ragged, run=tmp_path / "ordinary")
    monkeypatch.setattr(inputs.PreparedInputs, "forward", wait_while_capturing)
    failed = train(**ragged, run=tmp_path / "failed")
    np.testing.assert_allclose(failed.losses, ordinary.losses, rtol=2e-2)
    assert capsys.readouterr().err.count("without CUDA graphs") == 1


def test_a_readout_that_a_gpu_fits_predicts_what_that_of_the_cpu_predicts(tmp_path):
    features = extract("digits", device=DEVICE, cache=tmp_path, **SMALL)
    draw, file = np.random.default_rng(0), tmp_path / "new.npz"
    np.savez(file, x=draw.uniform(0, 16, (20, 16, 4)).astype(np.float32))
    scores, labels = [], []
    for device in (DEVICE, "cpu"):
        result = fit(features, device=device)
        scores.append(result.best.valid_score)
        labels.append([prediction.label for prediction in predict(result.saved, file, device=device)])
    assert scores[0] == pytest.approx(scores[1], abs=0.02)
    assert np.mean(np.array(labels[0]) == np.array(labels[1])) > 0.8
