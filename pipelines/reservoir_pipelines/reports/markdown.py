"""The page's tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def as_markdown(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the parts of a page as text: facts, directions and tables, the paper's numbers in brackets."""
    return "\n".join(line for part in parts for line in _part(part))


def _part(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {_plain(part['heading'])}\n"
    for name, value in part["facts"]:
        yield f"* {_plain(name)}: {_plain(value)}"
    yield ""
    for claim in part.get("claims", []):
        yield f"* {'Holds' if claim['holds'] else 'Does not hold here'}: {_plain(claim['says'])} ({claim['table']})"
    for table in part.get("tables", []):
        yield from _table(table)


def _table(table: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {_plain(table['heading'])}\n"
    if table["note"]:
        yield f"{_plain(table['note'])}\n"
    yield f"In brackets the paper's; {_plain(table['caption'])}.\n"
    yield "| | " + " | ".join(_plain(column) for column in table["columns"]) + " |"
    yield "|---|" + "--:|" * len(table["columns"])
    for row in table["rows"]:
        yield f"| {_plain(row['name'])} | " + " | ".join(_spot(spot) for spot in row["spots"]) + " |"
    for number, reason in enumerate(table["reasons"], start=1):
        yield f"\n{number}. {_plain(reason)}"


def _spot(spot: Mapping[str, Any] | None) -> str:
    if not spot:
        return ""
    paper = f" ({_plain(spot['paper'])})" if spot["paper"] else ""
    later = f" [{_plain(spot['later'])}]" if spot["later"] else ""
    return f"**{_plain(spot['ours'])}**{paper}{later}" + (f" <sup>{spot['number']}</sup>" if spot["number"] else "")


def _plain(value: object) -> str:
    """Return a text that stands on one line of a table and is no markup."""
    text = " ".join(str(value).split())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
