"""Rows are the same in every input format, and if reading begins at any place."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import gen
from gen.offline.inputs.opening import check_unchanged, open_inputs, records_of
from gen.offline.inputs.records import Records, read_line
from gen.offline.inputs.rows import Row, check_template, read_row
from gen.offline.manifest import Scan, scan, shards_of
from tests.offline.helpers import write_rows

ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "note": "plain"},
    {"prompt": 'two\nlines, and "quotes"', "note": "ünï 漢字 🙂"},
    {"prompt": " three ", "note": ""},
    {"prompt": "four", "note": "a,b\r\nc"},
    {"prompt": "five" * 50_000, "note": "longer than csv takes by itself"},
]


def as_csv(rows: list[dict[str, Any]]) -> str:
    quoted = [[str(value).replace('"', '""') for value in row.values()] for row in rows]
    return "".join('"' + '","'.join(values) + '"\r\n' for values in [list(rows[0]), *quoted])


def written(folder: Path, form: str) -> Path:
    path = folder / f"rows.{form}"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if form.startswith("jsonl"):
        data = b"\xef\xbb\xbf" + lines.replace(b"\n", b"\n\n  \n", 1)  # Windows' byte order mark, and blank lines
    elif form.startswith("csv"):
        data = b"\xef\xbb\xbf" + as_csv(ROWS).encode()
    else:
        size = len(ROWS) if "large" in form else 2
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=size)
        return path
    path.write_bytes(gzip.compress(data) if form.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", "jsonl.gz", "csv.gz", "parquet", "large.parquet"])
def test_every_form_gives_the_rows_from_any_place_on(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen.offline.inputs.opening.LARGEST_GROUP", 4)
    path = written(tmp_path, form)
    [opened] = open_inputs([str(path)], tmp_path / "copies")
    copied = form.endswith(".gz") or "large" in form
    assert (Path(opened["path"]) == path) != copied
    assert opened["size"] == path.stat().st_size
    found = list(records_of(opened).read())
    assert [(record, problem) for _, record, problem in found] == [(row, "") for row in ROWS]
    for number, (place, _, _) in enumerate(found):
        assert [record for _, record, _ in records_of(opened).read(place)] == ROWS[number:]
    check_unchanged([opened], [str(path)])


def test_stdin_is_copied_once_and_its_rows_are_named_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "a"}\n{"prompt": "b"}')))
    [opened] = open_inputs(["-"], tmp_path)
    assert scan([opened], None).longest == Row(id="stdin:1", prompt="a")
    monkeypatch.setattr(sys, "stdin", None)  # the job goes on from the copy of stdin
    check_unchanged([opened], ["-"])
    with pytest.raises(gen.ArgumentError, match="stdin is closed"):
        open_inputs(["-"], tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b'prompt\n"open', "is no CSV in UTF-8: unexpected end of data"),
        ("a.csv", b"prompt\n\xff\n", "is no CSV in UTF-8"),
        ("a.csv", b"prompt,prompt\na,b\n", "two columns of .* have one name"),
        ("a.jsonl.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("a.parquet", b"no parquet", "is no parquet file"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(gen.ArgumentError, match=message):
        scan(open_inputs([str(tmp_path / name)], tmp_path / "copies"), None)


def test_records_that_are_no_rows_are_rows_with_an_error() -> None:
    records: list[Any] = [({}, "the line is no JSON"), ({"id": "x"}, ""), ({"id": "y", "prompt": "p", "seed": "s"}, "")]
    errors = [read_row(record, "d", None, problem) for record, problem in records]
    assert [row.id for row in errors] == ["d", "x", "y"]
    assert all(row.error for row in errors)


BROKEN: list[tuple[bytes, str | None, dict[str, Any], str]] = [
    (b'{"id": "a", "prompt": "p", "x": NaN, "y": 1}', "a", {"x": None, "y": 1}, "has no NaN; write null"),
    (b'{"id": "a", "prompt": "p", "x": [{"y": -Infinity}]}', "a", {"x": [{"y": None}]}, "has no -Infinity"),
    (b'{"id": Infinity, "prompt": "p"}', None, {}, "has no Infinity"),
    (b'{"id": "\\ud800", "prompt": "p", "x": 1}', None, {"x": 1}, "'id' has a lone surrogate"),
    (b'{"id": "a", "prompt": "p", "x": "\\uDC00", "y": 2}', "a", {"x": None, "y": 2}, "'x' has a lone surrogate"),
    (b'{"id": "a", "prompt": "p", "x": {"\\uDbFF": 1}}', "a", {"x": None}, "'x' has a lone surrogate"),
    (b'{"id": "a", "prompt": "p", "\\ud800": 1}', "a", {}, "has a lone surrogate"),
    (b'{"id": "a", "prompt": "p\\ud800"}', "a", {}, "'prompt' has a lone surrogate"),
    (b'{"id": "a", "messages": [{"content": "\\ud800"}]}', "a", {}, "'messages' has a lone surrogate"),
    (b'{"id": "a", "prompt": "\xed\xa0\x80"}', None, {}, "no JSON in UTF-8"),
    (b'{"id": "a", "prompt": "p", "x": ' + b"1" * 5000 + b"}", None, {}, "no JSON in UTF-8"),
    (b'{"custom_id": "\\ud800", "body": {"messages": []}}', None, {}, "'custom_id' has a lone surrogate"),
    (b'{"custom_id": "a", "body": {"messages": [NaN]}}', "a", {}, "has no NaN"),
    (b"[" * 100_000, None, {}, "no JSON in UTF-8"),
    (b"7", None, {}, "no JSON object"),
]


@pytest.mark.parametrize(("line", "key", "carried", "message"), BROKEN)
def test_what_is_no_json_or_no_text_is_an_error_of_its_row_which_keeps_its_id(
    line: bytes, key: str | None, carried: dict[str, Any], message: str
) -> None:
    record, problem = read_line(line)
    row = read_row(record, "d", None, problem)
    assert message in row.error
    assert (row.id, row.carried) == (key or "d", carried)
    assert (row.body is not None) == (b"custom_id" in line)
    json.dumps([row.id, row.carried], ensure_ascii=False, allow_nan=False).encode()


def test_pairs_of_surrogates_and_the_smallest_and_largest_numbers_are_read() -> None:
    line = b'{"id": "\\ud83d\\ude42", "prompt": "p", "x": "\\\\ud800", "y": [1e308, -5e-324, 1e-999]}'
    record, problem = read_line(line)
    assert (record, problem) == (json.loads(line), "")
    assert read_row(record, "d").id == "🙂"


def test_a_row_of_a_csv_with_too_few_or_too_many_columns_is_a_row_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,seed,id,max_new_tokens\na,,,\nb\nc,7,own,9\nd,1,short\ne,2,long,3,4\n")
    records = Records(name="a.csv", path=str(tmp_path / "a.csv"), kind="csv").read()
    first, second, third, short, long = (read_row(record, f"a:{at}", None, problem) for at, record, problem in records)
    assert first == Row(id="a:30", prompt="a")
    assert "the row has 1 columns, the header has 4" in second.error
    assert second.id == "a:35"
    assert third == Row(id="own", prompt="c", asked={"seed": 7, "max_new_tokens": 9})
    assert (short.id, short.carried, long.id, long.carried) == ("short", {}, "long", {})
    assert "has 3 columns" in short.error and "has 5 columns" in long.error


def test_a_template_makes_the_prompt_of_columns_which_are_carried_through() -> None:
    check_template("{{{a}}} {b}: {a}")
    row = read_row({"a": "x", "b": [1, "ü"], "id": 7}, "d", "{{{a}}} {b}: {a}")
    assert row == Row(id="7", prompt='{x} [1, "ü"]: x', carried={"a": "x", "b": [1, "ü"]})
    assert "asks for 'b', the row has a" in read_row({"a": "x"}, "d", "{a} {b}").error
    assert "asks for 'a', which has no form in JSON: [inf]" in read_row({"a": [json.loads("1e999")]}, "d", "{a}").error


def test_the_longest_row_is_known_after_one_reading(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": "bb" * 9, "n": None}, {"prompt": 7}]
    found = scan(open_inputs([str(write_rows(tmp_path / "a.jsonl", rows))], tmp_path), None)
    assert found.longest is not None
    assert found.longest.prompt == "bb" * 9


def test_shards_are_rows_side_by_side_of_one_input() -> None:
    found = Scan(places=[[0, 10, 20], [0]], longest=None)  # type: ignore[list-item]
    assert shards_of(found.places, 2) == [[0, 0, 0, 2], [0, 2, 20, 1], [1, 0, 0, 1]]
