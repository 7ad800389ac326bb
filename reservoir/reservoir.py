"""The frozen map of a run: which reservoir, on which device, in which precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir import InputError
from reservoir.tasks.task import Task, Vectors

if TYPE_CHECKING:
    import torch

    from reservoir.fpt import FPT

DEFAULT_BACKBONE = "mini"
"""The backbone meant where none is named; its weights come with this package."""

GAIN = 1.41

SEEDS = 2**63
"""Number of seeds: those of torch's generators have 63 bits."""


@dataclass(frozen=True, kw_only=True)
class Reservoir:
    """The settings of a frozen map: a backbone with its weights behind a fixed input layer.

    Parameters
    ----------
    backbone : str
        A known size, a folder or a hub name.
    init : {"pretrained", "random", "statistics"}
        Where the weights come from.
    seed : int
        Seed of what is drawn of the weights, and of the input layer.
    gain : float
        Scale of the input layer.
    depth : int, optional
        Keep only the first so many blocks.
    patch, stride : int, default 1
        A token is a window of ``patch`` values every ``stride``, with all its channels.
    """

    backbone: str
    init: str
    seed: int = 0
    gain: float = GAIN
    depth: int | None = None
    patch: int = 1
    stride: int = 1

    @classmethod
    def choose(
        cls,
        backbone: str | None = None,
        init: str | None = None,
        seed: int = 0,
        gain: float = GAIN,
        depth: int | None = None,
        patch: int = 1,
        stride: int | None = None,
    ) -> Reservoir:
        """Fill in what was not said.

        With no backbone named it is `DEFAULT_BACKBONE`. A backbone is meant with its pretrained weights, unless nobody
        publishes any of its kind or its settings are changed. An ``init`` that is a folder is a whole backbone with its
        weights. A stride that was not said is the patch: windows do not overlap.

        Raises
        ------
        InputError
            If the seed is negative or `SEEDS` or more, the gain is not a positive number, or two backbones are named.
        """
        if not 0 <= seed < SEEDS:
            raise InputError(f"--seed {seed}: give a whole number from 0 to {SEEDS - 1}")
        if not 0 < gain < float("inf"):
            raise InputError(f"--gain {gain}: give a positive number")
        if patch < 1 or (stride is not None and stride < 1):
            raise InputError(f"--patch {patch} --stride {stride}: give whole numbers from 1")
        if init is not None and Path(init).is_dir():
            if backbone is not None:
                raise InputError(f"--init {init}: the folder holds a whole backbone; leave out --backbone {backbone}")
            backbone, init = str(Path(init).resolve()), "pretrained"
        name = full_name(backbone or DEFAULT_BACKBONE)
        if init is None:
            from reservoir.backbones import default_init

            init = default_init(name)
        return cls(backbone=name, init=init, seed=seed, gain=gain, depth=depth, patch=patch, stride=stride or patch)

    @property
    def title(self) -> str:
        """Short name for folders and tables, such as ``gpt2-random`` or ``gpt2-depth6-random``."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(self.backbone).name).strip("-.")
        depth = f"-depth{self.depth}" if self.depth else ""
        return f"{name or 'backbone'}{depth}-{self.init}"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return {
            "backbone": self.backbone,
            "init": self.init,
            "seed": self.seed,
            "gain": self.gain,
            "depth": self.depth,
            "patch": self.patch,
            "stride": self.stride,
        }

    def windowed(self, task: Task) -> Task:
        """Return the task as the model sees it: with windows as tokens.

        Raises
        ------
        InputError
            If its tokens are symbols, or its longest sequence is shorter than a window.
        """
        if (self.patch, self.stride) == (1, 1):
            return task
        if not isinstance(task.form, Vectors):
            raise InputError(
                f"--patch {self.patch}: the tokens of task {task.name!r} are symbols, which have no windows"
            )
        if task.readout_tokens > 1:
            raise InputError(
                f"--patch {self.patch}: task {task.name!r} labels single tokens, which windows do not keep"
            )
        tokens = (task.max_tokens - self.patch) // self.stride + 1
        if tokens < 1:
            raise InputError(f"--patch {self.patch}: the sequences of task {task.name!r} have {task.max_tokens} values")
        return replace(task, form=Vectors(self.patch * task.form.dim), max_tokens=tokens)


def full_name(backbone: str) -> str:
    """Return a folder or a GGUF file by its full path, and any other name as it is.

    The name of `DEFAULT_BACKBONE` is this package's own in whatever folder one stands; a folder of that name is
    ``./mini``.
    """
    path = Path(backbone)
    if backbone != DEFAULT_BACKBONE and (path.is_dir() or (path.suffix == ".gguf" and path.is_file())):
        return str(path.resolve())
    return backbone


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """A model ready to run, with what identifies it.

    Parameters
    ----------
    fpt : FPT
        The model on its device.
    settings : Reservoir
        What it was made from.
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
    settings: Reservoir
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
    backbone = load_backbone(settings.backbone, settings.init, settings.seed, settings.depth)
    fpt = FPT(settings.windowed(task), backbone, settings.seed, settings.gain).eval()
    digest = weights_digest(backbone)
    import torch

    backbone.set_compute(getattr(torch, dtype_name))
    return FrozenModel(
        fpt=fpt.to(place),
        family=backbone.family.name,
        settings=settings,
        digest=digest,
        device=place,
        # A recurrent backbone does not follow into bfloat16.
        compute=str(backbone.compute).removeprefix("torch."),
    )


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
