"""Names and texts use plain English, without the words and phrases that readers did not understand."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = {"heard", "unheard", "so-and-so", "told", "dealt", "stumbles"}
"""Words that nothing may contain. Each was a private term, or hid who does what."""

NAMES = {"door", "heard", "unheard", "told", "said", "aside", "deal", "dealt", "sorting", "again", "beside", "there"}
"""Words that no identifier may contain."""

PHRASES = [
    "where nothing is said",
    "is said",
    "it is that",
    "taken is",
    "of which nothing",
    "a way in",
    "say of itself",
    "so many",
    "what is kept",
    "all that is kept",
    "blown up",
    "counted is",
    "is taken for",
    "mends it",
]
SOURCES = [path for folder in ("reservoir", "cache", "pipelines") for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "cache/FORMAT.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]


def named(path):
    return str(path.relative_to(ROOT))


def faults(text):
    """Return the words and phrases of a text that are not plain English."""
    plain = " ".join(text.lower().split())
    found = [word for word in WORDS if re.search(rf"(?<![\w-]){word}(?![\w-])", plain)]
    return found + [phrase for phrase in PHRASES if re.search(rf"\b{phrase}\b", plain)]


def texts(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield token.string


def identifiers(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_the_texts_and_names_of_the_code_are_plain(path):
    source = path.read_text()
    assert [(text[:80], faults(text)) for text in texts(source) if faults(text)] == []
    assert {name for name in identifiers(source) if set(name.lower().split("_")) & NAMES} == set()


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_pages_are_plain(path):
    assert faults(path.read_text()) == []


def test_the_check_of_language_finds_known_faults():
    assert faults("where nothing is said") == ["where nothing is said", "is said"]
    assert faults("It is told how it goes") == ["told"]
    assert faults("The foretold end, a so-and-so-many-th") == []
    assert set(identifiers("def told(x):\n    said: int = 1\n")) == {"told", "said", "x"}
