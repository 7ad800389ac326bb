"""Labels of words: `extract` and `fit` beside a short script with transformers and scikit-learn.

    python benchmarks/tokens.py MODEL TEXT [--rows 1500]

MODEL is the folder of a language model, TEXT is enwik8.gz. The rows are paragraphs of Wikipedia in lower case, and the
label of a word says whether it began with a capital. Both ways run the model on the same rows in float32, and
`extract` in the precision of its choice, too. They keep the first token of each word of every layer in float16, choose
a layer and a penalty of ridge regression on the validation rows, and score the readout that is then fitted to train
and valid on the test rows. The script keeps what is needed to find the words again: labels, the number of the text,
token IDs and spans. Times are processor seconds of one thread; MB is the size of all features and labels on disk. The
first lines give the share of the most frequent class.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from reservoir_pipelines import extract, fit
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler
from transformers import AutoConfig, AutoModel, AutoTokenizer

SPLITS = ("train", "valid", "test")
BATCH_ROWS = 32
ALPHAS = np.logspace(-1, 5, 13)
WORDS = range(12, 61)  # of a paragraph
MARKUP = (
    (r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]", r"\1"),
    (r"'{2,}|\{\{[^}]*\}\}|<[^>]*>|\[http\S+|[\[\]*#:|]", " "),
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
            is_prose = line[0].isalpha() and line.rstrip().endswith(".") and len(words) in WORDS
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


def row_of_script(model: str, rows: list[dict], folder: Path) -> tuple[object, ...]:
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


def row_of_extract(model: str, data: Path, compute: str, folder: Path) -> tuple[object, ...]:
    """Return the row of the table for `extract` in some precision and `fit`, whose cache is a new folder."""
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--rows", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        path = root / "words.jsonl"
        write_paragraphs(options.text, options.rows, path)
        rows = [json.loads(line) for line in path.open()]
        # Both ways import the same modules, which takes longer than a small extraction.
        AutoModel.from_pretrained(options.model)
        table = [row_of_script(options.model, rows, root / "script")]
        table += [
            row_of_extract(options.model, path, compute, root / compute) for compute in ("float32", "auto")
        ]
    print(
        "\n| way | layer | accuracy per word | extraction (s) | fit (s) | MB |\n|---|---|--:|--:|--:|--:|"
    )
    for way, chosen, score, extraction, fitting, size in table:
        print(f"| {way} | {chosen} | {100 * score:.1f} | {extraction:.1f} | {fitting:.1f} | {size:.1f} |")


if __name__ == "__main__":
    main()
