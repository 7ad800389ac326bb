"""The stage ``predict``: labels and probabilities for new sequences, through the same frozen model.

``ARCHITECTURE.md``, "Why `predict` refuses", has the checks in their order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir import InputError
from reservoir.batches import length_limits
from reservoir.column import RAW, Column, parse_columns
from reservoir.inputs.text_reader import TextReader
from reservoir.loaded_model import LoadedModel
from reservoir.option_fields import as_group
from reservoir.options import OwnDataOptions, PredictOptions
from reservoir.pooling import find_pooling
from reservoir.tasks.task import Task
from reservoir.tasks.words import UNKNOWN, shown, texts_of
from reservoir_pipelines.data.columns import listed
from reservoir_pipelines.data.formats import encode_rows, read_new
from reservoir_pipelines.data.rows import BadRows, RecordingSteps, Rows, Skipped
from reservoir_pipelines.data.table_labels import labels_from_table
from reservoir_pipelines.extraction.engine_folder import EngineFolder, is_engine_folder, request_files
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import notify
from reservoir_pipelines.prediction.load import load_part, notify_skipped, open_readout
from reservoir_pipelines.prediction.new_texts import NewTexts
from reservoir_pipelines.prediction.predictions import Predictions, without_single_outputs


def predict(readout: Path, file: Path, options: PredictOptions) -> Predictions:
    """Label the sequences of a file with a saved readout; each block of rows is computed when it is reached."""
    bundle = open_readout(readout, trust=options.trust, requests=True)
    task = bundle.task
    _check_flags(task, options)
    radius = None if options.coverage is None else bundle.radius(options.coverage, readout)
    if radius is not None:
        notify(
            f"coverage {options.coverage:g} is approximate, because validation rows also chose the readout"
        )
    # If another program (an engine) computed the features of the fit, new rows are requests to this engine.
    if any(part.engine for part in bundle.parts):
        return _predict_requests(bundle, file, options, radius)
    # Read the file, and refuse one that does not fit the task.
    new = read_new(file, task, options.labels)
    are_texts = new.x.dtype.kind == "U"  # whose lengths are known
    if bundle.lengths and new.lengths is None and not are_texts:
        raise InputError(
            f"{file}: no array 'lengths', but the readout was fitted on sequences of several lengths",
            "add the number of real tokens of each row",
        )
    rows = encode_rows(new, task, str(file))
    assert rows.lengths is not None
    if task.labels_each_token:  # new sequences may be longer than those of the task
        task = replace(task, readout_tokens=int(rows.lengths.max()))
        bundle = replace(bundle, task=task)
    _check_labels(file, task, new)
    # Load the model of each part of the readout; a part that reads the raw input, or statistics of it, has none.
    model_of_part = [
        load_part(task, part, options.device, readout, stream="auto") if part.reservoir else None
        for part in bundle.parts
    ]
    models = [model for model in model_of_part if model]
    reads_raw_input = len(models) < len(model_of_part)
    # New rows have groups only if the rows of the fit had them.
    rows = replace(rows, groups=rows.groups if bundle.groups else None)
    # Leave out the rows that are too short or too long for the models, and the chats that their templates refuse.
    rows = _without_misfits(file, rows, [length_limits(model) for model in models])
    rows = _without_refused_chats(file, rows, models)
    if rows.steps is not None:
        bad_steps: Skipped = {row: (None, problem) for row, problem in rows.steps.problems.items()}
        notify_skipped(file, bad_steps, len(rows.steps.row_of_step))
    notify_skipped(file, rows.skipped, len(rows))
    _warn(bundle, file, rows, symbols=reads_raw_input or any(not model.reader for model in models))
    texts = None
    if task.labels_text_tokens:
        texts = NewTexts.read(file, rows, task, models)
        rows = texts.as_rows()
    # Rows of a table that are steps of one recording have a label each.
    steps = None if options.windows else rows.steps
    truths = _truths_of_rows(file, task, rows) if steps is None else _truths_of_steps(file, task, steps)
    return Predictions(
        bundle=bundle,
        models=model_of_part,
        file=file,
        rows=rows,
        truths=truths,
        radius=radius,
        abstain=options.abstain,
        joined=None if options.windows else rows.windows,
        texts=texts,
        steps=steps,
    )


def _predict_requests(
    bundle: Bundle, folder: Path, options: PredictOptions, radius: float | np.ndarray | None
) -> Predictions:
    """Label the requests of an engine's folder: another program computed the features, and each row is a request."""
    rows, engine_folder = _request_rows(folder, bundle, options.labels)
    return Predictions(
        bundle=bundle,
        models=[engine_folder] * len(bundle.parts),
        file=folder,
        rows=rows,
        truths=_truths_of_rows(folder, bundle.task, rows),
        radius=radius,
        abstain=options.abstain,
    )


def _request_rows(folder: Path, bundle: Bundle, labels: str | None) -> tuple[Rows, EngineFolder]:
    """Return a row for each request of an engine's folder, and the folder with its requests in the same order.

    The values ``x`` of the rows are placeholders. ``labels`` is a table of labels, joined by the names of the requests.
    Raise `InputError` if the readout reads other features as well, or if the folder has another model or other layers.
    """
    engine = bundle.parts[0].engine
    reads_one_engine = all(part.engine == engine for part in bundle.parts)
    if engine is None or not reads_one_engine:
        names = ", ".join(part.columns[0] for part in bundle.parts)
        raise InputError(
            f"{folder}: the readout reads {names}, which are not the requests of one folder alone",
            "fit columns of one imported folder",
        )
    if not is_engine_folder(folder):
        raise InputError(
            f"{folder}: the readout reads hidden states of {engine.title}, not this kind of data",
            "give a folder that the engine wrote, with a .safetensors file for each request",
        )
    files = request_files(folder)
    engine_folder = EngineFolder(folder, [*files.values()])
    notify(engine_folder.check_model(engine))
    names = [*files]
    lengths = np.array([request.tokens for request in engine_folder.requests], np.int32)
    rows = Rows(x=np.zeros((len(names), 1)), lengths=lengths, ids=np.array(names))
    if labels:
        options = as_group({"labels": labels, "skip_bad_rows": True}, OwnDataOptions)
        bad = BadRows(str(folder), [f"request {name}" for name in names])
        joined = labels_from_table(options, names, bad, is_new=True)
        bad.readable()  # refuses requests without a row
        notify(*joined.notes)
        rows = replace(rows, y=joined.arrays["y"], groups=joined.arrays.get("groups"))
    return rows, engine_folder


def _check_flags(task: Task, options: PredictOptions) -> None:
    """Refuse flags that do not fit the task of a readout."""
    if options.windows and not task.cuts_recordings:
        raise InputError(
            "--windows: the readout was not fitted on windows of recordings", "remove the flag"
        )
    if options.coverage is not None and task.cuts_recordings and not options.windows:
        raise InputError(
            "--coverage: sets and intervals are those of windows, and a recording has several",
            "add --windows for the predictions of windows",
        )
    if options.abstain and not task.classes:
        raise InputError("--abstain: the readout gives numbers, not classes", "remove the flag")


def _check_labels(file: Path, task: Task, new: Rows) -> None:
    """Refuse labels of another number than the task has for each row."""
    y = new.y
    labels_per_row = task.readout_tokens * task.outputs
    # If each token has a label, rows have as many labels as tokens.
    may_have_any_number = y is None or task.labels_each_token or task.labels_text_tokens
    has_wrong_number = y is not None and not may_have_any_number and y.size != len(new) * labels_per_row
    if y is not None and (len(y) != len(new) or has_wrong_number):
        raise InputError(
            f"{file}: the labels have the shape {y.shape}, not {labels_per_row} for each of {len(new)} rows",
            "correct or remove them",
        )


def _without_misfits(file: Path, rows: Rows, limits: list[tuple[int, float]]) -> Rows:
    """Return the rows within all ``limits`` (see `length_limits`); the others are skipped, unless no row is left."""
    assert rows.lengths is not None
    fewest = max((low for low, _ in limits), default=0)
    most = min((high for _, high in limits), default=math.inf)
    fits = (rows.lengths >= fewest) & (rows.lengths <= most)
    if fits.all():
        return rows
    reasons: dict[int, str] = {}
    for row in np.flatnonzero(~fits).tolist():
        length = int(rows.lengths[row])
        limit = f"at least {fewest:,}" if length < fewest else f"at most {most:,.0f}"
        reasons[row] = f"{length:,} tokens, but the model reads {limit}"
    if not fits.any():
        raise InputError(
            f"{file}: no row has a length that the model reads (row 0: {reasons[0]})",
            "give rows of other lengths, or fit a readout of a backbone with more positions",
        )
    return _skipping(rows, reasons)


def _without_refused_chats(file: Path, rows: Rows, models: Sequence[LoadedModel]) -> Rows:
    """Return the rows without the chats that a model's template refuses, unless it refuses all."""
    readers = [model.reader for model in models if isinstance(model.reader, TextReader)]
    reasons: dict[int, str] = {}
    for template in filter(None, (reader.template for reader in readers)):
        reasons |= template.refusals(texts_of(np.asarray(rows.x[:]), np.asarray(rows.lengths)))
    if not reasons:
        return rows
    if len(reasons) == len(rows):
        raise InputError(f"{file}: no chat can be read ({reasons[0]})", "correct the chats")
    return _skipping(rows, reasons)


def _skipping(rows: Rows, reasons: Mapping[int, str]) -> Rows:
    """Return the rows without those that have a reason to be skipped, by their number among these rows."""
    # The place of each row in the file, where rows that are skipped already count, too.
    places = np.setdiff1d(np.arange(len(rows) + len(rows.skipped)), [*rows.skipped])
    skipped: Skipped = {}
    for row, reason in reasons.items():
        place = int(places[row])
        skipped[place] = (rows.names[row].item(), f"row {place}: {reason}")
    stays = np.isin(np.arange(len(rows)), [*reasons], invert=True)
    lengths, y, groups = (
        None if array is None else array[stays] for array in (rows.lengths, rows.y, rows.groups)
    )
    return replace(
        rows,
        x=np.asarray(rows.x[:])[stays],
        lengths=lengths,
        ids=rows.names[stays],
        y=y,
        groups=groups,
        windows=None if rows.windows is None else rows.windows.take(stays),
        skipped=rows.skipped | skipped,
    )


def _reads_by_position(name: str) -> bool:
    """Return whether the features of a column are those of single tokens, so that later tokens are not read."""
    (column,) = parse_columns(name)
    return find_pooling(column.pooling).by_position if isinstance(column, Column) else column == RAW


def _warn(bundle: Bundle, file: Path, rows: Rows, *, symbols: bool) -> None:
    """Print reasons why predictions are less reliable than they look; ``symbols`` if letters are read as symbols."""
    most, lengths = bundle.task.max_tokens, np.asarray(rows.lengths)
    long_rows = int((lengths > most).sum())
    by_position = [name for part in bundle.parts for name in part.columns if _reads_by_position(name)]
    if long_rows and by_position and not bundle.task.labels_each_token:
        read = f"{', '.join(by_position)} read the first {most:,} tokens"
        notify(f"{file}: {long_rows:,} rows are longer than any that the readout was fitted on; {read}")
    if symbols and (alphabet := bundle.task.alphabet.removeprefix(UNKNOWN)):
        codes, numbers = np.unique(rows.x[:], return_counts=True)
        is_unknown = np.isin(codes, [0, *map(ord, alphabet)], invert=True)  # 0 is padding
        if unknown_letters := int(numbers[is_unknown].sum()):
            share = (
                f"{unknown_letters:,} of {lengths.sum():,} letters ({unknown_letters / lengths.sum():.1%})"
            )
            notify(f"{file}: {share} are in no training row: {shown(''.join(map(chr, codes[is_unknown])))}")
    if rows.y is not None and bundle.origin and str(file.resolve()) == bundle.origin:
        fitted, by = ("run was trained", "train") if bundle.parts[0].run else ("readout was fitted", "fit")
        notify(f"{file}: the {fitted} on rows of this file; for new data trust the test score of {by}")


def _truths_of_rows(file: Path, task: Task, rows: Rows) -> list[Any]:
    """Return the label of each row, or those of its tokens; see `_truths`."""
    if rows.y is None:
        return [None] * len(rows)
    return _truths(file, task, rows.y, np.asarray(rows.lengths) if task.labels_each_token else None)


def _truths_of_steps(file: Path, task: Task, steps: RecordingSteps) -> list[Any]:
    """Return the label of each row of a table whose rows are steps of one recording; see `_truths`."""
    return [None] * len(steps.names) if steps.y is None else _truths(file, task, steps.y, None)


def _truths(file: Path, task: Task, y: np.ndarray, lengths: np.ndarray | None) -> list[Any]:
    """Return labels as they are in the file, nested like predictions; None, with a note, for a row that lacks labels.

    If each token of a row has a label, ``lengths`` (rows,) has their number.
    """
    classes = {str(task.label(number)) for number in range(task.classes)}
    truths: list[Any] = []
    unknown: set[str] = set()  # names of classes that the readout does not know
    has_label_per_row = y.ndim == 1 and lengths is None
    for row, value in enumerate(y.tolist() if has_label_per_row else y):
        # The labels of a row in one list, without those of padding.
        without_padding: Any = value if lengths is None or value is None else value[: lengths[row]]
        has_several = isinstance(without_padding, np.ndarray | list)
        cells = np.ravel(without_padding).tolist() if has_several else [without_padding]
        labels = [_as_label(cell, is_class=task.classes > 0) for cell in cells]
        if None in labels:
            truths.append(None)
            continue
        if classes:
            unknown |= {*map(str, labels)} - classes
        # Nest them as predictions are.
        if lengths is not None:
            truths.append(labels)
        elif len(labels) == 1:
            truths.append(labels[0])
        else:
            tokens = without_single_outputs(np.array(labels, object).reshape(-1, task.outputs).tolist())
            truths.append(tokens[0] if len(tokens) == 1 else tokens)
    if missing := sum(truth is None for truth in truths):
        notify(f"{file}: {missing:,} of {len(y):,} rows have no label, so the scores leave them out")
    if unknown:
        notify(f"{file}: classes that the readout does not know count as wrong: {listed(sorted(unknown))}")
    return truths


def _as_label(value: Any, *, is_class: bool) -> Any:
    """Return a label in the type of the class names, or as a finite number; None if it is missing or not a number."""
    if is_class:
        value = value.decode() if isinstance(value, bytes) else value  # HDF5 stores texts as bytes
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        return None if isinstance(value, float) and math.isnan(value) else value
    try:
        return float(value) if math.isfinite(float(value)) else None
    except (TypeError, ValueError):
        return None
