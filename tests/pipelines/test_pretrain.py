"""Pretraining equals a plain loop, gives the same bits after a kill, computes the right loss, and refuses bad input."""

import gzip
import json
import math
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reservoir_pipelines import pretrain, train
from reservoir_pipelines.paper.pretrain import save_model, take_weights
from reservoir_pipelines.training.checkpoints import load_run
from safetensors.torch import load_file

from reservoir.backbones import load_backbone
from reservoir.errors import InputError
from reservoir.pretraining.corpora import BYTES, STREAMS, Nesting, Text, corpus_named
from reservoir.pretraining.language_model import CAUSAL, LanguageModel, LanguageSteps
from reservoir.random import generator
from reservoir.training.trainer import DivergedError
from tests.helpers import Child, assert_same_bits
from tests.reservoir.models import save

TINY = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=64"
PLAIN = {"device": "cpu", "compute": "float32"}
SMALL = {**PLAIN, "backbone": TINY, "context": 24, "short": 8, "batch_tokens": 96}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a file of 24 kB in which the next letter depends on the previous one."""
    draw = np.random.default_rng(0)
    words = [bytes(draw.choice(list(b"aeioustr"), draw.integers(1, 7)).tolist()) for _ in range(60)]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_bytes(b" ".join(words[i] for i in draw.zipf(1.4, 9000) % 60)[:24000])
    return path


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "finished"
    return pretrain(str(text), out=folder, steps=30, eval_every=12, learning_rate=0.02, **SMALL)


def journal(folder):
    lines = [json.loads(line) for line in (folder / "pretraining" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "bits" in line], [line for line in lines if "valid_bits" in line]


def plain_loop(backbone, path, asked):
    """Train with only transformers and torch on the windows of the recipe; return losses in bits, norms and model."""
    start = LanguageModel(backbone, 256, asked["seed"])
    model = type(start.model)(start.model.config).train()
    model.load_state_dict(start.model.state_dict())
    corpus, steps, count = Text(path), asked["steps"], asked["batch_tokens"]
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": asked["weight_decay"]}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, asked["beta2"]), foreach=False, fused=False)
    found = []
    for step in range(steps):
        # Half of the steps read short windows, a third of the rest read windows of twice the length, the others the
        # context.
        window, before = (8, 0) if step < 8 else (16, 8) if step < 10 else (24, 16)
        drawn = torch.from_numpy(corpus.draw(asked["seed"], step, count // window, window + 1))
        if step in (8, 10):
            table = next(p for name, p in model.named_parameters() if "wpe" in name)
            with torch.no_grad():
                for place in range(before, len(table)):
                    table[place] = table[place - before]
        logits = model(input_ids=drawn[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), drawn[:, 1:].flatten())
        warm = asked["warm_up"]
        for group in optimizer.param_groups:
            cosine = 0.5 + 0.5 * math.cos(math.pi * max(0, step - warm) / (steps - warm))
            group["lr"] = asked["learning_rate"] * min(1, (step + 1) / warm) * cosine
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), asked["clip"])
        optimizer.step()
        found.append((loss.item() / math.log(2), norm.item()))
    return np.array(found), model


def test_losses_and_weights_are_those_of_a_plain_loop(text, tmp_path):
    settings = {**SMALL, "steps": 16, "warm_up": 3, "short_share": 0.5, "seed": 5}
    pretrain(str(text), out=tmp_path / "model", eval_every=6, learning_rate=0.01, **settings)
    config = json.loads((tmp_path / "model" / "pretraining" / "config.json").read_text())
    steps, measured = journal(tmp_path / "model")
    expected, model = plain_loop(TINY, text, config["settings"]["recipe"])
    found = np.array([(line["bits"], line["norm"]) for line in steps])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [line["step"] for line in measured] == [6, 12, 16] and found[-1, 0] < found[0, 0] - 0.3
    kept = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in model.state_dict().items():
        if name in kept:
            torch.testing.assert_close(kept[name], tensor, atol=1e-5, rtol=0)


LAUNCH = """
import json, sys, torch
from pathlib import Path
from reservoir_pipelines import pretrain
from tests.faults.rounds import inject
torch.set_num_threads(1)
inject("os.rename:7", Path(sys.argv[2], "pretraining", "checkpoints", ".step-"))  # two for each checkpoint
pretrain(sys.argv[1], out=Path(sys.argv[2]), resume=True, **json.loads(sys.argv[3]))
"""


def test_a_pretraining_that_was_killed_goes_on_to_the_same_bits(text, tmp_path):
    settings = {**SMALL, "steps": 60, "eval_every": 7}
    folder = tmp_path / "killed"
    process = Child(LAUNCH, text, folder, json.dumps(settings))
    whole = pretrain(str(text), out=tmp_path / "whole", **settings)
    assert process.ended()[0] == -signal.SIGKILL and not (folder / "pretraining" / "run.json").exists()
    with pytest.raises(InputError, match=r"is at step [\d,]+ of 60; pass --resume to continue it"):
        pretrain(str(text), out=folder, **settings)
    done = pretrain(str(text), out=folder, resume=True, **settings)
    assert_same_bits(*(load_file(f / "model.safetensors") for f in (tmp_path / "whole", folder)))
    lines, measured = journal(folder)
    assert lines == journal(tmp_path / "whole")[0] and [line["step"] for line in lines] == list(range(1, 61))
    assert [m["valid_bits"] for m in measured] == [m["valid_bits"] for m in journal(tmp_path / "whole")[1]]
    assert (done.valid_bits, done.test_bits) == (whole.valid_bits, whole.test_bits)


def test_bits_per_byte_are_those_of_the_folder_that_was_written(finished, text):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(finished.folder).eval()
    corpus = Text(text)
    for split, found in (("valid", finished.valid_bits), ("test", finished.test_bits)):
        held, nats = corpus.held_out(split, 25), 0.0
        for window, first in zip(held.windows.astype(np.int64), held.first, strict=True):
            with torch.no_grad():
                logits = model(input_ids=torch.from_numpy(window[None, :-1])).logits[0, first - 1 :].double()
            nats += torch.nn.functional.cross_entropy(logits, torch.from_numpy(window[first:]), reduction="sum").item()
        assert found == pytest.approx(nats / math.log(2) / (held.windows.shape[1] - held.first).sum(), abs=1e-5)


def test_the_folder_is_one_of_transformers_and_a_backbone(finished, text):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(finished.folder)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    sample = text.read_text()[:50]
    tokens = tokenizer(sample)["input_ids"]
    assert len(tokenizer) == model.config.vocab_size == 256
    assert tokens == Text(text).tokenizer.encode(sample).ids == list(sample.encode())
    assert tokenizer.decode(tokens) == sample
    assert model.generate(torch.tensor([tokens[:4]]), max_new_tokens=5, do_sample=False).shape == (1, 9)
    backbone = load_backbone(finished.folder, "pretrained")
    torch.testing.assert_close(backbone.model.h[0].mlp.c_fc.weight, model.transformer.h[0].mlp.c_fc.weight)
    drawn = load_backbone(finished.folder, "random").model.h[0].mlp.c_fc.weight
    assert not torch.allclose(drawn, backbone.model.h[0].mlp.c_fc.weight)
    assert (folder / "pretraining" / "curve.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder / "pretraining" / "run.json").read_text())
    assert kept.pop("sha256") and kept == finished.to_dict()
    assert finished.tokens == 30 * 96 and finished.unit == "byte" and finished.entropy is None
    steps, _ = journal(folder)
    assert finished.test_bits < np.mean([line["bits"] for line in steps[:3]]) - 1


def test_a_finished_pretraining_is_returned_at_once_even_from_a_moved_folder(finished, text, tmp_path, monkeypatch):
    folder = tmp_path / "moved"
    shutil.copytree(finished.folder, folder)
    for step in ("take", "measure"):
        monkeypatch.setattr(LanguageSteps, step, lambda *_: pytest.fail("a step was taken"))
    settings = {"steps": 30, "eval_every": 12, "learning_rate": 0.02, **SMALL}
    again = pretrain(str(text), out=folder, **settings)
    assert again.to_dict() == {**finished.to_dict(), "folder": str(folder)}
    with pytest.raises(InputError, match=r"recipe.steps = 30, not 31; name another folder"):
        pretrain(str(text), out=folder, **{**settings, "steps": 31})


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_finished_pretraining_whose_model_is_incomplete_saves_it_again(finished, text, tmp_path, name, capsys):
    folder = tmp_path / "incomplete"
    shutil.copytree(finished.folder, folder)
    (folder / name).unlink()
    again = pretrain(str(text), out=folder, steps=30, eval_every=12, learning_rate=0.02, **SMALL)
    assert again.test_bits == finished.test_bits and "saving it again" in capsys.readouterr().err
    assert (folder / name).read_bytes() == Path(finished.folder, name).read_bytes()


def test_zipf_comes_close_to_its_entropy(call, tmp_path):
    settings = "--vocabulary 16 --steps 120 --batch-tokens 512 --context 31 --learning-rate 0.03 --warm-up 10"
    flags = [*settings.split(), "--backbone", TINY, "--compute", "float32", "--device", "cpu", "--out"]
    code, out, _ = call("pretrain", "zipf", *flags, tmp_path / "zipf", "--json")
    done = json.loads(out)
    law = 1 / np.arange(1, 17) / (1 / np.arange(1, 17)).sum()
    assert code == 0 and done["unit"] == "token" and done["corpus"] == {"corpus": "zipf", "vocabulary": 16}
    assert done["entropy"] == pytest.approx(-(law * np.log2(law)).sum())
    for bits in (done["valid_bits"], done["test_bits"]):
        assert -0.01 < bits - done["entropy"] < 0.03 * done["entropy"]
    assert journal(tmp_path / "zipf")[0][0]["bits"] == pytest.approx(4, abs=0.1), "it begins knowing nothing"
    code, out, err = call("pretrain", "zipf", *flags, tmp_path / "zipf")
    assert code == 0 and err == "" and f"entropy     {done['entropy']:.4g}" in out and "vocabulary 16" in out


def test_mistakes_end_in_one_line(refusal, text, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "file").touch()
    new, few = ["--out", tmp_path / "new"], ["--steps", 2]
    tiny = ["--backbone", TINY]
    for arguments, words in [
        (["no-such-file", *new], "corpus 'no-such-file': no such file or folder"),
        (["", *new], "corpus is empty"),
        (
            ["zipf,bit-memory", *new],
            "one of uniform, zipf, nesting, or bit-memory, which cannot be mixed",
        ),
        (["uniform", *new, *tiny, "--vocabulary", 10**11], "--vocabulary 100000000000: give a number from 2 to 1e+06"),
        ([text, *new, *tiny, "--seed", -1], "--seed -1: give a whole number from 0 to"),
        ([text, *new, *tiny, "--compute", "bfloat16-all"], "--compute bfloat16-all: trained weights need hidden"),
        ([text, *new, "--backbone", "t5-small"], "--backbone t5-small: t5 models cannot be pretrained"),
        ([text, *new, *tiny, "--context", 65], "--context 65: gpt2:n_layer=1"),
        ([text, *new, *tiny, "--context", 1], "--context 1: give a whole number of at least 2"),
        ([text, *new, *tiny, "--short", 0], "--short 0: give a whole number of at least 1"),
        ([text, *new, *tiny, "--context", 30, "--short", 31], "--short 31: give at most the context, 30"),
        ([text, *new, *tiny, "--batch-tokens", 63], "--batch-tokens 63: give at least one window, 64 tokens"),
        ([text, *new, *tiny, "--learning-rate", 0], "--learning-rate 0.0: give a positive number"),
        ([text, *new, *tiny, "--weight-decay", -1], "--weight-decay -1.0: give a number from 0 to"),
        ([text, *new, *tiny, "--warm-up", -1], "--warm-up -1: give a whole number of at least 0"),
        ([text, *new, *tiny, "--steps", 0], "--steps 0: give a whole number of at least 1"),
        ([text, *new, *tiny, "--eval-every", 0], "--eval-every 0: give a whole number of at least 1"),
        ([text, *new, *tiny, "--vocabulary", 200], "--vocabulary 200: the tokens of a text are 256 bytes"),
        (["nesting", *new, *tiny, "--vocabulary", 7], "--vocabulary 7: give an even number"),
        ([text, *tiny, *few, "--out", tmp_path / "mine"], "mine: this is a file, or a folder with other files"),
        ([text, *tiny, *few, "--out", tmp_path / "file"], "file: this is a file, or"),
        ([text, *tiny], "--out"),
    ]:
        assert words in refusal("pretrain", *arguments)
    assert not (tmp_path / "new").exists() and [p.name for p in (tmp_path / "mine").iterdir()] == ["config.json"]


def test_a_loss_that_is_no_number_ends_the_command(call, text, tmp_path):
    with pytest.raises(DivergedError, match="--learning-rate"):
        pretrain(str(text), out=tmp_path / "model", steps=9, **SMALL, learning_rate=1e38)
    flags = ["--backbone", TINY, "--steps", 9, "--learning-rate", 1e38, "--device", "cpu"]
    code, out, err = call("pretrain", text, "--out", tmp_path / "other", *flags)
    assert (code, out) == (1, "") and "the loss is nan" in err and not (tmp_path / "other" / "config.json").exists()


pytestmark = pytest.mark.usefixtures("few_bits")
SHAPE = "gpt2:n_layer=1,n_embd=16,n_head=2,n_positions=128"
SHORT = {**PLAIN, "backbone": SHAPE, "vocabulary": 40, "batch_tokens": 500, "eval_every": 2, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def made(one_cache, tmp_path_factory):
    """Return a pretraining of four steps of four rows."""
    return pretrain("bit-memory", out=tmp_path_factory.mktemp("models") / "bits", steps=4, cache=one_cache, **SHORT)


def weights_of(backbone):
    return dict(backbone.model.state_dict())


def test_the_backbone_is_what_train_makes_of_all_groups(made, one_cache, tmp_path):
    settings = {**PLAIN, "backbone": SHAPE, "init": "random", "batch": 4, "dropout": 0.0, "learning_rate": 1e-2}
    done = train("bit-memory", train="all", steps=4, eval_every=2, run=tmp_path / "run", cache=one_cache, **settings)
    assert_same_bits(weights_of(load_backbone(made.folder, "pretrained")), weights_of(load_run(done.path).fpt.backbone))
    assert (made.valid_accuracy, made.test_accuracy) == (done.valid_score, done.test_score)
    assert (made.steps, made.tokens) == (4, 4 * 4 * 120)
    assert (made.unit, made.valid_bits, made.test_bits, made.entropy) == (None, None, None, None)


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        "HuggingFaceTB/SmolLM2-135M:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2,"
        "intermediate_size=24,head_dim=8",
    ],
)
def test_every_family_keeps_its_weights(shape, tmp_path):
    backbone = load_backbone(shape, "random", seed=3)
    model = LanguageModel(shape, 40)
    take_weights(model, backbone)
    save_model(tmp_path, model)
    assert_same_bits(weights_of(load_backbone(str(tmp_path), "pretrained")), weights_of(backbone))


def test_a_resumed_pretraining_on_bits_gives_the_same_weights(made, one_cache, tmp_path):
    half = pretrain("bit-memory", out=tmp_path / "bits", steps=2, cache=one_cache, **SHORT)
    assert half.tokens == made.tokens / 2
    with pytest.raises(InputError, match="is at step 2 of 4; pass --resume"):
        pretrain("bit-memory", out=tmp_path / "bits", steps=4, cache=one_cache, **SHORT)
    whole = pretrain("bit-memory", out=tmp_path / "bits", steps=4, resume=True, cache=one_cache, **SHORT)
    assert (whole.valid_accuracy, whole.test_accuracy) == (made.valid_accuracy, made.test_accuracy)
    one, two = (weights_of(load_backbone(done.folder, "pretrained")) for done in (whole, made))
    assert_same_bits(one, two)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--context", 64], "--context 64: bit-memory does not use this option"),
        (["--weight-decay", 0.0], "--weight-decay 0.0: bit-memory does not use this option"),
        (["--batch-tokens", 119], "--batch-tokens 119: give at least one row, 120 tokens"),
        (["--backbone", "lstm"], "lstm models cannot be pretrained"),
        (["--backbone", "gpt2:n_positions=119,n_layer=1"], "the sequences have 120 tokens, but this gpt2 has 119"),
    ],
)
def test_options_that_do_not_apply_are_refused(flags, message, one_cache, tmp_path, refusal):
    where = "--out", tmp_path / "bits", "--cache", one_cache
    assert message in refusal("pretrain", "bit-memory", *where, "--backbone", SHAPE, *flags)


# Corpora depend on seed and step, keep the order of text, and have the stated entropies.


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
