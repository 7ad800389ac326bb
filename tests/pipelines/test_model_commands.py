"""The commands `backbone`, `attention`, `cache` and `doctor`: their output, plots and files."""

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import h5py
import numpy as np
import pytest
import torch
from reservoir_pipelines import attention, extract, fit, prepare, train
from reservoir_pipelines.extraction.extract import resolved_plan
from reservoir_pipelines.paper.attention_maps import bit_diagonals, token_labels
from reservoir_pipelines.training.checkpoints import load_run
from reservoir_pipelines.training.run_folder import RunFolder

from reservoir.backbones import attention_maps
from reservoir.batches import to_tokens
from reservoir.errors import InputError
from reservoir.loaded_model import load_model
from reservoir.options import ExtractOptions, ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.tasks.task import Task, Tokens, Vectors

TINY = "gpt2:n_layer=2,n_embd=16,n_head=2,n_positions=70"
PNG = b"\x89PNG"


@pytest.fixture
def run(call):
    def running(*arguments):
        code, out, error = call(*arguments)
        assert code == 0, error
        return out

    return running


def test_backbone_prints_its_card_and_draws_it(run, cache, tmp_path, painted):
    settings = ("backbone", TINY, "--init", "random", "--task", "cifar10", "--out", str(tmp_path / "card.png"))
    card = json.loads(run(*settings, "--json"))
    assert (card["family"], card["depth"], card["width"]) == ("gpt2", 2, 16)
    assert card["trained_total"] == sum(card["trained"].values())
    assert card["paper_share"] == card["paper_total"] / card["whole"]
    assert len(card["deviations"]["attn.c_attn.weight"]) == 2
    assert (tmp_path / "card.png").read_bytes().startswith(PNG)
    assert (tmp_path / "card.png").stat().st_size > 2000
    text = run(*settings)
    assert f"{card['paper_total']:,}" in text and f"{card['groups']['attention']:,}" in text
    assert "normal with standard deviation initializer_range, for c_proj divided by sqrt(2 x blocks)" in text


def test_backbone_refuses_a_task_that_is_too_long(refusal, cache):
    error = refusal("backbone", TINY, "--init", "random", "--task", "cifar10-lra")
    assert "task 'cifar10-lra': the sequences have 1024 tokens" in error


def test_attention_saves_the_arrays_of_its_plot(run, cache, tmp_path, painted):
    out = tmp_path / "maps.png"
    settings = ("--backbone", TINY, "--init", "random", "--average", "5", "--layer", "2", "--out", str(out))
    line = run("attention", "bit-xor", *settings, "--json")
    done = json.loads(line)
    assert done["labels"][:6] == ["1.1", "1.2", "1.3", "1.4", "1.5", "2.1"]
    assert out.read_bytes().startswith(PNG) and out.stat().st_size > 2000
    with h5py.File(done["arrays"]) as file:
        one, mean = file["first_row"][:], file["mean"][:]
        assert file.attrs["layer"] == 2 and file.attrs["rows"] == 5
        assert file["labels"].asstr()[0] == "1.1"
    assert one.shape == mean.shape == (2, 10, 10)
    np.testing.assert_allclose(one.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(mean.sum(-1), 1, rtol=1e-5)


def test_diagonals_lie_where_the_bits_are():
    xor = Task(name="bit-xor", form=Vectors(1), max_tokens=15, classes=2, readout_tokens=5)
    memory = Task(name="bit-memory", form=Vectors(50), max_tokens=120, classes=2, readout_tokens=20, outputs=50)
    assert bit_diagonals(xor) == {0: "string 3", 5: "string 2", 10: "string 1"}
    assert list(bit_diagonals(memory)) == [20, 40, 60, 80, 100]
    assert bit_diagonals(Task(name="digits", form=Vectors(4), max_tokens=16, classes=10)) == {}


def test_tokens_are_named():
    listops = Task(name="listops", form=Tokens(16), max_tokens=4, classes=10)
    assert token_labels(listops, np.array([12, 5, 1, 15]), 4) == ["[MAX", "4", "0", "]"]
    own = Task(name="own", form=Tokens(9), max_tokens=4, classes=2)
    assert token_labels(own, np.array([3, 8, 0, 0]), 2) == ["3", "8"]
    sensor = Task(name="s", form=Vectors(1), max_tokens=3, classes=2)
    assert token_labels(sensor, np.array([[0.25], [-1], [2]]), 3) == ["0.25", "-1", "2"]
    assert token_labels(Task(name="s", form=Vectors(2), max_tokens=2, classes=2), np.zeros((2, 2)), 2) == ["1", "2"]


def test_attention_refuses_what_it_cannot_do(cache):
    with pytest.raises(InputError, match="esn has no maps of the whole sequence"):
        attention("bit-xor", backbone="esn:units=20")
    with pytest.raises(InputError, match="--average 0"):
        attention("bit-xor", average=0)


ONE_BLOCK = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=30,initializer_range=0.3"
QUICK = {"backbone": ONE_BLOCK, "init": "random", "device": "cpu", "steps": 4, "eval_every": 2, "learning_rate": 0.05}
FEW = {"train_rows": 40, "valid_rows": 20, "test_rows": 20}


def by_hand(model, rows):
    """Return the maps of sequences of tokens as the model sees them, each passed alone and without padding."""
    maps = []
    for tokens in rows:
        embeds = model.fpt.inputs(torch.from_numpy(tokens[None]))
        maps.append(attention_maps(model.fpt.backbone, embeds, torch.tensor([len(tokens)]))[0].numpy())
    return maps


def assert_maps(done, expected):
    """Compare the saved maps with those of each row: the first alone, and the mean over rows with both tokens."""
    longest = max(maps.shape[-1] for maps in expected)
    padded = np.full((len(expected), 2, longest, longest), np.nan)
    for row, maps in enumerate(expected):
        padded[row, :, : maps.shape[-1], : maps.shape[-1]] = maps
    with h5py.File(done.arrays) as file:
        np.testing.assert_allclose(file["first_row"][:], expected[0], atol=1e-5)
        np.testing.assert_allclose(file["mean"][:], np.nanmean(padded, axis=0), atol=1e-5)
    assert len(done.labels) == expected[0].shape[-1]


def first_rows(split, rows):
    """Return the first rows of a split as stored, each without its padding."""
    part = split.read(0, rows)
    return [x[:n].astype(np.float32) for x, n in zip(part.x, part.lengths, strict=True)]


def write_own(path, seed=0, scale=1.0):
    draw = np.random.default_rng(seed)
    x, lengths = scale * draw.normal(3, 2, (60, 16, 2)), draw.integers(7, 17, 60)
    lengths[:2] = 16
    np.savez(path, x=x.astype(np.float32), y=np.arange(60) % 2, lengths=lengths, split=["train", "valid", "test"] * 20)
    return str(path)


def test_the_runs_own_task_parameters_are_used(cache):
    parameters = {"n": 3, **FEW}
    done = train("bit-xor", parameters=parameters, **QUICK)
    maps = attention("bit-xor", run=done.path, average=7, device="cpu")
    assert maps.labels == ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3"] and list(maps.diagonals) == [0, 3]
    rows = first_rows(prepare("bit-xor", parameters=parameters).split("test"), 7)
    assert_maps(maps, by_hand(load_run(done.path, "cpu", "float32"), rows))
    again = attention("bit-xor", run=done.path, average=7, device="cpu", parameters=parameters)
    np.testing.assert_array_equal(again.first_row, maps.first_row)


@pytest.mark.parametrize("parameters", [{}, {"protocol": "paper", "max_tokens": 18}])
def test_parameters_equal_to_their_defaults_prepare_nothing_again(cache, parameters):
    parameters = {**FEW, "min_length": 6, "max_length": 20, **parameters}
    done = train("listops", parameters=parameters, **QUICK)
    before = sorted((cache / "prepared").iterdir())
    maps = attention("listops", run=done.path, average=3, device="cpu")
    assert sorted((cache / "prepared").iterdir()) == before
    assert ("[" in maps.labels[0]) == ("protocol" not in parameters)
    rows = first_rows(prepare("listops", parameters=parameters).split("test"), 3)
    assert_maps(maps, by_hand(load_run(done.path, "cpu", "float32"), [row.astype(np.int64) for row in rows]))


@pytest.mark.parametrize("standardise", [True, False])
def test_the_runs_own_scaling_is_used(cache, tmp_path, standardise):
    own = write_own(tmp_path / "own.npz")
    done = train(own, standardise=standardise, **QUICK)
    scaling = json.loads((done.path / "config.json").read_text())["scaling"]
    offset, scale = np.float32(scaling["offset"]), np.float32(scaling["scale"])
    assert (offset.min() > 2) == standardise
    model = load_run(done.path, "cpu", "float32")
    for seed, unit in ((0, 1.0), (1, 5.0)):  # the training data, then other data in another unit
        write_own(tmp_path / "own.npz", seed, unit)
        rows = first_rows(prepare(own, standardise=standardise).split("test"), 5)
        maps = attention(own, run=done.path, average=5, device="cpu")
        assert_maps(maps, by_hand(model, [(row - offset) * scale for row in rows]))


@pytest.mark.parametrize(("patch", "stride"), [(4, None), (3, 2)])
def test_windows_are_the_tokens_of_the_maps(cache, tmp_path, patch, stride):
    own = write_own(tmp_path / "own.npz")
    done = train(own, patch=patch, stride=stride, **QUICK)
    prepared, step = prepare(own), stride or patch
    rows = [prepared.scaling(row) for row in first_rows(prepared.split("test"), 6)]
    tokens = [np.stack([row[i : i + patch].ravel() for i in range(0, len(row) - patch + 1, step)]) for row in rows]
    assert len({len(row) for row in tokens}) > 1
    maps = attention(own, run=done.path, average=6, device="cpu")
    assert_maps(maps, by_hand(load_run(done.path, "cpu", "float32"), tokens))
    settings = {"backbone": ONE_BLOCK, "init": "random", "input": "orthogonal", "patch": patch, "stride": stride}
    frozen = attention(own, average=6, device="cpu", **settings)
    model = load_model(prepared.task, resolve_model(ReservoirOptions(**settings)), "cpu", "float32")
    assert_maps(frozen, by_hand(model, tokens))


def test_attention_has_the_default_windows_of_an_extraction(cache, tmp_path):
    own, given = write_own(tmp_path / "own.npz"), {"backbone": ONE_BLOCK, "init": "random"}
    prepared = prepare(own)
    plan = resolved_plan(own, ExtractOptions(**given))
    assert (plan.reservoir.input, plan.reservoir.patch) == ("kernels", 9)
    model = load_model(prepared.task, plan.reservoir, "cpu", "float32")
    rows = prepared.split("test").read(0, 6)
    tokens, counts = to_tokens(model, prepared.scaling, rows.x, rows.lengths)
    expected = by_hand(model, [row[:count] for row, count in zip(tokens, counts, strict=True)])
    assert_maps(attention(own, average=6, device="cpu", **given), expected)


def test_attention_names_the_tokens_of_images_by_number(cache, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (30, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(30) % 2)
    maps = attention(tmp_path / "own.npz", backbone="gpt2:n_layer=1,n_embd=16,n_head=2", init="random", average=2)
    assert maps.labels == [str(number) for number in range(1, maps.mean.shape[1] + 1)]


@pytest.fixture(scope="module")
def xor_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("xor")
    return str(train("bit-xor", parameters={"n": 3, **FEW}, run=root / "run", cache=root / "cache", **QUICK).path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits"], "the run was trained on 'bit-xor', not on 'digits'"),
        (["own.npz"], "own.npz: no such file"),
        (["bit-xor", "--param", "n=4"], "differs from the training data in max_tokens, n, readout_tokens"),
        (["bit-xor", "--seed", "1"], "leave out the options that choose another"),
        (["bit-xor", "--param", "m=4"], "has no parameter 'm'"),
        (["bit-xor", "--out", "/proc/foo/x.png"], "/proc/foo/x.png: cannot be written ("),
        (["bit-xor", "--out", "."], "--out .: a folder"),
        (["bit-xor", "--out", "maps.h5"], "--out maps.h5: not a .png file"),
    ],
)
def test_attention_of_a_run_refuses_other_tasks_and_files_in_one_line(xor_run, cache, refusal, arguments, message):
    assert message in refusal("attention", *arguments, "--run", xor_run, "--average", "2")


# `cache` lists and removes what is stored; `doctor` finds what is broken and names a remedy.


BLOCK_OF_MINI = "mini:n_layer=1,n_embd=16,n_head=2"
SMALL = {"backbone": BLOCK_OF_MINI, "init": "random", "limit": 60, "layers": "final", "pool": "mean"}


@pytest.fixture
def listed(call, answer):
    def listing():
        return answer("cache", "list"), call("cache", "list")[1]

    return listing


def test_downloads_readouts_runs_and_prepared_data_are_listed_and_removed(answer, refusal, cache, listed):
    (cache / "downloads" / "mnist").mkdir(parents=True)
    extraction = extract("digits", **SMALL)
    fit(extraction)
    train("digits", backbone=BLOCK_OF_MINI, init="random", limit=60, steps=1)
    found = [folder for kind in ("readouts", "runs", "prepared") for folder in cache.glob(f"{kind}/*/*")]
    kept = ["downloads/mnist", *(str(folder.relative_to(cache)) for folder in found)]
    assert len(kept) == 4
    (run,) = cache.glob("runs/*/*")
    with RunFolder(run).lock():
        assert "a process is at work in it" in refusal("cache", "remove", str(run.relative_to(cache)))
    for name in kept:
        assert name in listed()[1]
        assert answer("cache", "remove", name)["removed"] == str(cache / name)
        assert name not in listed()[1]
        assert not (cache / name).exists()
    assert [each["entry"] for each in listed()[0]] == [str(extraction.entry)]


def test_removing_a_task_names_the_entry_that_it_selects(call, cache, listed):
    first, last = (extract("digits", **SMALL, seed=seed).entry for seed in (0, 1))
    _, out, _ = call("cache", "remove", "digits")
    assert str(last) in out and str(first) not in out
    assert [each["entry"] for each in listed()[0]] == [str(first)]


def test_files_whose_tasks_have_one_name_are_told_apart_by_their_origin(answer, refusal, cache, listed, tmp_path):
    files = [tmp_path / "my data.csv", tmp_path / "my-data.csv"]
    for seed, file in enumerate(files):
        values = np.random.default_rng(seed).normal(size=(40, 3))
        lines = [f"{row},{'ab'[number % 2]}" for number, row in enumerate(",".join(map(str, v)) for v in values)]
        file.write_text("\n".join(["u,v,w,label", *lines]))
    entries = [str(extract(file, backbone=BLOCK_OF_MINI, init="random", layers="embed").entry) for file in files]
    origins = {each["entry"]: each["origin"] for each in listed()[0]}
    assert origins == dict(zip(entries, map(str, files), strict=True)) and str(files[0]) in listed()[1]
    assert "the features of 2 sources" in refusal("cache", "remove", "my-data.csv")
    assert answer("cache", "remove", files[0])["removed"] == entries[0]
    assert answer("cache", "remove", "my-data.csv")["removed"] == entries[1]


@pytest.fixture
def two_entries(cache):
    """Return an entry last used 40 days ago and one used just now."""
    old, new = (extract("digits", **SMALL, seed=seed).entry for seed in (0, 1))
    long_ago = (datetime.now(UTC) - timedelta(days=40)).timestamp()
    os.utime(old / "lock", (long_ago, long_ago))
    return old, new


def test_prune_removes_old_entries_and_keeps_a_size(answer, refusal, two_entries):
    old, new = two_entries
    assert answer("cache", "prune", "--older", "30d", "--dry-run")["would_remove"] == [str(old)] and old.exists()
    assert answer("cache", "prune", "--older", "30d", "--yes")["removed"] == [str(old)] and not old.exists()
    assert answer("cache", "prune", "--keep", "20GB")["removed"] == []
    assert answer("cache", "prune", "--keep", "1kB", "--yes")["removed"] == [str(new)]
    for wrong in (
        (),
        ("--older", "soon"),
        ("--older", "36501d"),
        ("--older", "9" * 400 + "s"),
        ("--keep", "much"),
        ("--keep=-5GB",),
        ("--keep", "GB"),
    ):
        refusal("cache", "prune", *wrong)


def test_repair_tells_what_it_removed_from_what_it_rebuilt(answer, two_entries):
    entry = two_entries[0]
    shard = next(path for path in sorted((entry / "train").glob("*.h5")) if path.name != "targets.h5")
    shard.write_bytes(shard.read_bytes()[:-8])
    (entry / "valid/manifest.json").write_text("{")
    repaired = answer("cache", "repair", entry)
    assert (repaired["removed"], repaired["rebuilt"]) == ([str(shard)], [str(entry / "valid/manifest.json")])
    repaired = answer("cache", "repair", entry)
    assert repaired["removed"] == repaired["rebuilt"] == []


def test_prune_removes_nothing_without_a_yes_where_nobody_can_be_asked(refusal, two_entries):
    err = refusal("cache", "prune", "--keep", "1kB")
    assert "2 entries" in err and "--yes" in err
    assert all(entry.exists() for entry in two_entries)


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0), ("\x04", 130)], ids=["no", "yes", "Ctrl-D"])
def test_prune_asks_on_a_terminal(cache, two_entries, answer, code):
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "reservoir_pipelines", "cache", "prune", "--older", "30d"]
    process = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal)
    os.write(master, answer.encode())
    assert process.wait() == code
    shown = os.read(master, 10_000).decode()
    assert two_entries[0].name in shown and "Remove 1 entries" in shown and "Traceback" not in shown
    assert two_entries[0].exists() == (code != 0) and two_entries[1].exists()


def test_copy_takes_an_entry_to_a_url_and_back_into_another_cache(answer, call, cache, tmp_path):
    entry, url, other = extract("digits", **SMALL).entry, f"file://{tmp_path}/share", tmp_path / "other"
    sent = answer("cache", "copy", "digits", url)
    assert (sent["entry"], sent["url"]) == (str(entry), f"{url}/digits/{entry.name}") and sent["files"] > 2
    code, out, err = call("cache", "copy", url, "digits", "--cache", other)
    assert code == 0 and str(other / "features" / "digits" / entry.name) in out, err
    assert answer("cache", "copy", url, entry.name, "--cache", other)["files"] == 0
    assert answer("cache", "verify", "--cache", other) == {"entries": 1, "problems": []}
    tables = []
    for root in (cache, other):
        answer("fit", "digits", "--cache", root)
        tables += [table.read_text() for table in root.glob("readouts/*/*/results.csv")]
    assert len(tables) == 2 and tables[0] == tables[1]


def test_own_data_is_copied_back_by_its_path_whatever_its_name(answer, cache, tmp_path):
    draw, data = np.random.default_rng(0), tmp_path / "my (first) data.csv"
    lines = [",".join(f"{value:.3f}" for value in draw.normal(size=12)) + f",{'ab'[row % 2]}" for row in range(40)]
    data.write_text("\n".join([",".join([*(f"t{step}" for step in range(12)), "label"]), *lines]))
    entry, url = extract(data, pool="max", layers="embed").entry, f"file://{tmp_path}/share"
    answer("cache", "copy", data, url)
    assert answer("cache", "copy", url, data, "--cache", tmp_path / "other")["entry"].endswith(entry.name)


def test_copy_refuses_what_it_cannot_copy_without_showing_a_password(refusal, cache, tmp_path):
    extract("digits", **SMALL)
    url = "ftp://user:SECRET@nowhere.invalid/a"
    for arguments in (
        ("digits", "elsewhere"),
        (url, url),
        ("digits", url),
        (url, "digits"),
        ("digits", "file://user:SECRET@bucket"),
        ("digits", "nothing://user:SECRET@bucket"),
        ("digits", "file:///tmp", url),
        ("no-such-task", url),
        ("memory://nowhere", "digits"),
    ):
        assert "SECRET" not in refusal("cache", "copy", *arguments)


def test_copy_refuses_to_copy_into_the_memory_of_its_process(refusal, cache):
    extract("digits", **SMALL)
    assert "ends with it" in refusal("cache", "copy", "digits", "memory://share")


def test_doctor_finds_nothing_wrong_with_a_working_machine(cache, answer):
    found = {finding["what"]: finding for finding in answer("doctor")}
    assert {"python", "device", "precision", "cache", "disk", "entries", "data", "extras"} <= found.keys()
    assert not any(finding["remedy"] for finding in found.values())


def test_doctor_names_a_cache_that_cannot_be_made(call, monkeypatch):
    monkeypatch.setenv("RESERVOIR_CACHE", "/proc/nowhere")
    code, out, _ = call("doctor")
    assert code == 1 and "/proc/nowhere: [Errno 2]" in out and "default" not in out


def test_doctor_finds_a_damaged_entry_and_its_remedy_works(cache, call):
    entry = extract("digits", **SMALL).entry
    manifest = entry / "train" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    code, out, _ = call("doctor", "--json")
    wrong = [finding for finding in json.loads(out) if finding["remedy"]]
    assert code == 1 and len(wrong) == 1
    assert str(manifest) in wrong[0]["found"]
    code, out, _ = call("cache", "verify", "--json")
    assert (code, [problem["path"] for problem in json.loads(out)["problems"]]) == (1, [str(manifest)])
    assert call(*wrong[0]["remedy"].split()[1:])[0] == 0
    extract("digits", **SMALL)
    assert call("doctor")[0] == 0
    (entry / "spec.json").write_text("{")
    code, out, _ = call("doctor")
    assert code == 1 and str(entry) in out and "run 'reservoir cache remove' on it, then extract" in out
    other = entry.rename(entry.with_name("notes"))  # which is no name of an entry, so that the command refuses it
    code, out, _ = call("doctor")
    assert code == 1 and str(other) in out and "move it elsewhere" in out and "cache remove" not in out
