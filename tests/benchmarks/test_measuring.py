"""How the benchmarks write what they measured."""

import json
from pathlib import Path

from benchmarks.measuring import write_json


def test_a_report_has_a_record_a_line(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    rows = [{"case": "gen", "ms": [1.5, 2]}, {"case": 'a "peer"\n', "ms": []}]
    write_json(file, {"machine": {"cpu": "x", "shapes": [1, 8]}, "rounds": 3, "rows": rows, "none": []})
    assert json.loads(file.read_text()) == {
        "machine": {"cpu": "x", "shapes": [1, 8]},
        "rounds": 3,
        "rows": rows,
        "none": [],
    }
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


def test_a_list_of_records_has_one_a_line_too(tmp_path: Path) -> None:
    write_json(tmp_path / "rows.json", [{"a": 1}, {"a": {"b": 2}}])
    assert (tmp_path / "rows.json").read_text().splitlines() == ["[", ' {"a": 1},', " {", '  "a": {"b": 2}', " }", "]"]
