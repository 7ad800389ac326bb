"""Checkpoints of a training in safetensors and JSON, complete or absent; resuming from one gives the same bits."""

import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from reservoir_cache import fault_point, make_folder, sync
from torch import Tensor, nn

from reservoir.errors import InputError
from reservoir.training.trainer import State
from reservoir_pipelines.files import (
    DamagedError,
    file_digest,
    read_checked,
    save_tensors,
    temporary_path,
    write_checked,
)

TRAINED, OPTIMIZER, STATE = "trained.safetensors", "optimizer.safetensors", "state.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write ``<folder>/step-<number>``, then remove all other checkpoints but the best."""
    trained, moments = {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter.detach().cpu().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{moment}"] = value.detach().cpu().contiguous()
    final = folder / f"step-{state.step:08d}"
    part = temporary_path(final)
    make_folder(folder)
    part.mkdir()
    try:
        save_tensors(trained, part / TRAINED)
        save_tensors(moments, part / OPTIMIZER)
        digests = {name: file_digest(part / name) for name in (TRAINED, OPTIMIZER)}
        write_checked(part / STATE, {**asdict(state), "digests": digests})
        for path in part.iterdir():
            sync(path)
        shutil.rmtree(final, ignore_errors=True)
        fault_point("gathered")
        part.rename(final)
        fault_point("placed")
        sync(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    remove_others(folder, state)


def remove_others(folder: Path, state: State) -> None:
    """Remove all checkpoints but that of a state and the best one; a killed process may have left others."""
    kept = {folder / f"step-{step:08d}" for step in (state.step, state.best_step)}
    for old in set(folder.glob("step-*")) - kept:
        shutil.rmtree(old, ignore_errors=True)


def read_state(checkpoint: Path) -> tuple[State, dict[str, str]]:
    """Return the state of the training, and the SHA-256 of the other files of the checkpoint by name."""
    try:
        values = read_checked(checkpoint / STATE)
        digests = values.pop("digests")
        return State(**values), digests
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(checkpoint, STATE, error) from error


def load_trained(checkpoint: Path, model: nn.Module) -> None:
    """Copy a checkpoint's trained tensors into a model whose trained parameters are unfrozen."""
    tensors = read_tensors(checkpoint, TRAINED)
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in wanted.items()}:
        raise InputError(
            f"{checkpoint / TRAINED}: its tensors differ from the parameters that this run trains; train again"
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])


def trained_output(checkpoint: Path) -> nn.Linear | None:
    """Return the output layer of a checkpoint, or None if it was not trained."""
    tensors = read_tensors(checkpoint, TRAINED)
    if "output.weight" not in tensors:
        return None
    outputs, width = tensors["output.weight"].shape
    output = nn.Linear(width, outputs)
    output.load_state_dict({name: tensors[f"output.{name}"] for name in ("weight", "bias")})
    return output


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the moments of Adam from a checkpoint."""
    tensors = read_tensors(checkpoint, OPTIMIZER)
    for name, parameter in model.named_parameters():
        if f"{name}/step" in tensors:
            # The fused Adam counts its steps on the parameter's device.
            optimizer.state[parameter] = {m: tensors[f"{name}/{m}"].to(parameter.device) for m in MOMENTS}


def read_tensors(checkpoint: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of one file of a checkpoint, whose SHA-256 is checked."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    _, digests = read_state(checkpoint)
    try:
        if file_digest(checkpoint / name) != digests.get(name):
            raise DamagedError("checksum mismatch")
        return load_file(checkpoint / name)
    except (OSError, SafetensorError, DamagedError) as error:
        raise _damaged(checkpoint, name, error) from error


def _damaged(checkpoint: Path, name: str, error: Exception) -> InputError:
    others = sorted(path.name for path in checkpoint.parent.glob("step-*") if path != checkpoint)
    remedy = "train in another folder"
    if others:
        remedy = f"remove the folder {checkpoint.name}, and resume from {others[0]}"
    why = str(error) if isinstance(error, DamagedError) else type(error).__name__
    return InputError(f"{checkpoint / name}: not readable ({why}); {remedy}")
