"""A folder of exported features: the files of each split, their description with checksums, and a dataset card."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import Entry, Layout, Spec, check_column_name, path_below

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.task import Task
from reservoir_pipelines.extraction.feature_files import FORMATS, Shapes, Stored
from reservoir_pipelines.files import IMPORTED, DamagedError, file_digest, read_checked, write_checked
from reservoir_pipelines.output import printable
from reservoir_pipelines.preparation.prepared import split_order

FOLDER_FORMAT = 1
DESCRIPTION = "features.json"
CARD = "README.md"
REMEDY = "export the features again, or copy the folder again"


@dataclass(frozen=True)
class FeatureFolder:
    """The description of a folder of exported features, as `features.json` has it."""

    storage: str  # one of `FORMATS`
    title: str  # name of the model, the first part of the name of the entry
    spec: Spec  # of the exported entry
    layout: Layout
    columns: Mapping[str, tuple[int, int]]  # tokens and width of each column
    grouped: bool  # whether the rows have groups
    kept: Mapping[str, float]  # share of the sequences of each split that were not dropped as too long
    source: Mapping[str, Any]  # how the features were computed, for people
    command: str  # that exported them
    # Rows, bytes and SHA-256 of each file.
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """The task whose rows have these features."""
        return Task.from_dict(self.spec.task)

    @property
    def splits(self) -> list[str]:
        """The splits: train, valid, test, then any others."""
        return split_order({*self.spec.rows})

    @property
    def data_digest(self) -> str:
        """The digest of the data, and of the numbers of the rows, that the features were computed from."""
        return self.spec.data.origin or self.spec.data.digest

    @property
    def shapes(self) -> Shapes:
        """The shape of each column without the rows; columns of one token have no dimension of tokens."""
        return {
            name: (width,) if tokens == 1 else (tokens, width)
            for name, (tokens, width) in self.columns.items()
        }

    @property
    def label_shapes(self) -> Shapes:
        """The shape of each array of labels without the rows; ``y`` is a number per row if each row has one."""
        y = (self.task.readout_tokens, self.task.outputs)
        shapes = {"ids": (), "index": (), "y": () if y == (1, 1) else y, "lengths": ()}
        return shapes | ({"groups": ()} if self.grouped else {})

    def names(self, split: str) -> list[str]:
        """Return the names of the files of a split."""
        return FORMATS[self.storage].names(split, {**self.label_shapes, **self.shapes})

    def write(self, folder: Path) -> None:
        """Write the description of a folder whose files are complete."""
        values = {name: value for name, value in vars(self).items() if name not in ("spec", "layout")}
        plain = {"format": FOLDER_FORMAT, "spec": self.spec.to_json(), "layout": self.layout.to_dict()}
        write_checked(folder / DESCRIPTION, plain | values, durable=False)

    def verify(self, folder: Path) -> None:
        """Compare the files of a folder with their checksums; raise `InputError` for a difference."""
        for name, line in self.files.items():
            file = path_below(folder, *name.split("/"))
            if not file.is_file() or file.stat().st_size != line["bytes"]:
                raise InputError(f"{file}: missing, or not of {line['bytes']} bytes", REMEDY)
            if file_digest(file) != line["sha256"]:
                raise InputError(f"{file}: checksum mismatch", REMEDY)

    def open(self, folder: Path, stack: ExitStack) -> dict[str, dict[str, Any]]:
        """Return the arrays of each split by name, columns and labels; their shapes are those of the description."""
        arrays, shapes = {}, {**self.label_shapes, **self.shapes}
        for split in self.splits:
            stored = Stored(split, self.spec.rows[split], self.layout.block_rows, shapes)
            arrays[split] = FORMATS[self.storage].open(folder, stored, stack)
            for name, shape in shapes.items():
                if name not in arrays[split] or tuple(arrays[split][name].shape) != (stored.rows, *shape):
                    raise ValueError(f"{name} of {split} is missing, or has another shape")
        return arrays


def read_folder(folder: Path) -> FeatureFolder:
    """Return the description of a folder; raise `InputError` if it is damaged, or was not written by an export."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise InputError(
            f"{folder}: it has no {DESCRIPTION}, so export-features did not write it; "
            "give such a folder, or a file of features"
        )
    try:
        values = read_checked(path)
    except DamagedError as error:
        raise InputError(f"{path}: {error}", REMEDY) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a description of features ({error})", f"{REMEDY}") from error
    if (version := values.pop("format", None)) != FOLDER_FORMAT:
        raise InputError(
            f"{path}: format {version!r}, but this program reads format {FOLDER_FORMAT}",
            "install a newer version of reservoir-features",
        )
    with as_input_error(f"{path}: not a description of features", REMEDY):
        spec, layout = Spec.from_json(values.pop("spec")), Layout(**values.pop("layout"))
        described = FeatureFolder(spec=spec, layout=layout, **values)
        _check(described)
    return described


def _check(described: FeatureFolder) -> None:
    """Raise an error if a description does not fit together; a matching checksum does not make it valid."""
    for name, shape in described.columns.items():
        check_column_name(name)
        tokens, width = shape
        if type(tokens) is not int or type(width) is not int or min(shape) < 1:
            raise ValueError(f"column {name} has the shape {shape}")
    if not described.columns or described.storage not in FORMATS:
        raise ValueError("it has no columns, or an unknown format of files")
    if not isinstance(described.title, str) or not isinstance(described.data_digest, str):
        raise ValueError("its title or the digest of its data is not a text")
    for split in described.splits:
        float(described.kept[split])  # raises an error if it is missing, or no number
    card(described)  # reads the task, and how the features were computed
    expected = {name for split in described.splits for name in described.names(split)}
    if {*described.files} != expected:
        raise ValueError(f"it lists other files than {', '.join(sorted(expected))}")


def open_source(entry: Entry) -> dict[str, Any]:
    """Return how the features of an entry were computed; imported features keep the description of their folder."""
    record = entry.made_with
    if isinstance(source := record.get("source"), dict):
        return source
    call, model = record.get("call", {}), record.get("reservoir", {})
    name_of_entry = entry.path.name.rpartition("-")[0]
    return {
        "key": entry.key,
        "model": record.get("engine", {}).get("name") or _name(model.get("backbone", name_of_entry)),
        "family": entry.spec.backbone.family,
        "weights": record.get("weights", "those of another program"),
        "weights_sha256": None if entry.spec.init.kind == IMPORTED else entry.spec.backbone.digest,
        "init": entry.spec.init.to_json(),
        "depth": model.get("depth"),
        "input": entry.spec.input.to_json(),
        "compute": entry.spec.compute,
        "store": entry.spec.store,
        "device": record.get("device"),
        "versions": record.get("versions", {}),
        "command": without_folders(str(call.get("command", ""))),
    }


def without_folders(command: str) -> str:
    """Return a command in which absolute paths are shortened to their names, because a card may be published."""
    return shlex.join(map(_name, shlex.split(command)))


def _name(text: object) -> str:
    path = Path(str(text))
    return path.name if path.is_absolute() else str(text)


def card(described: FeatureFolder) -> str:
    """Return the dataset card of a folder, Markdown with a head in YAML."""
    spec, task, source = described.spec, described.task, described.source
    loading = FORMATS[described.storage].loading.format(
        split=described.splits[0], column=next(iter(described.columns))
    )
    init = source["init"]["kind"]
    digest = f", SHA-256 of the weights `{source['weights_sha256']}`" if source["weights_sha256"] else ""
    versions = ", ".join(f"{name} {number}" for name, number in source["versions"].items())
    labels = (
        f"a number from 0 to {task.classes - 1}, the class" if task.classes else "a real number, the target"
    )
    named = f" ({', '.join(map(str, task.labels))})" if task.labels else ""
    facts = [
        ("task", f"`{task.name}`: {_counted(spec.rows)}"),
        ("model", f"`{source['model']}` ({source['family']}, {init}: {source['weights']}){digest}"),
        ("input", f"{source['input']['kind']}, patch {source['input']['patch']}, stride {source['input']['stride']}"),
        ("precision", f"computed in {source['compute']}, cached in {source['store']}, exported as the float32 values "
         "that reading the cache gives"),
        ("computed with", versions),
        ("key of the entry", f"`{source['key']}`"),
        ("digest of the data", f"`{described.data_digest}`"),
    ]  # fmt: skip
    arrays = [
        ("`ids`", "what names the row in its source: an id, a file name or a row number"),
        ("`index`", "number of the row in its split of the prepared data"),
        ("`y`", f"label: {labels}{named}"),
        ("`lengths`", "real tokens of the row"),
        *([("`groups`", "number of the row's group")] if described.grouped else []),
        *((f"`{name}`", _shape_text(*shape)) for name, shape in described.columns.items()),
    ]
    files = [
        (f"`{name}`", f"{line['rows']:,}", f"{line['bytes']:,}", f"`{line['sha256']}`")
        for name, line in described.files.items()
    ]
    parts = [
        _head(described),
        f"# Hidden states of {source['model']} on {task.name}",
        "Features of a frozen model, one row per sequence, pooled over its tokens. "
        f"{DESCRIPTION} has this description for programs.",
        _markdown_table(("", ""), facts),
        "## Commands",
        "\n".join(f"    {printable(line)}" for line in (source["command"], described.command) if line),
        "Read them into a cache again with `reservoir import-features FOLDER`, or with other programs:",
        "\n".join(f"    {line}" for line in loading.splitlines()),
        "## Columns",
        _markdown_table(("name", "content"), arrays),
        "## Files",
        _markdown_table(("file", "rows", "bytes", "SHA-256"), files),
    ]
    return "\n\n".join(parts) + "\n"


def _head(described: FeatureFolder) -> str:
    """Return the YAML head: the licence, which the user has to name, and the files that the hub's viewer reads."""
    lines = [
        "---",
        "# license: name the licence of the data and of the model here before you publish this folder",
    ]
    lines += ["tags:", "- features", "- reservoir"]
    if described.storage == "parquet":
        lines += ["configs:", "- config_name: default", "  data_files:"]
        for split in described.splits:
            lines += [f"  - split: {split}", f"    path: {split}.parquet"]
    return "\n".join([*lines, "---"])


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        f"| {' | '.join(printable(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _counted(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{rows[split]:,} rows of {split}" for split in split_order({*rows}))


def _shape_text(tokens: int, width: int) -> str:
    return (
        f"{width} values" if tokens == 1 else f"{tokens} tokens of {width} values, side by side in a table"
    )


def label_arrays(part: Any, *, grouped: bool) -> dict[str, np.ndarray]:
    """Return the labels of a split of an entry (`reservoir_cache.SplitFeatures`), one row each."""
    arrays = {"ids": part.ids, "index": part.index, "y": part.y, "lengths": part.lengths}
    return arrays | ({"groups": part.groups} if grouped else {})
