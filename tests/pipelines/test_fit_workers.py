"""fit with several processes gives the moments and results of one process, to the last bit."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from reservoir_cache import Entry, FeatureStore, load_arrays
from reservoir_pipelines import extract, fit
from reservoir_pipelines import workers as pieces
from reservoir_pipelines.cli import run
from reservoir_pipelines.fitting import column_moments
from reservoir_pipelines.fitting.column_moments import ColumnMoments, compute_moments
from reservoir_pipelines.fitting.sources import ColumnSource, fold_blocks
from reservoir_pipelines.workers import map_pieces
from threadpoolctl import threadpool_limits

from reservoir import InputError
from reservoir.readouts import Targets, accumulate, fold_moments

SETTINGS = {"alphas": "1e-1:1e4:6", "columns": "block01/mean,final/mean", "select": "valid"}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, tiny_gpt2):
    """Return an entry of digits in three shards, not fitted yet."""
    root = tmp_path_factory.mktemp("workers")
    return extract("digits", backbone=str(tiny_gpt2), limit=600, cache=root, layers="block01,final").entry


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch):
    """Make every shard a range of its own, and let other processes do even little work."""
    monkeypatch.setattr(column_moments, "RANGE_SAMPLES", 250)
    monkeypatch.setattr(pieces, "PAYS_OFF", 0)


def kept(entry):
    """Return all moments that are stored in an entry, by name."""
    names = sorted(path.stem for path in (entry / "moments").glob("*.h5"))
    return {name: load_arrays(Entry.open(entry), name)[0] for name in names}


def fresh(entry, folder):
    """Return a copy of an entry without moments."""
    copy = folder / "features" / "digits" / entry.name
    shutil.copytree(entry, copy, ignore=shutil.ignore_patterns("moments"))
    return copy


def assert_same_moments(entry, expected):
    found = kept(entry)
    assert found.keys() == expected.keys()
    for name, arrays in expected.items():
        for key, value in arrays.items():
            np.testing.assert_array_equal(found[name][key], value, err_msg=f"{name} {key}")


def test_two_processes_give_the_same_bits_as_one(extracted, tmp_path, capsys):
    one, two = fresh(extracted, tmp_path / "one"), fresh(extracted, tmp_path / "two")
    with threadpool_limits(1):
        expected = fit(one, **SETTINGS)
        options = [f"--{name}={value}" for name, value in SETTINGS.items()]
        assert run(["fit", str(two), *options, "--workers", "2", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] == json.loads(json.dumps(expected.best.to_dict()))
    assert Path(found["results"]).read_bytes() == expected.results.read_bytes()
    assert len(kept(one)) == 2
    assert_same_moments(two, kept(one))


def test_a_cluster_gives_the_same_bits_as_one_process(extracted, tmp_path):
    distributed = pytest.importorskip("distributed")
    one, two = fresh(extracted, tmp_path / "one"), fresh(extracted, tmp_path / "two")
    settings = SETTINGS | {"select": "cv3", "class_weight": "balanced"}
    with (
        threadpool_limits(1),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
    ):
        expected = fit(one, **settings)
        found = fit(two, scheduler=cluster.scheduler_address, **settings)
    assert found.table == expected.table
    np.testing.assert_array_equal(found.readout.coef, expected.readout.coef)
    assert len(kept(one)) == 6
    assert_same_moments(two, kept(one))


def test_stored_moments_are_those_of_the_whole_column(extracted):
    source, targets = ColumnSource(FeatureStore(extracted), "final/mean"), Targets(1, 10)
    [whole] = next(compute_moments([ColumnMoments(source, targets)]))
    part = source.store["train"]
    expected = accumulate([(part["final/mean"], targets.encode(part.labels[:, 0]))])
    folds = next(compute_moments([ColumnMoments(source, targets, folds=3)]))
    pairs = [(whole, expected), *zip(folds, fold_moments(fold_blocks(source, 3, 10), targets, 3), strict=True)]
    for a, b in pairs:
        for name, value in b.to_arrays().items():
            np.testing.assert_allclose(a.to_arrays()[name], value, rtol=1e-10, atol=1e-10 * np.abs(value).max())


def test_ranges_cover_every_shard_once_and_few_run_at_a_time(extracted, monkeypatch):
    source = ColumnSource(FeatureStore(extracted), "final/mean")
    assert ColumnMoments(source, Targets(1, 10)).ranges() == [("train", 0, 1), ("train", 1, 2), ("train", 2, 3)]
    monkeypatch.setattr(column_moments, "RANGE_SAMPLES", 400)
    assert [split for split, *_ in ColumnMoments(source, Targets(1, 10), folds=3).ranges()].count("valid") > 0
    monkeypatch.setattr(column_moments, "RANGE_SAMPLES", 250)
    sizes = []

    def count(work, tasks, **settings):
        sizes.append(len(tasks))
        return map_pieces(work, tasks)

    monkeypatch.setattr(column_moments, "map_pieces", count)
    monkeypatch.setattr(column_moments, "MOST_BYTES", 2 * 8 * 16**2)
    list(compute_moments([ColumnMoments(source, Targets(1, 10))] * 3, workers=2))
    assert sizes == [2, 2, 2, 2, 1]


def test_all_tokens_of_a_row_are_in_one_fold(tiny_gpt2, tmp_path):
    done = extract(
        "bit-memory",
        backbone=str(tiny_gpt2),
        cache=tmp_path,
        layers="final",
        pool="last",
        limit=600,
        parameters={"n": 4, "token_bits": 2, "train_rows": 600, "valid_rows": 300, "test_rows": 10},
    )
    source = ColumnSource(done.store, "final/last")
    targets = Targets(source.labels("train").shape[1], 2)
    assert source.tokens() > 1
    wanted = ColumnMoments(source, targets, folds=2)
    assert len(wanted.ranges()) > 2
    for a, b in zip(next(compute_moments([wanted])), fold_moments(fold_blocks(source, 2, 2), targets, 2), strict=True):
        assert a.count == b.count
        np.testing.assert_allclose(a.xx, b.xx, rtol=1e-10, atol=1e-10 * np.abs(b.xx).max())


def test_wrong_devices_workers_and_schedulers_are_refused(extracted, tmp_path):
    for settings, words in [
        ({"device": "nowhere"}, "nowhere"),
        ({"device": "meta"}, "cpu or cuda"),
        ({"workers": -1}, "--workers -1: give a whole number from 0"),
        ({"scheduler": "nonsense://x"}, "no dask scheduler"),
    ]:
        with pytest.raises(InputError, match=words):
            fit(extracted, out=tmp_path, select="cv4", **settings)
