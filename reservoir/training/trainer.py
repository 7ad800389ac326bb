"""The training loop: steps, validation, the best state, divergence; and the processes that share it."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reservoir.errors import FailedError, InputError, as_input_error
from reservoir.training.rows import read_ahead

BOUND = 1e4
"""A loss above this value counts as diverged."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Progress of a training run."""

    step: int = 0  # finished steps
    seconds: float = 0.0  # time of these steps, without validations
    best_step: int = 0  # finished steps at the best validation
    # values of that validation; empty before the first one
    best: dict[str, float] = field(default_factory=dict)

    @property
    def stale_steps(self) -> int:
        """Number of steps since the best validation, or since the start if there was none."""
        return self.step - self.best_step


class DivergedError(FailedError):
    """The loss of a step is not finite or above its bound; ``state`` is the last state before that step."""

    def __init__(self, message: str, step: int, state: State) -> None:
        super().__init__(message)
        self.step, self.state = step, state


class Steps(Protocol):
    """The steps of a training run; each step depends only on the weights and on its number, from 0."""

    optimizer: torch.optim.Optimizer
    # The names of the values that `take` returns, in order: the loss first, the norm of the gradients last.
    value_names: tuple[str, ...]

    def draw(self, step: int) -> Any:
        """Return the data of a step; called in another thread while the previous step runs."""
        ...

    def take(self, step: int, batch: Any) -> Tensor:
        """Take a step; return its values, one for each of `value_names`, on the device.

        The next step may write into the same tensor.
        """
        ...

    def validate(self, step: int) -> dict[str, float]:
        """Return the values of a validation after ``step`` steps, the loss first."""
        ...

    def better(self, values: dict[str, float], best: dict[str, float]) -> bool:
        """Return whether a validation is better than the best one so far."""
        ...


class ArrivingValues:
    """The values of steps, which are read in order without waiting for the GPU that computes them.

    Parameters
    ----------
    count : int
        The number of values of a step.
    device : torch.device
        The device of the steps. The values of a GPU are copied to page-locked memory behind its steps.
    make_event : callable, optional
        Returns an event that tells when a copy has arrived, by default a `torch.cuda.Event` for a GPU, and none for a
        CPU, whose values are there at once.
    """

    LIMIT = 128  # largest number of steps by which a GPU is behind, a tenth of a second or more

    def __init__(
        self, count: int, device: torch.device, make_event: Callable[[], Any] | None = None
    ) -> None:
        is_cuda = device.type == "cuda"
        if make_event is None and is_cuda:
            make_event = partial(torch.cuda.Event, blocking=True)  # a thread that waits for it sleeps
        self._stream = torch.cuda.current_stream(device) if is_cuda else None
        self._events = [make_event() for _ in range(self.LIMIT)] if make_event else []
        self._buffer = torch.empty(self.LIMIT, count, pin_memory=is_cuda)
        # Numbers of steps whose values were added, and of those that were read. Step n has row n modulo `LIMIT` of the
        # buffer.
        self._added = 0
        self._read = 0

    def add(self, values: Tensor) -> None:
        """Start copying the values of the next step (float32, on its device); call `arrived` after each `add`.

        The step may reuse ``values`` afterwards.
        """
        # The values in this row of the buffer have been read: `arrived` leaves at most `LIMIT` - 1 values unread.
        row = self._added % self.LIMIT
        self._buffer[row].copy_(values, non_blocking=True)
        if self._events:
            self._events[row].record(self._stream)  # happens when the copy has ended
        self._added += 1

    def arrived(self, most_missing: int = LIMIT - 1) -> Iterator[list[float]]:
        """Yield the values of further steps, in order, up to the first that has not arrived.

        If more than ``most_missing`` steps have not been read, wait for the next of them. With 0, all are read.
        """
        while self._read < self._added:
            row = self._read % self.LIMIT
            if self._events:  # without events, values are there at once
                event = self._events[row]
                missing = self._added - self._read
                if missing > most_missing:
                    event.synchronize()
                elif not event.query():
                    return
            self._read += 1
            yield self._buffer[row].tolist()


@dataclass
class Trainer:
    """Loop that takes steps, validates every ``eval_every`` steps, and stops if the loss diverges; it writes no files.

    A run that resumes with the weights and moments of a state ends with the bits of a run that was never interrupted,
    and stops at the same step.
    """

    model: nn.Module
    steps: Steps
    eval_every: int  # steps between validations; there is another one after the last step
    # called with ``(step, values)`` for every step, from 1, and for every validation
    report: Callable[[int, dict[str, float]], None]
    keep: Callable[[State], None]  # called after every validation
    state: State = field(default_factory=State)  # from which the run starts
    # steps since the best validation after which the run stops; None for any number
    patience: int | None = None

    def run(self, last: int) -> State:
        """Train until step ``last`` or until patience ends; raise `DivergedError` if the loss diverges."""
        while self.state.step < last:
            if self.patience is not None and self.state.stale_steps >= self.patience:
                break
            # Take the steps up to the next multiple of ``eval_every``, and validate.
            first = self.state.step
            next_validation = min(last, (first // self.eval_every + 1) * self.eval_every)
            started = time.monotonic()
            self._take(first, next_validation)
            self._validate(next_validation, self.state.seconds + time.monotonic() - started)
        return self.state

    def _take(self, first: int, last: int) -> None:
        """Take the steps from ``first`` to ``last``; the data of a step is drawn while the step before it runs."""
        self.model.train()
        device = next(self.model.parameters()).device
        arriving = ArrivingValues(len(self.steps.value_names), device)
        number = first + 1  # of the step that is reported next; steps are reported from 1
        with closing(read_ahead(self.steps.draw, range(first, last))) as batches:
            for step, batch in enumerate(batches, first):
                arriving.add(self.steps.take(step, batch))
                is_last = step + 1 == last
                arrived = arriving.arrived(most_missing=0) if is_last else arriving.arrived()
                for values in arrived:
                    self.report(number, dict(zip(self.steps.value_names, values, strict=True)))
                    # `Steps.take` returns the loss first, and the norm of the gradients last.
                    loss, norm = values[0], values[-1]
                    self._check("the loss", number, loss, norm)
                    number += 1

    def _validate(self, step: int, seconds: float) -> None:
        """Validate after ``step`` steps, and pass the new state, whether it is the best or not, to ``keep``.

        ``seconds`` is the time of all steps so far. Raise `DivergedError` if the validation loss diverges.
        """
        self.model.eval()
        values = self.steps.validate(step)
        self.report(step, values)
        loss = next(iter(values.values()))  # `Steps.validate` returns the loss first
        self._check("the validation loss", step, loss)
        # The first validation has none to compare with.
        earlier = self.state
        is_first = earlier.step == 0
        is_best = is_first or self.steps.better(values, earlier.best)
        self.state = State(
            step=step,
            seconds=seconds,
            best_step=step if is_best else earlier.best_step,
            best=values if is_best else earlier.best,
        )
        self.keep(self.state)

    def _check(self, which: str, step: int, loss: float, norm: float | None = None) -> None:
        """Raise `DivergedError` if a loss or the norm of its gradients is not finite, or the loss is above `BOUND`.

        ``which`` names the loss in the message. A validation has no gradients; its ``norm`` is None.
        """
        has_finite_norm = norm is None or math.isfinite(norm)
        if math.isfinite(loss) and has_finite_norm and loss <= BOUND:
            return
        # The norm is of interest if the loss is finite, and there are gradients.
        shows_norm = math.isfinite(loss) and norm
        gradients = f", with gradients of norm {norm:.4g}" if shows_norm else ""
        raise DivergedError(
            f"{which} is {loss:.4g} at step {step:,}{gradients}; use a smaller --learning-rate",
            step,
            self.state,
        )


@dataclass(frozen=True)
class Processes:
    """One of the processes that were launched together."""

    rank: int = 0  # its number among all processes, from 0
    count: int = 1  # number of processes
    local: int = 0  # its number among those of its machine, from 0
    # the tensor of the last `add`; see there
    _last_sum: list[Tensor] = field(default_factory=list, repr=False)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """Return the device of this process; with several processes, each uses its own GPU unless ``name`` has one."""
        may_choose = name in ("auto", "cuda") and torch.cuda.is_available()
        return f"cuda:{self.local}" if self.count > 1 and may_choose else name

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run a block in the first process before the others; if it fails, the others raise `InputError`."""
        # The number of failures, summed over the processes, tells the others. They add 0 before they run the block, and
        # wait for the sum; the first process adds 1 if the block fails, else 0, after it.
        if not self.first:
            failures = self.add(torch.zeros(1))
            if failures > 0:
                raise InputError("the first process failed", "see its message")
        own_failures = torch.ones(1)
        try:
            yield
            own_failures -= 1  # the block has ended without an error
        finally:
            if self.first:
                self.add(own_failures)

    def add(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place, and return it; every process must call this."""
        if self.count > 1:
            dist.all_reduce(tensor)
            # If Python frees the tensor first, torch 2.6 frees it in gloo's thread, which then waits for
            # this thread to release the interpreter, while `destroy_process_group` waits for that thread.
            self._last_sum[:] = [tensor]
        return tensor

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace the gradients, which are small, by their means over all processes, in one transfer."""
        if self.count == 1:
            return
        # All gradients in one vector, which is summed, and divided among the parameters again.
        trained = [p for p in parameters if p.grad is not None]
        own_gradients = torch.cat([p.grad.flatten() for p in trained if p.grad is not None])
        means = self.add(own_gradients) / self.count
        sizes = [p.numel() for p in trained]
        for parameter, gradient in zip(trained, means.split(sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)


@contextmanager
def processes() -> Iterator[Processes]:
    """Join the processes that were launched together, inside the context; without a launcher there is one process."""
    # torch's and accelerate's launchers set these variables.
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count <= 1:
        yield Processes()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local)
    with as_input_error(
        "WORLD_SIZE is set, but the processes do not find each other", "start with accelerate launch"
    ):
        # A long timeout: the others wait while the first process extracts the cached features for training. With GPUs,
        # tensors on the host are summed by gloo, and those on a GPU by nccl.
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=timedelta(days=7))
    try:
        yield Processes(rank=dist.get_rank(), count=dist.get_world_size(), local=local)
    finally:
        dist.destroy_process_group()
