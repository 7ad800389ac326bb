"""The known backbones, available without importing torch."""

import re
import tomllib
from pathlib import Path
from typing import Any

from reservoir.errors import InputError, nearest

_LISTED = tomllib.loads((Path(__file__).parent / "backbones.toml").read_text())

DEFAULT_BACKBONE = "mini"  # its weights come with this package

KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    name: (entry["family"], entry.get("settings", {})) for name, entry in _LISTED.items()
}
"""Family and settings of each known backbone."""

SHORT: dict[str, str] = {entry["short"]: name for name, entry in _LISTED.items() if "short" in entry}
"""Full name by short name, which stands for the base size of a family."""

OLD_NAMES = re.compile(r"(distil|xlm-)?(bert|roberta|gpt2|t5)\b.*")
"""Names on the hub without an owner, which the first models of these families have."""


def check_backbone_name(name: str) -> None:
    """Raise `InputError` unless a name is known, is a folder or a file, or may be a name on the hub."""
    known = name.partition(":")[0] in KNOWN or name in SHORT
    if not (known or "/" in name or Path(name).exists() or OLD_NAMES.fullmatch(name)):
        near = nearest(name, [*KNOWN, *SHORT])
        raise InputError(
            f"backbone {name!r}: neither a known name nor a folder",
            f"give a folder, or one of {', '.join(KNOWN)}{near}",
        )


def full_name(backbone: str) -> str:
    """Return the absolute path of a folder or GGUF file, the full name for a short name, or else the name itself."""
    path = Path(backbone)
    if backbone in SHORT and not path.is_dir():
        return SHORT[backbone]
    if backbone != DEFAULT_BACKBONE and (path.is_dir() or (path.suffix == ".gguf" and path.is_file())):
        return str(path.resolve())
    return backbone
