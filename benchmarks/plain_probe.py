"""A sentence probe as one writes it with transformers and scikit-learn alone; benchmarks/sentences.py runs it.

    python benchmarks/plain_probe.py SENTENCES.jsonl MODEL FOLDER    # MODEL is a folder or a GGUF file

It reads the columns text, label and split, stores the last and the mean token of every layer in FOLDER, chooses layer
and pooling by the leave-one-out error of a ridge classifier, and prints the accuracy on the test rows.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer

BATCH = 32
file, model_name, folder = sys.argv[1:]
gguf: dict[str, str] = {}
if model_name.endswith(".gguf"):
    model_name, gguf = str(Path(model_name).parent), {"gguf_file": Path(model_name).name}
rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
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
np.save(Path(folder) / "features.npy", np.stack(columns))
y = np.array([row["label"] for row in rows])
is_train = np.array([row["split"] == "train" for row in rows])
probes = []
for values in columns:
    probe = make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=np.logspace(-3, 6, 28)))
    probes.append(probe.fit(values[is_train], y[is_train]))
best = int(np.argmax([probe[-1].best_score_ for probe in probes]))
accuracy = float(probes[best].score(columns[best][~is_train], y[~is_train]))
sys.stdout.write(json.dumps({"column": best, "accuracy": accuracy}) + "\n")
