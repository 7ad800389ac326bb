"""The plan of an extraction and of the fit that follows: every default, decided once, with its reason.

`resolve` (in `resolved.py`) lists the decisions, each a function ``choose_...``:

| decision | file |
|---|---|
| the kind of data, decided once, and how the model sees the task | `basis.py` |
| the backbone: random kernels, and how many, or a transformer | `backbone.py` |
| the model and its windows, or its own input | `windows.py` |
| layers and poolings | `columns.py` |
| fewer of them for more rows | `budget.py` |
| device and precision, rows of a block and of a batch | `precision.py` |
| the columns that a fit tries, and its folds | `candidates.py` |

The steps and learning rates of `train` and `pretrain` are in `rates.py`.

The defaults were tuned on six sets of series (``benchmarks/series.py``) and on generated symbols
(``benchmarks/defaults.py``). Named tasks follow the paper.
"""
