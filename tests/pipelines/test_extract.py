"""`extract` stores the features of the model, computes none twice, and survives interruptions; forecasts are close."""

import io
import itertools
import json
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from functools import partial

import h5py
import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reservoir_cache import CacheError, Entry, folder_bytes, list_entries, repair, writer
from reservoir_pipelines import extract, prepare
from reservoir_pipelines import plan as forecast_of
from reservoir_pipelines.cli import run as command
from reservoir_pipelines.extraction import entries, estimate, sharing
from reservoir_pipelines.preparation.prepared import PreparedSplit, draw_rows
from safetensors.torch import load_file, save_file
from scipy.io import wavfile

from reservoir.batches import cheapest_batches, padded_lengths, token_batches
from reservoir.errors import InputError
from reservoir.features import forward
from reservoir.fpt import FPT
from reservoir.loaded_model import load_model
from reservoir.option_fields import as_group
from reservoir.options import ExtractOptions, ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.plan.precision import BATCH_TOKENS, BLOCK_ROWS
from reservoir.tasks import task_named
from tests.helpers import contents, flip
from tests.reservoir.models import save_with_extractor


@pytest.fixture
def small(cache, tiny_gpt2):
    """Extract 300 digits through the tiny model: two blocks per split."""

    def run(**settings):
        return extract("digits", backbone=str(tiny_gpt2), **{"limit": 300, "compute": "float32", **settings})

    return run


def out_of_memory_above(rows, monkeypatch, *, after_batches=0):
    """Let the model run out of memory for batches of more rows, after some batches."""
    pooled_layers, batches = FPT.pooled_layers, []

    def limited(self, x, lengths, columns, *more):
        batches.append(len(x))
        if len(x) > rows and len(batches) > after_batches:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return pooled_layers(self, x, lengths, columns, *more)

    monkeypatch.setattr(FPT, "pooled_layers", limited)


def test_a_new_entry_that_does_not_fit_into_memory_gets_smaller_batches(small, monkeypatch, capsys, tmp_path):
    expected = small(batch_rows=8, cache=tmp_path / "other")
    out_of_memory_above(8, monkeypatch)
    done = small(batch_rows=32)
    assert "--batch-rows 16" in (said := capsys.readouterr().err) and "--batch-rows 8" in said
    assert Entry.open(done.entry).layout.batch_rows == 8
    for column in done.columns:
        np.testing.assert_array_equal(done["test"][column], expected["test"][column])


def test_an_entry_with_features_keeps_its_batches_and_says_what_helps(small, monkeypatch):
    out_of_memory_above(2, monkeypatch, after_batches=20)
    with pytest.raises(InputError, match="cache remove"):
        small(batch_rows=16)


def test_features_equal_those_of_the_model_run_by_hand(small, tiny_gpt2):
    done = small(store="float32", pool="last,mean,segments8")
    prepared = prepare("digits")
    model = load_model(prepared.task, resolve_model(ReservoirOptions(backbone=str(tiny_gpt2))), compute="float32")
    rows = draw_rows(prepared, 300)
    for split in ("train", "valid", "test"):
        whole = prepared.split(split).read(0, len(prepared.split(split)))
        x, lengths = whole.x[rows[split]], whole.lengths[rows[split]]
        direct = forward(model, prepared.scaling, x, lengths, done.columns, batch_rows=32)
        for column in done.columns:
            cached = done[split][column]
            np.testing.assert_allclose(cached, direct[column][:, 0], rtol=1e-4, atol=1e-5, err_msg=column)
        np.testing.assert_array_equal(done[split].labels, prepared.split(split).y[rows[split]])
        np.testing.assert_array_equal(done[split].index, rows[split])


def change_in_place(path):
    with h5py.File(path, "r+") as file:
        file["x"][...] = file["x"][...][::-1]


def change_by_renaming(path):
    shutil.copy(path, path.with_name("new"))
    change_in_place(path.with_name("new"))
    path.with_name("new").replace(path)


@pytest.mark.parametrize("change", [change_in_place, change_by_renaming])
def test_prepared_data_that_changes_between_two_blocks_stops_the_extraction(
    small, cache, tmp_path, tiny_gpt2, monkeypatch, change
):
    read, (path, _) = [], prepare("digits").split("train").files[0]
    real = PreparedSplit.take

    def take(split, index):
        read.append(split.name)
        if read.count("train") == 2:
            change(path)
        return real(split, index)

    with monkeypatch.context() as patched:
        patched.setattr(PreparedSplit, "take", take)
        with pytest.raises(InputError, match=r"00000\.h5: .*has changed"):
            small()
    # no wrong row was stored: the rerun, which prepares the data again, completes the entry
    clean = extract("digits", backbone=str(tiny_gpt2), limit=300, compute="float32", cache=tmp_path / "other")
    assert contents(small().entry, "*.h5") == contents(clean.entry, "*.h5")


def test_a_worker_refuses_prepared_data_that_changed_after_it_was_verified(small, tiny_gpt2):
    entry, prepared = small().store.entry, prepare("digits")
    options = as_group({"backbone": str(tiny_gpt2), "limit": 300, "compute": "float32"}, ExtractOptions)
    share = sharing.Share(replace(options, cache=entry.path.parents[2]), prepared.path, entry.key, state=prepared.state)
    assert sharing.open_share(share).spec.key == entry.key
    change_in_place(prepared.path / "train" / "00000.h5")
    with pytest.raises(InputError, match=r"has changed since the command began"):
        sharing.open_share(share)


def test_added_columns_keep_old_files_and_equal_a_run_with_all_columns(small, tmp_path):
    first = small(layers="block01", pool="last")
    before = contents(first.entry, "*.h5")
    both = small(layers="block01,final", pool="last,mean")
    after = contents(both.entry, "*.h5")
    assert both.entry == first.entry
    assert {name: after[name] for name in before} == before
    at_once = small(layers="block01,final", pool="last,mean", cache=tmp_path / "other")
    for split in ("train", "test"):
        for column in both.columns:
            np.testing.assert_array_equal(both[split][column], at_once[split][column])


def test_a_damaged_shard_is_computed_again(small):
    first = small()
    whole = contents(first.entry, "*.h5")
    victim = next(p for p in sorted(first.entry.rglob("*.h5")) if p.name != "targets.h5")
    flip(victim, victim.stat().st_size // 2)
    assert small().reused  # the damaged file is not read
    with pytest.raises(CacheError, match=r"damaged.*cache repair"):
        [first[split].read(column) for split in first for column in first.columns]
    assert [problem.path for problem in repair(first.store.entry)] == [victim]
    repaired = small()
    assert not repaired.reused
    assert 0 < repaired.computed_rows <= 256
    assert sorted(contents(repaired.entry, "*.h5").values()) == sorted(whole.values())


def test_a_finished_entry_is_found_without_reading_its_features(small, monkeypatch):
    first, opened = small(), []

    def watch(module, name):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda file, *a, **k: opened.append(str(file)) or plain(file, *a, **k))

    watch(h5py, "File")
    watch(io, "open")
    watch(os, "open")
    assert small().reused and str(first.entry / "train" / "manifest.json") in opened
    assert {name[-10:] for name in opened if str(first.entry) in name and name.endswith(".h5")} == {"targets.h5"}


def test_changed_weights_make_another_entry(cache, tiny_gpt2, tmp_path):
    folder = shutil.copytree(tiny_gpt2, tmp_path / "model")
    file, settings = folder / "model.safetensors", {"limit": 20, "layers": "block01", "pool": "mean"}
    first = extract("digits", backbone=str(folder), **settings)
    tensors = load_file(file)
    tensors["transformer.h.0.mlp.c_fc.bias"] += 1
    save_file(tensors, file, {"format": "pt"})
    assert extract("digits", backbone=str(folder), **settings).entry != first.entry


def test_each_option_that_changes_numbers_makes_another_entry(small):
    few = partial(small, limit=40)
    plain = few()
    others = [few(seed=1), few(gain=2.0), small(limit=50), few(store="float32")]
    others += [few(compute="bfloat16"), few(compute="bfloat16-all")]
    entries = {done.entry for done in [plain, *others]}
    assert len(entries) == 7 and few(batch_rows=7).entry == plain.entry
    assert plain.store.entry.spec.backbone.gelu == "one step"


def test_a_larger_limit_contains_the_rows_of_a_smaller_one(cache):
    prepared = prepare("digits")
    small, large = draw_rows(prepared, 50), draw_rows(prepared, 200)
    for split in prepared.rows:
        assert set(small[split]) < set(large[split]) and len(small[split]) == 50
    assert draw_rows(prepared, None)["train"].tolist() == list(range(prepared.rows["train"]))


LETTERS = np.random.default_rng(0).integers(20, 2001, 8192)
PADDED = {  # maximum length in tokens, and lengths of the rows (None: those of ListOps)
    "listops": (512, None),
    "homology": (1024, np.random.default_rng(0).lognormal(np.log(145), 0.55, 4096).clip(21, 860).astype(int)),
    "letters": (2000, LETTERS),
    "letters, of 100,000 rows": (20, -(-LETTERS // 100)),
    "words": (64, (LETTERS / 4.4 + 2).clip(max=512).astype(int)),
}


@pytest.mark.parametrize("varied", [False, True])
def test_features_do_not_depend_on_the_rows_of_a_file(tiny_gpt2, tmp_path, monkeypatch, varied):
    draw, task = np.random.default_rng(0), str(tmp_path / "rows.npz")
    lengths = draw.integers(4, 31, 144) if varied else np.full(144, 30)
    split = np.repeat(["train", "valid", "test"], 48)
    np.savez(task, x=draw.normal(size=(144, 30, 2)), y=np.arange(144) % 2, lengths=lengths, split=split)
    monkeypatch.setitem(BLOCK_ROWS, "cpu", 16)
    monkeypatch.setattr(entries, "MIN_BLOCKS", 2)
    made = []
    for tokens in (1, 10**9):
        monkeypatch.setitem(entries.MAX_TOKENS, "cpu", tokens)
        settings = {"backbone": str(tiny_gpt2), "layers": "embed,final", "compute": "float32", "patch": 1}
        made.append(extract(task, cache=tmp_path / str(tokens), **settings))
    small, large = made
    assert small.store.entry.key == large.store.entry.key
    assert small.store.entry.layout.block_rows == 16 < large.store.entry.layout.block_rows
    for split in ("train", "valid", "test"):
        for column in small.columns:
            np.testing.assert_array_equal(small[split][column], large[split][column])


def test_progress_counts_each_batch(small, monkeypatch):
    counted, _ = [], prepare("digits")
    monkeypatch.setattr("reservoir_pipelines.output.Meter.advance", lambda _, *args: counted.append(args))
    done = small(batch_rows=10)
    assert counted[0] == (10, None) and sum(rows for rows, _ in counted) == sum(done.rows.values())
    assert [rows for rows, written in counted if written is not None] == [0] * sum(
        done.store.entry.layout.count(number) for number in done.rows.values()
    )


@pytest.mark.parametrize("name", PADDED)
def test_padding_is_below_five_percent(name):
    """The lengths are those of ListOps, some drawn like TAPE's proteins (21 to 860, mean 167), and those of strings."""
    tokens, lengths = PADDED[name]
    if lengths is None:
        source = task_named("listops", train_rows=4096, valid_rows=1, test_rows=1)
        lengths = np.concatenate([source.read(p)["train"].lengths for p in source.pieces() if p.part == "train"])
    rows, padded_tokens = BLOCK_ROWS["cpu"], 0
    shapes = set[int]()
    most_tokens = max(1, BATCH_TOKENS["cpu"] // tokens) * tokens
    for block in (lengths[low : low + rows] for low in range(0, len(lengths), rows)):
        padded = padded_lengths(block)
        assert (padded >= block).all()
        cut = list(token_batches(block, padded, most_tokens))
        assert sorted(np.concatenate(cut)) == list(range(len(block)))
        padded_tokens += sum(len(batch) * padded[batch[-1]] for batch in cut)
        shapes |= {len(batch) * padded[batch[-1]] for batch in cut}
    assert padded_tokens < 1.05 * lengths.sum()
    assert len(shapes) < 200  # oneDNN keeps compiled code for each shape in memory


def cost_of(batches, padded, batch_cost):
    return sum(len(rows) * int(padded[rows].max()) + batch_cost for rows in batches)


@hypothesis.settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    most_tokens=st.integers(1, 300),
    batch_cost=st.integers(0, 200),
)
def test_batches_of_a_gpu_cost_least(lengths, most_tokens, batch_cost):
    lengths = np.array(lengths)
    padded = padded_lengths(lengths)
    cheapest = list(cheapest_batches(lengths, padded, most_tokens, batch_cost))
    order = np.concatenate(cheapest)
    assert np.array_equal(order, np.argsort(lengths, kind="stable"))
    assert all(len(rows) == 1 or len(rows) * padded[rows].max() <= most_tokens for rows in cheapest)
    # Every way to divide the first eight lengths into parts.
    few = padded <= np.unique(padded)[:8][-1]
    lengths, padded = lengths[few], padded[few]
    least_cost = cost_of(cheapest_batches(lengths, padded, most_tokens, batch_cost), padded, batch_cost)
    sizes = np.unique(padded)
    for borders in itertools.product([False, True], repeat=len(sizes) - 1):
        cost = 0
        for part in np.split(sizes, np.flatnonzero(borders) + 1):
            rows = int(np.isin(padded, part).sum())
            cost += rows * part[-1] + batch_cost * -(-rows // max(1, most_tokens // part[-1]))
        assert least_cost <= cost


def test_batches_of_a_gpu_are_fewer_for_small_models_and_cheaper_than_with_a_limit_of_padding():
    lengths = PADDED["homology"][1][: BLOCK_ROWS["cuda"]]
    padded, most_tokens = padded_lengths(lengths), BATCH_TOKENS["cuda"]
    counts = []
    for batch_cost in (500, 8000, 100_000):
        cheapest = list(cheapest_batches(lengths, padded, most_tokens, batch_cost))
        counts.append(len(cheapest))
        limited = [token_batches(lengths, padded, most_tokens, limit) for limit in (0.045, 0.1, 0.2, 0.4, 1.0)]
        assert cost_of(cheapest, padded, batch_cost) < min(cost_of(rows, padded, batch_cost) for rows in limited)
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[-1]


def test_values_beyond_float16_are_refused_with_layer_and_row(small, cache, monkeypatch):
    from reservoir.fpt import FPT

    plain = FPT.pooled_layers

    def huge(self, x, lengths, columns, *more):
        for pooled in plain(self, x, lengths, columns, *more):
            yield {name: values * 1e6 for name, values in pooled.items()}

    monkeypatch.setattr(FPT, "pooled_layers", huge)
    # All splits overflow, and threads write them, so that any of them may be the one that is named.
    with pytest.raises(CacheError, match=r"^(train|valid|test), row \d+, column embed/.*--store"):
        small(layers="embed", pool="last")
    assert list_entries(cache) == []  # an entry without features would be the last one of the task
    assert np.isfinite(small(layers="embed", pool="last", store="float32")["train"]["embed/last"]).all()


SETTINGS = {"compute": "float32", "layers": "embed,final"}


@pytest.fixture
def costly(monkeypatch, tiny_gpt2):
    """Replace the clock by one that advances with each token of the model (and padding), and with each written row."""
    from reservoir.fpt import FPT

    now, plain, write = [0.0], FPT.pooled_layers, writer._write

    def features(self, x, lengths, columns, *more):
        now[0] += 1e-3 * x.shape[0] * x.shape[1]
        return plain(self, x, lengths, columns, *more)

    def written(entry, split, block, arrays):
        now[0] += 0.02 * len(next(iter(arrays.values())).values)
        return write(entry, split, block, arrays)

    monkeypatch.setattr(FPT, "pooled_layers", features)
    monkeypatch.setattr(writer, "_write", written)
    monkeypatch.setattr(estimate, "clock", lambda: now[0])
    monkeypatch.setattr(estimate, "processor", lambda: 2 * now[0])
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return now, {"backbone": str(tiny_gpt2), **SETTINGS}


@pytest.fixture
def letter_table(tmp_path):
    draw = np.random.default_rng(0)
    rows = ["".join(draw.choice(list("acgt"), draw.integers(5, 61))) for _ in range(400)]
    path = tmp_path / "letters.csv"
    path.write_text("sequence,label\n" + "".join(f"{row},{row.count('a') > len(row) / 4:d}\n" for row in rows))
    return str(path)


def test_predicted_time_and_size_equal_those_of_the_extraction(costly, letter_table, cache):
    now, settings = costly
    settings |= {"patch": 1, "input": "gaussian", "pool": "last,mean"}
    found = forecast_of(letter_table, **settings)
    assert [path.name for path in cache.iterdir()] == ["prepared"]
    before, done = now[0], extract(letter_table, **settings)
    assert found.seconds == pytest.approx(now[0] - before, rel=0.2)
    assert found.processor_seconds == pytest.approx(2 * found.seconds) and found.load == 0
    assert found.rows == sum(done.rows.values()) == done.computed_rows == 400
    assert found.columns == len(done.columns)
    assert folder_bytes(done.store.entry.path) == pytest.approx(found.bytes, rel=0.2)
    assert len(list(done.store.entry.path.glob("*/0*.h5"))) == found.files
    assert 20 < found.tokens < 45 and found.padding < 0.15
    many = forecast_of(letter_table, rows=4_000_000, workers=100, **settings)
    assert many.seconds == pytest.approx(100 * found.seconds, rel=0.1)
    more = forecast_of(letter_table, rows=8_000_000, workers=100, **settings)
    assert more.bytes == pytest.approx(2 * many.bytes, rel=0.01)
    assert more.files == pytest.approx(2 * many.files, rel=0.01) and 100 < many.files < 4_000_000 // 256
    assert more.memory - many.memory == pytest.approx(8 * 4_000_000, abs=2e7)
    assert more.starter_memory - many.starter_memory == pytest.approx(20 * 4_000_000, abs=2e7)


def test_the_load_of_a_machine_changes_no_estimate_and_is_said(costly, letter_table, cache, capsys, monkeypatch):
    now, settings = costly
    settings |= {"patch": 1, "input": "gaussian", "pool": "last,mean"}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    idle, speech = forecast_of(letter_table, **settings), capsys.readouterr().err
    assert "busy" not in speech
    # Ten times the wall time for the same processor time.
    monkeypatch.setattr(estimate, "clock", lambda: 10 * now[0])
    monkeypatch.setattr(estimate.os, "getloadavg", lambda: (20.0, 20.0, 20.0))
    busy = forecast_of(letter_table, **settings)
    assert (busy.processor_seconds, busy.load) == (pytest.approx(idle.processor_seconds), 20)
    assert busy.seconds == pytest.approx(idle.seconds)
    assert re.search(r"plan: the machine is busy \(a load of 20.0 on \d+ cores\)", capsys.readouterr().err)


def test_the_trial_reads_batches_of_neighbouring_rows(costly, cache, tiny_gpt2, tmp_path, monkeypatch):
    _, settings = costly
    drawn, trial = [], estimate._trial
    monkeypatch.setattr(estimate, "_trial", lambda run, rows: drawn.append(rows) or trial(run, rows))
    np.savez(tmp_path / "waves.npz", x=np.random.default_rng(0).normal(size=(3000, 4, 1)), y=np.arange(3000) % 2)
    forecast_of(str(tmp_path / "waves.npz"), batch_rows=50, **settings)
    assert [len(rows) for rows in drawn] == [50 * 2**n for n in range(len(drawn))] and len(drawn) > 1
    assert all((np.diff(rows.reshape(-1, 50)) == 1).all() for rows in drawn)
    assert drawn[-1][-1] - drawn[-1][0] > len(drawn[-1])


def test_columns_are_planned_for_the_rows_to_come(costly, cache, tiny_gpt2, tmp_path):
    np.savez(tmp_path / "waves.npz", x=np.random.default_rng(0).normal(size=(90, 40, 1)), y=np.arange(90) % 2)
    settings = {"backbone": str(tiny_gpt2), "compute": "float32"}
    few, many = (forecast_of(str(tmp_path / "waves.npz"), rows=rows, **settings) for rows in (90, 10**8))
    assert many.bytes / many.rows < few.bytes / few.rows / 4


def test_the_trial_of_a_killed_plan_is_removed_by_the_next_plan(costly, cache, tiny_gpt2, monkeypatch):
    roots, settings = [], {"backbone": str(tiny_gpt2), "compute": "float32", "layers": "final"}
    compute = estimate.Extractor.compute

    def compute_noting_root(self, *arguments):
        roots.append(self.root)
        return compute(self, *arguments)

    monkeypatch.setattr(estimate.Extractor, "compute", compute_noting_root)
    forecast_of("digits", **settings)
    of_dead_process = re.sub(r"-[0-9]+-(?=[0-9a-f]{8}\.tmp$)", f"-{2**22 + 7}-", roots[0].name)
    (cache / of_dead_process / "features").mkdir(parents=True)
    forecast_of("digits", **settings)
    assert roots[0].name != of_dead_process and not list(cache.glob(".*.tmp"))


def test_the_command_prints_a_table_or_json(costly, cache, capsys, tiny_gpt2):
    flags = ["--backbone", str(tiny_gpt2), "--compute", "float32", "--layers", "final", "--rows", "1000000000"]
    assert command(["plan", "digits", *flags, "--workers", "64"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^workers +64$", out, re.MULTILINE) and re.search(r"^bytes +\d.*B$", out, re.MULTILINE)
    assert " per row\n" in out and re.search(r"^padding +\d+\.\d%$", out, re.MULTILINE)
    assert command(["plan", "digits", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 10**9 and found["memory"] > 10**7
    assert command(["plan", "digits", "--rows", "0"]) == 2


def test_sounds_are_planned_as_the_samples_that_the_model_reads(cache, tmp_path):
    pytest.importorskip("soundfile")
    for n in range(10):
        (tmp_path / "calls" / f"{n % 2}").mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(n).normal(0, 3000, 800).astype(np.int16)
        wavfile.write(tmp_path / "calls" / f"{n % 2}" / f"{n}.wav", 16000, noise)
    model = {"backbone": str(save_with_extractor("wav2vec2", tmp_path / "model")), "compute": "float32"}
    found, done = forecast_of(str(tmp_path / "calls"), **model), extract(str(tmp_path / "calls"), **model)
    assert done.store.entry.spec.input.kind == "native"
    assert found.columns == len(done.columns) and found.tokens == 79  # a spectrum would have 3 frames


def test_a_dry_run_prints_each_option_with_its_reason_and_computes_nothing(cache, call, answer, refusal):
    assert "not a multiple of 5 heads" in refusal("extract", "digits", "--dry-run", "--backbone", "gpt2:n_head=5")
    code, out, _ = call("extract", "digits", "--dry-run", "--gain", "2", "--layers", "block01")
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert code == 0 and lines["gain"].split() == ["gain", "2.0", "given"]
    assert lines["layers"].split() == ["layers", "block01", "given"]
    assert lines["backbone"].split(maxsplit=2) == ["backbone", "mini", "comes with this package"]
    assert not (cache / "features").exists()
    found = answer("extract", "digits", "--dry-run")
    assert found["pool"] == {"value": "last,mean", "why": "the last token, as in the paper, and the mean of all"}
    together, *alone = found["columns"]["value"]
    assert together.split("+")[:2] == alone[:2] == ["embed/last", "embed/mean"] and "columns" not in lines["gain"]


def test_items_are_made_ahead_by_another_thread_and_its_error_comes_in_order():
    made = []

    def items():
        for number in range(9):
            if number == 6:
                raise ValueError("six")
            made.append((number, threading.get_ident()))
            yield number

    items_ahead = entries.ahead(items(), 2)
    assert [next(items_ahead) for _ in range(4)] == [0, 1, 2, 3]
    assert [next(items_ahead), next(items_ahead)] == [4, 5]
    with pytest.raises(ValueError, match="six"):
        next(items_ahead)
    assert threading.get_ident() not in {thread for _, thread in made}


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_the_depth_is_made_early_and_nothing_after_closing(depth):
    made, count = [], threading.active_count()
    items_ahead = entries.ahead(map(made.append, range(100)), depth)
    next(items_ahead)
    deadline = time.monotonic() + 600
    while len(made) < 1 + depth and time.monotonic() < deadline:
        time.sleep(0.001)
    items_ahead.close()
    assert made == [*range(1 + depth)] and threading.active_count() == count
