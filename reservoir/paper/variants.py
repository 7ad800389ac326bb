"""The variant ``--protocol paper``: data, random weights and training as in the code of Lu et al. (2021).

It repeats that code with its mistakes, which the default, ``ours``, corrects. ``docs/reproduce.md`` lists the
differences. Every named task accepts it; the data of the tasks that are not in ``sources`` do not depend on it.
"""

from typing import Any

from reservoir.paper.homology import KeyedHomology, PaperHomology
from reservoir.paper.listops import PaperListOps
from reservoir.paper.mnist import PaperMnist
from reservoir.tasks.variants import Variant, Variants


def _redraw_first_states(model: Any) -> None:
    from reservoir.paper.lstm import redraw_first_states  # imports torch, which the tasks do not need

    redraw_first_states(model)


VARIANTS = Variants(
    parameter="protocol",
    default="ours",
    by_value={
        "ours": Variant(sources={"homology": KeyedHomology}),
        "paper": Variant(
            sources={"homology": PaperHomology, "listops": PaperListOps, "mnist": PaperMnist},
            # Their library, transformers 4.1.1, did not divide any standard deviation by the depth.
            random_inits={"gpt2": "random-flat"},
            output_init="linear",
            drops_in_frozen_layers=True,
            before_training=_redraw_first_states,
        ),
    },
)
