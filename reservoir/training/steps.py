"""The steps of end-to-end training: the loss, Adam on the trained parameters, and scores on a split.

On a GPU, steps are CUDA graphs: the kernels of a step are recorded once, and then started by one call. A small step,
such as the paper's 8 rows of 64 tokens, has about 400 kernels, and starting them takes much longer than computing
them. A graph reads and writes fixed memory, so each step copies its rows into the same buffers. There is one graph for
each shape of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from reservoir.batches import batches
from reservoir.cuda_graphs import WARM_UP, CudaRecorder, Graph, Recorder
from reservoir.devices import pinned
from reservoir.fpt import FPT
from reservoir.loaded_model import LoadedModel
from reservoir.options import TrainOptions
from reservoir.random import random_key
from reservoir.readouts.linear import Tally, Targets
from reservoir.tasks.task import Split
from reservoir.training.rows import TrainingBatch, TrainingRows, read_ahead
from reservoir.training.trainer import Processes

Step = Callable[[TrainingBatch], Tensor]
"""Takes a training step on a batch, and returns its values, such as the loss."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a model on a split."""

    loss: float  # mean over the rows
    score: float  # share of correct labels, or R² for regression
    predicted: np.ndarray  # (rows, labels of a row) of class numbers or values
    # like ``predicted``, the logit of the second class minus that of the first; None unless there are two classes
    margins: np.ndarray | None


@dataclass
class FPTSteps:
    """Training steps of a model by Adam.

    Forward pass j of step n has number ``j + accumulate * (rank + processes * n)`` in the endless
    sequence of rows and dropout draws. More processes, or more passes per step, therefore change only
    the number of rows of a step.
    """

    model: FPT
    # ``forward(x, lengths, is_full)`` returns the logits of the model, or of its output layer alone
    forward: Callable[[Tensor, Tensor, bool | None], Tensor]
    rows: TrainingRows
    options: TrainOptions
    learning_rate: float
    seed: int
    ranks: Processes
    keeps_last: bool = False  # whether the last weights are kept instead of the best
    # turns a step of one forward pass into one that is captured, such as `CapturedSteps`; None to capture nothing
    capture: Callable[[Step], Step] | None = None

    def __post_init__(self) -> None:
        """Make the optimizer of the parameters that are trained."""
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        # The fused Adam computes the same with and without ``capturable``, which only allows its capture on a GPU.
        capturable = self.capture is not None and self._device.type == "cuda"
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self._parameters, lr=self.learning_rate, fused=True, capturable=capturable
        )
        # torch would warn of the steps before a capture, which are not captured.
        vars(self.optimizer)["_warned_capturable_if_run_uncaptured"] = True
        self._take_captured = self.capture(self._take_one_pass) if self.capture else None
        self._classes = self.model.task.classes
        # The names of the values that `take` returns, in order; ``norm`` is that of the gradients before clipping.
        self.value_names: tuple[str, ...] = (
            ("loss", "accuracy", "norm") if self._classes else ("loss", "norm")
        )

    def draw(self, step: int) -> list[TrainingBatch]:
        """Return the batches of this process for the forward passes of a step, on the host."""
        size = self.options.batch
        batches_of_passes: list[TrainingBatch] = []
        for number in self._passes(step):
            positions = np.arange(number * size, (number + 1) * size)  # in the endless sequence of rows
            batches_of_passes.append(self.rows.convert(self.rows.train(positions)))
        return batches_of_passes

    def take(self, step: int, batch: list[TrainingBatch]) -> Tensor:
        """Take a step on the batches of its forward passes; return its values, in the order of `value_names`.

        Loss and accuracy are those before the step. The values are valid until the next step.
        """
        numbers = self._passes(step)
        if self._take_captured:  # a step of one forward pass
            self._seed_dropout(numbers[0])
            return self._take_captured(batch[0])
        sums = self._begin()
        for number, rows in zip(numbers, batch, strict=True):
            self._seed_dropout(number)
            self._add_pass(rows.to(self._device), sums, len(batch))
        return self._finish(sums)

    def _take_one_pass(self, rows: TrainingBatch) -> Tensor:
        """Take a step of one forward pass on rows on the device, without seeding the dropout; return its values."""
        sums = self._begin()
        self._add_pass(rows, sums, passes=1)
        return self._finish(sums)

    def _seed_dropout(self, number: int) -> None:
        """Seed torch's generators, so that the dropout of a forward pass depends on its number alone."""
        if self.options.dropout:
            torch.manual_seed(random_key(self.seed, "dropout", number, size=8))

    def _begin(self) -> Tensor:
        """Remove the gradients of the step before; return zeros for the sums of loss and, for classes, of accuracy."""
        self.optimizer.zero_grad(set_to_none=True)
        return torch.zeros(len(self.value_names) - 1, device=self._device)  # all values but the norm

    def _add_pass(self, rows: TrainingBatch, sums: Tensor, passes: int) -> None:
        """Add the loss and the accuracy of a forward pass to ``sums``, and its gradients to those of the parameters.

        All are divided by the number of ``passes`` of the step, so that the sums become means.
        """
        logits = self.forward(rows.x, rows.lengths, rows.is_full)
        loss = row_losses(logits, rows.y, self._classes).mean() / passes
        loss.backward()
        with torch.no_grad():
            sums[0] += loss
            if self._classes:
                sums[1] += (logits.argmax(dim=-1) == rows.y).sum() / rows.y.numel() / passes

    def _finish(self, sums: Tensor) -> Tensor:
        """Change the parameters by their gradients; return the values of the step, in the order of `value_names`."""
        self.ranks.average_gradients(self._parameters)
        norm = nn.utils.clip_grad_norm_(self._parameters, self.options.clip)  # before clipping
        self.optimizer.step()
        means = self.ranks.add(sums) / self.ranks.count  # over the processes
        return torch.cat([means, norm.detach().reshape(1)])

    def validate(self, step: int) -> dict[str, float]:
        """Return loss and score on the validation rows; they depend on the weights alone, not on ``step``."""
        valid = self.score(self.rows.valid)
        return {"valid_loss": valid.loss, "valid_score": valid.score}

    def better(self, values: dict[str, float], best: dict[str, float]) -> bool:
        """Return whether a validation has a higher score than the best, or an equal one with a lower loss.

        With ``keeps_last``, every validation counts as better.
        """
        best_rank = best["valid_score"], -best["valid_loss"]
        rank = values["valid_score"], -values["valid_loss"]
        # No value is NaN: `Trainer` stops at a validation whose loss is not finite, and with a finite loss the score is
        # a number, too.
        return self.keeps_last or rank > best_rank

    @torch.no_grad()
    def score(self, split: Split) -> Score:
        """Score the model, in evaluation mode, on rows; the processes share the batches."""
        classes = self._classes
        has_margins = classes == 2
        labels = split.y[0].size  # of a row: readout tokens x outputs
        # A line for each row: its loss, its predictions and, for two classes, its margins. Each process fills in the
        # rows of its batches, and the sum over the processes is the whole table.
        columns = 1 + labels + (labels if has_margins else 0)
        table = torch.zeros(len(split), columns, dtype=torch.float64, device=self._device)
        all_batches = list(batches(split.lengths, self.rows.scored))
        own_batches = all_batches[self.ranks.rank :: self.ranks.count]
        converted = read_ahead(lambda rows: self.rows.convert(split.take(rows)), own_batches)
        for rows, on_host in zip(own_batches, converted, strict=True):
            batch = on_host.to(self._device)
            logits = self.forward(batch.x, batch.lengths, batch.is_full)
            # From page-locked memory, so that the copy does not wait.
            index = pinned(torch.from_numpy(rows), self._device).to(self._device, non_blocking=True)
            table[index, 0] = row_losses(logits, batch.y, classes).double()
            predictions = logits.argmax(-1) if classes else logits
            table[index, 1 : 1 + labels] = predictions.flatten(1).double()
            if has_margins:
                table[index, 1 + labels :] = (logits[..., 1] - logits[..., 0]).flatten(1).double()
        values = self.ranks.add(table).cpu().numpy()
        losses, predicted, margins = np.split(values, [1, 1 + labels], axis=1)
        y = split.y.reshape(len(split), -1)
        if classes:
            score = (predicted == y).mean()
        else:  # R²; a tally counts for several readouts, along the first axis, and here it is one
            score = Tally(Targets(labels, 0)).update(predicted[None], y).accuracy()[0]
        return Score(
            loss=float(losses[:, 0].mean()),
            score=float(score),
            predicted=predicted,
            margins=margins if has_margins else None,
        )

    def _passes(self, step: int) -> range:
        """Return the numbers of the forward passes of this process in a step."""
        first = (step * self.ranks.count + self.ranks.rank) * self.options.accumulate
        return range(first, first + self.options.accumulate)


def row_losses(logits: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the loss of each row, (rows,): the mean over its labels of the cross-entropy, or of the squared error.

    ``logits`` are (rows, readout_tokens, outputs, classes), with one value in place of classes for regression, and
    ``y`` (rows, readout_tokens, outputs).
    """
    if classes:
        losses = nn.functional.cross_entropy(logits.flatten(0, 2).float(), y.flatten(), reduction="none")
    else:
        losses = (logits[..., 0].float() - y).square()
    return losses.view(len(y), -1).mean(dim=1)


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
