"""The options of data: those of tasks, and how your own files are read. `reservoir.options` has all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.option_fields import Options, at_least, flag_of, one_of, option


def own_parameters(given: Mapping[str, Any]) -> str | None:
    """Check that no task parameter is one of the options, which have flags."""
    flags = {item.name: flag_of(item) for item in fields(TaskOptions) if item.name not in ("views", "protocol")}
    return next((f"write {flags[name]} {value}" for name, value in given.items() if name in flags), None)


@dataclass(frozen=True, kw_only=True)
class OwnDataOptions(Options, panel="Data"):
    """How your own files are read."""

    label: str | None = option(None, "Column of the labels. For FASTA: pattern of the label in the header.")
    labels: str | None = option(
        None, "Table with the labels of the files of a folder, or of the records of a FASTA file, joined by name."
    )
    id: str | None = option(None, "Column of row names; in long form, of sequence names.")
    time: str | None = option(None, "Column that orders the rows of a sequence, in long form.")
    group: str | None = option(
        None, "Column of groups, such as patients; a group is in one split only. For FASTA: pattern in the header."
    )
    drop: str | Sequence[str] | None = option(None, "Columns to ignore, comma-separated.")
    text: str | None = option(None, "Column of texts or of sequences of letters.")
    values: bool = option(False, "Read whole numbers as values.")
    symbols: bool = option(False, "Read whole numbers as symbols.")
    regression: bool = option(False, "Read whole-number labels as targets of a regression.")
    classes: bool = option(False, "Read whole-number labels as classes.")
    missing: str = option(
        "refuse",
        "NaN and empty cells: refuse, interpolate along the series, or mask (0, and a channel that marks them).",
        one_of("refuse", "interpolate", "mask"),
    )
    standardise: bool = option(True, "Scale floats to mean 0 and standard deviation 1 per channel.")
    skip_bad_rows: bool = option(False, "Leave out rows that cannot be read, and print how many.")
    rate: int | None = option(None, "Samples per second to which sounds are resampled.", at_least(1000), shown="16000")
    waveform: bool = option(
        False, "Read the samples of sounds instead of spectrum frames; the default for models that read samples."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for one, other in (("values", "symbols"), ("regression", "classes")):
            if getattr(self, one) and getattr(self, other):
                raise InputError(f"--{one} --{other}: give one of the two")
        if self.drop is not None and not isinstance(self.drop, str):
            object.__setattr__(self, "drop", ",".join(self.drop))

    @property
    def explicit(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        own = ((item, getattr(self, item.name)) for item in fields(OwnDataOptions))
        return {item.name: value for item, value in own if value != item.default}


@dataclass(frozen=True, kw_only=True)
class TaskOptions(OwnDataOptions, panel="Data"):
    """The files of a task and its parameters, or how your own files are read."""

    data: Path | None = option(None, "Folder of the data set's files.", shown="RESERVOIR_DATA", where=True)
    parameters: Mapping[str, Any] | None = option(
        None, "Parameter of the task, NAME=VALUE; repeat for more.", own_parameters, flag="param"
    )
    views: int | None = option(None, "Number of augmented copies of each training row (cifar10).")
    protocol: str | None = option(
        None, "paper: data, random weights and training as in the authors' code.", one_of("ours", "paper")
    )

    @property
    def given(self) -> dict[str, Any]:
        """The parameters of the task, including those that are options."""
        flags = {"views": self.views, "protocol": self.protocol}
        named = {name: value for name, value in flags.items() if value is not None}
        return dict(self.parameters or {}) | named | self.explicit

    @property
    def published(self) -> bool:
        """Whether the authors' protocol is followed."""
        return self.given.get("protocol") == "paper"


@dataclass(frozen=True, kw_only=True)
class RowOptions(TaskOptions, panel="Data"):
    """Which data, and how many rows of it."""

    limit: int | None = option(None, "Most rows per split; a fixed random draw.", at_least(1))


@dataclass(frozen=True, kw_only=True)
class DownloadOptions(Options, panel="Data"):
    """Whether the data set's files are downloaded."""

    fetch: bool = option(False, "Download the files that are missing.", flag="download", where=True)
    mirrors: Sequence[str] = option((), "Addresses to try first.", flag="mirror", where=True)


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Options, panel="Data"):
    """The corpus of a recipe's language model."""

    corpus: str | None = option(None, "A text file or a folder of them, nesting, zipf, uniform or bit-memory.")
