"""Layers and poolings: each layer under each pooling is a column of the cache.

The defaults of a kind of data are the first that fit a budget (see `reservoir.plan.budget`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reservoir.column import Column, check_layers, column_shapes, layer_names
from reservoir.errors import InputError
from reservoir.options import ExtractOptions
from reservoir.plan.basis import DataView, Kind, ModelView, is_given
from reservoir.plan.budget import (
    KERNEL_POOLINGS,
    MAX_BYTES,
    MAX_KERNEL_BYTES,
    MAX_KERNEL_ROWS,
    PICTURE_POOLINGS,
    SEGMENTS,
    SYMBOL_POOLINGS,
    VALUE_POOLINGS,
    Budget,
    ColumnSet,
    Names,
    column_sets,
)
from reservoir.pooling import MAX_TOKEN_FEATURES, check_poolings, find_pooling, widths_within
from reservoir.tasks.task import Task, Tokens, holds_samples
from reservoir.tasks.texts import are_words

if TYPE_CHECKING:
    from reservoir.inputs.native import Reader


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of a plan."""

    layers: Names  # each of them under each of the poolings is a column
    poolings: Names
    shapes: Mapping[Column, tuple[int, int]]  # tokens and width of a row of each column
    note_on_fewer_columns: str | None  # None if fewer rows would have the same columns
    reasons: Mapping[str, str]  # of each option, unless the user gives it


def choose_columns(data: DataView, options: ExtractOptions, view: ModelView) -> ColumnChoice:
    """Return the layers and poolings that are stored for some data, as the model sees them in ``view``."""
    task, kind = data.task, data.kind
    width, depth = view.width, view.depth
    default_layers_text, why_layers = default_layers(kind, depth, native=view.native)
    default_pool, why_pool = _default_poolings(task, kind, view)
    reasons = {"layers": why_layers, "pool": why_pool}
    # Names that the user gives win over the defaults.
    layers = split_names(default_layers_text if options.layers is None else options.layers)
    layers = layer_names(depth) if layers == ("all",) else layers
    poolings = split_names(default_pool if options.pool is None else options.pool)
    _check_columns(task, view.reader, layers, poolings)
    check_layers(layers, view.family.name, depth)
    layers_in_order = tuple(layer for layer in layer_names(depth) if layer in layers)
    columns = ColumnSet(layers_in_order, poolings)
    note_on_fewer_columns = None
    # A named task keeps the columns of the paper. Other tasks take the first columns that fit the budget.
    if kind != "named task":
        columns, reasons_of_changes, note_on_fewer_columns = _fit_budget(columns, data, options, view)
        reasons |= reasons_of_changes
    shapes = column_shapes(view.seen_task, width, columns.columns)
    return ColumnChoice(columns.layers, columns.poolings, shapes, note_on_fewer_columns, reasons)


def _fit_budget(
    default: ColumnSet, data: DataView, options: ExtractOptions, view: ModelView
) -> tuple[ColumnSet, dict[str, str], str | None]:
    """Return the first columns within the budget, the reason for each changed option, and a note, None if none changed.

    The changed options are those in which the columns differ from the ``default``.
    """
    free_layers, free_poolings = not is_given(options, "layers"), not is_given(options, "pool")
    # Series and symbols are read in windows, which usually overlap and hold each value several times, so the work is
    # limited, too. Poolings that the user named are stored, whatever their size.
    reads_windows = data.kind in ("series", "symbols") and not view.native
    budget = Budget(
        task=data.task,
        seen_task=view.seen_task,
        width=view.width,
        rows=data.all_rows,
        least_bytes=MAX_KERNEL_BYTES if default.poolings == KERNEL_POOLINGS else MAX_BYTES,
        limits_size=free_poolings,
        limits_work=reads_windows,
    )
    # The first candidate has all default columns.
    candidates = column_sets(
        data.kind,
        default,
        native=view.native,
        free_layers=free_layers,
        free_poolings=free_poolings,
        allows_tokens="tokens" in default.poolings and data.train_rows <= MAX_KERNEL_ROWS,
    )
    columns, reasons_of_changes = budget.first_that_fits(candidates)
    note = budget.note(default) if reasons_of_changes else None
    return columns, reasons_of_changes, note


def split_names(value: str | Sequence[str]) -> Names:
    """Return the names of a comma-separated list, or of a sequence, without duplicates and empty names."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def default_layers(kind: Kind, depth: int, *, native: bool = False) -> tuple[str, str]:
    """Return the default layers of a backbone with ``depth`` blocks, as `--layers` takes them, and the reason."""
    if not depth:
        return "embed", "the backbone has no blocks"
    if native or kind in ("named task", "pictures", "vectors"):
        return "all", "any layer may be best"
    if kind == "forecasts":
        return "block01", "the last step of its first block has seen the whole past"
    layers = "embed,block01,block02" if kind == "tokens" else "embed,block01"
    return layers, f"deeper layers cost more than they add for {kind}"


def _default_poolings(task: Task, kind: Kind, view: ModelView) -> tuple[str, str]:
    """Return the default poolings, as `--pool` takes them, and the reason."""
    if kind == "labels of every token":
        return _step_poolings(task, has_blocks=view.depth > 0)
    if view.reader:
        return _native_poolings(task, view.reader)
    if kind == "forecasts":
        return "last", "the newest step has seen all steps before it"
    if kind in ("series", "pictures") and not view.depth:
        return _poolings_without_blocks(kind)
    if kind == "named task" or task.readout_tokens > 1:
        return "last,mean", "the last token, as in the paper, and the mean of all"
    poolings_of_windows = {"series": VALUE_POOLINGS, "symbols": SYMBOL_POOLINGS}
    poolings = [*poolings_of_windows.get(kind, ("last", "mean")), SEGMENTS]
    # All tokens of a short sequence of symbols are few enough features.
    if isinstance(task.form, Tokens) and task.max_tokens * view.width <= MAX_TOKEN_FEATURES:
        poolings.append("tokens")
    what = "values" if kind == "series" else kind
    return ",".join(poolings), f"these show which {what} occur, and where"


def _step_poolings(task: Task, *, has_blocks: bool) -> tuple[str, str]:
    """Return the default poolings if every token has a label, and the reason."""
    if has_blocks:
        return "all", "every token has a label"
    around = widths_within(task.max_tokens)  # of windows around each token
    return f"all,around{around}", "a kernel sees few of the values on which the label of a token depends"


def _poolings_without_blocks(kind: Kind) -> tuple[str, str]:
    """Return the default poolings of random kernels or of patches of pictures, and the reason."""
    if kind == "pictures":
        return ",".join(PICTURE_POOLINGS), "these show how strongly patches occur, and where"
    why = "these show which kernels respond most, how often, for how long, and where"
    return ",".join(KERNEL_POOLINGS), why


def _native_poolings(task: Task, reader: Reader) -> tuple[str, str]:
    """Return the default poolings of a model that reads the task natively, and the reason."""
    if holds_samples(task):
        return "mean,std", "sounds"
    if task.parameters.get("chat"):
        return "last-prompt,last,mean", "the model's state before and after the answer, and the whole chat"
    poolings, why = ("cls,mean", "a class token") if reader.has_cls else ("last,mean", "no class token")
    if task.parameters.get("span"):
        return f"span,{poolings}", f"a span is marked in each text, and {why}"
    if task.alphabet and not are_words(task.alphabet) and any(reader.special):
        # The usual embedding of a protein is the mean over its residues, without special tokens.
        return f"{poolings},words", f"{why}; words is the mean over letters alone"
    return poolings, why


def _check_columns(
    task: Task, reader: Reader | None, layers: Sequence[str], poolings: Sequence[str]
) -> None:
    """Refuse unknown poolings, those that do not fit the task or the model, and a choice without columns."""
    check_poolings(poolings)
    each_token_has_a_label = task.labels_each_token or task.labels_text_tokens
    if each_token_has_a_label and not all(find_pooling(name).per_token for name in poolings):
        problem = "--pool: every token has its own label"
        raise InputError(problem, "pass --pool all or around4, or leave --pool out")
    has_class_token = reader is not None and reader.has_cls
    poolings_of_class_token = [name for name in poolings if find_pooling(name).needs_class_token]
    if poolings_of_class_token and not has_class_token:
        raise InputError(
            f"--pool {poolings_of_class_token[0]}: the sequences have no class token",
            "take first, last or mean",
        )
    for name in poolings:
        if obstacle := _mask_obstacle(reader, find_pooling(name).mask):
            raise InputError(f"--pool {name}: {obstacle}")
    if not layers or not poolings:
        raise InputError("no columns: name a layer and a pooling")


def _mask_obstacle(reader: Reader | None, mask: str) -> str:
    """Return why a model's reader cannot make the mask of this name, with what to do; empty if it can.

    ``mask`` is empty for a pooling that reads no mask.
    """
    needs_no_places = mask in ("", "words")  # of tokens in the text
    if needs_no_places:
        return ""
    from reservoir.inputs.native import TextReader  # imports torch, which fit does not need

    if not isinstance(reader, TextReader):
        return "only models that read texts by their own tokenizer have this pooling; take last or mean"
    return reader.mask_obstacle(mask)
