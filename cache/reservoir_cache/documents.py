"""JSON documents of the cache, each with the CRC-32 of its own text."""

import json
import zlib
from pathlib import Path
from typing import Any

from reservoir_cache.errors import CacheError
from reservoir_cache.paths import read_regular
from reservoir_cache.publish import publish


def publish_json(
    final: Path, content: dict[str, Any], *, indent: int | None = None, durable: bool = True
) -> None:
    """Publish a JSON document with the CRC-32 of its compact text."""
    publish(final, _text({**content, "crc32": _checksum(content)}, indent).encode("ascii"), durable=durable)


def read_json(path: Path, *, indent: int | None = None) -> dict[str, Any]:
    """Read what ``publish_json`` wrote; raises CacheError if a single byte has changed."""
    try:
        text = read_regular(path).decode("ascii")
        content = json.loads(text)
        crc = content.pop("crc32")
        sound = crc == _checksum(content) and text == _text({**content, "crc32": crc}, indent)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CacheError(f"{path}: unreadable ({error})") from error
    if not sound:
        raise CacheError(f"{path}: damaged, its checksum does not match its content")
    return content


def _checksum(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(_text(content, None).encode()):08x}"


def _text(content: dict[str, Any], indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(content, sort_keys=True, indent=indent, separators=separators, allow_nan=False) + "\n"
