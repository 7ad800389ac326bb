"""The stage ``attention``: attention maps of one sequence, and their mean over many."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import path_below, replace_file

from reservoir import InputError
from reservoir.batches import batches, to_tokens
from reservoir.errors import as_input_error, writing
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.option_fields import as_group
from reservoir.options import AttentionOptions, OwnDataOptions, PlaceOptions, ReservoirOptions, TaskOptions
from reservoir.plan.windows import resolve_model
from reservoir.reservoir import Reservoir
from reservoir.tasks import TASKS, task_named, variant_of
from reservoir.tasks.task import Scaling, Task, Tokens
from reservoir_pipelines import Prepared, prepare
from reservoir_pipelines.data.own_data import own_name
from reservoir_pipelines.files import cache_root, data_folder
from reservoir_pipelines.output import Record, as_json
from reservoir_pipelines.plots import attention_top, draw_map, saved_figure
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.training.checkpoints import load_run
from reservoir_pipelines.training.run_folder import RunFolder

BIT_TASKS = ("bit-xor", "bit-memory")

MAPS_PER_LINE = 3  # of the plot
MAP_INCHES = (5.0, 4.6)  # width and height of a map with its names

BATCH_PAIRS = 2**21  # pairs of tokens in one batch: 100 MiB of maps for 12 heads


@dataclass(frozen=True, kw_only=True)
class Attention(Record):
    """One block's attention maps for one sequence, and their mean over rows.

    ``first_row`` (heads, queries, keys) covers the real tokens of a sequence, which ``labels`` names.
    ``mean`` (heads, tokens, tokens) is the mean over the rows in which both tokens are real, or NaN
    without such rows. For bit tasks, ``diagonals`` has the distances in tokens at which readout
    tokens attend in the paper, each with its name. ``top`` is the attention at the top of the colour
    scale that all maps of the plot share.
    """

    task: str
    backbone: str
    layer: int
    first_row: np.ndarray
    mean: np.ndarray
    rows: int
    labels: list[str]
    diagonals: dict[int, str]
    top: float
    arrays: Path
    plot: Path

    @property
    def same_names_in_all_rows(self) -> bool:
        """Whether ``labels`` holds for every sequence: bits, which have ``diagonals``, are named by their position."""
        return bool(self.diagonals)

    @property
    def diagonal_strength(self) -> float | None:
        """Mean weight of readout tokens on the diagonals, divided by that on all other visible tokens.

        None for tasks without diagonals.
        """
        if not self.diagonals:
            return None
        mean_of_heads = np.nan_to_num(self.mean.mean(axis=0))
        # The strings of a bit task are as long as its readout, so the shortest distance but 0 is its number of tokens.
        readout_tokens = min(back for back in self.diagonals if back)
        return _over_rest(mean_of_heads, readout_tokens, list(self.diagonals))

    @property
    def strongest_distance(self) -> float | None:
        """Largest mean weight at one distance in tokens, divided by that on all other visible tokens.

        The last sixth of the tokens is measured, the share of the readout tokens in bit-memory, so that
        tasks with one readout token can be compared with it. Attention of a token to itself is left out.
        """
        mean = np.nan_to_num(self.mean.mean(axis=0))
        if len(mean) < 3:
            return None  # at most one distance, and nothing to compare it with
        np.fill_diagonal(mean, np.nan)
        last = -(-len(mean) // 6)
        return max(_over_rest(mean, last, [back]) for back in range(1, len(mean) - last + 1))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the shape of each array instead of its values."""
        fields = vars(self) | {"first_row": self.first_row.shape, "mean": self.mean.shape}
        return as_json(fields | {"diagonal_strength": self.diagonal_strength})


def _over_rest(mean: np.ndarray, last: int, distances: list[int]) -> float:
    """Return the mean weight of the last tokens at some distances, divided by that on the others."""
    query = np.arange(len(mean) - last, len(mean))[:, None]
    key = np.arange(len(mean))
    at_distance = np.isin(query - key, distances)
    is_causal = not np.triu(mean, 1).any()
    visible = (query >= key) if is_causal else np.ones_like(at_distance)
    rows = mean[-last:]
    return float(rows[at_distance].mean() / np.nanmean(rows[visible & ~at_distance]))


def attention(
    task: str,
    reservoir: ReservoirOptions,
    source: TaskOptions,
    options: AttentionOptions,
    place: PlaceOptions,
) -> Attention:
    """Plot and save the attention maps of one block; see `api.attention`."""
    out, run = options.out, options.run
    layer = options.layer
    if out is not None and (out.is_dir() or out.suffix == ".h5"):
        raise InputError(f"--out {out}: not an image file", "name a file such as maps.png")
    # The data and the model are those of a run, or those that the options name.
    root = cache_root(place.cache)
    if run:
        prepared, scaling = _prepare_for(run, task, reservoir, source, root)
        model = load_run(run, place.device, "float32")
    else:
        prepared = prepare(task, cache=root, **vars(source))
        scaling = prepared.scaling
        resolved = resolve_model(reservoir, random_inits=variant_of(source.given, task).random_inits)
        model = load_model(prepared.task, resolved, place.device, "float32")
    # The maps of the first rows of the split.
    settings, name = model.settings, prepared.task.name
    split = prepared.split(options.split)
    part = split.read(0, min(options.average, len(split)))
    first_row, mean = average_maps(model, scaling, part.x, part.lengths, layer)
    if not np.isfinite(first_row).all():
        raise InputError(f"task {name!r}: the model overflows in its first row", "correct or remove it")
    plot = out or (run or path_below(root, "attention", name)) / f"{settings.title}-block{layer:02d}.png"
    result = Attention(
        task=name,
        backbone=settings.title,
        layer=layer,
        first_row=first_row,
        mean=mean,
        rows=len(part.x),
        # The first value of token n is number n * stride; the map contains only the real tokens.
        labels=token_labels(model.fpt.task, part.x[0, :: settings.stride], first_row.shape[-1]),
        diagonals=bit_diagonals(model.fpt.task),
        top=options.top or attention_top(mean),
        arrays=plot.with_suffix(".h5"),
        plot=plot,
    )
    with writing(plot):
        plot.parent.mkdir(parents=True, exist_ok=True)
        replace_file(result.arrays, partial(_write_arrays, result))
        _plot(result)
    return result


def _plot(result: Attention) -> None:
    """Save the mean of the maps over the heads, for the sequence and over all rows, and the mean of each head."""
    # Means are over sequences: a token has a name there only if it has the same name in all of them.
    token_numbers = [str(number) for number in range(1, result.mean.shape[1] + 1)]
    shared_names = result.labels if result.same_names_in_all_rows else token_numbers
    maps = [("one sequence", result.first_row.mean(axis=0), result.labels)]
    maps += [(f"mean over {result.rows} sequences", result.mean.mean(axis=0), shared_names)]
    maps += [(f"head {number}", head, shared_names) for number, head in enumerate(result.mean, start=1)]
    lines = math.ceil(len(maps) / MAPS_PER_LINE)
    width, height = MAPS_PER_LINE * MAP_INCHES[0], lines * MAP_INCHES[1]
    title = f"{result.task}, {result.backbone}: attention of block {result.layer}"
    with saved_figure(result.plot, width, height, title) as figure:
        for number, (what, values, names) in enumerate(maps, start=1):
            axes = figure.add_subplot(lines, MAPS_PER_LINE, number)
            draw_map(axes, values, names, result.diagonals, result.top)
            axes.set_title(what, fontsize=10)


def _write_arrays(result: Attention, part: Path) -> None:
    import h5py
    from reservoir_cache import new_file

    with new_file(part) as file:
        for name in ("first_row", "mean"):
            file.create_dataset(name, data=getattr(result, name), track_times=False)
        file.create_dataset("labels", data=result.labels, dtype=h5py.string_dtype(), track_times=False)
        file.attrs.update(task=result.task, backbone=result.backbone, layer=result.layer, rows=result.rows)


def average_maps(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray, layer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the maps of the first row and the mean over all rows; ``lengths`` counts values, not tokens."""
    import torch

    from reservoir.backbones import attention_maps

    inputs, lengths = to_tokens(model, scaling, x, lengths)
    longest = int(lengths.max())
    first = np.zeros(0, np.float32)
    total = np.zeros(0)
    for batch in batches(lengths, max(1, BATCH_PAIRS // longest**2)):
        tokens = int(lengths[batch].max())
        with torch.inference_mode():
            embeds = model.fpt.inputs(torch.from_numpy(inputs[batch, :tokens]).to(model.device))
            real = torch.from_numpy(lengths[batch].astype(np.int64)).to(model.device)
            maps = attention_maps(model.fpt.backbone, embeds, real, layer).cpu().numpy()
        if not total.size:
            total = np.zeros((maps.shape[1], longest, longest))
        total[:, :tokens, :tokens] += maps.sum(axis=0, dtype=np.float64)
        if 0 in batch:
            n = int(lengths[0])
            first = maps[batch.tolist().index(0), :, :n, :n].copy()
    # Rows are padded on the right: both tokens of a pair are real in as many rows as the later one.
    real_rows = (lengths[:, None] > np.arange(longest)).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return first, (total / np.minimum(real_rows[:, None], real_rows)).astype(np.float32)


def token_labels(task: Task, x: np.ndarray, length: int) -> list[str]:
    """Return short names of tokens: a symbol, a value, or the string and position of a bit."""
    from reservoir.tasks import listops, proteins

    numbers = range(length)
    if task.name in BIT_TASKS:
        return [f"{n // task.readout_tokens + 1}.{n % task.readout_tokens + 1}" for n in numbers]
    if not isinstance(task.form, Tokens):
        return [f"{x[n, 0]:g}" if task.form.dim == 1 else str(n + 1) for n in numbers]
    named = {"listops": listops.SYMBOLS, "homology": proteins.SYMBOLS}.get(task.name)
    if not named or task.parameters.get("protocol") == "paper":
        return [str(int(x[n])) for n in numbers]
    return [named[int(x[n])] for n in numbers]


def bit_diagonals(task: Task) -> dict[int, str]:
    """Return the distances at which readout tokens of bit tasks attend in the paper (Figure 2), each with its name.

    A readout token of ``bit-xor`` attends to the bits that it adds: itself, and the bit at the same
    position of every other string. A readout token of ``bit-memory`` compares the masked bits with
    the stored bits at the same position.
    """
    if task.name not in BIT_TASKS:
        return {}
    strings = task.max_tokens // task.readout_tokens
    itself = {0: f"string {strings}"} if task.name == "bit-xor" else {}
    return itself | {back * task.readout_tokens: f"string {strings - back}" for back in range(1, strings)}


def _prepare_for(
    run: Path, task: str, reservoir: ReservoirOptions, source: TaskOptions, cache: Path
) -> tuple[Prepared, Scaling | None]:
    """Return the data of a run's task and the scaling of its training; raise if options contradict the run."""
    config = RunFolder(run).config
    with as_input_error(f"--run {run}: not a run of reservoir train", "name another run"):
        trained = Task.from_dict(config["settings"]["spec"]["task"])
        scaling = scaling_from_json(config["scaling"], trained)
    if trained.name != (task if task in TASKS else own_name(task)):
        raise InputError(
            f"--run {run}: the run was trained on {trained.name!r}, not on {task!r}",
            f"pass {trained.name!r}",
        )
    settings = resolve_model(reservoir, random_inits=variant_of(source.given, task).random_inits)
    if reservoir != as_group({}, ReservoirOptions) and settings != Reservoir(**config["reservoir"]):
        raise InputError(
            f"--run {run}: the run determines the model", "leave out the options that choose another"
        )
    # Use the parameters that the user gave for the training: those that differ from the defaults.
    if task in TASKS:
        default = task_named(task, data=data_folder(source.data)).task.parameters
        changed = {n: v for n, v in trained.parameters.items() if default.get(n) != v}
        merged: dict[str, Any] = {"parameters": changed | source.given}
    else:
        options = OwnDataOptions.__dataclass_fields__
        merged = {n: v for n, v in trained.parameters.items() if n in options} | source.explicit
    prepared = prepare(task, cache=cache, **vars(replace(source, **merged)))
    # Compare the two tasks field by field, and parameter by parameter.
    old, new = (
        {**data.to_dict(), "parameters": None, **data.parameters} for data in (trained, prepared.task)
    )
    different = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if different:
        raise InputError(
            f"--run {run}: {task!r} differs from the training data in {', '.join(different)}",
            "give the same data, and leave out the task's parameters",
        )
    return prepared, scaling
