"""The model of a plan: its backbone, and its tokens, which are windows or those of its own tokenizer or patches.

By default, series are read by random kernels, and pictures by patches of training pictures, both without a transformer.
How many there are is decided here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from reservoir.backbone_names import DEFAULT_BACKBONE, KERNELS, SHIPPED, full_name
from reservoir.backbones import choose_init
from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.errors import InputError
from reservoir.inputs.input_layers import Brackets
from reservoir.inputs.native import native_obstacle, suits
from reservoir.option_fields import as_group
from reservoir.options import KERNEL_GAIN, UNIT_GAIN, ExtractOptions, ModelOptions, ReservoirOptions
from reservoir.plan.basis import PLAIN, SERIES_KERNEL, SYMBOL_KERNEL, DataView
from reservoir.plan.columns import (
    INPUT_LAYER,
    KERNEL_POOLINGS,
    MAX_KERNEL_BYTES,
    MAX_KERNEL_ROWS,
    Budget,
    ColumnSet,
    split_names,
)
from reservoir.reservoir import MAX_WINDOW_SYMBOLS, Reservoir
from reservoir.tasks import variant_of
from reservoir.tasks.task import Task, Tokens, Vectors

# The backbone of a series whose every step has a label: twice as many kernels added 0.2 points, half as many cost 1.
STEP_KERNELS = f"{KERNELS}:width=64"
# Widths of random kernels, and the most rows of train and valid that each is for: the first is that of their
# configuration, the last is for any number of rows. Twice as many kernels read as well as twice as many rows; the time
# of a readout grows with the cube of the rows up to 6,144, and then with that of the features. On generated series of
# 200 values (benchmarks/series.py), 500, 2,000, 4,000 and 8,000 rows had 96.8, 98.8, 99.2 and 99.2% with 1,024 kernels,
# 96.3, 98.3, 98.7 and 98.9% with 512, and 95.1, 97.5, 97.8 and 98.4% with 256; 40,000 rows had 99.3% with 256.
KERNEL_WIDTHS = {1024: 6144, 512: 24_576, 256: math.inf}
# Numbers of patches by the most rows that are fitted: with more rows, the time of a readout grows with the cube of the
# features.
PICTURE_WIDTHS = {1024: MAX_KERNEL_ROWS, 512: 50_000, 256: math.inf}


def choose_backbone(data: DataView, options: ExtractOptions) -> str | None:
    """Return the backbone that was given, or by default one without blocks for series, pictures and labels of steps.

    For other data it is None: they have the default transformer. So have series and pictures with an option that
    only a transformer has, such as ``--depth`` or a layer above the input layer.
    """
    task = data.task
    layers = () if options.layers is None else split_names(options.layers)
    reads_blocks = bool({*layers} - {*INPUT_LAYER})
    needs_blocks = options.init is not None or options.depth is not None or reads_blocks
    has_input_for_blocks = options.input not in (None, "kernels", "patches", "counter")
    if options.backbone is not None or needs_blocks or has_input_for_blocks:
        return options.backbone
    if options.input == "patches":
        return KERNELS
    if options.input == "counter":
        channels = Brackets.of(task).channels
        groups = -(-channels // GROUP_SIZE)  # rounded up: the width must be a multiple of the group size
        return f"{KERNELS}:width={groups * GROUP_SIZE}"
    if task.labels_each_token and isinstance(task.form, Vectors):
        return STEP_KERNELS
    if data.kind not in ("series", "pictures"):
        return None
    settings: list[str] = []  # those that differ from the configuration of the kernels
    width = _kernel_width(data)
    if width < max(KERNEL_WIDTHS):
        settings.append(f"width={width}")
    # With all six channels in each kernel, recordings of watches had 89.0% on held-out subjects of training rows, and
    # resampled 91.8%; with subsets 90.6 and 93.7%.
    if data.kind == "series" and isinstance(task.form, Vectors) and task.form.dim > 1:
        settings.append("channel_subsets=true")
    return f"{KERNELS}:{','.join(settings)}" if settings else KERNELS


def _kernel_width(data: DataView) -> int:
    """Return the number of kernels or patches: the largest that the rows allow and, of kernels, whose columns fit."""
    task = data.task
    fitted_rows = data.train_rows + data.valid_rows
    if task.pictures:
        return next(width for width, most_rows in PICTURE_WIDTHS.items() if fitted_rows <= most_rows)
    columns = ColumnSet(INPUT_LAYER, KERNEL_POOLINGS)
    for width, most_rows in KERNEL_WIDTHS.items():
        # The windows are not chosen yet, so ``seen_task`` is the task itself: these columns have one size for all
        # windows.
        budget = Budget(
            task=task,
            seen_task=task,
            width=width,
            rows=data.all_rows,
            least_bytes=MAX_KERNEL_BYTES,
            limits_size=True,
            limits_work=False,
        )
        if fitted_rows <= most_rows and not budget.excess(columns).any:
            return width
    # If none fits, take the fewest; `choose_columns` then leaves out columns, unless the user named the poolings.
    return min(KERNEL_WIDTHS)


def is_kernels(backbone: str) -> bool:
    """Return whether a backbone is random kernels without blocks, of any width."""
    return backbone.partition(":")[0] == KERNELS


# The options that default windows decide.
WINDOW_OPTIONS = ("input", "patch", "stride", "dilations", "pad", "normalise", "gain")
# Dilations beside 1, if each token of a series has a label. Larger ones did not help, because poolings look at wider
# windows.
STEP_DILATIONS = (2, 4, 8, 16)
# Most windows of a row: the positions of GPT-2 and mini. Kernels alone have no positions, but windows at each of up to
# 2,000 values doubled the time of extraction, for 0.3 points on the five sets for development with more values.
MAX_WINDOWS = 1024
# Windows of pictures for units that are patches of training pictures. On CIFAR-10, stride 1 instead of 2 added 3.6
# points (docs/log.md). With 200 training rows of MNIST, windows of 8 had 1.2 points more than those of 6.
PATCH_WINDOWS = {"patch": 8, "stride": 1}


@dataclass(frozen=True)
class ModelChoice:
    """The model of a plan."""

    reservoir: Reservoir  # with "auto" dilations resolved
    # Why a model of this kind of data, which the user named, does not read it by its own input; else empty.
    native_obstacle: str
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def choose_model(data: DataView, options: ExtractOptions, backbone: str | None) -> ModelChoice:
    """Return the model for some data, by its own input if it can read them.

    ``backbone`` is what `choose_backbone` returns; None for the default backbone.
    """
    task = data.task
    random_inits = variant_of(options.given).random_inits
    with_backbone = replace(options, backbone=backbone)
    reservoir = resolve_model(with_backbone, random_inits=random_inits)
    # Windows that suit one input layer may not suit another, which gets plain windows.
    why, windows = PLAIN, default_windows(data, reservoir.backbone)
    windowed = reservoir
    if windows and options.input in (None, windows["input"]):
        windowed = resolve_model(with_backbone, windows, random_inits=random_inits)
        why = f"the best in our measurements for {data.kind}"
    # A model of this kind of data reads it by its own input, unless something prevents that.
    suited = suits(task, reservoir)
    obstacle = ""
    if suited and options.input is None:
        obstacle = native_obstacle(task, reservoir)
    elif suited and options.input != "native":
        obstacle = "--input was given"
    is_native_by_default = suited and options.input is None and not obstacle
    reads_natively = is_native_by_default or options.input == "native"
    if not reads_natively:
        _refuse_native_data(task, obstacle)
    if reservoir.backbone in SHIPPED:  # the defaults for letters were tuned with it, so nothing is missed
        obstacle = ""
    if is_native_by_default:
        reservoir, why = replace(reservoir, input="native"), "the model reads this kind of data"
    else:
        reservoir = windowed
    # The reasons are for the options as the user gave them, among which the chosen backbone may not be.
    reasons = _reasons(options, reservoir, why)
    reasons["input"] += f"; not native, because {obstacle}" if obstacle else ""
    if reservoir.stride > 1 and why != PLAIN and not is_native_by_default:
        values = f"rows of up to {task.max_tokens:,} values"
        reasons["stride"] = f"{values} become at most {MAX_WINDOWS:,} windows"
    return ModelChoice(reservoir.with_dilations(data.longest), obstacle, reasons)


def random_input_note(task: Task, reservoir: Reservoir, native_obstacle: str) -> str:
    """Return a message if a random input layer replaces the model's own input; else empty.

    ``native_obstacle`` says why the model does not read the task by its own input; it is that of `ModelChoice`.
    """
    if not native_obstacle:
        return ""
    how = f"a random input layer ({reservoir.input}) replaces the one of {reservoir.title}"
    return f"{task.name}: {how}: {native_obstacle}"


def _refuse_native_data(task: Task, obstacle: str) -> None:
    """Raise `InputError` if only a model's own input can read the task; ``obstacle`` may say why it does not."""
    if task.labels_text_tokens:
        raise InputError(
            f"{task.name}: the labels are those of words or tokens, so the model must read text by its own tokenizer",
            "leave out --input, or name a model with a tokenizer as --backbone",
        )
    if task.parameters.get("chat"):
        because = f", because {obstacle}" if obstacle else ""
        raise InputError(
            f"--chat: the model does not read chats by its own tokenizer{because}",
            "name a pretrained language model with a chat template as --backbone",
        )


def _reasons(options: ExtractOptions, reservoir: Reservoir, why: str) -> dict[str, str]:
    """Return the reason for the default of each option of a model; ``why`` is that of the windows."""
    return {
        **{option.name: PLAIN for option in fields(Reservoir)},
        **dict.fromkeys(WINDOW_OPTIONS, why),
        "backbone": _reason_for_backbone(options, reservoir),
        "init": "published" if reservoir.init == "pretrained" else "no published weights",
        "depth": "there are none" if is_kernels(reservoir.backbone) else "all blocks",
    }


def _reason_for_backbone(options: ExtractOptions, reservoir: Reservoir) -> str:
    """Return the reason for the default backbone of a model."""
    if not is_kernels(reservoir.backbone):
        return "comes with this package" if options.init is None else "has the weights of --init"
    if reservoir.backbone == STEP_KERNELS:
        return "recordings may be longer than the positions of a transformer"
    if reservoir.input == "patches":
        return "for pictures, patches without a transformer are far more accurate than mini"
    if reservoir.input == "counter":
        return "a channel for each symbol at each level"
    why = "for series, the blocks of a frozen transformer add little to random kernels"
    return f"{why}; many rows have fewer of them" if "width=" in reservoir.backbone else why


def resolve_model(
    options: ModelOptions,
    windows: Mapping[str, Any] | None = None,
    *,
    random_inits: Mapping[str, str] = MappingProxyType({}),
) -> Reservoir:
    """Return the options of a model, all resolved.

    ``windows`` are the default windows for the data, by option; None for plain ones. ``random_inits`` are those of a
    `Variant`.
    """
    backbone, init = options.backbone, options.init
    # A folder as --init is the backbone, with its own weights.
    if init is not None and Path(init).is_dir():
        if backbone is not None:
            raise InputError(f"--init {init}: the folder holds a backbone", "leave out --backbone")
        backbone, init = str(Path(init).resolve()), "pretrained"
    name = full_name(backbone or DEFAULT_BACKBONE)
    if init is None or init.startswith("random"):
        init = choose_init(name, init, random_inits=random_inits)
    # Explicit options win over the windows for the data, and these over the fields of `Reservoir`.
    reservoir_options = vars(as_group(options, ReservoirOptions))
    explicit = {key: value for key, value in reservoir_options.items() if value is not None}
    values = {**(windows or {}), **explicit, "backbone": name, "init": init}
    # Defaults of an input layer, however it was chosen.
    match values.get("input"):
        case "kernels":
            values.setdefault("gain", KERNEL_GAIN)
        case "patches":
            values = {**PATCH_WINDOWS, "gain": UNIT_GAIN, **values}
        case "counter":
            values.setdefault("gain", UNIT_GAIN)
    values.setdefault("stride", values.get("patch", Reservoir.patch))  # windows side by side
    return Reservoir(**values)


def default_windows(data: DataView, backbone: str) -> dict[str, Any]:
    """Return the default windows for some data and a backbone, by option; empty if each value or symbol is a token."""
    task, kind = data.task, data.kind
    has_many_symbols = isinstance(task.form, Tokens) and task.form.vocabulary > MAX_WINDOW_SYMBOLS
    if task.labels_each_token and not has_many_symbols:
        return _windows_around_tokens(task)
    if kind == "pictures" and is_kernels(backbone):
        return {"input": "patches", **PATCH_WINDOWS}
    # The stride depends on the length of the rows alone. If there are many rows, they get fewer columns and layers
    # instead of a stride, because skipped values cost accuracy.
    stride = -(-task.max_tokens // MAX_WINDOWS)  # rounded up
    kernels = {"input": "kernels", "stride": stride, "pad": "same"}
    if kind == "series" and is_kernels(backbone):
        # The kernels read values on the scale of the channel and on the scale of the row. With the pooling compete8,
        # accuracy was .013 lower if half of the kernels read differences (22 sets).
        return kernels | {"patch": SERIES_KERNEL, "dilations": "auto", "normalise": "both"}
    if kind == "series" or (kind == "forecasts" and task.max_tokens >= SERIES_KERNEL):
        # The kernels read values on the scale of the channel, values on the scale of the row, and differences.
        return kernels | {"patch": SERIES_KERNEL, "dilations": "auto", "normalise": "differences"}
    if kind == "symbols":
        return kernels | {"patch": SYMBOL_KERNEL}
    return {}


def _windows_around_tokens(task: Task) -> dict[str, Any]:
    """Return the windows if each token has a label, by option: each token is in the middle of its window."""
    windows = {"stride": 1, "pad": "same", "patch": SERIES_KERNEL}
    if isinstance(task.form, Tokens):  # an invertible map shows the neighbouring symbols
        return windows | {"input": "orthogonal"}
    # Dilations with which a window is no longer than a row.
    dilations = [1, *(d for d in STEP_DILATIONS if (SERIES_KERNEL - 1) * d < task.max_tokens)]
    kernels = {"input": "kernels", "dilations": ",".join(map(str, dilations)), "normalise": "channel"}
    return windows | kernels
