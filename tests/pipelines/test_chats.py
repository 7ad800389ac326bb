"""Chats and texts with a span pass through extract, fit and predict, from a table to a prediction."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reservoir_pipelines import extract, fit, predict, prepare
from reservoir_pipelines.cli import run
from reservoir_pipelines.prediction.load import open_readout

from reservoir.errors import InputError
from reservoir.inputs.chat_template import ChatTemplate
from tests.helpers import outcome
from tests.reservoir.models import WORDS, save_with_chat_template, save_with_tokenizer


def write_chats(path: Path, rows: int, column: str = "messages") -> Path:
    """Write chats, in which the assistant says dog or cat, with the label that it says."""
    draw = np.random.default_rng(0)
    records = []
    for row in range(rows):
        question, answer = (" ".join(draw.choice(WORDS, draw.integers(1, 4))) for _ in range(2))
        animal = "dog" if row % 2 else "cat"
        chat = [("user", question), ("assistant", f"{answer} {animal}")]
        messages = [{"role": role, "content": content} for role, content in chat]
        records.append({column: messages, "label": animal})
    frame = pd.DataFrame(records)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


def write_spans(path: Path, rows: int) -> Path:
    """Write texts of several words with the place of one; the label is whether it is an animal."""
    draw = np.random.default_rng(0)
    records = []
    for _ in range(rows):
        words = draw.choice(WORDS, 5).tolist()
        place = int(draw.integers(5))
        start = sum(len(word) + 1 for word in words[:place])
        is_animal = words[place] in ("cat", "dog", "cow")
        records.append({"text": " ".join(words), "start": start, "end": start + len(words[place]), "label": is_animal})
    frame = pd.DataFrame(records)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_json(path, orient="records", lines=True)
    return path


def test_a_readout_of_answers_labels_new_chats_as_the_features_of_extract_do(cache, tmp_path, capfd):
    folder = str(save_with_chat_template(tmp_path / "llama"))
    file = write_chats(tmp_path / "chats.jsonl", 60)
    features = extract(
        str(file),
        chat=True,
        backbone=folder,
        pool="assistant,last-prompt",
        layers="block02",
        store="float32",
        compute="float32",
    )
    assert features.columns == ("block02/assistant", "block02/last-prompt")
    assert features.store.entry.spec.input.template
    fit(features, out=tmp_path / "readout", columns="block02/assistant+block02/last-prompt")
    by_row = {answer.id: answer for answer in predict(tmp_path / "readout", file)}
    # The answers to new rows are those that the readout gives to the stored features of these rows.
    readout = open_readout(tmp_path / "readout").readout
    stored = np.concatenate([features["test"][column][:] for column in features.columns], axis=1)
    predicted = [by_row[row].probabilities for row in features["test"].ids.tolist()]
    np.testing.assert_allclose(predicted, readout.probabilities(stored).reshape(len(stored), -1), atol=2e-6)
    (tmp_path / "llama" / "chat_template.jinja").write_text("{{ messages }}")
    assert "template" in outcome(lambda: list(predict(tmp_path / "readout", file)))


def test_new_chats_that_the_template_refuses_are_skipped_and_the_others_labelled(cache, tmp_path, capfd):
    refuses_systems = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no systems') }}"
    refuses_systems += "{% endif %}{{ m['content'] }} {% endfor %}"
    folder = str(save_with_chat_template(tmp_path / "llama", refuses_systems))
    file = write_chats(tmp_path / "chats.jsonl", 40)
    features = extract(str(file), chat=True, backbone=folder, pool="last", layers="block01")
    fit(features, out=tmp_path / "readout", columns="block01/last")
    expected = list(predict(tmp_path / "readout", file))
    lines = file.read_text().splitlines()
    refused = (0, 5, 39)
    for row in refused:
        lines[row] = lines[row].replace('"user"', '"system"')
    new = tmp_path / "new.jsonl"
    new.write_text("\n".join(lines) + "\n")
    answers = list(predict(tmp_path / "readout", new))
    assert [row for row, answer in enumerate(answers) if answer.problem] == list(refused)
    assert all("refuses the chat" in answers[row].problem and "no systems" in answers[row].problem for row in refused)
    others = [row for row in range(40) if row not in refused]
    assert [answers[row].truth for row in others] == [expected[row].truth for row in others]
    chances = ([answers[row].probabilities for row in others], [expected[row].probabilities for row in others])
    np.testing.assert_allclose(*chances, atol=1e-3)  # batches differ
    assert "3 of 40 rows cannot be read" in capfd.readouterr().err
    new.write_text(lines[0] + "\n")
    assert "no chat can be read" in outcome(lambda: list(predict(tmp_path / "readout", new)))


def test_chats_of_parquet_and_in_another_column_are_those_of_json_lines(cache, tmp_path):
    pytest.importorskip("pyarrow")
    lines = prepare(str(write_chats(tmp_path / "chats.jsonl", 20)), chat=True)
    table = prepare(str(write_chats(tmp_path / "chats.parquet", 20, "talk")), chat=True, text="talk")
    for split in ("train", "valid", "test"):
        np.testing.assert_array_equal(lines.split(split).read(0, 2).x, table.split(split).read(0, 2).x)


def test_spans_name_the_tokens_that_are_pooled(cache, tmp_path, capfd):
    folder = str(save_with_tokenizer("bert", tmp_path / "bert"))
    file = write_spans(tmp_path / "spans.csv", 80)
    features = extract(str(file), span="start,end", backbone=folder, store="float32")
    assert {column.partition("/")[2] for column in features.columns} == {"span", "cls", "mean"}
    fit(features, columns="embed/span", out=tmp_path / "readout")
    answers = list(predict(tmp_path / "readout", file))
    assert np.mean([answer.label == answer.truth for answer in answers]) == 1.0
    # A column called span holds both ends.
    frame = pd.read_csv(file)
    frame["span"] = frame[["start", "end"]].values.tolist()
    other = tmp_path / "both.jsonl"
    frame.drop(columns=["start", "end"]).to_json(other, orient="records", lines=True)
    both = extract(str(other), backbone=folder, store="float32")
    for split in ("train", "test"):
        np.testing.assert_array_equal(both[split]["final/span"][:], features[split]["final/span"][:])
    assert "'span' is a span of each text" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("records", "options", "word"),
    [
        ([{"messages": [{"role": "user", "content": "a cat"}], "label": 0}], [], "--chat"),
        ([{"text": "a cat", "label": 0}], ["--chat"], "--text NAME"),
        ([{"messages": [{"role": "user"}], "label": 0}], ["--chat"], "no content"),
        ([{"messages": ["a cat"], "label": 0}], ["--chat"], "no role"),
        ([{"messages": "a cat", "label": 0}], ["--chat"], "list of messages"),
        ([{"text": "a cat", "a": 2, "b": 9, "label": 0}], ["--span", "a,b"], "not a span"),
        ([{"text": "a cat", "a": 3, "b": 3, "label": 0}], ["--span", "a,b"], "not a span"),
        ([{"text": "a cat", "a": 0, "label": 0}], ["--span", "a,b"], "(--span)"),
        ([{"text": "a \ufdd0cat", "span": [0, 1], "label": 0}], [], "U+FDD0"),
    ],
)
def test_rows_that_are_no_chats_or_have_no_span_are_refused_in_one_line(records, options, word, cache, tmp_path, capfd):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records * 8))
    code = run(["prepare", str(file), *options])
    error = capfd.readouterr().err.strip()
    assert code == 2 and word in error and "\n" not in error


@pytest.mark.parametrize("option", [["--chat"], ["--span", "a,b"]])
def test_formats_without_columns_of_texts_refuse_the_options_of_texts(option, cache, tmp_path, capfd):
    np.savez(tmp_path / "texts.npz", x=np.array(["a cat", "a dog"] * 8), y=np.arange(16) % 2)
    assert run(["prepare", str(tmp_path / "texts.npz"), *option]) == 2
    assert f"{option[0]} does not apply" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--pool", "span"], "pass --span"),
        (["--pool", "assistant"], "pass --chat"),
        (["--input", "gaussian", "--pool", "last-prompt"], "own tokenizer"),
    ],
)
def test_a_pooling_whose_mask_is_unknown_is_refused_in_one_line(options, word, cache, tmp_path, capfd):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": f"a cat {row}", "label": row % 2}) + "\n" for row in range(12)))
    code = run(["extract", str(file), *options])
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert code == 2 and word in error


def test_single_tokens_of_chats_are_not_stored(cache, tmp_path, capfd):
    folder, file = str(save_with_chat_template(tmp_path / "llama")), str(write_chats(tmp_path / "chats.jsonl", 12))
    capfd.readouterr()
    assert run(["extract", file, "--chat", "--each-token", "--backbone", folder]) == 2
    assert "--each-token" in capfd.readouterr().err.splitlines()[-1]


def test_chats_need_a_model_with_a_chat_template(cache, tmp_path, capfd):
    file = str(write_chats(tmp_path / "chats.jsonl", 12))
    assert run(["extract", file, "--chat"]) == 2
    assert "chat template" in capfd.readouterr().err
    assert run(["extract", file, "--chat", "--init", "random"]) == 2
    assert "own tokenizer" in capfd.readouterr().err


def test_a_template_for_texts_refuses_lists_of_parts():
    parts = [{"type": "text", "text": "a cat"}]
    template = ChatTemplate("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", {}, "backbone 'x'")
    with pytest.raises(InputError, match=r"list of parts as it is; give each content as a text"):
        template.render([json.dumps([{"role": "user", "content": parts}])])
    reads_parts = "{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}"
    (rendered,) = ChatTemplate(reads_parts, {}, "x").render([json.dumps([{"role": "user", "content": parts}])])
    assert rendered.text == "a cat"


@pytest.mark.skipif(not shutil.which("localedef"), reason="needs localedef")
def test_chats_are_rendered_alike_in_a_locale_without_utf8(tmp_path, monkeypatch):
    localedef = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", tmp_path / "en_US.ISO-8859-1"], capture_output=True
    )
    if localedef.returncode > 1:  # 1 stands for warnings
        pytest.skip("this system has no sources of locales")
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "en_US.ISO-8859-1")
    chat = json.dumps([{"role": "user", "content": "é \N{CAT FACE}"}], ensure_ascii=False)
    (rendered,) = ChatTemplate("{{ messages[0]['content'] }}", {}, "x").render([chat])
    assert rendered.text == "é \N{CAT FACE}"


def test_an_endless_template_ends_in_one_line_with_exit_code_2(cache, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("reservoir.inputs.chat_template.SECONDS", 0.5)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    folder = str(save_with_chat_template(tmp_path / "llama", loop))
    capfd.readouterr()
    code = run(["extract", str(write_chats(tmp_path / "chats.jsonl", 12)), "--chat", "--backbone", folder])
    assert code == 2 and "chat template took more than" in capfd.readouterr().err.splitlines()[-1]
