"""Linear models: a single one that is saved and predicts, and a path of models, one for each penalty."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir.errors import InputError
from reservoir.readouts.device import arithmetic
from reservoir.readouts.targets import Block, Targets

LINKS = ("softmax", "sigmoid", "clipped", "none")
"""How logits become probabilities, see `Targets.probabilities`; ``none``: the readout gives labels alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearReadout:
    """scores = x coef + intercept; raises `InputError` if ``link`` is none of `LINKS`."""

    coef: np.ndarray  # weights of features as they are in the store, float64 (w, t)
    intercept: np.ndarray  # scores of x = 0, float64 (t,)
    targets: Targets  # how scores code labels
    temperature: float = 1.0  # divides the logits before they become probabilities
    link: str = "softmax"

    def __post_init__(self) -> None:
        if self.link not in LINKS:
            raise InputError(f"readout: unknown link {str(self.link)[:40]!r}; the links are {', '.join(LINKS)}")

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (n, t) of features (n, w), in float64."""
        return np.asarray(x, np.float64) @ self.coef + self.intercept

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the labels (n, outputs) of features (n, w): class numbers, or real values for regression."""
        return self.targets.predict(self.scores(x))

    @property
    def has_probabilities(self) -> bool:
        """Whether it gives probabilities, and not labels or real values alone."""
        return self.targets.classes > 0 and self.link != "none"

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probability of each class, (n, outputs, classes), of features (n, w); not for regression."""
        return self.targets.probabilities(self.scores(x), self.temperature, self.link)

    def calibrate(self, blocks: Iterable[Block]) -> "LinearReadout":
        """Return the same readout with the temperature that suits blocks of held-out features and labels best."""
        pairs = [(self.scores(x), y) for x, y in blocks]
        scores, labels = (np.concatenate(part) for part in zip(*pairs, strict=True))
        return replace(self, temperature=self.targets.fit_temperature(scores, labels))

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays (for safetensors) and the settings (for JSON) of the readout."""
        labels = {"outputs": self.targets.outputs, "classes": self.targets.classes}
        settings = labels | {"temperature": self.temperature, "link": self.link}
        return {"coef": self.coef, "intercept": self.intercept}, settings

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> "LinearReadout":
        """Build a readout from what `to_arrays` returned; raise `InputError` if its shapes do not fit together."""
        targets = Targets(int(settings["outputs"]), int(settings["classes"]))
        if arrays["coef"].shape[1:] != (targets.columns,) or arrays["intercept"].shape != (targets.columns,):
            raise InputError("readout: the weights have other shapes than the labels need")
        return cls(
            coef=np.asarray(arrays["coef"], np.float64),
            intercept=np.asarray(arrays["intercept"], np.float64),
            targets=targets,
            temperature=float(settings["temperature"]),
            link=settings.get("link", "softmax"),  # absent from readouts of format 2
        )


class LinearPath:
    """The linear models of every penalty, for features as they are (not standardised): scores are x coef + intercept.

    They are given as weights (A, w, t) of standardised features (x - mean) * scale, and their offset (A, t) or (t,).
    ``alphas`` (A,) are the penalties, ``coef`` (A, w, t) is exactly 0 for constant channels, ``intercept`` (A, t) the
    scores of x = 0. ``center`` (w,) is the features' mean, which `Scorer` subtracts first, so that float32 keeps the
    digits of a channel at 3000 +- 0.5. ``converged`` (A,): whether an iterative solver reached its tolerance.
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
        self.alphas, self.coef, self.center = np.asarray(alphas, np.float64), weights * scale[:, None], mean
        self.intercept = offset - mean @ self.coef
        self.converged = np.ones(len(alphas), bool) if converged is None else converged

    def readout(self, index: int, targets: Targets, temperature: float = 1.0) -> LinearReadout:
        """Return the readout of one penalty, by its index."""
        return LinearReadout(
            coef=self.coef[index], intercept=self.intercept[index], targets=targets, temperature=temperature
        )


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
