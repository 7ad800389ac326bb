"""The campaign of faults, a few rounds of it: ``make faults`` runs the whole."""

from tests.processes import Child

CAMPAIGN = "import sys; from tests.faults.__main__ import main; sys.exit(main())"


def test_nothing_is_lost(tmp_path):
    table = tmp_path / "table.md"
    code, out, err = Child(CAMPAIGN, "--scale", "0.02", "--parts", "bits,inputs", "--out", table).ended()
    assert code == 0, err + out
    assert table.read_text().splitlines()[-1].endswith("| **0** |")
