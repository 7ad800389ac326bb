"""The stage ``attention``: attention maps of a task's sequences, one of them and the mean over many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir import InputError
from reservoir.tasks import TASKS, own_name, task_named
from reservoir.tasks.task import Task, Tokens
from reservoir_pipelines.files import replace_file
from reservoir_pipelines.forward import batches, to_tokens
from reservoir_pipelines.frozen import GAIN, FrozenModel, Reservoir, load_frozen
from reservoir_pipelines.preparation import prepare
from reservoir_pipelines.prepared import Prepared, scaling_from_json
from reservoir_pipelines.root import cache_root, data_folder
from reservoir_pipelines.runs.run import Run
from reservoir_pipelines.runs.trained import load_run

if TYPE_CHECKING:
    from reservoir.tasks.task import Scaling

BATCH_PAIRS = 2**21
"""Pairs of tokens in one batch: 100 MiB of maps for 12 heads."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention maps of one block.

    Parameters
    ----------
    task, backbone : str
        The task and the title of the reservoir.
    layer : int
        The block, from 1.
    one : ndarray of float32, (heads, queries, keys)
        Maps of one sequence, of its real tokens.
    mean : ndarray of float32, (heads, tokens, tokens)
        Mean over the rows in which both tokens are real; NaN where there is none.
    rows : int
        Rows of the mean.
    labels : list of str
        Names of the tokens of the one sequence.
    diagonals : dict of int to str
        For bit tasks: how many tokens before a readout token the paper saw it attend to, and to what.
    arrays, plot : Path
        The HDF5 file with the arrays, and the picture.
    """

    task: str
    backbone: str
    layer: int
    one: np.ndarray
    mean: np.ndarray
    rows: int
    labels: list[str]
    diagonals: dict[int, str]
    arrays: Path
    plot: Path

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, the arrays by their shape and file."""
        values = dict(vars(self)) | {"arrays": str(self.arrays), "plot": str(self.plot)}
        return values | {"one": list(self.one.shape), "mean": list(self.mean.shape)}


def attention(
    task: str,
    *,
    backbone: str | None = None,
    init: str | None = None,
    seed: int = 0,
    gain: float = GAIN,
    depth: int | None = None,
    patch: int = 1,
    stride: int | None = None,
    layer: int = 1,
    rows: int = 64,
    split: str = "test",
    parameters: Mapping[str, Any] | None = None,
    data: Path | None = None,
    cache: Path | None = None,
    device: str = "auto",
    out: Path | None = None,
    run: Path | None = None,
) -> Attention:
    """Draw and save the attention maps of one block over a task's sequences.

    Parameters
    ----------
    task : str
        Name of a task, or the path of your own data.
    backbone, init, seed, gain, depth, patch, stride
        The reservoir, as for `reservoir_pipelines.extraction.extract`.
    layer : int, default 1
        The block, from 1.
    rows : int, default 64
        The first so many rows of the split are averaged; the first of them is drawn alone.
    split : str, default "test"
        Split of the rows.
    parameters : mapping, optional
        The task's own parameters, such as ``{"n": 5}`` for bit-xor.
    data, cache : Path, optional
        Folder of the publisher's files, and root of the cache.
    device : str, default "auto"
        Where the forward pass runs, in float32.
    out : Path, optional
        The PNG to write; the arrays stand beside it as ``.h5``.
    run : Path, optional
        Folder of a run of `train`, whose model, task parameters and scaling are taken.

    Raises
    ------
    InputError
        If the input is at fault, the data is not of the run's task, or the family has no attention maps.
    """
    if rows < 1:
        raise InputError(f"--rows {rows}: give at least 1 row")
    if out is not None and (out.is_dir() or out.suffix == ".h5"):
        raise InputError(f"--out {out}: name the picture, such as maps.png; the arrays stand beside it as maps.h5")
    settings = Reservoir.choose(backbone, init, seed, gain, depth, patch, stride)
    root = cache_root(cache)
    if run:
        prepared, scaling = _prepare_for(run, task, settings, parameters or {}, data, root)
        model = load_run(run, device, "float32")
    else:
        prepared = prepare(task, data=data, cache=root, parameters=parameters)
        model, scaling = load_frozen(prepared.task, settings, device, "float32"), prepared.scaling
    settings = model.settings
    whole = prepared.split(split)
    part = whole.read(0, min(rows, len(whole)))
    one, mean = average_maps(model, scaling, part.x, part.lengths, layer)
    # A token begins with the value at its number times the stride, and the map has as many tokens as are real.
    labels = token_labels(model.fpt.task, part.x[0, :: settings.stride], one.shape[-1])
    diagonals = bit_diagonals(model.fpt.task)
    folder = run or root / "attention" / prepared.task.name
    plot = out or folder / f"{settings.title}-block{layer:02d}.png"
    done = Attention(
        task=prepared.task.name,
        backbone=settings.title,
        layer=layer,
        one=one,
        mean=mean,
        rows=len(part.x),
        labels=labels,
        diagonals=diagonals,
        arrays=plot.with_suffix(".h5"),
        plot=plot,
    )
    _save(done)
    return done


def average_maps(
    model: FrozenModel, scaling: Scaling | None, x: np.ndarray, lengths: np.ndarray, layer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the maps of the first row, and the mean over all rows.

    Parameters
    ----------
    model : FrozenModel
        The model on its device.
    scaling : Scaling, optional
        From stored values to what the model sees.
    x : ndarray, (rows, tokens, ...)
        Right-padded sequences as stored.
    lengths : ndarray of int, (rows,)
        Real values of each, of which the model's windows make its tokens.
    layer : int
        The block, from 1.

    Returns
    -------
    ndarray of float32, (heads, queries, keys)
        Of the first row, cut to its tokens.
    ndarray of float32, (heads, tokens, tokens)
        Mean over the rows in which both tokens are real; NaN where there is none.
    """
    import torch

    from reservoir.backbones import attention_maps

    shown, lengths = to_tokens(model, scaling, x, lengths)
    longest = int(lengths.max())
    first = np.zeros(0, np.float32)
    total: np.ndarray | None = None
    for batch in batches(lengths, max(1, BATCH_PAIRS // longest**2)):
        tokens = int(lengths[batch].max())
        with torch.inference_mode():
            embeds = model.fpt.inputs(torch.from_numpy(shown[batch, :tokens]).to(model.device))
            real = torch.from_numpy(lengths[batch].astype(np.int64)).to(model.device)
            maps = attention_maps(model.fpt.backbone, embeds, real, layer).cpu().numpy()
        if total is None:
            total = np.zeros((maps.shape[1], longest, longest))
        total[:, :tokens, :tokens] += maps.sum(axis=0, dtype=np.float64)
        if 0 in batch:
            n = int(lengths[0])
            first = maps[int(np.flatnonzero(batch == 0)[0])][:, :n, :n].copy()
    assert total is not None
    position = np.arange(longest)
    real_rows = (lengths[:, None] > position).sum(axis=0)
    count = np.minimum(real_rows[:, None], real_rows)
    with np.errstate(invalid="ignore"):
        return first, (total / count).astype(np.float32)


def token_labels(task: Task, x: np.ndarray, length: int) -> list[str]:
    """Return short names of the tokens of a stored sequence: a symbol, a single value, a bit's string and place."""
    numbers = range(length)
    strings = _bit_strings(task)
    if strings:
        return [f"{n // strings + 1}.{n % strings + 1}" for n in numbers]
    if isinstance(task.form, Tokens):
        names = _symbols(task)
        return [names[int(x[n])] if names else str(int(x[n])) for n in numbers]
    return [f"{x[n, 0]:g}" if task.form.dim == 1 else str(n + 1) for n in numbers]


def bit_diagonals(task: Task) -> dict[int, str]:
    """Return how far back the readout tokens of a bit task look in the paper's Figure 2, and at what; else nothing.

    Each readout token of ``bit-xor`` takes the bits that it adds: its own and those at its place in the other strings.
    Each of ``bit-memory`` compares the masked bits with the stored ones at its place in every string.
    """
    per_string = _bit_strings(task)
    if not per_string:
        return {}
    strings = task.max_tokens // per_string
    own = {0: f"string {strings}"} if task.name == "bit-xor" else {}
    return own | {back * per_string: f"string {strings - back}" for back in range(1, strings)}


def _prepare_for(
    run: Path, task: str, settings: Reservoir, parameters: Mapping[str, Any], data: Path | None, cache: Path
) -> tuple[Prepared, Scaling | None]:
    """Return the data of a run's task and the scaling that the run was trained with, or refuse what contradicts it."""
    config = Run(run).model_config
    trained = Task.from_dict(config["settings"]["spec"]["task"])
    if trained.name != (task if task in TASKS else own_name(task)):
        raise InputError(f"--run {run}: it was trained on {trained.name!r}, not on {task!r}; name that task")
    if settings not in (Reservoir.choose(), Reservoir(**config["reservoir"])):
        raise InputError(f"--run {run}: the run has a model of its own; leave out the options that choose another")
    prepared = prepare(task, data=data, cache=cache, parameters={**_given(task, trained, data), **parameters})
    old, new = ({**t.to_dict(), "parameters": None, **t.parameters} for t in (trained, prepared.task))
    different = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if different:
        raise InputError(
            f"--run {run}: {task!r} is not as it was trained on, in {', '.join(different)}; give the same data, and "
            "leave out the task's parameters"
        )
    return prepared, scaling_from_json(config["scaling"])


def _given(task: str, trained: Task, data: Path | None) -> dict[str, Any]:
    """Return what `prepare` was given for a trained task: a description also tells what it fills in by itself."""
    if task not in TASKS:
        return dict(trained.parameters)
    default = task_named(task, data=data_folder(data)).task.parameters
    return {n: value for n, value in trained.parameters.items() if n not in default or default[n] != value}


def _bit_strings(task: Task) -> int:
    return task.readout_tokens if task.name in ("bit-xor", "bit-memory") else 0


def _symbols(task: Task) -> Sequence[str]:
    from reservoir.tasks import proteins
    from reservoir.tasks.expressions import SYMBOLS

    if task.name == "listops" and task.parameters.get("protocol") != "paper":
        return SYMBOLS
    if task.name != "homology":
        return ()
    return proteins.TAPE_SYMBOLS if task.parameters.get("protocol") == "paper" else proteins.SYMBOLS


def _save(done: Attention) -> None:
    """Write the arrays and the picture, or say in one line why that cannot be."""
    import h5py
    from reservoir_cache.hdf import new_file

    from reservoir_pipelines.model_plots import plot_attention

    def write(part: Path) -> None:
        with new_file(part) as file:
            for name in ("one", "mean"):
                file.create_dataset(name, data=getattr(done, name), track_times=False)
            file.create_dataset("labels", data=done.labels, dtype=h5py.string_dtype(), track_times=False)
            file.attrs.update(task=done.task, backbone=done.backbone, layer=done.layer, rows=done.rows)

    try:
        done.plot.parent.mkdir(parents=True, exist_ok=True)
        replace_file(done.arrays, write)
        plot_attention(done)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"{done.plot}: cannot be written ({why}); choose another file with --out") from error
