"""No name that comes with data controls the terminal; JSON stays as it is; values that float32 can hardly hold."""

import io
import json
import sys
import warnings

import numpy as np
import pytest
from reservoir_pipelines import ReservoirClassifier
from reservoir_pipelines.output import as_json, meter, notify, print_json, print_table, printable

EVIL = "\x1b]0;owned\x07\x1b[2J\u202eabc\u2066\x9b\r\n\ud800\u200b"
HIDDEN = set("\x1b\x07\x9b\r\u202e\u2066\ud800\u200b")


def hostile(text):
    """Return the characters of a text that would control a terminal."""
    return HIDDEN & set(text)


@pytest.mark.parametrize("text", ["plain", "café", "日本語", "नमस्ते", "👩‍👩‍👧", "a\u00a0b", "[red]", "‌می‌خواهم"])
def test_ordinary_names_of_any_language_are_printed_as_they_are(text):
    assert printable(text) == text


def test_what_controls_a_terminal_is_escaped():
    assert printable("\x1b[31m\u202e\n\ud800") == r"\x1b[31m\u202e\n\ud800"
    assert printable(EVIL).isprintable()


def test_tables_messages_and_progress_are_escaped(capsys):
    print_table((EVIL, "#" + EVIL), [(EVIL, 1), ("[bold red]x[/]", EVIL)], EVIL)
    notify(EVIL + " [red]")
    out, error = capsys.readouterr()
    assert not hostile(out + error)
    assert len(out.splitlines()) == 6  # a title, the head, two rows, and the end
    assert "[bold red]x[/]" in out and "[red]" in error
    assert len(error.splitlines()) == 1


def test_json_is_faithful_and_ascii(capsys):
    print_json({"label": EVIL})
    out, _ = capsys.readouterr()
    assert out.isascii() and not hostile(out)
    assert json.loads(out)["label"] == EVIL


def test_a_bar_on_a_terminal_shows_names_and_obeys_none(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    with meter("[red]{0}\x1b]0;owned\x07", 10) as bar:
        bar.show(5, "{x} [blue]\u202e")
    for text in ("[red]{0}\\x1b]0;owned\\x07", "{x} [blue]\\u202e"):
        assert text in shown.getvalue()
    assert not {"\x07", "\u202e"} & set(shown.getvalue())


def test_commands_print_labels_columns_and_file_names_escaped(tmp_path, call):
    draw = np.random.default_rng(0)
    data = tmp_path / "rows\x1b[31m\u202e.csv"
    lines = [f"{a:.3f},{b:.3f},{'up' + EVIL[:11] if a + b > 0 else 'down'}" for a, b in draw.normal(size=(80, 2))]
    data.write_text("\n".join(["a,b,label\u202e", *lines]))
    flags = ("--cache", tmp_path / "cache")
    shape = ("--backbone", "mini:n_layer=1,n_embd=16", "--init", "random", "--layers", "final", "--pool", "mean")
    for command in (
        ("extract", data, *flags, *shape, "--label", "label\u202e"),
        ("fit", data, *flags, "--out", tmp_path / "fit\x1b"),
        ("predict", tmp_path / "fit\x1b", data, *flags),
        ("cache", "list", *flags),
        ("extract", tmp_path / "missing\x1b[31m.csv", *flags),
        ("extract", data, *flags, "--backbone\x1b", "x"),
        ("report", *flags),
    ):
        _, out, error = call(*command)
        assert not hostile(out + error), command
        assert "Traceback" not in error


BACKBONE = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"


def test_estimators_scale_values_near_1e_40():
    x = (np.random.default_rng(0).normal(size=(90, 6, 2)) * 1e-40).astype(np.float32)
    y = x[:, :, 0].mean(axis=1) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier = ReservoirClassifier(backbone=BACKBONE, init="random", layers="embed", pool="mean").fit(x, y)
    assert classifier.score(x, y) > 0.8


def test_numbers_that_json_does_not_have_become_null():
    values = {"a": [float("nan"), 1.0], "b": (float("inf"), -float("inf")), "c": np.float64("nan")}
    assert as_json(values) == {"a": [None, 1.0], "b": [None, None], "c": None}
