"""Poolings over masks of tokens, compared with models and tokenizers of transformers that are run by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir.features import forward
from reservoir.inputs import chat_template
from reservoir.inputs.chat_template import ChatTemplate
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.options import ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.tasks.task import Task, Tokens
from reservoir.tasks.texts import MarkedText, codes_of, parse_marks, with_span
from tests.helpers import outcome
from tests.reservoir.models import (
    CHAT_TEMPLATE,
    hidden_states,
    layer_names,
    save_with_chat_template,
    save_with_letters,
    save_with_tokenizer,
)

TASK = Task(name="texts.csv", form=Tokens(99), max_tokens=90, classes=2, alphabet=" abc")
CHATS = [
    [("user", "the cat sat"), ("assistant", " on a mat\n")],
    [("user", "a dog"), ("assistant", "the cow"), ("user", "a mat"), ("assistant", "the assistant sat and sat")],
    [("user", "assistant"), ("assistant", "the cat"), ("user", "cow")],
    [("user", "the dog and the cow sat on a mat")],
]
CHATS = [[{"role": role, "content": content} for role, content in chat] for chat in CHATS]
SPANS = [("the cat sat on a mat", 4, 7), ("a dog and a cow", 2, 15), ("cow", 0, 3), ("on the mat, cow and cat", 7, 11)]


def load(folder: Path, *, long: str = "cut", **parameters: object) -> LoadedModel:
    options = ReservoirOptions(backbone=str(folder), input="native", long=long)
    return load_model(replace(TASK, parameters=parameters), resolve_model(options), "cpu", "float32")


def features(model: LoadedModel, texts: list[str], poolings: list[str], batch_rows: int = 32) -> dict[str, np.ndarray]:
    """Return the features of texts, and check that each is the same alone, without padding."""
    names = [f"{layer}/{pooling}" for layer in ("embed", "block02", "final") for pooling in poolings]
    together = forward(model, None, *codes_of("here", texts), names, batch_rows)
    for row, text in enumerate(texts):
        alone = forward(model, None, *codes_of("here", [text]), names, 1)
        for name in names:
            np.testing.assert_allclose(alone[name][0], together[name][row], atol=1e-5, err_msg=name)
    return together


def states_of(kind: str, folder: Path, ids: list[int]) -> dict[str, np.ndarray]:
    """Return the layers (tokens, width) of a text by hand."""
    tensor = torch.tensor([ids])
    with torch.no_grad():
        states = hidden_states(kind, folder, input_ids=tensor, attention_mask=torch.ones_like(tensor))
    return {name: state[0, : len(ids)].numpy() for name, state in zip(layer_names(kind), states, strict=True)}


def test_marks_are_removed_from_texts_and_say_where_spans_are():
    assert parse_marks(with_span("the cat sat", 4, 7)) == MarkedText("the cat sat", ((4, 7),))
    assert parse_marks(with_span(with_span("ab", 1, 2), 0, 1)).spans == ((0, 1), (1, 2))


def test_poolings_of_chats_equal_a_script_with_transformers(tmp_path: Path):
    """The masks of answers are those of ``{% generation %}`` in transformers, and prompts run alone."""
    from transformers import AutoTokenizer

    folder = save_with_chat_template(tmp_path / "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pooled = features(
        load(folder, chat=True), [json.dumps(chat) for chat in CHATS], ["last-prompt", "assistant", "words"]
    )
    for row, chat in enumerate(CHATS):
        has_answer = chat[-1]["role"] == "assistant"
        options = {"return_dict": True, "add_generation_prompt": not has_answer}
        encoding = tokenizer.apply_chat_template(chat, return_assistant_tokens_mask=True, **options)
        prompt = tokenizer.apply_chat_template(chat[:-1] if has_answer else chat, add_generation_prompt=True)[
            "input_ids"
        ]
        ids, of_answer = encoding["input_ids"], np.array(encoding["assistant_masks"], bool)
        is_word = ~np.isin(ids, [*{*tokenizer.all_special_ids} - {tokenizer.unk_token_id}])  # unknown words are words
        assert is_word.sum() == sum(len(message["content"].split()) for message in chat)
        whole, before = states_of("llama", folder, ids), states_of("llama", folder, prompt)
        for layer in ("embed", "block02", "final"):
            expected = {
                "last-prompt": before[layer][-1],
                "assistant": whole[layer][of_answer].mean(0) if of_answer.any() else 0 * whole[layer][0],
                "words": whole[layer][is_word].mean(0),
            }
            for pooling, values in expected.items():
                np.testing.assert_allclose(pooled[f"{layer}/{pooling}"][row, 0], values, atol=1e-5, err_msg=pooling)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_pooling_of_spans_equals_a_script_with_transformers(kind: str, tmp_path: Path):
    from transformers import AutoTokenizer

    folder = save_with_tokenizer(kind, tmp_path / kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pooled = features(load(folder, span="a,b"), [with_span(*row) for row in SPANS], ["span", "last-prompt"])
    for row, (text, start, end) in enumerate(SPANS):
        encoding = tokenizer(text, truncation=True, padding=False, max_length=20)
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        states = states_of(kind, folder, encoding["input_ids"])
        for layer in ("embed", "block02", "final"):
            expected = states[layer][first : last + 1].mean(0)
            np.testing.assert_allclose(pooled[f"{layer}/span"][row, 0], expected, atol=1e-5)
            np.testing.assert_allclose(pooled[f"{layer}/last-prompt"][row, 0], states[layer][-1], atol=1e-5)


def test_spans_of_letters_that_a_tokenizer_needs_apart_are_those_of_the_letters(tmp_path: Path):
    folder = save_with_letters(tmp_path / "bert")
    pooled = features(load(folder, span="a,b"), [with_span("LAGVS", 1, 3), with_span("PKL", 0, 1)], ["span"])
    tokens = [{letter: 5 + place for place, letter in enumerate("LAGVSERTIDPK")}[letter] for letter in "LAGVS"]
    states = states_of("bert", folder, [2, *tokens, 3])
    np.testing.assert_allclose(pooled["final/span"][0, 0], states["final"][2:4].mean(0), atol=1e-5)


def test_poolings_over_masks_join_the_pieces_of_long_texts(tmp_path: Path):
    """A span and answers that lie in several pieces have the mean of all their tokens."""
    from transformers import AutoTokenizer

    folder = save_with_chat_template(tmp_path / "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = "the cat sat on a mat and the dog sat on a cow"
    texts = [f"{words} {words} {words} {words}", "a cow", f"cat {words} {words} {words}"]
    rows = [(texts[0], 90, 170), (texts[1], 2, 5), (texts[2], 0, 60)]
    pooled = features(load(folder, long="windows", span="a,b"), [with_span(*row) for row in rows], ["span"])
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": words}] for text in texts]
    by_chat = features(
        load(folder, long="windows", chat=True),
        [json.dumps(chat) for chat in chats],
        ["assistant", "last-prompt", "words"],
    )

    def by_hand(text: str, start: int, end: int, **options: bool) -> tuple[list, list]:
        """Return the states of the tokens in a span, and those before it, in order."""
        pieces = tokenizer(
            text, truncation=True, max_length=32, return_overflowing_tokens=True, return_offsets_mapping=True,
            padding=False, **options,
        )  # fmt: skip
        inside, before = [], []
        for ids, offsets in zip(pieces["input_ids"], pieces["offset_mapping"], strict=True):
            states = states_of("llama", folder, ids)["final"]
            inside += [s for s, (a, b) in zip(states, offsets, strict=True) if a < end and start < b and a < b]
            before += [s for s, (_, b) in zip(states, offsets, strict=True) if b <= start]
        return inside, before

    for row, (text, start, end) in enumerate(rows):
        inside, _ = by_hand(text, start, end)
        np.testing.assert_allclose(pooled["final/span"][row, 0], np.mean(inside, axis=0), atol=1e-5)
    for row, chat in enumerate(chats):
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        place = text.index("<|assistant|>") + len("<|assistant|>")
        inside, before = by_hand(text, place, place + len(words), add_special_tokens=False)
        np.testing.assert_allclose(by_chat["final/assistant"][row, 0], np.mean(inside, axis=0), atol=1e-5)
        np.testing.assert_allclose(by_chat["final/last-prompt"][row, 0], before[-1], atol=1e-5)


def test_texts_without_a_token_of_a_mask_are_counted(tmp_path: Path):
    model = load(save_with_tokenizer("gpt2", tmp_path / "gpt2"), span="a,b")
    long = "the cat " * 40
    pooled = features(model, [with_span(long, 300, 307), with_span("a cow", 2, 5)], ["span"])
    assert not pooled["final/span"][0].any() and pooled["final/span"][1].any()
    assert model.reader and "no token for the pooling span" in model.reader.note


@pytest.mark.parametrize("long", ["cut", "windows"])
def test_texts_of_added_special_tokens_alone_are_counted(tmp_path: Path, long: str):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    rules = json.loads((folder / "tokenizer.json").read_text())
    options = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    rules["normalizer"] = {"type": "BertNormalizer", **options}
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    model = load(folder, long=long)
    texts = ["\u200b\u0007", "the cat " * 40, "a cow"]  # the normaliser removes control characters
    pooled = forward(model, None, *codes_of("here", texts), ["final/words"], 32)
    assert pooled["final/words"].any(axis=(1, 2)).tolist() == [False, True, True]
    assert model.reader and "1 of 3 texts have no token for the pooling words" in model.reader.note


def test_special_tokens_that_are_written_in_a_text_count_as_words(tmp_path: Path):
    from transformers import AutoTokenizer

    folder = save_with_tokenizer("bert", tmp_path / "bert")
    text = "a [CLS] cow"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    assert ids.count(tokenizer.cls_token_id) == 2
    words = states_of("bert", folder, ids)["final"][1:-1]
    pooled = features(load(folder), [text], ["words"])
    np.testing.assert_allclose(pooled["final/words"][0, 0], words.mean(0), atol=1e-5)


@pytest.mark.parametrize("has_answer", [True, False])
def test_a_prompt_that_is_cut_has_no_last_token(tmp_path: Path, has_answer: bool):
    model = load(save_with_chat_template(tmp_path / "llama"), chat=True)
    answer = [{"role": "assistant", "content": "a cow"}] if has_answer else []
    chats = [[{"role": "user", "content": text}, *answer] for text in ("the cat " * 40, "a mat")]
    pooled = features(model, [json.dumps(chat) for chat in chats], ["last-prompt"])
    assert not pooled["final/last-prompt"][0].any() and pooled["final/last-prompt"][1].any()
    assert model.reader and "no token for the pooling last-prompt" in model.reader.note


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "word"),
    [
        (LOOP, "seconds"),
        ("{{ 'a' * 4000000000 }}", "MemoryError"),
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("a" * (2**20 + 1), "1,048,577 letters"),
    ],
)
def test_a_template_that_fails_or_exceeds_a_limit_is_refused_in_one_line(template, word, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.5)

    def render() -> None:
        ChatTemplate(template, {}, "backbone 'x'").render([json.dumps(CHATS[0])])

    assert word in outcome(render)


def test_a_template_does_not_see_the_date_or_random_numbers():
    template = "{{ strftime_now('%d %b %Y') }} {{ range(99999) | random }}"
    texts = {ChatTemplate(template, {}, "x").render([json.dumps(CHATS[3])])[0].text for _ in range(2)}
    assert len(texts) == 1 and texts.pop().startswith("26 Jul 2024 ")


def test_answers_that_a_template_changes_have_no_places(tmp_path: Path):
    upper = CHAT_TEMPLATE.replace("message.content | trim", "message.content[:4] | upper")
    model = load(save_with_chat_template(tmp_path / "llama", upper), chat=True)
    chats = codes_of("here", [json.dumps(chat) for chat in CHATS])
    assert "the assistant says" in outcome(forward, model, None, *chats, ["final/assistant"], 4)
    assert forward(model, None, *chats, ["final/mean"], 4)["final/mean"].shape == (4, 1, 16)


def test_the_digest_of_the_template_is_one_of_the_input(tmp_path: Path):
    folder = save_with_chat_template(tmp_path / "llama")
    first = load(folder, chat=True).input_digests
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + "\n\n{{ 'a' }}")
    second = load(folder, chat=True).input_digests
    assert {name for name in first if first[name] != second[name]} == {"template"}
    assert "template" not in load(folder).input_digests
    (folder / "chat_template.jinja").unlink()
    assert "chat_template.jinja" in outcome(load, folder, chat=True)
