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
from reservoir.inputs.native import TextReader
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.option_fields import as_group
from reservoir.options import (
    AttentionOptions,
    ExtractOptions,
    OwnDataOptions,
    PlaceOptions,
    ReservoirOptions,
    TaskOptions,
)
from reservoir.plan.basis import DataView
from reservoir.plan.model import choose_model, random_input_note, resolve_model
from reservoir.reservoir import Reservoir
from reservoir.tasks import TASKS, task_named, variant_of
from reservoir.tasks.task import Scaling, Split, Task, Tokens
from reservoir_pipelines import Prepared
from reservoir_pipelines.data.formats import refuse_source
from reservoir_pipelines.data.own_data import own_name
from reservoir_pipelines.files import cache_root, check_out_file, data_folder
from reservoir_pipelines.output import Record, as_json, notify
from reservoir_pipelines.plots import attention_top, draw_map, saved_figure
from reservoir_pipelines.preparation.prepare import prepare
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.training.checkpoints import load_run
from reservoir_pipelines.training.run_folder import RunFolder

BIT_TASKS = ("bit-xor", "bit-memory")

MAPS_PER_LINE = 3  # of the plot
MAP_INCHES = (5.0, 4.6)  # width and height of a map with its names

COMPUTE = "float32"  # so that maps do not depend on the precision in which a machine computes fast

BATCH_PAIRS = 2**21  # pairs of tokens in one batch: 100 MiB of maps for 12 heads


@dataclass(frozen=True, kw_only=True)
class Attention(Record):
    """One block's attention maps for one sequence, and their mean over rows."""

    task: str
    backbone: str  # name of the backbone with its options
    layer: int  # number of the block, from 1
    first_row: np.ndarray  # maps of the real tokens of the first row, (heads, queries, keys)
    # Mean over the rows in which both tokens are real, (heads, tokens, tokens); NaN where the model overflows.
    mean: np.ndarray
    rows: int  # number of rows that ``mean`` is over
    labels: list[str]  # names of the tokens of the first row
    # Of bit tasks, the distances in tokens at which readout tokens attend in the paper, each with its name; else empty.
    diagonals: dict[int, str]
    top: float  # attention at the top of the colour scale that all maps of the plot share
    arrays: Path  # HDF5 file with ``first_row`` and ``mean``
    plot: Path  # image of the maps

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
        # NaN, the mean where the model overflows in one of the rows, counts as no attention.
        mean_of_heads = np.nan_to_num(self.mean.mean(axis=0))
        # A diagonal connects tokens at the same position of two strings. All strings of a bit task have as many tokens
        # as the last one, the readout. So neighbouring strings are that many tokens apart, which is the shortest
        # distance except 0, that of a token to itself.
        readout_tokens = min(distance for distance in self.diagonals if distance > 0)
        return _relative_weight(mean_of_heads, readout_tokens, list(self.diagonals))

    @property
    def strongest_distance(self) -> float | None:
        """Largest mean weight at one distance in tokens, divided by that on all other visible tokens.

        The last sixth of the tokens is measured, the share of the readout tokens in bit-memory, so that
        tasks with one readout token can be compared with it. Attention of a token to itself is left out.
        None for fewer than three tokens.
        """
        mean_of_heads = np.nan_to_num(self.mean.mean(axis=0))
        if len(mean_of_heads) < 3:
            return None  # at most one distance, and nothing to compare it with
        np.fill_diagonal(mean_of_heads, np.nan)
        last = -(-len(mean_of_heads) // 6)  # number of measured tokens, rounded up
        # A larger distance would reach before the first token for some of the measured tokens.
        distances = range(1, len(mean_of_heads) - last + 1)
        return max(_relative_weight(mean_of_heads, last, [distance]) for distance in distances)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, with the shape of each array instead of its values."""
        fields = vars(self) | {"first_row": self.first_row.shape, "mean": self.mean.shape}
        return as_json(fields | {"diagonal_strength": self.diagonal_strength})


def _relative_weight(mean: np.ndarray, last: int, distances: list[int]) -> float:
    """Return the mean weight at some distances divided by that on all other visible tokens.

    ``mean`` is a map (queries, keys), of which only the ``last`` queries are measured. A distance is the number of the
    query minus that of the key.
    """
    query = np.arange(len(mean) - last, len(mean))[:, None]
    key = np.arange(len(mean))
    is_at_distance = np.isin(query - key, distances)
    # In a causal model a token sees itself and the earlier ones, in others all.
    is_causal = not np.triu(mean, 1).any()
    is_visible = (query >= key) if is_causal else np.ones_like(is_at_distance)
    weights = mean[-last:]
    # NaN on the diagonal leaves the attention of a token to itself out of the mean over the others.
    mean_of_others = np.nanmean(weights[is_visible & ~is_at_distance])
    return float(weights[is_at_distance].mean() / mean_of_others)


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
    check_out_file(out, ".png")
    if out:
        refuse_source(out, task, source.labels)
        refuse_source(_arrays_path(out), task, source.labels)
    root = cache_root(place.cache)
    prepared, scaling, model = _data_and_model(task, reservoir, source, run, root, place.device)
    # The maps of the first rows of the split.
    settings, name = model.settings, prepared.task.name
    split = prepared.split(options.split)
    rows = split.read(0, min(options.average, len(split)))
    first_row, mean = average_maps(model, scaling, rows.x, rows.lengths, layer)
    if isinstance(model.reader, TextReader) and model.reader.note:
        notify(f"{name}: {model.reader.note}")
    if not np.isfinite(first_row).all():
        raise InputError(f"task {name!r}: the model overflows in its first row", "correct or remove it")
    default_folder = run or path_below(root, "attention", name)
    plot = out or default_folder / f"{settings.title}-block{layer:02d}.png"
    result = Attention(
        task=name,
        backbone=settings.title,
        layer=layer,
        first_row=first_row,
        mean=mean,
        rows=len(rows.x),
        labels=_labels_of_first_row(model, rows, first_row.shape[-1]),
        diagonals=bit_diagonals(model.fpt.task),
        top=options.top or attention_top(mean),
        arrays=_arrays_path(plot),
        plot=plot,
    )
    with writing(plot):
        plot.parent.mkdir(parents=True, exist_ok=True)
        replace_file(result.arrays, partial(_write_arrays, result))
        _plot(result)
    return result


def _arrays_path(plot: Path) -> Path:
    """Return the path of the arrays, which are saved beside their plot."""
    return plot.with_suffix(".h5")


def _data_and_model(
    task: str, reservoir: ReservoirOptions, source: TaskOptions, run: Path | None, cache: Path, device: str
) -> tuple[Prepared, Scaling | None, LoadedModel]:
    """Return prepared data, their scaling and the model: those of a run of `train`, or those that the options name."""
    if run:
        prepared, scaling = _prepare_for(run, task, reservoir, source, cache)
        return prepared, scaling, load_run(run, device, COMPUTE)
    prepared = prepare(task, source, cache=cache, model=reservoir)
    settings = _model_of_data(prepared, reservoir, source)
    return prepared, prepared.scaling, load_model(prepared.task, settings, device, COMPUTE)


def _model_of_data(prepared: Prepared, reservoir: ReservoirOptions, source: TaskOptions) -> Reservoir:
    """Return the model with which `extract` reads the data, all defaults resolved.

    Without ``--backbone`` it is the default transformer, also for data that `extract` reads without one.
    """
    longest = int(prepared.split("train").lengths.max())
    options = as_group({**vars(reservoir), **vars(source)}, ExtractOptions)
    choice = choose_model(DataView.of(prepared.task, prepared.rows, longest), options, reservoir.backbone)
    if note := random_input_note(prepared.task, choice.reservoir, choice.native_obstacle):
        notify(note)
    return choice.reservoir


def _plot(result: Attention) -> None:
    """Save the mean of the maps over the heads, for the sequence and over all rows, and the mean of each head."""
    # The mean maps are over sequences, so their tokens have names only if these are the same in all sequences.
    token_numbers = [str(number) for number in range(1, result.mean.shape[1] + 1)]
    shared_names = result.labels if result.same_names_in_all_rows else token_numbers
    maps = [("one sequence", result.first_row.mean(axis=0), result.labels)]
    maps += [(f"mean over {result.rows} sequences", result.mean.mean(axis=0), shared_names)]
    maps += [(f"head {number}", head, shared_names) for number, head in enumerate(result.mean, start=1)]
    lines = math.ceil(len(maps) / MAPS_PER_LINE)
    width, height = MAPS_PER_LINE * MAP_INCHES[0], lines * MAP_INCHES[1]
    title = f"{result.task}, {result.backbone}: attention of block {result.layer}"
    with saved_figure(result.plot, width, height, title) as figure:
        for number, (map_title, values, names) in enumerate(maps, start=1):
            axes = figure.add_subplot(lines, MAPS_PER_LINE, number)
            draw_map(axes, values, names, result.diagonals, result.top)
            axes.set_title(map_title, fontsize=10)


def _write_arrays(result: Attention, path: Path) -> None:
    """Write the maps with the names of their tokens to an HDF5 file; equal maps give equal bytes."""
    import h5py
    from reservoir_cache import new_hdf5

    with new_hdf5(path) as file:
        for name in ("first_row", "mean"):
            file.create_dataset(name, data=getattr(result, name), track_times=False)
        file.create_dataset("labels", data=result.labels, dtype=h5py.string_dtype(), track_times=False)
        file.attrs.update(task=result.task, backbone=result.backbone, layer=result.layer, rows=result.rows)


def average_maps(
    model: LoadedModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray, layer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the maps of the first row (heads, queries, keys) and the mean over all rows (heads, tokens, tokens).

    ``x`` has the stored sequences, and ``lengths`` counts their values, not tokens. The first map has only the real
    tokens of its row. The mean of two tokens is over the rows in which both are real.
    """
    import torch

    from reservoir.backbones import attention_maps

    inputs, token_counts = to_tokens(model, scaling, x, lengths)
    longest = int(token_counts.max())
    # Sum the maps of all rows in float64, in batches of rows of similar length, each cut to its longest row.
    first_map = np.zeros(0, np.float32)
    map_sum = np.zeros(0)  # (heads, longest, longest) once the first batch shows the number of heads
    for batch in batches(token_counts, max(1, BATCH_PAIRS // longest**2)):
        tokens = int(token_counts[batch].max())
        with torch.inference_mode():
            embeds = model.fpt.inputs(torch.from_numpy(inputs[batch, :tokens]).to(model.device))
            counts = torch.from_numpy(token_counts[batch].astype(np.int64)).to(model.device)
            maps = attention_maps(model.fpt.backbone, embeds, counts, layer).cpu().numpy()
        if not map_sum.size:
            map_sum = np.zeros((maps.shape[1], longest, longest))
        map_sum[:, :tokens, :tokens] += maps.sum(axis=0, dtype=np.float64)  # padding has zeros
        if 0 in batch:
            real = slice(int(token_counts[0]))  # without padding
            first_map = maps[batch.tolist().index(0), :, real, real].copy()  # not a view of the whole batch
    # Rows are padded on the right: both tokens of a pair are real in as many rows as the later one, and always in the
    # longest row.
    rows_with_token = (token_counts[:, None] > np.arange(longest)).sum(axis=0)
    rows_with_both = np.minimum(rows_with_token[:, None], rows_with_token)
    return first_map, (map_sum / rows_with_both).astype(np.float32)


def _labels_of_first_row(model: LoadedModel, rows: Split, length: int) -> list[str]:
    """Return short names of the ``length`` tokens of the first row, those of a text as its tokenizer has them."""
    if isinstance(model.reader, TextReader):
        return model.reader.token_names(rows.x[0], rows.lengths[0])
    # The first value of token n is number n * stride. Images are stored as files, whose tokens need no values.
    return token_labels(model.fpt.task, rows.x[0][:: model.settings.stride], length)


def token_labels(task: Task, x: np.ndarray, length: int) -> list[str]:
    """Return short names of the first ``length`` tokens of a row, whose values are ``x`` (tokens, ...).

    | token | name |
    | --- | --- |
    | of a bit task | number of its string, and of its position there: ``2.1`` |
    | one value | the value |
    | several values | its position in the row, from 1 |
    | a symbol | its name, or its number in the vocabulary if the task does not name symbols |
    """
    from reservoir.tasks import listops, proteins

    positions = range(length)
    if task.name in BIT_TASKS:
        return [f"{n // task.readout_tokens + 1}.{n % task.readout_tokens + 1}" for n in positions]
    if not isinstance(task.form, Tokens):
        return [f"{x[n, 0]:g}" if task.form.dim == 1 else str(n + 1) for n in positions]
    symbol_names = {"listops": listops.SYMBOLS, "homology": proteins.AMINO_SYMBOLS}.get(task.name)
    # The names are those of our own protocol.
    if not symbol_names or task.parameters.get("protocol") == "paper":
        return [str(int(x[n])) for n in positions]
    return [symbol_names[int(x[n])] for n in positions]


def bit_diagonals(task: Task) -> dict[int, str]:
    """Return the distances at which readout tokens of bit tasks attend in the paper (Figure 2), each with its name.

    A readout token of ``bit-xor`` attends to the bits that it adds: itself, and the bit at the same
    position of every other string. A readout token of ``bit-memory`` compares the masked bits with
    the stored bits at the same position. Distances are in tokens; other tasks have none.
    """
    if task.name not in BIT_TASKS:
        return {}
    # All strings have as many tokens as the last one, which is the readout.
    strings = task.max_tokens // task.readout_tokens
    diagonals = {0: f"string {strings}"} if task.name == "bit-xor" else {}
    for strings_back in range(1, strings):
        diagonals[strings_back * task.readout_tokens] = f"string {strings - strings_back}"
    return diagonals


def _prepare_for(
    run: Path, task: str, reservoir: ReservoirOptions, source: TaskOptions, cache: Path
) -> tuple[Prepared, Scaling | None]:
    """Return the data of a run's task and the scaling of its training; raise if options contradict the run."""
    config = RunFolder(run).config
    with as_input_error(f"--run {run}: not a run of reservoir train", "name another run"):
        trained_task = Task.from_dict(config["settings"]["spec"]["task"])
        scaling = scaling_from_json(config["scaling"], trained_task)
    if trained_task.name != (task if task in TASKS else own_name(task)):
        raise InputError(
            f"--run {run}: the run was trained on {trained_task.name!r}, not on {task!r}",
            f"pass {trained_task.name!r}",
        )
    # The user need not choose a model again, but may not choose another one.
    settings = resolve_model(reservoir, random_inits=variant_of(source.given, task).random_inits)
    is_model_chosen = reservoir != as_group({}, ReservoirOptions)
    if is_model_chosen and settings != Reservoir(**config["reservoir"]):
        raise InputError(
            f"--run {run}: the run determines the model", "leave out the options that choose another"
        )
    source_of_run = replace(source, **_options_of_training(trained_task, task, source))
    prepared = prepare(task, source_of_run, cache=cache)
    # The data must be those of the training: compare the two tasks field by field, and parameter by parameter.
    old, new = (
        {**described.to_dict(), "parameters": None, **described.parameters}
        for described in (trained_task, prepared.task)
    )
    different = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if different:
        raise InputError(
            f"--run {run}: {task!r} differs from the training data in {', '.join(different)}",
            "give the same data, and leave out the task's parameters",
        )
    return prepared, scaling


def _options_of_training(trained_task: Task, task: str, source: TaskOptions) -> dict[str, Any]:
    """Return the options of ``source`` that are as in the training, unless the user gives them now.

    These are the ``parameters`` of a named task that differ from their defaults, or the options of own data.
    """
    if task in TASKS:
        default = task_named(task, data=data_folder(source.data)).task.parameters
        changed = {
            name: value for name, value in trained_task.parameters.items() if default.get(name) != value
        }
        return {"parameters": changed | source.given}
    options = OwnDataOptions.__dataclass_fields__
    stored = {name: value for name, value in trained_task.parameters.items() if name in options}
    return stored | source.explicit
