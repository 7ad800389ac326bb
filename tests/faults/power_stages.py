"""Small runs of all stages that publish files, and functions that read the results, for the replay of power losses."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import (
    CacheError,
    Entry,
    FeatureStore,
    broken_entries,
    list_entries,
    load_arrays,
    remove,
    repair,
    save_arrays,
)

from tests.cache.conftest import fill, make_entry
from tests.faults.power_loss import Stage, Step
from tests.faults.rounds import RefusedError


def short(*values: Any) -> str:
    """Return a short digest of arrays and other values."""
    whole = hashlib.sha256()
    for value in values:
        whole.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return whole.hexdigest()[:8]


def create(root: Path) -> Entry:
    return make_entry(root, data={"digest": "d", "rows": {"train": 6, "test": 2}})


def extract(root: Path, *columns: str) -> None:
    entry = create(root)
    repair(entry)
    fill(entry, columns)


def features(root: Path) -> Any:
    """Return what a reader finds in each entry: labels, and the columns of each block; nothing may be damaged."""
    broken = [("broken", problem.path.name) for problem in broken_entries(root)]
    return [found(entry) for entry in list_entries(root)] or broken


def found(entry: Entry) -> Any:
    store, splits = FeatureStore(entry), {}
    for split in store.splits:
        part = store[split]
        labels = short(part.labels, part.lengths, part.index) if entry.page(split, 0).targets else None
        blocks = {}
        for column in part._manifest.columns:
            found = [block for block, columns in part._shards.items() if column in columns]
            blocks[column] = [(block, short(part._decode(part._encoded(block, column)))) for block in found]
        splits[split] = labels, blocks
    moments = load_arrays(entry, "ridge")
    return splits, moments and short(*moments[0].values(), moments[1])


def damage(root: Path) -> None:
    extract(root, "block01/mean")
    (entry,) = list_entries(root)
    shard, page = entry.path / "train" / "00000-0.h5", entry.path / "test" / "manifest.json"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])  # so that no reader takes the old file for the new one
    page.write_text(page.read_text()[:-9])


def extract_and_lose_the_specification(root: Path) -> None:
    """Leave what an interrupted copy or removal leaves: manifests and shards without a specification."""
    extract(root, "block01/mean")
    (entry,) = list_entries(root)
    (entry.path / "spec.json").unlink()


def after_damage(root: Path) -> Any:
    """Return what a reader finds in an entry that may be damaged."""
    try:
        return features(root)
    except CacheError as error:
        return str(error).partition("state")[2]


def moments(number: int) -> Step:
    arrays: Mapping[str, Any] = {"xx": np.full((9, 9), number, float)}
    return Step(lambda root: save_arrays(create(root), "ridge", arrays, {"n": number}))


CACHE = (
    Stage(
        "extract: an entry, shards, manifests",
        (
            Step(create),
            Step(lambda root: extract(root, "block01/mean")),
            Step(lambda root: extract(root, "final/last")),
        ),
        features,
        recovers=True,
    ),
    Stage(
        "extract: an entry over manifests without a specification",
        (Step(create),),
        features,
        prepare=extract_and_lose_the_specification,
    ),
    Stage("fit: moments", (moments(1), moments(2)), features, prepare=lambda root: extract(root, "block01/mean")),
    Stage(
        "cache remove",
        (Step(lambda root: remove(next(root.glob("features/*/*"))), durable=False),),
        features,
        prepare=lambda root: extract(root, "block01/mean", "final/last"),
    ),
    Stage(
        "cache repair",
        (Step(lambda root: repair(create(root))), Step(lambda root: extract(root, "block01/mean"))),
        after_damage,
        prepare=damage,
    ),
)


SHAPE = "gpt2:n_layer=1,n_embd=8,n_head=2,n_positions=64"
MODEL = ("--backbone", SHAPE, "--init", "random", "--device", "cpu", "--compute", "float32")


def command(*arguments: object) -> None:
    from reservoir_pipelines.cli import run

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        code = run([str(argument) for argument in arguments])
    if code:
        raise RefusedError(errors.getvalue())


def visible(folder: Path) -> Any:
    return {path.name: short(path.read_bytes()) for path in sorted(folder.glob("[!.]*")) if path.is_file()}


def waves(folder: Path) -> str:
    """Write a small data file outside the recorded folder, and return its path."""
    path = folder.with_name("waves.npz")
    if not path.exists():
        draw, y = np.random.default_rng(0), np.arange(60) % 2
        x = np.sin(np.arange(12) * (1 + y[:, None])) + draw.normal(0, 0.3, (60, 12))
        np.savez(path, x=x, y=y, split=np.repeat(["train", "valid", "test"], 20))
    return str(path)


def prepared(root: Path) -> Any:
    from reservoir_pipelines.preparation.prepared import Prepared

    return sorted(Prepared.open(index.parent).digest[:8] for index in root.glob("prepared/*/[!.]*/prepared.json"))


def run_prepare(root: Path) -> None:
    command("prepare", waves(root), "--cache", root)


def extracted(root: Path) -> None:
    own = ("--layers", "embed,final", "--pool", "mean", "--patch", 3, "--input", "orthogonal")
    command("extract", waves(root), "--cache", root, *own, *MODEL)


def run_fit(root: Path, columns: str) -> None:
    own = ("--out", root / "readouts" / "waves" / "one", "--columns", columns, "--select", "valid", "--device", "cpu")
    command("fit", waves(root), "--cache", root, *own)


def fitted(root: Path) -> None:
    extracted(root)
    run_fit(root, "final/mean")


def readout(root: Path) -> Any:
    from reservoir_pipelines.files import read_checked
    from reservoir_pipelines.fitting.bundle import Bundle

    card = root / "readouts" / "waves" / "one" / "readout.json"
    bundle = Bundle.load(root / "readouts" / "waves" / "one") if card.exists() else None
    whole = {name: sum for name, sum in visible(card.parent).items() if not name.startswith("readout-")}
    if "fit.json" in whole:
        whole["fit.json"] = short(read_checked(card.with_name("fit.json"))["best"])  # without the seconds, which differ
    return whole, bundle and short(*bundle.readout.to_arrays()[0].values())


def run_train(root: Path, steps: int) -> None:
    own = ("--eval-every", 1, "--batch", 4, "--patch", 3, "--resume", "--run", root / "run")
    command("train", waves(root), "--cache", root, "--steps", steps, *own, *MODEL)


def trained(root: Path) -> Any:
    return run_of(root / "run")


def run_of(folder: Path) -> Any:
    """Return what a reader finds in the folder of a training run."""
    from reservoir_pipelines.training.checkpoints import OPTIMIZER, TRAINED, read_tensors
    from reservoir_pipelines.training.run_folder import RunFolder

    run = RunFolder(folder)
    if not (run.path / "config.json").exists():
        return "no run"
    if run.last is None:
        return run.config["key"][:8]
    tensors = read_tensors(run.last, TRAINED, OPTIMIZER)
    state, best = run.last.state, run.best.state
    weights = short(*(tensor.numpy() for part in tensors.values() for tensor in part.values()))
    history = [line["step"] for line in run.history if line["step"] <= state.step]
    pictures = {name: sum for name, sum in visible(run.path).items() if name.endswith(".png")}
    return state.step, best.step, weights, history, (run.result(dict) or {}).get("steps"), pictures


def run_report(root: Path) -> None:
    command("report", "--cache", root, "--out", root / "report.html")


def page(root: Path) -> Any:
    return {name: sum for name, sum in visible(root).items() if name == "report.html"}


def run_predict(root: Path, rows: int) -> None:
    new = root.with_name(f"new{rows}.npz")
    np.savez(new, x=np.zeros((rows, 12)))
    command("predict", root / "readouts" / "waves" / "one", new, "--out", root / "predictions.csv", "--device", "cpu")


def predictions(root: Path) -> Any:
    path = root / "predictions.csv"
    return [len(line.split(",")) for line in path.read_text().splitlines()] if path.exists() else None


def run_cells(root: Path) -> None:
    from reservoir_pipelines.paper.reproduction_folder import ReproductionFolder

    folder = ReproductionFolder(root / "table")
    folder.create()
    with folder.lock("a", wait=True):
        folder.save_failure("a", {"reason": "no memory" * 90})
        folder.save_result("a", {"score": [0.5] * 200, "folder": "made"})
    folder.save_table({"name": "one", "rows": [], "columns": [], "keys": [], "claims": [], "note": "n" * 900})


def cells(root: Path) -> Any:
    from reservoir_pipelines.paper.reproduction_folder import ReproductionFolder

    folder = ReproductionFolder(root / "table")
    return folder.result("a") or folder.failure("a"), folder.tables()


def run_pretrain(root: Path) -> None:
    text = root.with_name("words.txt")
    text.write_bytes(b" ".join(np.random.default_rng(0).choice([b"tide", b"moon", b"sand"], 3000).tolist()))
    own = ("--eval-every", 2, "--context", 16, "--short", 8, "--batch-tokens", 64, "--resume", "--steps", 3)
    command("pretrain", text, "--out", root / "model", *own, "--backbone", SHAPE, "--device", "cpu")


def model(root: Path) -> Any:
    from reservoir.backbones import load_backbone

    folder = root / "model"
    whole = all((folder / name).exists() for name in ("config.json", "model.safetensors", "tokenizer.json"))
    weights = load_backbone(str(folder), "pretrained").model.state_dict() if whole else {}
    digest = short(*(tensor.numpy() for tensor in weights.values())) if whole else "no model"
    return run_of(folder / "pretraining"), digest


def run_export(root: Path) -> None:
    (entry,) = list_entries(root)
    command("export-features", entry.path, "--to", root / "exported", "--format", "npy", "--cache", root)


def exported(root: Path) -> Any:
    from reservoir_pipelines.extraction.feature_folder import read_folder

    folder = root / "exported"
    if not folder.exists():
        return "no folder"
    description = read_folder(folder)
    description.verify(folder)
    return short(*map(str, description.files.items()))


PIPELINES = (
    Stage("prepare", (Step(run_prepare),), prepared, recovers=True),
    Stage(
        "fit: a readout",
        (Step(lambda root: run_fit(root, "embed/mean")), Step(lambda root: run_fit(root, "final/mean"))),
        readout,
        prepare=extracted,
    ),
    Stage(
        "train: a run and its checkpoints",
        (Step(lambda root: run_train(root, 1)), Step(lambda root: run_train(root, 2))),
        trained,
        prepare=run_prepare,
    ),
    Stage("report: a page", (Step(run_report),), page, prepare=fitted),
    Stage(
        "predict: a file",
        (Step(lambda root: run_predict(root, 40)), Step(lambda root: run_predict(root, 80))),
        predictions,
        prepare=fitted,
    ),
    Stage("reproduce: cells and tables", (Step(run_cells),), cells),
    Stage("pretrain: a model", (Step(run_pretrain),), model),
    Stage("export-features: a folder", (Step(run_export),), exported, prepare=extracted),
)


def shards(root: Path) -> Any:
    return {str(path.relative_to(root)): short(path.read_bytes()) for path in sorted(root.glob("features/*/*/*/*.h5"))}


EXTRACT = Stage("extract", (Step(extracted),), shards, prepare=run_prepare)
"""For kills; a replay of its power losses is that of the entry in `CACHE`."""
