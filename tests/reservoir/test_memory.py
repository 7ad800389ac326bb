"""What a batch frees, the next one gets without asking the system."""

import resource
import sys

import pytest
import torch

from reservoir.features import keep_freed_memory

PAGE = 4096


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_kept_for_the_next_batch():
    def faults(size=2**26):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.zeros(size, dtype=torch.uint8).add_(1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, size // PAGE

    keep_freed_memory()
    faults()
    again, pages = faults()
    assert again < pages / 8
