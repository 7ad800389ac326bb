"""Blocks whose tensors are read from their file when they are needed, so that a model need not fit into memory.

A model is loaded with a placeholder of a single value for each tensor of its blocks, and the loader puts the
placeholders where the tensors belong, whatever it renames. Then either all tensors are read, one at a time in the
precision that each will have, or the blocks are streamed: a block is read while the one before it runs, and its memory
is freed when the next one runs. For many batches, `reservoir.features` runs each block over all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones.stored import StoredTensor, is_finite
from reservoir.errors import InputError, as_input_error


class Deferred:
    """A tensor in whose place a model is loaded with a placeholder, which has its shape and a single value."""

    def __init__(self, stored: StoredTensor, dtype: torch.dtype) -> None:
        self.stored = stored
        self.placeholder = torch.zeros((), dtype=dtype).expand(stored.get_shape())

    def __getitem__(self, index: Any) -> Tensor:
        return self.placeholder[index]

    def get_dtype(self) -> str:
        """Return the name of the type of the stored tensor."""
        return self.stored.get_dtype()


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a block; it is empty, with the type and the device that the tensor will have."""

    title: str  # for messages
    path: str  # inside the block
    module: nn.Module
    name: str
    shape: torch.Size
    stored: StoredTensor

    @property
    def tensor(self) -> Tensor:
        """The parameter or buffer."""
        return getattr(self.module, self.name)

    def read(self, memory: "SpareMemory | None" = None) -> Tensor:
        """Return the values of the tensor, in its type and on its device; they may be pages of the file."""
        with as_input_error(f"{self.title} cannot be read", "use an intact checkpoint"):
            values = self.stored[...]
        if values.shape != self.shape:
            raise InputError(
                f"{self.title} has the shape {tuple(values.shape)}, and the model {tuple(self.shape)}",
                "use a matching checkpoint",
            )
        if not is_finite(values):
            raise InputError(f"{self.title} holds NaN or infinity", "get an intact checkpoint")
        is_as_stored = (values.device, values.dtype) == (self.tensor.device, self.tensor.dtype)
        if is_as_stored or memory is None:
            return values.to(self.tensor.device, self.tensor.dtype)
        return memory.take(self).copy_(values)

    def put(self, values: Tensor) -> None:
        """Fill the place."""
        self.tensor.data = values

    def clear(self) -> Tensor:
        """Empty the place, and return the values that were in it."""
        values = self.tensor.data
        self.tensor.data = values.new_empty(0)
        return values


class SpareMemory:
    """Tensors of blocks that have run, whose memory others use again.

    The allocator of the system would keep what two threads free by turns, several blocks of it.
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], list[Tensor]] = {}
        # Of the tensors that were made here; others may be pages of a file.
        self._addresses: set[int] = set()

    def take(self, slot: Slot) -> Tensor:
        """Return a tensor for the values of a slot, spare or new."""
        tensor = slot.tensor
        spare = self._tensors.get((slot.shape, tensor.dtype, tensor.device))
        if spare:
            return spare.pop()
        values = torch.empty(slot.shape, dtype=tensor.dtype, device=tensor.device)
        self._addresses.add(values.data_ptr())
        return values

    def give(self, values: Tensor) -> None:
        """Keep a tensor of `take` for other slots."""
        if values.data_ptr() in self._addresses:
            self._tensors.setdefault((values.shape, values.dtype, values.device), []).append(values)


def find_slots(
    blocks: nn.ModuleList, deferred: Mapping[str, Deferred], where: str
) -> list[list[Slot]] | None:
    """Return the emptied slots of each block; None if the loader computed a tensor from several, such as experts.

    ``where`` precedes the path of a tensor in messages.
    """
    # A placeholder is recognised by its memory.
    stored = {
        tensor.placeholder.untyped_storage().data_ptr(): tensor.stored for tensor in deferred.values()
    }
    slots: list[list[Slot]] = []
    for number, block in enumerate(blocks):
        slots.append([])
        for path, tensor in block.state_dict(keep_vars=True).items():
            source = stored.get(tensor.untyped_storage().data_ptr())
            if source is None:
                return None
            parent, _, name = path.rpartition(".")
            title = f"{where}.{number}.{path}"
            slots[-1].append(Slot(title, path, block.get_submodule(parent), name, tensor.shape, source))
    for slot in (slot for of_block in slots for slot in of_block):
        slot.clear()
    return slots


def fill(slots: Sequence[Sequence[Slot]]) -> None:
    """Read all tensors, one after the other."""
    all_slots = [slot for of_block in slots for slot in of_block]
    # The memory of rounded tensors is reserved before any is expanded, because what is expanded between them and freed
    # would leave gaps.
    memory = SpareMemory()
    reserved = [memory.take(slot) for slot in all_slots if slot.tensor.dtype != torch.float32]
    for tensor in reserved:
        memory.give(tensor)
    for slot in all_slots:
        slot.put(slot.read(memory))


class StreamedBlocks:
    """The blocks of a backbone, of which one or two are in memory: the one that runs, and the one that runs next.

    A block reads its tensors when it is called, so the backbone works as usual.
    """

    def __init__(self, blocks: nn.ModuleList, slots: Sequence[Sequence[Slot]]) -> None:
        self.slots = slots
        self._in_memory: int | None = None  # number of a block
        self._next: tuple[int, Future[list[Tensor]]] | None = None  # the block that the thread reads
        self._memory = SpareMemory()
        self._thread = ThreadPoolExecutor(1)
        for number, block in enumerate(blocks):
            block.forward = partial(self._run, number, block.forward)

    def readers(self) -> dict[str, Callable[[], Tensor]]:
        """Return a function for each tensor that reads it, by the number of the block and the path inside it."""
        return {
            f"{number}.{slot.path}": slot.read
            for number, of_block in enumerate(self.slots)
            for slot in of_block
        }

    def _run(self, number: int, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        """Return the output of a block, after its tensors have been read."""
        self._read(number)
        return forward(*inputs, **named)

    def _read(self, number: int) -> None:
        """Fill the slots of a block, empty those of the block before, and start to read the block after it."""
        if self._in_memory == number:
            return
        if self._in_memory is not None:
            for slot in self.slots[self._in_memory]:
                self._memory.give(slot.clear())
        self._in_memory = None
        # Another thread reads in any case, because tensors that are made in inference mode cannot be parameters.
        is_expected = self._next is not None and self._next[0] == number
        future = self._next[1] if self._next and is_expected else self._submit(number)
        for slot, values in zip(self.slots[number], future.result(), strict=True):
            slot.put(values)
        self._in_memory = number
        following = (number + 1) % len(self.slots)
        self._next = (following, self._submit(following))

    def _submit(self, number: int) -> "Future[list[Tensor]]":
        return self._thread.submit(lambda: [slot.read(self._memory) for slot in self.slots[number]])
