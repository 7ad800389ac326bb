"""The result of ``pretrain``, and the folder of a pretrained model: files of transformers, and the run."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservoir_cache import fault_point, refuse_links, sync

from reservoir.errors import InputError
from reservoir.pretraining.corpora import Corpus
from reservoir.pretraining.language_model import LanguageModel
from reservoir_pipelines.files import part_beside, remove_parts, share, system_errors
from reservoir_pipelines.output import Record

RUN = "pretraining"
"""Name of the folder inside the model's folder that holds the run of the pretraining."""


@dataclass(frozen=True, kw_only=True)
class Pretraining(Record):
    """The result of a pretraining: losses in bits for a language model, accuracies for bit memory.

    Parameters
    ----------
    folder : str
        Folder of the model, for ``--backbone``; transformers can load it.
    corpus : dict
        Description of the corpus.
    steps, tokens : int
        Number of steps, and of the tokens that they read.
    parameters : int
        Number of the model's parameters.
    seconds : float
        Wall time of the steps.
    unit : str or None
        Unit of the losses: ``byte`` or ``token``.
    valid_bits, test_bits : float or None
        Mean loss on the held-out parts of the corpus, in bits per unit.
    entropy : float or None
        Lowest possible mean loss in bits per unit, where it is known.
    valid_accuracy, test_accuracy : float or None
        Accuracy on held-out rows of a task.
    floor : float or None
        Accuracy of a constant output, or of copying the input.
    """

    folder: str
    corpus: dict[str, Any]
    steps: int
    tokens: int
    parameters: int
    seconds: float
    unit: str | None = None
    valid_bits: float | None = None
    test_bits: float | None = None
    entropy: float | None = None
    valid_accuracy: float | None = None
    test_accuracy: float | None = None
    floor: float | None = None

    def score_text(self, split: str) -> str:
        """Return the score of a split: ``1.873 bits per byte``, or ``99.98% right (75% by copying)``."""
        bits, accuracy = getattr(self, f"{split}_bits"), getattr(self, f"{split}_accuracy")
        if bits is not None:
            return f"{bits:.3f} bits per {self.unit}"
        return f"{100 * accuracy:.2f}% right ({100 * (self.floor or 0):.0f}% by copying)"


def check_folder(out: Path) -> None:
    """Raise `InputError` unless the folder is new, empty, or that of a pretraining."""
    refuse_links(out / RUN)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: this is a file; name a folder")
    if out.exists() and not (out / RUN).is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out}: the folder has other files in it; name an empty or a new folder")


def has_model(out: Path, corpus: Corpus) -> bool:
    """Return whether the folder has the files that `save_model` writes."""
    tokenizer = [] if getattr(corpus, "tokenizer", None) is None else ["tokenizer.json", "tokenizer_config.json"]
    files = ["config.json", "model*.safetensors", *tokenizer]
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
