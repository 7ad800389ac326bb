"""Tasks, frozen backbones, the model and linear readouts. This package writes no files."""

import os

from reservoir.errors import InputError

# OpenMP threads that spin while they wait take processor time from each other: while another program used one of two
# cores, an extraction took four times the processor time. The setting works only before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["InputError"]
