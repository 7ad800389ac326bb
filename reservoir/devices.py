"""What differs between the CPU and a GPU. Tests replace `on_gpu` and so run all branches for a GPU on the CPU."""

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.errors import InputError, as_input_error
from reservoir.machine import faster_precision, free_memory
from reservoir.private_torch import compiled_code_folder

MODEL_SHARE = 0.8
"""Share of the free memory that a model may fill; hidden states and features need the rest."""


def on_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU, which has separate memory and a queue of work."""
    return device.type != "cpu"  # torch calls NVIDIA's and AMD's GPUs cuda, and others by other names


def choose_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` is a GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    with as_input_error(f"device {name!r}: not available here", "use --device cpu, cuda or auto"):
        device = torch.device(name)
        torch.empty(1, device=device)  # raises an error if the device does not exist
    return device


def choose_compute(name: str, device: torch.device) -> str:
    """Return the precision of a model; ``auto`` is bfloat16 if the hardware multiplies it natively and faster."""
    if name != "auto":
        return name
    if on_gpu(device):
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if is_native else "float32"
    return faster_precision() if device.type == "cpu" else "float32"


def choose_training_compute(name: str, device: torch.device) -> str:
    """Return the precision of the products of a training as `choose_compute` does; refuse ``bfloat16-all``."""
    if name == "bfloat16-all":
        problem = "--compute bfloat16-all: trained weights need hidden states in float32"
        raise InputError(problem, "use --compute bfloat16")
    return choose_compute(name, device)


def kind(device: torch.device) -> str:
    """Return ``cuda`` for a GPU, else ``cpu``."""
    return "cuda" if on_gpu(device) else "cpu"


def memory_limit(stream: str, device: torch.device) -> int | None:
    """Return the bytes of parameters above which blocks are streamed; None if they never are.

    ``stream`` is that of `StreamOptions`: ``always``, ``never`` or ``auto``.
    """
    if stream == "always":
        return 0
    if stream == "never":
        return None
    free = free_memory()
    if device.type == "cuda":
        free_on_gpu, _ = torch.cuda.mem_get_info(device)  # bytes; the second is all its memory
        free = min(free, free_on_gpu)
    return int(MODEL_SHARE * free)


def describe(device: torch.device) -> str:
    """Return the name of a GPU, or the instruction set of the CPU."""
    return torch.cuda.get_device_name(device) if on_gpu(device) else torch.backends.cpu.get_cpu_capability()


# Compute capabilities of NVIDIA's cards whose float64 units are at least half as fast as those for float32: P100, V100,
# A100 and A30, H100 and H200, B200. All others, such as those for games and the B300, have a fraction of these units.
FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}


def multiplies_float64(device: torch.device) -> bool:
    """Return whether a GPU is made for products of float64."""
    return torch.cuda.get_device_capability(device) in FAST_FLOAT64


def of_worker(name: str, number: int) -> str:
    """Return the device of a numbered worker process: with ``auto`` or ``cuda``, several GPUs are used in turn."""
    count = torch.cuda.device_count()
    if name in ("auto", "cuda") and count > 1:
        return f"cuda:{number % count}"
    return name


def pinned(x: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor in page-locked memory, from which a GPU copies asynchronously; unchanged for the CPU."""
    return x.pin_memory() if on_gpu(device) else x


def constant(values: Callable[..., list[Any]], arguments: tuple[int, ...], device: torch.device) -> Tensor:
    """Return ``values(*arguments)``, a list of numbers, as a tensor on a device.

    The tensor is shared by all calls, and must not be changed: it is copied once, because a copy waits for a GPU.
    """
    if torch.compiler.is_compiling():  # a traced graph has constants of its own
        return torch.tensor(values(*arguments), device=device)
    return _copied_constant(values, arguments, device)


@cache  # all are kept, because CUDA graphs read their memory
def _copied_constant(
    values: Callable[..., list[Any]], arguments: tuple[int, ...], device: torch.device
) -> Tensor:
    """Return the shared tensor of `constant`."""
    with torch.inference_mode(False):  # so that training may use it, too
        return torch.tensor(values(*arguments), device=device)


def compiled(step: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a function compiled for a GPU, which starts one kernel instead of one for each operation.

    On a CPU, and without Triton, which torch compiles kernels with, return it unchanged.
    """
    can_compile = on_gpu(device) and find_spec("triton") is not None
    return compile_safely(step, dynamic=True) if can_compile else step


def compile_blocks(blocks: nn.ModuleList) -> None:
    """Compile the blocks of a backbone one by one, so that equal blocks share one compilation."""
    for block in blocks:
        block.forward = compile_safely(block.forward)


def compile_safely(function: Any, *, dynamic: bool | None = None, fullgraph: bool = False) -> Any:
    """Return ``torch.compile`` of a function; raise `InputError` if other users can have written its stored code.

    ``dynamic`` and ``fullgraph`` are those of `torch.compile`.
    """
    # torch runs the code in this folder, which is by default in /tmp, with a name that anyone can guess and make first.
    folder = compiled_code_folder()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    # It must belong to this user, also if it is a link (`lstat`) to a folder (`stat`).
    owners = {folder.lstat().st_uid, folder.stat().st_uid}
    all_may_write = bool(folder.stat().st_mode & stat.S_IWOTH)
    if owners != {os.getuid()} or all_may_write:
        raise InputError(
            f"{folder}: another user may have written the compiled code in it, which torch would run",
            "remove it, or set TORCHINDUCTOR_CACHE_DIR to a folder of your own",
        )
    return torch.compile(function, dynamic=dynamic, fullgraph=fullgraph)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that a device, or the host, has no memory left."""
    # torch has a type for GPUs alone; on the host it raises a RuntimeError.
    on_host = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return on_host or isinstance(error, MemoryError | torch.OutOfMemoryError)


def computed(device: torch.device) -> torch.cuda.Event:
    """Record and return an event of a GPU that happens when it has computed all that this thread has started so far."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def fetch(tensors: Sequence[Tensor], after: torch.cuda.Event | None = None) -> list[np.ndarray]:
    """Return tensors of one data type and one device as NumPy arrays, once the device has computed them.

    A GPU copies them on a stream of its own when the event ``after`` has happened, by default when all is computed that
    was started before this call. The copies do not wait for what is started later, nor does that wait for the copies.
    """
    device = tensors[0].device
    if not on_gpu(device):
        return [x.numpy() for x in tensors]
    after = computed(device) if after is None else after
    # One page-locked buffer holds all tensors. torch keeps such memory, when the arrays in it are gone, for the next
    # buffer of about the same size.
    sizes = [x.numel() for x in tensors]
    parts = torch.empty(sum(sizes), dtype=tensors[0].dtype, pin_memory=True).split(sizes)
    # Queue the copies behind the event, on another stream than the computation; only this thread waits for them.
    stream = torch.cuda.Stream(device)
    copied = torch.cuda.Event(blocking=True)
    with torch.cuda.stream(stream):
        stream.wait_event(after)
        for part, x in zip(parts, tensors, strict=True):
            part.copy_(x.flatten(), non_blocking=True)
        copied.record(stream)
    copied.synchronize()
    return [part.view(x.shape).numpy() for part, x in zip(parts, tensors, strict=True)]


class _Precision:
    """The settings of TF32 to restore, and how many contexts of `exact_products` keep it disabled.

    They are global because torch has one setting for the whole process, which no argument can replace.
    """

    lock = threading.Lock()
    contexts = 0  # that have begun and not ended
    # What the process had set before the first of the contexts: the precision of torch's products, and whether cuDNN's
    # convolutions may use TF32. Without contexts the values have no meaning.
    products = "highest"
    convolutions = True


@contextmanager
def exact_products() -> Iterator[None]:
    """Disable TF32, whose mantissa has 10 bits, for float32 products and convolutions of the process.

    Enter it once around all work of a run, because the settings are those of all threads: if one thread
    restored them after a batch, another that loads the next batch would compute with either precision.
    The last context that ends restores what the process had set before the first.
    """
    with _Precision.lock:
        is_first = _Precision.contexts == 0
        if is_first:
            _Precision.products = torch.get_float32_matmul_precision()
            _Precision.convolutions = torch.backends.cudnn.allow_tf32
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
        _Precision.contexts += 1
    try:
        yield
    finally:
        with _Precision.lock:
            _Precision.contexts -= 1
            was_last = _Precision.contexts == 0
            if was_last:
                torch.set_float32_matmul_precision(_Precision.products)
                torch.backends.cudnn.allow_tf32 = _Precision.convolutions
