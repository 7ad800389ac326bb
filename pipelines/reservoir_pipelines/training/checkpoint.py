"""Checkpoints of a training: whole or absent, safetensors and JSON, from which it goes on to the same bits."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from reservoir import InputError
from reservoir_pipelines.workspace import save_tensors

TRAINED, OPTIMIZER, STATE = "trained.safetensors", "optimizer.safetensors", "state.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a training stands.

    Parameters
    ----------
    step : int
        Steps done.
    seconds : float
        Time that they took.
    best_step : int
        The step whose weights did best on the validation split.
    best_score : float
        Their accuracy (R^2 for regression) there.
    best_loss : float
        Their loss there.
    """

    step: int
    seconds: float
    best_step: int
    best_score: float
    best_loss: float


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> Path:
    """Write a checkpoint below a run's folder; then remove all others but the best.

    Returns
    -------
    Path
        ``<folder>/step-<number>``, which exists only once everything in it is on disk.
    """
    final = folder / f"step-{state.step:08d}"
    part = folder / f".{final.name}-{uuid.uuid4().hex}.part"
    part.mkdir(parents=True)
    try:
        trained = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}
        save_tensors(trained, part / TRAINED)
        save_tensors(_moments(model, optimizer), part / OPTIMIZER)
        (part / STATE).write_text(json.dumps(asdict(state), indent=1) + "\n")
        for path in part.iterdir():
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        _sync(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    kept = {final, folder / f"step-{state.best_step:08d}"}
    for old in (*folder.glob("step-*"), *folder.glob(".step-*.part")):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)
    return final


def last_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the most steps, if there is any."""
    found = sorted(folder.glob("step-*"))
    return found[-1] if found else None


def read_state(checkpoint: Path) -> State:
    """Return where the training stood.

    Raises
    ------
    InputError
        If the file is damaged or gone.
    """
    try:
        return State(**json.loads((checkpoint / STATE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(checkpoint, STATE, error) from error


def load_trained(checkpoint: Path, model: nn.Module) -> None:
    """Copy a checkpoint's trained tensors into a model whose trained parameters are unfrozen.

    Raises
    ------
    InputError
        If the file is damaged, or its tensors are not those that are trained.
    """
    tensors = _read(checkpoint, TRAINED)
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in wanted.items()}:
        raise InputError(f"{checkpoint / TRAINED}: its tensors are not those that this run trains; train again")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give an Adam the moments that it had at a checkpoint.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    tensors = _read(checkpoint, OPTIMIZER)
    for name, parameter in model.named_parameters():
        if f"{name}/step" in tensors:
            # The fused Adam counts its steps on the parameter's device.
            optimizer.state[parameter] = {m: tensors[f"{name}/{m}"].to(parameter.device) for m in MOMENTS}


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    moments: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{moment}"] = value.detach().cpu().contiguous()
    return moments


def _read(checkpoint: Path, name: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(checkpoint / name)
    except (OSError, SafetensorError) as error:
        raise _damaged(checkpoint, name, error) from error


def _damaged(checkpoint: Path, name: str, error: Exception) -> InputError:
    others = sorted(path.name for path in checkpoint.parent.glob("step-*") if path != checkpoint)
    what = f"remove the folder {checkpoint.name}, and resume from {others[0]}" if others else "train in another folder"
    return InputError(f"{checkpoint / name}: not readable ({type(error).__name__}); {what}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
