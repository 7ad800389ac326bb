"""Processes that train one model together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reservoir.errors import InputError


@dataclass(frozen=True)
class Processes:
    """One of the processes that were launched together: its rank, their count, and its rank on its machine."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """Return the device of this process; with several processes, each uses its own GPU."""
        several = self.count > 1 and name in ("auto", "cuda") and torch.cuda.is_available()
        return f"cuda:{self.local}" if several else name

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run a block in the first process before the others; the others fail if it failed."""
        failed = torch.ones(1)
        if not self.first and self.add(failed - 1):
            raise InputError("the first process failed; see its message")
        try:
            yield
            failed -= 1
        finally:
            if self.first:
                self.add(failed)

    def add(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place, and return it."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace gradients by their means over all processes, in one transfer, because they are small."""
        if self.count == 1:
            return
        held = [p for p in parameters if p.grad is not None]
        flat = self.add(torch.cat([p.grad.flatten() for p in held if p.grad is not None])) / self.count
        for parameter, gradient in zip(held, flat.split([p.numel() for p in held]), strict=True):
            parameter.grad = gradient.view_as(parameter)


@contextmanager
def processes() -> Iterator[Processes]:
    """Join the processes that were launched together, inside the context; without a launcher there is one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count <= 1:
        yield Processes()
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"WORLD_SIZE is {count} but {missing[0]} is not set; start with accelerate launch")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    mine = not dist.is_initialized()
    if mine:
        if torch.cuda.is_available():
            torch.cuda.set_device(local)
        # The others wait while the first process extracts the features for training from the cache.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(days=7))
    try:
        yield Processes(rank=int(os.environ["RANK"]), count=count, local=local)
    finally:
        if mine:
            dist.destroy_process_group()
