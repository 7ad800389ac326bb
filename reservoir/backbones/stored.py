"""The tensors of model folders, which are read when they are indexed, and their digest as they are stored.

A file is opened without reading it, so a tensor that nobody needs costs nothing.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
"""Files with weights: a single one, or its parts."""


class StoredTensor(Protocol):
    """A tensor that is read when it is indexed, as a slice of safetensors is."""

    def __getitem__(self, index: Any) -> Tensor: ...

    def get_shape(self) -> list[int]:
        """Return the shape of what indexing returns."""
        ...

    def get_dtype(self) -> str:
        """Return the name of the type, such as ``BF16``."""
        ...


class Quantised(Protocol):
    """A stored tensor that is expanded when it is indexed."""

    def stored_parts(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the parts as they are stored: name with type and shape, and a function that reads the bytes."""
        ...


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model folder by their names, as they are stored; none is read.

    No other file and no index is read, since these may name further files.
    """
    from safetensors import safe_open

    single_pattern, parts_pattern = WEIGHTS
    # The single file comes first, as in transformers.
    paths = sorted(folder.glob(single_pattern)) or sorted(folder.glob(parts_pattern))
    if not paths:
        raise ValueError(f"the folder has no {' or '.join(WEIGHTS)}")
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        file = safe_open(path, framework="pt")
        tensors_of_file = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        # The parts of two models, such as an older one, would become a mixture of both.
        if repeated := sorted(tensors.keys() & tensors_of_file.keys()):
            raise ValueError(
                f"{path.name} and another file have the tensor {repeated[0]}; remove the older one"
            )
        tensors |= tensors_of_file
    return tensors


def common_half(tensors: Iterable[StoredTensor]) -> torch.dtype:
    """Return the half precision in which all tensors are stored, or float32 if their types differ or are others."""
    type_names = {tensor.get_dtype() for tensor in tensors}
    if type_names == {"BF16"}:
        return torch.bfloat16
    if type_names == {"F16"}:
        return torch.float16
    return torch.float32


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, without the copies that `torch.isfinite` makes of them."""
    if values.numel() == 0:  # torch has no minimum of no values
        return True
    # Both bounds are NaN if any value is NaN.
    smallest, largest = torch.aminmax(values)
    return bool(torch.isfinite(smallest)) and bool(torch.isfinite(largest))


def stored_digest(rule: str, tensors: Iterable[Quantised]) -> str:
    """Return the SHA-256 of a rule and of tensors as they are stored: names, types, shapes and bytes."""
    digest = hashlib.sha256(rule.encode())
    # By name, so that the order of the tensors in the file does not count.
    parts = [part for tensor in tensors for part in tensor.stored_parts()]
    for header, read_bytes in sorted(parts, key=itemgetter(0)):
        digest.update(header.encode())
        digest.update(read_bytes())
    return digest.hexdigest()


def _stored_part(name: str, tensor: StoredTensor) -> tuple[str, Callable[[], Any]]:
    """Return the name of a slice of safetensors with its type and shape, and a function that reads its bytes."""

    def read_bytes() -> Any:
        """Return a buffer with the bytes of the tensor's values."""
        values = tensor[...].contiguous().view(-1)
        return values.view(torch.uint8).numpy().data

    return f"{name} {tensor.get_dtype()} {tuple(tensor.get_shape())}", read_bytes


class PlainTensor:
    """A tensor of a quantised model that is not quantised, such as a norm; ``name`` is its name in the file."""

    def __init__(self, name: str, tensor: StoredTensor) -> None:
        self.name = name
        self.tensor = tensor

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor[index]

    def get_shape(self) -> list[int]:
        """Return the shape of what indexing returns."""
        return list(self.tensor.get_shape())

    def get_dtype(self) -> str:
        """Return the name of the type, such as ``BF16``."""
        return self.tensor.get_dtype()

    def stored_parts(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the tensor as its only part: name with type and shape, and a function that reads the bytes."""
        yield _stored_part(self.name, self.tensor)


class ExpandedTensor(ABC):
    """A tensor in float32 that is computed from its stored parts when it is indexed."""

    def __init__(self, parts: Mapping[str, StoredTensor]) -> None:
        self.parts = parts  # by their names in the file

    @abstractmethod
    def values(self) -> Tensor:
        """Return all values, float32, in the shape that the model has."""

    @abstractmethod
    def get_shape(self) -> list[int]:
        """Return the shape of the values, without computing them."""

    def __getitem__(self, index: Any) -> Tensor:
        return self.values()[index]

    def get_dtype(self) -> str:
        """Return the name of the type of the values, float32."""
        return "F32"

    def stored_parts(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the parts as they are stored: name with type and shape, and a function that reads the bytes."""
        for name, tensor in self.parts.items():
            yield _stored_part(name, tensor)


class QuantisedMatrix(ExpandedTensor):
    """A matrix of a linear map whose parts have a common path and different endings.

    Parameters
    ----------
    path : str
        Path of the linear map, such as ``model.layers.0.mlp.up_proj``.
    parts : mapping of str to stored tensor
        The parts by the ending that follows the path, such as ``.qweight``.
    settings : mapping
        How the weights are quantised, from config.json.
    is_transposed : bool
        Whether the model has the matrix as (inputs, outputs), as GPT-2 does.
    """

    marker: str
    """Ending of the part by which such a matrix is recognised, such as ``.qweight``."""

    marker_type: str
    """Type of that part, such as ``I32``; in another kind of matrix, a part of this ending has another type."""

    others: tuple[str, ...]
    """Endings of the other parts, some of which may be missing."""

    def __init__(
        self,
        path: str,
        parts: Mapping[str, StoredTensor],
        settings: Mapping[str, Any],
        *,
        is_transposed: bool,
    ) -> None:
        super().__init__({f"{path}{ending}": tensor for ending, tensor in parts.items()})
        self.path = path
        self.settings = settings
        self.is_transposed = is_transposed
        self._parts_by_ending = parts

    @abstractmethod
    def matrix(self) -> Tensor:
        """Return the matrix (outputs, inputs), float32."""

    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and inputs; raise `ValueError` if the shapes of the parts do not agree."""

    def values(self) -> Tensor:
        """Return the matrix, float32, with the axes that the model has."""
        return self.matrix().T if self.is_transposed else self.matrix()

    def get_shape(self) -> list[int]:
        """Return the shape of `values`, without computing them."""
        outputs, inputs = self.shape()
        return [inputs, outputs] if self.is_transposed else [outputs, inputs]

    def part(self, ending: str) -> StoredTensor:
        """Return the part with an ending; raise `ValueError` if there is none."""
        if not self.has(ending):
            raise ValueError(f"weight {self.path[:100]} has no {ending.lstrip('.')}")
        return self._parts_by_ending[ending]

    def has(self, ending: str) -> bool:
        """Return whether there is a part with an ending."""
        return ending in self._parts_by_ending

    def shape_of(self, ending: str, dimensions: int = 2) -> tuple[int, ...]:
        """Return the shape of a part; raise `ValueError` unless it has this number of dimensions, none of them 0."""
        shape = tuple(self.part(ending).get_shape())
        if len(shape) != dimensions or 0 in shape:
            raise self.misfit(ending)
        return shape

    def misfit(self, ending: str) -> ValueError:
        """Return the error for a part whose shape does not fit the others; the caller raises it."""
        shape = tuple(self.part(ending).get_shape())
        return ValueError(
            f"{self.path[:100]}{ending} has the shape {shape}, which does not fit its other parts"
        )


def find_matrices(
    kind: type[QuantisedMatrix],
    tensors: Mapping[str, StoredTensor],
    settings: Mapping[str, Any],
    *,
    is_transposed: bool,
) -> dict[str, QuantisedMatrix]:
    """Return the matrices of a kind among stored tensors, by their names in the model.

    The other arguments are those of `QuantisedMatrix`.
    """
    matrices: dict[str, QuantisedMatrix] = {}
    for name, tensor in tensors.items():
        is_of_kind = name.endswith(kind.marker) and tensor.get_dtype() == kind.marker_type
        if not is_of_kind:
            continue
        path = name.removesuffix(kind.marker)
        parts = {
            ending: tensors[path + ending]
            for ending in (kind.marker, *kind.others)
            if path + ending in tensors
        }
        matrices[f"{path}.weight"] = kind(path, parts, settings, is_transposed=is_transposed)
    return matrices
