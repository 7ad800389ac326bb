"""The stage ``import_backbone``: convert weights in other formats to a model folder for ``--backbone``."""

import shutil
import zipfile
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from reservoir_cache import new_folder

from reservoir.errors import InputError, as_input_error
from reservoir_pipelines.files import save_tensors
from reservoir_pipelines.output import Record

COPIED = (
    *(
        "config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ),
    *("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "added_tokens.json"),
)
"""Files of a model folder that are copied; none of them holds code."""


@dataclass(frozen=True, kw_only=True)
class Imported(Record):
    """Result of `import_backbone`: the new folder, its family and tensors, and notes."""

    folder: Path
    family: str
    tensors: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def import_backbone(source: str | PathLike[str], out: str | PathLike[str]) -> Imported:
    """Convert the weights in a file or folder to a model folder for ``--backbone``, without running any code in them.

    Parameters
    ----------
    source : str or path-like
        An ONNX file of a ViT or DINOv2 whose tensors have transformers' names, or a ``pytorch_model.bin``, next to its
        ``config.json``; or the folder of a ``pytorch_model.bin``.
    out : str or path-like
        A new folder.

    Returns
    -------
    Imported
        The folder, and the tensors that were left out.

    Raises
    ------
    InputError
        If the weights cannot be read without running code, or no backbone can be loaded from them.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2Model
    >>> from reservoir_pipelines import import_backbone
    >>> model = GPT2Model(GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=64, vocab_size=50))
    >>> model.config.save_pretrained("old")
    >>> torch.save(model.state_dict(), "old/pytorch_model.bin")
    >>> imported = import_backbone("old", "new")
    >>> sorted(path.name for path in imported.folder.iterdir())
    ['config.json', 'model.safetensors']
    """
    from reservoir.backbones.onnx_weights import read_onnx

    source, out = Path(source), Path(out)
    if out.exists():
        raise InputError(f"--out {out}: already exists", "name a new folder")
    origin = source if source.is_dir() else source.parent
    files = sorted(source.glob("pytorch_model*.bin")) if source.is_dir() else [source]
    if not files or not (origin / "config.json").is_file():
        raise InputError(
            f"--import {source}: the weights or their config.json are missing", "put both into one folder"
        )
    if pipe := next((file for file in files if file.exists() and not file.is_file()), None):
        raise InputError(f"--import {pipe}: not a regular file", "give a file of weights")
    with new_folder(out) as part:
        tensors, left_out = read_onnx(source) if source.suffix == ".onnx" else (_read_torch(files), [])
        save_tensors(tensors, part / "model.safetensors")
        for name in COPIED:
            if (origin / name).is_file():
                shutil.copy(origin / name, part)
        family = _check(part, source)
    notes = (f"{source.name} does not state the licence and origin of its weights; ask its publisher",)
    return Imported(folder=out, family=family, tensors=len(tensors), left_out=tuple(left_out), notes=notes)


def _read_torch(files: list[Path]) -> dict[str, Any]:
    """Return the tensors in files that torch saved."""
    import torch

    tensors: dict[str, Any] = {}
    for file in files:
        with as_input_error(
            f"--import {file}: not readable without running code", "give a file of weights only"
        ):
            members = zipfile.ZipFile(file).infolist() if zipfile.is_zipfile(file) else []
            if sum(member.file_size for member in members) > 4 * file.stat().st_size:
                raise ValueError("its members unpack to more than the file")
            found = torch.load(file, map_location="cpu", weights_only=True)
            # With strides of 0, a few stored numbers can pass for a tensor of any size.
            if sum(value.nbytes for value in found.values()) > 4 * file.stat().st_size:
                raise ValueError("its tensors are larger than the file")
            if any(value.is_meta or value.is_quantized for value in found.values()):
                raise ValueError("its tensors have no values, or are quantised")
            tensors |= {str(name): value.contiguous().clone() for name, value in found.items()}
    return tensors


def _check(folder: Path, source: Path) -> str:
    """Load the new folder, with its native input if it has one, and return its family."""
    from reservoir.backbones import find, load_backbone, load_native

    try:
        family, _ = find(str(folder))
        load_native(str(folder)) if family.native_input else load_backbone(str(folder), "pretrained")
    except InputError as error:
        raise InputError(str(error).replace(repr(str(folder)), repr(str(source)))) from None
    return family.name
