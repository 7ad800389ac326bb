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
    named: Mapping[str, Any]
    by_name: bool  # whether the hidden states are the argument ``hidden_states``


def run_block(
    block: nn.Module, hidden: Tensor, inputs: tuple[Any, ...], named: Mapping[str, Any], by_name: bool
) -> Any:
    """Return the output of a block; the arguments are the hidden states and the fields of `BlockCall`."""
    if by_name:
        return block(*inputs, hidden_states=hidden, **named)
    return block(hidden, *inputs, **named)


class _AllNotedError(Exception):
    """Ends the pass of a model when all calls that the loop needs are noted."""


class BlockLoop:
    """The forward pass of one batch, block by block.

    Parameters
    ----------
    run : callable
        Runs the model on the batch and returns its last hidden states (batch, tokens, width).
    blocks : Sequence of Module
        All blocks of the model, which calls each once and in this order.
    count : int
        How many of them are needed.
    precision : context manager
        In which the model and each block run.
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
        self._blocks, self._count = blocks, count
        self._precision, self._step = precision, step
        self._calls: list[BlockCall] = []  # of all blocks but the first
        # Of the block that ran last: what it returned, and what enters the block after it, which is the same tensor
        # unless the model changes the output of its first block.
        self._output: Any = None
        self._hidden: Tensor | None = None
        self._embed = self._note_calls(run)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the input of the first block (batch, tokens, width), then the output of each needed block.

        All blocks but the first run when their output is taken. So the hidden states of few layers are in memory, and
        several loops can take turns.
        """
        yield self._embed
        del self._embed
        if not self._count:
            return
        yield hidden_of(self._output)
        for call in self._calls[: self._count - 1]:
            assert self._hidden is not None
            with self._precision:
                self._output = self._run(call, self._hidden)
            self._hidden = hidden_of(self._output)
            yield self._hidden

    def run_rest(self, run: Callable[[], Tensor]) -> Tensor:
        """Run what a model has after its blocks, all of which have run, by running it with their output."""
        with _replaced(self._blocks, lambda *_, **__: self._output):
            return run()

    def _note_calls(self, run: Callable[[], Tensor]) -> Tensor:
        """Run the model and its first block, note how it calls the others, and return what enters the first."""
        embed: list[Tensor] = []
        traced = torch.compiler.is_compiling()  # the tracer follows modules until they return
        own_forward = vars(self._blocks[0]).get("forward")

        def note(number: int, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            call, hidden = _split(self._blocks[number], inputs, named)
            if number == 0:
                embed.append(hidden)
                if traced:
                    self._output = forward(*inputs, **named)
                elif self._count:
                    _set_forward(call.block, own_forward)
                    self._output = self._run(call, hidden)
            else:
                self._calls.append(call)
                if number == 1:
                    self._hidden = hidden
            if number + 1 >= self._count and not traced:
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
        """Return the output of a block."""
        return self._step(call.block, hidden, call.inputs, call.named, call.by_name)


def hidden_of(output: Any) -> Tensor:
    """Return the hidden states that a block returns, alone or first in a tuple or a list."""
    return output[0] if isinstance(output, tuple | list) else output


def _split(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[BlockCall, Tensor]:
    """Return how a block is called, and the hidden states with which it is called."""
    if inputs:
        return BlockCall(block, inputs[1:], named, by_name=False), inputs[0]
    others = {name: value for name, value in named.items() if name != "hidden_states"}
    return BlockCall(block, (), others, by_name=True), named["hidden_states"]


@contextmanager
def _replaced(blocks: Sequence[nn.Module], function: Callable[..., Any]) -> Iterator[None]:
    """Have blocks call ``function(number, forward, ...)`` in place of their ``forward``."""
    own_forwards = [vars(block).get("forward") for block in blocks]
    for number, block in enumerate(blocks):
        vars(block)["forward"] = partial(function, number, block.forward)
    try:
        yield
    finally:
        for block, forward in zip(blocks, own_forwards, strict=True):
            _set_forward(block, forward)


def _set_forward(block: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Give a block its own ``forward``, as streamed ones have, or with None that of its class."""
    if forward is None:
        vars(block).pop("forward", None)
    else:
        vars(block)["forward"] = forward
