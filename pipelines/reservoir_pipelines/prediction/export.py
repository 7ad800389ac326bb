"""The stage ``export``: a saved readout and its frozen model as one file that runs without this package."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from reservoir import InputError
from reservoir.inputs.native import PixelReader, SoundReader, TextReader
from reservoir.options import OutOptions
from reservoir.pooling import RawInput, parse_column
from reservoir.readouts.linear import LinearReadout
from reservoir.sequence_model import Branch, PixelsModel, SequenceModel, TokensModel
from reservoir.tasks.task import Task, Vectors
from reservoir_pipelines.files import replace_file, writing
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.prediction.load import load_part, open_readout

FORMAT = 1
SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
CALLS = {
    "torch": "model = torch.export.load({name!r}).module(); logits = model({inputs})",
    "onnx": "session = onnxruntime.InferenceSession({name!r}); (logits,) = session.run(None, {{{fed}}})",
}
PADDING = {
    "lengths": "on the right, with any values; lengths hold the number of real tokens of each sequence",
    "attention_mask": "on the right, with any token; attention_mask is 1 for real tokens and 0 for padding",
}

MEANINGS = {
    "softmax": "softmax over the last axis gives probabilities",
    "sigmoid": "the sigmoid of each logit, divided by its sum over the last axis, gives probabilities",
    "clipped": "(1 + clip(logit, -1, 1)) / 2, divided by its sum over the last axis, gives probabilities",
    "none": "the class with the greatest value is the label; the readout has no probabilities",
}


@dataclass(frozen=True, kw_only=True)
class Export(Record):
    """The files that `export` wrote: a model and its JSON description; ``tokens`` has the fewest and most tokens.

    ``reader`` is the file of the tokenizer or of the image processor whose output a model with native input reads.
    """

    model: Path
    card: Path
    reader: Path | None
    bytes: int
    tokens: tuple[int, int]


def export(readout: Path, result: OutOptions, *, to: str = "torch") -> Export:
    """Write a linear readout and its frozen models as one model that maps sequences to logits; see `api.export`."""
    if to not in SUFFIXES:
        raise InputError(f"--to {to}: choose torch or onnx")
    if to == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        problem = "--to onnx needs two packages"
        raise InputError(f"{problem}; run pip install 'reservoir-features[onnx]', or choose --to torch")
    bundle = open_readout(readout, linear=True)
    module = build(bundle, readout, compute="float32" if to == "onnx" else None)
    if torch.__version__.startswith("2.6."):
        raise InputError(f"export: torch {torch.__version__} cannot write these models; install torch 2.7 or newer")
    traced = trace(module, bundle.task)
    path = result.out or (readout if readout.is_dir() else readout.parent) / f"model{SUFFIXES[to]}"
    card, reader, saved = path.with_name(f"{path.name}.json"), module.reader, None
    described = _describe(bundle, path.name, to, traced)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(reader, TextReader | PixelReader):
            saved = path.with_name(f"{path.name}.{reader.kind}.json")
            replace_file(saved, reader.save)
            described[reader.kind] = saved.name
            inputs = " and ".join(traced.example)
            notify(f"the exported model begins after the {reader.kind} ({saved.name}) and reads {inputs}")
        replace_file(path, lambda part: _write(traced, to, part))
        replace_file(card, lambda part: part.write_text(json.dumps(described, indent=1)))
    return Export(model=path, card=card, reader=saved, bytes=path.stat().st_size, tokens=traced.tokens)


def build(bundle: Bundle, where: Path, compute: str | None = None) -> SequenceModel:
    """Return the module of a bundle on the CPU, in the precision of the fit, or in ``compute``."""
    assert isinstance(bundle.readout, LinearReadout)
    if bundle.task.each:
        raise InputError(f"readout {where}: it labels every token; export needs a readout of whole sequences")
    branches: list[Branch | RawInput] = []
    for part in bundle.parts:
        if part.reservoir is None:
            branches.append(RawInput(bundle.task))
            continue
        model = load_part(bundle.task, part, "cpu", where, compute)
        if isinstance(model.reader, SoundReader):
            problem = f"readout {where}: export and explain do not support sounds read by the model's own convolutions"
            raise InputError(f"{problem}; fit a readout of features made without --input native")
        if model.compute != part.compute:
            notify(f"the readout was fitted in {part.compute}; the float32 model differs from predict by rounding")
        branches.append(Branch(model, part.columns))
    readers = [branch.reader if isinstance(branch, Branch) else None for branch in branches]
    if len({reader and reader.digest for reader in readers}) > 1:
        raise InputError(f"readout {where}: its columns read different inputs; fit columns of one input")
    return SequenceModel(bundle.task, None if readers[0] else bundle.scaling, branches, bundle.readout)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A program, examples of its inputs, the names of their variable axes, and the fewest and most tokens."""

    program: ExportedProgram
    example: dict[str, torch.Tensor]
    axes: dict[str, dict[int, str]]
    tokens: tuple[int, int]


def trace(module: SequenceModel, task: Task) -> Traced:
    """Return the program of a module for any batch size, with the fewest and most tokens that it accepts.

    Sequences may have any length up to the task's longest. With a recurrent backbone, or with windows, whose number
    the tracer cannot bound, every sequence must be padded to the longest length.
    """
    branches = [branch for branch in module.branches if isinstance(branch, Branch)]
    # torch.export treats sizes 0 and 1 as constants, so a variable length starts at two.
    fewest, longest = max(task.readout_tokens, 2), module.reader.max_tokens if module.reader else task.max_tokens
    whole, example = _inputs(module, task, longest)
    batch, tokens = Dim("batch"), Dim("tokens", min=fewest, max=max(fewest, longest))
    shapes: list[dict[str, dict[int, Any]]] = [{name: {0: batch} for name in example}]
    # One window around every value gives as many tokens as values.
    kept = all(b.windows.plain or (b.windows.pad == "same" and b.windows.stride == 1) for b in branches)
    if fewest < longest and not isinstance(whole, PixelsModel) and kept:
        lengths = {name: {1: tokens} for name, values in example.items() if values.ndim > 1}
        shapes.insert(0, {name: {0: batch, **lengths.get(name, {})} for name in example})
    failure: Exception | None = None
    for shape in shapes:
        try:
            with _quiet(), ExitStack() as cut:
                for branch in branches:  # later blocks than the columns need are left out
                    wanted = {parse_column(column)[0]: lambda _hidden: None for column in branch.shapes}
                    cut.enter_context(branch.fpt.backbone.recording(wanted))
                program = torch.export.export(whole, (*example.values(),), dynamic_shapes=shape, strict=False)
        except Exception as error:  # the tracer raises many types of errors, some of them private
            failure = error
            continue
        # Otherwise a pickle of the example and paths of this machine would be written with the program.
        program.example_inputs = None
        for part in program.graph_module.modules():
            for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
                node.meta.pop("stack_trace", None)
        axes = {name: {axis: dim.__name__ for axis, dim in dims.items()} for name, dims in shape.items()}
        most = longest if shape is shapes[-1] else fewest
        return Traced(program=program, example=example, axes=axes, tokens=(most, longest))
    families = "+".join(sorted({branch.fpt.backbone.family.name for branch in branches}))
    reason = str(failure).strip().split("\n", 1)[0][:160]
    raise InputError(f"family {families}: torch.export cannot trace it ({reason}); use another backbone") from failure


def _inputs(module: SequenceModel, task: Task, longest: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return the module to export, and examples of its inputs by name."""
    if isinstance(module.reader, PixelReader):
        return PixelsModel(module, module.reader), {"pixel_values": torch.zeros(2, *module.reader.pixels)}
    if module.reader:
        mask = torch.ones(2, longest).long()
        return TokensModel(module), {"input_ids": torch.zeros_like(mask), "attention_mask": mask}
    x = torch.zeros(2, longest, task.form.dim) if isinstance(task.form, Vectors) else torch.zeros(2, longest).long()
    return module, {"x": x, "lengths": torch.tensor([longest, task.readout_tokens])}


def _describe(bundle: Bundle, name: str, to: str, traced: Traced) -> dict[str, Any]:
    """Return how to call the model and how to read its output, as JSON values."""
    task, inputs = bundle.task, {}
    for key, values in traced.example.items():
        shape = [traced.axes[key].get(axis, str(size)) for axis, size in enumerate(values.shape)]
        inputs[key] = {"type": str(values.dtype).removeprefix("torch."), "shape": shape}
        if key in ("x", "input_ids"):
            inputs[key]["tokens"] = list(traced.tokens)
        if key == "lengths":
            inputs[key]["minimum"] = task.readout_tokens
    padding = PADDING.get([*inputs][-1], "none")
    fed = ", ".join(f"{key!r}: {key}" for key in inputs)
    out = ["batch", str(task.readout_tokens), str(task.outputs), *([str(task.classes)] if task.classes else [])]
    scaling, link = bundle.scaling, getattr(bundle.readout, "link", "softmax")
    return {
        "format": FORMAT,
        "model": name,
        "call": CALLS[to].format(name=name, inputs=", ".join(inputs), fed=fed),
        "inputs": inputs,
        "padding": padding,
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


def _write(traced: Traced, to: str, path: Path) -> None:
    if to == "torch":
        with path.open("wb") as file:
            torch.export.save(traced.program, file)
        return
    with _quiet():
        graph = torch.onnx.export(
            traced.program,
            dynamo=True,
            input_names=[*traced.example],
            output_names=["logits"],
            dynamic_shapes=traced.axes,
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
