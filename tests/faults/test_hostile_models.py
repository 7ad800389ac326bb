"""Damaged and hostile models: each one loads or is refused in one line, and no file outside its folder is read."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir.backbones import content_digest, find, load_backbone, load_native
from reservoir.inputs.native import open_reader
from reservoir.inputs.text_reader import read_tokenizer
from reservoir.tasks import task_named
from reservoir.tasks.texts import codes_of
from tests.checks import outcome
from tests.faults.fuzz import mutated
from tests.reservoir.models import save, save_as_gguf, save_with_tokenizer

TRIALS = 30
WRONG = [None, True, -1, 0, 1, 3, 2**31, 2**62, 1e308, "", "gelu", "../secret", [], [-1], {}, {"a": 1}, [[[]]]]


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value inside nested lists and dictionaries."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutated_json(document: Any, rng: np.random.Generator) -> Any:
    """Return a copy in which one value is removed, doubled or replaced by one of another type or size."""
    root = value = {"document": copy.deepcopy(document)}
    every = list(places(value))
    *above, last = every[rng.integers(len(every))]
    for key in above:
        value = value[key]
    kind = rng.integers(4)
    if kind == 0 and above and isinstance(value, dict):
        del value[last]
    elif kind == 1 and isinstance(value[last], int | float) and not isinstance(value[last], bool):
        value[last] = value[last] * 2 + 1
    else:
        value[last] = copy.deepcopy(WRONG[rng.integers(len(WRONG))])
    return root["document"]


def mutated_safetensors(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a safetensors file with another header, or with bytes changed, repeated or lost in it or anywhere."""
    (size,) = struct.unpack("<Q", data[:8])
    header, rest = data[: 8 + size], data[8 + size :]
    kind = rng.integers(3)
    if kind < 2:
        return mutated(data, rng) if kind else mutated(header, rng) + rest
    text = json.dumps(mutated_json(json.loads(header[8:]), rng)).encode()
    return struct.pack("<Q", len(text)) + text + rest


def load_folder(folder: Path) -> None:
    """Load a folder in each way that ``extract`` supports."""
    family, _ = find(str(folder))
    load_backbone(str(folder), "random")
    load_native(str(folder)) if family.native_input else load_backbone(str(folder), "pretrained")


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "vit", "wav2vec2", "lstm"])
def test_mutated_model_folders_load_or_are_refused(kind: str, tmp_path: Path):
    folder, rng = save(kind, tmp_path / kind), np.random.default_rng(0)
    config = json.loads((folder / "config.json").read_text())
    weights, refused = (folder / "model.safetensors").read_bytes(), 0
    for trial in range(TRIALS):
        (folder / "config.json").write_text(json.dumps(mutated_json(config, rng) if trial % 2 else config))
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(weights if trial % 2 else mutated_safetensors(weights, rng))
        refused += outcome(lambda: load_folder(folder)) != ""
    assert refused > TRIALS / 10
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    load_folder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 2**20, "n_head": 1}, "GB of memory"),
        ({"n_positions": 2**40}, "GB of memory"),
        ({"n_layer": 10**9}, "more than 1,000"),
        ({"model_type": "swin", "depths": [1, 10**9]}, "depths is 1,000,000,001, more than 1,000"),
        ({"model_type": "efficientnet", "num_block_repeats": [1, 10**9]}, "num_block_repeats is 1,000,000,001"),
        ({"model_type": "albert", "inner_group_num": 10**9}, "more than 1,000"),
        ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "more than 1,000"),
        ({"n_head": 0}, "sets attention heads to 0"),
        ({"model_type": {}}, "is not known"),
        ({"model_type": "vit", "num_labels": 10**9}, "more than a million"),
        (None, "not readable"),
    ],
)
def test_configurations_beyond_the_machine_are_refused_before_they_are_built(changes, message, tmp_path: Path):
    folder = save("gpt2", tmp_path / "gpt2")
    config = json.loads((folder / "config.json").read_text())
    nested = '{"model_type": ' + "[" * 10**6
    (folder / "config.json").write_text(json.dumps(config | changes) if changes else nested)
    for init in ("random", "pretrained"):
        assert message in outcome(lambda init=init: load_backbone(str(folder), init))


def test_tokens_without_an_embedding_are_refused(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["vocab"]["cat"] = 25  # the model has 20 embeddings
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    reader = read_tokenizer("bert", folder, 32)
    reader.embeddings = 20
    assert "token ID 25" in outcome(lambda: reader(*codes_of("here", ["the cat"])))


def test_mutated_tokenizers_read_texts_or_are_refused(tmp_path: Path):
    folder, rng = save_with_tokenizer("bert", tmp_path / "bert"), np.random.default_rng(0)
    texts = codes_of("here", ["the cat sat", "a dog <unk> 😀"])
    files = {name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    for trial in range(2 * TRIALS):
        for name, text in files.items():
            mine = trial % 2 == (name == "tokenizer.json")
            (folder / name).write_text(json.dumps(mutated_json(json.loads(text), rng)) if mine else text)
        outcome(lambda: read_tokenizer("bert", folder, 32)(*texts))


def test_a_tokenizer_whose_regular_expression_panics_is_refused(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    rules = json.loads((folder / "tokenizer.json").read_text())
    # Oniguruma gives up after too many steps, and tokenizers then panics.
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps(rules | {"pre_tokenizer": split}))
    reader = read_tokenizer("bert", folder, 32)
    line = outcome(lambda: reader(*codes_of("here", ["the cat", "x" * 40])))
    assert "tokenizer: it cannot read the texts (Onig: Regex search error" in line


def test_mutated_gguf_files_are_read_or_refused(tmp_path: Path, monkeypatch):
    pytest.importorskip("gguf")
    file, rng = tmp_path / "model.gguf", np.random.default_rng(0)
    save_as_gguf(save("llama", tmp_path / "model"), file)
    data = file.read_bytes()
    end = data.index(b"token_embd") + 1000  # counts, settings and descriptions precede the values
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / file.name).touch()  # a file of the same name in the current folder is not read
    monkeypatch.chdir(tmp_path / "here")

    def use() -> None:
        load_backbone(str(file), "pretrained")

    assert not outcome(use)
    for _ in range(TRIALS):
        file.write_bytes(mutated(data[:end], rng) + data[end:])
        outcome(use)


METADATA = {"image_processor_type": "OneFormerImageProcessor", "class_info_file": "a.json", "repo_path": "any/data"}
PROCESSOR = {"image_processor_type": "AutoProcessorFastFast"}
ENORMOUS = {"image_processor_type": "ViTImageProcessor", "size": {"height": 5000, "width": 8}}
REFUSED = [
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.0.json"]}, "names other files"),
    ("tokenizer_config.json", {"vocab": "/etc/hostname"}, "names other files, vocab"),
    ("tokenizer_config.json", {"merges": "/etc/hostname"}, "names other files, merges"),
    ("tokenizer_config.json", {"gguf_file": "../secret.gguf"}, "names other files, gguf_file"),
    ("tokenizer_config.json", {"init_inputs": ["/etc/hostname"]}, "names other files, init_inputs"),
    ("special_tokens_map.json", {"vocab_file": "/etc/hostname"}, "'vocab_file', which is not a token"),
    ("preprocessor_config.json", PROCESSOR, "'AutoProcessorFastFast', which is not a BaseImageProcessor"),
    ("preprocessor_config.json", METADATA, "another file, 'a.json'"),
    ("preprocessor_config.json", ENORMOUS, "5,000 pixels, more than"),
]


@pytest.mark.parametrize(("file", "content", "message"), REFUSED)
def test_files_that_name_others_or_make_enormous_images_are_refused(file, content, message, tmp_path: Path):
    folder = str(save("vit", tmp_path / "vit"))
    (tmp_path / "vit" / file).write_text(json.dumps(content))
    reader = open_reader, task_named("digits").task, folder, "pretrained"
    others = (read_tokenizer, "vit", Path(folder), 32) if "token" in file else (load_native, folder)
    assert message in outcome(*(reader if "preprocessor" in file else others))


def test_adapters_indexes_and_settings_that_name_other_weights_are_not_read(tmp_path: Path):
    folder = save("vit", tmp_path / "vit")
    before = content_digest(load_backbone(str(folder), "pretrained").model)
    settings = json.loads((folder / "config.json").read_text()) | {"transformers_weights": "../secret.safetensors"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "a/b"}))
    (folder / "shard-00000-model-00000-of-00001.safetensors").touch()
    assert content_digest(load_backbone(str(folder), "pretrained").model) == before


@pytest.mark.parametrize("where", ["tokenizer_config.json", "config.json"])
def test_a_tokenizer_that_is_another_class_is_refused_and_nobody_is_asked(where: str, tmp_path: Path, monkeypatch):
    folder, marker = save_with_tokenizer("bert", tmp_path / "bert"), tmp_path / "marker"
    (folder / "tokenizer_config.json").write_text("{}")
    settings = json.loads((folder / where).read_text())
    (folder / where).write_text(json.dumps(settings | {"tokenizer_class": "AutoProcessorFast"}))
    (folder / "processor_config.json").write_text(json.dumps({"auto_map": {"AutoProcessor": "code.Reader"}}))
    (folder / "code.py").write_text(f"open(r'{marker}', 'w')\n")
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    assert "not a PreTrainedTokenizerBase" in outcome(read_tokenizer, "bert", folder, 32)
    assert not marker.exists()
