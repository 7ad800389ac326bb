"""The stage ``predict``: labels and probabilities for new sequences, through the same frozen model.

``ARCHITECTURE.md``, "Why `predict` refuses", has the checks in their order.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reservoir import InputError
from reservoir.batches import length_limits
from reservoir.column import parse_columns
from reservoir.inputs.text_reader import TextReader
from reservoir.loaded_model import LoadedModel
from reservoir.option_fields import as_group
from reservoir.options import OwnDataOptions, PredictOptions
from reservoir.raw_input import longer_rows_note, shorter_rows_note
from reservoir.tasks.task import Task
from reservoir.tasks.texts import UNKNOWN, shown, texts_of
from reservoir_pipelines.data.columns import UNEQUAL_TIMES, listed
from reservoir_pipelines.data.formats import encode_rows, read_new
from reservoir_pipelines.data.labels import SPLIT_NAMES
from reservoir_pipelines.data.rows import BadRows, RecordingSteps, Rows, Skipped
from reservoir_pipelines.data.series import split_files
from reservoir_pipelines.data.table_labels import labels_from_table
from reservoir_pipelines.extraction.engine_folder import EngineFolder, is_engine_folder, request_files
from reservoir_pipelines.fitting.bundle import Bundle
from reservoir_pipelines.output import notify
from reservoir_pipelines.prediction.load import load_part, notify_skipped, open_readout
from reservoir_pipelines.prediction.new_texts import NewTexts
from reservoir_pipelines.prediction.predictions import Predictions, without_single_outputs


def predict(readout: Path, file: Path, options: PredictOptions) -> Predictions:
    """Label the sequences of a file with a saved readout; each block of rows is computed when it is reached."""
    # 1. The readout (``requests``: also one of features that an inference engine computed), and for --coverage the
    # radius of conformal prediction: sets and intervals have all labels whose nonconformity score is at most this.
    bundle = open_readout(readout, trust=options.trust, requests=True)
    _check_flags(bundle.task, options)
    radius = None if options.coverage is None else bundle.radius(options.coverage, readout)
    if radius is not None:
        notify(
            f"coverage {options.coverage:g} is approximate, because validation rows also chose the readout"
        )
    # If another program (an engine) computed the features of the fit, new rows are requests to this engine.
    if any(part.engine for part in bundle.parts):
        return _predict_requests(bundle, file, options, radius)
    # 2. The rows of the file.
    new = read_new(file, bundle.task, options.labels)
    _check_lengths(file, bundle, new)
    rows = encode_rows(new, bundle.task, str(file))
    assert rows.lengths is not None  # `encode_rows` adds them
    if bundle.task.labels_each_token:  # new sequences may be longer than those of the task
        longest = int(rows.lengths.max())
        bundle = replace(bundle, task=replace(bundle.task, readout_tokens=longest))
    task = bundle.task
    _check_labels(file, task, new)
    # 3. The model of each part of the readout; a part that reads the raw input, or statistics of it, has none.
    model_of_part = [
        load_part(task, part, options.device, readout, stream="auto") if part.reservoir else None
        for part in bundle.parts
    ]
    models = [model for model in model_of_part if model]
    # 4. Without the rows that are too short or too long for the models, and the chats that their templates refuse.
    rows = _without_misfits(file, rows, [length_limits(model) for model in models])
    rows = _without_refused_chats(file, rows, models)
    if not bundle.groups:  # new rows have groups only if the rows of the fit had them
        rows = replace(rows, groups=None)
    _print_skipped(file, rows)
    reads_raw_input = len(models) < len(model_of_part)
    reads_symbols = reads_raw_input or any(not model.reader for model in models)
    _warn(bundle, file, rows, reads_symbols=reads_symbols)
    # 5. What has a label: words or tokens of texts, rows of a table that are steps of one recording, or the rows.
    # Rows may be windows of recordings. With --windows each has a prediction; otherwise those of the windows are joined
    # to one of each recording, which ``steps`` may divide among the rows of a table. So --windows leaves out both.
    texts = None
    if task.labels_text_tokens:
        texts = NewTexts.read(file, rows, task, models)
        rows = texts.as_rows()
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
    """Label the requests of an engine's folder, for a readout of features that the engine computed."""
    rows, engine_folder = _request_rows(folder, bundle, options.labels)
    if not bundle.groups:  # new rows have groups only if the rows of the fit had them
        rows = replace(rows, groups=None)
    _warn_of_fitted_rows(bundle, folder, rows)
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

    The values ``x`` of the rows are placeholders. ``labels`` is the path of a table of labels, joined by the names of
    the requests. Raise `InputError` if the readout reads other features as well, or if the folder has another model or
    other layers.
    """
    engine_model = bundle.parts[0].engine
    reads_one_model = all(part.engine == engine_model for part in bundle.parts)
    if engine_model is None or not reads_one_model:
        names = ", ".join(part.columns[0] for part in bundle.parts)
        raise InputError(
            f"{folder}: the readout reads {names}, which are not the requests of one folder alone",
            "fit columns of one imported folder",
        )
    if not is_engine_folder(folder):
        raise InputError(
            f"{folder}: the readout reads hidden states of {engine_model.title}, not this kind of data",
            "give a folder that the engine wrote, with a .safetensors file for each request",
        )
    file_of_request = request_files(folder)
    engine_folder = EngineFolder(folder, [*file_of_request.values()])
    notify(engine_folder.check_model(engine_model))
    request_names = [*file_of_request]
    lengths = np.array([request.tokens for request in engine_folder.requests], np.int32)
    rows = Rows(x=np.zeros((len(request_names), 1)), lengths=lengths, ids=np.array(request_names))
    if labels:
        options = as_group({"labels": labels, "skip_bad_rows": True}, OwnDataOptions)
        bad_rows = BadRows(str(folder), [f"request {name}" for name in request_names])
        table = labels_from_table(options, request_names, bad_rows, is_new=True)
        bad_rows.readable()  # refuses requests without a row in the table
        notify(*table.notes)
        rows = replace(rows, y=table.arrays["y"], groups=table.arrays.get("groups"))
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


def _check_lengths(file: Path, bundle: Bundle, new: Rows) -> None:
    """Refuse rows without lengths if the sequences of the fit had several lengths."""
    are_texts = new.x.dtype.kind == "U"  # whose lengths are known
    if bundle.lengths and new.lengths is None and not are_texts:
        raise InputError(
            f"{file}: no array 'lengths', but the readout was fitted on sequences of several lengths",
            "add the number of real tokens of each row",
        )


def _check_labels(file: Path, task: Task, new: Rows) -> None:
    """Refuse labels of another number than the task has for each row; new rows need no labels."""
    y = new.y
    if y is None:
        return
    labels_per_row = task.readout_tokens * task.outputs
    # If each token has a label, a row has as many labels as tokens.
    has_fixed_number = not (task.labels_each_token or task.labels_text_tokens)
    has_wrong_number = has_fixed_number and y.size != len(new) * labels_per_row
    if len(y) != len(new) or has_wrong_number:
        raise InputError(
            f"{file}: the labels have the shape {y.shape}, not {labels_per_row} for each of {len(new)} rows",
            "correct or remove them",
        )


def _without_misfits(file: Path, rows: Rows, limits: list[tuple[int, float]]) -> Rows:
    """Return the rows whose lengths are within all ``limits``; raise `InputError` if none is left.

    ``limits`` are the fewest and the most tokens that each model reads.
    """
    assert rows.lengths is not None  # `encode_rows` adds them
    fewest = max((low for low, _ in limits), default=0)  # without models there are no limits
    most = min((high for _, high in limits), default=math.inf)
    fits = (rows.lengths >= fewest) & (rows.lengths <= most)
    if fits.all():
        return rows
    reasons: dict[int, str] = {}  # by the number of the row among ``rows``
    for row in np.flatnonzero(~fits).tolist():
        length = int(rows.lengths[row])
        limit = f"at least {fewest:,}" if length < fewest else f"at most {most:,.0f}"
        reasons[row] = f"{length:,} tokens, but the model reads {limit}"
    if not fits.any():
        raise InputError(
            f"{file}: no row has a length that the model reads (row 0: {reasons[0]})",
            "give rows of other lengths, or fit a readout of a backbone with more positions",
        )
    return rows.without(reasons)


def _without_refused_chats(file: Path, rows: Rows, models: Sequence[LoadedModel]) -> Rows:
    """Return the rows without the chats that a model's template refuses; raise `InputError` if none is left."""
    reasons: dict[int, str] = {}  # by the number of the row among ``rows``
    for model in models:
        template = model.reader.template if isinstance(model.reader, TextReader) else None
        if template:
            reasons |= template.refusals(texts_of(np.asarray(rows.x[:]), np.asarray(rows.lengths)))
    if not reasons:
        return rows
    if len(reasons) == len(rows):
        raise InputError(f"{file}: no chat can be read ({reasons[0]})", "correct the chats")
    return rows.without(reasons)


def _print_skipped(file: Path, rows: Rows) -> None:
    """Print how many rows of a file, or rows of a table that are steps of one recording, cannot be read."""
    if rows.steps is not None:
        bad_steps: Skipped = {row: (None, problem) for row, problem in rows.steps.problems.items()}
        notify_skipped(file, bad_steps, len(rows.steps.row_of_step))
    notify_skipped(file, rows.skipped, len(rows))


def _warn(bundle: Bundle, file: Path, rows: Rows, *, reads_symbols: bool) -> None:
    """Print reasons why predictions are less reliable than they look.

    ``reads_symbols`` says that the raw input or a model reads letters as symbols, not by its own tokenizer.
    """
    # 1. Rows that are longer than any of the fit, if a column reads only their beginning, and rows that are shorter
    # than all of the fit, if a column reads zeros at their end.
    lengths = np.asarray(rows.lengths)
    columns = [column for part in bundle.parts for name in part.columns for column in parse_columns(name)]
    if not bundle.task.labels_each_token:
        shorter = None if bundle.lengths else shorter_rows_note(columns, bundle.task, lengths)
        notes = (longer_rows_note(columns, bundle.task, lengths), shorter)
        notify(*(f"{file}: {note}" for note in notes if note))
    # 2. Letters that no training row had.
    alphabet = bundle.task.alphabet.removeprefix(UNKNOWN)  # empty if the rows are no texts
    if reads_symbols and alphabet:
        codes, counts = np.unique(rows.x[:], return_counts=True)
        is_unknown = np.isin(codes, [0, *map(ord, alphabet)], invert=True)  # 0 is padding
        unknown_letters = int(counts[is_unknown].sum())
        if unknown_letters:
            letters = lengths.sum()
            share = f"{unknown_letters:,} of {letters:,} letters ({unknown_letters / letters:.1%})"
            examples = shown("".join(map(chr, codes[is_unknown])))
            notify(f"{file}: {share} are in no training row: {examples}")
    # 3. Steps that are not equally spaced.
    notify(*(f"{file}: {note}" for note in rows.notes if note.startswith(UNEQUAL_TIMES)))
    # 4. Rows with labels that were used for the fit.
    _warn_of_fitted_rows(bundle, file, rows)


def _warn_of_fitted_rows(bundle: Bundle, file: Path, rows: Rows) -> None:
    """Print that the rows of a file have labels and are those of the fit, if its path says so."""
    # The origin is only a note, which an edited file may hold in another form.
    has_origin = isinstance(bundle.origin, str) and bool(bundle.origin)
    has_rows_of_fit = has_origin and _was_fitted(file.resolve(), Path(bundle.origin))
    if has_rows_of_fit and rows.y is not None:
        is_run = bool(bundle.parts[0].run)
        what, command = ("run was trained", "train") if is_run else ("readout was fitted", "fit")
        kind = "folder" if file.is_dir() else "file"
        notify(f"{file}: the {what} on rows of this {kind}; for new data trust the test score of {command}")


def _was_fitted(file: Path, origin: Path) -> bool:
    """Return whether a fit to the data at the path ``origin`` had rows of a file or folder that were not test rows.

    Only paths are compared.
    """
    # A published pair, which its folder or either file stands for, is fitted on its training file alone. A folder that
    # has changed since the fit may be refused.
    with suppress(InputError):
        if pair := split_files(origin):
            return file == pair["train"].resolve()
    # Of a folder, all but the folder of the test split may be fitted.
    if origin in file.parents:
        return SPLIT_NAMES.get(file.relative_to(origin).parts[0].lower()) != "test"
    return file == origin


def _truths_of_rows(file: Path, task: Task, rows: Rows) -> list[Any]:
    """Return the label of each row, or those of its tokens; None for a row without labels. See `_truths`."""
    if rows.y is None:
        return [None] * len(rows)
    return _truths(file, task, rows.y, np.asarray(rows.lengths) if task.labels_each_token else None)


def _truths_of_steps(file: Path, task: Task, steps: RecordingSteps) -> list[Any]:
    """Return the label of each row of a table whose rows are steps of one recording; None for a row without one."""
    if steps.y is None:
        return [None] * len(steps.names)
    return _truths(file, task, steps.y, lengths=None)


def _truths(file: Path, task: Task, y: np.ndarray, lengths: np.ndarray | None) -> list[Any]:
    """Return the labels of each row as they are in the file, nested as predictions are; None for a row that lacks one.

    Print how many rows lack labels, and the classes that the readout does not know. ``lengths`` (rows,) is the number
    of labels of each row if each token has one, else None.
    """
    known_classes = {str(task.label(number)) for number in range(task.classes)}
    truths: list[Any] = []
    unknown_classes: set[str] = set()
    has_one_label_per_row = y.ndim == 1 and lengths is None
    # A list has the labels as Python values; rows of several labels stay arrays.
    for row, cells in enumerate(y.tolist() if has_one_label_per_row else y):
        labels = _labels_of_row(cells, task, None if lengths is None else int(lengths[row]))
        if None in labels:
            truths.append(None)
            continue
        if known_classes:
            unknown_classes |= {*map(str, labels)} - known_classes
        truths.append(_nested(labels, task, each_token=lengths is not None))
    missing = sum(truth is None for truth in truths)
    if missing:
        notify(f"{file}: {missing:,} of {len(y):,} rows have no label, so the scores leave them out")
    if unknown_classes:
        names = listed(sorted(unknown_classes))
        notify(f"{file}: classes that the readout does not know count as wrong: {names}")
    return truths


def _labels_of_row(cells: Any, task: Task, length: int | None) -> list[Any]:
    """Return all labels of a row in one list, with None for each that is missing.

    ``cells`` is what the file has for the row: a single label, an array or a list of labels, or None. ``length`` is the
    number of its real tokens if each token has a label, else None.
    """
    if length is not None and cells is not None:
        cells = cells[:length]  # without the labels of padding
    has_several = isinstance(cells, np.ndarray | list)
    values = np.ravel(cells).tolist() if has_several else [cells]
    return [_as_label(value, is_class=task.classes > 0) for value in values]


def _nested(labels: list[Any], task: Task, *, each_token: bool) -> Any:
    """Return the labels of a row as `Prediction.label` has them: nested by tokens and outputs, if there are several.

    ``labels`` is a flat list, the outputs of the first token before those of the second. With ``each_token`` the tokens
    are a list even in a row of one token.
    """
    # A list of outputs for each token, or the output itself if a token has one.
    tokens = without_single_outputs(np.array(labels, object).reshape(-1, task.outputs).tolist())
    return tokens if each_token or len(tokens) != 1 else tokens[0]


def _as_label(value: Any, *, is_class: bool) -> Any:
    """Return a label in the type of the class names, or as a finite number; None if it is missing or not a number."""
    if is_class:
        if isinstance(value, bytes):  # HDF5 stores texts as bytes
            return value.decode()
        if not isinstance(value, float):
            return value
        if math.isnan(value):  # an empty cell of a table
            return None
        # Class 1 is read as 1.0 if another cell is empty.
        return int(value) if value.is_integer() else value
    try:
        return float(value) if math.isfinite(float(value)) else None
    except (TypeError, ValueError):  # a text, or None
        return None
