"""The stage ``report``: one self-contained HTML page of reproductions, fits and trainings."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reservoir.errors import InputError
from reservoir.options import ReportOptions
from reservoir_pipelines.claims import NOT_CHECKED, NOT_MEASURED
from reservoir_pipelines.files import cache_root, read_checked, replace_file, writing
from reservoir_pipelines.fitting.results import ELSEWHERE, SUMMARY
from reservoir_pipelines.output import Record, notify, printable
from reservoir_pipelines.reports.reproduced import reproduction_part
from reservoir_pipelines.reports.views import fit_part, run_part
from reservoir_pipelines.reproduction_folder import ReproductionFolder, is_reproduction

MAX_FITS = 12  # largest number of fits on the page; the latest are shown


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """The page that `report` wrote, and the number of its parts."""

    page: Path
    parts: int
    bytes: int


def report(sources: Sequence[str | Path], options: ReportOptions) -> Report:
    """Write a page about folders of `reproduce`, `fit` and `train`; see `api.report`."""
    root = cache_root(options.cache)
    parts = [_part(Path(path), number) for number, path in enumerate(sources, start=1)] or _all_parts(root)
    if not parts:
        raise InputError(f"{root}: nothing to report yet", "run reservoir fit or reservoir reproduce first")
    _leave_out_answered_claims(parts)
    out = options.out or root / ("report.md" if options.markdown else "report.html")
    template, finalize = ("tables.md.j2", _on_one_line) if options.markdown else ("page.html", _visible)
    text = _render(parts, template, finalize)
    with writing(out):
        replace_file(out, lambda part: part.write_text(text, encoding="utf-8"))
    return Report(page=out, parts=len(parts), bytes=len(text.encode()))


def _all_parts(root: Path) -> list[dict[str, Any]]:
    """Return the parts about all reproductions in the cache, and about the latest other fits in any folder."""
    made = sorted(path for path in (root / "reproductions").glob("*") if is_reproduction(path))
    theirs = {result["folder"] for path in made for result in ReproductionFolder(path).results()}
    folders = {file.parent for file in (root / "readouts").glob(f"*/*/{SUMMARY}")}
    for note in (root / "readouts").glob(f"*/*/{ELSEWHERE}"):
        with suppress(OSError, ValueError, KeyError):
            folders.add(Path(read_checked(note)["folder"]))
    fits = [
        folder for folder in folders if str(folder.resolve()) not in theirs and (folder / SUMMARY).is_file()
    ]
    fits.sort(key=lambda path: (path / SUMMARY).stat().st_mtime, reverse=True)
    parts = []
    for number, path in enumerate(made + fits[:MAX_FITS], start=1):
        try:
            parts.append(_part(path, number))
        except InputError as error:
            notify(f"skipping one part of the page: {error}")
    return parts


def _part(path: Path, number: int) -> dict[str, Any]:
    try:
        if is_reproduction(path):
            return reproduction_part(ReproductionFolder(path), number)
        if (path / SUMMARY).is_file():
            return fit_part(path, number)
        if (path / "config.json").is_file() and (path / "run.json").is_file():
            return run_part(path, number)
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, OSError, ValueError) as error:
        raise InputError(
            f"{path}: damaged, or written by another version of reservoir ({error})",
            "repeat the command that wrote it",
        ) from error
    raise InputError(f"{path}: not a folder with results of reproduce, fit or train", "name such a folder")


def _leave_out_answered_claims(parts: Sequence[dict[str, Any]]) -> None:
    """Leave out each claim without a number for which the same table of another reproduction has one."""
    tables = [table for part in parts for table in part.get("tables", ())]
    measured = {(t["name"], c["says"]) for t in tables for c in t["claims"] if not _has_no_number(c)}
    for table in tables:
        table["claims"] = [
            claim
            for claim in table["claims"]
            if not _has_no_number(claim) or (table["name"], claim["says"]) not in measured
        ]


def _has_no_number(claim: Mapping[str, Any]) -> bool:
    return claim["verdict"] in (NOT_CHECKED, NOT_MEASURED)


def _render(parts: Sequence[dict[str, Any]], template: str, finalize: Callable[[Any], Any]) -> str:
    """Return the page as text; jinja escapes markup if the template is HTML."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    loader = PackageLoader("reservoir_pipelines", "reports")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(), trim_blocks=True, finalize=finalize
    )
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M}"
    return environment.get_template(template).render(
        parts=parts, made=made, version=version("reservoir-features")
    )


def _on_one_line(value: object) -> str:
    """Return a text on one line of a Markdown table, with markup, links and control characters escaped."""
    text = printable(" ".join(str(value).split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|\[])", r"\\\1", text)


def _visible(value: object) -> object:
    """Escape control characters and marks that change the text direction."""
    return value if hasattr(value, "__html__") else printable(value)
