"""Texts, chats, sounds and images pass through a pretrained model's own reader, from file to prediction."""

import csv
import json
import random
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from reservoir_pipelines import attention, extract, fit, predict, prepare, train
from reservoir_pipelines.cli import run
from reservoir_pipelines.data.formats import open_rows, read_new
from reservoir_pipelines.data.values import encode_values
from reservoir_pipelines.extraction.extract import resolved_plan
from reservoir_pipelines.prediction.load import open_readout
from reservoir_pipelines.training.checkpoints import load_run
from scipy.io import wavfile

from reservoir.errors import InputError
from reservoir.fpt import FPT
from reservoir.inputs.chat_template import ChatTemplate
from reservoir.inputs.native import SoundReader
from reservoir.options import ExtractOptions, OwnDataOptions
from reservoir.plan.precision import BLOCK_ROWS
from reservoir.tasks.pictures import decoded
from reservoir.tasks.texts import texts_of
from tests.helpers import contents, outcome
from tests.reservoir.models import (
    WORDS,
    save,
    save_with_chat_template,
    save_with_extractor,
    save_with_letters,
    save_with_processor,
    save_with_tokenizer,
)


def write_texts(path: Path, rows: int, *, labelled: bool = True, more: str = "") -> Path:
    draw = np.random.default_rng(0)
    with path.open("w") as file:
        for row in range(rows):
            words = [WORDS[i] for i in draw.integers(0, len(WORDS), draw.integers(1, 4))]
            record = {"text": " ".join([*words, "dog" if row % 2 else "cat"]) + more}
            file.write(json.dumps(record | ({"label": ["feline", "canine"][row % 2]} if labelled else {})) + "\n")
    return path


def test_letters_are_not_called_unknown_if_the_models_own_tokenizer_reads_them(cache, tmp_path, capfd):
    folder, file = save_with_tokenizer("bert", tmp_path / "bert"), tmp_path / "pets.csv"
    split = [("train", "valid", "test")[row % 3] for row in range(60)]
    cells = [f"{WORDS[row % 5]}{'z' if name == 'test' else ''},{row % 2},{name}" for row, name in enumerate(split)]
    file.write_text("text,label,split\n" + "\n".join(cells) + "\n")
    drawn = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64", "init": "random"}
    for settings, unknown in (({"backbone": folder, "input": "native"}, False), (drawn, True)):
        saved = fit(extract(file, layers="final", pool="mean", **settings), columns="final/mean").saved
        assert ("letters that no training row has, read as unknown: z" in capfd.readouterr().err) == unknown
        list(predict(saved, file))
        assert ("are in no training row: z" in capfd.readouterr().err) == unknown


def test_white_space_at_the_ends_of_texts_is_read(cache, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    folder, path = save_with_tokenizer("bert", tmp_path / "bert"), tmp_path / "prompts.jsonl"
    # Make spaces and line feeds tokens of their own.
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["vocab"] |= {" ": len(rules["model"]["vocab"]), "\n": len(rules["model"]["vocab"]) + 1}
    rules["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": r"\s|\w+"}, "behavior": "Isolated", "invert": False
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    ends = ["", " ", "\n", "\n\n "]
    texts = [f"{ends[row // 4 % 4]}the {WORDS[row % 9]} sat{ends[row % 4]}" for row in range(48)]
    path.write_text("".join(json.dumps({"text": text, "label": n % 2}) + "\n" for n, text in enumerate(texts)))
    options = {"layers": "final", "pool": "last,mean", "compute": "float32", "store": "float32"}
    features = extract(str(path), backbone=str(folder), **options)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for split in features:
        part = features[split]
        for row, number in enumerate(part.ids):
            with torch.no_grad():
                states = model(**tokenizer(texts[int(number)], return_tensors="pt")).last_hidden_state[0].numpy()
            np.testing.assert_allclose(part["final/last"][row], states[-1], atol=1e-5)
            np.testing.assert_allclose(part["final/mean"][row], states.mean(0), atol=1e-5)
    task = prepare(str(path)).task
    new_rows = read_new(path, task)
    assert texts_of(*encode_values(task, new_rows.x)) == texts


def test_a_file_and_a_folder_are_enough(cache, tmp_path, capfd):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    file = write_texts(tmp_path / "pets.jsonl", 120)
    done = extract(str(file), backbone=str(folder))
    spec = done.store.entry.spec
    assert spec.input.kind == "native" and set(spec.input.digests) == {"tokenizer", "embeddings"}
    assert done.columns[:2] == ("embed/cls", "embed/mean") and done.columns[-1] == "final/mean"
    message = capfd.readouterr().err
    assert "read by the model's own tokenizer, with 14 tokens" in message and "symbols" not in message
    drawn = extract(str(file), backbone=str(folder), input="gaussian", layers="embed", pool="mean")
    assert drawn.store.entry.spec.input.kind == "gaussian" and drawn.entry != done.entry
    fit(done, columns="embed/mean+final/cls", out=tmp_path / "readout")
    # New texts may have unknown letters, and may be longer than all earlier ones.
    new = write_texts(tmp_path / "new.jsonl", 8, labelled=False, more=" 漢 and" * 9)
    answers = list(predict(tmp_path / "readout", new))
    assert len(answers) == 8 and {answer.label for answer in answers} <= {"feline", "canine"}
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cow"', '"ox"'))
    with pytest.raises(InputError, match=r"the tokenizer or the embeddings of .* have changed"):
        list(predict(tmp_path / "readout", new))
    assert extract(str(file), backbone=str(folder)).entry != done.entry


def test_attention_shows_the_tokens_of_texts_that_an_extraction_reads(cache, tmp_path, capfd):
    from transformers import AutoModel, AutoTokenizer

    folder, file = save_with_tokenizer("llama", tmp_path / "llama"), write_texts(tmp_path / "pets.jsonl", 30)
    rows = prepare(file).split("test").read(0, 2)
    text, _ = texts_of(rows.x, rows.lengths)
    maps = attention(file, backbone=folder, average=2, layer=2, device="cpu")
    assert maps.labels == ["<s>", *text.split()]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    encoded = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        expected = model(**encoded, output_attentions=True).attentions[1][0]
    np.testing.assert_allclose(maps.first_row, expected, atol=1e-5)
    # With a random input layer each letter is a token, and a note says so.
    capfd.readouterr()
    drawn = attention(file, backbone=folder, input="orthogonal", average=1, device="cpu")
    assert len(drawn.labels) == len(text)
    assert "a random input layer (orthogonal) replaces the one of llama-pretrained: --input" in capfd.readouterr().err


def test_attention_names_more_tokens_than_a_text_has_letters(cache, tmp_path):
    folder, file = save_with_tokenizer("bert", tmp_path / "bert"), tmp_path / "letters.csv"
    file.write_text("text,label\n" + "a,0\na,1\n" * 15)
    assert attention(file, backbone=folder, input="native", average=1).labels == ["[CLS]", "a", "[SEP]"]


def write_proteins(path: Path, rows: int = 60) -> Path:
    draw = np.random.default_rng(0)
    with path.open("w") as file:
        for row in range(rows):
            letters = "".join(draw.choice(list("LAGVSERTIDPKX"), draw.integers(5, 15)))
            file.write(f">p{row} {['heavy', 'light'][row % 2]}\n{letters}\n")
    return path


@pytest.mark.parametrize("kind", ["bert", "esm"])
def test_a_protein_model_reads_fasta_natively_and_gives_the_mean_over_residues(kind, cache, tmp_path, capfd):
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = tmp_path / "antiberty"
    folder = save_with_letters(folder) if kind == "bert" else save_with_tokenizer(kind, folder)
    file = write_proteins(tmp_path / "antibodies.fasta")
    features = extract(str(file), backbone=str(folder), compute="float32", store="float32")
    assert features.entry.name.startswith("antiberty-pretrained-") and features.entry.name.count("-") == 2
    assert features.store.entry.spec.input.kind == "native"
    layers = ("embed", "block01", "block02", "block03", "final")
    assert features.columns == tuple(f"{layer}/{pool}" for layer in layers for pool in ("cls", "mean", "words"))
    message = capfd.readouterr().err
    assert "read by the model's own tokenizer, with 17 tokens" in message
    assert (
        "computed in float32 (given): features equal published activations in float32, up to rounding to float32"
        in message
    )
    # The embedding of a protein, as in a script.
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    split = prepare(str(file)).split("test").read(0, 4)
    values = np.asarray(features["test"]["final/words"][:4])
    for letters, row in zip(texts_of(split.x, split.lengths), values, strict=True):
        tokens = tokenizer(" ".join(letters) if kind == "bert" else letters, return_tensors="pt")
        with torch.no_grad():
            residues = model(**tokens).last_hidden_state[0, 1:-1]
        assert len(residues) == len(letters)
        np.testing.assert_allclose(row.ravel(), residues.mean(0), atol=1e-5)
    fit(features, out=tmp_path / "readout")
    assert {answer.label for answer in predict(tmp_path / "readout", file)} == {"heavy", "light"}


@pytest.mark.parametrize(
    ("case", "options", "layer", "why"),
    [
        ("letters", {"input": "gaussian", "patch": 1}, "gaussian", "--input was given"),
        ("letters", {"patch": 3}, "kernels", "the options of windows, such as --patch, do not fit"),
        ("lower", {}, "kernels", "set do_lower_case to false in its tokenizer_config.json"),
        ("words", {}, "kernels", "does not know most of the letters ADEGIKLPRSTVX"),
        ("none", {}, "kernels", "its folder has no tokenizer"),
        ("broken", {}, "kernels", "its tokenizer is not readable"),
    ],
)
def test_the_output_and_the_name_say_that_a_model_does_not_read_its_kind_of_data(
    case, options, layer, why, cache, tmp_path, capfd
):
    folder = tmp_path / "antiberty"
    if case in ("letters", "lower"):
        save_with_letters(folder, lower=case == "lower")
    elif case == "words":
        save_with_tokenizer("bert", folder)
    else:
        save("bert", folder)
        (folder / "vocab.txt").write_text("") if case == "broken" else None
        (folder / "tokenizer.json").write_text("{") if case == "broken" else None
    file, told = write_proteins(tmp_path / "antibodies.fasta"), {"backbone": str(folder), **options}
    features = extract(str(file), **told, layers="embed", pool="mean")
    assert features.entry.name.startswith(f"antiberty-pretrained-{layer}-")
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "replaces the one of" in line]
    assert line.startswith(f"{file.name}: a random input layer ({layer}) replaces the one of antiberty-pretrained: ")
    assert why in line
    # The included model and random weights promise nothing, so their names stay as they are.
    for backbone, init, title in (("mini", None, "mini-pretrained"), (str(folder), "random", "antiberty-random")):
        other = extract(str(file), backbone=backbone, init=init, layers="embed", pool="mean", depth=1)
        assert other.entry.name.startswith(f"{title.replace('-', '-depth1-')}-{other.store.entry.key[:16]}")
        assert "replaces" not in capfd.readouterr().err


def test_extract_says_in_which_precision_it_computes(cache, tmp_path, capfd):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    file = write_texts(tmp_path / "pets.jsonl", 20)
    expected = {
        "float32": "computed in float32 (given): features equal published activations in float32, up to rounding to "
        "float16",
        "bfloat16": "computed in bfloat16 (given): features differ from published activations by about 2% of their "
        "standard deviation; --compute float32 avoids this",
        "bfloat16-all": "computed in bfloat16-all (given): features differ from published activations by about 3% of "
        "their standard deviation; --compute float32 avoids this",
    }
    for compute, line in expected.items():
        extract(str(file), backbone=str(folder), compute=compute, layers="embed", pool="mean")
        assert f"{file.name}: {line}" in capfd.readouterr().err.splitlines()
    extract("digits", limit=20, compute="bfloat16", layers="embed", pool="mean")
    assert "digits: computed in bfloat16 (given): features differ from those in float32" in capfd.readouterr().err
    # Recurrent states need float32, whatever is given.
    extract("digits", limit=20, backbone="esn:units=8", compute="bfloat16", layers="embed", pool="mean")
    assert "digits: computed in float32" in capfd.readouterr().err


def write_sounds(folder: Path, rows: int) -> str:
    draw = np.random.default_rng(0)
    for row in range(rows):
        path = folder / ["low", "high"][row % 2] / f"{row}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        wavfile.write(path, 16_000, draw.normal(0, 1000, 1600).astype(np.int16))
    return str(folder)


def test_sounds_are_trained_on_as_the_model_hears_them(cache: Path, tmp_path: Path):
    pytest.importorskip("soundfile")
    folder = save_with_extractor("wav2vec2", tmp_path / "model")
    sounds = write_sounds(tmp_path / "sounds", 30)
    assert load_run(train(sounds, backbone=str(folder), steps=1, batch=2).path, "cpu").reader


@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_a_model_of_sounds_says_that_its_own_input_is_not_used(init: str, cache: Path, tmp_path: Path, capfd):
    pytest.importorskip("soundfile")
    from transformers import WhisperConfig, WhisperModel

    sizes = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    sizes |= {"vocab_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(d_model=16, encoder_layers=1, decoder_layers=1, num_mel_bins=8, **sizes)
    WhisperModel(config).save_pretrained(tmp_path / "model")
    sounds = write_sounds(tmp_path / "sounds", 12)
    extract(sounds, backbone=str(tmp_path / "model"), init=init, layers="embed", pool="mean")
    note = "whisper: its own input for sounds is not supported, so 40 values a step (of sounds, mel bands) enter"
    assert (note in capfd.readouterr().err) == (init == "pretrained")


def test_no_thread_of_an_extraction_sees_tf32_however_the_threads_are_delayed(cache, tmp_path, monkeypatch):
    """The loader convolves sounds while the main thread computes features; TF32 is a setting of the whole process."""
    pytest.importorskip("soundfile")
    folder, sounds = save_with_extractor("wav2vec2", tmp_path / "model"), write_sounds(tmp_path / "sounds", 40)
    monkeypatch.setitem(BLOCK_ROWS, "cpu", 4)  # many blocks, so that loading and computing overlap
    seen: dict[str, set[tuple[str, bool]]] = {"load": set(), "compute": set()}
    delays = random.Random(0)

    def watched(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            time.sleep(delays.uniform(0, 0.02))
            for _ in range(2):
                seen[what].add((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
                result = function(*arguments)
            return result

        return call

    monkeypatch.setattr(SoundReader, "__call__", watched("load", SoundReader.__call__))
    monkeypatch.setattr(FPT, "pooled_layers", watched("compute", FPT.pooled_layers))
    call = partial(extract, sounds, backbone=str(folder), layers="final", pool="mean")
    torch.set_float32_matmul_precision("medium")
    before = torch.backends.cudnn.allow_tf32
    try:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(lambda name: call(cache=tmp_path / name), ["first", "second"])
        assert torch.get_float32_matmul_precision() == "medium" and torch.backends.cudnn.allow_tf32 == before
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == {"load": {("highest", False)}, "compute": {("highest", False)}}
    assert contents(first.entry, "*.h5") == contents(second.entry, "*.h5")


@pytest.mark.parametrize("broken", ["code", "json", "none"])
def test_a_tokenizer_that_would_run_code_or_is_invalid_is_refused_in_one_line(
    broken: str, cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    sign = tmp_path / "ran"
    if broken == "code":
        (folder / "tokenizer.json").unlink()
        (folder / "evil.py").write_text(f"open({str(sign)!r}, 'w')\nclass Evil: pass\n")
        config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    else:
        (folder / "tokenizer.json").write_text("{" if broken == "json" else json.dumps({"model": {"type": "None"}}))
    file = write_texts(tmp_path / "pets.jsonl", 20)
    code = run(["extract", str(file), "--backbone", str(folder), "--input", "native"])
    error = capfd.readouterr().err.strip()
    assert code == 2 and "its tokenizer is not readable" in error and "Traceback" not in error
    assert not sign.exists()


COLOURS = {"blue": (20, 40, 200), "red": (200, 40, 20)}
KINDS = (".png", ".jpg", ".webp")


def paint(path: Path, colour: tuple[int, int, int], seed: int) -> Path:
    draw = np.random.default_rng(seed)
    height, width = draw.integers(20, 60, 2)
    noisy = np.clip(np.array(colour) + draw.normal(0, 40, (height, width, 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noisy).save(path)
    return path


def folder(root: Path, rows: int = 12, prefix: str = "") -> Path:
    for colour, value in COLOURS.items():
        for row in range(rows):
            paint(root / prefix / colour / f"{row:02d}{KINDS[row % 3]}", value, row + len(colour))
    return root


def test_a_folder_by_class_is_enough(cache, tmp_path, call, answer):
    root = folder(tmp_path / "pictures")
    (root / "red" / "notes.txt").write_text("no image")
    code, out, error = call("extract", root, "--json")
    assert code == 0 and "read as 32x32 pixels" in error and "files left out because they are not images: 1" in error
    assert json.loads(out)["rows"] == {"train": 14, "valid": 6, "test": 4}
    assert answer("fit", root, "--out", tmp_path / "readout")["best"]["test_score"] == 1
    new = folder(tmp_path / "new", 2)
    code, out, error = call("predict", tmp_path / "readout", new, "--out", tmp_path / "found.csv")
    assert code == 0 and "accuracy" in error
    rows = list(csv.DictReader((tmp_path / "found.csv").open()))
    assert [row["id"] for row in rows] == ["blue/00.png", "blue/01.jpg", "red/00.png", "red/01.jpg"]
    assert [row["label"] for row in rows] == ["blue", "blue", "red", "red"] and "p_blue" in rows[0]
    (one,) = predict(tmp_path / "readout", new / "red" / "00.png")
    assert (one.label, one.id, one.truth) == ("red", "00.png", None)


def test_a_photo_is_turned_and_what_is_transparent_is_white(tmp_path: Path):
    def bytes_of(name):
        return np.frombuffer((tmp_path / name).read_bytes(), np.uint8)

    upright = np.zeros((6, 4, 3), np.uint8)
    upright[:3] = 255
    turned = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # viewers rotate it by 90 degrees clockwise
    turned.save(tmp_path / "photo.png", exif=exif)
    assert (np.asarray(decoded(bytes_of("photo.png"))) == upright).all()
    Image.fromarray(np.array([[[9, 9, 9, 0], [9, 9, 9, 255]]], np.uint8)).save(tmp_path / "clear.png")
    assert np.asarray(decoded(bytes_of("clear.png"))).tolist() == [[[255] * 3, [9] * 3]]
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    palette.putpalette([7, 7, 7, 8, 8, 8])
    palette.save(tmp_path / "clear.gif", transparency=0)
    assert np.asarray(decoded(bytes_of("clear.gif"))).tolist() == [[[255] * 3, [8] * 3]]


def test_files_of_several_frames_are_counted(tmp_path: Path):
    frames = [Image.fromarray(np.full((9, 8, 3), level, np.uint8)) for level in (0, 120, 250)]
    class_folder = tmp_path / "one"
    class_folder.mkdir()
    for suffix in (".tif", ".gif", ".webp"):
        frames[0].save(class_folder / f"one{suffix}")
        frames[0].save(class_folder / f"several{suffix}", save_all=True, append_images=frames[1:])
        (class_folder / f"damaged{suffix}").write_bytes((class_folder / f"several{suffix}").read_bytes()[:30])
    frames[0].save(class_folder / "photo.jpg", "MPO", save_all=True, append_images=frames[1:])  # as of a camera
    notes = open_rows(str(tmp_path), OwnDataOptions()).notes
    assert "files with several pages or frames, of which the first is read: 3" in notes


def test_a_vision_model_refuses_series_that_may_be_images(cache: Path, tmp_path: Path, refusal):
    model = save_with_processor("vit", tmp_path / "vit", size={"height": 8, "width": 8})
    x = np.random.default_rng(0).integers(0, 256, (20, 9, 8)).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", x=x, y=np.arange(20) % 2)
    error = refusal("extract", tmp_path / "grey.npz", "--backbone", model)
    assert "reads images, but x is read as series; pass --pixels 255" in error
    for flags, is_native in (({"values": True}, False), ({"pixels": 255}, True)):
        options = ExtractOptions(backbone=str(model), cache=cache, **flags)
        assert (resolved_plan(str(tmp_path / "grey.npz"), options).reservoir.input == "native") is is_native


def test_images_pass_a_vision_model_as_in_a_script(cache: Path, tmp_path: Path, refusal, capfd):
    import torch
    from transformers import AutoImageProcessor, AutoModel

    model = save_with_processor("vit", tmp_path / "vit", size={"height": 8, "width": 8})
    root = folder(tmp_path / "pictures")
    done = extract(str(root), backbone=str(model), compute="float32", store="float32")
    message = capfd.readouterr().err
    assert "24 images, with 2 classes" in message and "32x32" not in message and "64 patches" not in message
    assert done.columns[:2] == ("embed/cls", "embed/mean") and done.store.entry.spec.input.kind == "native"
    fit(done, out=tmp_path / "readout", columns="final/cls+final/mean")
    assert all(one.label == one.truth for one in predict(tmp_path / "readout", root))
    assert "explain does not support the model's own processor" in refusal("explain", tmp_path / "readout", root)
    files = sorted(root.rglob("*.*"))
    images = [Image.open(file).convert("RGB") for file in files]
    pixels = AutoImageProcessor.from_pretrained(model, backend="pil")(images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = AutoModel.from_pretrained(model).eval()(pixels).last_hidden_state.mean(1).numpy()
    found = np.concatenate([done[split]["final/mean"] for split in done])
    for row in expected:
        assert np.abs(found - row).max(axis=1).min() < 1e-5


@pytest.mark.parametrize(("kind", "half"), [("dinov3_vit", ""), ("siglip", "vision_model")])
def test_images_pass_a_vision_model_that_no_family_describes(kind: str, half: str, cache: Path, tmp_path: Path):
    import torch
    from transformers import AutoImageProcessor, AutoModel

    model = save_with_processor(kind, tmp_path / kind, size={"height": 8, "width": 8})
    root = folder(tmp_path / "pictures")
    features = extract(str(root), backbone=str(model), compute="float32", store="float32", pool="mean")
    assert features.store.entry.spec.input.kind == "native"
    fit(features, out=tmp_path / "readout")
    assert all(row.label == row.truth for row in predict(tmp_path / "readout", root))
    images = [Image.open(file).convert("RGB") for file in sorted(root.rglob("*.*"))]
    pixels = AutoImageProcessor.from_pretrained(model, backend="pil")(images, return_tensors="pt")["pixel_values"]
    vision = AutoModel.from_pretrained(model).eval().get_submodule(half)
    with torch.no_grad():
        expected = vision(pixels).last_hidden_state.mean(1).numpy()
    rows = np.concatenate([features[split]["final/mean"] for split in features])
    for row in expected:
        assert np.abs(rows - row).max(axis=1).min() < 1e-5


def test_rows_of_several_lengths_pass_a_model_that_cannot_mask_padding(cache: Path, tmp_path: Path, capsys):
    model = save_with_processor("dinov3_vit", tmp_path / "dinov3", size={"height": 8, "width": 8})
    draw = np.random.default_rng(0)
    x, lengths = draw.normal(size=(12, 6, 2)).astype(np.float32), np.tile([6, 4], 6)
    np.savez(tmp_path / "series.npz", x=x, y=np.arange(12) % 2, lengths=lengths)
    settings = {"backbone": str(model), "compute": "float32", "store": "float32", "pool": "mean"}
    together = extract(str(tmp_path / "series.npz"), **settings)
    assert "rows of a batch have one length" in capsys.readouterr().err
    alone = extract(str(tmp_path / "series.npz"), **settings, cache=tmp_path / "alone", batch_rows=1)
    for split in together:
        np.testing.assert_allclose(together[split]["final/mean"], alone[split]["final/mean"], atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_of_paths(suffix: str, cache: Path, tmp_path: Path):
    root = folder(tmp_path / "pictures")
    rows = [
        {"image": f"{colour}/{row:02d}{KINDS[row % 3]}", "name": f"{colour}-{row}", "kind": colour}
        for colour in COLOURS
        for row in range(12)
    ]
    table = root / f"table{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
        pd.DataFrame(rows).to_parquet(table)
    elif suffix == ".csv":
        pd.DataFrame(rows).to_csv(table, index=False)
    else:
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    features = extract(str(table), text="image", label="kind", id="name", layers="embed", pool="mean")
    fit(features, out=tmp_path / "readout")
    predictions = list(predict(tmp_path / "readout", table))
    assert [prediction.id for prediction in predictions] == [row["name"] for row in rows]
    assert all(prediction.label == prediction.truth for prediction in predictions)
    assert next(iter(predict(tmp_path / "readout", root / "blue" / "00.png"))).label == "blue"


def bomb(path: Path) -> None:
    path.write_bytes(b"P5 60000 60000 255\n" + b"\0" * 100)


def truncated(path: Path) -> None:
    paint(path, (1, 2, 3), 0)
    path.write_bytes(path.read_bytes()[:300])


def link(path: Path) -> None:
    outside = paint(path.parents[3] / "outside.png", (1, 2, 3), 0)
    path.symlink_to(outside)


def deep_png(path: Path) -> None:
    """Write a PNG in RGB with 16 bits per value, which Pillow cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 9, 9, 16, 2, 0, 0, 0)  # width, height, bits, colour type RGB
    pixels = zlib.compress(9 * (b"\0" + bytes(9 * 3 * 2)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def deep_tiff(path: Path) -> None:
    """Write a TIFF in RGB with 16 bits per value, which Pillow cannot write."""
    bits_at = 8 + 2 + 9 * 12 + 4  # after the header and nine tags
    tags = [
        (256, 9), (257, 9), (258, bits_at), (259, 1), (262, 2),  # width, height, bits, no compression, RGB
        (273, bits_at + 6), (277, 3), (278, 9), (279, 9 * 9 * 3 * 2),  # place, values per pixel, rows, bytes
    ]  # fmt: skip
    entries = [struct.pack("<HHII", tag, 3, 3 if tag == 258 else 1, value) for tag, value in tags]
    header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(entries) + bytes(4)
    path.write_bytes(header + struct.pack("<3H", 16, 16, 16) + bytes(9 * 9 * 3 * 2))


HOSTILE = {
    "bomb.ppm": (bomb, "pixels"),
    "cut.jpg": (truncated, "not a readable image"),
    "text.png": (lambda path: path.write_text("hello"), "not a readable image (cannot identify image file); repair it"),
    "ps.png": (
        lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
        "not a readable image",
    ),
    "deep.png": (lambda path: Image.new("I;16", (9, 9)).save(path), "more than 8 bits"),
    "deep-rgb.png": (deep_png, "more than 8 bits"),
    "deep-rgb.tif": (deep_tiff, "more than 8 bits"),
    "deep-rgb.ppm": (lambda path: path.write_bytes(b"P6 9 9 65535\n" + bytes(9 * 9 * 3 * 2)), "more than 8 bits"),
    "link.png": (link, "is outside"),
    "../stray.png": (lambda path: paint(path, (1, 2, 3), 0), "stray.png is in no class folder"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_image_is_refused_in_one_line(name: str, cache: Path, tmp_path: Path, refusal):
    root = folder(tmp_path / "in" / "pictures", 5)
    make, message = HOSTILE[name]
    make(root / "red" / name)
    error = refusal("extract", root)
    assert message in error and name.rpartition("/")[2] in error


def test_wrong_folders_and_tables_of_images_are_refused_in_one_line(cache: Path, tmp_path: Path, call, refusal):
    root = folder(tmp_path / "pictures", 5)
    (root / "table.csv").write_text("path,label\nred/00.png,1\n../x.png,2\n")
    paint(tmp_path / "x.png", (1, 2, 3), 0)
    (root / "none.csv").write_text("path,label\nred/00.png,a\nred/77.png,b\n")
    cases = {
        ("extract", root, "--label", "kind"): "--label does not apply to data of this kind",
        ("extract", root / "table.csv"): "is outside",
        ("extract", root / "none.csv"): "line 3: no file 'red/77.png'",
        ("extract", root, "--input", "native"): "gpt2 reads text",
    }
    for command, message in cases.items():
        assert message in refusal(*command)
    (tmp_path / "empty").mkdir()
    assert call("extract", tmp_path / "empty")[0] == 2


# Chats and texts with a span pass through extract, fit and predict, from a table to a prediction.


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


@pytest.mark.usefixtures("one_renderer")
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


@pytest.mark.usefixtures("one_renderer")
def test_attention_and_training_do_not_read_the_json_of_chats_unnoticed(cache, tmp_path, capfd):
    folder, file = save_with_chat_template(tmp_path / "llama"), write_chats(tmp_path / "chats.jsonl", 30)
    maps = attention(file, chat=True, backbone=folder, average=1)
    assert maps.labels[:2] == ["<s>", "<|user|>"] and maps.labels[-1] == "<|end|>"
    with pytest.raises(InputError, match="--chat: the model does not read chats by its own tokenizer"):
        attention(file, chat=True, backbone=folder, input="orthogonal")
    letters = {"backbone": "gpt2:n_layer=1,n_embd=16,n_head=2", "init": "random", "steps": 1, "batch": 2}
    train(file, chat=True, **letters)
    assert "train reads the letters of the messages in JSON by a random input layer" in capfd.readouterr().err


def test_training_says_that_letters_are_its_symbols(cache, tmp_path, capfd):
    folder, file = save_with_tokenizer("gpt2", tmp_path / "gpt2"), write_texts(tmp_path / "pets.jsonl", 30)
    note = "train reads letters by a random input layer; --input native reads texts by the model's own tokenizer"
    for given, has_note in (({}, True), ({"input": "native"}, False), ({"input": "orthogonal"}, False)):
        train(file, backbone=folder, steps=1, batch=2, **given)
        assert (note in capfd.readouterr().err) == has_note


@pytest.mark.usefixtures("one_renderer")
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
        ([{"text": "a cat", "span": [True, 2], "label": 0}], [], "True, 2] is not a span"),
        ([{"text": "a", "span": s, "label": 0} for s in ([0, 1], "0,1")], [], "0,1 is not a span"),
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
