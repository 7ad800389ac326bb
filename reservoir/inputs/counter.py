"""An input layer that counts brackets: each symbol at its level, as a one-hot vector.

Attention of a random block does not compute how deep a bracket is nested. A running sum of opened minus closed
brackets does, so the structure is given here, not learned.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reservoir.backbones.kernels import GROUP_SIZE
from reservoir.errors import InputError
from reservoir.tasks.listops import CLOSE, OPERATIONS, OPERATOR, SYMBOLS
from reservoir.tasks.task import Task, Tokens

# Deeper symbols count as being on the deepest of these levels. On ListOps three levels have nearly all of the accuracy.
LEVELS = 4
PAIRS = ("()", "[]", "{}", "<>")


@dataclass(frozen=True)
class Brackets:
    """The symbols of a vocabulary that open and close a level."""

    vocabulary: int  # number of symbols
    opening: tuple[int, ...]  # numbers of the symbols that open a level
    closing: tuple[int, ...]  # numbers of the symbols that close one

    @classmethod
    def of(cls, task: Task) -> "Brackets":
        """Return the brackets of a task's symbols; raise `InputError` if it has none."""
        vocabulary = task.form.vocabulary if isinstance(task.form, Tokens) else 0
        if task.name == "listops" and vocabulary == len(SYMBOLS):
            # An operator opens the list of its arguments.
            return cls(vocabulary, tuple(range(OPERATOR, OPERATOR + len(OPERATIONS))), (CLOSE,))
        # Of your own texts, the pairs of brackets of which the alphabet has both.
        pairs = [pair for pair in PAIRS if set(pair) <= set(task.alphabet)]
        if not vocabulary or not pairs:
            raise InputError(
                f"--input counter: the symbols of task {task.name!r} have no pairs of brackets",
                "use another --input",
            )
        opening = tuple(task.alphabet.index(left) for left, _ in pairs)
        closing = tuple(task.alphabet.index(right) for _, right in pairs)
        return cls(vocabulary, opening, closing)

    @property
    def channels(self) -> int:
        """The number of channels that the counter uses: one for each symbol at each level."""
        return LEVELS * self.vocabulary


class BracketCounter(nn.Module):
    """The one-hot vector of each symbol at its level, level by level, with zeros up to the model's width.

    The level of a symbol is the number of brackets that are open there, from 1, up to `LEVELS`; an opening and a
    closing bracket are on the level that they enclose, and symbols outside of brackets on the first. ``gain`` is the
    value of the channel that is not zero.
    """

    special = 0, 0  # it adds no special tokens before and after those of the data
    steps: Tensor  # (vocabulary,): what each symbol adds to the number of open brackets, 1, -1 or 0

    def __init__(self, brackets: Brackets, width: int, gain: float) -> None:
        super().__init__()
        if width < brackets.channels:
            # The backbone ``kernels`` takes only multiples of the group size as its width, so it is rounded up.
            least_width = -(-brackets.channels // GROUP_SIZE) * GROUP_SIZE
            raise InputError(
                f"--input counter: {width} channels are fewer than {LEVELS} levels of {brackets.vocabulary} symbols",
                f"use --backbone kernels:width={least_width}",
            )
        self.brackets, self.width, self.gain = brackets, width, gain
        steps = torch.zeros(brackets.vocabulary, dtype=torch.int64)
        steps[list(brackets.opening)] = 1
        steps[list(brackets.closing)] = -1
        self.register_buffer("steps", steps)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols (batch, tokens) to (batch, tokens, width), zero but for the ``gain`` in one channel each."""
        step = self.steps[x.long()]
        is_closing = step < 0
        # The brackets that are open at each symbol. A closing one has lowered the running sum already, but is itself on
        # the level that it closes. Levels are numbered from 0, which is also that of symbols outside of brackets.
        level = (step.cumsum(dim=1) + is_closing - 1).clamp(0, LEVELS - 1)
        channel = level * self.brackets.vocabulary + x.long()
        hidden = torch.zeros(*x.shape, self.width, device=x.device)
        return hidden.scatter_(2, channel[:, :, None], self.gain)
