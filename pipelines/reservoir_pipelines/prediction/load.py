"""Load saved readouts and trained runs, and the models whose features they read."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from reservoir.errors import InputError, as_input_error
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.readouts.linear import LinearReadout
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task
from reservoir.training.rows import TargetScale
from reservoir_pipelines.data.rows import MAX_NAMED, Skipped
from reservoir_pipelines.fitting.bundle import Bundle, Part, checked_means
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.training.checkpoints import TRAINED, check_digest, load_run, read_tensors
from reservoir_pipelines.training.run_folder import CONFIG, RunFolder, is_run


def open_readout(
    path: Path, *, trust: bool = False, linear: bool = False, requests: bool = False
) -> Bundle:
    """Return the readout that `fit` saved (see `Bundle.load`), or the output layer of a run of `train`.

    Parameters
    ----------
    path : Path
        The folder of the readout or of the run, or the JSON file in it.
    trust : bool
        Whether an estimator that is not linear may be loaded, which can run code.
    linear : bool
        Whether readouts that are not linear are refused.
    requests : bool
        Whether the caller can read the requests of an inference engine. Other readouts of features that another
        program computed are refused.
    """
    folder = path.parent if path.name == CONFIG else path
    if is_run(folder):
        return _open_run(folder)
    bundle = Bundle.load(path, trust=trust, linear=linear)
    if not bundle.parts:
        raise InputError(f"readout {path}: it names no features", "fit it again")
    for part in bundle.parts:
        is_imported = bool(part.digest) and not part.reservoir  # the raw input has neither
        if is_imported and not (requests and part.engine):
            problem = "features that another program computed, which cannot be computed for new rows"
            raise InputError(
                f"readout {path}: it reads {part.columns[0]}, {problem}",
                "fit the columns of an extraction instead",
            )
    return bundle


def _open_run(folder: Path) -> Bundle:
    """Return the output layer of a run of `train` as a linear readout of the trained model's last hidden state."""
    run = RunFolder(folder)
    config = run.config
    checkpoint = run.best  # read once, because a training that goes on writes others
    with as_input_error(
        f"{folder / CONFIG}: damaged, or not of a run of reservoir train", "name another run"
    ):
        spec, has_several_lengths = config["settings"]["spec"], config["lengths"]
        task = Task.from_dict(spec["task"])
        scaling = scaling_from_json(config["scaling"], task)
        part = Part(
            reservoir=Reservoir(**config["reservoir"]),
            digest=spec["backbone"]["digest"],
            compute=spec["compute"],
            columns=("final/last",),
            run=str(folder),
            step=checkpoint.state.step,
        )
        tensors = read_tensors(checkpoint, TRAINED)[TRAINED]
        if "output.weight" not in tensors:  # the output layer was not trained
            tensors = load_run(folder, "cpu", step=part.step).fpt.state_dict()
        readout = _output_layer(tensors, task, config["settings"].get("targets"))
        means = config.get("position_means")
        means = checked_means(None if means is None else np.array(means, np.float32), task)
    return Bundle(
        task=task,
        scaling=scaling,
        parts=(part,),
        readout=readout,
        scores=run.result(dict) or {},  # empty if the run has not finished
        lengths=has_several_lengths,
        origin=config.get("origin", ""),  # which older versions did not write
        position_means=means,
    )


def _output_layer(
    tensors: Mapping[str, Tensor], task: Task, target_scale: Mapping[str, list[float]] | None
) -> LinearReadout:
    """Return the output layer among the ``tensors`` of a trained model as a readout.

    ``target_scale`` has the fields of the `TargetScale` by which targets were standardised; None if they were not.
    """
    coef = tensors["output.weight"].double().numpy().T  # (width, logits)
    intercept = tensors["output.bias"].double().numpy()  # (logits,)
    # A readout of two classes has one score s for each label, which stands for the logits -s and +s. The logits of
    # classes 0 and 1 take turns.
    if task.classes == 2:
        coef = (coef[..., 1::2] - coef[..., ::2]) / 2
        intercept = (intercept[..., 1::2] - intercept[..., ::2]) / 2
    # The model predicts standardised targets, a readout those in the unit of the data.
    if target_scale:
        scale = TargetScale(**{name: np.array(values, float) for name, values in target_scale.items()})
        coef = coef * scale.deviation
        intercept = scale.restore(intercept)
    arrays = {"coef": np.ascontiguousarray(coef), "intercept": intercept}
    settings = {"outputs": task.outputs, "classes": task.classes, "temperature": 1.0}
    return LinearReadout.from_arrays(arrays, settings)


def load_part(
    task: Task,
    part: Part,
    device: str,
    where: Path,
    compute: str | None = None,
    stream: str = "never",
) -> LoadedModel:
    """Return the frozen or trained model of a part of a readout.

    Parameters
    ----------
    task : Task
        The task of the readout.
    part : Part
        A part that has a model.
    device : str
        The device of the model.
    where : Path
        The path of the readout, for messages.
    compute : str, optional
        The precision, by default that of the fit or of the training.
    stream : str
        Whether the blocks of a frozen model may be read from their file while they run, as ``--stream`` says.

    Raises
    ------
    InputError
        If the weights, or the files of a native input, have changed since the fit.
    """
    if part.run:
        return load_run(Path(part.run), device, compute, part.step)
    assert part.reservoir  # the caller has left out parts without a model
    with as_input_error(f"readout {where}: its model cannot be built", "fit it again"):
        model = load_model(
            task, part.reservoir, device, compute or part.compute, units=part.units, stream=stream
        )
    check_digest(model, part.digest, f"readout {where}")
    if dict(model.input_digests) != part.input_digests:
        problem = f"the {' or the '.join(model.input_digests)} of {model.settings.backbone!r} have changed"
        raise InputError(f"readout {where}: {problem}", "restore them, or fit again")
    return model


def notify_skipped(file: Path, skipped: Skipped, readable_rows: int) -> None:
    """Print how many rows of a file cannot be read, if any, and why the first few cannot."""
    if not skipped:
        return
    all_rows = readable_rows + len(skipped)
    reasons = [reason for _, reason in skipped.values()]
    shown = "; ".join(reasons[:MAX_NAMED])
    more = "; ..." if len(reasons) > MAX_NAMED else ""
    notify(f"{file}: {len(skipped):,} of {all_rows:,} rows cannot be read: {shown}{more}")
