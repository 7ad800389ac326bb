"""The frozen model, loaded on a device in a precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from reservoir.backbone_names import full_name
from reservoir.backbones import find, load_backbone, weights_digest
from reservoir.backbones.generic_checks import convert_to_bfloat16
from reservoir.cuda_graphs import RepeatedBatches
from reservoir.devices import choose_compute, choose_device, memory_limit
from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.inputs.convolutions import KernelConvolution, PatchConvolution
from reservoir.inputs.input_layers import NoInputLayer, draw_inputs
from reservoir.inputs.native import Reader, open_native, open_reader
from reservoir.inputs.patch_units import PatchUnits
from reservoir.inputs.text_reader import TextReader
from reservoir.options import ReservoirOptions
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task
from reservoir.tasks.windows import Windows


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model on its device, and what turns stored rows into its tokens."""

    fpt: FPT
    settings: Reservoir  # with all defaults resolved
    windows: Windows  # that become tokens, unless a reader or a convolution makes them
    digest: str  # SHA-256 of the backbone's weights before they are rounded
    device: torch.device
    compute: str  # one of `PRECISIONS`
    reader: Reader | None = None  # of native input; None with any other
    # SHA-256 of tokenizer, embeddings and chat template of native input, by these names
    input_digests: Mapping[str, str] = field(default_factory=dict)
    # What computes the tokens of the backbone from rows; None if an input layer reads windows.
    convolution: KernelConvolution | PatchConvolution | None = None
    # of ``--input patches``, which learns them from training rows; None otherwise
    units: PatchUnits | None = None
    # Whether extraction runs compiled blocks, which change the last bits; see `FPT.compile_for_gpu`.
    compiled: bool = False
    # captures small batches on a GPU; None if the model does not allow it
    repeated: RepeatedBatches | None = None

    @property
    def tokenizer(self) -> TextReader:
        """The reader of texts; raise `InputError` for a model that does not read them by its own tokenizer."""
        if not isinstance(self.reader, TextReader):
            raise InputError(
                f"{self.settings.title}: it has no tokenizer of its own", "name another --backbone"
            )
        return self.reader

    def tokens(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens that the FPT reads of scaled values or of symbols (rows, values, ...), and their counts.

        ``lengths`` (rows,) count the values of each row.
        """
        make_tokens = self.convolution or self.windows.of_tensors
        return make_tokens(x, lengths)


def load_model(
    task: Task,
    settings: Reservoir,
    device: str = "auto",
    compute: str = "auto",
    output_init: str = "orthogonal",
    units: PatchUnits | None = None,
    stream: str = "never",
    reader: Reader | None = None,
    *,
    compiled: bool = False,
) -> LoadedModel:
    """Load or draw the model for a task, in evaluation mode on its device.

    ``--input patches`` needs its ``units``; ``stream`` is that of `StreamOptions`. The ``reader`` of native input is
    opened here unless the plan of the same task has opened it. A streamed model is not ``compiled``.
    """
    place = choose_device(device)
    precision = choose_compute(compute, place)
    # Weights that are rounded for the products anyway need no float32 copy.
    storage: dict[str, Any] = {
        "own_precision": precision != "float32",
        "memory_limit": memory_limit(stream, place),
    }
    # The task as the model sees it, the backbone, and what makes its input: its own reader and embeddings, a
    # convolution whose responses are the hidden states, or a drawn input layer.
    windows = settings.windows(task)
    seen_task = settings.windowed(task)
    input_digests: Mapping[str, str] = {}
    convolution: KernelConvolution | PatchConvolution | None = None
    if settings.input == "native":
        reader = reader or open_reader(seen_task, settings.backbone, settings.init)
        native = open_native(
            seen_task, reader, settings.backbone, settings.init, settings.seed, settings.depth, **storage
        )
        seen_task, backbone = native.seen_task, native.backbone
        inputs = native.inputs
        input_digests = native.digests
    else:
        backbone = load_backbone(settings.backbone, settings.init, settings.seed, settings.depth, **storage)
        drawn = draw_inputs(task, seen_task, settings, windows, backbone, units)
        if isinstance(drawn, KernelConvolution | PatchConvolution):
            convolution = drawn.to(place)
            inputs = NoInputLayer()
        else:
            inputs = drawn
    has_tokenizer = reader is not None and reader.kind == "tokenizer"
    if settings.long == "windows" and not has_tokenizer:
        raise InputError("--long windows: only for texts that the model's tokenizer reads", "leave it out")
    # The digest is that of the weights before they are rounded to the precision of the products.
    fpt = FPT(seen_task, backbone, inputs, settings.seed, output_init).eval()
    digest = weights_digest(backbone)
    # A generic model, whose code nobody has described, is also compared with itself in float32.
    if precision == "bfloat16-all" and backbone.family.is_generic:
        convert_to_bfloat16(backbone)
    else:
        backbone.set_compute(precision)
    return LoadedModel(
        fpt=fpt.to(place),
        settings=settings,
        windows=windows,
        digest=digest,
        device=place,
        reader=reader,
        input_digests=input_digests,
        compute=backbone.compute,  # not ``precision``, because recurrent backbones stay in float32
        convolution=convolution,
        units=units if settings.input == "patches" else None,
        compiled=compiled and backbone.streamed is None,
        repeated=None if compiled else RepeatedBatches.of(place, backbone),
    )


def reads_samples(model: ReservoirOptions) -> bool:
    """Return whether the options name a backbone that reads samples of sounds by its own input."""
    if not model.backbone:
        return False
    # By default, only a pretrained model reads by its own input; without ``init``, a model is pretrained if it can be.
    is_native_by_default = model.input is None and model.init in {None, "pretrained"}
    if model.input != "native" and not is_native_by_default:
        return False
    family, *_ = find(full_name(model.backbone))
    return family.reads == "sounds"
