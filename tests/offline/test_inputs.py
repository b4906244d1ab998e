"""Rows are the same in every input format; they are read once, and from then on from the job's folder."""

import datetime
import gzip
import hashlib
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import gen
from gen.offline.inputs import NAME, check_unchanged, digests, read_rows, write_rows
from gen.offline.records import read_line, read_records
from gen.offline.rows import Row, check_template, read_row
from tests.offline.helpers import write_rows as write_jsonl

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
def test_every_form_gives_the_rows_and_they_are_read_again_from_any_one_on(form: str, tmp_path: Path) -> None:
    path = written(tmp_path, form)
    assert list(read_records(str(path))) == [(row, "") for row in ROWS]
    found = write_rows([str(path)], None, tmp_path)
    expected = [
        Row(id=f"{path}:{number}", prompt=row["prompt"], carried={"note": row["note"]})
        for number, row in enumerate(ROWS, 1)
    ]
    for number, place in enumerate(found.places):
        assert read_rows(tmp_path, place, len(ROWS)) == expected[number:]
        assert read_rows(tmp_path, place, 1) == expected[number : number + 1]
    assert found.longest == expected[-1]


def test_a_row_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    rows = [
        Row(id="a", prompt=""),
        Row(id="b", prompt=[1, 2], asked={"seed": 0}, carried={"x": math.inf, "y": None, "ü": "\u2028"}),
        Row(id="c", error="wrong", body={}),
        Row(id="d", body={"messages": [], "temperature": math.inf}),
    ]
    data = [row.line() for row in rows]
    (tmp_path / NAME).write_bytes(b"".join(data))
    assert read_rows(tmp_path, 0, 9) == rows
    assert read_rows(tmp_path, len(data[0]) + len(data[1]), 1) == rows[2:3]


def test_messages_of_parquet_have_no_fields_of_other_messages(tmp_path: Path) -> None:
    """Templates ask whether a part has an image, or a message calls, by whether the field is there."""
    parts = [{"type": "text", "text": "a"}, {"type": "image", "image": "b.png"}]
    calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    given = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": calls}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": given}]), tmp_path / "a.parquet")
    [(record, _)] = read_records(str(tmp_path / "a.parquet"))
    assert record == {"messages": given}


def test_stdin_is_read_once_and_its_rows_are_named_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    data = b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "b"}'
    give(data)
    found = write_rows(["-"], None, tmp_path)
    assert found.longest == Row(id="stdin:1", prompt="a")
    known = [{"name": "-", "sha256": found.stdin}]
    assert digests(["-"]) == [{"name": "-"}] and found.stdin == hashlib.sha256(data).hexdigest()
    give(data)
    check_unchanged(known, ["-"])
    give(b"")  # the job goes on from its rows
    check_unchanged(known, ["-"])
    give(data + b"\n")
    with pytest.raises(gen.ArgumentError, match="the input '-' has changed since the job began"):
        check_unchanged(known, ["-"])
    monkeypatch.setattr(sys, "stdin", None)
    check_unchanged(known, ["-"])
    with pytest.raises(gen.ArgumentError, match="stdin is closed"):
        write_rows(["-"], None, tmp_path)


def test_what_parquet_has_and_json_lacks_is_told_or_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pairs = pyarrow.array([[("k", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    day = [datetime.date(2026, 1, 2), None]
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [b"one", None], "pairs": pairs, "day": day}), path)
    first, second = (read_row(record, "d", None, wrong) for record, wrong in read_records(str(path)))
    assert "must be a text" in first.error and "neither" in second.error
    record, _ = next(read_records(str(path)))
    assert "has no form in JSON: b'one'" in read_row(record, "d", "{prompt}").error
    assert read_row(record, "d", "{day}: {pairs}").prompt == '2026-01-02: [["k", 1]]'
    told = read_row({"messages": [{"role": "user", "content": "x", "at": day[0]}]}, "d")
    assert json.loads(told.line())["prompt"][0]["at"] == "2026-01-02"
    assert first.carried == {"pairs": [["k", 1]], "day": "2026-01-02"}
    assert second.carried == {"pairs": None, "day": None}
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["prompt", "prompt"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(gen.ArgumentError, match=r"two columns of .* have one name"):
        list(read_records(str(path)))
    far = pyarrow.array([10**9], pyarrow.date32())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"], "day": far}), path)
    with pytest.raises(gen.ArgumentError, match="that can be read: days=1000000000"):
        list(read_records(str(path)))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b'prompt\nfine\n"open', "after line 3, is no CSV in UTF-8: unexpected end of data"),
        ("a.csv", b"prompt\n\xff\n", "is no CSV in UTF-8"),
        ("a.csv", b"prompt,prompt\na,b\n", "two columns of .* have one name"),
        ("a.csv", b"", "has no rows"),
        ("a.jsonl.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "a"}\n' * 99, mtime=0)[:-9], "cannot be read: Compressed file ended"),
        ("a.csv.gz", gzip.compress(b"prompt\na\n", mtime=0)[:-20] + b"x" * 20, "cannot be read"),
        ("a.parquet", b"no parquet", "is no parquet file"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(gen.ArgumentError, match=message):
        write_rows([str(tmp_path / name)], None, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_two_rows_with_one_id_are_told_by_input_and_number(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.csv")]
    write_jsonl(Path(names[0]), [{"prompt": "x"}, {"prompt": "y", "id": 7}])
    Path(names[1]).write_text("id,prompt\n8,x\n7,y\n")
    with pytest.raises(gen.ArgumentError, match=r"two rows have the id '7': .*a\.jsonl:2 and .*b\.csv:2; give each"):
        write_rows(names, None, tmp_path)


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
    records = enumerate(read_records(str(tmp_path / "a.csv")), 1)
    first, second, third, short, long = (read_row(record, f"a:{at}", None, wrong) for at, (record, wrong) in records)
    assert first == Row(id="a:1", prompt="a")
    assert "the row has 1 columns, the header has 4" in second.error
    assert second.id == "a:2"
    assert third == Row(id="own", prompt="c", asked={"seed": 7, "max_new_tokens": 9})
    assert (short.id, short.carried, long.id, long.carried) == ("short", {}, "long", {})
    assert "has 3 columns" in short.error and "has 5 columns" in long.error


@pytest.mark.parametrize("depth", [700, 980, 3000])
@pytest.mark.parametrize("inner", ["1", "1e999", '"\\u00fc"'])
@pytest.mark.parametrize("name", ["prompt", "x", "body"])
def test_values_far_within_one_another_fail_their_row_alone(depth: int, inner: str, name: str, tmp_path: Path) -> None:
    deep = f'{{"custom_id": "a", "{name}": {"[" * depth}{inner}{"]" * depth}}}'
    (tmp_path / "a.jsonl").write_text(f'{deep}\n{{"prompt": "y"}}\n')
    places = write_rows([str(tmp_path / "a.jsonl")], None, tmp_path).places
    deep_row, other = read_rows(tmp_path, 0, len(places))
    read = depth < 3000 and name == "prompt" and isinstance(deep_row.prompt, list)  # newer Pythons read as deep
    assert (deep_row.error or read) and other.prompt == "y"


def test_blank_lines_before_the_header_of_a_csv_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n\nid,prompt\n\na,x\n")
    assert list(read_records(str(tmp_path / "a.csv"))) == [({"id": "a", "prompt": "x"}, "")]


def test_a_template_makes_the_prompt_of_columns_which_are_carried_through() -> None:
    check_template("{{{a}}} {b}: {a}")
    row = read_row({"a": "x", "b": [1, "ü"], "id": 7}, "d", "{{{a}}} {b}: {a}")
    assert row == Row(id="7", prompt='{x} [1, "ü"]: x', carried={"a": "x", "b": [1, "ü"]})
    assert read_row({"a": "", "b": None}, "d", "{a}!").prompt == "!"
    assert "asks for 'b', which is null; give \"\"" in read_row({"a": "x", "b": None}, "d", "{a} {b}").error
    assert "asks for 'b', the row has a" in read_row({"a": "x"}, "d", "{a} {b}").error
    assert "asks for 'a', which has no form in JSON: [inf]" in read_row({"a": [json.loads("1e999")]}, "d", "{a}").error
