"""The known backbones, and the folder or file that a name stands for, available without importing torch."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, first_line, nearest

TABLES = ("backbones.toml", "paper/backbones.toml")
# The known backbones of both tables: by name, the family, and perhaps settings and a short name.
_LISTED = {
    name: entry
    for table in TABLES
    for name, entry in tomllib.loads((Path(__file__).parent / table).read_text()).items()
}

DEFAULT_BACKBONE = "mini"  # its weights come with this package
KERNELS = "kernels"  # random kernels without blocks, the default for series

KNOWN_BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (entry["family"], entry.get("settings", {})) for name, entry in _LISTED.items()
}
"""Family and settings of each known backbone."""

SHORT: dict[str, str] = {entry["short"]: name for name, entry in _LISTED.items() if "short" in entry}
"""Full name by short name, which stands for the base size of a family."""

HUB_NAME = re.compile(r".*/.*|(distil|xlm-)?(bert|roberta|gpt2|t5)\b.*")
"""Names on the hub: with an owner, or without one, as the first models of some families have."""

SHIPPED: dict[str, Path] = {"mini": Path(__file__).parent / "backbones" / "mini"}
"""Folders of the backbones whose pretrained weights come with this package."""

ENTRY_POINTS = "reservoir.backbones"
"""The group of the entry points by which other packages add families of backbones."""


@cache
def plugins() -> Sequence[EntryPoint]:
    """Return the entry points of other installed packages, each with the name of a family; nothing is imported."""
    return tuple(entry_points(group=ENTRY_POINTS))


def add_name(family: str) -> None:
    """Make the name of a family the name of a backbone with the family's default configuration."""
    KNOWN_BACKBONES.setdefault(family, (family, {}))


def check_backbone_name(name: str) -> None:
    """Raise `InputError` unless a name is known, is a folder or a file, or may be a name on the hub."""
    without_settings, _, _ = name.partition(":")  # settings may follow, as in esn:units=500
    families_of_plugins = {plugin.name for plugin in plugins()}
    is_known = (
        without_settings in KNOWN_BACKBONES or without_settings in families_of_plugins or name in SHORT
    )
    may_be_elsewhere = HUB_NAME.fullmatch(name) is not None or Path(name).exists()
    if not is_known and not may_be_elsewhere:
        raise InputError(
            f"backbone {name!r}: neither a known name nor a folder",
            f"give a folder, or one of {', '.join(KNOWN_BACKBONES)}{nearest(name, [*KNOWN_BACKBONES, *SHORT])}",
        )


def gguf_path(backbone: str) -> Path | None:
    """Return the GGUF file that a backbone names, or the one in a folder that it names; None if it is something else.

    A folder with a config.json holds a model in another format. Raise `InputError` for a folder of several GGUF files.
    """
    path = Path(backbone)
    if path.suffix == ".gguf" and path.is_file():
        return path
    has_other_format = (path / "config.json").exists()
    if not path.is_dir() or has_other_format:
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise InputError(
            f"backbone {backbone!r}: the folder has {len(files)} GGUF files",
            f"give the path of one, such as {files[0]}",
        )
    return files[0] if files else None


def locate(name: str, *files: str) -> Path:
    """Return the GGUF file or the folder of a backbone, which is downloaded if it is a name on the hub.

    ``files`` are the patterns of the names of files to download. Raise `InputError` if there is no such backbone.
    """
    if gguf := gguf_path(name):
        return gguf
    folder = Path(SHIPPED.get(name, name))
    if folder.is_dir():
        for path in folder.iterdir():
            is_regular = path.is_file() or path.is_dir()
            if path.exists() and not is_regular:  # reading a pipe might never end
                raise InputError(
                    f"backbone {name!r}: {path.name} is not a regular file",
                    "remove it, or replace it with a regular file",
                )
        return folder
    # What is left is a name on the hub, whose client is imported only then, or an error.
    problem = "neither a known name nor a folder"
    cause: Exception | None = None
    if name in KNOWN_BACKBONES or HUB_NAME.fullmatch(name):
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        try:
            return Path(snapshot_download(name, allow_patterns=list(files)))
        except Exception as error:  # the hub's client raises many types of errors
            problem = f"no such folder, and not on the Hugging Face hub ({first_line(error)})"
            cause = error
    raise InputError(
        f"backbone {name!r}: {problem}",
        f"give a folder, or one of {', '.join(KNOWN_BACKBONES)}{nearest(name, [*KNOWN_BACKBONES, *SHORT])}",
    ) from cause


def full_name(backbone: str) -> str:
    """Return the absolute path of a folder or GGUF file, the full name for a short name, or else the name itself."""
    path = Path(backbone)
    if backbone in SHORT and not path.is_dir():
        return SHORT[backbone]
    # The default comes with this package, also if a folder has its name.
    is_local = path.is_dir() or gguf_path(backbone) is not None
    if backbone != DEFAULT_BACKBONE and is_local:
        return str(path.resolve())
    return backbone
