"""The fitter that the options of `fit` ask for."""

from typing import Any

from reservoir.errors import InputError
from reservoir.options import FitOptions
from reservoir.readouts.penalties import DEFAULT_ALPHAS, LOGISTIC_ALPHAS, parse_alphas
from reservoir_pipelines.fitting.fitter import Fitter
from reservoir_pipelines.fitting.logistic_fitter import LogisticFitter
from reservoir_pipelines.fitting.ridge_fitter import RidgeFitter
from reservoir_pipelines.fitting.sklearn_fitter import EstimatorFitter


def make_fitter(options: FitOptions, classes: int, folds: int = 0, repeats: int = 1) -> Fitter:
    """Return the fitter for the options, the number of classes, and the folds that `choose_folds` returned."""
    readout, balanced = options.readout, options.class_weight == "balanced"
    if not classes and (balanced or readout == "logistic"):
        flag = "--class-weight balanced" if balanced else "--readout logistic"
        raise InputError(f"{flag}: the task has no classes", "remove the flag")
    if folds and readout != "ridge":
        raise InputError(
            f"--select {options.select}: cross-validation is only for ridge", "pass --select valid"
        )
    if readout not in ("ridge", "logistic"):
        if options.alphas:
            problem = f"--alphas: {readout} takes its parameters after a colon"
            raise InputError(f"{problem}, as in sklearn.svm.LinearSVC:C=0.1,1")
        return EstimatorFitter.parse(readout, classes, balanced=balanced)
    default = LOGISTIC_ALPHAS if readout == "logistic" else DEFAULT_ALPHAS
    alphas = parse_alphas(options.alphas) if options.alphas else default
    shared: dict[str, Any] = {
        "classes": classes,
        "alphas": alphas,
        "balanced": balanced,
        "widens": not options.alphas,
    }
    if readout == "logistic":
        return LogisticFitter(**shared)
    return RidgeFitter(
        **shared,
        folds=folds,
        repeats=repeats,
        refits=options.select == "auto" and not folds,
    )
