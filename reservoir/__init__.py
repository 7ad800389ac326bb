"""Tasks, frozen backbones, the model and linear readouts. This package writes no files."""

import os

from reservoir.errors import InputError

# Threads of OpenMP that spin while they wait take the processor from each other: while another program used one of two
# cores, an extraction took four times the processor time. This has an effect if torch has not been imported yet.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["InputError"]
