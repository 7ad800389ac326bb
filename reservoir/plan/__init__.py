"""The plan of an extraction and of the fit that follows: every default, decided once, with its reason.

`resolve` decides in this order, each step in a file of its own:

| decision | file |
|---|---|
| the kind of data | `kinds.py` |
| the model and its windows, or its own tokenizer | `windows.py`, `native.py` |
| how the model sees the task | `model_view.py` |
| layers and poolings within a budget | `columns.py`, `budget.py` |
| device and precision | `precision.py` |
| rows of a block and of a batch | `blocks.py` |
| the columns that a fit tries, and its folds | `candidates.py` |

The defaults were tuned on six sets of series (``benchmarks/series.py``) and on generated symbols
(``benchmarks/symbols.py``). Named tasks follow the paper.
"""

from reservoir.plan.blocks import BATCH_TOKENS, BLOCK_ROWS, rows_at_a_time
from reservoir.plan.candidates import choose_folds, default_columns, default_folds, readout_candidates
from reservoir.plan.columns import split_names
from reservoir.plan.kinds import Kind, kind_of
from reservoir.plan.native import is_native
from reservoir.plan.resolved import Plan, resolve
from reservoir.plan.windows import resolve_model

__all__ = [
    "BATCH_TOKENS",
    "BLOCK_ROWS",
    "Kind",
    "Plan",
    "choose_folds",
    "default_columns",
    "default_folds",
    "is_native",
    "kind_of",
    "readout_candidates",
    "resolve",
    "resolve_model",
    "rows_at_a_time",
    "split_names",
]
