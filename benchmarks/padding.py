"""How much of what goes through a model is padding: counted, with the batches of extract and without its sorting.

    python benchmarks/padding.py [--data DIR]

For ListOps, and for homology where DIR has its files: the share of padding among the tokens of all batches, and how
many times fewer tokens that is than rows in their own order, each batch as long as its longest row; and than every row
padded to the most tokens there are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from reservoir_pipelines.extraction.plan import BATCH_TOKENS, BLOCK_ROWS

from reservoir.features import padded_lengths, token_batches
from reservoir.tasks import task_named


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    data = parser.parse_args().data
    sources = [task_named("listops", train_rows=8192, valid_rows=1, test_rows=1)]
    sources += [task_named("homology", data=data)] if data else []
    for source in sources:
        parts = [source.read(piece).get("train") for piece in source.pieces()]
        lengths = np.concatenate([part.lengths for part in parts if part])
        for device in ("cpu", "cuda"):
            show(source.task.name, source.task.max_tokens, lengths, device)


def show(name: str, most: int, lengths: np.ndarray, device: str) -> None:
    """Print the row of a task and a kind of device."""
    batch, block = max(1, BATCH_TOKENS[device] // most), BLOCK_ROWS[device]
    blocks = [lengths[low : low + block] for low in range(0, len(lengths), block)]
    padded = [padded_lengths(part) for part in blocks]
    ours = sum(
        len(rows) * longest[rows[-1]]
        for part, longest in zip(blocks, padded, strict=True)
        for rows in token_batches(part, longest, batch * most)
    )
    plain = [lengths[low : low + batch] for low in range(0, len(lengths), batch)]
    unsorted, whole = sum(len(rows) * rows.max() for rows in plain), len(lengths) * most
    print(
        f"{name:10} {len(lengths):6,} rows of {lengths.mean():.0f} tokens, {device:4} batches of {batch * most:6,} "
        f"tokens among {block:4,}: {100 * (1 - lengths.sum() / ours):4.1f}% padding, "
        f"{unsorted / ours:.2f} and {whole / ours:.2f} times fewer tokens"
    )


if __name__ == "__main__":
    main()
