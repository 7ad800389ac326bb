"""The weights of a ViT or DINOv2 in an ONNX file that torch exported.

Exporters fold constants: the matrix of a product is stored transposed and without its name, and
interpolated positions are stored in two pieces. Such tensors are found by their position in the
graph, which is never run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from reservoir.errors import as_input_error

PATCHES = "embeddings.patch_embeddings.projection.weight"
POSITIONS = "embeddings.position_embeddings"


def read_onnx(path: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the tensors of a ViT or DINOv2, named as in transformers, and the names of other tensors."""
    with as_input_error(f"{path}: ONNX files need onnx", "run pip install 'reservoir-features[onnx]'"):
        import onnx
    with as_input_error(f"{path}: not a readable ONNX file", "re-export the model"):
        return _read_graph(onnx.load(path, load_external_data=False).graph)


def _read_graph(graph: Any) -> tuple[dict[str, torch.Tensor], list[str]]:
    stored = {tensor.name: _to_array(tensor) for tensor in graph.initializer}
    start = next((name.removesuffix(PATCHES) for name in stored if name.endswith(PATCHES)), None)
    if start is None:
        raise ValueError(f"no tensor is named ...{PATCHES}, as in a ViT or DINOv2 of transformers")
    named = stored | _unnamed_matrices(list(graph.node), stored)
    tensors = {name.removeprefix(start): values for name, values in named.items() if name.startswith(start)}
    if POSITIONS not in tensors:  # exporters may split off the class token's
        width = len(tensors[PATCHES])
        free = [
            values for name, values in stored.items() if "." not in name and values.shape[::2] == (1, width)
        ]
        first = [values for values in free if values.shape[1] == 1]
        rest = [values for values in free if values.shape[1] > 1]
        if len(first) > 1 or len(rest) != 1:
            raise ValueError(f"no tensor is named ...{POSITIONS}, and none has its shape")
        tensors[POSITIONS] = np.concatenate([*first, *rest], axis=1)
    left_out = [name for name in stored if "." in name and not name.startswith(start)]
    return {name: torch.tensor(values).contiguous() for name, values in tensors.items()}, left_out


def _to_array(tensor: Any) -> np.ndarray:
    """Return the values of a tensor; refuse a tensor that is stored in another file."""
    from onnx import TensorProto, numpy_helper

    # `to_array` would open the named file, relative to the current folder.
    if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL:
        raise ValueError("its weights are in another file, which is not opened; save them into one file")
    return numpy_helper.to_array(tensor)


def _unnamed_matrices(nodes: list[Any], stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the unnamed matrices, with names made from those of the biases that are added to their products."""
    products = {node.output[0]: node.input[1] for node in nodes if node.op_type == "MatMul"}
    found = {}
    for node in nodes:
        bias = next((name for name in node.input if name.endswith(".bias")), "")
        for name in node.input if node.op_type == "Add" and bias else ():
            if products.get(name) in stored:
                found[f"{bias.removesuffix('bias')}weight"] = stored[products[name]].T
    return found
