"""A forward pass as a loop over the blocks of a model, which yields the hidden states of each layer as they appear.

The code of a model, often that of transformers, prepares what its blocks get besides hidden states: masks, rotary
positions or biases. So the model runs once, its first block included, while all other blocks only note how they are
called. Then the loop calls each of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class BlockCall:
    """How a model calls a block, apart from the hidden states."""

    block: nn.Module
    inputs: tuple[Any, ...]  # positional arguments after the hidden states
    named: Mapping[str, Any]  # keyword arguments other than the hidden states
    passes_hidden_by_name: bool  # whether the hidden states are the keyword argument ``hidden_states``


def run_block(
    block: nn.Module,
    hidden: Tensor,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    passes_hidden_by_name: bool,
) -> Any:
    """Return the output of a block; the arguments are the hidden states and the fields of `BlockCall`."""
    if passes_hidden_by_name:
        return block(*inputs, hidden_states=hidden, **named)
    return block(hidden, *inputs, **named)


class _AllNotedError(Exception):
    """Ends the pass of a model when all calls that the loop needs are noted."""


class BlockLoop:
    """The forward pass of one batch, block by block.

    The constructor already runs the model with its first block, and notes how the model calls the others.

    Parameters
    ----------
    run : callable
        Runs the model on the batch and returns its last hidden states (batch, tokens, width).
    blocks : Sequence of Module
        All blocks of the model, which calls each once and in this order.
    count : int
        How many of them are needed, the first ones.
    precision : context manager
        The context in which the model and each block run.
    step : callable
        `run_block`, or its compiled form.
    """

    def __init__(
        self,
        run: Callable[[], Tensor],
        blocks: Sequence[nn.Module],
        count: int,
        precision: AbstractContextManager[Any],
        step: Callable[..., Any] = run_block,
    ) -> None:
        self._blocks = blocks
        self._count = count
        self._precision = precision
        self._step = step
        self._calls: list[BlockCall] = []  # of all needed blocks but the first
        self._output: Any = None  # what the block that ran last returned
        # What enters the next block: the hidden states in that output, unless the model changes those of its first
        # block. None if there is no second block.
        self._next_input: Tensor | None = None
        self._embed = self._note_calls(run)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the input of the first block (batch, tokens, width), then the output of each needed block.

        All blocks but the first run when their output is taken. So the hidden states of few layers are in memory, and
        several loops can take turns.
        """
        yield self._embed
        del self._embed  # its memory is needed
        if not self._count:
            return
        yield hidden_of(self._output)  # the first block ran when calls were noted
        for call in self._calls[: self._count - 1]:
            assert self._next_input is not None
            with self._precision:
                self._output = self._run(call, self._next_input)
            self._next_input = hidden_of(self._output)
            yield self._next_input

    def run_rest(self, run: Callable[[], Tensor]) -> Tensor:
        """Return the last hidden states of the model, after all of its blocks have run.

        ``run`` is that of the constructor. Each block returns the output of the last one in place of its own, so only
        what the model has after its blocks changes it.
        """
        with _replaced(self._blocks, lambda *_, **__: self._output):
            return run()

    def _note_calls(self, run: Callable[[], Tensor]) -> Tensor:
        """Run the model and its first block, note how it calls the others, and return what enters the first."""
        embed: list[Tensor] = []  # what enters the first block, as soon as the model has called it
        # torch's tracer follows modules until they return, so under it the pass does not end with an exception.
        is_traced = torch.compiler.is_compiling()
        first_forward = vars(self._blocks[0]).get("forward")

        def note(number: int, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            """Note a call of the block ``number``, whose own method is ``forward``, and return an output for it."""
            call, hidden = _split(self._blocks[number], inputs, named)
            if number == 0:
                embed.append(hidden)
                if is_traced:
                    self._output = forward(*inputs, **named)
                elif self._count:
                    # Its ``forward`` is restored before: otherwise the block would call this function again.
                    _set_forward(call.block, first_forward)
                    self._output = self._run(call, hidden)
            else:
                self._calls.append(call)
                if number == 1:
                    self._next_input = hidden
            if number + 1 >= self._count and not is_traced:
                raise _AllNotedError
            # Any output in the form that the model expects will do. The model may pass parts of it on, such as the
            # position biases that the first block of a T5 computes for all.
            return self._output

        try:
            with self._precision, _replaced(self._blocks, note):
                run()
        except _AllNotedError:
            pass
        if not embed or len(self._calls) < self._count - 1:
            raise ValueError("the model does not call its blocks one after the other")
        return embed[0]

    def _run(self, call: BlockCall, hidden: Tensor) -> Any:
        """Return the output of a block for hidden states."""
        return self._step(call.block, hidden, call.inputs, call.named, call.passes_hidden_by_name)


def hidden_of(output: Any) -> Tensor:
    """Return the hidden states that a block returns, alone or first in a tuple or a list."""
    return output[0] if isinstance(output, tuple | list) else output


def _split(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[BlockCall, Tensor]:
    """Return how a block is called, and the hidden states with which it is called.

    They are its first positional argument, or, without any, the keyword argument ``hidden_states``.
    """
    if inputs:
        return BlockCall(block, inputs[1:], named, passes_hidden_by_name=False), inputs[0]
    others = {name: value for name, value in named.items() if name != "hidden_states"}
    return BlockCall(block, (), others, passes_hidden_by_name=True), named["hidden_states"]


@contextmanager
def _replaced(blocks: Sequence[nn.Module], function: Callable[..., Any]) -> Iterator[None]:
    """Have blocks call ``function(number, forward, ...)`` in place of their ``forward`` within the context.

    ``number`` is that of the block, from 0; the arguments of the call follow ``forward``.
    """
    # None for a block with the method of its class. Streamed blocks have one of their own.
    own_forwards = [vars(block).get("forward") for block in blocks]
    for number, block in enumerate(blocks):
        vars(block)["forward"] = partial(function, number, block.forward)
    try:
        yield
    finally:
        for block, forward in zip(blocks, own_forwards, strict=True):
            _set_forward(block, forward)


def _set_forward(block: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Give a block a ``forward`` of its own, or with None that of its class again."""
    if forward is None:
        vars(block).pop("forward", None)
    else:
        vars(block)["forward"] = forward
