"""The model card of a backbone: its shape, its parameters by group, and the spread of its weights."""

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from reservoir_cache import path_below

from reservoir.options import CacheOptions, ModelOptions, OutOptions, TaskOptions
from reservoir.plan import resolve_model
from reservoir_pipelines.files import cache_root, data_folder
from reservoir_pipelines.output import as_json
from reservoir_pipelines.plots import plot_deviations


def card(
    name: str,
    model: ModelOptions,
    source: TaskOptions,
    root: CacheOptions,
    result: OutOptions,
    task: str | None = None,
) -> dict[str, Any]:
    """Describe a backbone, plot the spread of its weights, and count the parameters that a task trains."""
    from reservoir.backbones import describe_weights, load_backbone
    from reservoir.backbones.backbone import (
        deviations,
        group_counts,
        paper_counts,
        trained_counts,
        whole_count,
    )
    from reservoir_pipelines.data.own_data import open_source

    settings = resolve_model(replace(model, backbone=name), published=source.published)
    backbone = load_backbone(settings.backbone, settings.init, settings.seed, settings.depth)
    described = open_source(task, data=data_folder(source.data), **source.given).task if task else None
    if described:
        backbone.check_length(described.max_tokens, f"task {described.name!r}: ")
    plot = result.out or path_below(cache_root(root.cache), "backbones") / f"{settings.title}.png"
    plot.parent.mkdir(parents=True, exist_ok=True)
    spread = deviations(backbone)
    means = {kind: float(np.nanmean(values)) for kind, values in spread.items()}
    weights, biases = (
        [m for kind, m in means.items() if ("bias" in kind) == bias] for bias in (False, True)
    )
    whole = whole_count(backbone)
    found = {
        "name": name,
        "family": backbone.family.name,
        "init": settings.init,
        "weights": describe_weights(backbone, settings.init),
        "depth": backbone.depth,
        "width": backbone.width,
        "heads": getattr(backbone.config, "num_attention_heads", None),
        "max_tokens": backbone.max_tokens,
        "causal": backbone.causal,
        "groups": group_counts(backbone),  # frozen parameters that a sequence of vectors passes through
        "whole": whole,  # parameters of the whole model, its token embeddings included
        "task": described.name if described else None,
        "trained": described and trained_counts(backbone, described),  # parameters that an FPT trains
        # the same, counted as in the paper; GPT-2 only
        "paper": described and paper_counts(backbone, described),
        "deviations": as_json({kind: values.tolist() for kind, values in spread.items()}),
        # mean over blocks, then over kinds of weights
        "weight_deviation": fmean(weights) if weights else None,
        "bias_deviation": fmean(biases) if biases else None,
        "plot": plot,
    }
    plot_deviations(plot, found["deviations"], title=f"{name}, {settings.init}")
    for counted in ("trained", "paper"):
        if counts := found[counted]:
            found |= {
                f"{counted}_total": sum(counts.values()),
                f"{counted}_share": sum(counts.values()) / whole,
            }
    return found
