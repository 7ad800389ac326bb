"""The folder of a pretrained model: the files of transformers, and the run of the pretraining."""

from __future__ import annotations

import shutil
from pathlib import Path

from reservoir_cache import fault_point, refuse_links, sync

from reservoir.errors import InputError
from reservoir.pretraining.corpora import Corpus
from reservoir.pretraining.language_model import LanguageModel
from reservoir_pipelines.files import part_beside, remove_parts, share, system_errors

RUN = "pretraining"
"""Name of the folder inside the model's folder that holds the run of the pretraining."""


def check_folder(out: Path) -> None:
    """Raise `InputError` unless the folder is new, empty, or that of a pretraining."""
    refuse_links(out / RUN)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: this is a file; name a folder")
    if out.exists() and not (out / RUN).is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out}: the folder has other files in it; name an empty or a new folder")


def has_model(out: Path, corpus: Corpus) -> bool:
    """Return whether the folder has the files that `save_model` writes."""
    files = ["config.json", "model*.safetensors"]
    if getattr(corpus, "tokenizer", None) is not None:
        files += ["tokenizer.json", "tokenizer_config.json"]
    return all(any(out.glob(file)) for file in files)


def save_model(out: Path, model: LanguageModel, corpus: Corpus | None = None) -> None:
    """Write a model, and the tokenizer of a text, for transformers; each file is complete or unchanged."""
    from transformers import PreTrainedTokenizerFast

    remove_parts(out)
    part = part_beside(out / "model")
    part.mkdir()
    try:
        with system_errors():
            model.model.save_pretrained(part)
        tokenizer = getattr(corpus, "tokenizer", None)
        if tokenizer is not None:
            # Without this configuration, transformers would use the tokenizer of the family's published models.
            special = {} if model.causal else {"mask_token": "<mask>"}
            PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(part)
        for file in part.iterdir():
            share(file)
            sync(file)
        for file in part.iterdir():
            fault_point("gathered")
            file.replace(out / file.name)
        sync(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
