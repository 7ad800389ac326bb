"""Checks of the files of a pretrained model, which may name other files, or classes that transformers would run."""

import hashlib
import json
import re
from typing import Any


def check_class(name: object, kind: str) -> None:
    """Refuse the name of a class of transformers of another kind, which may download files or offer to run code."""
    import transformers

    # transformers looks for the name without "Fast" too. A placeholder only says which packages the class needs.
    named = getattr(transformers, re.sub("(Fast)+$", "", str(name)), None)
    is_kind = isinstance(named, type) and issubclass(named, getattr(transformers, kind))
    is_placeholder = hasattr(named, "_backends")
    if named is not None and not is_kind and not is_placeholder:
        raise ValueError(f"it names the class {str(name)[:60]!r}, which is not a {kind}")


def settings_digest(processor: Any) -> str:
    """Return the SHA-256 of the settings that affect the values of a prepared image or sound."""
    settings = {name: value for name, value in processor.to_dict().items() if not name.startswith("_")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
