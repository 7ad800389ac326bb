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
from reservoir.inputs.native import PixelReader, Reader, SoundReader, TextReader
from reservoir.options import OutOptions
from reservoir.readouts.linear import LinearReadout
from reservoir.sequence_model import Branch, PixelsModel, RawInput, SequenceModel, TokensModel
from reservoir.tasks.pictures import PATCH, PATCHES, SIDE
from reservoir.tasks.task import Task, Vectors
from reservoir_pipelines.files import check_out_file
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import Record, notify
from reservoir_pipelines.prediction.load import load_part, open_readout

EXPORT_FORMAT = 1  # version of the JSON description, increased when a value changes its name or meaning
EXPORT_SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
CALLS = {
    "torch": "model = torch.export.load({name!r}).module(); logits = model({inputs})",
    "onnx": "session = onnxruntime.InferenceSession({name!r}); (logits,) = session.run(None, {{{feeds}}})",
}
"""How Python calls the model file ``name``, by format; ``feeds`` are the items of a dict of inputs."""

PADDING = {
    "lengths": "on the right, with any values; lengths are the numbers of real tokens",
    "attention_mask": "on the right, with any token; attention_mask is 1 for real tokens",
}
"""How rows of a batch are padded, by the name of the input that tells which tokens are real."""

MEANINGS = {
    "softmax": "softmax over the last axis gives probabilities",
    "sigmoid": "the sigmoid of each logit, divided by its sum over the last axis, gives probabilities",
    "clipped": "(1 + clip(logit, -1, 1)) / 2, divided by its sum over the last axis, gives probabilities",
    "none": "the class with the greatest value is the label; there are no probabilities",
}
"""What the logits mean, by `LinearReadout.link`."""

# The variable axes of each input by their numbers, for torch.export.
VariableAxes = dict[str, dict[int, Any]]


@dataclass(frozen=True, kw_only=True)
class Export(Record):
    """The files that `export` wrote.

    Parameters
    ----------
    model, card : Path
        The model, and its description as JSON.
    reader : Path or None
        The file of the tokenizer or of the image processor whose output a model with native input reads.
    bytes : int
        Size of the model.
    tokens : tuple of int
        The fewest and the most tokens of a row that the model reads.
    """

    model: Path
    card: Path
    reader: Path | None
    bytes: int
    tokens: tuple[int, int]


def export(readout: Path, result: OutOptions, *, to: str = "torch") -> Export:
    """Write a linear readout and its frozen models as one model; see `api.export`."""
    if to not in EXPORT_SUFFIXES:
        raise InputError(f"--to {to}: choose torch or onnx")
    if to == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise InputError(
            "--to onnx needs onnx and onnxscript", "run pip install 'reservoir-features[onnx]'"
        )
    check_out_file(result.out, EXPORT_SUFFIXES[to])
    bundle = open_readout(readout, linear=True)
    # On the CPU, ONNX Runtime lacks matrix products and sums in bfloat16, and refuses to load a model that has some.
    module = build(bundle, readout, compute="float32" if to == "onnx" else None)
    # torch 2.6 cannot serialize a variable batch size. Errors of the readout come first, because they are the same
    # under any torch: nobody should install another torch for a readout that cannot be exported.
    if torch.__version__.startswith("2.6."):
        raise InputError(
            f"export: torch {torch.__version__} cannot write these models", "install torch 2.7"
        )
    traced = trace(module, bundle.task)
    # Beside the readout by default: the model, its description, and the file of its tokenizer or image processor.
    readout_folder = readout if readout.is_dir() else readout.parent
    path = result.out or readout_folder / f"model{EXPORT_SUFFIXES[to]}"
    card = path.with_name(f"{path.name}.json")
    reader = module.reader
    reader_path = None
    remarks = _remarks_on_texts(bundle, reader)
    notify(*remarks.values())
    description = (
        _describe(bundle, path.name, to, traced) | _remarks_on_values(bundle.task, reader) | remarks
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(reader, TextReader | PixelReader):
            reader_path = path.with_name(f"{path.name}.{reader.kind}.json")
            replace_file(reader_path, reader.save)
            description[reader.kind] = reader_path.name
            inputs = " and ".join(traced.example)
            notify(
                f"the exported model begins after the {reader.kind} ({reader_path.name}) and reads {inputs}"
            )
        replace_file(path, lambda temporary: _write(traced, to, temporary))
        replace_file(card, lambda temporary: temporary.write_text(json.dumps(description, indent=1)))
    return Export(
        model=path, card=card, reader=reader_path, bytes=path.stat().st_size, tokens=traced.tokens
    )


def build(bundle: Bundle, where: Path, compute: str | None = None) -> SequenceModel:
    """Return the module of a bundle with a linear readout on the CPU, in the precision of the fit or in ``compute``.

    ``where`` is the path of the readout, for messages. Raise `InputError` for a readout that no module can replace.
    """
    assert isinstance(bundle.readout, LinearReadout)  # the callers open linear readouts only
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
    # A module has one input: all branches read the same tokenizer's tokens, the same pixels, or stored sequences.
    readers = [branch.reader if isinstance(branch, Branch) else None for branch in branches]
    column_of_input: dict[str | None, str] = {}  # by the digest of the reader; None for stored sequences
    for reader, part in zip(readers, bundle.parts, strict=True):
        column_of_input[reader.digest if reader else None] = part.columns[0]
    if len(column_of_input) > 1:
        columns = " and ".join(column_of_input.values())
        raise InputError(f"readout {where}: {columns} read different inputs", "fit --columns of one input")
    scaling = None if readers[0] else bundle.scaling  # of stored values
    return SequenceModel(bundle.task, scaling, branches, bundle.readout)


class Traced(NamedTuple):
    """A model as a program of torch.export, and what its description says of its inputs."""

    program: ExportedProgram
    example: dict[str, torch.Tensor]  # examples of the inputs by name
    # The names of the variable axes of each input, by the numbers of the axes.
    axes: dict[str, dict[int, str]]
    tokens: tuple[int, int]  # the fewest and the most tokens of a row


def trace(module: SequenceModel, task: Task) -> Traced:
    """Return the program of a module for any batch size, and for any length if the tracer can bound it.

    Blocks above the last one that the readout reads are removed from the module, so that they are not exported.
    """
    # 1. The inputs, and which of their axes vary.
    branches = [branch for branch in module.branches if isinstance(branch, Branch)]
    # torch.export treats sizes 0 and 1 as constants, so a variable length starts at two.
    fewest = max(task.readout_tokens, 2)
    longest = module.reader.max_tokens if module.reader else task.max_tokens
    exported, example = _inputs(module, task, longest)
    fixed_length, variable_length = _dynamic_shapes(example, fewest, longest)
    are_images = isinstance(exported, PixelsModel)  # all images of a model have one size
    may_vary = fewest < longest and not are_images and _keep_length(branches)
    shapes, shortest = (variable_length, fewest) if may_vary else (fixed_length, longest)
    # 2. The program.
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
    # 3. The names of the axes that vary.
    axes = {name: {axis: dim.__name__ for axis, dim in dims.items()} for name, dims in shapes.items()}
    return Traced(program=program, example=example, axes=axes, tokens=(shortest, longest))


def _dynamic_shapes(
    example: Mapping[str, torch.Tensor], fewest: int, longest: int
) -> tuple[VariableAxes, VariableAxes]:
    """Return the variable axes of inputs of any batch size: with one length, and with ``fewest`` to ``longest`` tokens.

    The tokens are axis 1 of an input; lengths (batch,) have no such axis.
    """
    # `Dim` needs an order of its bounds even if the length cannot vary.
    tokens = {1: Dim("tokens", min=fewest, max=max(fewest, longest))}
    fixed_length: VariableAxes = {name: {0: Dim("batch")} for name in example}
    variable_length: VariableAxes = {}
    for name, axes in fixed_length.items():
        has_tokens = example[name].ndim > 1
        variable_length[name] = axes | tokens if has_tokens else axes
    return fixed_length, variable_length


def _keep_length(branches: Iterable[Branch]) -> bool:
    """Return whether all models make as many tokens as a sequence has values."""
    # Without windows, a value is a token. Windows make as many tokens if there is one around every value; with other
    # windows, the tracer cannot bound the number of tokens.
    return all(
        branch.windows.plain or (branch.windows.pad == "same" and branch.windows.stride == 1)
        for branch in branches
    )


def _remove_traces_of_machine(program: ExportedProgram) -> None:
    """Remove from a program what torch would write with it: a pickle of the example, and paths of this machine."""
    program.example_inputs = None
    for submodule in program.graph_module.modules():
        if not isinstance(submodule, torch.fx.GraphModule):
            continue
        for node in submodule.graph.nodes:
            node.meta.pop("stack_trace", None)


def _inputs(module: SequenceModel, task: Task, longest: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return the module to export, and examples of its inputs by name: two rows of up to ``longest`` tokens."""
    if isinstance(module.reader, PixelReader):
        return PixelsModel(module, module.reader), {"pixel_values": torch.zeros(2, *module.reader.pixels)}
    if module.reader:
        mask = torch.ones(2, longest).long()
        return TokensModel(module), {"input_ids": torch.zeros_like(mask), "attention_mask": mask}
    x = torch.zeros(2, longest).long()  # symbols
    if isinstance(task.form, Vectors):
        x = torch.zeros(2, longest, task.form.dim)
    shortest = task.readout_tokens
    return module, {"x": x, "lengths": torch.tensor([longest, shortest])}


def _describe(bundle: Bundle, name: str, to: str, traced: Traced) -> dict[str, Any]:
    """Return how to call the model file ``name`` and how to read its output, as JSON values."""
    task = bundle.task
    # The type and shape of each input; a variable axis has a name instead of its size.
    inputs: dict[str, dict[str, Any]] = {}
    for key, values in traced.example.items():
        shape = [traced.axes[key].get(axis, str(size)) for axis, size in enumerate(values.shape)]
        inputs[key] = {"type": str(values.dtype).removeprefix("torch."), "shape": shape}
        if key in ("x", "input_ids"):
            inputs[key]["tokens"] = list(traced.tokens)
    feeds = ", ".join(f"{key!r}: {key}" for key in inputs)
    last_input = [*inputs][-1]  # lengths or the mask, if rows may be padded
    output_shape = ["batch", str(task.readout_tokens), str(task.outputs)]
    if task.classes:
        output_shape.append(str(task.classes))
    link = getattr(bundle.readout, "link", "softmax")
    return {
        "format": EXPORT_FORMAT,
        "model": name,
        "call": CALLS[to].format(name=name, inputs=", ".join(inputs), feeds=feeds),
        "inputs": inputs,
        "padding": PADDING.get(last_input, "none"),
        "output": {
            "logits": {"type": "float32", "shape": output_shape},
            "meaning": MEANINGS[link] if task.classes else "predicted values",
        },
        "classes": [task.label(index) for index in range(task.classes)],
        "task": task.to_dict(),
        "parts": [part.to_dict() for part in bundle.parts],
        "scores": bundle.scores,
    }


def _remarks_on_values(task: Task, reader: Reader | None) -> dict[str, str]:
    """Return how ``x`` is made of values with gaps or of images, by the keys of the description."""
    remarks: dict[str, str] = {}
    if reader:  # the model reads no ``x``
        return remarks
    if isinstance(task.form, Vectors) and task.parameters.get("missing") == "mask":
        channels = task.form.dim // 2
        remarks["missing"] = (
            f"x has the values of the data in the first {channels} channels, NaN (not 0) where one is missing, and "
            f"then {channels} channels that are 1 where it is missing, else 0"
        )
    if task.pictures:
        remarks["images"] = (
            f"x has the {PATCHES} patches of {PATCH}x{PATCH} pixels of an RGB image that is resized to {SIDE}x{SIDE} "
            "pixels (Pillow, bilinear), row by row; the values of a patch are its pixels, row by row, each as red, "
            "green and blue from 0 to 255"
        )
    return remarks


def _remarks_on_texts(bundle: Bundle, reader: Reader | None) -> dict[str, str]:
    """Return what a user of the exported tokenizer must know of texts, by the keys of the description."""
    if not isinstance(reader, TextReader):
        return {}
    remarks: dict[str, str] = {}
    if reader.template:
        remarks["texts"] = (
            "the tokenizer reads chats that apply_chat_template of transformers has rendered with the model's chat "
            "template, and adds no special tokens"
        )
    if any(part.reservoir and part.reservoir.long == "windows" for part in bundle.parts):
        remarks["long_texts"] = (
            f"the tokenizer cuts texts after {reader.max_tokens:,} tokens; longer ones have other logits than those "
            "of predict, which reads them in pieces (--long windows)"
        )
    return remarks


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
