"""The frozen map of a run: which reservoir, on which device, in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir import InputError

if TYPE_CHECKING:
    import torch

    from reservoir.fpt import FPT
    from reservoir.tasks.task import Task

DEFAULT_BACKBONE = "gpt2"
GAIN = 1.41


@dataclass(frozen=True, kw_only=True)
class Reservoir:
    """The settings of a frozen map: a backbone with its weights behind a fixed input layer.

    Parameters
    ----------
    backbone : str
        A known size, a folder or a hub name.
    init : {"pretrained", "random"}
        Where the weights come from.
    seed : int
        Seed of the random weights and of the input layer.
    gain : float
        Scale of the input layer.
    """

    backbone: str
    init: str
    seed: int = 0
    gain: float = GAIN

    @classmethod
    def choose(
        cls, backbone: str | None = None, init: str | None = None, seed: int = 0, gain: float = GAIN
    ) -> Reservoir:
        """Fill in what was not said.

        A backbone that is named is meant with its pretrained weights. With none named it is an untrained GPT-2 small,
        which needs neither a network nor weights.

        Raises
        ------
        InputError
            If the seed is negative or the gain is not a positive number.
        """
        if seed < 0:
            raise InputError(f"--seed {seed}: give a whole number from 0")
        if not 0 < gain < float("inf"):
            raise InputError(f"--gain {gain}: give a positive number")
        if init is None:
            init = "random" if backbone is None else "pretrained"
        name = backbone or DEFAULT_BACKBONE
        if Path(name).is_dir():
            name = str(Path(name).resolve())
        return cls(backbone=name, init=init, seed=seed, gain=gain)

    @property
    def title(self) -> str:
        """Short name for folders and tables, such as ``gpt2-random``."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(self.backbone).name).strip("-.")
        return f"{name or 'backbone'}-{self.init}"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {"backbone": self.backbone, "init": self.init, "seed": self.seed, "gain": self.gain}


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """A model ready to run, with what identifies it.

    Parameters
    ----------
    fpt : FPT
        The model on its device.
    family : str
        Family of the backbone.
    digest : str
        SHA-256 of the backbone's float32 weights.
    device : torch.device
        Where it runs.
    compute : str
        ``float32`` or ``bfloat16``.
    """

    fpt: FPT
    family: str
    digest: str
    device: torch.device
    compute: str


def load_frozen(task: Task, settings: Reservoir, device: str = "auto", compute: str = "auto") -> FrozenModel:
    """Build the frozen model of a reservoir for a task.

    Parameters
    ----------
    task : Task
        Gives the input form.
    settings : Reservoir
        Backbone, init, seed and gain.
    device : str, default "auto"
        ``auto`` takes a GPU where there is one.
    compute : {"auto", "float32", "bfloat16"}, default "auto"
        ``auto`` takes bfloat16 where the device multiplies it faster.

    Raises
    ------
    InputError
        If the device or the backbone is not here, or the task does not fit the backbone.
    """
    from reservoir.backbones import load_backbone, weights_digest
    from reservoir.fpt import FPT

    place = choose_device(device)
    dtype_name = choose_compute(compute, place)
    backbone = load_backbone(settings.backbone, settings.init, settings.seed)
    fpt = FPT(task, backbone, settings.seed, settings.gain).eval()
    digest = weights_digest(backbone)
    import torch

    backbone.set_compute(getattr(torch, dtype_name))
    return FrozenModel(fpt=fpt.to(place), family=backbone.family.name, digest=digest, device=place, compute=dtype_name)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is a GPU where there is one, else the CPU.

    Raises
    ------
    InputError
        If there is no such device here.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r}: not available here; use --device cpu, cuda or auto") from error
    return device


def choose_compute(name: str, device: torch.device) -> str:
    """Return the precision of the matrix products: ``auto`` is bfloat16 where the hardware multiplies it natively.

    Raises
    ------
    InputError
        If the precision is not known.
    """
    import torch

    if name in ("float32", "bfloat16"):
        return name
    if name != "auto":
        raise InputError(f"compute {name!r}: choose float32, bfloat16 or auto")
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # The two questions are private in torch, so a version without them gets the safe answer.
        asks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        native = device.type == "cpu" and any(getattr(torch.cpu, ask, bool)() for ask in asks)
    return "bfloat16" if native else "float32"
