"""The stage ``export``: a saved readout and its frozen model as one file that runs without this package."""

import io
import json
import logging
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from reservoir_cache import replace_file
from torch import nn
from torch.export import Dim, ExportedProgram

from reservoir.column import Column
from reservoir.errors import InputError, as_input_error, writing
from reservoir.inputs.native import PixelReader, SoundReader, TextReader
from reservoir.options import OutOptions
from reservoir.readouts.linear import LinearReadout
from reservoir.sequence_model import Branch, PixelsModel, RawInput, SequenceModel, TokensModel
from reservoir.tasks.task import Task, Vectors
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
    "lengths": "on the right, with any values; lengths are the numbers of real tokens",
    "attention_mask": "on the right, with any token; attention_mask is 1 for real tokens",
}

MEANINGS = {
    "softmax": "softmax over the last axis gives probabilities",
    "sigmoid": "the sigmoid of each logit, divided by its sum over the last axis, gives probabilities",
    "clipped": "(1 + clip(logit, -1, 1)) / 2, divided by its sum over the last axis, gives probabilities",
    "none": "the class with the greatest value is the label; there are no probabilities",
}

Shapes = dict[str, dict[int, Any]]  # the variable axes of each input, for torch.export


@dataclass(frozen=True, kw_only=True)
class Export(Record):
    """The files that `export` wrote: a model and its JSON description; ``tokens`` has the fewest and most tokens.

    ``reader`` is the file of the tokenizer or of the image processor whose output a model with native
    input reads.
    """

    model: Path
    card: Path
    reader: Path | None
    bytes: int
    tokens: tuple[int, int]


def export(readout: Path, result: OutOptions, *, to: str = "torch") -> Export:
    """Write a linear readout and its frozen models as one model; see `api.export`."""
    if to not in SUFFIXES:
        raise InputError(f"--to {to}: choose torch or onnx")
    if to == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise InputError(
            "--to onnx needs onnx and onnxscript", "run pip install 'reservoir-features[onnx]'"
        )
    bundle = open_readout(readout, linear=True)
    module = build(bundle, readout, compute="float32" if to == "onnx" else None)
    if torch.__version__.startswith("2.6."):
        raise InputError(
            f"export: torch {torch.__version__} cannot write these models", "install torch 2.7"
        )
    traced = trace(module, bundle.task)
    path = result.out or (readout if readout.is_dir() else readout.parent) / f"model{SUFFIXES[to]}"
    card = path.with_name(f"{path.name}.json")
    reader = module.reader
    saved = None
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
    """Return the module of a bundle with a linear readout on the CPU, in the precision of the fit or in ``compute``."""
    assert isinstance(bundle.readout, LinearReadout)
    if bundle.task.labels_each_token or bundle.task.labels_text_tokens:
        raise InputError(f"readout {where}: it labels every token", "export needs one label per sequence")
    branches: list[Branch | RawInput] = []
    for part in bundle.parts:
        if part.statistic:
            raise InputError(
                f"readout {where}: it reads {part.statistic.name}, which cannot be exported or explained",
                "fit --columns of the reservoir",
            )
        if part.reservoir is None:
            branches.append(RawInput(bundle.task))
            continue
        model = load_part(bundle.task, part, "cpu", where, compute)
        if isinstance(model.reader, SoundReader):
            raise InputError(
                f"readout {where}: the model reads sounds by its own convolutions",
                "export and explain need features made without --input native",
            )
        branches.append(Branch(model, [*map(Column.parse, part.columns)]))
    readers = [branch.reader if isinstance(branch, Branch) else None for branch in branches]
    inputs = {
        reader and reader.digest: part.columns[0]
        for reader, part in zip(readers, bundle.parts, strict=True)
    }
    if len(inputs) > 1:
        columns = " and ".join(inputs.values())
        raise InputError(f"readout {where}: {columns} read different inputs", "fit --columns of one input")
    return SequenceModel(bundle.task, None if readers[0] else bundle.scaling, branches, bundle.readout)


class Traced(NamedTuple):
    """A program, examples of its inputs, the names of their variable axes, and the fewest and most tokens."""

    program: ExportedProgram
    example: dict[str, torch.Tensor]
    axes: dict[str, dict[int, str]]
    tokens: tuple[int, int]


def trace(module: SequenceModel, task: Task) -> Traced:
    """Return the program of a module for any batch size, and for any length if the tracer can bound it."""
    branches = [branch for branch in module.branches if isinstance(branch, Branch)]
    # torch.export treats sizes 0 and 1 as constants, so a variable length starts at two.
    fewest = max(task.readout_tokens, 2)
    longest = module.reader.max_tokens if module.reader else task.max_tokens
    exported, example = _inputs(module, task, longest)
    fixed_length, variable_length = _dynamic_shapes(example, fewest, longest)
    # All images of a model have one size.
    may_vary = fewest < longest and not isinstance(exported, PixelsModel) and _keep_length(branches)
    shapes, shortest = (variable_length, fewest) if may_vary else (fixed_length, longest)
    # The blocks above the last one that the readout reads are not exported.
    for branch in branches:
        branch.fpt.backbone.cut_above({column.layer for column in branch.shapes})
    inputs = (*example.values(),)
    with (
        warnings.catch_warnings(action="ignore"),
        as_input_error("torch.export cannot trace the backbone", "use another"),
    ):
        try:
            program = torch.export.export(exported, inputs, dynamic_shapes=shapes, strict=False)
        except Exception:  # recurrent backbones need one length; the tracer raises many types of errors
            shapes, shortest = fixed_length, longest
            program = torch.export.export(exported, inputs, dynamic_shapes=shapes, strict=False)
    _remove_traces_of_machine(program)
    axes = {name: {axis: dim.__name__ for axis, dim in dims.items()} for name, dims in shapes.items()}
    return Traced(program, example, axes, (shortest, longest))


def _dynamic_shapes(
    example: Mapping[str, torch.Tensor], fewest: int, longest: int
) -> tuple[Shapes, Shapes]:
    """Return the variable axes of inputs of any batch size: with one length, and with ``fewest`` to ``longest`` tokens.

    The number of tokens is the second axis of an input that has one.
    """
    tokens = {1: Dim("tokens", min=fewest, max=max(fewest, longest))}
    fixed_length: Shapes = {name: {0: Dim("batch")} for name in example}
    variable_length = {
        name: axes | (tokens if example[name].ndim > 1 else {}) for name, axes in fixed_length.items()
    }
    return fixed_length, variable_length


def _keep_length(branches: Iterable[Branch]) -> bool:
    """Return whether all models make as many tokens as a sequence has values."""
    # One window around every value does so; with others, the tracer cannot bound the number of tokens.
    return all(
        branch.windows.plain or (branch.windows.pad == "same" and branch.windows.stride == 1)
        for branch in branches
    )


def _remove_traces_of_machine(program: ExportedProgram) -> None:
    """Remove what would be written with a program: a pickle of the example, and paths of this machine."""
    program.example_inputs = None
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)


def _inputs(module: SequenceModel, task: Task, longest: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return the module to export, and examples of its inputs by name."""
    if isinstance(module.reader, PixelReader):
        return PixelsModel(module, module.reader), {"pixel_values": torch.zeros(2, *module.reader.pixels)}
    if module.reader:
        mask = torch.ones(2, longest).long()
        return TokensModel(module), {"input_ids": torch.zeros_like(mask), "attention_mask": mask}
    x = torch.zeros(2, longest).long()
    if isinstance(task.form, Vectors):
        x = torch.zeros(2, longest, task.form.dim)
    return module, {"x": x, "lengths": torch.tensor([longest, task.readout_tokens])}


def _describe(bundle: Bundle, name: str, to: str, traced: Traced) -> dict[str, Any]:
    """Return how to call the model and how to read its output, as JSON values."""
    task, inputs = bundle.task, {}
    for key, values in traced.example.items():
        shape = [traced.axes[key].get(axis, str(size)) for axis, size in enumerate(values.shape)]
        inputs[key] = {"type": str(values.dtype).removeprefix("torch."), "shape": shape}
        if key in ("x", "input_ids"):
            inputs[key]["tokens"] = list(traced.tokens)
    fed = ", ".join(f"{key!r}: {key}" for key in inputs)
    out = [
        "batch",
        str(task.readout_tokens),
        str(task.outputs),
        *([str(task.classes)] if task.classes else []),
    ]
    link = getattr(bundle.readout, "link", "softmax")
    return {
        "format": FORMAT,
        "model": name,
        "call": CALLS[to].format(name=name, inputs=", ".join(inputs), fed=fed),
        "inputs": inputs,
        "padding": PADDING.get([*inputs][-1], "none"),
        "output": {
            "logits": {"type": "float32", "shape": out},
            "meaning": MEANINGS[link] if task.classes else "predicted values",
        },
        "classes": [task.label(index) for index in range(task.classes)],
        "task": task.to_dict(),
        "parts": [part.to_dict() for part in bundle.parts],
        "scores": bundle.scores,
    }


def _write(traced: Traced, to: str, path: Path) -> None:
    """Write a traced program to a file, in the format of torch.export or as ONNX."""
    if to == "torch":
        # torch aborts the process if it cannot write to a file, such as on a full disk.
        buffer = io.BytesIO()
        torch.export.save(traced.program, buffer)
        path.write_bytes(buffer.getbuffer())
        return
    # The exporter logs which packages it does without, and warns of deprecated functions of its own.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        graph = torch.onnx.export(
            traced.program,
            dynamo=True,
            dynamic_shapes=traced.axes,
            verbose=False,
            input_names=[*traced.example],
            output_names=["logits"],
        )
        assert graph is not None
        graph.save(str(path))
