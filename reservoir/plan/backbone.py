"""The backbone of a plan: random kernels without a transformer for series and pictures, and how many of them."""

import math

from reservoir.backbone_names import KERNELS
from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.inputs.counter import Brackets
from reservoir.options import ExtractOptions
from reservoir.plan.basis import DataView
from reservoir.plan.budget import (
    INPUT_LAYER,
    KERNEL_POOLINGS,
    MAX_KERNEL_BYTES,
    MAX_KERNEL_ROWS,
    Budget,
    ColumnSet,
)
from reservoir.plan.columns import split_names
from reservoir.tasks.task import Vectors

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
    """Return the backbone that was given, or by default one without blocks for series and pictures.

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
