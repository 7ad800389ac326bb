"""Native input of text, vision and audio models, compared with readers and models of transformers."""

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir import InputError
from reservoir.backbone_names import SHIPPED
from reservoir.backbones import find
from reservoir.column import Column
from reservoir.features import forward
from reservoir.inputs import media_readers, text_reader
from reservoir.inputs.media_readers import read_processor
from reservoir.inputs.text_reader import read_tokenizer
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.options import ExtractOptions, ReservoirOptions
from reservoir.plan.model import resolve_model
from reservoir.plan.resolved import resolve
from reservoir.tasks.images import Cifar10, Cifar10Lra, Digits, Mnist
from reservoir.tasks.pictures import patches
from reservoir.tasks.task import Task, Tokens, Vectors
from reservoir.tasks.texts import codes_of
from tests.helpers import outcome
from tests.reservoir.models import (
    MODELS,
    PIXELS,
    SOUNDS,
    hidden_states,
    layer_names,
    save,
    save_with_extractor,
    save_with_letters,
    save_with_processor,
    save_with_tokenizer,
)

TEXTS = [
    "the cat sat",
    "a dog",
    "the cat and the dog and the cow sat on a mat",
    "cow",
    "on on on on on",
    "héllo 😀 cat",
]
LETTERS = ["LAGVS", "PK", "LLLLLLERTIDPKKKKK", "A", "LAXG"]
TEXT_TASK = Task(name="texts.csv", form=Tokens(99), max_tokens=60, classes=2, alphabet=" abc")
KINDS = [kind for kind in MODELS if kind not in (*PIXELS, *SOUNDS)]


def load_text(folder: Path) -> LoadedModel:
    options = ReservoirOptions(backbone=str(folder), input="native")
    return load_model(TEXT_TASK, resolve_model(options), "cpu", "float32")


def text_features(
    model: LoadedModel, texts: list[str], columns: list[str], batch_rows: int = 32
) -> dict[str, np.ndarray]:
    return forward(model, None, *codes_of("here", texts), columns, batch_rows)


@torch.no_grad()
def text_by_hand(kind: str, folder: Path, text: str, most: int = 20) -> dict[str, np.ndarray]:
    """Return the pooled layers of one text, computed with only transformers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(
        text, truncation=True, padding=False, max_length=most, return_tensors="pt", return_special_tokens_mask=True
    )
    given = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    words = ~tokens["special_tokens_mask"][0].bool()
    states = [state[:, : tokens["input_ids"].shape[1]] for state in hidden_states(kind, folder, **given)]
    named = dict(zip(layer_names(kind), states, strict=True))
    pooled = {"first": lambda h: h[0, 0], "last": lambda h: h[0, -1], "mean": lambda h: h[0].mean(0)}
    pooled["words"] = lambda h: h[0, words].mean(0).nan_to_num()  # zeros if all tokens are special
    return {f"{layer}/{name}": of(h).numpy() for layer, h in named.items() for name, of in pooled.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_text_features_equal_a_script_with_transformers(kind: str, tmp_path: Path):
    model = load_text(save_with_tokenizer(kind, tmp_path / kind))
    columns = [f"{layer}/{pooling}" for layer in layer_names(kind) for pooling in ("first", "last", "mean", "words")]
    texts = LETTERS if kind == "esm" else TEXTS
    found = text_features(model, texts, columns)
    for row, text in enumerate(texts):
        for column, expected in text_by_hand(kind, tmp_path / kind, text).items():
            np.testing.assert_allclose(found[column][row, 0], expected, atol=1e-5, err_msg=f"{column} {text}")
    # Texts that are read one by one, without padding, have the same features.
    alone = [text_features(model, [text], columns, 1) for text in texts]
    for column in columns:
        np.testing.assert_allclose(np.concatenate([one[column] for one in alone]), found[column], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_random_weights_come_with_random_embeddings_and_the_tokenizer_of_the_folder(kind: str, tmp_path: Path):
    from transformers import AutoConfig, AutoModel

    folder = save_with_tokenizer(kind, tmp_path / kind)
    options = ReservoirOptions(backbone=str(folder), input="native", init="random", seed=3)
    drawn = load_model(TEXT_TASK, resolve_model(options), "cpu", "float32")
    assert drawn.input_digests["tokenizer"] == load_text(folder).input_digests["tokenizer"]
    # transformers gets the drawn weights, and computes the same layers from the same tokens.
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    name, embeddings = next((n, p) for n, p in model.named_parameters() if p.shape[0] == model.config.vocab_size)
    weights = drawn.fpt.backbone.model.state_dict() | {name: drawn.fpt.inputs.map.weight}
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert all(name.startswith("pooler") for name in missing)
    model.save_pretrained(folder)
    assert float(embeddings.detach().std()) == pytest.approx(model.config.initializer_range, rel=0.2)
    columns = ["embed/mean", "block02/last", "final/mean"]
    found = text_features(drawn, TEXTS, columns)
    for row, text in enumerate(TEXTS):
        expected = text_by_hand(kind, folder, text)
        for column in columns:
            np.testing.assert_allclose(found[column][row, 0], expected[column], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_long_texts_are_cut_as_in_transformers_and_counted(kind: str, tmp_path: Path):
    folder = save_with_tokenizer(kind, tmp_path / kind)
    model, text = load_text(folder), "the cat sat on a mat and " * 9
    found = text_features(model, [text, "a cow"], ["final/last", "block02/mean"])
    most = {"bert": 24, "gpt2": 32}[kind]
    expected = text_by_hand(kind, folder, text, most)
    assert model.reader and model.reader.max_tokens == most
    assert model.reader.note.startswith(f"1 of 2 texts have more than {most} tokens and are cut (extract --long")
    for column, values in found.items():
        np.testing.assert_allclose(values[0, 0], expected[column], atol=1e-5)


def test_texts_of_many_rows_keep_fewer_layers_of_the_model(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    short, options = replace(TEXT_TASK, max_tokens=2), ExtractOptions(backbone=str(folder))
    few, many = (resolve(short, options, {"train": rows}) for rows in (9, 1_000_000))
    assert len(few.layers) == 5 and not few.note
    assert many.layers == ("embed", "block02", "final") and many.poolings == few.poolings == ("cls", "mean")
    assert f"--layers {','.join(few.layers)} --pool cls,mean takes" in many.note


def test_input_digests_depend_on_tokenizer_and_embeddings(tmp_path: Path):
    folder = save_with_tokenizer("bert", tmp_path / "bert")
    first = load_text(folder)
    assert load_text(folder).input_digests == first.input_digests and set(first.input_digests) == {
        "tokenizer",
        "embeddings",
    }
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cow"', '"ox"'))
    changed = load_text(folder)
    assert changed.input_digests["tokenizer"] != first.input_digests["tokenizer"]
    assert changed.input_digests["embeddings"] == first.input_digests["embeddings"] and changed.digest == first.digest


def test_the_digest_of_a_tokenizer_depends_on_merges_and_on_whether_special_tokens_are_read(tmp_path: Path):
    folder = save_with_tokenizer("roberta", tmp_path / "roberta")
    settings, first = folder / "tokenizer_config.json", read_tokenizer("roberta", folder, 32)
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"split_special_tokens": True}))
    assert read_tokenizer("roberta", folder, 32).digest != first.digest
    (folder / "tokenizer.json").unlink()
    settings.write_text('{"tokenizer_class": "PhobertTokenizer"}')
    (folder / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in ("a", "b", "a@@", "b@@", "ab", "ba")))
    digests = set()
    for merge in ("a b</w> 1\n", "b a</w> 1\n"):
        (folder / "bpe.codes").write_text(merge)
        digests.add(read_tokenizer("roberta", folder, 32).digest)
    assert len(digests) == 2


def test_texts_that_the_model_cannot_read_are_refused(tmp_path: Path):
    folder = save_with_tokenizer("gpt2", tmp_path / "gpt2")

    def refused(task: Task = TEXT_TASK, **settings: str) -> str:
        chosen = resolve_model(ReservoirOptions(backbone=str(folder), input="native", **settings))
        return outcome(load_model, task, chosen, "cpu", "float32")

    assert "drawn by --init statistics" in refused(init="statistics")
    assert "gpt2 reads text" in refused(replace(TEXT_TASK, alphabet=""))
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer is not readable" in refused()


def test_letters_are_separated_for_vocabularies_of_single_letters(tmp_path: Path):
    folder = save_with_letters(tmp_path / "bert")
    model = load_text(folder)
    found = text_features(model, LETTERS, ["final/mean", "block01/cls"])
    assert model.reader
    tokens, lengths = model.reader(*codes_of("here", LETTERS))
    assert lengths.tolist() == [len(word) + 2 for word in LETTERS] and 1 not in tokens[0, :7]
    expected = text_by_hand("bert", folder, " ".join(LETTERS[0]))
    np.testing.assert_allclose(found["final/mean"][0, 0], expected["final/mean"], atol=1e-5)
    # A space has a label as any letter, and the token of the letter before it.
    assert model.reader.places(*codes_of("here", ["LAGV", "LA VS"])).tolist() == [[1, 2, 3, 4, -1], [1, 2, 2, 3, 4]]


def test_letters_are_separated_if_each_begins_a_word_in_the_vocabulary(tmp_path: Path):
    """As in ProtT5, whose pieces are ``▁A``, ``▁C`` ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((f"▁{letter}", -2.0) for letter in "LAGVSERTIDPK")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(save("t5", tmp_path / "t5"))
    model = load_text(tmp_path / "t5")
    assert model.reader and model.reader.obstacle("ADEGILPRSTVX") == ""
    tokens, lengths = model.reader(*codes_of("here", ["LAGVS", "PK"]))
    assert tokens.tolist() == [[3, 4, 5, 6, 7, 1], [13, 14, 1, 0, 0, 0]] and lengths.tolist() == [6, 3]
    (pieces,) = model.reader.encodings(["LAG"], in_pieces=False).pieces
    ((_, spans),) = pieces
    assert spans.tolist() == [[0, 1], [1, 2], [2, 3], [0, 0]]  # the letters of each token, and of </s> none


def test_a_letter_that_a_tokenizer_leaves_out_has_a_token_beside_it():
    offsets = [(0, 0), (1, 2), (3, 4), (0, 0)]
    assert text_reader._tokens_of_letters(offsets, np.arange(1, 5)).tolist() == [1, 1, 1, 2]
    assert "leaves out all letters" in outcome(text_reader._tokens_of_letters, [(0, 0)], np.arange(1, 3))


WORD_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"acgtn", *(f"##{letter}" for letter in "acgt"), "##ac"]


@pytest.mark.parametrize(
    ("vocabulary", "lower", "letters", "obstacle"),
    [
        ([*WORD_PIECES[:5], *"LAGVSERTIDPK"], False, "LAGVSERTIDPKX", ""),  # X is unknown
        ([*WORD_PIECES[:5], *"LAGVSERTIDPK"], False, "ACGT", ""),  # the 4 letters are tokens of their own
        ([*WORD_PIECES[:5], *"LAGVSERTIDPK"], True, "LAGVSERTIDPK", "does not know most of the letters LAGVSERTIDPK"),
        ([*WORD_PIECES[:5], *"LAGVSERTIDPK"], False, "lagv", "set do_lower_case to false"),
        (WORD_PIECES, False, "acgt", ""),  # pieces of several letters, all of DNA
        ([*WORD_PIECES, *(f"word{n}" for n in range(20))], False, "acgt", "most tokens of its tokenizer have other"),
        ([*WORD_PIECES, *(f"{a}o{b}" for a in "dehn" for b in "dehn")], False, "acdeghnot", ""),  # names
    ],
)
def test_a_tokenizer_reads_letters_of_which_its_tokens_consist(vocabulary, lower, letters, obstacle, tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    said = read_tokenizer("bert", tmp_path, 32).obstacle(letters)
    assert obstacle in said and bool(said) == bool(obstacle)


def test_the_tokens_of_bytes_are_letters():
    assert read_tokenizer("mini", SHIPPED["mini"], 32).obstacle("ACGT") == ""


def states_on_the_page(kind: str) -> dict[str, str]:
    """Return the outputs of transformers that docs/concepts.md names for the layers of a family with 3 blocks."""
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    stable = MODELS[kind][1].get("do_stable_layer_norm")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "`hidden_states[0]`" in line]
    (cells,) = [
        row[1:]
        for row in rows
        if kind in re.findall(r"[\w-]+", row[0]) and (kind not in SOUNDS or ("without" not in row[0]) == bool(stable))
    ]
    embed, inner, block, final = (cell.strip("`").replace("[N]", "[3]") for cell in cells)
    inner = [inner.replace("[K]", f"[{number}]") for number in (1, 2)]
    return dict(zip(layer_names(kind), [embed, *inner, block, final], strict=True))


@torch.no_grad()
@pytest.mark.parametrize("kind", MODELS)
def test_layers_are_the_outputs_of_transformers_that_the_page_names(kind: str, tmp_path: Path):
    from transformers import AutoModel, T5EncoderModel

    if kind in PIXELS:
        model = load_pixels(save_with_processor(kind, tmp_path / kind, **PROCESSORS[kind]))
        inputs = {"pixel_values": torch.randn(1, 3, model.reader.height, model.reader.width)}
        x = patches(inputs["pixel_values"].permute(0, 2, 3, 1).numpy(), model.reader.patch)
        more = {"interpolate_pos_encoding": True} if kind == "vit" else {}
        tokens = torch.from_numpy(x)
    elif kind in SOUNDS:
        model, more = load_sounds(save_with_extractor(kind, tmp_path / kind)), {}
        samples = torch.randn(1, 400, 1)
        inputs = {"input_values": samples[:, :, 0]}
        model.reader._extractor = lambda rows, **_: {"input_values": np.stack(rows)}
        tokens = torch.from_numpy(model.reader(samples.numpy(), np.array([400]))[0])
    else:
        model, more = load_text(save_with_tokenizer(kind, tmp_path / kind)), {}
        tokens = torch.tensor([[3, 5, 7, 8, 4]])
        inputs = {"input_ids": tokens}
    theirs = (T5EncoderModel if kind == "t5" else AutoModel).from_pretrained(tmp_path / kind).eval()
    outputs = theirs(**inputs, **more, output_hidden_states=True)
    lengths = torch.tensor([outputs.last_hidden_state.shape[1]])
    pooled = model.fpt.features(tokens, lengths, [Column(layer, "all") for layer in layer_names(kind)])
    for layer, name in states_on_the_page(kind).items():
        array, _, number = name.partition("[")
        if name == "not returned":
            layer_states = pooled[Column(layer, "all")]
            assert not any(torch.allclose(layer_states, h, atol=1e-3) for h in outputs.hidden_states)
            continue
        expected = outputs[array][int(number.strip("]"))] if number else outputs[array]
        torch.testing.assert_close(
            pooled[Column(layer, "all")], expected[:, : int(lengths)], atol=1e-5, rtol=1e-5, msg=layer
        )


@torch.no_grad()
@pytest.mark.parametrize("batch_rows", [2, 32])
def test_pieces_of_long_texts_are_averaged_by_tokens(tmp_path: Path, batch_rows: int):
    from transformers import AutoModel, AutoTokenizer

    folder = save_with_tokenizer("bert", tmp_path / "bert")
    settings = resolve_model(ReservoirOptions(backbone=str(folder), input="native", long="windows"))
    model = load_model(TEXT_TASK, settings, "cpu", "float32")
    texts = ["the cat sat", "the cat and the dog and the cow sat on a mat " * 5, "dog " * 40]
    found = text_features(model, texts, ["final/cls", "final/mean", "final/words", "block02/max"], batch_rows)
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
        words = torch.cat([state[-1][0, 1:-1] for state in states]).mean(0)
        np.testing.assert_allclose(found["final/words"][row, 0], words, atol=1e-5)
        largest = torch.cat([state[2][0] for state in states]).amax(0)
        np.testing.assert_allclose(found["block02/max"][row, 0], largest, atol=1e-5)
        cls = np.average([s[-1][0, 0].numpy() for s in states], axis=0, weights=[s[-1].shape[1] for s in states])
        np.testing.assert_allclose(found["final/cls"][row, 0], cls, atol=1e-5)
    assert model.reader and "2 of 3 texts have more than 24 tokens and are read in pieces" in model.reader.note
    alone = text_features(load_text(folder), texts[:1], ["final/mean"])
    assert alone["final/mean"][0] == pytest.approx(found["final/mean"][0])


def test_long_windows_need_native_input(tmp_path: Path):
    settings = resolve_model(ReservoirOptions(backbone=str(save("bert", tmp_path / "bert")), long="windows"))
    with pytest.raises(InputError, match="--long windows: only for texts"):
        load_model(TEXT_TASK, settings, "cpu", "float32")


PIXEL_TASK = Task(name="cifar10", form=Vectors(48), max_tokens=64, classes=10)
PROCESSORS = {
    "vit": {"size": {"height": 8, "width": 8}},
    "vit-larger": {"size": {"height": 16, "width": 12}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    "dinov2": {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}},
    "dinov2-odd": {"size": {"shortest_edge": 20}, "crop_size": {"height": 17, "width": 14}},
}


def load_pixels(folder: Path, task: Task = PIXEL_TASK) -> LoadedModel:
    return load_model(task, resolve_model(ReservoirOptions(backbone=str(folder), input="native")), "cpu", "float32")


def images(rows: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)


def pixel_features(
    model: LoadedModel, shown: np.ndarray, columns: list[str], batch_rows: int = 32
) -> dict[str, np.ndarray]:
    x = patches(shown, 4)
    return forward(model, None, x, np.full(len(x), x.shape[1], np.int32), columns, batch_rows)


@torch.no_grad()
def pixels_by_hand(folder: Path, shown: np.ndarray) -> dict[str, np.ndarray]:
    """Return the pooled layers of images, computed with only transformers."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = AutoModel.from_pretrained(folder).eval()
    pixels = processor([Image.fromarray(image) for image in shown], return_tensors="pt")["pixel_values"]
    more = {"interpolate_pos_encoding": True} if "ViT" in type(model).__name__ else {}
    out = model(pixel_values=pixels, output_hidden_states=True, **more)
    names = layer_names("vit")
    states = dict(zip(names, [*out.hidden_states[:4], out.last_hidden_state], strict=True))
    if torch.equal(out.hidden_states[3], out.last_hidden_state):
        del states["block03"]  # here transformers returns it after the norm
    pools = {"cls": lambda h: h[:, 0], "mean": lambda h: h.mean(1), "last": lambda h: h[:, -1]}
    pools["words"] = lambda h: h[:, 1:].mean(1)
    pools["segments2"] = lambda h: torch.cat(
        [half.mean(1) for half in (h[:, : h.shape[1] // 2], h[:, h.shape[1] // 2 :])], 1
    )
    return {f"{layer}/{pool}": of(h).numpy() for layer, h in states.items() for pool, of in pools.items()}


@pytest.mark.parametrize("case", PROCESSORS)
def test_pixel_features_equal_a_script_with_transformers(case: str, tmp_path: Path):
    folder = save_with_processor(case.partition("-")[0], tmp_path / case, **PROCESSORS[case])
    expected, model = pixels_by_hand(folder, images()), load_pixels(folder)
    found = pixel_features(model, images(), list(expected))
    for column, values in expected.items():
        np.testing.assert_allclose(found[column][:, 0], values, atol=1e-5, err_msg=column)
    alone = [pixel_features(model, one[None], list(expected), 1) for one in images()]
    for column in expected:
        np.testing.assert_allclose(np.concatenate([one[column] for one in alone]), found[column], atol=1e-5)
    assert model.fpt.task.max_tokens == model.fpt.backbone.max_tokens


@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_images_pass_a_model_that_is_in_bfloat16_as_a_whole(kind: str, tmp_path: Path):
    folder = save_with_processor(kind, tmp_path / kind, **PROCESSORS[kind])
    resolved = resolve_model(ReservoirOptions(backbone=str(folder), input="native"))
    model = load_model(PIXEL_TASK, resolved, "cpu", "bfloat16-all")
    expected = pixels_by_hand(folder, images())["final/mean"]
    found = pixel_features(model, images(), ["final/mean"])["final/mean"][:, 0].astype(np.float32)
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_rectangular_images_have_the_positions_of_the_model(tmp_path: Path):
    import transformers

    folder = save_with_processor("vit", tmp_path / "vit", size={"height": 8, "width": 12})
    # The processor comes from the folder of a model of square images.
    config = transformers.AutoConfig.from_pretrained(folder)
    config.image_size = [8, 12]
    transformers.ViTModel(config).save_pretrained(folder)
    expected = transformers.ViTModel.from_pretrained(folder).embeddings.position_embeddings[0]
    positions = load_pixels(folder).fpt.backbone.model.get_parameter("embeddings.position_embeddings")
    assert torch.equal(positions, expected)
    preprocessor = folder / "preprocessor_config.json"
    preprocessor.write_text(preprocessor.read_text().replace('"width": 12', '"width": 16'))
    assert "do not fit images of another size" in outcome(load_pixels, folder)


def test_named_image_tasks_are_read_as_published():
    draw = np.random.default_rng(0)
    grey = draw.integers(0, 256, (2, 28, 28), np.uint8)
    np.testing.assert_array_equal(Mnist().images(Mnist().encode(grey)[0])[..., 0], grey)
    np.testing.assert_array_equal(Cifar10().images(Cifar10().encode(images())[0]), images())
    assert Cifar10Lra().images(Cifar10Lra().encode(images())[0]).shape == (5, 32, 32, 1)
    digit = draw.integers(0, 17, (2, 8, 8), np.uint8)
    np.testing.assert_array_equal(Digits().images(Digits().encode(digit)[0])[..., 0], np.rint(digit * 15.9375))


def test_images_that_the_model_cannot_read_are_refused(tmp_path: Path):
    folder = save_with_processor("vit", tmp_path / "vit", **PROCESSORS["vit"])
    assert "vit reads pixels" in outcome(load_pixels, folder, replace(PIXEL_TASK, name="homology"))
    config = folder / "preprocessor_config.json"
    config.write_text(config.read_text().replace('"height": 8', '"shortest_edge": 8').replace('"width": 8', '"x": 8'))
    assert "preprocessor_config.json is not usable" in outcome(load_pixels, folder)
    config.write_text('{"image_processor_type": "Evil", "auto_map": {"AutoImageProcessor": "evil.Evil"}}')
    assert "preprocessor_config.json is not usable" in outcome(load_pixels, folder)
    config.unlink()
    assert "preprocessor_config.json is not usable" in outcome(load_pixels, folder)


def test_what_a_processor_is_not_to_blame_for_has_a_reason_of_its_own(tmp_path: Path):
    folder = save_with_processor("dinov3_vit", tmp_path / "dinov3_vit", **PROCESSORS["vit"])
    resolved = resolve_model(ReservoirOptions(backbone=str(folder), input="native"))
    family, config = find(str(folder))
    # As in a model that joins or masks patches, there are fewer tokens than patches.
    message = outcome(read_processor, PIXEL_TASK, "d", folder, family.reads, config, lambda _pixels: 2)
    assert "dinov3_vit joins or leaves out patches" in message and "preprocessor_config" not in message
    if find_spec("torchvision"):
        return
    settings = folder / "preprocessor_config.json"
    of_dinov3 = {"image_processor_type": "DINOv3ViTImageProcessorFast"}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | of_dinov3))
    message = outcome(load_model, PIXEL_TASK, resolved, "cpu", "float32")
    assert "needs torchvision" in message and "run pip install torchvision" in message


SOUND_TASK = Task(name="calls", form=Vectors(1), max_tokens=400, classes=2, parameters={"waveform": True})
LENGTHS = np.array([400, 33, 6, 250, 251, 250, 250])


@pytest.fixture(scope="module", params=["wav2vec2-group", "wav2vec2-layer", "hubert-group", "hubert-layer"])
def folder(request, tmp_path_factory):
    """Return a model of either family with either norm; with layer norms, the sounds are standardised first."""
    kind, norm = request.param.split("-")
    name, settings = MODELS[kind]
    large = norm == "layer"
    changed = {"feat_extract_norm": norm, "do_stable_layer_norm": large, "conv_bias": large}
    before, MODELS[kind] = MODELS[kind], (name, settings | changed)
    try:
        return save_with_extractor(kind, tmp_path_factory.mktemp("sounds") / request.param, do_normalize=large)
    finally:
        MODELS[kind] = before


def load_sounds(folder: Path, task: Task = SOUND_TASK) -> LoadedModel:
    return load_model(task, resolve_model(ReservoirOptions(backbone=str(folder), input="native")), "cpu", "float32")


def sounds() -> np.ndarray:
    x = np.random.default_rng(0).normal(0.1, 0.4, (len(LENGTHS), 400, 1)).astype(np.float32)
    x[np.arange(400) >= LENGTHS[:, None]] = 9  # padding must have no influence
    return x


def columns(model: LoadedModel) -> list[str]:
    return [f"{layer}/{pool}" for layer in model.fpt.backbone.layers for pool in ("mean", "std", "last", "first")]


@torch.no_grad()
def sounds_by_hand(folder: Path, samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return the pooled layers of one sound, computed with only transformers."""
    from transformers import Wav2Vec2FeatureExtractor

    extractor = Wav2Vec2FeatureExtractor.from_pretrained(folder)
    given = extractor(samples, sampling_rate=16000, return_tensors="pt")
    states = hidden_states("wav2vec2", folder, **given)
    pools = {"mean": lambda h: h.mean(0), "last": lambda h: h[-1], "first": lambda h: h[0]}
    pools["std"] = lambda h: h.std(0, correction=0)
    return {
        f"{layer}/{pool}": of(h[0]).numpy()
        for layer, h in zip(layer_names("wav2vec2"), states, strict=True)
        for pool, of in pools.items()
    }


def test_features_equal_a_script_with_transformers_in_any_batch(folder, monkeypatch):
    monkeypatch.setattr(media_readers, "MAX_SAMPLES", 500)  # two of the three sounds of 250 samples go together
    model, x = load_sounds(folder), sounds()
    batches: list[int] = []
    model.reader.convolutions.register_forward_hook(lambda _m, given, _o: batches.append(len(given[0])))
    found = forward(model, None, x, LENGTHS, columns(model), 32)
    for row, n in enumerate(LENGTHS):
        if n >= 20:  # transformers makes no token of a shorter sound
            expected = sounds_by_hand(folder, x[row, :n, 0])
            for column, values in expected.items():
                np.testing.assert_allclose(found[column][row, 0], values, atol=1e-5, rtol=1e-5, err_msg=column)
    embedded = forward(model, None, x, LENGTHS, ["embed/mean"], 32)["embed/mean"]  # runs no block
    np.testing.assert_array_equal(embedded, found["embed/mean"])
    assert batches == 2 * [1, 1, 2, 1, 1, 1]
    single = forward(model, None, x, LENGTHS, columns(model), 1)
    for column in single:
        np.testing.assert_allclose(single[column], found[column], atol=1e-5, rtol=1e-5)
    assert np.isfinite(found["final/mean"][2]).all()


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (Task(name="t", form=Vectors(1), max_tokens=9, classes=2), {}, "reads sounds, which task 't' does not have"),
        (SOUND_TASK, {"sampling_rate": 8000}, "reads 8,000 Hz, not 16,000; pass --rate 8000"),
    ],
)
def test_sounds_that_the_model_cannot_read_are_refused(tmp_path, task, settings, message):
    folder = save_with_extractor("wav2vec2", tmp_path / "model", **settings)
    with pytest.raises(InputError, match=message):
        load_sounds(folder, task)
