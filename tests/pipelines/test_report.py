"""The page is self-contained, valid HTML, shows what was stored, and escapes every name."""

import base64
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from reservoir_pipelines import report, reproduce
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting.results import SUMMARY
from reservoir_pipelines.plots import draw_confusion, page_picture

from reservoir.errors import InputError

EVIL = "<script>alert(1)</script>"
HOSTILE = f"""
title = "a & b {EVIL}"
task = "bit-xor"
columns = ["it's \\"{EVIL}\\""]
settings = {{ backbone = "mini:n_layer=1,n_embd=16,n_head=2", depth = "", init = "random", steps = 3, eval_every = 1 }}
rows = [
    {{ name = "{EVIL}", cell = "output", published = [42] }},
    {{ name = "readout", cell = "readout", published = ["<b>"] }},
    {{ name = "maps", cell = "attention", measure = "diagonals" }},
    {{ name = "card", cell = "card", measure = "weight_deviation" }},
    {{ name = "away", cell = "output", task = "mnist" }},
]
drawn = "DRAWN"
claims = [{{ says = "it is {EVIL}", more = ["card", "it's \\"{EVIL}\\""], by = 0 }}]
"""
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Checker(HTMLParser):
    """Checks that tags nest, that ids are unique, that links have targets, and that pictures have descriptions."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.pictures, self.tags = [], [], [], 0, []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        if tag == "img":
            assert len(attrs["alt"]) > 10
            assert attrs["src"].startswith("data:image/svg+xml;base64,")
            self.pictures += 1
        assert not any(name.startswith("on") for name in attrs)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(text):
    page = Checker()
    page.feed(text)
    page.close()
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {link for link in page.links if link.removeprefix("#") not in page.ids} == set()
    assert "script" not in page.tags
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?\s*(?:https?:)?//", text)
    assert page.tags.count("h1") == 1
    return page


@pytest.mark.parametrize("drawn", ["attention"])
def test_a_page_is_complete_and_escapes_what_it_names(cache, tmp_path, monkeypatch, drawn):
    monkeypatch.delenv("RESERVOIR_DATA", raising=False)
    (tmp_path / "my.toml").write_text(HOSTILE.replace("DRAWN", drawn))
    made = reproduce([str(tmp_path / "my.toml")])
    done = report([])
    text = done.page.read_text()
    page = check(text)
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    assert page.pictures >= 5
    assert done.bytes < 5e6
    ours = made.tables[0]["rows"][0]["spots"][0]["mean"]
    assert f">{ours:.1f}<" in text
    assert f"({ours - 42:+.1f})" in text
    assert "--data" in text  # what is missing says what to do
    assert text.count("<h4>maps</h4>") == 1
    assert "diagonals at 0 back (string 2), 5 back (string 1)" in text
    assert "reservoir train bit-xor" in text
    assert "prefers-color-scheme: dark" in text
    assert EVIL not in report([], markdown=True).page.read_text()


def test_a_page_shows_a_fit_and_a_run(cache, tmp_path):
    from reservoir_pipelines import extract, fit, train

    small = {"backbone": "mini:n_layer=1,n_embd=16,n_head=2"}
    done = fit(extract("digits", limit=60, **small), curve="30,60")
    ran = train("bit-xor", steps=2, eval_every=1, **small)
    page = report([done.saved.parent, ran.run], out=tmp_path / "page.html").page
    text = page.read_text()
    assert check(text).pictures >= 5
    assert f"{100 * done.best.test_score:.1f}%" in text
    assert f"{100 * ran.test_score:.1f}%" in text
    assert "calibration error" in text
    listed = ", ".join(f"{name} {100 * score:.1f}%" for name, score in done.layers.items())
    assert list(done.layers) == ["embed", "block01", "final", "raw"] and listed in text
    assert max(done.layers.values()) <= max(result.valid_score for result in (*done.table, done.raw))
    assert f"60 rows {100 * done.curve[-1].test_score:.1f}%" in text
    for command in ("reservoir extract digits --", "reservoir fit /", "reservoir train bit-xor --"):
        assert f"<code>{command}" in text
    assert report([]).parts == 1  # of all, the fits
    summary = read_checked(done.saved.parent / SUMMARY)
    del summary["evaluation"]["reliability"]
    write_checked(done.saved.parent / SUMMARY, summary)
    with pytest.raises(InputError, match=r"another version of reservoir \('reliability'\); run"):
        report([done.saved.parent])
    (done.saved.parent / SUMMARY).write_text("{}")
    with pytest.raises(InputError, match="run reservoir fit again"):
        report([done.saved.parent])


def test_report_refuses_folders_without_results(cache, tmp_path, call):
    code, _, err = call("report")
    assert (code, err.count("\n")) == (2, 1)
    assert "nothing to report yet" in err
    code, _, err = call("report", tmp_path)
    assert (code, err.count("\n")) == (2, 1)


def test_every_number_of_an_evaluation_is_on_the_page(cache, tmp_path):
    from reservoir_pipelines import extract, fit

    done = fit(extract("digits", limit=60, backbone="mini:n_layer=1,n_embd=16,n_head=2"), out=tmp_path / "fit")
    summary = read_checked(tmp_path / "fit" / SUMMARY)
    summary["evaluation"] |= {"a_new_metric": 0.125}
    write_checked(tmp_path / "fit" / SUMMARY, summary)
    text = report([]).page.read_text()  # a fit elsewhere is found
    assert str(done.saved.parent) in text
    assert "<dt>a new metric</dt><dd>0.125</dd>" in text
    assert "<dt>majority baseline</dt>" in text


def test_labels_in_pictures_are_complete_and_literal(painted):
    classes = [f"a class of a long name, number {number}" for number in range(12)]
    classes[3:6] = EVIL, "$x_{$", "\x1b\ud800"
    side = 6.0
    source = page_picture((side, side), draw_confusion, np.eye(12, dtype=int) * 7, classes)
    svg = base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")).decode()
    ElementTree.fromstring(svg)
    texts = {
        "".join(text.itertext()).strip()
        for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    }
    assert "<script" not in svg
    assert {EVIL, "$x_{$", "\\x1b\\ud800", "7"} <= texts
    assert len({text for text in texts if text.startswith("a class")}) == 9
    assert page_picture((side, side), draw_confusion, np.eye(2, dtype=int), "ab") != source
    assert page_picture((side, side), draw_confusion, np.eye(2), "no picture") == ""
