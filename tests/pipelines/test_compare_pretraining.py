"""The comparison of what backbones are pretrained on: the stages' own numbers, for equal tokens, made only once."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from reservoir_cache import last_entry
from reservoir_pipelines import compare_pretraining, extract, fit, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.pretraining.compared import plot_comparison

from reservoir.errors import InputError
from reservoir.pretraining.steps import LanguageSteps
from reservoir.training.steps import FPTSteps

pytestmark = pytest.mark.usefixtures("few_bits", "short_streams")
SHAPE = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=128"
PLAIN = {"device": "cpu", "compute": "float32"}
SMALL = {**PLAIN, "backbone": SHAPE, "batch_tokens": 1024, "tokens": 6000, "steps": 3, "limit": 60, "seed": 1}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "letters.txt"
    path.write_bytes(np.random.default_rng(0).choice(list(b"aeiou "), 20_000).astype(np.uint8).tobytes())
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def done(root, text):
    """Return a comparison of four backbones on digits."""
    corpora = "text,bit-memory,zipf,random"
    return compare_pretraining("digits", corpora=corpora, text_file=text, cache=root, **SMALL)


def never(*_args, **_more):
    raise AssertionError("this was made already")


def test_line_6_the_last_extraction_stays_the_last(tmp_path):
    mine = extract("digits", cache=tmp_path, backbone=SHAPE, init="random", seed=5, limit=60).entry
    asked = SMALL | {"corpora": "random", "output_only": True}
    compare_pretraining("digits", cache=tmp_path, **asked)
    assert len(list(mine.parent.iterdir())) == 2
    assert last_entry(tmp_path, "digits").path == mine


def numbers(done):
    """Return what a comparison found, less the folders."""
    return [list(row.cells().values())[:-1] for row in done.rows]


def test_all_read_as_many_tokens_to_the_nearest_step(done):
    *made, random = done.rows
    assert [row.corpus for row in done.rows] == ["text", "bit-memory", "zipf", "random"]
    assert [row.pretraining.steps for row in made] == [6, 6, 6]
    for row in made:
        each = row.pretraining.tokens / row.pretraining.steps
        assert each == (960 if row.corpus == "bit-memory" else 1024)
        assert abs(row.pretraining.tokens - 6000) <= each / 2
    assert random.pretraining is None


def test_the_numbers_are_those_of_the_stages(done, root):
    zipf, random = done.rows[2:]
    for row, weights in (
        (zipf, {"backbone": zipf.pretraining.folder, "init": "pretrained"}),
        (random, {"backbone": SHAPE, "init": "random"}),
    ):
        given = {**PLAIN, **weights, "limit": 60, "seed": 1, "cache": root}
        assert row.output_only == fit(extract("digits", **given)).best
        mine = train("digits", steps=3, run=root / f"mine-{row.corpus}", **given)
        assert (row.fpt.valid_score, row.fpt.test_score) == (mine.valid_score, mine.test_score)
    # The same map, seen through other weights, is another one.
    assert zipf.output_only != random.output_only


def test_what_is_made_is_reused(done, root, text, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(LanguageSteps, "take", never)
    monkeypatch.setattr(FPTSteps, "take", never)
    monkeypatch.setattr("reservoir_pipelines.extraction.run.forward", never)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, "cache": root}.items()]
    command = ["compare-pretraining", "digits", *options]
    assert run([*command, "--corpora", "text,bit-memory,zipf,random", "--text-file", str(text), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["rows"] == [row.to_dict() for row in done.rows]
    assert run([*command, "--corpora", "zipf", "--out", str(tmp_path)]) == 0
    table = capfd.readouterr().out.splitlines()
    line = next(line for line in table if line.startswith("zipf")).split()
    row = done.rows[2]
    accuracies = row.output_only.test_score, row.fpt.test_score
    assert line[1] == "6,144"
    assert line[-2:] == [f"{100 * accuracy:.1f}%" for accuracy in accuracies]
    assert f"{row.pretraining.test_bits:.3f} bits per token" in " ".join(line)


def test_the_table_on_disk_reads_back(done):
    with done.results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, done.rows, strict=True):
        assert list(line) == list(row.cells())
        for name, value in row.cells().items():
            if isinstance(value, float):
                assert float(line[name]) == pytest.approx(value, abs=1e-6)
            else:
                assert line[name] == ("" if value is None else str(value))
    assert done.plot.read_bytes().startswith(b"\x89PNG")


def test_the_title_of_a_plot_fits_beside_few_corpora(done, tmp_path, painted, monkeypatch):
    def measure(figure, *_args, **_more):
        figure.draw_without_rendering()
        (title,) = (text for text in figure.texts if "digits" in text.get_text())
        seen.append((title.get_window_extent(), figure.bbox))

    seen = []
    monkeypatch.setattr(Figure, "savefig", measure)
    monkeypatch.setattr("reservoir_pipelines.plots.replace_file", lambda path, write: write(path))
    for backbone in ("mini", SHAPE, f"bert-base-uncased:{'hidden_size=32,' * 6}"):
        plot_comparison(tmp_path / "plot.png", done.rows[:1], f"digits: {backbone}, pretrained on 4,194,304 tokens")
    for title, page in seen:
        assert title.x0 >= 0 and title.x1 <= page.x1
    assert len(seen) == 3


def test_an_interrupted_comparison_goes_on(done, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    asked = {**SMALL, "corpora": ["zipf", "random"], "cache": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(FPTSteps, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare_pretraining("digits", **asked)
    monkeypatch.setattr(LanguageSteps, "take", never)
    again = compare_pretraining("digits", **asked)
    assert numbers(again) == numbers(done)[2:]


def test_the_output_alone(root, monkeypatch):
    monkeypatch.setattr(FPTSteps, "take", never)
    done = compare_pretraining("digits", corpora="random", output_only=True, cache=root, out=root / "alone", **SMALL)
    assert done.rows[0].fpt is None
    assert done.results == root / "alone" / "results.csv"


def test_another_comparison_leaves_the_results_of_the_first(root, text, tmp_path):
    def results(**other):
        asked = {**SMALL, "corpora": "random", "output_only": True, **other}
        return compare_pretraining("digits", cache=root, **asked)

    first = results().results
    before = first.read_bytes()
    asked = [{"seed": 2}, {"limit": 50}, {"corpora": "random,zipf"}, {"vocabulary": 300}, {"batch_tokens": 2048}]
    asked += [{"compute": "bfloat16"}, {"output_only": False}]
    folders = [results(**other).results.parent for other in asked]
    other = tmp_path / "letters.txt"
    other.write_bytes(text.read_bytes()[::-1])
    folders += [results(corpora="text", text_file=path).results.parent for path in (text, other)]
    assert len({first.parent, *folders}) == len(folders) + 1
    assert first.read_bytes() == before
    assert results().results == first


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"corpora": "text"}, "--corpora text: say which with --text-file PATH"),
        ({"corpora": "zipf,latin"}, "--corpora latin: no such corpus; choose among text, bit-memory, nesting"),
        ({"corpora": " , "}, "--corpora: name at least one"),
        ({"corpora": "text", "text_file": "gone.txt"}, "--text-file gone.txt: no such file or folder"),
        ({"corpora": "zipf", "text_file": "letters.txt"}, "--text-file letters.txt: text is not among --corpora zipf"),
        ({"corpora": "zipf", "tokens": 0}, "--tokens 0: give a whole number from 1"),
        ({"corpora": "zipf", "limit": 0}, "--limit 0: give a whole number from 1"),
        ({"corpora": "zipf", "out": "letters.txt"}, "--out letters.txt: letters.txt is no folder; name another"),
        ({"corpora": "zipf", "out": "letters.txt/a"}, "--out letters.txt/a: letters.txt is no folder; name another"),
        (
            {"corpora": "zipf,text", "text_file": "letters.txt"},
            "its valid part has 0 tokens, and a window 129",
        ),
        ({"corpora": "bit-memory,zipf", "batch_tokens": 127}, "--batch-tokens 127: give at least one window, 128"),
        ({"corpora": "zipf,bit-memory", "batch_tokens": 119}, "--batch-tokens 119: give at least one"),
        ({"corpora": "bit-memory", "batch_tokens": 119}, "--batch-tokens 119: give at least one row, 120 tokens"),
        ({"corpora": "zipf,nesting", "vocabulary": 31}, "--vocabulary 31: of nesting it is an even number"),
        ({"corpora": "zipf", "backbone": "lstm"}, "lstm models cannot be pretrained here"),
        ({"corpora": "zipf", "backbone": f"{SHAPE},n_positions=10"}, "but this gpt2 has 10 positions"),
        ({"corpora": "zipf,bit-memory", "backbone": f"{SHAPE},n_positions=80"}, "sequences of 120 tokens, but"),
    ],
)
def test_what_does_not_work_is_refused_before_anything_is_pretrained(asked, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.txt").write_text("aeiou")
    monkeypatch.setattr("reservoir_pipelines.pretraining.comparison.pretrain", never)
    if "text_file" in asked:
        asked = {**asked, "text_file": tmp_path.joinpath(asked["text_file"]).relative_to(tmp_path)}
    if "out" in asked:
        asked = {**asked, "out": Path(asked["out"])}
    with pytest.raises(InputError) as error:
        compare_pretraining("digits", **{**SMALL, **asked, "cache": tmp_path / "cache"})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
