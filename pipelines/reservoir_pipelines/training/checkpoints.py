"""The checkpoints of a training run: trained tensors, moments of Adam, and the state of the training."""

import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from reservoir_cache import new_folder
from torch import Tensor, nn

from reservoir.errors import as_input_error
from reservoir.records import check_arrays, fits, from_json
from reservoir.training.trainer import State
from reservoir_pipelines.files import file_digest, read_checked, save_tensors, write_checked

TRAINED, OPTIMIZER, STATE = "trained.safetensors", "optimizer.safetensors", "state.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # tensors of Adam for each parameter


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step."""
    return folder / f"step-{step:08d}"


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write ``<folder>/step-<number>``, then remove all other checkpoints except the best."""
    trained, moments = {}, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            trained[name] = parameter.detach().cpu().contiguous()
        for moment, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}/{moment}"] = value.detach().cpu().contiguous()
    with new_folder(checkpoint_path(folder, state.step)) as part:
        save_tensors(trained, part / TRAINED)
        save_tensors(moments, part / OPTIMIZER)
        digests = {name: file_digest(part / name) for name in (TRAINED, OPTIMIZER)}
        write_checked(part / STATE, {**asdict(state), "digests": digests}, durable=False)
    needed = {checkpoint_path(folder, step) for step in (state.step, state.best_step)}
    for old in set(folder.glob("step-*")) - needed:
        shutil.rmtree(old, ignore_errors=True)


def read_state(checkpoint: Path) -> tuple[State, dict[str, str]]:
    """Return the state of the training, and the SHA-256 of the other files of the checkpoint by name."""
    with as_input_error(f"{checkpoint / STATE}: not readable", "train in another folder"):
        values = read_checked(checkpoint / STATE)
        digests = values.pop("digests")
        state = from_json(State, values)
        if not 0 <= state.best_step <= state.step or not fits(digests, dict[str, str]):
            raise ValueError("its steps or its checksums are impossible")
        return state, digests


def load_trained(checkpoint: Path, model: nn.Module) -> None:
    """Copy a checkpoint's trained tensors into a model whose trained parameters are unfrozen."""
    tensors = read_tensors(checkpoint, TRAINED)
    problem = f"{checkpoint / TRAINED}: its tensors are not those that this run trains"
    with torch.no_grad(), as_input_error(problem, "train again"):
        trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        check_arrays(tensors, {name: tuple(tensor.shape) for name, tensor in trained.items()})
        for name, parameter in trained.items():
            parameter.copy_(tensors[name])


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the moments of Adam from a checkpoint."""
    tensors = read_tensors(checkpoint, OPTIMIZER)
    moved = {name: tensor for name, tensor in model.named_parameters() if f"{name}/step" in tensors}
    # The fused Adam reads beyond the end of tensors that are too small.
    shapes = dict[str, tuple[int, ...]]()
    for name, parameter in moved.items():
        shapes |= {f"{name}/{moment}": tuple(parameter.shape) for moment in MOMENTS}
        shapes[f"{name}/step"] = ()
    with as_input_error(f"{checkpoint / OPTIMIZER}: not of this run", "train in another folder"):
        check_arrays(tensors, shapes)
    for name, parameter in moved.items():
        # The fused Adam counts its steps on the parameter's device.
        optimizer.state[parameter] = {
            moment: tensors[f"{name}/{moment}"].to(parameter) for moment in MOMENTS
        }


def read_tensors(checkpoint: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of one file of a checkpoint after checking its SHA-256."""
    from safetensors.torch import load_file

    _, digests = read_state(checkpoint)
    with as_input_error(f"{checkpoint / name}: not readable", "train in another folder"):
        if file_digest(checkpoint / name) != digests.get(name):
            raise ValueError("checksum mismatch")
        return load_file(checkpoint / name)
