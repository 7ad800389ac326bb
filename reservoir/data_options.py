"""The options of which data: a task's, and how a file of your own is read; `reservoir.options` has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.option_fields import Options, at_least, flag_of, one_of, option


def own_parameters(given: Mapping[str, Any]) -> str | None:
    """Check that no parameter of a task has a flag of its own."""
    flags = {item.name: flag_of(item) for item in fields(TaskOptions) if item.name not in ("views", "protocol")}
    return next((f"write {flags[name]} {value}" for name, value in given.items() if name in flags), None)


@dataclass(frozen=True, kw_only=True)
class OwnDataOptions(Options):
    """How a file of your own is read."""

    label: str | None = option(None, "Column of the labels; of FASTA the pattern of the label in the header.")
    labels: str | None = option(
        None, "Table with the labels of the files of a folder, or of the records of FASTA, joined by name."
    )
    id: str | None = option(None, "Column that names the rows, or in long form the sequences.")
    time: str | None = option(None, "Column that orders the rows of a sequence in long form.")
    group: str | None = option(
        None, "Column of what rows have in common that are never on both sides of a split; of FASTA a pattern."
    )
    drop: str | Sequence[str] | None = option(None, "Columns that are left out, comma-separated.")
    text: str | None = option(None, "Column of texts, whose letters are the symbols, or of whole sequences.")
    values: bool = option(False, "Whole numbers are values.")
    symbols: bool = option(False, "Whole numbers are symbols.")
    regression: bool = option(False, "Whole-number labels are targets.")
    classes: bool = option(False, "Whole-number labels are classes.")
    missing: str = option(
        "refuse",
        "NaN and empty cells: refuse; interpolate along the series; mask: 0, and a channel that says where.",
        one_of("refuse", "interpolate", "mask"),
    )
    standardise: bool = option(True, "Floats: mean 0, deviation 1 per channel.")
    skip_bad_rows: bool = option(False, "Leave out rows that cannot be read, and say how many.")
    rate: int | None = option(None, "Samples per second that sounds are brought to.", at_least(1000), shown="16000")
    waveform: bool = option(False, "Sounds are their samples, not frames of a spectrum; so of models that read them.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for one, other in (("values", "symbols"), ("regression", "classes")):
            if getattr(self, one) and getattr(self, other):
                raise InputError(f"--{one} --{other}: give one of the two")
        if self.drop is not None and not isinstance(self.drop, str):
            object.__setattr__(self, "drop", ",".join(self.drop))

    @property
    def said(self) -> dict[str, Any]:
        """The options that are not as they are by default."""
        own = ((item, getattr(self, item.name)) for item in fields(OwnDataOptions))
        return {item.name: value for item, value in own if value != item.default}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(OwnDataOptions):
    """Which data: the files of a task and its parameters, or how a file of your own is read."""

    data: Path | None = option(None, "Folder of the publisher's files.", shown="RESERVOIR_DATA", where=True)
    parameters: Mapping[str, Any] | None = option(
        None, "A parameter of the task, NAME=VALUE; repeat for more.", own_parameters, flag="param"
    )
    views: int | None = option(None, "Augmented copies of each training row (cifar10).")
    protocol: str | None = option(
        None, "paper: data, untrained weights and training as in the authors' code.", one_of("ours", "paper")
    )

    @property
    def given(self) -> dict[str, Any]:
        """The parameters of the task, those with a flag of their own among them."""
        flags = {"views": self.views, "protocol": self.protocol}
        named = {name: value for name, value in flags.items() if value is not None}
        return dict(self.parameters or {}) | named | self.said

    @property
    def published(self) -> bool:
        """Whether the paper is to be followed to the letter."""
        return self.given.get("protocol") == "paper"


@dataclass(frozen=True, kw_only=True)
class RowOptions(TaskOptions):
    """Which data, and how many rows of it."""

    limit: int | None = option(None, "At most so many rows of each split, a fixed draw.", at_least(1))


@dataclass(frozen=True, kw_only=True)
class DownloadOptions(Options):
    """Whether the publisher's files are fetched."""

    fetch: bool = option(False, "Fetch the publisher's files where missing.", flag="download", where=True)
    mirrors: Sequence[str] = option((), "Other places of the files; tried first.", flag="mirror", where=True)


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Options):
    """What the language model of a recipe is pretrained on."""

    corpus: str | None = option(None, "A text file or a folder of them, nesting, zipf, uniform, or bit-memory.")
