"""The model card of a backbone: its shape, its parameters by group, and the spread of its weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from reservoir_cache import path_below

from reservoir.options import CacheOptions, ModelOptions, OutOptions, TaskOptions
from reservoir.plan.model import resolve_model
from reservoir.tasks import variant_of
from reservoir_pipelines.files import cache_root, check_out_file, data_folder
from reservoir_pipelines.output import as_json
from reservoir_pipelines.plots import plot_deviations

if TYPE_CHECKING:
    from reservoir.backbones import Backbone
    from reservoir.tasks.task import Task

    Count = Callable[[Backbone, Task], dict[str, int] | None]


def card(
    name: str,
    model: ModelOptions,
    source: TaskOptions,
    root: CacheOptions,
    result: OutOptions,
    task: str | None = None,
    *,
    counts: Mapping[str, "Count"] = {},
) -> dict[str, Any]:
    """Describe a backbone, plot the spread of its weights, and count the parameters that a task trains.

    Without a ``task``, these are not counted. ``counts`` has further ways to count them, each by the name of its
    result; one that does not suit the backbone returns None.
    """
    from reservoir.backbones import describe_weights, load_backbone
    from reservoir.backbones.backbone import (
        deviations,
        group_counts,
        parameter_count,
        trained_counts,
    )
    from reservoir_pipelines.preparation.prepare import open_source

    check_out_file(result.out, ".png")
    # The backbone, and the task whose parameters are counted, which the backbone must be able to read.
    random_inits = variant_of(source.given, name).random_inits
    settings = resolve_model(replace(model, backbone=name), random_inits=random_inits)
    backbone = load_backbone(settings.backbone, settings.init, settings.seed, settings.depth)
    counted_task = open_source(task, data=data_folder(source.data), **source.given).task if task else None
    if counted_task:
        backbone.check_length(counted_task.max_tokens, f"task {counted_task.name!r}: ")
    # What the plot shows: the spread of the weights.
    plot = result.out or path_below(cache_root(root.cache), "backbones") / f"{settings.title}.png"
    plot.parent.mkdir(parents=True, exist_ok=True)
    spread = deviations(backbone)
    # The numbers of parameters: of the whole model, and of what the task trains, by group in each way of counting.
    total_count = parameter_count(backbone)
    counts_of_task: dict[str, dict[str, int] | None] = {}
    if counted_task:
        counts_of_task["trained"] = trained_counts(backbone, counted_task)  # parameters that an FPT trains
        counts_of_task |= {way: count(backbone, counted_task) for way, count in counts.items()}
    values = {
        "name": name,
        "family": backbone.family.name,
        "init": settings.init,
        "weights": describe_weights(backbone, settings.init),
        "depth": backbone.depth,
        "width": backbone.width,
        "heads": getattr(backbone.config, "num_attention_heads", None),
        "max_tokens": backbone.max_tokens,
        "causal": backbone.causal,
        "can_pad": backbone.can_pad,  # whether rows of several lengths can be in one batch
        "groups": group_counts(backbone),  # frozen parameters that a sequence of vectors passes through
        "whole": total_count,  # parameters of the whole model, its token embeddings included
        "task": counted_task.name if counted_task else None,
        **{way: counts_of_task.get(way) for way in ("trained", *counts)},
        "deviations": as_json({kind: by_block.tolist() for kind, by_block in spread.items()}),
        **_mean_deviations(spread),
        "plot": plot,
    }
    plot_deviations(plot, values["deviations"], title=f"{name}, {settings.init}")
    for way, by_group in counts_of_task.items():
        if by_group:  # None if this way does not suit the backbone
            count = sum(by_group.values())
            values |= {f"{way}_total": count, f"{way}_share": count / total_count}
    return values


def _mean_deviations(spread: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """Return the mean deviation of the weights and of the biases: over the blocks, then over the kinds of tensors.

    ``spread`` has the deviation in each block, NaN without the tensor, by the tensor's name. None for no tensors.
    """
    means = {name: float(np.nanmean(by_block)) for name, by_block in spread.items()}
    weights = [mean for name, mean in means.items() if "bias" not in name]
    biases = [mean for name, mean in means.items() if "bias" in name]
    return {
        "weight_deviation": fmean(weights) if weights else None,
        "bias_deviation": fmean(biases) if biases else None,
    }
