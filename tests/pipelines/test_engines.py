"""Hidden states that vLLM or speculators wrote, a file for each request, become features that fit and predict read."""

import fcntl
import json
import time

import numpy as np
import pytest
import torch
from reservoir_cache import broken_entries
from reservoir_pipelines import export_features, extract, fit, import_features, predict
from reservoir_pipelines.extraction import engine_folder
from reservoir_pipelines.fitting.bundle import Bundle
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from reservoir.errors import InputError
from reservoir.hidden_states import HiddenStates
from reservoir.pooling import find_pooling
from tests.helpers import COMMAND, Child
from tests.reservoir.models import save_with_tokenizer

WIDTH, BOS = 6, 1
DRAW = np.random.default_rng(0)
SPLITS = np.repeat(["train", "valid", "test"], [40, 20, 20])


def write_request(path, label, layers=3, width=WIDTH, model=0, dtype=torch.bfloat16):
    """Write a file as vLLM does: states of the first token depend on the model alone, later ones on the label."""
    tokens = int(DRAW.integers(2, 9))
    states = DRAW.normal(size=(tokens, layers, width)) + 2 * label
    states[0] = np.random.default_rng(model).normal(size=(layers, width))
    ids = torch.tensor([BOS, *DRAW.integers(5, 90, tokens - 1).tolist()])
    save_file({"hidden_states": torch.tensor(states).to(dtype), "token_ids": ids}, path)


@pytest.fixture
def table(cache, tmp_path):
    """Return a table of 80 texts with labels, whose classes the states of the requests tell."""
    labels = DRAW.integers(0, 2, 80)
    lines = [
        json.dumps({"text": f"text {row}", "label": "ab"[label], "split": split})
        for row, (label, split) in enumerate(zip(labels.tolist(), SPLITS.tolist(), strict=True))
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    return tmp_path / "texts.jsonl", labels


@pytest.fixture
def requests(table, tmp_path):
    """Return a folder of the requests of the table, named as speculators does."""
    (tmp_path / "requests").mkdir()
    for row, label in enumerate(table[1].tolist()):
        write_request(tmp_path / "requests" / f"hs_{row}.safetensors", label)
    return tmp_path / "requests"


def load(folder, table, cache=None, **options):
    options = {"task": table[0], "name": "lab/model-8B", "revision": "abc", "layers": "7,0,3"} | options
    return import_features(folder, cache=cache, **options)


def states_of(folder, row):
    return load_file(folder / f"hs_{row}.safetensors")["hidden_states"].float().numpy()


def pooled_by_torch(name, states):
    hidden = HiddenStates(torch.from_numpy(states)[None], torch.tensor([len(states)]))
    return find_pooling(name).of(hidden)[0, 0].numpy()


def faded(states):
    """Return the mean of tokens whose weights halve every two tokens."""
    weights = 0.5 ** (np.arange(len(states)) / 2)
    return weights @ states / weights.sum()


POOLED = {
    "last": lambda states: states[-1],
    "first": lambda states: states[0],
    "mean": lambda states: states.mean(axis=0),
    "std": lambda states: states.std(axis=0),
    "max": lambda states: states.max(axis=0),
    "min": lambda states: states.min(axis=0),
    "quantiles1": lambda states: np.median(states, axis=0),
    "fading1": lambda states: np.concatenate([faded(states), faded(states[::-1])]),
    "attention2": lambda states: pooled_by_torch("attention2", states),
}


def test_requests_are_pooled_as_by_hand_and_layers_ascend_however_they_are_named(table, requests, capsys):
    features = load(requests, table, pool=[*POOLED])
    assert "layers 0, 3, 7 are embed, block03, block07" in capsys.readouterr().err
    assert features.computed_rows == 80 and len(features.columns) == 3 * len(POOLED)
    for split, first in (("train", 0), ("valid", 40), ("test", 60)):
        for place, layer in enumerate(("embed", "block03", "block07")):
            for name, pool in POOLED.items():
                by_hand = [pool(states_of(requests, first + row)[:, place]) for row in range(len(features[split].y))]
                assert np.allclose(features[split][f"{layer}/{name}"], by_hand, atol=1e-6), (split, layer, name)
    entry = features.store.entry
    assert entry.path.name.startswith("lab-model-8B-")
    assert entry.made_with["engine"]["revision"] == "abc"
    assert load(requests, table, pool=[*POOLED]).reused


def test_a_pooling_that_is_named_twice_is_one_column():
    columns = engine_folder.request_columns([0, 3], "mean, last,mean")
    assert [*map(str, columns)] == ["embed/mean", "embed/last", "block03/mean", "block03/last"]


def test_predict_reads_a_folder_and_gives_the_labels_of_pooled_arrays(table, requests, tmp_path, call, answer):
    fitted = fit(load(requests, table, pool="mean,last"), columns="block03/mean+block07/last", out=tmp_path / "out")
    assert fitted.best.test_score > 0.9
    new = tmp_path / "new"
    new.mkdir()
    labels = DRAW.integers(0, 2, 12)
    for row, label in enumerate(labels.tolist()):
        write_request(new / f"{row}-{row:08x}.safetensors", label)  # as vLLM names requests
    (tmp_path / "labels.csv").write_text("\n".join(["id,label", *(f"{row},{'ab'[c]}" for row, c in enumerate(labels))]))
    predictions = [*predict(tmp_path / "out", new, labels=tmp_path / "labels.csv")]
    assert [row.id for row in predictions] == [str(row) for row in range(12)]
    assert [row.truth for row in predictions] == ["ab"[label] for label in labels]
    states = [load_file(new / f"{row}-{row:08x}.safetensors")["hidden_states"].float().numpy() for row in range(12)]
    features = np.array([np.concatenate([of_row[:, 1].mean(axis=0), of_row[-1, 2]]) for of_row in states])
    chances = Bundle.load(tmp_path / "out").readout.probabilities(features).reshape(12, 2)
    assert np.allclose([row.probabilities for row in predictions], chances, atol=1e-5)
    code, out, err = call("predict", tmp_path / "out", new)
    assert code == 0 and "accuracy" not in err and out.count("\n") >= 12


def test_predict_says_that_a_folder_is_that_of_the_fit_and_leaves_out_groups_that_the_fit_had_not(
    table, requests, readout, tmp_path, call
):
    names = ["ab"[label] for label in table[1]]
    lines = [f"{row},{name},{row % 4}" for row, name in enumerate(names)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label,group", *lines]))
    code, _, err = call("predict", readout, requests, "--labels", tmp_path / "labels.csv")
    assert code == 0 and "groups" not in err
    assert "requests: the readout was fitted on rows of this folder; for new data trust the test score of fit" in err
    code, _, err = call("predict", readout, requests)  # without labels there is no score to mistrust
    assert code == 0 and "was fitted on" not in err


def test_vectors_of_the_engine_are_those_that_extract_computes(table, tmp_path):
    """Layer k of an engine is the output of block k, as `output_hidden_states` has it but before the final norm."""
    model = save_with_tokenizer("gpt2", tmp_path / "model")
    ours = extract(
        table[0], backbone=model, layers="embed,block01,block02", pool="mean,last", compute="float32", store="float32"
    )
    tokenizer, frozen = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    outputs = []
    frozen.h[1].register_forward_hook(lambda *arguments: outputs.append(arguments[2]))
    (folder := tmp_path / "requests").mkdir()
    for row, line in enumerate(table[0].read_text().splitlines()):
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt", truncation=False, padding=False).input_ids
        with torch.no_grad():
            inner = frozen(ids, output_hidden_states=True).hidden_states[:2]
        last = outputs.pop()
        states = torch.stack([*inner, last if isinstance(last, torch.Tensor) else last[0]], dim=2)[0]
        save_file({"hidden_states": states.contiguous(), "token_ids": ids[0]}, folder / f"hs_{row}.safetensors")
    theirs = load(folder, table, layers="0,1,2")
    assert {*theirs.columns} == {*ours.columns}
    for split in theirs:
        for column in theirs.columns:
            assert np.allclose(theirs[split][column], ours[split][column], atol=1e-5), column


INTERRUPTED = f"""
import time, reservoir_cache.spec, reservoir_cache.writer
from reservoir_pipelines.extraction import engine_folder
reservoir_cache.spec.BLOCK_BYTES, pool = 1000, engine_folder._pool_request
reservoir_cache.writer.GROUP_BYTES = 1  # each block is listed on its own
engine_folder._pool_request = lambda *arguments: time.sleep(0.05) or pool(*arguments)
{COMMAND}
"""


def test_an_import_that_is_killed_goes_on_and_gives_the_same_bytes(table, requests, cache, tmp_path, monkeypatch):
    flags = "--task", table[0], "--name", "lab/model-8B", "--revision", "abc", "--layers", "0,3,7"
    child = Child(INTERRUPTED, "import-features", requests, *flags)
    # A block is written when its manifest lists it.
    while child.running() and not any("0-0.h5" in path.read_text() for path in cache.rglob("train/manifest.json")):
        time.sleep(0.01)
    child.kill()
    assert child.ended()[0] == -9
    monkeypatch.setattr("reservoir_cache.spec.BLOCK_BYTES", 1000)
    resumed, whole = load(requests, table), load(requests, table, cache=tmp_path / "other")
    assert 0 < resumed.computed_rows < 80 == whole.computed_rows
    shards = [path.relative_to(whole.entry) for path in sorted(whole.entry.rglob("*.h5"))]
    assert len(shards) > 15
    assert all((resumed.entry / path).read_bytes() == (whole.entry / path).read_bytes() for path in shards)


def test_only_one_file_is_in_memory_and_values_are_read_once(table, requests, monkeypatch):
    read, real = [], engine_folder._pool_request
    monkeypatch.setattr(engine_folder, "_pool_request", lambda *a: (read.append(a[0].path.name), real(*a))[1])
    load(requests, table)
    assert sorted(read) == sorted(path.name for path in requests.glob("*.safetensors"))


def spoil(path, **tensors):
    save_file(load_file(path) | tensors, path)


def not_finite(folder, token=1):
    states = torch.zeros(3, 3, WIDTH)
    states[token, 2, 3] = float("nan")
    spoil(folder / "hs_9.safetensors", hidden_states=states, token_ids=torch.tensor([BOS, 5, 6]))


BROKEN = {
    "hs_9.safetensors: block07 (place 2 of hidden_states) is not finite at token 1": not_finite,
    "hs_9.safetensors: place 2 of hidden_states is not finite at token 0": lambda folder: not_finite(folder, 0),
    "hs_9.safetensors: place 2 of hidden_states is not finite at token 2": lambda folder: not_finite(folder, 2),
    "hs_9.safetensors: damaged": lambda folder: (folder / "hs_9.safetensors").write_bytes(
        (folder / "hs_9.safetensors").read_bytes()[:-10]
    ),
    "hs_9.safetensors: it has no tensor 'token_ids'": lambda folder: save_file(
        {"hidden_states": torch.zeros(2, 3, 6)}, folder / "hs_9.safetensors"
    ),
    "hs_9.safetensors: hidden_states is F32 of the shape (2, 18)": lambda folder: spoil(
        folder / "hs_9.safetensors", hidden_states=torch.zeros(2, 18)
    ),
    "hs_9.safetensors: hidden_states has 40 tokens, but token_ids": lambda folder: spoil(
        folder / "hs_9.safetensors", hidden_states=torch.zeros(40, 3, 6)
    ),
    "hs_9.safetensors: 2 layers of 6 channels, but hs_0.safetensors has 3 of 6": lambda folder: write_request(
        folder / "hs_9.safetensors", 0, layers=2
    ),
    "hs_9.safetensors: 3 layers of 5 channels": lambda folder: write_request(folder / "hs_9.safetensors", 0, width=5),
    "1 of 80 rows have no request, such as row 9; 0 requests belong to no row": lambda folder: (
        folder / "hs_9.safetensors"
    ).unlink(),
    "1 requests belong to no row, such as hs_80.safetensors; add their rows": lambda folder: write_request(
        folder / "hs_80.safetensors", 0
    ),
    "80 of 80 rows have no request, such as row 0; 81 requests belong to no row, such as cmpl-1": (
        lambda folder: write_request(folder / "cmpl-1.safetensors", 0)
    ),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_damaged_and_mismatched_requests_are_refused(problem, table, requests, cache, refusal):
    BROKEN[problem](requests)
    flags = "--task", table[0], "--name", "m", "--layers", "0,3,7"
    assert problem in refusal("import-features", requests, *flags)
    assert not broken_entries(cache)


def test_finite_states_that_a_pooling_makes_infinite_are_refused(table, requests, refusal):
    states = 1e36 * torch.from_numpy(DRAW.normal(size=(3, 3, WIDTH))).float()
    tokens = torch.tensor([BOS, 5, 6])
    spoil(requests / "hs_9.safetensors", hidden_states=states, token_ids=tokens)
    flags = "--task", table[0], "--name", "m", "--layers", "0,3,7"
    message = refusal("import-features", requests, *flags, "--pool", "mean,last,std")
    assert "hs_9.safetensors: embed (place 0 of hidden_states): its states are too large for the pooling std" in message
    assert load(requests, table, pool="mean,last").computed_rows == 80


def test_a_request_that_the_engine_is_still_writing_is_refused(table, requests, refusal):
    with (requests / "hs_9.safetensors.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        flags = "--task", table[0], "--name", "m", "--layers", "0,3,7"
        assert "hs_9.safetensors: the engine is still writing it" in refusal("import-features", requests, *flags)
    assert load(requests, table).computed_rows == 80


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--layers", "0,3"), "its files have 3 layers, but --layers names 2"),
        ((), "its files have 3 layers, without --layers; name those of eagle_aux_hidden_state_layer_ids"),
        (("--layers", "0,3,final"), "--layers final: not a layer of an engine"),
        (("--layers", "0,3,3"), "--layers 0,3,3: a layer is named twice"),
        (("--layers", "0,3,7", "--pool", "mean,words"), "--pool words: not for requests of an engine"),
        (("--layers", "0,3,7", "--pool", "median"), "pooling 'median'"),
    ],
)
def test_layers_and_poolings_that_requests_cannot_have_are_refused(flags, problem, table, requests, refusal):
    assert problem in refusal("import-features", requests, "--task", table[0], "--name", "m", *flags)


def test_rows_are_found_by_the_ids_of_the_table(table, requests, tmp_path):
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    lines = [json.loads(line) for line in table[0].read_text().splitlines()]
    for row, line in enumerate(lines):
        line["id"] = f"patient-{79 - row}"
        (renamed / f"patient-{79 - row}-{row:08x}.safetensors").hardlink_to(requests / f"hs_{row}.safetensors")
    (tmp_path / "named.jsonl").write_text("\n".join(map(json.dumps, lines)))
    by_id, by_number = load(renamed, [tmp_path / "named.jsonl"]), load(requests, table)
    for split in by_id:
        assert np.array_equal(by_id[split]["block07/mean"], by_number[split]["block07/mean"])
    with pytest.raises(InputError, match="the id '0' names several rows"):
        engine_folder.files_of_rows(requests, {"train": np.arange(3), "test": np.arange(2)}, more_allowed=False)


def test_ids_may_end_like_the_random_digits_of_vllm(table, requests, tmp_path):
    lines = [json.loads(line) for line in table[0].read_text().splitlines()]
    for row, line in enumerate(lines):
        line["id"] = f"img-{row:08d}"
        (requests / f"hs_{row}.safetensors").rename(requests / f"img-{row:08d}.safetensors")
    (tmp_path / "named.jsonl").write_text("\n".join(map(json.dumps, lines)))
    load(requests, [tmp_path / "named.jsonl"])
    assert [*engine_folder.request_files(requests)][:2] == ["img-00000000", "img-00000001"]
    (tmp_path / "twice").mkdir()
    for name in ("7-00000001", "7-00000002", "8-00000001"):
        write_request(tmp_path / "twice" / f"{name}.safetensors", 0)
    with pytest.raises(InputError, match="are both of request 7; remove one of them"):
        engine_folder.files_of_rows(tmp_path / "twice", {"train": np.array([7, 8])}, more_allowed=False)


def test_model_revision_and_layers_are_part_of_the_key(table, requests):
    others = [{}, {"name": "other"}, {"revision": "b"}, {"layers": "0,3,6"}]
    assert len({load(requests, table, **options).store.entry.key for options in others}) == len(others)
    write_request(requests / "hs_9.safetensors", 0)
    assert load(requests, table).computed_rows == 80


@pytest.fixture
def readout(table, requests, tmp_path):
    fit(load(requests, table, pool="mean"), columns="block03/mean", out=tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"layers": 2}, "2 layers of 6 channels, but the readout was fitted on layers 0, 3, 7 of lab/model-8B at abc"),
        ({"width": 5}, "3 layers of 5 channels, but the readout"),
        ({"model": 1}, "other hidden states than layers 0, 3, 7 of lab/model-8B at abc"),
    ],
)
def test_predict_refuses_requests_of_another_model(options, problem, readout, tmp_path, refusal):
    (new := tmp_path / "new").mkdir()
    write_request(new / "0.safetensors", 0, **options)
    assert problem in refusal("predict", readout, new)


def test_predict_refuses_what_is_no_folder_of_requests(readout, table, tmp_path, refusal):
    assert "the readout reads hidden states of lab/model-8B at abc" in refusal("predict", readout, table[0])
    assert "features that another program computed" in refusal("explain", readout, table[0])
    assert "features that another program computed" in refusal("export", readout, "--out", tmp_path / "x.pt2")


def test_a_readout_of_several_models_or_of_exported_features_does_not_read_requests(table, requests, tmp_path, refusal):
    first, second = load(requests, table, pool="mean"), load(requests, table, pool="mean", revision="b")
    fit([first, second], columns="1:block03/mean+2:block03/mean", out=tmp_path / "both")
    assert "not the requests of one folder alone" in refusal("predict", tmp_path / "both", requests)


def test_an_exported_import_names_its_model(table, requests, tmp_path):
    export_features(load(requests, table), to=tmp_path / "exported", format="npy")
    assert "lab/model-8B" in (tmp_path / "exported" / "README.md").read_text()


def test_flags_of_requests_are_refused_for_other_features(table, tmp_path, refusal):
    np.savez(tmp_path / "f.npz", train=np.zeros((40, 2)))
    problem = refusal("import-features", tmp_path / "f.npz", "--task", table[0], "--name", "m", "--layers", "0")
    assert "--layers is for the folder of an inference engine" in problem
    (tmp_path / "engine").mkdir()
    write_request(tmp_path / "engine" / "0.safetensors", 0)
    assert "need --task and --name" in refusal("import-features", tmp_path / "engine")
