"""Choice of a penalty on validation samples or by cross-validation, and of columns that are better together.

Training data is gathered in the form that is cheaper to solve: moments, or the samples where features outnumber them.
Cross-validation takes no further pass over the features for each fold. With many samples, the moments of all folds but
one are a sum of the folds' moments: K refits cost K small solves, and a second pass scores each sample by the path that
was not fitted on it. With fewer samples than features, the products of the samples serve all folds. Features are
standardised once, over all samples and without the labels, as in the readout that is chosen. A channel that varies in
one fold alone is therefore not scaled up in the other folds, where only its rounding errors are left.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax

from reservoir.errors import InputError
from reservoir.readouts.linear import Block, FoldBlock, LinearReadout, RereadableBlocks, Targets
from reservoir.readouts.ridge import (
    DEFAULT_ALPHAS,
    KernelMatrix,
    LinearPath,
    Moments,
    accumulate,
    arithmetic,
    by_fold,
    check_folds,
    fold_moments,
    held_out_scores,
    ridge_path,
    training_moments,
)

SCORING_ALPHAS = np.logspace(-2, 6, 13)


class Scorer:
    """Scores blocks of features under every penalty of a path, laid out once for one matrix product per block.

    For real targets, pass their coding: the offset is then added in float64, because float32 next to a mean of 1e5
    would lose a spread of 0.3. The default is scores of classes.
    """

    def __init__(self, path: LinearPath, targets: Targets | None = None) -> None:
        self._path, self._real = path, targets is not None and not targets.classes
        self._on, self._dtype = arithmetic(), np.dtype(np.void)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return scores (A, n, t) of features (n, w), in float64 for float64 features or real targets, else float32."""
        dtype, path, on = np.result_type(x.dtype, np.float32), self._path, self._on
        penalties, width, targets = path.coef.shape
        if dtype != self._dtype:
            center = path.center.astype(dtype)
            # The offset must be computed with the rounded center, which is the one that is subtracted.
            self._offset = (path.intercept + center @ path.coef).ravel().astype(np.float64 if self._real else dtype)
            self._weights = on.put(path.coef.transpose(1, 0, 2).reshape(width, -1).astype(dtype))
            self._center, self._dtype = on.put(center), dtype
        centred = on.zeros(x.shape, dtype)
        centred[...] = on.put(x)  # in its own precision
        centred -= self._center
        scores = on.fetch(on.product(centred, self._weights)).astype(self._offset.dtype, copy=False)
        scores += self._offset
        return scores.reshape(len(x), penalties, targets).transpose(1, 0, 2)


class Tally:
    """Running accuracy of A readouts over blocks: the share of correct labels over samples and outputs, or R^2.

    If the targets have class weights, samples are weighted by them: with balanced weights the accuracy is the mean
    recall of the classes, up to the rounding of their shares.

    For real targets it is the mean over outputs of

        R^2 = 1 - sum (y - s)^2 / sum (y - mean y)^2

    where a constant output scores 1 if it is predicted exactly, else 0, as in ``sklearn.metrics.r2_score``. The loss
    ranks equally accurate readouts: the mean squared distance between the scores and the coding of the labels.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.samples = 0.0
        self._hits: np.ndarray | None = None  # (A,) correct labels, or (A, outputs) squared residuals
        self._distances: np.ndarray | float = 0.0  # (A,) squared distances of scores from the coding
        self._origin = np.zeros(targets.outputs)
        self._sum = np.zeros(targets.outputs)
        self._squares = np.zeros(targets.outputs)

    def update(self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> "Tally":
        """Count a block: scores (A, m, T) of each readout against labels (m, outputs), weighted (m,) or once each."""
        weights = self.targets.weights(y, weights)
        counted = np.ones(len(y)) if weights is None else weights
        if self.targets.classes:
            hits = (self.targets.predict(scores) == y).sum(axis=2) @ counted
            distances = np.square(scores - self.targets.encode(y)).sum(axis=2, dtype=np.float64)
            self._distances = self._distances + distances @ counted
        else:
            values = y.astype(np.float64)
            hits = counted @ np.square(scores - values)
            if not self.samples:
                self._origin = values[0]  # subtracted first, so that the sums of squares keep their digits
            self._sum += counted @ (values - self._origin)
            self._squares += counted @ np.square(values - self._origin)
        self._hits = hits if self._hits is None else self._hits + hits
        self.samples += float(counted.sum())
        return self

    def accuracy(self) -> np.ndarray:
        """Return the accuracy of each readout, (A,), over all samples so far; raise `ValueError` if there are none."""
        if self._hits is None:
            raise ValueError("no samples were counted")
        if self.targets.classes:
            return self._hits / (self.samples * self.targets.outputs)
        total = self._squares - np.square(self._sum) / self.samples
        constant = total <= 0
        ratio = self._hits / np.where(constant, 1.0, total)
        return np.where(constant, np.where(self._hits > 0, 0.0, 1.0), 1.0 - ratio).mean(axis=-1)

    def loss(self) -> np.ndarray:
        """Return the mean loss of each readout, (A,), over all samples so far; for real targets it is 1 - R^2."""
        if not self.targets.classes:
            return 1 - self.accuracy()
        return np.asarray(self._distances) / (self.samples * self.targets.outputs)


def best_penalty(
    alphas: np.ndarray, accuracies: np.ndarray, losses: np.ndarray, errors: np.ndarray | None = None
) -> int:
    """Return the index of the most accurate penalty; ties go to the smaller loss, then to the larger penalty.

    On few rows, many penalties predict equally many labels correctly, and the largest of them is often far too large:
    therefore the loss comes first. With standard errors (A,), return the largest penalty whose accuracy is within one
    standard error of the highest.
    """
    best = int(np.lexsort((alphas, -losses, accuracies))[-1])
    if errors is None:
        return best
    near = accuracies >= accuracies[best] - errors[best]
    return int(np.argmax(np.where(near, alphas, -np.inf)))


@dataclass(frozen=True, eq=False)
class DeferredPath:
    """The models of penalties, each solved when it is asked for: ``solve`` returns the path of some penalties."""

    alphas: np.ndarray
    solve: Callable[[np.ndarray], LinearPath]

    @property
    def converged(self) -> np.ndarray:
        """Whether each penalty was solved, (A,): always."""
        return np.ones(len(self.alphas), bool)

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        return self.solve(self.alphas[[index]]).readout(0, targets, temperature)


class Sweep:
    """Result of a sweep over penalties: the models of a path, by their tally on held-out samples.

    ``path`` gives the model of every penalty, fitted on all training samples; ``accuracy`` (A,) is the accuracy on
    held-out samples (R^2 for regression), ``loss`` (A,) their `Tally.loss`, and ``best`` the index of the chosen
    penalty, within one standard error if ``errors`` (A,) are given. ``temperature`` belongs to the probabilities of the
    chosen readout, if held-out scores were available to fit it. ``kernel`` is the kernel matrix of the samples, if any.
    """

    kernel: KernelMatrix | None = None

    def __init__(self, path: LinearPath | DeferredPath, tally: Tally, errors: np.ndarray | None = None) -> None:
        self.path, self.targets, self.temperature = path, tally.targets, 1.0
        self.accuracy, self.loss = tally.accuracy(), tally.loss()
        self.best = best_penalty(path.alphas, self.accuracy, self.loss, errors)

    @property
    def alpha(self) -> float:
        """The chosen penalty."""
        return float(self.path.alphas[self.best])

    def readout(self) -> LinearReadout:
        """Return the readout of the chosen penalty."""
        return self.path.readout(self.best, self.targets, self.temperature)


class Samples(NamedTuple):
    """Samples in memory: features (n, w), encoded targets (n, t), and weights (n,) or None if all are 1."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None

    def select(self, features: np.ndarray | slice) -> "Samples":
        """Return the same samples with some of the features."""
        return self._replace(x=self.x[:, features])


Training = Moments | Samples


def gather(blocks: Iterable[Block], targets: Targets) -> Training:
    """Read training data once, in memory of order w^2: as samples if they are fewer than the features, else moments."""
    few, stream = head(blocks)
    if few is None:
        return training_moments(stream, targets)
    x, y = few
    return Samples(x=x, y=targets.encode(y), weights=targets.weights(y))


def head(blocks: Iterable[tuple[np.ndarray, ...]]) -> tuple[tuple[np.ndarray, ...] | None, Iterable[Any]]:
    """Return all blocks concatenated if they have fewer samples than features; else None, and the unread stream."""
    seen: list[tuple[np.ndarray, ...]] = []
    stream = iter(blocks)
    for block in stream:
        seen.append(block)
        if sum(len(x) for x, *_ in seen) >= block[0].shape[1]:
            return None, itertools.chain(seen, stream)
    if not seen:
        raise InputError("readout: there are no training samples; give at least one")
    return tuple(np.concatenate(part) for part in zip(*seen, strict=True)), ()


def solve(training: Training, alphas: np.ndarray, emphasis: np.ndarray | None = None) -> LinearPath:
    """Return the ridge solution of every penalty, in kernel form if there are fewer samples than features.

    ``emphasis`` (w,) holds factors of the standardised features.
    """
    if isinstance(training, Samples):
        x, y, weights = training
        if len(x) < x.shape[1]:
            return KernelMatrix(x, weights, emphasis).path(y, alphas)
        training = accumulate([(x, y, weights)])
    return ridge_path(training, alphas, emphasis=emphasis)


def score(path: LinearPath, blocks: Iterable[Block], targets: Targets) -> Tally:
    """Return the tally of every penalty over blocks of features (m, w) and labels (m, outputs)."""
    tally, scorer = Tally(targets), Scorer(path, targets)
    for x, y in blocks:
        tally.update(scorer(x), y)
    return tally


def sweep(
    train: Iterable[Block],
    valid: Iterable[Block],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    moments: Moments | None = None,
    emphasis: np.ndarray | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty and choose one by validation; each of train and valid is iterated once.

    Blocks are features (m, w) and labels (m, outputs), as `samples` returns them. With ``moments`` of the training
    samples and their encoded targets, train is not read. ``emphasis`` (w,) holds factors of the standardised features.
    """
    path = solve(gather(train, targets) if moments is None else moments, alphas, emphasis)
    return Sweep(path, score(path, valid, targets))


def forward_selection(
    train: Iterable[Block],
    valid: Iterable[Block],
    columns: Mapping[str, slice],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    limit: int,
) -> list[tuple[tuple[str, ...], Sweep]]:
    """Add the column that raises validation accuracy most, until none does or ``limit`` columns are chosen.

    One pass over train gives the moments of all ``columns`` side by side; the moments of any subset are a part of them.
    Each step then solves every candidate and reads valid once for all of them. Memory grows with the square of the
    total width, so callers cut a long list of columns to the most accurate ones first.

    Returns for each step the columns chosen so far, in order, and the sweep over them side by side: at least one step,
    with rising accuracy. Between equally accurate columns the first one is added.
    """
    if not columns or limit < 1:
        raise InputError(f"columns: at most {limit} of {len(columns)} columns; give at least one of both")
    training = gather(train, targets)
    steps: list[tuple[tuple[str, ...], Sweep]] = []
    while len(steps) < min(limit, len(columns)):
        chosen = steps[-1][0] if steps else ()
        candidates = [(*chosen, name) for name in columns if name not in chosen]
        parts = [np.concatenate([np.r_[columns[name]] for name in names]) for names in candidates]
        paths = [solve(training.select(part), alphas) for part in parts]
        scorers, tallies = [Scorer(path, targets) for path in paths], [Tally(targets) for _ in paths]
        for x, y in valid:
            for part, scorer, tally in zip(parts, scorers, tallies, strict=True):
                tally.update(scorer(x[:, part]), y)
        sweeps = [Sweep(path, tally) for path, tally in zip(paths, tallies, strict=True)]
        step = max(zip(candidates, sweeps, strict=True), key=lambda pair: pair[1].accuracy[pair[1].best])
        if steps and step[1].accuracy.max() <= steps[-1][1].accuracy.max():
            break
        steps.append(step)
    return steps


def cross_sweep(
    train: Iterable[FoldBlock],
    targets: Targets,
    alphas: np.ndarray = DEFAULT_ALPHAS,
    *,
    folds: int = 5,
    repeats: int = 1,
    moments: Sequence[Moments] | None = None,
    emphasis: np.ndarray | None = None,
    one_standard_error: bool = False,
    known: KernelMatrix | None = None,
) -> Sweep:
    """Fit a ridge readout for every penalty, and choose one by repeated K-fold cross-validation.

    The accuracy of a penalty is taken over all samples, each scored by the model of the other folds, and averaged over
    the repeats. The returned path is fitted on all samples. The temperature is fitted on the held-out scores of the
    first repeat. `InputError` says that there are fewer than two folds, or that a fold is empty.

    ``train`` is iterated several times; a sample of weight 2 counts as two, in fitting and in accuracy. ``moments`` of
    each fold, repeat after repeat, from an earlier `fold_moments`, save a pass. ``emphasis`` (w,) holds factors of the
    standardised features, and ``known`` is the matrix of the first features of the same samples, see `KernelMatrix`.
    With ``one_standard_error`` the largest penalty whose accuracy is within one standard error (over folds) of the best
    is chosen.
    """
    if folds < 2:
        raise InputError(f"cross-validation: {folds} folds; give at least 2")
    few, kernel = None if moments else head(train)[0], None
    # Blocks of fold, held-out scores (A, m, t) of every penalty, labels (m, outputs) and optional weights, by repeat.
    scored: Sequence[Iterable[tuple[Any, ...]]]
    if few is not None:
        x, y, fold, *weights = few
        kernel, coded = KernelMatrix(x, targets.weights(y, *weights), emphasis, known), targets.encode(y)
        path = DeferredPath(alphas, functools.partial(kernel.path, coded))
        scored = [_score_kernel(kernel, coded, one, alphas, folds, y, *weights) for one in fold.reshape(len(y), -1).T]
    else:
        parts = moments or [one for repeat in range(repeats) for one in fold_moments(train, targets, folds, repeat)]
        whole = functools.reduce(operator.add, parts[:folds])
        path = DeferredPath(alphas, functools.partial(ridge_path, whole, emphasis=emphasis))
        scored = []
        for repeat in range(repeats):
            mine = parts[repeat * folds : (repeat + 1) * folds]
            # The moments of the other folds are added: differences from the total would give constant channels some
            # variance.
            rests = [functools.reduce(operator.add, [*mine[:k], *mine[k + 1 :]]) for k in range(folds)]
            paths = [ridge_path(rest, alphas, whole.std, emphasis) for rest in rests]
            scored.append(RereadableBlocks(_score_blocks, (train, repeat, paths, targets)))
    tally, errors = Tally(targets), []
    for blocks in scored:
        of_folds = [Tally(targets) for _ in range(folds)]
        for k, *held_out in blocks:
            tally.update(*held_out)
            of_folds[k].update(*held_out)
        errors.append(np.std([one.accuracy() for one in of_folds], axis=0, ddof=1) / np.sqrt(folds))
    found = Sweep(path, tally, np.mean(errors, axis=0) if one_standard_error else None)
    found.kernel = kernel
    if targets.classes:
        chosen = [(scores[found.best], *rest) for _, scores, *rest in scored[0]]
        found.temperature = targets.fit_temperature(*map(np.concatenate, zip(*chosen, strict=True)))
    return found


def _score_blocks(
    train: Iterable[FoldBlock], repeat: int, paths: Sequence[LinearPath], targets: Targets
) -> Iterator[tuple[Any, ...]]:
    scorers = [Scorer(path, targets) for path in paths]
    for k, x, *rest in by_fold(train, repeat):
        yield k, scorers[k](x), *rest


def _score_kernel(
    kernel: KernelMatrix, coded: np.ndarray, fold: np.ndarray, alphas: np.ndarray, folds: int, *rest: np.ndarray
) -> list[tuple[Any, ...]]:
    """Return the held-out scores of each fold of one repeat, from products of samples, and the rest of its samples."""
    check_folds(np.bincount(fold, minlength=folds))
    scores = held_out_scores(kernel.products, kernel.weights, coded, fold, alphas)
    return [(k, scores[:, fold == k], *(part[fold == k] for part in rest)) for k in range(folds)]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutScore:
    """Score of the best penalty on held-out samples.

    ``score`` is the accuracy, or R². ``loss`` is the cross-entropy at the fitted temperature, or the squared error
    divided by the variance. Both are means over samples and repeats. ``losses`` (n,) holds the loss of each sample.
    """

    alpha: float
    score: float
    loss: float
    losses: np.ndarray

    @property
    def merit(self) -> tuple[float, float]:
        """The sort key: the score, and between equal scores the smaller loss."""
        return self.score, -self.loss


def kernel_matrix(x: np.ndarray) -> np.ndarray:
    """Return the kernel matrix (n, n), float32, of samples x (n, w) whose features are standardised first."""
    return KernelMatrix(x).products.astype(np.float32)


def score_by_kernel(
    kernel: np.ndarray, y: np.ndarray, targets: Targets, folds: np.ndarray, alphas: np.ndarray = SCORING_ALPHAS
) -> HeldOutScore:
    """Return the held-out score of the most accurate penalty; equally accurate ones are compared by their loss.

    ``kernel`` (n, n) is the kernel matrix of the samples; that of columns side by side is the sum of theirs. ``y``
    (n, outputs) are labels, ``folds`` (repeats, n) the fold of each sample in each repeat of the cross-validation.
    """
    products, weights, coded = kernel.astype(np.float64), np.ones(len(y)), targets.encode(y)
    scores = np.stack([held_out_scores(products, weights, coded, fold, alphas) for fold in folds], axis=1)
    tally = Tally(targets)
    for repeat in range(len(folds)):
        tally.update(scores[:, repeat], y)
    accuracies = tally.accuracy()
    equal = [(alphas[n], _losses(scores[n], y, targets)) for n in np.flatnonzero(accuracies == accuracies.max())]
    alpha, losses = min(equal, key=lambda pair: (float(pair[1].mean()), -pair[0]))
    best = float(accuracies.max())
    return HeldOutScore(alpha=float(alpha), score=best, loss=float(losses.mean()), losses=losses)


def _losses(scores: np.ndarray, y: np.ndarray, targets: Targets) -> np.ndarray:
    """Return the loss of each sample, (n,), averaged over repeats, from held-out scores (repeats, n, T)."""
    if not targets.classes:
        variance = np.maximum(y.var(axis=0, dtype=np.float64), np.finfo(np.float64).tiny)
        return (np.square(scores - y) / variance).mean(axis=(0, 2))
    flat, labels = scores.reshape(-1, scores.shape[2]), np.tile(y.astype(np.int64), (len(scores), 1))
    logits = targets.logits(flat) / targets.fit_temperature(flat, labels)
    log_probabilities = np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)
    return -log_probabilities.reshape(len(scores), len(y), -1).mean(axis=(0, 2))
