"""Rows that kill workers get an error, and no other row loses its text, on any device; those that kill workers cost no
text."""

from pathlib import Path
from typing import Any

import pytest

import gen
from gen.loop.decoder import Decoder
from gen.loop.memory import TooLong
from tests.offline.helpers import WorkerHere, read_parts, write_rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [{"prompt": f"One {number}", "id": f"row {number}", "n": number} for number in range(11)]
    return write_rows(tmp_path / "a.jsonl", rows)


def run(source: Path, name: str, **more: Any) -> gen.BatchReport:
    arguments: Any = {"batch_size": 2, "part_rows": 8, "seed": 4, "max_new_tokens": 3, "devices": ["cpu"], **more}
    return gen.run_batch(source, source.parent / name, model="demo", progress=False, **arguments)


def test_rows_that_kill_are_found_and_all_others_have_the_texts_of_a_quiet_run(
    source: Path, workers_here: type[WorkerHere], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = read_parts(run(source, "quiet").parts)
    workers_here.deadly = frozenset({"row 0", "row 5", "row 9"})
    report = run(source, "loud")
    assert (report.rows, report.failed) == (11, 3)
    results = read_parts(report.parts)
    killed = "a worker was killed by SIGKILL while it ran this row alone"
    for number, (result, quiet) in enumerate(zip(results, expected, strict=True)):
        if number in (0, 5, 9):
            assert (result["id"], result["error"]) == (f"row {number}", killed)
            assert "text" not in result
        else:
            assert result == quiet
    told = capsys.readouterr().err
    assert "gen: a worker of cpu was killed by SIGKILL, in part 0" in told
    assert "gen: a worker of cpu was killed by SIGKILL, in row 5 of part 0" in told
    workers_here.deadly = frozenset({"row 0"})  # the other rows killed by chance, or for a cause that is mended now
    again = run(source, "loud", retry_failed=True)
    assert again.failed == 1


@pytest.mark.usefixtures("workers_here", "two_gpus")
def test_another_device_and_several_give_every_row_the_same_text(source: Path) -> None:
    alone, *others = (
        [part.read_bytes() for part in run(source, str(number), devices=devices, part_rows=4).parts]
        for number, devices in enumerate(["cuda:0", "cuda:1", ["cuda:0", "cuda:1"]])
    )
    assert others == [alone, alone] and len(alone) == 3


def test_a_device_that_always_dies_beside_a_sound_one_costs_no_row_its_text(
    source: Path, workers_here: type[WorkerHere], capsys: pytest.CaptureFixture[str], two_gpus: None
) -> None:
    expected = [part.read_bytes() for part in run(source, "quiet", devices="cuda:0").parts]
    capsys.readouterr()
    workers_here.dead_devices = frozenset({"cuda:1"})
    report = run(source, "loud", devices=["cuda:0", "cuda:1"])
    assert [part.read_bytes() for part in report.parts] == expected
    workers_here.dead_devices = frozenset({"cuda:0", "cuda:1"})
    with pytest.raises(gen.GenError, match="no device is left of cuda:0, cuda:1"):
        run(source, "dead", devices=["cuda:0", "cuda:1"])
    assert not list((source.parent / "dead").glob("part-*"))
    assert "cuda:1 is left out: 3 workers died there" in capsys.readouterr().err


def test_an_error_that_is_no_rows_own_is_a_death_and_memory_that_is_out_ends_the_job(
    source: Path, workers_here: type[WorkerHere], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Decoder.step

    def failing(rows: Decoder, count: int, *shape: Any, **how: Any) -> None:
        if count > 1:
            raise error
        step(rows, count, *shape, **how)

    monkeypatch.setattr(Decoder, "step", failing)
    error: Exception = RuntimeError("CUDA error: an illegal memory access was encountered")
    report = run(source, "broken", part_rows=2)  # each row runs alone
    assert (report.rows, report.failed) == (11, 0)
    assert "a worker of cpu failed with RuntimeError: CUDA error: an illegal memory" in capsys.readouterr().err
    error = TooLong(2, 99)
    with pytest.raises(gen.GenError, match=r"batch_size=2 is too much for the memory of cpu .* with batch_size=1\."):
        run(source, "full")
