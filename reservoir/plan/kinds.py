"""The kind of a task's data, on which its defaults depend."""

from typing import Literal

from reservoir.reservoir import MAX_SYMBOLS
from reservoir.tasks import TASKS
from reservoir.tasks.task import Task, Tokens

Kind = Literal["named task", "labels of every token", "series", "symbols", "tokens", "vectors"]

SERIES_KERNEL = 9  # values of a window of a series, as in MiniRocket
SYMBOL_KERNEL = 5  # symbols of each window: the length of a motif


def kind_of(task: Task) -> Kind:
    """Return the kind of data of a task; series and symbols are long enough for windows."""
    if task.each:
        return "labels of every token"
    if task.name in TASKS:
        return "named task"
    one_label = task.readout_tokens == 1
    if isinstance(task.form, Tokens):
        few_symbols = task.form.vocabulary <= MAX_SYMBOLS
        return "symbols" if one_label and few_symbols and task.max_tokens >= SYMBOL_KERNEL else "tokens"
    is_series = one_label and not task.pictures and task.max_tokens >= SERIES_KERNEL
    return "series" if is_series else "vectors"
