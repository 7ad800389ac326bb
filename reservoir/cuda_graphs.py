"""CUDA graphs: the kernels of some work are recorded once, and then started by one call.

Starting the kernels of a small batch takes longer than computing them. A graph reads and writes fixed memory, so each
batch is copied into the same buffers. There is one graph for each shape of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from reservoir.backbones.backbone import Backbone

WorkResult = TypeVar("WorkResult")

WARM_UP = 3
"""Steps of a shape before its capture, as torch advises: they allocate what libraries keep, such as workspaces."""

MOST_TOKENS = 2**14
"""Largest batch whose forward pass is captured: above that, kernels take longer than starting them."""

CAPTURED_AFTER = 8
"""Batches of a shape that run without a graph: capturing one takes about as long as several batches."""

MOST_GRAPHS = 32
"""Graphs of forward passes, each of which keeps its features in memory."""


class Graph(Protocol):
    """Captured work, such as a step."""

    @property
    def values(self) -> Any:
        """What the work has returned; the next replay writes into the same tensors."""
        ...

    def replay(self) -> None:
        """Do the work on what its buffers hold now."""
        ...


class Recorder(Protocol):
    """Captures work; `CudaRecorder` does, and tests have others."""

    def run(self, work: Callable[[], WorkResult]) -> WorkResult:
        """Do the work without a graph, as a warm-up of its capture."""
        ...

    def capture(self, work: Callable[[], Any]) -> Graph:
        """Record the work without doing it."""
        ...


@dataclass
class _Shape:
    """The batches of one shape."""

    count: int = 0  # batches so far
    # None until it is captured, and after `RepeatedBatches` has given up all graphs
    graph: Graph | None = None
    # the memory that the graph reads; empty before its capture
    buffers: list[Tensor] = field(default_factory=list)


class RepeatedBatches:
    """Computes small batches, as graphs from the ninth batch of each shape on.

    Captured and other batches run the same kernels, so features are the same. The first batch of each graph is also
    computed without it, to make sure: if the values differ in a bit, no graph is used any more.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._shapes: dict[Hashable, _Shape] = {}  # by settings and layouts of tensors
        self._graphs_left = MOST_GRAPHS  # how many more may be captured

    @classmethod
    def of(cls, device: torch.device, backbone: Backbone) -> RepeatedBatches | None:
        """Return what captures the small batches of a model on a device; None if device or model do not allow it."""
        # A graph cannot read values of tensors on the host, as the program of some models does. Only of models whose
        # blocks compile it is known that they do not.
        may_read_values = backbone.family.reads_values or not backbone.family.compiles
        is_streamed = backbone.streamed is not None  # blocks are read from a file while it runs
        if device.type != "cuda" or may_read_values or is_streamed:
            return None
        return cls(CudaRecorder(device))

    def __call__(
        self,
        compute: Callable[[Sequence[Tensor]], WorkResult],
        tensors: Sequence[Tensor],
        settings: Hashable,
    ) -> WorkResult:
        """Return ``compute(tensors)``, which is valid until the next call.

        ``settings`` are all else on which the values depend; a graph is used again if they and the shapes are equal.
        """
        layouts = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
        shape = self._shapes.setdefault((settings, *layouts), _Shape())
        shape.count += 1
        has_repeated = shape.count > CAPTURED_AFTER
        if shape.graph is None and has_repeated and self._graphs_left > 0:
            shape.buffers = [tensor.clone() for tensor in tensors]
            shape.graph = self._capture(partial(compute, shape.buffers))
            if shape.graph is not None:
                expected = self._recorder.run(partial(compute, tensors))
                self._check(shape.graph, expected)
        # Capture or check may have failed, so the graph is looked up again.
        if shape.graph is None:
            return self._recorder.run(partial(compute, tensors))
        for buffer, tensor in zip(shape.buffers, tensors, strict=True):
            buffer.copy_(tensor)
        shape.graph.replay()
        return shape.graph.values

    def _check(self, graph: Graph, expected_values: Any) -> None:
        """Give up all graphs if a replay on the same batch does not give the expected values; waits for the device."""
        graph.replay()
        replayed = _tensors_of(graph.values)
        expected = _tensors_of(expected_values)
        are_equal = len(replayed) == len(expected) and all(map(torch.equal, replayed, expected))
        if not are_equal:
            self._give_up("a graph gives other values than the same kernels without it")

    def _capture(self, work: Callable[[], Any]) -> Graph | None:
        """Return the graph of a batch, or give up all graphs and return None if it cannot be captured."""
        try:
            graph = self._recorder.capture(work)
        except RuntimeError as error:
            # Ending a capture that has failed raises an error, too; the one before it says why.
            cause = error.__context__ or error
            first_line, *_ = str(cause).split("\n", 1)
            self._give_up(first_line)
            return None
        self._graphs_left -= 1
        return graph

    def _give_up(self, reason: str) -> None:
        """Drop all graphs, which share memory with the one that failed, capture no more, and warn of the ``reason``."""
        self._graphs_left = 0
        for shape in self._shapes.values():
            shape.graph = None
        warnings.warn(f"small batches run without CUDA graphs, which is slower: {reason}", stacklevel=3)


def _tensors_of(values: Any) -> list[Tensor]:
    """Return the tensors in nested lists and dictionaries, in their order."""
    if isinstance(values, Tensor):
        return [values]
    parts = values.values() if isinstance(values, dict) else values
    return [tensor for part in parts for tensor in _tensors_of(part)]


class CudaRecorder:
    """Captures work in CUDA graphs, whose intermediate results share memory, because they never run at once."""

    def __init__(self, device: torch.device) -> None:
        # Warm-up and capture use the same stream: libraries keep workspaces for each stream, and a workspace that a
        # capture allocates would belong to its graph. It is not the default stream, which cannot be captured.
        with torch.cuda.device(device):
            # With the number of the device, which "cuda" lacks.
            self._device = torch.device("cuda", torch.cuda.current_device())
            # Of high priority, because torch hands out the 32 other streams in turn: a thread that copies features
            # (`devices.fetch`) would get this one while it captures.
            self._stream = torch.cuda.Stream(priority=-1)
            self._pool = torch.cuda.graph_pool_handle()
        self._failed: torch.cuda.CUDAGraph | None = None  # kept alive; see `capture`

    def run(self, work: Callable[[], WorkResult]) -> WorkResult:
        """Do the work on the stream of the captures, between what is queued before it and what follows."""
        # The streams wait for each other on the GPU; this thread waits for neither.
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            values = work()
        current.wait_stream(self._stream)
        return values

    def capture(self, work: Callable[[], Any]) -> Graph:
        """Record the work without doing it; a replay runs on the stream that is current then."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            # A thread that reads the next rows may allocate page-locked memory meanwhile, which the
            # mode "global" would forbid.
            recording = torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            )
            try:
                with recording:
                    values = work()
            except RuntimeError:
                self._failed = graph  # torch's allocator may still ask it whether it captures
                self._leave(current)
                raise
        return _CudaGraph(graph, values)

    def _leave(self, stream: torch.cuda.Stream) -> None:
        """Clean up after a failed capture: return to ``stream``, and make the default generator usable again."""
        torch.cuda.set_stream(stream)
        # Up to torch 2.12 the generator still waits for the end of the capture, and its state would refuse all further
        # draws. So it gets the state of a new generator with the same seed.
        generator = torch.cuda.default_generators[self._device.index]
        new_generator = torch.Generator(self._device).manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(new_generator.graphsafe_get_state())


@dataclass(frozen=True)
class _CudaGraph:
    """Captured work, and the tensors into which each replay writes its values."""

    graph: torch.cuda.CUDAGraph
    values: Any

    def replay(self) -> None:
        """Do the work on what its buffers hold now."""
        self.graph.replay()
