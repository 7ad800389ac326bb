"""How stages run: prepare, extract, fit, tune, train, pretrain, predict; one function each, and the command line.

>>> from reservoir_pipelines import extract, fit
>>> features = extract("digits", limit=60)
>>> features["train"]["block06/mean"].shape
(60, 256)
>>> fit(features).best.metric
'accuracy'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reservoir_pipelines.attention_maps import Attention, attention
    from reservoir_pipelines.estimators.classifier import ReservoirClassifier
    from reservoir_pipelines.estimators.regressor import ReservoirRegressor
    from reservoir_pipelines.estimators.transformer import ReservoirTransformer
    from reservoir_pipelines.extraction.extract import Extraction, extract
    from reservoir_pipelines.extraction.forecast import Forecast, plan
    from reservoir_pipelines.fitting.fit import fit
    from reservoir_pipelines.fitting.results import Fit, Result
    from reservoir_pipelines.foreign_backbone import Imported, import_backbone
    from reservoir_pipelines.prediction.explain import Explanation, explain
    from reservoir_pipelines.prediction.predict import Prediction, predict
    from reservoir_pipelines.preparation.prepare import prepare
    from reservoir_pipelines.preparation.prepared import Prepared
    from reservoir_pipelines.pretraining.outcome import Pretraining
    from reservoir_pipelines.pretraining.pretrain import pretrain
    from reservoir_pipelines.reports.report import Report, report
    from reservoir_pipelines.reproduction.reproduce import Reproduction, reproduce
    from reservoir_pipelines.training.train import train
    from reservoir_pipelines.training.training_result import Training
    from reservoir_pipelines.tuning.tune import Tuning, tune

__all__ = [
    "Attention",
    "Explanation",
    "Extraction",
    "Fit",
    "Forecast",
    "Imported",
    "Prediction",
    "Prepared",
    "Pretraining",
    "Report",
    "Reproduction",
    "ReservoirClassifier",
    "ReservoirRegressor",
    "ReservoirTransformer",
    "Result",
    "Training",
    "Tuning",
    "attention",
    "explain",
    "extract",
    "fit",
    "import_backbone",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "report",
    "reproduce",
    "train",
    "tune",
]

_HOME = {
    "ReservoirClassifier": "estimators.classifier",
    "ReservoirRegressor": "estimators.regressor",
    "ReservoirTransformer": "estimators.transformer",
    **dict.fromkeys(("Attention", "attention"), "attention_maps"),
    **dict.fromkeys(("Explanation", "explain"), "prediction.explain"),
    **dict.fromkeys(("Extraction", "extract"), "extraction.extract"),
    **dict.fromkeys(("Forecast", "plan"), "extraction.forecast"),
    "fit": "fitting.fit",
    **dict.fromkeys(("Fit", "Result"), "fitting.results"),
    **dict.fromkeys(("Imported", "import_backbone"), "foreign_backbone"),
    "Prepared": "preparation.prepared",
    "prepare": "preparation.prepare",
    "Pretraining": "pretraining.outcome",
    "pretrain": "pretraining.pretrain",
    **dict.fromkeys(("Prediction", "predict"), "prediction.predict"),
    **dict.fromkeys(("Report", "report"), "reports.report"),
    **dict.fromkeys(("Reproduction", "reproduce"), "reproduction.reproduce"),
    "train": "training.train",
    "Training": "training.training_result",
    **dict.fromkeys(("Tuning", "tune"), "tuning.tune"),
}


def __getattr__(name: str) -> Any:
    # Stages import torch and scikit-learn; the command line has to answer --help without them.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
