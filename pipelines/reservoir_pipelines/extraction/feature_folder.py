"""A folder of exported features: the files of each split, their description with checksums, and a dataset card."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from reservoir_cache import Entry, Layout, Spec, SplitFeatures, check_column_name, path_below

from reservoir.errors import InputError, as_input_error
from reservoir.tasks.task import Task
from reservoir_pipelines.extraction.feature_files import FILE_FORMATS, Shapes, Stored
from reservoir_pipelines.files import IMPORTED, DamagedError, file_digest, read_checked, write_checked
from reservoir_pipelines.output import printable
from reservoir_pipelines.preparation.prepared import split_order

FOLDER_FORMAT = 1  # version of the description, increased when a value changes its name or meaning
DESCRIPTION = "features.json"
CARD = "README.md"  # the dataset card, by the name that the Hugging Face hub expects
# What messages about a damaged folder advise.
REMEDY = "export the features again, or copy the folder again"


@dataclass(frozen=True)
class FeatureFolder:
    """The description of a folder of exported features, as `features.json` has it."""

    storage: str  # one of `FILE_FORMATS`
    title: str  # name of the model, the first part of the name of the entry
    spec: Spec  # of the exported entry
    layout: Layout
    columns: Mapping[str, tuple[int, int]]  # tokens and width of each column
    grouped: bool  # whether the rows have groups
    kept: Mapping[str, float]  # share of the sequences of each split that were not dropped as too long
    source: Mapping[str, Any]  # how the features were computed, for people; see `describe_source`
    command: str  # the command that exported them
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
        """The shape of each array of labels without the rows; a single label per row has no dimensions of its own."""
        y = (self.task.readout_tokens, self.task.outputs)
        shapes = {"ids": (), "index": (), "y": () if y == (1, 1) else y, "lengths": ()}
        return shapes | ({"groups": ()} if self.grouped else {})

    def file_names(self, split: str) -> list[str]:
        """Return the names of the files of a split, below the folder."""
        return FILE_FORMATS[self.storage].names(split, {**self.label_shapes, **self.shapes})

    def write(self, folder: Path) -> None:
        """Write the description of a folder whose files are complete."""
        json_values = {name: value for name, value in vars(self).items() if name not in ("spec", "layout")}
        converted = {"spec": self.spec.to_json(), "layout": self.layout.to_dict()}
        # The folder appears under its name when it is complete and on disk, so this file need not be synced alone.
        write_checked(
            folder / DESCRIPTION, {"format": FOLDER_FORMAT, **converted, **json_values}, durable=False
        )

    def verify(self, folder: Path) -> None:
        """Compare the files of a folder with their sizes and checksums; raise `InputError` for a difference."""
        for name, recorded in self.files.items():
            file = path_below(folder, *name.split("/"))
            if not file.is_file() or file.stat().st_size != recorded["bytes"]:
                raise InputError(f"{file}: missing, or not of {recorded['bytes']} bytes", REMEDY)
            if file_digest(file) != recorded["sha256"]:
                raise InputError(f"{file}: checksum mismatch", REMEDY)

    def open(self, folder: Path, stack: ExitStack) -> dict[str, dict[str, Any]]:
        """Return the arrays of each split by name, columns and labels; ``stack`` closes their files.

        Raise `ValueError` for an array that is missing or has another shape than in the description.
        """
        arrays: dict[str, dict[str, Any]] = {}
        shapes = {**self.label_shapes, **self.shapes}
        for split in self.splits:
            stored = Stored(split, self.spec.rows[split], self.layout.block_rows, shapes)
            arrays[split] = FILE_FORMATS[self.storage].open(folder, stored, stack)
            for name, shape in shapes.items():
                array = arrays[split].get(name)
                if array is None or tuple(array.shape) != (stored.rows, *shape):
                    raise ValueError(f"{name} of {split} is missing, or has another shape")
        return arrays


def read_folder(folder: Path) -> FeatureFolder:
    """Return the description of a folder; raise `InputError` if it is damaged, or an export did not write it."""
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
        raise InputError(f"{path}: not a description of features ({error})", REMEDY) from error
    version = values.pop("format", None)
    if version != FOLDER_FORMAT:
        raise InputError(
            f"{path}: format {version!r}, but this program reads format {FOLDER_FORMAT}",
            "install a newer version of reservoir-features",
        )
    with as_input_error(f"{path}: not a description of features", REMEDY):
        spec, layout = Spec.from_json(values.pop("spec")), Layout(**values.pop("layout"))
        description = FeatureFolder(spec=spec, layout=layout, **values)
        _check(description)
    return description


def _check(description: FeatureFolder) -> None:
    """Raise an error if the values of a description do not fit together, which a matching checksum does not show."""
    for name, shape in description.columns.items():
        check_column_name(name)
        tokens, width = shape
        if type(tokens) is not int or type(width) is not int or min(shape) < 1:
            raise ValueError(f"column {name} has the shape {shape}")
    if not description.columns or description.storage not in FILE_FORMATS:
        raise ValueError("it has no columns, or an unknown format of files")
    if not isinstance(description.title, str) or not isinstance(description.data_digest, str):
        raise ValueError("its title or the digest of its data is not a text")
    for split in description.splits:
        float(description.kept[split])  # raises an error if it is missing, or no number
    card(description)  # raises an error if the task, or how the features were computed, cannot be read
    expected = {name for split in description.splits for name in description.file_names(split)}
    if {*description.files} != expected:
        raise ValueError(f"it lists other files than {', '.join(sorted(expected))}")


def describe_source(entry: Entry) -> dict[str, Any]:
    """Return how the features of an entry were computed, as JSON values for the description of a folder.

    If the entry was itself imported from a folder, these are the values of that folder.
    """
    record = entry.made_with
    if isinstance(source := record.get("source"), dict):
        return source
    call, model = record.get("call", {}), record.get("reservoir", {})
    engine_model = record.get("engine", {}).get("name")  # if an inference engine computed the hidden states
    title = entry.path.name.rpartition("-")[0]  # the name of the folder without the key
    return {
        "key": entry.key,
        "model": engine_model or _without_folder(model.get("backbone", title)),
        "family": entry.spec.backbone.family,
        "weights": record.get("weights", "those of another program"),
        # The digest of imported features is that of their values.
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
    return shlex.join(map(_without_folder, shlex.split(command)))


def _without_folder(text: object) -> str:
    """Return a text, or only the name of the file if the text is an absolute path."""
    path = Path(str(text))
    return path.name if path.is_absolute() else str(text)


def card(description: FeatureFolder) -> str:
    """Return the dataset card of a folder, Markdown with front matter in YAML."""
    source = description.source
    loading_code = FILE_FORMATS[description.storage].loading.format(
        split=description.splits[0], column=next(iter(description.columns))
    )
    commands = [command for command in (source["command"], description.command) if command]
    files = [
        (f"`{name}`", f"{recorded['rows']:,}", f"{recorded['bytes']:,}", f"`{recorded['sha256']}`")
        for name, recorded in description.files.items()
    ]
    paragraphs = [
        _front_matter(description),
        f"# Hidden states of {source['model']} on {description.task.name}",
        "Features of a frozen model, one row per sequence, pooled over its tokens. "
        f"{DESCRIPTION} has this description for programs.",
        _markdown_table(("", ""), _facts(description)),
        "## Commands",
        "\n".join(f"    {printable(command)}" for command in commands),
        "Read them into a cache again with `reservoir import-features FOLDER`, or with other programs:",
        "\n".join(f"    {line}" for line in loading_code.splitlines()),
        "## Columns",
        _markdown_table(("name", "content"), _array_lines(description)),
        "## Files",
        _markdown_table(("file", "rows", "bytes", "SHA-256"), files),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _facts(description: FeatureFolder) -> list[tuple[str, str]]:
    """Return the names and values of the facts of a dataset card, in Markdown."""
    source, rows = description.source, description.spec.rows
    counts = ", ".join(f"{rows[split]:,} rows of {split}" for split in description.splits)
    init = source["init"]["kind"]
    digest = f", SHA-256 of the weights `{source['weights_sha256']}`" if source["weights_sha256"] else ""
    return [
        ("task", f"`{description.task.name}`: {counts}"),
        ("model", f"`{source['model']}` ({source['family']}, {init}: {source['weights']}){digest}"),
        ("input", f"{source['input']['kind']}, patch {source['input']['patch']}, stride {source['input']['stride']}"),
        ("precision", f"computed in {source['compute']}, cached in {source['store']}, exported as the float32 values "
         "that reading the cache gives"),
        ("computed with", ", ".join(f"{name} {number}" for name, number in source["versions"].items())),
        ("key of the entry", f"`{source['key']}`"),
        ("digest of the data", f"`{description.data_digest}`"),
    ]  # fmt: skip


def _array_lines(description: FeatureFolder) -> list[tuple[str, str]]:
    """Return the name and the content of each array of a split, labels first, in Markdown."""
    task = description.task
    class_meaning = f"a number from 0 to {task.classes - 1}, the class"
    label = class_meaning if task.classes else "a real number, the target"
    class_names = f" ({', '.join(map(str, task.labels))})" if task.labels else ""
    lines = [
        ("`ids`", "what names the row in its source: an id, a file name or a row number"),
        ("`index`", "number of the row in its split of the prepared data"),
        ("`y`", f"label: {label}{class_names}"),
        ("`lengths`", "real tokens of the row"),
    ]
    if description.grouped:
        lines.append(("`groups`", "number of the row's group"))
    for name, (tokens, width) in description.columns.items():
        content = f"{width} values"
        if tokens > 1:
            content = f"{tokens} tokens of {content}, side by side in a table"
        lines.append((f"`{name}`", content))
    return lines


def _front_matter(description: FeatureFolder) -> str:
    """Return YAML with a place for the licence, which the user has to name, and the files that the hub's viewer reads.

    The viewer reads Parquet files only.
    """
    lines = [
        "---",
        "# license: name the licence of the data and of the model here before you publish this folder",
    ]
    lines += ["tags:", "- features", "- reservoir"]
    if description.storage == "parquet":
        lines += ["configs:", "- config_name: default", "  data_files:"]
        for split in description.splits:
            lines += [f"  - split: {split}", f"    path: {split}.parquet"]
    return "\n".join([*lines, "---"])


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, whose cells may hold any text."""
    lines: list[str] = []
    for cells in (headings, ["---"] * len(headings), *rows):
        escaped = [printable(cell).replace("|", r"\|") for cell in cells]  # | ends a cell
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines)


def label_arrays(part: SplitFeatures, *, grouped: bool) -> dict[str, np.ndarray]:
    """Return the label arrays of a split of an entry by name, (rows, ...) each; those in `label_shapes`."""
    arrays = {"ids": part.ids, "index": part.index, "y": part.y, "lengths": part.lengths}
    if grouped:
        assert part.groups is not None  # all splits have groups, or none has
        arrays["groups"] = part.groups
    return arrays
