"""The plan of an extraction and of the fit that follows: every default, decided once, with its reason.

`resolve` (in `resolved.py`) lists the decisions, each a function ``choose_...``:

| decision | file |
|---|---|
| the kind of data, decided once, and how the model sees the task | `basis.py` |
| the backbone: random kernels or patches, and how many, or a transformer | `model.py` |
| the model and its windows, or its own input | `model.py` |
| layers and poolings, and fewer of them for more rows | `columns.py` |
| device and precision, rows of a block and of a batch | `precision.py` |
| the columns that a fit tries, and its folds | `candidates.py` |

How long `train` and `pretrain` train by default, and with which learning rates, stands below. `load_job` of the stage
``train`` takes ``--learning-rate`` if it is given, else `train_rate`.

The defaults were tuned on six sets of series (``benchmarks/series.py``) and on generated symbols
(``benchmarks/defaults.py``). Named tasks follow the paper.
"""

TRAIN_STEPS = 5000
TRAIN_RATE = 1e-3  # of Adam, the same in all steps
# Lu et al. (2021) train LSTMs and the task homology with smaller rates than everything else. If both have one, that of
# the family is taken.
RATE_OF_FAMILY = {"lstm": 3e-4}
RATE_OF_TASK = {"homology": 1e-4}

PRETRAIN_STEPS = 2000
PRETRAIN_RATE = 2e-3  # the largest rate of the schedule of a language model
# Of Adam, if bit-memory is pretrained: after 300 steps of 34 rows, ``mini`` recalls over 99.9% of the bits.
BIT_MEMORY_RATE = 5e-4


def train_rate(family: str, task: str) -> float:
    """Return the learning rate of `train`, that of Lu et al. (2021), for a family of backbones and a task."""
    return RATE_OF_FAMILY.get(family) or RATE_OF_TASK.get(task) or TRAIN_RATE
