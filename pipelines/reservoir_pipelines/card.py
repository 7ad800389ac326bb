"""The model card of a backbone: what it is, its parameters by group, what of it is trained, how its weights spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.reservoir import Reservoir
from reservoir_pipelines.workspace import cache_root, data_folder


@dataclass(frozen=True, kw_only=True)
class Card:
    """What there is to know of a backbone.

    Parameters
    ----------
    name, family, init, weights : str
        As it was named, its family, where its weights come from, and in words how they are drawn.
    depth, width : int
        Blocks and hidden width.
    max_tokens : int or None
        Longest sequence; None where nothing limits it.
    causal : bool
        Whether a token sees only those before it.
    groups : dict of str to int
        Frozen parameters by group, of what a sequence of vectors passes through.
    whole : int
        Parameters of the whole model, its token embeddings included.
    task : str or None
        The task that the next two are for.
    trained, paper : dict of str to int, or None
        Parameters that a Frozen Pretrained Transformer trains on the task, by group: all of them, and as the paper
        counts them (GPT-2 only).
    deviations : dict of str to list of float or None
        Standard deviation of each kind of tensor in each block; None where a block has no such tensor.
    plot : Path
        Picture of them.
    """

    name: str
    family: str
    init: str
    weights: str
    depth: int
    width: int
    max_tokens: int | None
    causal: bool
    groups: dict[str, int]
    whole: int
    task: str | None
    trained: dict[str, int] | None
    paper: dict[str, int] | None
    deviations: dict[str, list[float | None]]
    plot: Path

    def share(self, counts: dict[str, int]) -> float:
        """Return trained parameters over those of the whole model."""
        return sum(counts.values()) / self.whole

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, sums and shares as JSON values."""
        values = dict(vars(self)) | {"plot": str(self.plot)}
        for name in ("trained", "paper"):
            counts = getattr(self, name)
            if counts:
                values[f"{name}_total"], values[f"{name}_share"] = sum(counts.values()), self.share(counts)
        return values


def card(
    name: str,
    *,
    init: str | None = None,
    seed: int = 0,
    depth: int | None = None,
    task: str | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    out: Path | None = None,
) -> Card:
    """Describe a backbone and draw the spread of its weights.

    Parameters
    ----------
    name : str
        A known name, a folder, a GGUF file or a hub name.
    init : str, optional
        Where its weights come from; pretrained by default, random where nobody publishes any.
    seed : int, default 0
        Seed of what is drawn.
    depth : int, optional
        Keep only the first so many blocks.
    task : str, optional
        Count what is trained on this task; its data need not be here.
    data : Path, optional
        Folder of the publisher's files, for tasks whose shape depends on them.
    cache : Path, optional
        Root of the cache, below which the picture is put by default.
    out : Path, optional
        The PNG to write.

    Raises
    ------
    InputError
        If the backbone or the task is not known, or the task is too long for it.
    """
    from reservoir.backbones import describe_weights, load_backbone
    from reservoir.backbones.parameters import deviations, group_counts, paper_counts, trained_counts, whole_count
    from reservoir.tasks import task_named
    from reservoir_pipelines.model_plots import plot_deviations

    settings = Reservoir.choose(name, init, seed, depth=depth)
    backbone = load_backbone(settings.backbone, settings.init, seed, depth)
    described = task_named(task, data=data_folder(data)).task if task else None
    if described:
        backbone.check_length(described.max_tokens, f"task {described.name!r}: ")
    plot = out or cache_root(cache) / "backbones" / f"{settings.title}.png"
    plot.parent.mkdir(parents=True, exist_ok=True)
    spread = deviations(backbone)
    plot_deviations(plot, spread, title=f"{name}, {settings.init}: standard deviation of the parameters")
    return Card(
        name=name,
        family=backbone.family.name,
        init=settings.init,
        weights=describe_weights(backbone, settings.init),
        depth=backbone.depth,
        width=backbone.width,
        max_tokens=backbone.max_tokens,
        causal=backbone.causal,
        groups=group_counts(backbone),
        whole=whole_count(backbone),
        task=described.name if described else None,
        trained=trained_counts(backbone, described) if described else None,
        paper=paper_counts(backbone, described) if described else None,
        deviations={key: [None if np.isnan(v) else float(v) for v in values] for key, values in spread.items()},
        plot=plot,
    )
