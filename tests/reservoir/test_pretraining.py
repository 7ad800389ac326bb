"""Corpora depend on seed and step, keep the order of text, and have the stated entropies."""

import gzip
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.pretraining.corpora import BYTES, STREAMS, Nesting, Text, corpus_named
from reservoir.pretraining.language_model import CAUSAL, LanguageModel
from reservoir.random import generator
from tests.reservoir.models import save


@pytest.mark.parametrize("name", STREAMS)
def test_drawn_windows_depend_only_on_seed_and_step(name):
    first, again = STREAMS[name](64), STREAMS[name](64)
    windows = first.draw(3, 7, 5, 200)
    assert windows.dtype == np.int64 and windows.shape == (5, 200)
    first.draw(3, 8, 2, 10)
    np.testing.assert_array_equal(first.draw(3, 7, 5, 200), windows)
    np.testing.assert_array_equal(again.draw(3, 7, 5, 200), windows)
    for other in ((4, 7), (3, 8)):
        assert (first.draw(*other, 5, 200) != windows).mean() > 0.3
    valid, test = (first.held_out(split, 100) for split in ("valid", "test"))
    assert valid.windows.shape == test.windows.shape == (2621, 100)
    assert (valid.first == 1).all() and (valid.windows.shape[1] - valid.first).sum() == 2621 * 99
    np.testing.assert_array_equal(again.held_out("valid", 100).windows, valid.windows)
    assert (valid.windows[:5] != test.windows[:5]).mean() > 0.3
    assert first.describe()["corpus"] == name and first.vocabulary == 64


def chi_square(found, probabilities):
    """Return Pearson's chi-square statistic divided by its degrees of freedom, about 1 for the right probabilities."""
    expected = found.sum() * probabilities
    return float(((found - expected) ** 2 / expected).sum()) / (len(found) - 1)


@pytest.mark.parametrize("name", ["uniform", "zipf", "nesting"])
def test_tokens_have_the_stated_probabilities(name):
    windows = STREAMS[name](40).draw(0, 0, 400, 500)
    count = np.bincount(windows.ravel(), minlength=40)
    rank = 1 / np.arange(1, 21 if name == "nesting" else 41)
    expected = np.full(40, 1 / 40) if name == "uniform" else rank / rank.sum()
    assert chi_square(count[: len(expected)], expected) < 1.6
    assert (chi_square(count[::-1][: len(expected)], expected) > 100) == (name != "uniform")


def lengths_of_sequences(window, half):
    """Check with a stack that each closing token matches the last opened one; return the positions of empty stacks.

    A window's last sequence may be cut.
    """
    stack, ends = [], [0]
    for at, token in enumerate(window.tolist(), 1):
        if token < half:
            stack.append(token)
        else:
            assert stack and stack.pop() + half == token, at
        ends += [] if stack else [at]
    return ends


def test_nested_sequences_are_balanced_and_have_the_stated_lengths():
    lengths = range(90, 121, 2)
    for window in Nesting(12).windows(generator(0), 60, 700):
        ends = set(lengths_of_sequences(window, 6))
        # From the start of the window, steps of allowed lengths reach the ends of sequences, up to its last one.
        reached, frontier = set(), {0}
        while frontier:
            reached |= frontier
            frontier = {at + n for at in frontier for n in lengths if at + n in ends}
        assert max(reached) > 700 - 120
    sequences, lengths = Nesting(12).sequences(generator(1), 5000)
    assert set(lengths) == set(range(90, 121, 2)) and chi_square(np.bincount(lengths)[90::2], np.full(16, 1 / 16)) < 2
    for sequence, length in zip(sequences, lengths, strict=True):
        assert lengths_of_sequences(sequence[:length], 6)[-1] == length


def test_text_is_split_in_order_into_bytes(tmp_path):
    data = bytes(np.random.default_rng(0).integers(0, 256, 2000, np.uint8))
    (tmp_path / "data.txt").write_bytes(data)
    (tmp_path / "data.txt.gz").write_bytes(gzip.compress(data))
    text = Text(tmp_path / "data.txt")
    for split, a, b in (("train", 0, 1800), ("valid", 1800, 1900), ("test", 1900, 2000)):
        assert text._tokens[split].tobytes() == data[a:b]
    zipped = Text(tmp_path / "data.txt.gz")
    np.testing.assert_array_equal(zipped.draw(1, 2, 3, 50), text.draw(1, 2, 3, 50))
    assert zipped.describe()["sha256"] == text.describe()["sha256"]
    assert text.entropy is None and text.unit == "byte" and text.vocabulary == BYTES


def test_folder_is_read_in_the_order_of_file_names(tmp_path):
    (tmp_path / "books" / "b").mkdir(parents=True)
    (tmp_path / "books" / "c.txt").write_bytes(b"3" * 50)
    (tmp_path / "books" / "b" / "x.txt.gz").write_bytes(gzip.compress(b"2" * 30))
    (tmp_path / "books" / "a.txt").write_bytes(b"1" * 20)
    text = Text(tmp_path / "books")
    joined = b"".join(text._tokens[split].tobytes() for split in ("train", "valid", "test"))
    assert joined == b"1" * 20 + b"2" * 30 + b"3" * 50


@settings(max_examples=60, deadline=None)
@given(length=st.integers(40, 1500), tokens=st.integers(2, 40))
def test_each_held_out_token_counts_once(tmp_path_factory, length, tokens):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(bytes(length * 20 * [65]))
    text = Text(path)
    text._tokens["valid"] = np.arange(length, dtype=np.uint32)  # distinct values instead of bytes
    held = text.held_out("valid", tokens)
    assert (held.first >= 1).all() and held.windows.shape[1] == tokens
    counted = [w[first:] for w, first in zip(held.windows, held.first, strict=True)]
    covered = np.concatenate(counted)
    np.testing.assert_array_equal(covered, np.arange(1, len(covered) + 1))
    assert (held.windows.shape[1] - held.first).sum() == len(covered) > length - 1 - tokens
    assert (held.first[1:] >= tokens // 4).all()


def test_tokenizer_decodes_to_the_same_text(tmp_path):
    prose = "Ein Löwe, zwei Löwen: “quoted” — naïve façade, 漢字 and 🎲. "
    (tmp_path / "prose.txt").write_text(prose, encoding="utf-8")
    tokenizer = Text(tmp_path / "prose.txt").tokenizer
    assert tokenizer.encode(prose).ids == list(prose.encode())
    assert tokenizer.decode(list(prose.encode())) == prose and tokenizer.get_vocab_size() == 256


def test_a_mixture_takes_windows_of_each_corpus_in_turn(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 100)
    names = ["nesting", "zipf", str(tmp_path / "text")]
    mixed, parts = corpus_named(", ".join(names), 256), [corpus_named(name, 256) for name in names]
    for step, count in ((0, 4), (1, 4), (7, 2)):
        drawn = [part.draw(5, step, count, 60) for part in parts]
        assert (mixed.draw(5, step, count, 60) == [drawn[(step * count + at) % 3][at] for at in range(count)]).all()
    whole, held_out = mixed.held_out("valid", 60), [part.held_out("valid", 60) for part in parts]
    for at, part in enumerate(held_out):
        count = len(whole.windows) // 3
        assert (whole.windows[at::3] == part.windows[:count]).all() and (whole.first[at::3] == part.first[:count]).all()
    assert count == len(held_out[2].windows) and mixed.describe()["corpus"] == "nesting,zipf,text"


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"text" * 100)[:-9])
    with pytest.raises(InputError, match=r"broken.gz: not readable"):
        corpus_named(str(tmp_path / "broken.gz"), 256)


def test_too_little_text_for_a_window_is_refused(tmp_path):
    (tmp_path / "short.txt").write_bytes(b"x" * 1000)
    text = Text(tmp_path / "short.txt")
    with pytest.raises(InputError, match=r"short\.txt: .*50 tokens"):
        text.held_out("valid", 51)
    with pytest.raises(InputError, match=r"its train part has 900 tokens"):
        text.draw(0, 0, 1, 901)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a function that writes a tiny model of a family in half precision, like many published models."""
    root = tmp_path_factory.mktemp("shapes")

    def make(family):
        path = save(family, root / family)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
        return str(path)

    return make


@pytest.mark.parametrize("family", CAUSAL)
def test_language_model_logits_and_backbone_of_every_family(family, folder, tmp_path):
    shape = folder(family)
    model = LanguageModel(shape, 40, 1).train()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 40, (2, 9)))
    logits = model(tokens)
    assert torch.equal(logits, model(tokens)), "no dropout"
    assert logits.shape == (2, 9, 40)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 40
    seen = (model(changed) - logits).abs().amax((0, 2)) > 1e-6
    assert seen.tolist() == [False] * 5 + [True] * 4
    again, other = LanguageModel(shape, 40, 1), LanguageModel(shape, 40, 2)
    drawn = {name for name, p in model.named_parameters() if not torch.equal(p, other.get_parameter(name))}
    assert len(drawn) > 10 and all(torch.equal(p, again.get_parameter(n)) for n, p in model.named_parameters())
    model.model.save_pretrained(tmp_path / "kept")
    assert load_backbone(str(tmp_path / "kept"), "pretrained").shape.width == 16


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("t5-small", "--backbone t5-small: t5 models cannot be pretrained; use one of gpt2, "),
        ("bert-base-uncased", "bert models cannot be pretrained"),
        ("gpt2:n_embd=17,n_head=2", "--backbone gpt2:n_embd=17,n_head=2: this configuration is invalid"),
        ("gpt2:n_embd=abc", "n_embd takes int"),
        ("gpt2:activation_function=foo", "activation_function=foo: this configuration is invalid"),
        ('HuggingFaceTB/SmolLM2-135M:rope_parameters={"rope_type":"foo"}', r"is invalid \('foo'\)"),
        ("gpt2:n_layer=0", "sets blocks to 0; give at least 1"),
        ("nothing-like-it", "nothing-like-it"),
    ],
)
def test_backbones_that_cannot_be_pretrained_are_refused(backbone, message):
    with pytest.raises(InputError, match=message) as caught:
        LanguageModel(backbone, 256)
    assert "\n" not in str(caught.value)
