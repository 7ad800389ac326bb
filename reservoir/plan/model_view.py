"""How a model sees a task: its family and sizes, its tokenizer, and the sequences in its own tokens."""

from dataclasses import dataclass, replace

from reservoir.backbones import find_shape
from reservoir.backbones.family import Family
from reservoir.inputs.native import Reader, open_reader
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task


@dataclass(frozen=True)
class ModelView:
    """A task as a model sees it, without the model's weights."""

    family: Family
    width: int  # of hidden states
    depth: int  # number of blocks
    reader: Reader | None  # of native input
    seen: Task  # with windows or the reader's tokens as tokens
    pieces: int  # most pieces of a row, if long texts are read in pieces

    @property
    def native(self) -> bool:
        """Whether the model reads the task by its own input."""
        return self.reader is not None

    @classmethod
    def of(cls, task: Task, reservoir: Reservoir) -> "ModelView":
        """Return the view of a task; raise `InputError` if the model cannot read it."""
        family, shape = find_shape(reservoir.backbone, reservoir.depth)
        seen = reservoir.windowed(task)
        reader = None
        if reservoir.input == "native":
            reader = open_reader(seen, reservoir.backbone, reservoir.init)
            seen = replace(seen, form=reader.form, max_tokens=reader.max_tokens)
        pieces = -(-task.max_tokens // seen.max_tokens) if reservoir.long == "windows" else 1
        return cls(family, shape.width, shape.depth, reader, seen, pieces)
