"""Training steps as CUDA graphs: the kernels of a step are recorded once, and then started by one call.

A small step, such as the paper's 8 rows of 64 tokens, has about 400 kernels, and starting them takes much
longer than computing them. A graph reads and writes fixed memory, so each step copies its rows into the same
buffers. There is one graph for each shape of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from reservoir.options import TrainOptions
from reservoir.reservoir import LoadedModel
from reservoir.training.rows import TrainingBatch
from reservoir.training.steps import Step
from reservoir.training.trainer import Processes

WARM_UP = 3
"""Steps of a shape before its capture, as torch advises: they allocate what libraries keep, such as workspaces."""


def capture_on_gpu(
    model: LoadedModel, options: TrainOptions, ranks: Processes, report: Callable[[str], None]
) -> Callable[[Step], Step] | None:
    """Return what captures the steps of a training on a CUDA GPU; None if they cannot be captured.

    Steps of several forward passes are not captured, because each pass has a seed of its own, which cannot change
    within a graph; nor those of several processes, which exchange gradients; nor those of compiled models, which have
    few kernels; nor those of models whose code reads values of tensors on the host.
    """
    has_one_pass = options.accumulate == 1 and ranks.count == 1
    reads_values = model.fpt.backbone.family.reads_values
    if model.device.type != "cuda" or not has_one_pass or options.compiled or reads_values:
        return None
    recorder = CudaRecorder(model.device)
    return lambda step: CapturedSteps(step, model.device, recorder, report)


class Graph(Protocol):
    """A captured step."""

    @property
    def values(self) -> Tensor:
        """The values of the step that was replayed last."""
        ...

    def replay(self) -> None:
        """Take the step on what its buffers hold now."""
        ...


class Recorder(Protocol):
    """Captures steps; `CudaRecorder` does, and tests have others."""

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        """Take a step without a graph, as a warm-up of its capture."""
        ...

    def capture(self, step: Callable[[], Tensor]) -> Graph:
        """Record a step without taking it."""
        ...


@dataclass
class _Buffers:
    """The memory that the steps of one shape read, the number of steps without a graph, and the graph."""

    rows: TrainingBatch
    warm_up_steps: int = 0
    graph: Graph | None = None


class CapturedSteps:
    """Takes steps on fixed buffers, as graphs from the fourth step of each shape on.

    The first steps of a shape are the warm-up of its capture. They are steps of the training like all others, so
    captured and other runs take the same steps.

    Parameters
    ----------
    step : callable
        Takes a step on rows on the device, and returns its values. It draws from torch's default generators alone,
        which the caller seeds before each call: a graph reads seed and offset of the generator when it is replayed.
    device : torch.device
        The device of the model.
    recorder : Recorder
        What captures a step.
    report : callable
        Called with a line of text if a capture fails; all further steps are then taken without graphs.
    """

    def __init__(
        self, step: Step, device: torch.device, recorder: Recorder, report: Callable[[str], None]
    ) -> None:
        self._step, self._device = step, device
        self._recorder, self._report = recorder, report
        self._buffers: dict[object, _Buffers] = {}
        self._captures = True

    def __call__(self, rows: TrainingBatch) -> Tensor:
        """Take a step on rows of the host; its values are valid until the next step."""
        buffers = self._buffers.get(rows.shapes)
        if buffers is None:
            buffers = self._buffers[rows.shapes] = _Buffers(rows.empty_on(self._device))
        # The whole buffers are written, so that nothing of an earlier step is left in them.
        buffers.rows.copy_(rows)
        step = partial(self._step, buffers.rows)
        if self._captures and buffers.graph is None and buffers.warm_up_steps >= WARM_UP:
            buffers.graph = self._capture(step)
        if buffers.graph is None:
            buffers.warm_up_steps += 1
            return self._recorder.run(step)
        buffers.graph.replay()
        return buffers.graph.values

    def _capture(self, step: Callable[[], Tensor]) -> Graph | None:
        """Return the graph of a step; None, now and for all further steps, if it cannot be captured."""
        try:
            return self._recorder.capture(step)
        except RuntimeError as error:
            self._captures = False
            # Other graphs share memory with the one that failed.
            for buffers in self._buffers.values():
                buffers.graph = None
            # Ending a capture that has failed raises an error, too; the one before it says why.
            reason = str(error.__context__ or error).split("\n", 1)[0]
            self._report(f"training takes its steps without CUDA graphs, which is slower: {reason}")
            return None


class CudaRecorder:
    """Captures steps in CUDA graphs, whose intermediate results share memory, because they never run at once."""

    def __init__(self, device: torch.device) -> None:
        # Warm-up and capture use one stream, other than the default one, which cannot be captured: libraries keep
        # workspaces for each stream, and those that a capture would allocate belonged to its graph.
        with torch.cuda.device(device):
            self._device = torch.device("cuda", torch.cuda.current_device())
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()
        self._failed: torch.cuda.CUDAGraph | None = None

    def run(self, step: Callable[[], Tensor]) -> Tensor:
        """Take a step on the stream of the captures, between what is queued before it and what follows."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            values = step()
        current.wait_stream(self._stream)
        return values

    def capture(self, step: Callable[[], Tensor]) -> Graph:
        """Record a step; a replay runs on the stream that is current then."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            # The thread that reads the rows of the next step may allocate page-locked memory meanwhile, which the
            # mode "global" would forbid.
            recording = torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            )
            try:
                with recording:
                    values = step()
            except RuntimeError:
                self._failed = graph  # torch's allocator may still ask it whether it captures
                self._leave(current)
                raise
        return _CudaGraph(graph, values)

    def _leave(self, stream: torch.cuda.Stream) -> None:
        """Restore what a failed capture leaves behind: its stream, and a generator that waits for the end of it."""
        torch.cuda.set_stream(stream)
        # Up to torch 2.12 the state of the generator would refuse all further draws, so it gets another one.
        generator = torch.cuda.default_generators[self._device.index]
        other = torch.Generator(self._device).manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(other.graphsafe_get_state())


@dataclass(frozen=True)
class _CudaGraph:
    """A captured step, and the tensor into which each replay writes its values."""

    graph: torch.cuda.CUDAGraph
    values: Tensor

    def replay(self) -> None:
        """Take the step on what its buffers hold now."""
        self.graph.replay()
