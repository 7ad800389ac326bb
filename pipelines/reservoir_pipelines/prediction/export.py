"""The stage ``export``: a saved readout and its frozen model as one file that runs without this package."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from reservoir import InputError
from reservoir.options import OutOptions
from reservoir.pooling import RawInput
from reservoir.readouts.linear import LinearReadout
from reservoir.sequence_model import Branch, SequenceModel
from reservoir.tasks.task import Task, Vectors
from reservoir_pipelines.files import replace_file, writing
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.prediction.load import load_part, open_readout

FORMAT = 1
SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
CALLS = {
    "torch": "model = torch.export.load({name!r}).module(); logits = model(x, lengths)",
    "onnx": "session = onnxruntime.InferenceSession({name!r}); "
    "(logits,) = session.run(None, {{'x': x, 'lengths': lengths}})",
}

MEANINGS = {
    "softmax": "softmax over the last axis gives probabilities",
    "sigmoid": "the sigmoid of each, divided by its sum over the last axis, gives probabilities",
    "clipped": "(1 + clip(logit, -1, 1)) / 2, divided by its sum over the last axis, gives probabilities",
    "none": "the class with the greatest value is the label; the readout has no probabilities",
}


@dataclass(frozen=True, kw_only=True)
class Export(Record):
    """The files that `export` wrote, a model and its description in JSON, and the fewest and most ``tokens``."""

    model: Path
    card: Path
    bytes: int
    tokens: tuple[int, int]


def export(readout: Path, result: OutOptions, *, to: str = "torch") -> Export:
    """Write a linear readout and its frozen models as one model, from stored sequences to logits.

    ``torch`` writes a program for ``torch.export.load`` in the precision in which the readout was fitted, so its
    results equal those of `predict`. ``onnx`` writes a float32 graph, because runtimes have few bfloat16 operators. By
    default the file is ``model.pt2`` or ``model.onnx`` in the folder of the readout.
    """
    if to not in SUFFIXES:
        raise InputError(f"--to {to}: choose torch or onnx")
    if to == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise InputError("--to onnx needs two packages; pip install 'reservoir-features[onnx]', or choose --to torch")
    bundle = open_readout(readout, linear=True)
    module = build(bundle, readout, compute="float32" if to == "onnx" else None)
    if torch.__version__.startswith("2.6."):
        raise InputError(f"export: torch {torch.__version__} cannot write these models; install torch 2.7 or newer")
    program, tokens = trace(module, bundle.task)
    path = result.out or (readout if readout.is_dir() else readout.parent) / f"model{SUFFIXES[to]}"
    card = path.with_name(f"{path.name}.json")
    text = json.dumps(_describe(bundle, path.name, to, tokens), indent=1)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda part: _write(program, to, part))
        replace_file(card, lambda part: part.write_text(text))
    return Export(model=path, card=card, bytes=path.stat().st_size, tokens=tokens)


def build(bundle: Bundle, where: Path, compute: str | None = None) -> SequenceModel:
    """Return the module of a bundle on the CPU, its models in the precision of the fit, or in another."""
    assert isinstance(bundle.readout, LinearReadout)
    if bundle.task.each:
        raise InputError(
            f"readout {where}: it labels every {bundle.task.each}; export needs a readout of whole sequences"
        )
    branches: list[Branch | RawInput] = []
    for part in bundle.parts:
        if part.reservoir is None:
            branches.append(RawInput(bundle.task))
            continue
        if part.reservoir.input == "native":
            reader = next(iter(part.input_digests))
            raise InputError(
                f"readout {where}: its input goes through a {reader}, which cannot be exported or explained"
            )
        model = load_part(bundle.task, part, "cpu", where, compute)
        if model.compute != part.compute:
            notify(f"the readout was fitted in {part.compute}; the float32 model differs from predict by its rounding")
        branches.append(Branch(model, part.columns))
    return SequenceModel(bundle.task, bundle.scaling, branches, bundle.readout)


def trace(module: SequenceModel, task: Task) -> tuple[ExportedProgram, tuple[int, int]]:
    """Return the program of a module for any batch size, and the fewest and most tokens that it takes.

    Sequences of any length up to the task's longest are accepted. With a recurrent backbone, or with windows, whose
    number the tracer cannot bound, every sequence has to be padded to the longest.
    """
    # torch.export treats sizes 0 and 1 as constants, so a variable length starts at two.
    fewest, longest = max(task.readout_tokens, 2), task.max_tokens
    batch = Dim("batch")
    shapes = [{0: batch}]
    branches = [branch for branch in module.branches if isinstance(branch, Branch)]
    if fewest < longest and not any(branch.windowed for branch in branches):
        shapes.insert(0, {0: batch, 1: Dim("tokens", min=fewest, max=longest)})
    x = torch.zeros(2, longest, task.form.dim) if isinstance(task.form, Vectors) else torch.zeros(2, longest).long()
    example = x, torch.tensor([longest, task.readout_tokens])
    failure: Exception | None = None
    for shape in shapes:
        sizes = {"x": shape, "lengths": {0: batch}}
        try:
            with _quiet(), module.cut():
                program = torch.export.export(module, example, dynamic_shapes=sizes, strict=False)
        except Exception as error:  # the tracer raises many types, some of them private
            failure = error
            continue
        # A pickle of the example and the paths of this machine would be written with the program.
        program.example_inputs = None
        for part in program.graph_module.modules():
            for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
                node.meta.pop("stack_trace", None)
        return program, (fewest if 1 in shape else longest, longest)
    families = "+".join(sorted({branch.fpt.backbone.family.name for branch in branches}))
    reason = str(failure).strip().split("\n", 1)[0][:160]
    raise InputError(f"family {families} cannot be exported: torch.export cannot trace it ({reason})") from failure


def _describe(bundle: Bundle, name: str, to: str, tokens: tuple[int, int]) -> dict[str, Any]:
    """Return how to call the model and how to read its output, as JSON values."""
    task = bundle.task
    dim = [str(task.form.dim)] if isinstance(task.form, Vectors) else []
    shape = ["batch", str(tokens[0]) if tokens[0] == tokens[1] else "tokens", *dim]
    out = ["batch", str(task.readout_tokens), str(task.outputs), *([str(task.classes)] if task.classes else [])]
    scaling, link = bundle.scaling, getattr(bundle.readout, "link", "softmax")
    return {
        "format": FORMAT,
        "model": name,
        "call": CALLS[to].format(name=name),
        "inputs": {
            "x": {"type": "float32" if dim else "int64", "shape": shape, "tokens": list(tokens)},
            "lengths": {"type": "int64", "shape": ["batch"], "minimum": task.readout_tokens},
        },
        "padding": "on the right, with any values; lengths hold the number of real tokens of each sequence",
        "output": {
            "logits": {"type": "float32", "shape": out},
            "meaning": MEANINGS[link] if task.classes else "predicted values",
        },
        "classes": [task.label(index) for index in range(task.classes)],
        "scaling": scaling
        and {"offset": scaling.offset.tolist(), "scale": scaling.scale.tolist(), "applied": "inside the model"},
        "task": task.to_dict(),
        "parts": [
            {
                "reservoir": part.reservoir and part.reservoir.to_dict(),
                "digest": part.digest,
                "columns": list(part.columns),
                "fitted_in": part.compute,
                "runs_in": "float32" if to == "onnx" else part.compute,
            }
            for part in bundle.parts
        ],
        "scores": bundle.scores,
    }


def _write(program: ExportedProgram, to: str, path: Path) -> None:
    if to == "torch":
        with path.open("wb") as file:
            torch.export.save(program, file)
        return
    with _quiet():
        graph = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["x", "lengths"],
            output_names=["logits"],
            dynamic_shapes={"x": {0: "batch", 1: "tokens"}, "lengths": {0: "batch"}},
            verbose=False,
        )
        assert graph is not None
        graph.save(str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the messages of the tracers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
