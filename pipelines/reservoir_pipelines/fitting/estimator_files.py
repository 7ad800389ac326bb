"""Fitted estimators as files: skops archives, of which every name is checked before anything of them is loaded."""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from typing import Any

from reservoir import InputError
from reservoir_pipelines.output import notify

MOST_SCHEMA_BYTES = 100 * 10**6  # gradient boosting of 1,000 trees has some 30 MB

_NUMBERS = {f"numpy.{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}
_VALUES = _NUMBERS | {"numpy.bool", "numpy.bool_", "numpy.str_"}

_LOSSES = {
    f"sklearn._loss._loss.Cy{name}"
    for name in (
        "AbsoluteError",
        "ExponentialLoss",
        "HalfBinomialLoss",
        "HalfGammaLoss",
        "HalfMultinomialLoss",
        "HalfPoissonLoss",
        "HalfSquaredError",
        "HalfTweedieLoss",
        "HalfTweedieLossIdentity",
        "HuberLoss",
        "PinballLoss",
    )
} | {
    f"sklearn.linear_model._sgd_fast.{name}"
    for name in ("EpsilonInsensitive", "Hinge", "ModifiedHuber", "SquaredEpsilonInsensitive", "SquaredHinge")
}

# What classifiers and regressors are made of.
_PARTS = (
    {name.replace("._loss.Cy", ".loss.") for name in _LOSSES if "._loss.Cy" in name}
    | {
        f"sklearn._loss.link.{name}"
        for name in ("HalfLogitLink", "IdentityLink", "Interval", "LogLink", "LogitLink", "MultinomialLogit")
    }
    | {
        f"sklearn.metrics._dist_metrics.{name}Distance64"
        for name in ("Chebyshev", "Euclidean", "Manhattan", "Minkowski")
    }
    | {
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        "sklearn.gaussian_process.kernels.ConstantKernel",
        "sklearn.gaussian_process.kernels.Product",
        "sklearn.gaussian_process.kernels.RBF",
        "sklearn.neighbors._ball_tree.BallTree",
        "sklearn.neighbors._kd_tree.KDTree",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
        "sklearn.pipeline.Pipeline",
        "sklearn.preprocessing._data.StandardScaler",
        "sklearn.preprocessing._function_transformer.FunctionTransformer",
        "sklearn.preprocessing._label.LabelBinarizer",
        "sklearn.preprocessing._label.LabelEncoder",
    }
)

# By skops' kind of node. What calls what a file names (ConstructorFromReduceNode, FunctionNode, MethodNode,
# PartialNode, OperatorFuncNode ...) is not here; the three that call a constructor call one of these classes only.
_NODES = {
    "DictNode": {"builtins.dict"},
    "JsonNode": {"builtins.str"},
    "ListNode": {"builtins.list"},
    "LossNode": _LOSSES,
    "NdArrayNode": _VALUES | {"numpy.ndarray"},
    "ObjectNode": _PARTS,
    "RandomGeneratorNode": {"numpy.random._generator.Generator"},
    "RandomStateNode": {"numpy.random.mtrand.RandomState"},
    "TreeNode": {"sklearn.tree._tree.Tree"},
    "TupleNode": {"builtins.tuple"},
    "TypeNode": _VALUES | {f"builtins.{name}" for name in ("bool", "float", "int", "str")},
}


def save_estimator(model: Any) -> bytes:
    """Return a fitted pipeline as the bytes of a skops archive, without pickle; say so if no one will load it."""
    import skops.io

    where = f"readout {type(model[-1]).__name__}"
    try:
        data = skops.io.dumps(model)
    except TypeError as error:
        raise InputError(f"{where}: it cannot be kept ({_first_line(error)}); choose another estimator") from error
    try:
        check_archive(data, where)
    except InputError as error:
        notify(f"predict and export will refuse this: {error}")
    return data


def load_estimator(data: bytes, where: str) -> Any:
    """Return the estimator that `save_estimator` wrote; nothing it names is imported before all is checked."""
    import skops.io
    from sklearn.pipeline import Pipeline

    trusted = check_archive(data, where)
    try:
        model = skops.io.loads(data, trusted=trusted)
    except Exception as error:  # a damaged archive makes skops, NumPy and scikit-learn raise nearly anything
        raise InputError(f"{where}: not readable ({_first_line(error)}); fit it again") from error
    if not isinstance(model, Pipeline):
        raise InputError(f"{where}: it holds a {type(model).__name__}, not a fitted pipeline; fit it again")
    return model


def check_archive(data: bytes, where: str) -> list[str]:
    """Refuse an archive that names a class or a call not known here; return the names of its classes."""
    names: set[str] = set()
    pending: list[Any] = [_read_schema(data, where)]
    while pending:  # not by recursion, whose depth a file would choose
        value = pending.pop()
        if isinstance(value, dict):
            if value.keys() & {"__loader__", "__module__", "__class__"}:
                node, name = value.get("__loader__"), f"{value.get('__module__')}.{value.get('__class__')}"
                if not _known(node, name):
                    raise InputError(
                        f"{where}: it names {name[:200]!r} ({str(node)[:40]}), which is no part of a scikit-learn "
                        "readout that is known here, so nothing of it is loaded; take an estimator of scikit-learn"
                    )
                names.add(name)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return sorted(names)


def _read_schema(data: bytes, where: str) -> Any:
    """Return the description in an archive whose members are all stored as they are, so that none can grow."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            size = archive.getinfo("schema.json").file_size
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if packed or sum(member.file_size for member in members) > len(data) or size > MOST_SCHEMA_BYTES:
                raise InputError(f"{where}: {size:,} bytes of description, or packed files, as fit never writes")
            return json.loads(archive.read("schema.json"))
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError, RecursionError, NotImplementedError) as error:
        raise InputError(f"{where}: not readable ({_first_line(error)}); fit it again") from error


def _known(node: Any, name: str) -> bool:
    names = _NODES.get(node, set()) if isinstance(node, str) else set()
    return name in names or (node == "ObjectNode" and name in _estimators())


@cache
def _estimators() -> frozenset[str]:
    """Return the names of scikit-learn's classifiers and regressors, which importing skops has imported already."""
    from sklearn.utils import all_estimators

    found = [kind for _, kind in all_estimators(["classifier", "regressor"])]
    return frozenset(f"{kind.__module__}.{kind.__name__}" for kind in found if kind.__module__.startswith("sklearn."))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
