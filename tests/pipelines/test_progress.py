"""Where no terminal shows a bar, lines say how far something is: by an injected clock."""

import pytest
from reservoir_pipelines import output
from reservoir_pipelines.output import Lines, meter, silenced, time_text, training_meter


@pytest.fixture
def pass_time(monkeypatch):
    """Return a function that lets time pass, which otherwise stands still."""
    now = [1000.0]
    monkeypatch.setattr(output, "clock", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_a_line_comes_after_thirty_seconds_and_a_tenth_whichever_is_later(pass_time, capsys):
    with meter("extract", 1000) as bar:
        for _ in range(10):  # a second each: too soon
            pass_time(1)
            bar.advance(20)
        pass_time(25)  # 35 s and 21%
        bar.advance(10, written=2 * 10**9)
        pass_time(40)  # 40 s later, but 1% more
        bar.advance(10)
        pass_time(35)  # 75 s later, 19% more: 400 rows in 110 s, so 600 take 165 s
        bar.advance(180)
        pass_time(100)
        bar.advance(600)  # the end, which the result tells
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.strip() for line in err.splitlines()] == [
        "extract: 210 of 1,000 (21%), 6 rows/s  2.00 GB, 2 min left",
        "extract: 400 of 1,000 (40%), 3.64 rows/s, 3 min left",
    ]


def test_no_silence_is_longer_than_ten_minutes(pass_time, capsys):
    lines = Lines("extract", 10**9, "rows")
    for step in range(1, 31):
        pass_time(60)
        lines.show(step * 1000)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_training_says_its_means_and_counts_from_where_it_went_on(pass_time, capsys):
    with training_meter(100, 50, "loss {0:.2f}", each=4096, unit="tokens") as show:
        pass_time(40)
        show(70, 1.5)
    assert capsys.readouterr().err == "train: 70 of 100 (70%), 2.05e+03 tokens/s  loss 1.50, 60 s left\n"


def test_nothing_is_said_where_somebody_else_shows_how_it_goes(pass_time, capsys):
    with silenced(), meter("extract", 10) as bar:
        pass_time(100)
        bar.advance(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (89, "89 s"), (300, "5 min"), (3600 * 5.5, "5 h 30 min"), (864000, "10.0 days")]
)
def test_times_are_short(seconds, text):
    assert time_text(seconds) == text
