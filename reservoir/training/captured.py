"""Training steps as CUDA graphs: the kernels of a step are recorded once, and then started by one call.

A small step, such as the paper's 8 rows of 64 tokens, has about 400 kernels, and starting them takes much
longer than computing them. A graph reads and writes fixed memory, so each step copies its rows into the same
buffers. There is one graph for each shape of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from reservoir.cuda_graphs import WARM_UP, CudaRecorder, Graph, Recorder
from reservoir.loaded_model import LoadedModel
from reservoir.options import TrainOptions
from reservoir.training.rows import TrainingBatch
from reservoir.training.steps import Step
from reservoir.training.trainer import Processes


def capture_on_gpu(
    model: LoadedModel, options: TrainOptions, ranks: Processes, report: Callable[[str], None]
) -> Callable[[Step], Step] | None:
    """Return what captures the steps of a training on a CUDA GPU; None if they cannot be captured.

    ``report`` is called with a line of text if a capture fails.

    Steps of several forward passes are not captured, because each pass has a seed of its own, which cannot change
    within a graph; nor those of several processes, which exchange gradients; nor those of compiled models, which have
    few kernels; nor those of models whose code reads values of tensors on the host.
    """
    has_one_pass = options.accumulate == 1 and ranks.count == 1
    allows_capture = not options.compiled and not model.fpt.backbone.family.reads_values
    if model.device.type != "cuda" or not has_one_pass or not allows_capture:
        return None
    recorder = CudaRecorder(model.device)
    return lambda step: CapturedSteps(step, model.device, recorder, report)


@dataclass
class _Buffers:
    """What the steps on rows of one shape share."""

    rows: TrainingBatch  # the memory that the steps read
    warm_up_steps: int = 0  # steps without a graph so far
    graph: Graph | None = None  # None until it is captured, and after a capture has failed


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
        self._step = step
        self._device = device
        self._recorder = recorder
        self._report = report
        self._buffers: dict[object, _Buffers] = {}  # by the shapes of the rows
        self._may_capture = True  # False after a capture has failed

    def __call__(self, rows: TrainingBatch) -> Tensor:
        """Take a step on rows of the host; its values are valid until the next step."""
        if rows.shapes not in self._buffers:
            self._buffers[rows.shapes] = _Buffers(rows.empty_on(self._device))
        buffers = self._buffers[rows.shapes]
        # The whole buffers are written, so that nothing of an earlier step is left in them.
        buffers.rows.copy_(rows)
        step = partial(self._step, buffers.rows)
        is_warm = buffers.warm_up_steps >= WARM_UP
        if buffers.graph is None and is_warm and self._may_capture:
            buffers.graph = self._capture(step)
        if buffers.graph is None:  # still warming up, or the capture has failed
            buffers.warm_up_steps += 1
            return self._recorder.run(step)
        buffers.graph.replay()
        return buffers.graph.values

    def _capture(self, step: Callable[[], Tensor]) -> Graph | None:
        """Return the graph of a step, or drop all graphs, report why, and return None if it cannot be captured."""
        try:
            return self._recorder.capture(step)
        except RuntimeError as error:
            self._may_capture = False
            # Other graphs share memory with the one that failed.
            for buffers in self._buffers.values():
                buffers.graph = None
            # Ending a capture that has failed raises an error, too; the one before it says why.
            cause = error.__context__ or error
            reason, *_ = str(cause).split("\n", 1)
            self._report(f"training takes its steps without CUDA graphs, which is slower: {reason}")
            return None
