"""Parts of the site that come from other files of the repository: whole pages, and links to pages and files."""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = {
    "SECURITY.md": "security",
    "ARCHITECTURE.md": "architecture",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "cache/FORMAT.md": "cache-format",
    "reservoir/backbones/mini/README.md": "mini",
    "benchmarks/RESULTS.md": "results",
    "benchmarks/REPRODUCTION.md": "reproduction",
}
"""Files that are also pages of the site, below ``project/``."""
FOLDER = DOCS / "project"
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")


def connect(app: Any) -> None:
    """Write the pages, and register the functions that redirect links to them and give sizes to pictures."""
    FOLDER.mkdir(exist_ok=True)
    for file, page in PAGES.items():
        text = (ROOT / file).read_text()
        (FOLDER / f"{page}.md").write_text(linked(text, (ROOT / file).parent, FOLDER))
    app.connect("source-read", _read)
    app.connect("html-page-context", _give_sizes)


def linked(text: str, come_from: Path, go_to: Path) -> str:
    """Return Markdown with links that are valid in another folder; links to files in `PAGES` lead to their pages."""

    def lead(match: re.Match[str]) -> str:
        target = match[1]
        file = (come_from / target).resolve()
        if ":" in target or not file.exists():
            return target  # Sphinx reports links to missing files
        page = PAGES.get(str(file.relative_to(ROOT)))
        return relpath(FOLDER / f"{page}.md" if page else file, go_to)

    return _LINK.sub(lead, text)


def _read(app: Any, page: str, source: list[str]) -> None:
    file = Path(app.env.doc2path(page))
    if file.suffix == ".md" and FOLDER not in file.parents:
        source[0] = linked(source[0], file.parent, file.parent)


def _give_sizes(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Give each picture its width and height, so that the layout does not move while a page loads."""
    from imagesize import get

    files = {name: Path(app.srcdir) / source for source, name in app.builder.images.items()}
    images = Path(app.srcdir) / "examples" / "images"

    def sized(match: re.Match[str]) -> str:
        name = match[2].rpartition("/")[2]
        file = next(
            (f for f in (files.get(name), images / name, images / "thumb" / name) if f and f.is_file()),
            None,
        )
        width, height = get(file) if file else (-1, -1)
        return match[0] if width < 0 else f'{match[1]} width="{width}" height="{height}"{match[3]}'

    context["body"] = re.sub(
        r'(<img\b(?![^>]* height=)[^>]*? src="([^"]+)"[^>]*?)(\s*/?>)', sized, context.get("body", "")
    )
