"""Each private function of torch that the package uses computes what public functions compute."""

import getpass
import re
import tempfile
from pathlib import Path

import pytest
import torch

from reservoir import private_torch
from reservoir.backbones import gpt2

PACKAGES = [Path(__file__).resolve().parents[2] / name for name in ("reservoir", "cache", "pipelines")]


@pytest.mark.skipif(not gpt2.has_joined_kernel(), reason="this processor does not have the kernel")
@torch.inference_mode()
def test_gelu_of_linear_is_gelu_of_linear():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in [(5, 32), (48, 32), (48,)])
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    expected = torch.nn.functional.gelu(expected, approximate="tanh")
    result = private_torch.gelu_of_linear(x, weight, bias).double()
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=0.02)


def test_compiled_code_is_kept_in_a_folder_of_the_user_below_that_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = private_torch.compiled_code_folder()
    assert folder.parent == tmp_path and getpass.getuser() in folder.name


def test_private_names_of_torch_stand_in_one_file():
    private = re.compile(r"torch(\.\w+)*\._[a-z]|torch\.ops\.\w+\._|torch\._C\b")
    files = [path for folder in PACKAGES for path in folder.rglob("*.py") if private.search(path.read_text())]
    assert [path.name for path in files] == ["private_torch.py"]
