"""The frozen model: its options with every default resolved, and the model loaded on a device in a precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reservoir.backbone_names import DEFAULT_BACKBONE, full_name
from reservoir.backbones import find, load_backbone, weights_digest
from reservoir.backbones.backbone import Backbone
from reservoir.backbones.generic_checks import convert_to_bfloat16
from reservoir.cuda_graphs import CudaRecorder, RepeatedBatches
from reservoir.devices import on_gpu
from reservoir.errors import InputError, as_input_error
from reservoir.fpt import FPT
from reservoir.inputs.counter import BracketCounter, Brackets
from reservoir.inputs.kernels import KernelConvolution
from reservoir.inputs.native import Reader, open_native, open_reader
from reservoir.inputs.picture_patches import PatchConvolution, PatchUnits
from reservoir.inputs.random_input import NoInputLayer, draw_input
from reservoir.options import GAIN, ReservoirOptions
from reservoir.processor import faster_precision
from reservoir.size_limits import free_memory
from reservoir.tasks.picture_windows import Picture, PictureWindows
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.windows import Windows

MAX_WINDOW = 2**18  # values of a token; an input layer of more takes minutes to draw
MAX_SYMBOLS = 64  # largest vocabulary of windows, which have one channel per symbol


class Reservoir(ReservoirOptions):
    """`ReservoirOptions` with every default resolved (see `reservoir.plan`).

    The defaults of these fields are the plain model of Lu et al. (2021): each value is a token, without
    windows. The plan replaces them where the kind of data has better ones.
    """

    backbone: str = DEFAULT_BACKBONE
    init: str = "pretrained"
    input: str = "orthogonal"
    gain: float = GAIN
    patch: int = 1
    stride: int = 1
    dilations: str = "1"
    pad: str = "valid"
    normalise: str = "channel"

    @property
    def plain(self) -> bool:
        """Whether each value is a token as it is, without windows."""
        values_alone = self.patch == 1 and self.stride == 1 and self.dilations in ("1", "auto")
        return values_alone and self.pad == "valid" and self.normalise == "channel"

    def windows(self, task: Task) -> Windows:
        """Return the windows that become the tokens of a task."""
        if self.input == "patches":
            picture = Picture.of(task, self.patch, self.stride)
            return PictureWindows(
                patch=self.patch, stride=self.stride, stored=task.max_tokens, places=picture.places
            )
        dilations = tuple(map(int, self.with_dilations(task.max_tokens).dilations.split(",")))
        symbols = task.form.vocabulary if isinstance(task.form, Tokens) else 0
        return Windows(
            patch=self.patch,
            stride=self.stride,
            dilations=dilations,
            pad=self.pad,
            normalise=self.normalise,
            symbols=symbols,
        )

    def with_dilations(self, longest: int) -> Reservoir:
        """Replace the dilations ``auto`` by 1, 2, 4 ... up to windows that span a row of the ``longest`` length."""
        if self.dilations != "auto":
            return self
        # A window of ``patch`` values at distances of d spans (patch - 1) d + 1 places.
        dilations = [1]
        while (self.patch - 1) * 2 * dilations[-1] < longest and self.patch > 1:
            dilations.append(2 * dilations[-1])
        return replace(self, dilations=",".join(map(str, dilations)))

    def windowed(self, task: Task) -> Task:
        """Return the task as the model sees it, with windows as tokens; raise `InputError` if no window fits."""
        windows = self.windows(task)
        if windows.plain:
            return task
        if isinstance(windows, PictureWindows):
            picture = Picture.of(task, self.patch, self.stride)
            return replace(task, form=Vectors(picture.window_values), max_tokens=picture.places)
        channels = task.form.dim if isinstance(task.form, Vectors) else windows.symbols
        if windows.symbols > MAX_SYMBOLS:
            raise InputError(
                f"--patch {self.patch}: windows support up to {MAX_SYMBOLS} symbols, and task {task.name!r} "
                f"has {channels}",
                "leave out the window options",
            )
        if task.readout_tokens > 1 and not (
            task.labels_each_token and self.stride == 1 and self.pad == "same"
        ):
            raise InputError(
                f"--patch {self.patch}: task {task.name!r} labels tokens, not windows",
                "leave out the window options",
            )
        tokens = int(windows.counts(np.array(task.max_tokens)))
        if tokens < 1:
            raise InputError(
                f"--patch {self.patch}: no window fits the sequences of up to {task.max_tokens} values",
                "give a smaller patch or smaller dilations",
            )
        dim = len(windows.dilations) * windows.patch * windows.forms * channels
        if dim > MAX_WINDOW:
            raise InputError(
                f"--patch {self.patch}: each token would have {dim:,} values, more than {MAX_WINDOW:,}",
                "give a smaller patch or fewer dilations",
            )
        return replace(task, form=Vectors(dim), max_tokens=tokens)


MODEL_SHARE = 0.8
"""Share of the free memory that a model may fill; hidden states and features need the rest."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model on its device, with the SHA-256 of its float32 weights and of its native input."""

    fpt: FPT
    settings: Reservoir
    windows: Windows
    digest: str
    device: torch.device
    compute: str
    reader: Reader | None = None
    input_digests: Mapping[str, str] = field(default_factory=dict)
    # What computes the tokens of the backbone from rows, if there is no input layer that reads windows.
    convolution: KernelConvolution | PatchConvolution | None = None
    units: PatchUnits | None = None  # of ``--input patches``, which learns them from training rows
    # Whether extraction runs compiled blocks, which change the last bits; see `FPT.compile_for_gpu`.
    compiled: bool = False
    repeated: RepeatedBatches | None = None  # what computes small batches on a GPU

    def tokens(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens that the FPT reads of scaled values or of symbols (rows, values, ...), and their counts."""
        return (self.convolution or self.windows.of_tensors)(x, lengths)


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
        "memory_limit": _memory_limit(stream, place),
    }
    # The task as the model sees it, the backbone, and what makes its input: its own reader and embeddings, kernels
    # whose responses are the hidden states, or a drawn input layer.
    windows, seen = settings.windows(task), settings.windowed(task)
    input_digests: Mapping[str, str] = {}
    convolution: KernelConvolution | PatchConvolution | None = None
    if settings.input == "native":
        reader = reader or open_reader(seen, settings.backbone, settings.init)
        native = open_native(
            seen, reader, settings.backbone, settings.init, settings.seed, settings.depth, **storage
        )
        seen, backbone = native.seen, native.backbone
        inputs = native.inputs
        input_digests = native.digests
    else:
        backbone = load_backbone(settings.backbone, settings.init, settings.seed, settings.depth, **storage)
        convolution = _convolution(task, settings, windows, backbone, units)
        if convolution:
            convolution, inputs = convolution.to(place), NoInputLayer()
        elif settings.input == "counter":
            if not windows.plain:
                raise InputError(
                    "--input counter: it reads symbols, not windows", "leave out the window options"
                )
            inputs = BracketCounter(Brackets.of(task), backbone.width, settings.gain)
        else:
            inputs = draw_input(
                settings.input, seen, windows, backbone.width, seed=settings.seed, gain=settings.gain
            )
    if settings.long == "windows" and (reader is None or reader.kind != "tokenizer"):
        raise InputError("--long windows: only for texts that the model's tokenizer reads", "leave it out")
    # The digest is that of the weights before they are rounded to the precision of the products.
    fpt = FPT(seen, backbone, inputs, settings.seed, output_init).eval()
    digest = weights_digest(backbone)
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
        # Recurrent backbones stay in float32.
        compute=backbone.compute,
        convolution=convolution,
        units=units if settings.input == "patches" else None,
        compiled=compiled and backbone.streamed is None,
        repeated=None if compiled else _repeated_batches(place, backbone),
    )


def _convolution(
    task: Task, settings: Reservoir, windows: Windows, backbone: Backbone, units: PatchUnits | None
) -> KernelConvolution | PatchConvolution | None:
    """Return what responds to whole rows in place of an input layer that reads tokens, if the settings have it."""
    if settings.input == "patches":
        if units is None:
            raise InputError(
                "--input patches: its units are drawn from the training rows of an extraction",
                "use reservoir extract, then fit and predict, or another --input",
            )
        return PatchConvolution(units, Picture.of(task, settings.patch, settings.stride), settings.gain)
    if settings.input == "kernels" and not backbone.depth and not windows.plain:
        channels = task.form.dim if isinstance(task.form, Vectors) else windows.symbols
        return KernelConvolution(
            windows,
            channels,
            backbone.width,
            settings.seed,
            settings.gain,
            channel_subsets=getattr(backbone.config, "channel_subsets", False),
        )
    return None


def _repeated_batches(device: torch.device, backbone: Backbone) -> RepeatedBatches | None:
    """Return what captures small batches in CUDA graphs, if the device and the model allow it."""
    # The models whose blocks compile are known to read no values of tensors inside them.
    reads_values = backbone.family.reads_values or not backbone.family.compiles
    if device.type != "cuda" or reads_values or backbone.streamed is not None:
        return None
    return RepeatedBatches(CudaRecorder(device))


def _memory_limit(stream: str, device: torch.device) -> int | None:
    """Return the bytes of parameters above which blocks are streamed; None for no limit."""
    if stream != "auto":
        return 0 if stream == "always" else None
    free = free_memory()
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0])
    return int(MODEL_SHARE * free)


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` is a GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    with as_input_error(f"device {name!r}: not available here", "use --device cpu, cuda or auto"):
        device = torch.device(name)
        torch.empty(1, device=device)
    return device


def choose_compute(name: str, device: torch.device) -> str:
    """Return the precision of a model; ``auto`` is bfloat16 if the hardware multiplies it natively and faster."""
    if name != "auto":
        return name
    if on_gpu(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if native else "float32"
    return faster_precision() if device.type == "cpu" else "float32"


def choose_training_compute(name: str, device: torch.device) -> str:
    """Return the precision of the products of a training, whose trained weights and hidden states are float32."""
    if name == "bfloat16-all":
        problem = "--compute bfloat16-all: trained weights need hidden states in float32"
        raise InputError(problem, "use --compute bfloat16")
    return choose_compute(name, device)


def reads_samples(model: ReservoirOptions) -> bool:
    """Return whether the named backbone was pretrained on samples of sounds."""
    # By default, only a pretrained model reads by its own input.
    native = model.input == "native" or (model.input is None and model.init in {None, "pretrained"})
    return bool(model.backbone) and native and find(full_name(str(model.backbone)))[0].reads == "sounds"
