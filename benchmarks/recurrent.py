"""Time of a layer of the paper's LSTM, computed token by token, compared with torch's fused LSTM.

    python benchmarks/recurrent.py

The table shows the seconds for a forward pass through one layer of 768 units (the best of five), also for an echo state
network.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from reservoir.backbones.esn import ESNConfig, LeakyUnits
from reservoir.paper.lstm import LSTMCell

WIDTH = 768


def seconds(run: Callable[[], object]) -> float:
    """Return the time of the shortest of five runs, after one run to warm up."""
    times = []
    for _ in range(6):
        started = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def main() -> None:
    """Print one row per batch size and length."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers: dict[str, nn.Module] = {
        "fused": nn.LSTM(WIDTH, WIDTH, batch_first=True),
        "released": LSTMCell(WIDTH),
        "esn": LeakyUnits(ESNConfig(units=WIDTH)),
    }
    for layer in layers.values():
        layer.to(device)
    print(f"{device}, {torch.get_num_threads()} threads; seconds of one layer of {WIDTH}")
    print("rows tokens  fused  released  ratio  esn")
    for rows, tokens in ((8, 64), (32, 64), (32, 256), (128, 64)):
        x = torch.randn(rows, tokens, WIDTH, device=device)
        with torch.inference_mode():
            took = {name: seconds(partial(layer, x)) for name, layer in layers.items()}
        ratio = took["released"] / took["fused"]
        print(
            f"{rows:4} {tokens:6}  {took['fused']:.3f}  {took['released']:8.3f}  {ratio:5.2f}  {took['esn']:.3f}"
        )


if __name__ == "__main__":
    main()
