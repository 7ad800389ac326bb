"""The stages of the pipeline (prepare, extract, fit, predict ...), one function each, and the command line.

>>> from reservoir_pipelines import extract, fit
>>> features = extract("digits", limit=60)
>>> features["train"]["block06/mean"].shape
(60, 256)
>>> fit(features).best.metric
'accuracy'
"""

from importlib import import_module
from typing import Any

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
    *("predict", "prepare", "pretrain", "report", "reproduce", "train"),
)
"""The functions of ``api.py``. ``__init__.pyi`` has their signatures; ``python docs/stub.py`` writes it."""

PLACES = {
    "Attention": "paper.attention_maps",
    "Comparison": "comparison.compare",
    "Explanation": "prediction.explain",
    "Export": "prediction.export",
    "ExportedFeatures": "extraction.export_features",
    "Extraction": "extraction.extract",
    "Fit": "fitting.results",
    "Forecast": "extraction.forecast",
    "Imported": "foreign_backbone",
    "LayerScore": "fitting.results",
    "Prediction": "prediction.predict",
    "Predictions": "prediction.predict",
    "Prepared": "preparation.prepared",
    "Pretraining": "paper.pretrain",
    "Report": "reports.report",
    "Reproduction": "paper.reproduce",
    "ReservoirClassifier": "estimators.estimators",
    "ReservoirRegressor": "estimators.estimators",
    "ReservoirTransformer": "estimators.estimators",
    "Result": "fitting.results",
    "Training": "training.run_folder",
    "import_backbone": "foreign_backbone",
}
"""The modules of all other public names."""

__all__ = [*PLACES, *FUNCTIONS]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Stages import torch and scikit-learn; the command line has to answer --help without them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLACES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return __all__
