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
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from reservoir.backbones.stored import StoredTensor, is_finite
from reservoir.errors import InputError, as_input_error


class Deferred:
    """A stored tensor that is read later, with the placeholder in whose place a model is loaded.

    It is used like the stored tensor: indexing it returns the placeholder's values.
    """

    def __init__(self, stored: StoredTensor, dtype: torch.dtype) -> None:
        self.stored = stored
        # A tensor of this shape all of whose elements are one value in memory.
        self.placeholder = torch.zeros((), dtype=dtype).expand(stored.get_shape())

    def __getitem__(self, index: Any) -> Tensor:
        return self.placeholder[index]

    def get_dtype(self) -> str:
        """Return the name of the type of the stored tensor."""
        return self.stored.get_dtype()


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a block; it is empty, with the type and the device that the tensor will have."""

    title: str  # the tensor in the words of messages
    path: str  # of the tensor inside the block
    module: nn.Module  # the module that has the tensor
    name: str  # of the tensor in this module
    shape: torch.Size  # of its values
    stored: StoredTensor  # the values in the file

    @property
    def tensor(self) -> Tensor:
        """The parameter or buffer, without elements while the slot is empty."""
        return getattr(self.module, self.name)

    def read(self, memory: "SpareMemory | None" = None) -> Tensor:
        """Return the values of the tensor, in its type and on its device; the slot stays empty.

        Values that are stored in this type may be pages of the file. Others are in a tensor of ``memory``, or without
        it in a new one.
        """
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
            return values.to(self.tensor.device, self.tensor.dtype)  # the same tensor if it is as stored
        return memory.take(self).copy_(values)

    def put(self, values: Tensor) -> None:
        """Fill the slot with values of its type and on its device."""
        self.tensor.data = values

    def clear(self) -> Tensor:
        """Empty the slot, and return the values that were in it."""
        values = self.tensor.data
        self.tensor.data = values.new_empty(0)
        return values


class SpareMemory:
    """Tensors of blocks that have run, whose memory others use again.

    Without it, the memory of several blocks would stay reserved: one thread allocates it and another one frees it, and
    the allocator of the system returns such memory late.
    """

    def __init__(self) -> None:
        # The tensors that are free, by shape, type and device.
        self._spare: dict[tuple[torch.Size, torch.dtype, torch.device], list[Tensor]] = {}
        # The addresses of all tensors that were made here; other tensors may be pages of a file.
        self._addresses: set[int] = set()

    def take(self, slot: Slot) -> Tensor:
        """Return a tensor for the values of a slot, spare or new; its values are arbitrary."""
        tensor = slot.tensor
        spare = self._spare.get((slot.shape, tensor.dtype, tensor.device))
        if spare:
            return spare.pop()
        values = torch.empty(slot.shape, dtype=tensor.dtype, device=tensor.device)
        self._addresses.add(values.data_ptr())
        return values

    def give(self, values: Tensor) -> None:
        """Keep a tensor for other slots; one that `take` did not make is left out."""
        if values.data_ptr() in self._addresses:
            self._spare.setdefault((values.shape, values.dtype, values.device), []).append(values)


def find_slots(
    blocks: nn.ModuleList, deferred: Mapping[str, Deferred], where: str
) -> list[list[Slot]] | None:
    """Find the placeholders in the blocks of a model, remove them, and return their slots by block.

    Return None if the loader computed a tensor from several, such as one of all experts, so that it is no placeholder.
    ``where`` precedes the path of a tensor in messages.
    """
    # A placeholder keeps its memory when the loader renames it or makes it a parameter, so its address tells it.
    stored_by_address = {
        tensor.placeholder.untyped_storage().data_ptr(): tensor.stored for tensor in deferred.values()
    }
    slots: list[list[Slot]] = []
    for number, block in enumerate(blocks):
        slots_of_block: list[Slot] = []
        for path, tensor in block.state_dict(keep_vars=True).items():
            stored = stored_by_address.get(tensor.untyped_storage().data_ptr())
            if stored is None:
                return None
            parent_path, _, name = path.rpartition(".")
            slot = Slot(
                title=f"{where}.{number}.{path}",
                path=path,
                module=block.get_submodule(parent_path),
                name=name,
                shape=tensor.shape,
                stored=stored,
            )
            slots_of_block.append(slot)
        slots.append(slots_of_block)
    # Only now, so that the model stays as it was if there are no slots.
    for slot in chain.from_iterable(slots):
        slot.clear()
    return slots


def fill(slots: Sequence[Sequence[Slot]]) -> None:
    """Read the tensors of all slots of all blocks, one after the other, and fill the slots."""
    all_slots = list(chain.from_iterable(slots))
    # The memory of rounded tensors is reserved before any is expanded: the float32 values of a tensor, which are freed
    # when it has been rounded, would otherwise leave gaps between them.
    memory = SpareMemory()
    reserved = [memory.take(slot) for slot in all_slots if slot.tensor.dtype != torch.float32]
    for tensor in reserved:
        memory.give(tensor)  # `Slot.read` takes it again
    for slot in all_slots:
        slot.put(slot.read(memory))


class StreamedBlocks:
    """The blocks of a backbone, of which one or two are in memory: the one that runs, and the one that runs next.

    A block reads its tensors when it is called, so the backbone works as usual.
    """

    def __init__(self, blocks: nn.ModuleList, slots: Sequence[Sequence[Slot]]) -> None:
        self.slots = slots  # by block
        self._in_memory: int | None = None  # number of the block whose slots are filled
        # Number and values of the block that the thread reads, or has read; None before the first one.
        self._next: tuple[int, Future[list[Tensor]]] | None = None
        self._memory = SpareMemory()
        self._thread = ThreadPoolExecutor(1)
        for number, block in enumerate(blocks):
            block.forward = partial(self._run, number, block.forward)

    def readers(self) -> dict[str, Callable[[], Tensor]]:
        """Return a function for each tensor that reads it, by the number of the block and the path inside it."""
        return {
            f"{number}.{slot.path}": slot.read
            for number, slots_of_block in enumerate(self.slots)
            for slot in slots_of_block
        }

    def _run(self, number: int, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        """Return the output of a block, after its tensors have been read."""
        self._fill(number)
        return forward(*inputs, **named)

    def _fill(self, number: int) -> None:
        """Fill the slots of a block, empty those of the block before, and start to read the block after it."""
        if self._in_memory == number:
            return
        if self._in_memory is not None:
            for slot in self.slots[self._in_memory]:
                self._memory.give(slot.clear())
        self._in_memory = None  # also if reading raises an error
        # Blocks usually run in order, and the thread has started with this one. Otherwise it reads the block now. The
        # calling thread does not, because tensors that are made in inference mode cannot be parameters.
        if self._next is not None and self._next[0] == number:
            values_of_block = self._next[1]
        else:
            values_of_block = self._start_reading(number)
        for slot, values in zip(self.slots[number], values_of_block.result(), strict=True):
            slot.put(values)
        self._in_memory = number
        following = (number + 1) % len(self.slots)  # after the last block, the first one of the next batch
        self._next = (following, self._start_reading(following))

    def _start_reading(self, number: int) -> "Future[list[Tensor]]":
        """Have the thread read the tensors of a block, in the order of its slots."""
        return self._thread.submit(lambda: [slot.read(self._memory) for slot in self.slots[number]])
