"""The stages of the pipeline (prepare, extract, fit, predict ...), one function each, and the command line.

>>> from reservoir_pipelines import extract, fit
>>> features = extract("digits", limit=60)
>>> features["train"]["block06/mean"].shape
(60, 256)
>>> fit(features).best.metric
'accuracy'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; a running program uses `__getattr__`
    from reservoir_pipelines.api import attention as attention
    from reservoir_pipelines.api import compare as compare
    from reservoir_pipelines.api import explain as explain
    from reservoir_pipelines.api import export as export
    from reservoir_pipelines.api import export_features as export_features
    from reservoir_pipelines.api import extract as extract
    from reservoir_pipelines.api import fit as fit
    from reservoir_pipelines.api import import_features as import_features
    from reservoir_pipelines.api import plan as plan
    from reservoir_pipelines.api import predict as predict
    from reservoir_pipelines.api import prepare as prepare
    from reservoir_pipelines.api import pretrain as pretrain
    from reservoir_pipelines.api import report as report
    from reservoir_pipelines.api import reproduce as reproduce
    from reservoir_pipelines.api import train as train
    from reservoir_pipelines.api import twin as twin
    from reservoir_pipelines.comparison import Comparison as Comparison
    from reservoir_pipelines.estimators.estimators import ReservoirClassifier as ReservoirClassifier
    from reservoir_pipelines.estimators.estimators import ReservoirRegressor as ReservoirRegressor
    from reservoir_pipelines.estimators.estimators import ReservoirTransformer as ReservoirTransformer
    from reservoir_pipelines.extraction.estimate import Estimate as Estimate
    from reservoir_pipelines.extraction.export_features import ExportedFeatures as ExportedFeatures
    from reservoir_pipelines.extraction.extract import Extraction as Extraction
    from reservoir_pipelines.fitting.results import Fit as Fit
    from reservoir_pipelines.fitting.results import LayerScore as LayerScore
    from reservoir_pipelines.fitting.results import Result as Result
    from reservoir_pipelines.paper.attention_maps import Attention as Attention
    from reservoir_pipelines.paper.pretrain import Pretraining as Pretraining
    from reservoir_pipelines.paper.reproduce import Reproduction as Reproduction
    from reservoir_pipelines.prediction.explain import Explanation as Explanation
    from reservoir_pipelines.prediction.export import Export as Export
    from reservoir_pipelines.prediction.prediction import Prediction as Prediction
    from reservoir_pipelines.prediction.predictions import Predictions as Predictions
    from reservoir_pipelines.preparation.prepared import Prepared as Prepared
    from reservoir_pipelines.reports.report import Report as Report
    from reservoir_pipelines.training.result import Training as Training
    from reservoir_pipelines.untrained import Twin as Twin

FUNCTIONS = (
    *(
        "attention",
        "compare",
        "explain",
        "export",
        "export_features",
        "extract",
        "fit",
        "import_features",
        "plan",
    ),
    *("predict", "prepare", "pretrain", "report", "reproduce", "train", "twin"),
)
"""The functions of ``api.py``."""

PLACES = {
    "Attention": "paper.attention_maps",
    "Comparison": "comparison",
    "Explanation": "prediction.explain",
    "Export": "prediction.export",
    "ExportedFeatures": "extraction.export_features",
    "Extraction": "extraction.extract",
    "Fit": "fitting.results",
    "Estimate": "extraction.estimate",
    "LayerScore": "fitting.results",
    "Prediction": "prediction.prediction",
    "Predictions": "prediction.predictions",
    "Prepared": "preparation.prepared",
    "Pretraining": "paper.pretrain",
    "Report": "reports.report",
    "Reproduction": "paper.reproduce",
    "ReservoirClassifier": "estimators.estimators",
    "ReservoirRegressor": "estimators.estimators",
    "ReservoirTransformer": "estimators.estimators",
    "Result": "fitting.results",
    "Training": "training.result",
    "Twin": "untrained",
}
"""The modules of all other public names."""

__all__ = [*PLACES, *FUNCTIONS]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Return a public name, whose module is imported only now."""
    # Stages import torch and scikit-learn; the command line has to answer --help without them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLACES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return __all__
