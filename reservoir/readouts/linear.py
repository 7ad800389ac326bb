"""Labels coded as targets of a regression, the linear readouts that predict them, and the scores of all penalties."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy.special import expit, softmax

from reservoir.errors import InputError
from reservoir.file_checks import check_arrays, fits, from_json
from reservoir.readouts.directions import ReadColumn, gradient
from reservoir.readouts.products import arithmetic, report_work

Block = tuple[np.ndarray, np.ndarray]  # features (m, w) and labels (m, outputs)
FoldBlock = tuple[np.ndarray, ...]
"""Features (m, w), labels (m, outputs), fold numbers, (m,) or (m, repeats), and optional weights (m,) of samples."""
# Work that is reported for each score that is counted, in multiplications (see `report_work`): counting it takes ten
# passes over memory, which last as long as this many multiplications in a product of large matrices.
SCORE_WORK = 50
LINKS = ("softmax", "sigmoid", "clipped", "none")
"""How logits become probabilities (see `Targets.probabilities`); with ``none``, the readout gives only labels."""
MAX_LOG_TEMPERATURE = 7.0  # temperatures are between about 1/1000 and 1000
LOG_TEMPERATURE_TOLERANCE = 1e-9  # of the last Newton step
MAX_NEWTON_STEPS = 60  # bisection alone needs 34 for this tolerance


def divisors_of_outputs(y: np.ndarray) -> np.ndarray:
    """Return what divides the squared errors of each output, (outputs,), for targets ``y`` (n, outputs).

    It is the variance of the output, as in R². An output that is constant in these rows has no R², and its errors count
    as nothing beside those of others, whatever their unit. If all outputs are constant, their errors are not scaled.
    """
    variance = y.var(axis=0, dtype=np.float64)
    return np.where(variance > 0, variance, np.inf if variance.any() else 1.0)


@dataclass(frozen=True, eq=False)
class RereadableBlocks:
    """A stream of blocks that restarts with each iteration: ``make(*arguments)`` returns a new iterator."""

    make: Callable[..., Iterator[Any]]
    arguments: tuple[Any, ...]

    def __iter__(self) -> Iterator[Any]:
        return self.make(*self.arguments)


@dataclass(frozen=True)
class Targets:
    """Labels as regression targets, in the coding of scikit-learn's ``RidgeClassifier``.

    Two classes become one column per output, -1 or +1. More classes become one column per class and
    output: +1 for the class of the label, else -1. Regression targets stay as they are.
    """

    outputs: int  # labels per sample
    classes: int  # per output; 0 for regression
    # Weight of the samples of each class in fitting, (classes,); None if all are 1. Only for a single output.
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.class_weights is not None and self.outputs > 1:
            raise InputError(
                f"class weights: a sample has {self.outputs} labels, whose weights may differ",
                "leave out --class-weight, or fit each label separately",
            )

    @property
    def metric(self) -> str:
        """The score by which readouts are chosen: accuracy, balanced accuracy with class weights, or R²."""
        return "balanced_accuracy" if self.class_weights else metric_name(self.classes)

    @property
    def columns(self) -> int:
        """Number of target columns, T."""
        return self.outputs * (self.classes if self.classes > 2 else 1)

    def coded(self, y: np.ndarray) -> np.ndarray:
        """Return the targets (n, T) of labels (n, outputs): float32, or float64 for regression targets in float64."""
        if not self.classes:
            return y.astype(np.result_type(y.dtype, np.float32), copy=False)
        # A column for class 1 of two classes, else one for each class.
        classes_of_columns = [1] if self.classes == 2 else np.arange(self.classes)
        has_class = (y[..., None] == classes_of_columns).reshape(len(y), self.columns)
        return np.where(has_class, np.float32(1), np.float32(-1))

    def weights(self, y: np.ndarray, sample_weights: np.ndarray | None = None) -> np.ndarray | None:
        """Return the weight of each sample in fitting, (n,); None if all weights are 1.

        It is the class weight of the sample's label, times its sample weight. Labels ``y`` are (n, outputs), and
        ``sample_weights`` (n,), 1 by default.
        """
        if self.class_weights is None:
            return sample_weights
        labels = y[:, 0].astype(np.int64)  # there are class weights only if there is a single output
        weights_by_class = np.array(self.class_weights)[labels]
        return weights_by_class if sample_weights is None else weights_by_class * sample_weights

    def predict(self, scores: np.ndarray) -> np.ndarray:
        """Return the labels (..., n, outputs) of scores (..., n, T); for regression these are the scores."""
        if not self.classes:
            return scores
        if self.classes == 2:  # the targets are -1 for class 0 and +1 for class 1
            return (scores > 0).astype(np.int64)
        return scores.reshape(*scores.shape[:-1], self.outputs, self.classes).argmax(-1)

    def sample_scores(
        self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Return what each sample adds to the metric, (n,), from scores (n, T) and labels (n, outputs).

        For classes, this is the share of the sample's labels that are correct. For real targets, it is the negative
        squared error divided by the variance of the output, as a mean over outputs. Either is multiplied by the
        weight of the sample and divided by the mean weight. With class weights, the classes of these samples have equal
        weights in sum, so that the mean is the balanced accuracy.
        """
        if self.classes:
            scores_of_samples = (self.predict(scores) == y).mean(axis=1)
        else:
            scores_of_samples = -(np.square(scores - y) / divisors_of_outputs(y)).mean(axis=1)
        all_weights = weights
        if self.class_weights is not None:
            labels = y[:, 0].astype(np.int64)  # there are class weights only if there is a single output
            weights_of_classes = balanced_weights(np.bincount(labels, weights, minlength=self.classes))
            all_weights = replace(self, class_weights=weights_of_classes).weights(y, weights)
        if all_weights is None:
            return scores_of_samples
        return scores_of_samples * all_weights / all_weights.mean()

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as one value per class: (n, T) -> (n, outputs, classes); two classes become -s and +s."""
        if self.classes == 2:
            return np.stack([-scores, scores], axis=-1)
        return scores.reshape(len(scores), self.outputs, self.classes)

    def probabilities(
        self, scores: np.ndarray, temperature: float = 1.0, link: str = "softmax"
    ) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes), from scores (n, T).

        With z = logits / temperature, ``softmax`` gives softmax(z). As in scikit-learn's one-vs-rest
        classifiers, ``sigmoid`` gives sigmoid(z) and ``clipped`` (1 + clip(z, -1, 1)) / 2, both
        divided by their sum over the classes. ``none`` gives 1 to the class with the highest logit.
        """
        z = self.logits(scores) / temperature
        if link == "softmax":
            return softmax(z, axis=-1)
        if link == "none":
            return np.eye(self.classes)[self.predict(scores)]
        shares = expit(z) if link == "sigmoid" else (1 + np.clip(z, -1, 1)) / 2
        total = shares.sum(axis=-1, keepdims=True)
        # If every share is 0, scikit-learn gives all classes the same probability.
        return np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / self.classes)

    def fit_temperature(
        self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
    ) -> float:
        """Return the temperature with the least cross-entropy of held-out scores (n, T), for smoothed labels.

        References: Guo et al. (2017), On calibration of modern neural networks; Platt (1999),
        Probabilistic outputs for support vector machines, section 2.2, for smoothed labels.
        """
        sample_weights = np.ones(len(y)) if weights is None else weights
        logits = self.logits(np.asarray(scores, np.float64))
        smoothed = self._smoothed_labels(y, float(sample_weights.sum()))
        return float(np.exp(-_best_log_beta(logits, smoothed, sample_weights)))

    def _smoothed_labels(self, y: np.ndarray, total_weight: float) -> np.ndarray:
        """Return labels (n, outputs) as class probabilities (n, outputs, classes), a little short of 0 and 1."""
        # After n correct rows, the next one is wrong with probability 1 / (n + 2) (Laplace's rule of
        # succession). Without this share for the other classes, a readout without errors would get a
        # temperature of 0.
        doubt = 1 / (total_weight + 2)
        is_class = y[..., None].astype(np.int64) == np.arange(self.classes)
        return np.where(is_class, 1 - doubt, doubt / (self.classes - 1))


def _best_log_beta(logits: np.ndarray, smoothed: np.ndarray, sample_weights: np.ndarray) -> float:
    """Return log(1 / temperature) with the least cross-entropy.

    ``logits`` and the label probabilities ``smoothed`` are (n, outputs, classes), and ``sample_weights`` are (n,).
    """
    # With p = softmax(beta z), beta = 1 / temperature and smoothed labels q, a row has the loss
    # log sum_c exp(beta z_c) - beta q'z. It is convex in beta: its slope is p'z - q'z, and its curvature
    # p'z^2 - (p'z)^2. Newton steps find the root of the slope; one that leaves the interval in which the
    # slope changes its sign is replaced by the middle of that interval.
    lowest, highest = -MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE
    log_beta = 0.0
    for _ in range(MAX_NEWTON_STEPS):
        beta = np.exp(log_beta)
        p = softmax(beta * logits, axis=-1)
        mean = (p * logits).sum(axis=-1)  # p'z
        slope = float(sample_weights @ (mean - (smoothed * logits).sum(axis=-1)).sum(axis=-1))
        variance = (p * np.square(logits - mean[..., None])).sum(axis=-1)
        curvature = float(sample_weights @ variance.sum(axis=-1))
        if slope == 0:  # also if all logits are equal, for which every temperature is best
            break
        # The slope rises with beta, so the root is below a positive slope and above a negative one.
        if slope > 0:
            highest = log_beta
        else:
            lowest = log_beta
        # Without curvature there is no Newton step: 0 is outside of the interval, whose middle is taken then.
        newton = beta - slope / curvature if curvature > 0 else 0.0
        is_inside = np.exp(lowest) < newton < np.exp(highest)
        next_log_beta = np.log(newton) if is_inside else (lowest + highest) / 2
        step = next_log_beta - log_beta
        log_beta += step
        if abs(step) < LOG_TEMPERATURE_TOLERANCE:
            break
    return log_beta


class Readout(Protocol):
    """A fitted readout of any kind, such as `LinearReadout`."""

    @property
    def targets(self) -> Targets: ...  # noqa: D102
    @property
    def has_probabilities(self) -> bool: ...  # noqa: D102
    def scores(self, x: np.ndarray, /) -> np.ndarray: ...  # noqa: D102
    def predict(self, x: np.ndarray, /) -> np.ndarray: ...  # noqa: D102
    def probabilities(self, x: np.ndarray, /) -> np.ndarray: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearReadout:
    """The linear readout, scores = x coef + intercept."""

    coef: np.ndarray  # weights of features that are not standardised, float64 (w, t)
    intercept: np.ndarray  # scores of x = 0, float64 (t,)
    targets: Targets  # how scores code labels
    temperature: float = 1.0  # divides the logits before they become probabilities
    link: str = "softmax"  # one of `LINKS`
    columns: tuple[ReadColumn, ...] = ()  # what the features are; empty if that is not known

    def __post_init__(self) -> None:
        if self.link not in LINKS:
            raise InputError(
                f"readout: unknown link {str(self.link)[:40]!r}", f"the links are {', '.join(LINKS)}"
            )

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (n, t) of features (n, w), in float64."""
        check_width(len(self.coef), x.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            scores = np.asarray(x, np.float64) @ self.coef + self.intercept
        if not np.isfinite(scores).all():
            raise InputError("readout: its weights are so large that scores overflow", "fit it again")
        return scores

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the labels (n, outputs) of features (n, w): class numbers, or real values for regression."""
        return self.targets.predict(self.scores(x))

    @property
    def has_probabilities(self) -> bool:
        """Whether the readout gives probabilities, and not only labels or real values."""
        return self.targets.classes > 0 and self.link != "none"

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes), of features (n, w); not for regression."""
        return self.targets.probabilities(self.scores(x), self.temperature, self.link)

    def gradient(self, layer: str) -> np.ndarray:
        """Return how the scores move if a vector is added to the hidden states of all tokens of a layer.

        Adding v moves them by ``v @ gradient``, exactly if only later layers depend on v. The array (width of the
        layer, t) has one column per score: one for two classes or a real value, else one for each class. Raise
        `InputError` for poolings that are not linear in v, such as ``sharesK``.
        """
        return gradient(self.coef, self.columns, layer)

    def direction(self, layer: str) -> np.ndarray:
        """Return the vector of norm 1 along which a score grows fastest, in the coordinates of the hidden states.

        For two classes or a real value it is an array (width of the layer,), towards the second class or larger
        values; for more classes (t, width of the layer), with one vector for each class. See `gradient`.
        """
        vectors = self.gradient(layer).T
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        # A score that does not depend on the layer has a vector of zeros.
        directions = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
        return directions[0] if len(directions) == 1 else directions

    def calibrate(self, blocks: Iterable[Block]) -> "LinearReadout":
        """Return the same readout with the temperature fitted to blocks of held-out features and labels."""
        scores_and_labels = [(self.scores(x), y) for x, y in blocks]
        scores, labels = (np.concatenate(arrays) for arrays in zip(*scores_and_labels, strict=True))
        return replace(self, temperature=self.targets.fit_temperature(scores, labels))

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays (for safetensors) and the settings (for JSON) of the readout."""
        labels = {"outputs": self.targets.outputs, "classes": self.targets.classes}
        settings = labels | {"temperature": self.temperature, "link": self.link, "columns": self.columns}
        return {"coef": self.coef, "intercept": self.intercept}, settings

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> "LinearReadout":
        """Build a readout from the values of `to_arrays`; raise `ValueError` if their shapes do not match."""
        targets = from_json(Targets, {name: settings[name] for name in ("outputs", "classes")})
        coef = arrays["coef"].astype(np.float64, casting="same_kind")
        intercept = arrays["intercept"].astype(np.float64, casting="same_kind")
        weights = {"coef": coef, "intercept": intercept}
        features = len(coef) or 1  # so that a readout without features is refused
        check_arrays(weights, {"coef": (features, targets.columns), "intercept": (targets.columns,)})
        temperature = float(settings["temperature"])
        if not 1e-6 < temperature < 1e6:  # `Targets.fit_temperature` returns values from exp(-7) to exp(7)
            raise ValueError(f"its temperature is {temperature:g}, not between 1e-6 and 1e6")
        return cls(
            **weights,
            targets=targets,
            temperature=temperature,
            link=settings.get("link", "softmax"),  # absent from readouts of format 2
            columns=_read_columns(settings.get("columns", ()), features),  # absent from earlier versions
        )


def _read_columns(columns: Any, features: int) -> tuple[ReadColumn, ...]:
    """Return the columns of a saved readout; raise `ValueError` unless their widths add up to its ``features``.

    There are none, and no error, if the readout does not know its columns.
    """
    if not fits(columns, tuple[tuple[str, int, int], ...]):
        raise ValueError("its columns are not names with numbers")
    read_columns = tuple(ReadColumn(*column) for column in columns)
    widths_match = sum(column.width for column in read_columns) == features
    have_vectors = all(0 < column.vectors <= column.width for column in read_columns)
    if read_columns and not (widths_match and have_vectors):
        raise ValueError("its columns do not have its features")
    return read_columns


def check_width(weights: int, features: int) -> None:
    """Raise `InputError` unless a readout has one weight for each feature."""
    if weights != features:
        raise InputError(f"readout: it has {weights} weights for {features} features", "fit it again")


class Tally:
    """Running accuracy of A readouts over blocks: the share of correct labels over samples and outputs, or R^2.

    If the targets have class weights, it is the balanced accuracy: the mean over the classes that occur here of the
    share of their samples that is correct. For real targets the accuracy is the mean over outputs of

        R^2 = 1 - sum (y - s)^2 / sum (y - mean y)^2

    where a constant output scores 1 if it is predicted exactly, else 0. The loss, which ranks equally
    accurate readouts, is the mean squared distance between the scores and the coding of the labels, with class weights
    as a mean over classes, too.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.samples = 0.0  # sum of the weights of the samples
        # Sums over samples. Those of readouts are 0.0 until the first block, which shows how many readouts there are.
        # Of classes: correct labels (A,), and squared distances of the scores from the coding (A,). With class weights
        # the samples of each class have sums of their own, (A, classes), and weights (classes,).
        self._weights_of_classes = np.zeros(targets.classes)
        self._correct: np.ndarray | float = 0.0
        self._distances: np.ndarray | float = 0.0
        # Of real targets: squared residuals (A, outputs); and the first value of each output (outputs,), with the sums
        # of the differences from it and of their squares.
        self._residuals: np.ndarray | float = 0.0
        self._origin = np.zeros(targets.outputs)
        self._sum = np.zeros(targets.outputs)
        self._squares = np.zeros(targets.outputs)

    def update(self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> "Tally":
        """Count a block: scores (A, m, T) of each readout, labels (m, outputs), and weights (m,), 1 by default.

        Return the tally itself.
        """
        if weights is None:
            weights = np.ones(len(y))
        report_work(SCORE_WORK * scores.size)
        if self.targets.classes:
            summing_weights = weights
            if self.targets.class_weights is not None:
                # A column for each class, with the weights of its samples.
                summing_weights = np.eye(self.targets.classes)[y[:, 0].astype(np.int64)] * weights[:, None]
                self._weights_of_classes += summing_weights.sum(axis=0)
            self._correct = (
                self._correct + (self.targets.predict(scores) == y).sum(axis=2) @ summing_weights
            )
            distances = np.square(scores - self.targets.coded(y)).sum(axis=2, dtype=np.float64)
            self._distances = self._distances + distances @ summing_weights
        else:
            values = y.astype(np.float64)
            self._residuals = self._residuals + weights @ np.square(scores - values)
            # Differences from the first value, so that the sums of squares keep their digits.
            is_first_block = not self.samples
            if is_first_block:
                self._origin = values[0]
            self._sum += weights @ (values - self._origin)
            self._squares += weights @ np.square(values - self._origin)
        self.samples += float(weights.sum())
        return self

    def accuracy(self) -> np.ndarray:
        """Return the accuracy of each readout, (A,), over all samples so far; raise `ValueError` without samples."""
        return self.output_accuracies().mean(axis=-1)

    def output_accuracies(self) -> np.ndarray:
        """Return R^2 of each readout and output, (A, outputs); of classes the accuracy over all outputs, (A, 1).

        Raise `ValueError` without samples.
        """
        if not self.samples:
            raise ValueError("no samples were counted")
        if self.targets.classes:
            return self._mean_of(self._correct)[:, None]
        # sum (y - mean y)^2 = sum y^2 - (sum y)^2 / n, of values around the first one.
        total = self._squares - np.square(self._sum) / self.samples
        is_constant = total <= 0
        ratio = self._residuals / np.where(is_constant, 1.0, total)
        score_if_constant = np.where(np.asarray(self._residuals) > 0, 0.0, 1.0)
        return np.where(is_constant, score_if_constant, 1.0 - ratio)

    def loss(self) -> np.ndarray:
        """Return the mean loss of each readout, (A,), over all samples so far; for real targets it is 1 - R^2."""
        if not self.targets.classes:
            return 1 - self.accuracy()
        return self._mean_of(self._distances)

    def _mean_of(self, sums: np.ndarray | float) -> np.ndarray:
        """Return the means (A,) of sums over samples: over all labels or, with class weights, over the classes."""
        if self.targets.class_weights is None:
            return np.asarray(sums) / (self.samples * self.targets.outputs)
        is_present = self._weights_of_classes > 0
        return (np.asarray(sums)[:, is_present] / self._weights_of_classes[is_present]).mean(axis=1)


def accuracy_of(readout: Readout, blocks: Iterable[Block]) -> float:
    """Return the accuracy of a readout over blocks of features and labels; see `Tally`."""
    # A tally counts for several readouts, along the first axis of the scores. Here there is one.
    tally = Tally(readout.targets)
    for x, y in blocks:
        tally.update(readout.scores(x)[None], y)
    return float(tally.accuracy()[0])


def metric_name(classes: int) -> str:
    """Return the name of the score: ``accuracy``, or ``R²`` without classes."""
    return "accuracy" if classes else "R²"


def balanced_weights(counts: np.ndarray) -> tuple[float, ...]:
    """Return weights that give all classes the same total: samples / (classes * count), or 0 for absent classes."""
    is_present = counts > 0
    weights = counts.sum() / (is_present.sum() * np.where(is_present, counts, 1))  # no division by 0
    return tuple(np.where(is_present, weights, 0.0).tolist())


def samples(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reshape a column (rows, tokens, width) and its labels (rows, readout_tokens, outputs) to samples.

    If there are several tokens and all are readout tokens, each token with labels (see `has_labels`)
    is a sample. Otherwise each row is a sample: its tokens concatenated, and the labels of its
    readout tokens concatenated.
    """
    tokens, readout_tokens = x.shape[1], y.shape[1]
    each_token_is_a_sample = tokens > 1 and tokens == readout_tokens
    if each_token_is_a_sample:
        is_labelled = has_labels(y)
        return x[is_labelled], y[is_labelled]
    return x.reshape(len(x), -1), y.reshape(len(y), -1)


def has_labels(y: np.ndarray) -> np.ndarray:
    """Return which readout tokens (rows, readout_tokens) have labels; labels after a row's end are -1 or NaN."""
    are_targets = y.dtype.kind == "f"  # floats, else class numbers
    return np.all(np.isfinite(y) if are_targets else y >= 0, axis=-1)


def unsample(values: np.ndarray, readout_tokens: int, outputs: int) -> np.ndarray:
    """Reshape predictions for samples, (m, o, …), to rows: (rows, readout_tokens, outputs, …)."""
    return values.reshape(-1, readout_tokens, outputs, *values.shape[2:])


class LinearPath:
    """The linear models of every penalty, for features as they are (not standardised): scores are x coef + intercept.

    They are made from weights (A, w, t) of standardised features (x - mean) * scale, and their offset
    (A, t) or (t,). ``coef`` (A, w, t) is exactly 0 for constant channels, ``intercept`` (A, t) holds
    the scores of x = 0, ``center`` (w,) is the mean, and ``converged`` (A,) says whether an iterative solver reached
    its tolerance; exact solvers leave it out.
    """

    def __init__(
        self,
        alphas: np.ndarray,
        weights: np.ndarray,
        offset: np.ndarray,
        mean: np.ndarray,
        scale: np.ndarray,
        converged: np.ndarray | None = None,
    ) -> None:
        # ((x - mean) * scale) weights + offset  =  x coef + intercept
        self.alphas = np.asarray(alphas, np.float64)
        self.coef = weights * scale[:, None]
        self.intercept = offset - mean @ self.coef
        self.center = mean
        self.converged = np.ones(len(alphas), bool) if converged is None else converged

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        return LinearReadout(
            coef=self.coef[index], intercept=self.intercept[index], targets=targets, temperature=temperature
        )


class Scorer:
    """Scores blocks of features under every penalty of a path, or those ``chosen``, with one product per block.

    ``targets`` say whether the scores are real values; without them, the scores are taken for those of classes.
    """

    def __init__(self, path: LinearPath, targets: Targets | None = None) -> None:
        self._path = path
        # For real targets the offset is added in float64: float32 next to a mean of 1e5 would lose a
        # spread of 0.3.
        self._has_real_targets = targets is not None and not targets.classes
        self._arithmetic = arithmetic()
        # The precision of the last block, for which the weights are on the device; no block has been scored yet.
        self._dtype = np.dtype(np.void)

    def __call__(self, x: np.ndarray, chosen: slice = slice(None)) -> np.ndarray:
        """Return scores (A, n, t) of features (n, w), in float64 for float64 features or real targets, else float32.

        Features may be `StoredFeatures`.
        """
        dtype = np.result_type(x.dtype, np.float32)
        if dtype != self._dtype:
            self._prepare(dtype)
        # One product gives the scores of all chosen penalties, whose weights stand side by side.
        offset = self._offset[chosen]
        weights = self._weights[:, chosen].reshape(len(self._path.center), -1)
        features, fetch = self._arithmetic.features, self._arithmetic.fetch
        # Features are centred first, which keeps the digits of a channel at 3000 +- 0.5.
        centred = features(x) - self._center
        scores = fetch(self._arithmetic.product(centred, weights)).astype(offset.dtype, copy=False)
        scores += offset.ravel()
        # From (n, A * t), with the penalties side by side, to (A, n, t).
        return scores.reshape(len(x), *offset.shape).transpose(1, 0, 2)

    def _prepare(self, dtype: np.dtype) -> None:
        """Round the weights of all penalties to a precision, and move them to the device."""
        path = self._path
        center = path.center.astype(dtype)
        # The offset must be computed with the rounded center, which is the one that is subtracted.
        offset = path.intercept + center @ path.coef
        self._offset = offset.astype(np.float64 if self._has_real_targets else dtype)
        # (w, A, t), so that one product of a block gives the scores of all penalties.
        self._weights = self._arithmetic.put(path.coef.transpose(1, 0, 2).astype(dtype, copy=False))
        self._center = self._arithmetic.put(center)
        self._dtype = dtype


def score_path(path: LinearPath, blocks: Iterable[Block], targets: Targets) -> Tally:
    """Return the tally of every penalty of a path over blocks of features (m, w) and labels (m, outputs)."""
    return tally_scores(Scorer(path, targets), blocks, targets)


def tally_scores(
    scorer: Callable[[np.ndarray, slice], np.ndarray], blocks: Iterable[Block], targets: Targets
) -> Tally:
    """Return the tally of every penalty over blocks of features (m, w) and labels (m, outputs).

    ``scorer(x, penalties)`` returns the scores (A, m, t) of some penalties.
    """
    tally, all_penalties = Tally(targets), slice(None)
    for x, y in blocks:
        tally.update(scorer(x, all_penalties), y)
    return tally
