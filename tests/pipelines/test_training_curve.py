"""The picture of a training: what is marked, and how its axes are labelled."""

import math

import matplotlib.figure
import pytest
from matplotlib.colors import to_hex
from reservoir_pipelines.plots import GRID, INK, plot_training


@pytest.fixture
def panels(tmp_path, monkeypatch):
    """Draw a history; return the panels of the picture, drawn."""
    made = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure, *arguments, **settings):
        made.append(figure)
        figure.draw_without_rendering()
        save(figure, *arguments, **settings)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)

    def drawing(history, best_step, **settings):
        path = tmp_path / "curve.png"
        plot_training(path, history, best_step, "a training", **settings)
        assert path.read_bytes().startswith(b"\x89PNG")
        return made[-1].axes

    return drawing


def history(steps, first, last, every, accuracies=True):
    """Losses that fall from first to last, with validations."""
    lines = []
    for step in range(1, steps + 1):
        loss = first * (last / first) ** (step / steps)
        lines.append({"step": step, "loss": loss} | ({"accuracy": 0.5} if accuracies else {}))
        if step % every == 0:
            lines.append({"step": step, "valid_loss": loss, "valid_score": 0.4})
    return lines


def shown(axis):
    """Return the labels of the ticks in view."""
    low, high = sorted(axis.get_view_interval())
    return [t.label1.get_text().replace("−", "-") for t in axis.get_major_ticks() if low <= t.get_loc() <= high]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_chosen_step_is_seen_and_named(panels):
    for axes in panels(history(100, 2.3, 0.2, 50), 50):
        assert legend(axes) == ["train", "valid", "best"]
        mark = next(line for line in axes.lines if line.get_label() == "best")
        assert list(mark.get_xdata()) == [50, 50]
        assert to_hex(mark.get_color()) == INK
        assert mark.get_color() != GRID
    assert "best" not in legend(panels(history(3, 2.3, 2.2, 5), None)[0])


@pytest.mark.parametrize(("first", "last"), [(2.3, 0.45), (0.72, 0.69), (2, 1e-5), (1, 1)])
def test_losses_have_three_plain_labels_or_more(panels, first, last):
    loss, _ = panels(history(100, first, last, 50), 100)
    labels = shown(loss.yaxis)
    assert loss.get_yscale() == "log"
    assert 3 <= len(labels) <= 10, labels
    assert len(set(labels)) == len(labels)
    assert all(math.isfinite(float(label)) for label in labels), labels
    assert shown(panels(history(100, 2.3, 0.45, 50), 100)[0].yaxis) == ["0.5", "1", "2"]


def test_a_training_that_diverged_at_once_has_a_picture(panels):
    for lines in ([], [{"step": 1, "loss": 3.0, "accuracy": 0.1}, {"step": 2, "loss": None, "accuracy": 0.1}]):
        assert len(panels(lines, None)) == 2
    assert panels([{"step": 1, "loss": 0.0, "accuracy": 1.0}], None)[0].get_yscale() == "linear"
