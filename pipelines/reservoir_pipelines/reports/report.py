"""The stage ``report``: one self-contained HTML page of reproductions, fits and trainings."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reservoir_cache import replace_file

from reservoir.errors import InputError, writing
from reservoir.options import ReportOptions
from reservoir_pipelines.files import cache_root, check_out_file, read_checked
from reservoir_pipelines.fitting.results import ELSEWHERE, SUMMARY
from reservoir_pipelines.output import Record, notify, printable
from reservoir_pipelines.reports.views import fit_part, run_part

MAX_FITS = 12  # largest number of fits on the page; the latest are shown


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """The page that `report` wrote."""

    page: Path
    parts: int  # number of reproductions, fits and trainings on the page
    bytes: int  # size of the page


@dataclass(frozen=True, kw_only=True)
class FolderKind:
    """A kind of folders besides those of fits and runs, and how the page shows them.

    Parameters
    ----------
    place : str
        Name of the folder inside the cache that holds them.
    matches : callable
        Returns whether a folder is of this kind.
    part : callable
        Returns the page's part about a folder; it is also given the number of the part.
    shown_folders : callable
        Returns the folders of fits and runs that the part about a folder shows, so that they get no part of their own.
    finish : callable
        Is called with all parts of the page, and may change them.
    """

    place: str
    matches: Callable[[Path], bool]
    part: Callable[[Path, int], dict[str, Any]]
    shown_folders: Callable[[Path], set[str]]  # absolute paths without links
    finish: Callable[[Sequence[dict[str, Any]]], None]


def report(
    sources: Sequence[str | Path], options: ReportOptions, *, kinds: Sequence[FolderKind] = ()
) -> Report:
    """Write a page about folders of `fit` and `train`, and of other kinds; see `api.report`."""
    check_out_file(options.out, *((".md",) if options.markdown else (".html", ".htm")))
    root = cache_root(options.cache)
    if sources:
        parts = [_part(Path(path), number, kinds) for number, path in enumerate(sources, start=1)]
    else:
        parts = _all_parts(root, kinds)
    if not parts:
        raise InputError(
            f"{root}: nothing to report yet, neither a reproduction nor a fit",
            "run reservoir fit or reservoir reproduce first, or name the folder of a training",
        )
    for kind in kinds:
        kind.finish(parts)
    name, template, finalize = (
        ("report.md", "tables.md.j2", _on_one_line)
        if options.markdown
        else ("report.html", "page.html", _visible)
    )
    text = _render(parts, template, finalize)
    out = options.out or root / name
    with writing(out):
        replace_file(out, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return Report(page=out, parts=len(parts), bytes=len(text.encode()))


def _all_parts(root: Path, kinds: Sequence[FolderKind]) -> list[dict[str, Any]]:
    """Return the parts about the folders of other kinds in the cache, and about the latest fits that these do not show.

    A folder that cannot be read is skipped with a message.
    """
    folders_of_kinds: list[Path] = []
    shown_folders: set[str] = set()
    for kind in kinds:
        folders = sorted(path for path in (root / kind.place).glob("*") if kind.matches(path))
        folders_of_kinds += folders
        for path in folders:
            # A damaged folder shows no others; its message comes with its part.
            with suppress(InputError, KeyError, TypeError):
                shown_folders |= kind.shown_folders(path)
    fits = [folder for folder in _folders_of_fits(root) if str(folder.resolve()) not in shown_folders]
    parts = []
    for number, path in enumerate(folders_of_kinds + fits[:MAX_FITS], start=1):
        try:
            parts.append(_part(path, number, kinds))
        except InputError as error:
            notify(f"skipping one part of the page: {error}")
    return parts


def _folders_of_fits(root: Path) -> list[Path]:
    """Return the folders of all fits in the cache, and of those that were saved elsewhere, the latest first."""
    folders = {file.parent for file in (root / "readouts").glob(f"*/*/{SUMMARY}")}
    # Of a fit with --out, a note in the cache names the folder, which may have been removed since. Earlier versions
    # called the note folder.json.
    for note in (root / "readouts").glob(f"*/*/{ELSEWHERE}*.json"):
        with suppress(OSError, ValueError, KeyError):  # a damaged note
            folders.add(Path(read_checked(note)["folder"]))
    existing = [folder for folder in folders if (folder / SUMMARY).is_file()]
    return sorted(existing, key=lambda folder: (folder / SUMMARY).stat().st_mtime, reverse=True)


def _part(path: Path, number: int, kinds: Sequence[FolderKind]) -> dict[str, Any]:
    """Return the page's part about a folder; ``number``, from 1, identifies it on the page.

    Raise `InputError` if the folder has no results, or if they cannot be read.
    """
    try:
        for kind in kinds:
            if kind.matches(path):
                return kind.part(path, number)
        if (path / SUMMARY).is_file():
            return fit_part(path, number)
        if (path / "config.json").is_file() and (path / "run.json").is_file():
            return run_part(path, number)
    except InputError:  # a `ValueError`, whose message already says what is wrong
        raise
    except (AttributeError, KeyError, TypeError, OSError, ValueError) as error:
        raise InputError(
            f"{path}: damaged, or written by another version of reservoir ({error})",
            "repeat the command that wrote it",
        ) from error
    raise InputError(f"{path}: not a folder with results of reproduce, fit or train", "name such a folder")


def _render(parts: Sequence[dict[str, Any]], template: str, finalize: Callable[[Any], Any]) -> str:
    """Return the page as text; ``finalize`` escapes each value that the template shows.

    If the template is HTML, jinja then escapes markup.
    """
    from jinja2 import Environment, PackageLoader, select_autoescape

    environment = Environment(
        loader=PackageLoader("reservoir_pipelines", "reports"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        finalize=finalize,
    )
    date = f"{datetime.now().astimezone():%Y-%m-%d %H:%M}"
    return environment.get_template(template).render(
        parts=parts, date=date, version=version("reservoir-features")
    )


def _on_one_line(value: object) -> str:
    """Return a text on one line of a Markdown table, with markup, links and control characters escaped."""
    text = printable(" ".join(str(value).split())).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|\[])", r"\\\1", text)


def _visible(value: object) -> object:
    """Escape control characters and marks that change the text direction; markup of the template stays as it is."""
    return value if hasattr(value, "__html__") else printable(value)
