"""Labels of words and of spans become those of a model's own tokens, as a transformers model run by hand has them."""

import csv
import functools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from reservoir_cache import FeatureStore, write_targets
from reservoir_pipelines import compare, export_features, extract, fit, import_features, predict, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.data.conll import read as read_conll
from reservoir_pipelines.data.table_rows import read as read_table_rows
from reservoir_pipelines.extraction import entries
from reservoir_pipelines.extraction.extract import find_entry, resolved_plan
from reservoir_pipelines.prediction.outputs import evaluate_predictions
from sklearn.linear_model import Ridge
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from transformers import AutoModel, AutoTokenizer

from reservoir import InputError
from reservoir.options import ExtractOptions, OwnDataOptions
from tests.helpers import contents
from tests.reservoir.models import save

PARTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "##ing", "cat", "##s", "dog", "do", "é", "a"]
WORDS = ["undo", "undoing", "cats", "cat", "dog", "dogs", "doing", "éa", "a", "\N{CAT FACE}"]
EXACT = {"compute": "float32", "store": "float32"}


def label_of(words, number):
    """Return a label that depends on the word before, so that layers with context tell more than tokens alone."""
    return "PLURAL" if words[number].endswith("s") else "AFTER" if number and words[number - 1] == "a" else "O"


def sentences(number=48, seed=0, most=9):
    draw = np.random.default_rng(seed)
    rows = [[str(word) for word in draw.choice(WORDS, draw.integers(1, most))] for _ in range(number)]
    return [(words, [label_of(words, place) for place in range(len(words))]) for words in rows]


def write_words(path, rows, **columns):
    frame = {"tokens": [words for words, _ in rows], "ner_tags": [labels for _, labels in rows]} | columns
    if path.suffix == ".parquet":
        pd.DataFrame(frame).to_parquet(path)
    elif path.suffix == ".conll":
        lines = ["\n".join(f"{word} x {label}" for word, label in zip(*row, strict=True)) for row in rows]
        path.write_text("\n\n".join(lines) + "\n")
    else:
        records = [dict(zip(frame, values, strict=True)) for values in zip(*frame.values(), strict=True)]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_spans(path, number=48):
    """Write texts with spans around plurals, that begin or end within tokens and after white space."""
    records = []
    for words, _ in sentences(number):
        text = "  " + "  ".join(words) + "\n"
        spans = [{"start": m.start(), "end": m.end(), "label": "PLURAL"} for m in re.finditer(r" ?\w+s\b", text)]
        records.append({"text": text, "spans": spans, "id": f"text{len(records)}"})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path, records


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of a tiny BERT with a vocabulary of parts of words."""
    folder = save("bert", tmp_path_factory.mktemp("model") / "bert")
    (folder / "vocab.txt").write_text("\n".join(PARTS))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture(scope="module")
def fitted(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    path = write_words(folder / "words.jsonl", sentences())
    features = extract(path, backbone=model, cache=folder / "cache", **EXACT)
    options = {"select": "valid", "alphas": "1:1:1", "columns": "block02/all"}
    return features, fit(features, out=folder / "readout", **options), path


@functools.cache  # loading takes longer than reading a text
def loaded(folder):
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


@torch.no_grad()
def by_hand(folder, text):
    """Return token IDs, offsets and the hidden states of all layers of one text."""
    tokenizer, model = loaded(folder)
    encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
    offsets = encoded.pop("offset_mapping")[0].tolist()
    states = model(**encoded, output_hidden_states=True).hidden_states
    return encoded["input_ids"][0].numpy(), offsets, [state[0].numpy() for state in states]


def test_a_word_has_the_features_and_the_label_of_its_first_token(fitted, model):
    features, _, _ = fitted
    rows, tokenizer = sentences(), AutoTokenizer.from_pretrained(model)
    assert sum(features.rows.values()) == sum(len(words) for words, _ in rows)
    for split in features:
        part = features[split]
        assert part.pointers[-1] == part.rows == features.rows[split]
        for text, number in enumerate(part.ids[part.pointers[:-1]]):
            words, labels = rows[number]
            own = part.tokens_of(text)
            ids, _, layers = by_hand(model, " ".join(words))
            word_ids = tokenizer(words, is_split_into_words=True).word_ids()
            first = [word_ids.index(word) for word in range(len(words))]
            assert part.token_ids[own].tolist() == ids[first].tolist()
            assert [" ".join(words)[a:b] for a, b in part.spans[own]] == words
            assert [("AFTER", "O", "PLURAL")[y] for y in part.y[own]] == labels
            assert {*part.ids[own]} == {number} and len({*part.groups[own]}) == len({*part.index[own]}) == 1
            for layer, name in enumerate(["embed", "block01", "block02"]):
                np.testing.assert_allclose(part[f"{name}/all"][own], layers[layer][first], atol=1e-5)
    assert len(np.unique(np.concatenate([features[split].groups for split in features]))) == len(rows)


def save_with_space_marks(folder):
    """Write a tiny Llama whose tokenizer marks spaces, as SentencePiece does, and the beginning of a text."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    save("llama", folder)
    tokens = ["<unk>", "<s>", "\u2581", *"20was", "as", "was", "\u2581was"]
    merges = [("a", "s"), ("w", "as"), ("\u2581", "was")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(folder)
    return folder


def test_the_mark_of_a_space_at_the_first_letter_of_a_word_does_not_stand_for_it(tmp_path):
    folder = save_with_space_marks(tmp_path / "llama")
    options = {"backbone": folder, "cache": tmp_path / "cache", "layers": "block01", **EXACT}
    ids, offsets, layers = by_hand(folder, "2020 was")
    assert ids.tolist() == [1, 2, 3, 4, 3, 4, 10] and offsets[1] == offsets[2] == [0, 1]
    words = write_words(tmp_path / "words.jsonl", [(["2020", "was"], ["N", "V"]), (["was", "2020"], ["V", "N"])] * 15)
    features = extract(words, **options)
    part = features["train"]
    for text, number in enumerate(part.ids[part.pointers[:-1]]):
        own = part.tokens_of(text)
        assert part.token_ids[own].tolist() == ([10, 3] if number % 2 else [3, 10])
        if number % 2 == 0:
            np.testing.assert_allclose(part["block01/all"][own], layers[1][[2, 6]], atol=1e-5)
    # The key differs from that of versions in which the mark stood for the word; other entries keep theirs.
    assert features.store.entry.spec.input.space_marks == "left out"
    others = write_words(tmp_path / "others.jsonl", [(["was", "2020"], ["V", "N"])] * 30)
    assert extract(others, **options).store.entry.spec.input.space_marks is None
    # A mark that has the place of a space is a token like others.
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": "2020 2 was", "label": n % 2}) + "\n" for n in range(30)))
    part = extract(texts, each_token=True, **options)["train"]
    own = part.tokens_of(0)
    assert part.token_ids[own].tolist() == [3, 4, 3, 4, 2, 3, 10] and part.spans[own][0].tolist() == [0, 1]


def test_every_token_with_letters_has_the_label_of_the_span_of_its_first_letter(model, tmp_path):
    path, records = write_spans(tmp_path / "spans.jsonl")
    features = extract(path, backbone=model, cache=tmp_path / "cache", layers="block01", **EXACT)
    for split in features:
        part = features[split]
        for text, name in enumerate(part.ids[part.pointers[:-1]]):
            record, own = records[int(name.removeprefix("text"))], part.tokens_of(text)
            whole = record["text"]
            ids, offsets, layers = by_hand(model, whole)
            real = [token for token, (begin, end) in enumerate(offsets) if end > begin]
            inside = [
                any(span["start"] <= offsets[token][0] < span["end"] for span in record["spans"]) for token in real
            ]
            assert part.y[own].tolist() == [int(is_inside) for is_inside in inside]
            assert part.token_ids[own].tolist() == ids[real].tolist()
            assert part.spans[own].tolist() == [[*offsets[token]] for token in real]
            np.testing.assert_allclose(part["block01/all"][own], layers[1][real], atol=1e-5)
    assert {*map(int, np.concatenate([features[split].y for split in features]))} == {0, 1}
    # Another tokenizer may find as many tokens at other places.
    shutil.copytree(features.entry, tmp_path / "other")
    other, part = FeatureStore(tmp_path / "other"), features["valid"]
    targets = {"y": part.labels} | {name: getattr(part, name) for name in entries.UNNAMED_TARGETS}
    targets["spans"] = targets["spans"] + np.array([0, 1], np.int32)
    write_targets(other.entry, "valid", targets)
    with pytest.raises(InputError, match="their models divide the texts differently; fit the columns of one model"):
        fit([features, tmp_path / "other"])


def test_readout_and_score_are_those_of_words(fitted):
    features, result, _ = fitted
    (x, y), (new, truth) = [(np.asarray(features[s]["block02/all"]), features[s].y) for s in ("train", "test")]
    scale = StandardScaler().fit(x)
    ridge = Ridge(alpha=1.0).fit(scale.transform(x), np.where(y[:, None] == np.arange(3), 1.0, -1.0))
    score = (ridge.predict(scale.transform(new)).argmax(1) == truth).mean()
    assert result.best.test_score == pytest.approx(score, abs=1e-6) and score > 0.7
    assert result.evaluation.samples == len(truth)
    assert result.evaluation.groups == len(np.unique(features["test"].index))


def names_of_rows(features, split, words):
    part = features[split]
    if not words:
        return part.token_ids.tolist()
    rows = sentences()
    texts = [" ".join(rows[number][0]) for number in part.ids]
    return [text[start:end].lower() for text, (start, end) in zip(texts, part.spans, strict=True)]


@pytest.mark.parametrize(("words", "select"), [(True, "valid"), (True, "cv4"), (False, "cv4")])
def test_the_baseline_is_ridge_of_the_word_or_token_alone(words, select, fitted, model, tmp_path):
    if words:
        features, _, _ = fitted
    else:
        path, _ = write_spans(tmp_path / "spans.jsonl")
        features = extract(path, backbone=model, cache=tmp_path / "cache", layers="embed", **EXACT)
    done = fit(features, out=tmp_path / "readout", select=select, columns="embed/all", control=True, mdl=True)
    (baseline,) = done.baselines
    assert baseline.name == ("the word alone" if words else "the token alone")
    known = [name for split in ("train", "valid") for name in names_of_rows(features, split, words)]
    encoder = OneHotEncoder(handle_unknown="ignore").fit(np.array(known)[:, None])
    y = np.concatenate([features[split].y for split in ("train", "valid")])
    classes = int(y.max()) + 1
    coded = np.where(y[:, None] == (np.arange(classes) if classes > 2 else [1]), 1.0, -1.0)
    ridge = Ridge(alpha=baseline.alpha, fit_intercept=False)
    ridge.fit(encoder.transform(np.array(known)[:, None]), coded - coded.mean(axis=0))
    test = encoder.transform(np.array(names_of_rows(features, "test", words))[:, None])
    scores = ridge.predict(test).reshape(len(features["test"].y), -1) + coded.mean(axis=0)
    predicted = scores.argmax(axis=1) if classes > 2 else scores[:, 0] > 0
    assert baseline.test_score == pytest.approx(np.mean(predicted == features["test"].y))
    # Random labels of words are learnt by heart, and no model is saved for the baseline.
    assert baseline.control_score > 0.9 and baseline.description_bits is None
    assert baseline.name in {comparison.name for comparison in done.against}
    assert not done.best.name.startswith("the ")
    # Of folds, the file has the held-out predictions of train, too.
    with done.predictions.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["split"] != "test" and line[baseline.name]]
    assert {line["split"] for line in lines} == ({"train", "valid"} if select == "cv4" else {"valid"})
    accuracy = np.mean([line[baseline.name] == line["label"] for line in lines])
    assert accuracy == pytest.approx(baseline.valid_score)


def test_folds_keep_the_words_of_a_text_or_of_a_group_together(model, tmp_path):
    rows = sentences(40)
    path = write_words(tmp_path / "groups.jsonl", rows, group=[f"g{row // 4}" for row in range(40)])
    features = extract(path, backbone=model, cache=tmp_path / "cache", layers="block01", **EXACT)
    for split in features:
        part = features[split]
        assert part.rows > len(part.pointers) - 1 > len(np.unique(part.groups))
        assert all(len({*part.groups[part.tokens_of(text)]}) == 1 for text in range(len(part.pointers) - 1))
    result = fit(features, out=tmp_path / "readout", columns="block01/all", select="cv3")
    with result.predictions.open() as file:
        lines = list(csv.DictReader(file))
    assert {line["token"] for line in lines} >= {"0", "1", "2"} and len(lines) == sum(features.rows.values())
    assert len({(line["split"], line["id"], line["token"]) for line in lines}) == len(lines)
    same = compare(tmp_path / "readout", tmp_path / "readout")
    assert same.difference == 0 and same.rows == len(np.unique(features["test"].index))


def test_parquet_and_conll_files_are_read_alike(fitted, model, tmp_path):
    features, _, _ = fitted
    for suffix in ("parquet", "conll"):
        path = write_words(tmp_path / f"words.{suffix}", sentences())
        other = extract(path, backbone=model, cache=tmp_path / "cache", layers="block01", **EXACT)
        for split in features:
            mine, theirs = features[split], other[split]
            assert np.array_equal(mine["block01/all"], theirs["block01/all"])
            for name in ("y", "groups", "token_ids", "spans", "pointers"):
                assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


def test_documents_of_conll_2003_are_groups(model, tmp_path):
    text = "".join(f"-DOCSTART- -X- O\n\ncats P\ndo Q\n\n{WORDS[n % 8]} P\na Q\n\n" for n in range(20))
    (tmp_path / "docs.conll").write_text(text)
    features = extract(tmp_path / "docs.conll", backbone=model, cache=tmp_path / "cache", layers="embed", **EXACT)
    assert sum(len(np.unique(features[split].groups)) for split in features) == 20
    assert sum(features.rows.values()) == 80


def test_parts_that_cut_texts_and_a_resumed_extraction_give_the_same_features(fitted, model, tmp_path, monkeypatch):
    features, _, path = fitted
    monkeypatch.setattr(entries, "MIN_PART_TOKENS", 7)  # most texts are on the border of two parts
    monkeypatch.setattr(entries, "MAX_PART_TOKENS", 7)
    monkeypatch.setattr(entries, "MIN_BLOCKS", 10**6)
    settings = {"backbone": model, "cache": tmp_path / "cache"} | EXACT
    whole = extract(path, **settings)
    assert whole.store.entry.layout.offset_rows == 7
    for split in features:
        for column in features[split]:
            np.testing.assert_allclose(whole[split][column], features[split][column], atol=1e-5)
    # A run that was killed has some blocks; the next one computes the others, with the same bytes.
    before = contents(whole.entry)
    lost = sorted(whole.entry.glob("train/*.h5"))[1:4]
    for shard in lost:
        shard.unlink()
    resumed = extract(path, **settings)
    assert 0 < resumed.computed_rows < sum(resumed.rows.values())
    shards = [name for name in before if str(name).endswith(".h5")]
    assert all(contents(whole.entry)[name] == before[name] for name in shards)


def test_predictions_are_those_of_the_extracted_features(fitted, model, tmp_path):
    features, result, path = fitted
    answers = list(predict(result.saved, path))
    of_entry = {}
    for split in features:
        part = features[split]
        scores = result.readout.scores(np.asarray(part["block02/all"]))
        number = np.arange(part.rows) - np.repeat(part.pointers[:-1], np.diff(part.pointers))
        of_entry |= dict(zip(zip(part.ids.tolist(), number.tolist(), strict=True), scores, strict=True))
    assert len(answers) == len(of_entry)
    names = ("AFTER", "O", "PLURAL")
    for answer in answers:
        words, labels = sentences()[answer.id]
        assert (answer.text, answer.truth) == (words[answer.token], labels[answer.token])
        assert " ".join(words)[answer.start : answer.end] == answer.text
        assert answer.label == names[int(of_entry[answer.id, answer.token].argmax())]
    evaluation = evaluate_predictions(answers)
    assert evaluation and evaluation.groups == len(sentences()) and evaluation.samples == len(answers)
    # Texts without labels, and lists of words, have the same predictions; so has a CoNLL file of words alone.
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps({"tokens": " ".join(words)}) + "\n" for words, _ in sentences()))
    bare = tmp_path / "bare.conll"
    bare.write_text("\n\n".join("\n".join(words) for words, _ in sentences()) + "\n")
    for file in (plain, bare):
        others = list(predict(result.saved, file))
        assert [(a.text, a.label, a.truth) for a in others] == [(a.text, a.label, None) for a in answers]


@pytest.mark.parametrize("word", [None, 3, True])
def test_new_rows_with_words_that_are_no_texts_are_named(word, fitted, tmp_path, refusal):
    _, result, _ = fitted
    path = tmp_path / "new.jsonl"
    path.write_text(json.dumps({"tokens": ["a", word, "cat"]}) + "\n")
    assert f"line 1: {word} in column 'tokens' is not a word;" in refusal("predict", result.saved, path)


def test_the_command_writes_a_line_for_each_word(fitted, tmp_path, capsys):
    _, result, _ = fitted
    path = write_words(tmp_path / "new.jsonl", sentences(3, seed=1))
    out = tmp_path / "labels.csv"
    assert run(["predict", str(result.saved), str(path), "--out", str(out)]) == 0
    with out.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["text"] for line in lines] == [word for words, _ in sentences(3, seed=1) for word in words]
    assert {"id", "token", "start", "end", "label", "p_O", "truth"} <= lines[0].keys()
    assert "over 3 groups" in capsys.readouterr().err


@pytest.mark.parametrize("each_token", [False, True])
def test_a_limited_run_has_the_default_layers_of_the_tokens_that_it_reads(model, tmp_path, monkeypatch, each_token):
    monkeypatch.setattr("reservoir.plan.columns.MAX_BYTES", 10_000)  # all layers of the 48 texts take more
    path = write_words(tmp_path / "words.jsonl", sentences())
    if each_token:  # texts that have a label each
        rows = [{"text": " ".join(words), "label": labels[0]} for words, labels in sentences()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def plan(limit):
        options = ExtractOptions(backbone=model, cache=tmp_path / "cache", each_token=each_token, limit=limit)
        return resolved_plan(str(path), options)

    assert plan(None).note_on_fewer_columns and len(plan(None).layers) < 5
    assert not plan(2).note_on_fewer_columns and len(plan(2).layers) == 5


def test_long_texts_are_cut_or_read_in_pieces_with_a_note_before_anything_is_computed(model, tmp_path, capsys):
    rows = [*sentences(30, most=6), (["cats", "a"] * 20, ["P", "O"] * 20)]  # 60 tokens; the model reads 24
    path = write_words(tmp_path / "long.jsonl", rows, split=["train"] * 20 + ["valid"] * 5 + ["test"] * 6)
    settings = {"backbone": model, "cache": tmp_path / "cache", "layers": "block01"} | EXACT
    cut, whole = extract(path, **settings), extract(path, long="windows", **settings)
    notes = capsys.readouterr().err
    assert notes.index("have more than 24 tokens and are cut") < notes.index("on disk")
    assert "words have no token" in notes and "are read in pieces" in notes
    words = sum(len(words) for words, _ in rows)
    assert sum(whole.rows.values()) == words > sum(cut.rows.values()) == words - 40 + len(cut["test"].tokens_of(-1))
    # The first piece is the text that is cut; the next piece begins with the word after it.
    long_text = whole["test"].tokens_of(-1)
    first = cut["test"].tokens_of(-1)
    of_piece = whole["test"]["block01/all"][long_text][: len(first)]
    np.testing.assert_allclose(of_piece, cut["test"]["block01/all"][first], atol=1e-6)
    saved = fit(cut, out=tmp_path / "readout", columns="block01/all").saved
    answers = [answer for answer in predict(saved, path) if answer.id == 30]
    assert len(answers) == 40 and [answer.problem is None for answer in answers] == [n < len(first) for n in range(40)]


def with_unread_word(rows):
    """Return texts with a word after their first one that the tokenizer drops."""
    return [
        ([words[0], "\u200d", *words[1:]], [labels[0], "O", *labels[1:]]) for words, labels in rows if len(words) > 1
    ]


def lines_of(predictions):
    with predictions.open(newline="") as file:
        return list(csv.DictReader(file))


def test_words_have_their_numbers_in_the_text_if_the_tokenizer_drops_others(model, tmp_path):
    rows = with_unread_word(sentences(40))
    path = write_words(tmp_path / "words.jsonl", rows)
    settings = {"backbone": model, "cache": tmp_path / "cache", "layers": "block01"} | EXACT
    features = extract(path, **settings)
    result = fit(features, out=tmp_path / "readout", columns="block01/all", select="cv3")
    read = {(str(answer.id), str(answer.token)) for answer in predict(result.saved, path) if not answer.problem}
    assert {(line["id"], line["token"]) for line in lines_of(result.predictions)} == read
    assert {number for _, number in read} >= {"0", "2", "3"} and "1" not in {number for _, number in read}
    # Entries of earlier versions have no numbers, so that rows are counted; the next extraction adds them.
    numbers = {split: features[split].numbers_in_text.tolist() for split in features}
    for split in features:
        names = ("lengths", "index", "groups", "pointers", "token_ids", "spans", "ids")
        arrays = {name: getattr(features[split], name) for name in names} | {"y": features[split].labels}
        arrays["text_ids"] = arrays.pop("ids")[features[split].pointers[:-1]]
        write_targets(features.store.entry, split, arrays)
    older = FeatureStore(features.entry)
    assert all(older[split].numbers_in_text.max() < max(numbers[split]) for split in numbers)
    again = extract(path, **settings)
    assert again.reused and {split: again[split].numbers_in_text.tolist() for split in again} == numbers


def test_fit_writes_the_present_ids_and_groups_of_texts_and_keeps_the_rest(model, tmp_path, cache):
    rows = with_unread_word(sentences(40))
    path = tmp_path / "words.jsonl"

    def write(letter):
        names = [f"{letter}{row:02}" for row in range(len(rows))]
        groups = [f"group {letter}{row // 3:02}" for row in range(len(rows))]
        # Without this column, the names of groups would decide their splits.
        splits = ["train"] * 18 + ["valid"] * 9 + ["test"] * (len(rows) - 27)
        return write_words(path, rows, id=names, group=groups, split=splits)

    features = extract(write("a"), backbone=model, layers="block01", **EXACT)
    numbers = {split: features[split].numbers_in_text.tolist() for split in features}
    old = {split: features[split].ids.tolist() for split in features}
    before = contents(features.entry)
    write("b")
    assert run(["fit", str(path), "--out", str(tmp_path / "readout"), "--columns", "block01/all"]) == 0
    lines = lines_of(tmp_path / "readout" / "predictions.csv")
    assert {line["id"][0] for line in lines} == {"b"} and {line["group"][:7] for line in lines} == {"group b"}
    new = FeatureStore(features.entry)
    assert {split: new[split].ids.tolist() for split in new} == {
        split: [name.replace("a", "b") for name in ids] for split, ids in old.items()
    }
    assert {split: new[split].numbers_in_text.tolist() for split in new} == numbers
    # With the old names, the files have the old bytes.
    write("a")
    find_entry(cache, str(path))
    shards_and_targets = [name for name in before if str(name).endswith(".h5") and "moments" not in str(name)]
    assert all(contents(features.entry)[name] == before[name] for name in shards_and_targets)


def test_single_vectors_and_a_dataset_of_tokens(fitted, tmp_path):
    features, _, _ = fitted
    part = FeatureStore(features.entry)["train"]
    everything = np.asarray(part["block01/all"])
    for text, number in ((0, 0), (3, -1), (-1, 0)):
        row = part.tokens_of(text)[number]
        assert np.array_equal(part.token("block01/all", text, number), everything[row])
    with pytest.raises(IndexError):
        part.token("block01/all", 0, 99)
    words = sentences()
    assert (
        features.letters("train")[:5] == [word for text in part.ids[part.pointers[:9]] for word in words[text][0]][:5]
    )
    folder = Path(features.store.entry.made_with["prepared"])
    letters, cache = features.letters("train"), folder.parents[2]
    folder.rename(folder.with_suffix(".away"))
    try:
        with pytest.raises(InputError, match="its prepared data is missing; extract its task again"):
            features.letters("train")
        # An entry that was copied into another cache finds the prepared data there.
        copied = tmp_path / features.entry.relative_to(cache)
        shutil.copytree(features.entry, copied)
        shutil.copytree(folder.with_suffix(".away"), tmp_path / folder.relative_to(cache))
        assert replace(features, entry=copied).letters("train") == letters
    finally:
        folder.with_suffix(".away").rename(folder)
    rows = features.store.to_torch("train", "block01/all")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    batches = list(torch.utils.data.DataLoader(rows, batch_size=16, sampler=order))
    x, y = (torch.cat([batch[name] for batch in batches]) for name in ("block01/all", "y"))
    assert x.dtype == torch.float32 and np.array_equal(x, everything[order]) and np.array_equal(y, part.y[order])


@pytest.mark.parametrize("labelled", [True, False])
def test_every_token_of_texts_is_a_row_with_the_label_of_its_text(labelled, model, tmp_path):
    texts = [" ".join(words) for words, _ in sentences(30)]
    labels = ["plural" if "s" in text.replace("doing", "") else "other" for text in texts]
    records = [
        {"text": text} | ({"label": label} if labelled else {}) for text, label in zip(texts, labels, strict=True)
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = {"backbone": model, "cache": tmp_path / "cache", "layers": "block01"} | EXACT
    features = extract(path, each_token=True, **settings)
    assert features.entry != extract(path, pool="mean", **settings).entry
    for split in features:
        part = features[split]
        for text, number in enumerate(part.ids[part.pointers[:-1]]):
            own = part.tokens_of(text)
            ids, offsets, layers = by_hand(model, texts[number])
            assert part.token_ids[own].tolist() == ids[1:-1].tolist() and part.spans[own].tolist() == offsets[1:-1]
            np.testing.assert_allclose(part["block01/all"][own], layers[1][1:-1], atol=1e-5)
            assert (
                part.y[own].tolist() == [int(labels[number] == "plural")] * len(own)
                if labelled
                else np.isnan(part.y[own]).all()
            )
    if labelled:
        answers = list(predict(fit(features, out=tmp_path / "readout", columns="block01/all").saved, path))
        assert len(answers) == sum(features.rows.values())
        assert all(answer.truth == labels[answer.id] for answer in answers)
    else:
        with pytest.raises(InputError, match="no labels"):
            fit(features, out=tmp_path / "readout")


def test_nothing_is_padded(fitted):
    features, _, _ = fitted
    rows, columns, width = sum(features.rows.values()), len(features.columns), 16
    shards = sum(path.stat().st_size for path in features.entry.glob("*/0*.h5"))
    values = rows * columns * width * 4
    assert values < shards < 1.1 * values + 3 * 2**14  # three files have their metadata


def test_exported_rows_are_words(fitted, tmp_path):
    features, result, _ = fitted
    export_features(features, to=tmp_path / "out", columns="block02/all", format="npy")
    back = import_features(tmp_path / "out", cache=tmp_path / "cache")
    again = fit(back, out=tmp_path / "readout", select="valid", alphas="1:1:1", columns="block02/all")
    assert again.best.test_score == result.best.test_score


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"tokens": ["a", "b c"], "ner_tags": ["O", "P"]}, "not a word without white space"),
        ({"tokens": ["a", ""], "ner_tags": ["O", "P"]}, "not a word without white space"),
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "1 labels in column 'ner_tags' for 2 words"),
        ({"tokens": [], "ner_tags": []}, "no words in column 'tokens'"),
        ({"tokens": ["a", None], "ner_tags": ["O", "P"]}, "None in column 'tokens' is not a word"),
        ({"tokens": ["a", "b"], "ner_tags": ["O", None]}, "a word without a label in column 'ner_tags'"),
        ({"text": "a b", "spans": [{"start": 1, "end": 9, "label": "P"}]}, "not within the 3 letters"),
        ({"text": "a b", "spans": [{"start": 1, "label": "P"}]}, "is not a span with start, end, label"),
        ({"text": "a b", "spans": [{"start": 0, "end": 1, "label": None}]}, "has no label"),
    ],
)
def test_rows_that_do_not_fit_are_named(record, problem, tmp_path, cache, refusal):
    good = [{"tokens": words, "ner_tags": labels} for words, labels in sentences(20)]
    if "text" in record:
        good = [{"text": "a cat", "spans": [{"start": 2, "end": 5, "label": "P"}]}] * 20
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*good, record]))
    message = refusal("extract", path)
    assert "line 21" in message and problem in message


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_nulls_among_words_and_labels_leave_out_their_own_rows_only(suffix, tmp_path):
    rows = [(["a", "cat"], [1, 0]), (["a", None], [1, 0]), (["a", "cats"], [1, None]), (["dogs"], [2])]
    path = write_words(tmp_path / f"nulls.{suffix}", rows)
    read = read_table_rows(str(path), OwnDataOptions(skip_bad_rows=True))
    assert read.x.texts == ["a cat", "dogs"] and read.y.tolist() == [[1, 0], [2, 0]] and read.y.dtype == np.int64
    assert [*read.skipped] == [1, 2]


def test_texts_whose_spans_overlap_with_different_labels_are_counted(tmp_path):
    path = tmp_path / "spans.jsonl"
    spans_of_rows = [[(0, 3, "P"), (2, 5, "Q")], [(0, 3, "P"), (2, 5, "P")], [(0, 2, "P"), (2, 5, "Q")]]
    records = [
        {"text": "a cat", "spans": [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]}
        for spans in spans_of_rows
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    read = read_table_rows(str(path), OwnDataOptions())
    assert [read.class_names[number] for number in read.y[0]] == ["P", "P", "Q", "Q", "Q"]
    assert "texts with spans of different labels that overlap: 1; the last span counts" in read.notes
    path.write_text("".join(json.dumps(record) + "\n" for record in records[1:]))
    assert not any("overlap" in note for note in read_table_rows(str(path), OwnDataOptions()).notes)


def test_what_has_no_labels_of_words_is_refused(fitted, model, tmp_path, cache, refusal):
    _, result, path = fitted
    assert "read text by its own tokenizer" in refusal("extract", path, "--input", "gaussian")
    assert "every token has its own label" in refusal("extract", path, "--backbone", model, "--pool", "mean")
    assert "it labels every token" in refusal("export", result.saved, "--to", "torch")
    marked = tmp_path / "marked.jsonl"
    marked.write_text('{"text": "a cat", "start": 0, "end": 1}\n' * 9)
    assert "not of chats" in refusal("extract", marked, "--span", "start,end", "--each-token", "--backbone", model)
    assert "has no texts" in refusal("extract", "digits", "--each-token", "--limit", "60")
    with pytest.raises(InputError, match="which train does not support"):
        train(path, steps=1, backbone=model)
    (tmp_path / "unlabelled.conll").write_text("cat O\ndog\n")
    assert "a word without a label" in refusal("extract", tmp_path / "unlabelled.conll")


@pytest.mark.parametrize("each", ["token", "span"])
def test_texts_without_a_token_keep_a_line_without_a_label(each, model, tmp_path):
    records = [{"text": " ".join(words), "label": "ab"[len(words) % 2]} for words, _ in sentences(24)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    if each == "span":
        path, _ = write_spans(path)
    settings = {"backbone": model, "cache": tmp_path / "cache", "layers": "block01", "each_token": each == "token"}
    saved = fit(extract(path, **settings), out=tmp_path / "readout", columns="block01/all").saved
    new = tmp_path / "new.jsonl"
    for texts in (["a cat", "\u200d", "dog"], ["\u200d"]):
        new.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        predictions = predict(saved, new)
        size, absent = len(predictions), predictions.absent
        answers = list(predictions)
        assert len(answers) == size == (4 if len(texts) > 1 else 1) and "problem" not in absent
        assert [answer.id for answer in answers if answer.label is None] == [texts.index("\u200d")]
        assert {answer.problem for answer in answers if answer.label is None} == {"the text has no token of the model"}


def test_each_token_is_refused_if_words_have_labels(model, tmp_path, cache, refusal):
    path = tmp_path / "words.conll"
    path.write_text("cats N\nrun V\n\n" * 20)
    problem = refusal("extract", path, "--each-token", "--backbone", model, "--layers", "block01")
    assert "--each-token: words or tokens of words.conll have labels, so they are rows already; leave it out" in problem


def test_comments_of_conll_files_are_skipped_before_a_sentence_and_refused_inside(tmp_path, cache, refusal):
    sentence = "cats x P\n# x Q\na x P\n"  # the second line is a word
    path = tmp_path / "comments.conll"
    path.write_text("# a file of sentences\n\n" + f"# sent_id = 1\n# newpar\n{sentence}\n" * 20 + "# end\n")
    rows = read_conll(str(path), OwnDataOptions())
    assert rows.notes[0] == "42 lines that begin with # are comments"
    assert rows.x.texts == ["cats # a"] * 20
    path.write_text("# id domain\ncats x P\na x P\n\n# x P\n# x P\na x P\n")  # as every sentence begins with #
    assert read_conll(str(path), OwnDataOptions()).x.texts == ["cats a", "# a"]
    path.write_text("cats x P\na x P\n\n# x P\na x P\n")
    assert read_conll(str(path), OwnDataOptions()).x.texts == ["cats a", "# a"]
    path.write_text(f"{sentence}\n" * 20 + "cats x P\n# newpar\na x P\n")
    message = refusal("prepare", path)
    assert "line 82: '# newpar' in a sentence" in message and "write comments before the first word" in message


def test_labels_of_words_that_do_not_fit_are_refused_in_one_line(tmp_path, cache, refusal):
    path = tmp_path / "words.jsonl"

    def message(record):
        path.write_text((json.dumps(record) + "\n") * 20)
        return refusal("prepare", path)

    words = ["a", "cat"]
    assert "not y0, y1" in message({"tokens": words, "y0": [0, 1], "y1": [1, 1]})
    assert "a token has a list of labels" in message({"tokens": words, "tags": [["A"], ["B"]]})


@pytest.mark.parametrize("of_words", [True, False])
def test_one_long_text_among_many_is_refused_before_memory_is_filled(of_words, tmp_path, cache, refusal):
    short, long = (
        ({"tokens": ["a"] * count, "tags": [1] * count} if of_words else {"text": "a" * count, "spans": []})
        for count in (1, 10**5)
    )
    if not of_words:
        short["spans"] = [{"start": 0, "end": 1, "label": "P"}]
    path = tmp_path / "long.jsonl"
    path.write_text((json.dumps(short) + "\n") * 20_000 + json.dumps(long) + "\n")
    message = refusal("prepare", path)
    assert f"long.jsonl, column {'tags' if of_words else 'text'!r}, row 20000: 100000 tokens" in message


def test_a_control_of_words_gives_each_first_token_a_label(fitted, tmp_path):
    features, plain, _ = fitted
    result = fit(features, select="valid", alphas="1:1:1", columns="block02/all", control=True, out=tmp_path)
    assert result.best.test_score == plain.best.test_score
    x = {split: features.store[split].read("block02/all")[:, 0] for split in ("train", "valid", "test")}
    ids = {split: features[split].token_ids for split in x}
    vocabulary = np.unique(np.concatenate([ids["train"], ids["valid"]]))
    y = features["train"].labels[:, 0, 0]
    scores = []
    for label_of_token in y[np.random.default_rng(0).integers(0, len(y), (5, len(vocabulary) + 1))]:
        labels = {}
        for split in ("train", "test"):
            is_known = np.isin(ids[split], vocabulary)
            place = np.where(is_known, np.searchsorted(vocabulary, ids[split]), len(vocabulary))
            labels[split] = label_of_token[place]
        scale = StandardScaler().fit(x["train"])
        coded = np.where(labels["train"][:, None] == np.arange(3), 1.0, -1.0)
        ridge = Ridge(alpha=1.0).fit(scale.transform(x["train"]), coded)
        scores.append((ridge.predict(scale.transform(x["test"])).argmax(axis=1) == labels["test"]).mean())
    assert result.best.control_score == pytest.approx(np.mean(scores), abs=1e-9)
