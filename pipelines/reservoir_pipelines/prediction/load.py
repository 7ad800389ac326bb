"""Load saved readouts and trained runs, and the models whose features they read."""

from pathlib import Path

import numpy as np

from reservoir.errors import InputError, as_input_error
from reservoir.loaded_model import LoadedModel, load_model
from reservoir.readouts.linear import LinearReadout
from reservoir.reservoir import Reservoir
from reservoir.tasks.task import Task
from reservoir.training.rows import TargetScale
from reservoir_pipelines.data.rows import MAX_NAMED, Skipped
from reservoir_pipelines.fitting.bundle import Bundle, Part
from reservoir_pipelines.output import notify
from reservoir_pipelines.preparation.prepared import scaling_from_json
from reservoir_pipelines.training.checkpoints import TRAINED, check_digest, load_run, read_tensors
from reservoir_pipelines.training.run_folder import CONFIG, RunFolder, is_run


def open_readout(
    path: Path, *, trust: bool = False, linear: bool = False, requests: bool = False
) -> Bundle:
    """Return the readout that `fit` saved (see `Bundle.load`), or the output layer of a run of `train`.

    A readout of features that another program computed is refused, except for those of an inference engine if the
    caller can read its ``requests``.
    """
    folder = path.parent if path.name == CONFIG else path
    if not is_run(folder):
        bundle = Bundle.load(path, trust=trust, linear=linear)
        if not bundle.parts:
            raise InputError(f"readout {path}: it names no features", "fit it again")
        without_model = [part for part in bundle.parts if part.digest and not part.reservoir]
        if imported := [part.columns[0] for part in without_model if not (requests and part.engine)]:
            why = "features that another program computed, which cannot be computed for new rows"
            raise InputError(
                f"readout {path}: it reads {imported[0]}, {why}", "fit the columns of an extraction instead"
            )
        return bundle
    # A run of train: its configuration has the task and the model, its output layer becomes a linear readout.
    config = RunFolder(folder).config
    with as_input_error(
        f"{folder / CONFIG}: damaged, or not of a run of reservoir train", "name another run"
    ):
        spec, lengths = config["settings"]["spec"], config["lengths"]
        task = Task.from_dict(spec["task"])
        scaling = scaling_from_json(config["scaling"], task)
        part = Part(
            reservoir=Reservoir(**config["reservoir"]),
            digest=spec["backbone"]["digest"],
            compute=spec["compute"],
            columns=("final/last",),
            run=str(folder),
        )
        tensors = read_tensors(RunFolder(folder).best, TRAINED)[TRAINED]
        if "output.weight" not in tensors:  # the output layer was not trained
            tensors = load_run(folder, "cpu").fpt.state_dict()
        coef, intercept = (tensors[f"output.{name}"].double().numpy().T for name in ("weight", "bias"))
        if task.classes == 2:  # the readout's score s stands for the logits -s and +s
            coef, intercept = ((values[..., 1::2] - values[..., ::2]) / 2 for values in (coef, intercept))
        if scale := config["settings"].get("targets"):  # undo the standardisation of the targets
            targets = TargetScale(**{name: np.array(values, float) for name, values in scale.items()})
            coef, intercept = coef * targets.deviation, targets.restore(intercept)
        arrays = {"coef": np.ascontiguousarray(coef), "intercept": intercept}
        readout = LinearReadout.from_arrays(arrays, {**vars(task), "temperature": 1.0})
    return Bundle(
        task=task,
        scaling=scaling,
        parts=(part,),
        readout=readout,
        scores=RunFolder(folder).result(dict) or {},
        lengths=lengths,
        origin=config.get("origin", ""),
    )


def load_part(
    task: Task,
    part: Part,
    device: str,
    where: Path,
    compute: str | None = None,
    stream: str = "never",
) -> LoadedModel:
    """Return the frozen or trained model of a part of a readout; ``where`` is the readout, for messages."""
    if part.run:
        return load_run(Path(part.run), device, compute)
    assert part.reservoir  # the raw input has no model
    with as_input_error(f"readout {where}: its model cannot be built", "fit it again"):
        model = load_model(
            task, part.reservoir, device, compute or part.compute, units=part.units, stream=stream
        )
    check_digest(model, part.digest, f"readout {where}")
    if dict(model.input_digests) != part.input_digests:
        changed = f"the {' or the '.join(model.input_digests)} of {model.settings.backbone!r} have changed"
        raise InputError(f"readout {where}: {changed}", "restore them, or fit again")
    return model


def notify_skipped(file: Path, skipped: Skipped, read: int) -> None:
    """Print how many rows of a file cannot be read, and why the first few cannot."""
    if skipped:
        start = f"{file}: {len(skipped):,} of {read + len(skipped):,} rows cannot be read"
        reasons = [reason for _, reason in skipped.values()]
        notify(f"{start}: {'; '.join(reasons[:MAX_NAMED])}{'; ...' * (len(reasons) > MAX_NAMED)}")
