"""The weights of a ViT or DINOv2 in an ONNX file that torch exported.

Exporters fold constants: the matrix of a product is stored transposed and without its name, and interpolated positions
are stored in two pieces. Such tensors are found by their position in the graph, which is never run.
"""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from reservoir.errors import InputError, as_input_error

PATCHES = "embeddings.patch_embeddings.projection.weight"
POSITIONS = "embeddings.position_embeddings"
QUERIES = ("query.bias", "q_proj.bias")


def read_onnx(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], list[str]]:
    """Return the configuration and tensors of a ViT or DINOv2, named as in transformers, and names of other tensors."""
    with as_input_error(f"{path}: ONNX files need onnx", "run pip install 'reservoir-features[onnx]'"):
        import onnx
    # Weights that an ONNX file keeps in another file (its external data) are refused.
    with as_input_error(f"{path}: not a readable ONNX file", "re-export the model"):
        return _read_graph(path, _Graph(onnx.load(path, load_external_data=False).graph))


def _read_graph(path: Path, graph: "_Graph") -> tuple[dict[str, Any], dict[str, np.ndarray], list[str]]:
    start = next((name.removesuffix(PATCHES) for name in graph.tensors if name.endswith(PATCHES)), None)
    if start is None:
        raise InputError(f"{path}: no tensor is named ...{PATCHES}; export a ViT or DINOv2 of transformers")
    named = graph.tensors | graph.folded()
    tensors = {name.removeprefix(start): values for name, values in named.items() if name.startswith(start)}
    if POSITIONS not in tensors:  # an exporter may have split the positions of class token and patches into two tensors
        width = tensors[PATCHES].shape[0]
        free = [values for name, values in graph.tensors.items() if "." not in name and values.ndim == 3]
        first = [values for values in free if values.shape == (1, 1, width)]
        rest = [values for values in free if values.shape[1] > 1 and values.shape[::2] == (1, width)]
        if len(first) > 1 or len(rest) != 1:
            raise InputError(f"{path}: no tensor is named ...{POSITIONS}, and none has its shape; re-export the model")
        tensors[POSITIONS] = np.concatenate([*first, *rest], axis=1)
    others = [name for name in graph.tensors if "." in name and not name.startswith(start)]
    return _config(path, graph, tensors), tensors, others


def _to_array(tensor: Any) -> np.ndarray:
    """Return the values of a tensor; refuse a tensor that is stored in another file."""
    from onnx import TensorProto, numpy_helper

    # `to_array` would open the named file, relative to the current folder.
    if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL:
        raise ValueError("its weights are in another file, which is not opened; save them into one file")
    return numpy_helper.to_array(tensor)


class _Graph:
    """The tensors and constants of an ONNX graph, and the node that computes each value."""

    def __init__(self, graph: Any) -> None:
        self.tensors = {tensor.name: _to_array(tensor) for tensor in graph.initializer}
        self._number = {
            node.output[0]: _to_array(attribute.t)
            for node in graph.node
            for attribute in node.attribute
            if node.op_type == "Constant" and attribute.name == "value"
        } | self.tensors
        self._nodes = list(graph.node)
        self._makes = {output: node for node in self._nodes for output in node.output}

    def folded(self) -> dict[str, np.ndarray]:
        """Return the unnamed matrices, with names made from those of the biases that are added to their products."""
        found = {}
        for node in self._nodes:
            bias = next((name for name in node.input if name.endswith(".bias")), "")
            for name in node.input if node.op_type == "Add" and bias else ():
                product = self._makes.get(name)
                if product is not None and product.op_type == "MatMul" and product.input[1] in self.tensors:
                    found[f"{bias.removesuffix('bias')}weight"] = self.tensors[product.input[1]].T
        return found

    def heads(self, width: int) -> int | None:
        """Return the number of attention heads, from the last two sizes in the reshape of the queries."""
        for node in self._nodes:
            made = self._makes.get(node.input[0]) if node.op_type == "Reshape" else None
            if made is not None and any(name.endswith(QUERIES) for name in made.input):
                heads, each = [None, None, *self._sizes(node.input[1])][-2:]
                return heads if heads != -1 else each and width // each
        return None

    def epsilon(self) -> float:
        """Return the epsilon of the layer norms."""
        for node in self._nodes:
            if node.op_type == "LayerNormalization":
                return next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
            made = self._makes.get(node.input[0]) if node.op_type == "Sqrt" else None
            for name in made.input if made is not None and made.op_type == "Add" else ():
                if name in self._number and self._number[name].size == 1:
                    return float(f"{float(self._number[name].ravel()[0]):.6g}")
        return 1e-6

    def _sizes(self, name: str) -> list[int | None]:
        """Return a shape, with None for sizes that depend on the input."""
        if name in self._number:
            return self._number[name].ravel().tolist()
        node = self._makes.get(name)
        if node is not None and node.op_type in ("Concat", "Unsqueeze", "Cast"):
            parts = node.input if node.op_type == "Concat" else node.input[:1]
            return [size for part in parts for size in self._sizes(part)]
        return [None]


def _config(path: Path, graph: _Graph, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    width, channels, patch = tensors[PATCHES].shape[:3]
    heads = graph.heads(width)
    if not heads:
        raise InputError(f"{path}: its graph does not show the number of attention heads; re-export the model")
    numbers = [int(found[1]) for name in tensors if (found := re.match(r"(?:encoder\.)?layers?\.(\d+)\.", name))]
    shared = {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": patch,
        "image_size": math.isqrt(tensors[POSITIONS].shape[1] - 1) * patch,
        "num_hidden_layers": max(numbers, default=-1) + 1,
        "num_attention_heads": heads,
        "layer_norm_eps": graph.epsilon(),
        "qkv_bias": any(name.endswith(QUERIES) for name in tensors),
    }
    ends = (".fc1.weight", ".intermediate.dense.weight")
    inner = next((len(values) for name, values in tensors.items() if name.endswith(ends)), 0)
    if not any("layer_scale1" in name for name in tensors):
        return {"model_type": "vit", "architectures": ["ViTModel"], "intermediate_size": inner} | shared
    gated = any(".weights_in." in name or ".gate_proj." in name for name in tensors)
    ratio = {"use_swiglu_ffn": True} if gated else {"mlp_ratio": inner // width}
    more = {"use_mask_token": "embeddings.mask_token" in tensors}
    return {"model_type": "dinov2", "architectures": ["Dinov2Model"]} | shared | ratio | more
