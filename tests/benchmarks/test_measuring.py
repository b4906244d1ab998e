"""How the benchmarks read what is asked of them, compare random cases, and write what they measured."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.measuring import check_cases, described, interleave, publish, read_arguments, write_json


def test_options_are_of_the_kind_of_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "measure --rounds 3 --batch 1 8 --model demo --fast --work a/b.jsonl --json c/d.json small"
    monkeypatch.setattr("sys.argv", line.split())
    given = read_arguments(
        __doc__,
        size_={"choices": ["small", "large"]},
        rounds=(7, "how often"),
        batch=[32],
        model=str,
        dtype=str,
        fast=False,
        seconds=2.5,
        work=Path,
    )
    files = {"work": Path("a/b.jsonl"), "json": Path("c/d.json")}
    asked = {"size": "small", "rounds": 3, "batch": [1, 8], "model": "demo", "dtype": None, "fast": True}
    assert vars(given) == asked | {"seconds": 2.5} | files
    assert described(given) == asked | {"seconds": 2.5, "work": "b.jsonl"}


def test_sides_take_turns_and_rounds_that_warm_up_do_not_count() -> None:
    ran, clock = list[str](), iter(range(100))
    cases = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    assert interleave(cases, 2, clock=lambda: next(clock), warm=1) == {"a": [1, 1], "b": [1, 1]}
    assert ran == ["a", "b"] * 3


def test_a_run_of_cases_goes_on_behind_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = list[int]()

    def check(case: int) -> tuple[dict[str, int], list[str]]:
        checked.append(case)
        if case == 6:
            raise ValueError("an error is a difference too")
        return {"texts": case}, ["wrong"] * (case == 4)

    work = tmp_path / "work.jsonl"
    first = check_cases(range(3, 5), check, work)
    assert first == {"cases": "3 to 4", "texts": 7, "different": 1}
    assert "case 4: wrong" in capsys.readouterr().out
    assert check_cases(range(3, 6), check, work) == {"cases": "3 to 5", "texts": 12, "different": 1}
    assert checked == [3, 4, 5]
    assert check_cases(range(6, 7), check) == {"cases": "6 to 6", "different": 1}


def test_a_report_is_printed_with_its_rows_as_a_table_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"case": "a", "ms": 1}, {"case": "b", "ms": 20}]
    publish(Namespace(json=tmp_path / "report.json"), rounds=3, rows=rows)
    printed = capsys.readouterr().out
    assert "| case | ms |\n" in printed and "| b    | 20 |" in printed and '"rounds": 3' in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert (list(report), report["rows"]) == (["machine", "rounds", "rows"], rows)


def test_a_report_has_a_record_a_line(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    rows = [{"case": "gen", "ms": [1.5, 2]}, {"case": 'a "peer"\n', "ms": []}]
    report = {"machine": {"cpu": "x", "shapes": [1, 8]}, "rounds": 3, "rows": rows, "none": []}
    write_json(file, report)
    assert json.loads(file.read_text()) == report
    assert file.read_text().splitlines() == [
        "{",
        ' "machine": {"cpu": "x", "shapes": [1, 8]},',
        ' "rounds": 3,',
        ' "rows": [',
        '  {"case": "gen", "ms": [1.5, 2]},',
        r'  {"case": "a \"peer\"\n", "ms": []}',
        " ],",
        ' "none": []',
        "}",
    ]
