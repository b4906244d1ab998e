"""What a job tells of its progress where stderr is no terminal."""

from types import SimpleNamespace

import pytest

from gen.offline.executors import progress


def test_a_pipe_gets_a_line_every_ten_seconds_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with progress.Progress(10, 2, 1, shown=True) as shown:
        for clock.now in (5.0, 9.9, 10.0, 12.0):
            shown.look()
        shown.add("cuda:0", 3, 1, 90)
        for clock.now in (15.0, 20.0, 29.9, 30.0):
            shown.look()
        clock.now = 31.0
        shown.add("", 1, 0, 0)  # rows that were run one by one
    assert capsys.readouterr().err.splitlines() == [
        "gen: 2 of 10 rows, 1 failed",
        "gen: 5 of 10 rows, cuda:0 4 tokens/s, 2 failed",
        "gen: 5 of 10 rows, cuda:0 3 tokens/s, 2 failed",
        "gen: 6 of 10 rows, cuda:0 3 tokens/s, 2 failed",
    ]
    with progress.Progress(10, 0, 0, shown=False) as hidden:
        clock.now = 99.0
        hidden.look()
    assert capsys.readouterr().err == ""
