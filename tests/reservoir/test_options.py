"""Which settings of a frozen map are refused before anything is built."""

import pytest

from reservoir import InputError
from reservoir.options import ReservoirOptions


@pytest.mark.parametrize("seed", [-1, 2**63, 10**26])
def test_seeds_that_torchs_generators_do_not_take_are_refused(seed):
    with pytest.raises(InputError, match=rf"--seed {seed}: give a whole number from 0 to 9223372036854775807$"):
        ReservoirOptions(seed=seed)
    assert ReservoirOptions(seed=2**63 - 1).seed == 2**63 - 1
