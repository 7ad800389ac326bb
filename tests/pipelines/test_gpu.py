"""Extraction on a GPU: `make gpu` runs these tests if there is one, and prints speeds and memory."""

import sys
import time

import numpy as np
import pytest
import torch
from reservoir_cache import verify
from reservoir_pipelines import extract, plan, prepare, workers
from reservoir_pipelines.extraction import entries, extractor

from reservoir import features
from reservoir import plan as defaults
from reservoir.column import Column
from reservoir.features import launch, load
from reservoir.options import ExtractOptions
from tests.files import contents

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
    """The share of padding that is fastest on this GPU belongs in `features.MAX_PADDING`, by kind of device."""
    draw, count = np.random.default_rng(0), 4096
    x, lengths = draw.normal(size=(count, TOKENS, 4)).astype(np.float32), draw.integers(4, TOKENS + 1, count)
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(count) % 2, lengths=lengths)
    prepared = prepare(str(tmp_path / "rows.npz"), cache=tmp_path)
    settings = {"backbone": backbone, "input": "orthogonal", "patch": 1, "layers": "final", "pool": "mean"}
    settings |= {"init": "random", "compute": "float32"}
    ours = extractor.load_extractor(ExtractOptions(**settings, device=DEVICE, cache=tmp_path), prepared, tmp_path)
    train, found = prepared.split("train"), {}
    part = train.take(np.arange(len(train)))
    for limit in (0.0, 0.045, 0.1, 0.2, 0.4, 1.0):
        monkeypatch.setitem(features.MAX_PADDING, "cuda", limit)
        loaded = load(ours.model, prepared.scaling, part.x, part.lengths, ours.layout.batch_rows)
        launch(ours.model, loaded, ours.columns)()  # warm up
        started = time.perf_counter()
        found[limit] = launch(ours.model, loaded, ours.columns)()["final/mean"]
        speed = len(part.x) / (time.perf_counter() - started)
        count = len([*loaded.batches])
        sys.stdout.write(f"\n{backbone}, padding up to {limit:.0%}: {speed:,.0f} rows/s in {count} batches")
        np.testing.assert_allclose(found[limit], found[0.0], atol=1e-2 * found[0.0].std())


def test_a_resumed_run_and_two_processes_give_the_bytes_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "PAYS_OFF", 0)
    monkeypatch.setitem(defaults.BLOCK_ROWS, "cuda", 128)
    monkeypatch.setattr(entries, "MAX_TOKENS", 1)
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
