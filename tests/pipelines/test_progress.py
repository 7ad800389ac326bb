"""Where stderr is no terminal, progress is shown as lines."""

import pytest
from reservoir_pipelines import output
from reservoir_pipelines.output import meter, training_meter


@pytest.fixture
def pass_time(monkeypatch):
    """Return a function that lets time pass, which otherwise stands still."""
    now = [1000.0]
    monkeypatch.setattr(output, "clock", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_a_line_comes_every_thirty_seconds(pass_time, capsys):
    with meter("extract", 1000) as bar:
        for _ in range(10):  # a second each: too soon
            pass_time(1)
            bar.advance(20)
        pass_time(25)  # 35 s and 21%
        bar.advance(10, written=2 * 10**9)
        pass_time(20)
        bar.advance(100)
        pass_time(20)  # 40 s later: 400 rows in 75 s, so 600 take 112 s
        bar.advance(90)
        pass_time(100)
        bar.advance(600)  # the end, which the result tells
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.strip() for line in err.splitlines()] == [
        "extract: 210 of 1,000 (21%), 6 rows/s  2.00 GB, 2 min left",
        "extract: 400 of 1,000 (40%), 5.33 rows/s, 2 min left",
    ]


def test_training_shows_running_means_and_counts_from_the_checkpoint(pass_time, capsys):
    with training_meter(100, 50, "loss {0:.2f}", each=4096, unit="tokens") as show:
        pass_time(40)
        show(70, 1.5)
    assert capsys.readouterr().err == "train: 70 of 100 (70%), 2.05e+03 tokens/s  loss 1.50, 60 s left\n"
