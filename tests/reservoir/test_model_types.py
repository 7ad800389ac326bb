"""Every model type of transformers runs with a tiny model, or is listed with the reason why it does not."""

import re
import sys
from pathlib import Path

import pytest
import transformers

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from model_types import results_of

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "RESULTS.md"
GOAL = 350  # model types that run


def listed() -> set[str]:
    """Return the model types that RESULTS.md lists with a reason why they do not run."""
    text = RESULTS.read_text().partition("| reason | model types |")[2]
    rows = re.findall(r"^\| .* \| ([\w ,.-]+) \|$", text.partition("<!-- end -->")[0], re.MULTILINE)
    return {kind.strip() for row in rows for kind in row.split(",")}


def test_types_that_do_not_run_are_listed():
    assert {"albert", "swin", "got_ocr2_vision"} <= listed()
    assert not listed() & {"llama", "modernbert", "dinov3_vit"}
    assert dict(results_of(["llama", "swin"])) == {
        "llama": "own family",
        "swin": "refused: backbone 'folder': its configuration sets attention heads to [3, 6, 12, 24]; give at least 1",
    }


@pytest.mark.slow
def test_every_model_type_runs_or_is_listed():
    results = dict(results_of(sorted(transformers.CONFIG_MAPPING.keys())))
    others = {kind for kind, text in results.items() if not text.startswith(("runs", "own family"))}
    assert others <= listed()
    assert len(results) - len(others) >= GOAL
