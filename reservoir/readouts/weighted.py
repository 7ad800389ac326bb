"""A readout of a weighted sum of layers, whose weights are learned, as in ELMo and in the SUPERB benchmark.

With z_l the standardised features of layer l, all of one width, and weights w = softmax(a),

    scores = (sum_l w_l z_l) W + b ,

which is linear in the concatenated columns of all layers. The weights minimise the squared error of
ridge regression on held-out training rows: each half is predicted by the solution of the other half.
L-BFGS follows the gradient through both solutions. Then W is fitted to all training rows for every
penalty.

References: Peters et al. (2018), Deep contextualized word representations; Yang et al. (2021),
SUPERB.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from reservoir.readouts.linear import Block, Targets
from reservoir.readouts.ridge import LinearPath, deviation, gather, inverse, score, solve
from reservoir.readouts.sweep import Sweep

MAX_SAMPLES = 4096  # training samples from which the weights are learned, at most
STEPS = 30


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSum:
    """The weighted sum of the layers of concatenated columns, (n, layers * width), as features (n, width)."""

    weights: np.ndarray  # positive, of sum 1, (layers,)
    mean: np.ndarray  # mean of the columns, (layers * width,)
    scale: np.ndarray

    def blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the weighted sum of each block of features, and its labels."""
        for x, y in blocks:
            yield np.einsum("nlw,l->nw", self.layers(x), self.weights), y

    def layers(self, x: np.ndarray) -> np.ndarray:
        """Return the standardised features of each layer, (n, layers, width)."""
        return ((x - self.mean) * self.scale).reshape(len(x), len(self.weights), -1)

    def joined(self, path: LinearPath) -> LinearPath:
        """Return the models of a path over the sum as models of the concatenated columns."""
        coef = self.weights[:, None, None] * path.coef[:, None]
        coef = coef.reshape(len(coef), len(self.mean), -1)
        return LinearPath(path.alphas, coef, path.intercept, self.mean, self.scale)


def weighted_sweep(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    layer_sum: LayerSum,
    alphas: np.ndarray,
) -> Sweep:
    """Fit a ridge readout of a sum of layers for every penalty and choose one by validation."""
    path = layer_sum.joined(solve(gather(layer_sum.blocks(train), targets), alphas))
    return Sweep(path, score(path, valid, targets))


def learn_layers(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray,
    *,
    layers: int,
    samples: int,
) -> LayerSum:
    """Return the sum of ``layers`` layers with learned weights; ``samples`` is the number of training samples."""
    every, start, taken = -(-samples // MAX_SAMPLES), 0, []
    for x, y in train:
        taken.append((x[-start % every :: every], y[-start % every :: every]))
        start += len(x)
    x, y = (np.concatenate(part) for part in zip(*taken, strict=True))
    mean, variance = x.mean(axis=0, dtype=np.float64), x.var(axis=0, dtype=np.float64)
    # The penalty is the one that scores best on valid for the plain mean of the layers.
    plain = LayerSum(
        weights=np.full(layers, 1 / layers), mean=mean, scale=inverse(deviation(variance, mean))
    )
    alpha = weighted_sweep([(x, y)], valid, targets, plain, alphas).alpha
    counted = np.asarray(targets.weights(y, np.ones(len(y))))
    weights = _minimise(plain.layers(x), targets.encode(y), counted, alpha)
    return replace(plain, weights=weights)


def _minimise(z: np.ndarray, y: np.ndarray, sample_weights: np.ndarray, alpha: float) -> np.ndarray:
    """Return the weights of layers z (n, layers, width) whose sum, fitted to one half, best predicts y in the other."""
    inputs, encoded = torch.from_numpy(z.astype(np.float32)), torch.from_numpy(y.astype(np.float64))
    encoded = encoded - encoded.mean(0)
    roots = torch.from_numpy(np.sqrt(sample_weights))[:, None]
    halves = slice(0, None, 2), slice(1, None, 2)
    logits = torch.zeros(inputs.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=STEPS, line_search_fn="strong_wolfe")
    penalty = alpha / 2 * torch.eye(inputs.shape[2], dtype=torch.float64)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.einsum("nlw,l->nw", inputs, logits.softmax(0)).double()
        x = roots * total * (total.var(0) + 1e-12).rsqrt()
        value = torch.zeros(())
        for known, held in (halves, halves[::-1]):
            targets = (roots * encoded)[known]
            coef = torch.linalg.solve(x[known].T @ x[known] + penalty, x[known].T @ targets)
            value = value + (x[held] @ coef - (roots * encoded)[held]).square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    return logits.detach().softmax(0).double().numpy()
