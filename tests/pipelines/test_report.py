"""The page: complete in itself, readable by machines, true to what was kept, and safe from what is named in it."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from reservoir_pipelines.files import read_checked, write_checked
from reservoir_pipelines.fitting.results import SUMMARY
from reservoir_pipelines.reports.charts import image_uri
from reservoir_pipelines.reports.report import report
from reservoir_pipelines.reproduction.reproduce import reproduce

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
    """Checks that tags nest, that ids are different, that links lead somewhere, and that pictures are told in words."""

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
        if tag == "svg":
            assert attrs["role"] == "img"
            assert len(attrs["aria-label"]) > 10
            self.pictures += 1
        if tag == "image":
            assert attrs["href"].startswith("data:image/png;base64,")
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
    assert 'class="mark" x1="40" y1="100.0"' in text  # the other string of the token, five before it
    assert "reservoir train bit-xor" in text
    assert "prefers-color-scheme: dark" in text
    assert EVIL not in report([], markdown=True).page.read_text()


def test_a_fit_and_a_run_alone_have_a_page(cache, tmp_path):
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
    assert f"60 rows {100 * done.curve[-1][2]:.1f}%" in text
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


def test_what_cannot_be_reported_is_named(cache, tmp_path, call):
    code, _, err = call("report")
    assert (code, err.count("\n")) == (2, 1)
    assert "nothing to report on yet" in err
    code, _, err = call("report", tmp_path)
    assert (code, err.count("\n")) == (2, 1)


def test_a_matrix_is_a_png_that_others_read():
    import base64
    import io

    from matplotlib.image import imread

    values = np.array([[0.0, 1.0, np.nan], [0.5, 0.25, 0.75]])
    found = imread(io.BytesIO(base64.b64decode(image_uri(values).partition(",")[2])))
    assert found.shape == (2, 3, 4)
    assert np.allclose(found[0, 0, :3] * 255, (68, 1, 84))
    assert np.allclose(found[0, 1, :3] * 255, (253, 231, 37), atol=1)
    assert found[0, 2, 3] == 0
