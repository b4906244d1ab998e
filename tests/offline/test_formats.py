"""Results as parquet, and answers in OpenAI's form."""

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import BaseModel

import gen
from gen.offline.inputs.rows import Row, read_row, row_seed
from gen.offline.status import merge
from tests.offline.helpers import read_parts, write_rows

pytestmark = pytest.mark.usefixtures("workers_here")


class Address(BaseModel):
    street: str
    number: int | None


class Person(BaseModel):
    name: str
    height: float
    kind: Literal["child", "adult"]
    addresses: list[Address]


def parquet_job(folder: Path, output_type: Any, **more: Any) -> tuple[gen.BatchReport, gen.BatchReport]:
    """The same job with parts in JSON lines and in parquet."""
    rows: list[dict[str, Any]] = [
        {"prompt": "Describe Ada as JSON.\n", "n": 1, "text": "clash", "any": [1], "x": 1},
        {"prompt": "Describe Bob as JSON.\n", "n": None, "any": "a", "x": 1.5},
        {"prompt": 7, "text": "of a row with an error"},
        {"prompt": "Describe Cleo as JSON.\n"},
    ]
    source = write_rows(folder / "a.jsonl", rows)
    arguments: Any = {"model": "demo", "output_type": output_type, "seed": 3, "shard_rows": 2, **more}
    return (
        gen.run_batch(source, folder / "lines", **arguments),
        gen.run_batch(source, folder / "parquet", format="parquet", **arguments),
    )


def test_a_value_of_a_class_is_a_struct_and_every_part_has_the_same_columns(tmp_path: Path) -> None:
    lines, parquet = parquet_job(tmp_path, Person, max_new_tokens=400)
    tables = [pyarrow.parquet.read_table(part) for part in parquet.parts]
    assert tables[0].schema == tables[1].schema
    schema = tables[0].schema
    address = pyarrow.struct([("street", pyarrow.string()), ("number", pyarrow.int64())])
    value = [("name", pyarrow.string()), ("height", pyarrow.float64()), ("kind", pyarrow.string())]
    assert schema.field("value").type == pyarrow.struct([*value, ("addresses", pyarrow.list_(address))])
    names = ["id", "text", "value", "finish_reason", "tokens", "seed", "error"]
    assert schema.names == [*names, "input_n", "input_text", "input_any", "input_x"]
    assert [str(schema.field(name).type) for name in schema.names[-4:]] == ["int64", "string", "string", "double"]
    rows, results = pyarrow.concat_tables(tables).to_pylist(), read_parts(lines.parts)
    for row, result in zip(rows, results, strict=True):
        assert {name: row[name] for name in names} == {name: result.get(name) for name in names}
    assert [row["input_text"] for row in rows] == ["clash", None, "of a row with an error", None]
    assert [row["input_any"] for row in rows] == ["[1]", '"a"', None, None]
    assert [row["input_x"] for row in rows] == [1.0, 1.5, None, None]
    assert rows[0]["value"] == Person.model_validate_json(rows[0]["text"]).model_dump()
    merge(tmp_path / "parquet", tmp_path / "all.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pylist() == rows
    with pytest.raises(gen.GenError, match=r"the parts are parquet; give a file \*\.parquet"):
        merge(tmp_path / "parquet", tmp_path / "all.jsonl")


@pytest.mark.parametrize("output_type", [int | bool, gen.json_schema({"enum": [1, "a"]})])
def test_values_of_no_fixed_form_are_json_and_several_texts_are_lists(output_type: Any, tmp_path: Path) -> None:
    sampler = gen.samplers.multinomial(2, temperature=0.5)
    lines, parquet = parquet_job(tmp_path, output_type, sampler=sampler)
    rows = pyarrow.concat_tables([pyarrow.parquet.read_table(part) for part in parquet.parts]).to_pylist()
    for row, result in zip(rows, read_parts(lines.parts), strict=True):
        assert row["texts"] == result.get("texts")
        assert row["values"] == (None if "error" in result else [*map(json.dumps, result["values"])])
        assert "text" not in row


BODY: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "Describe Ada as JSON."}], "seed": 5}


def line(key: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": BODY | body}


def test_lines_of_the_batch_format_get_answers_as_openai_writes_them(tmp_path: Path) -> None:
    schema = {"enum": ["red", "green"]}
    asked = {"type": "json_schema", "json_schema": {"name": "age", "schema": schema, "strict": True}}
    lines = [
        line("plain", max_completion_tokens=9, user="somebody", stream=False, tools=None),
        line("own", max_tokens=5, temperature=0.3, top_p=0.9, logit_bias={"7": -100}, stop=["."], n=2),
        line("typed", response_format=asked, seed=None),
        line("told", max_tokens=3, logprobs=True, top_logprobs=2),
    ]
    source = write_rows(tmp_path / "a.jsonl", lines)
    report = gen.run_batch(source, tmp_path / "out", model="demo", seed=1, max_new_tokens=20)
    answers = {answer["custom_id"]: answer for answer in read_parts(report.parts)}
    assert [*answers] == ["plain", "own", "typed", "told"]
    assert all(answer["error"] is None for answer in answers.values())
    bodies = {key: answer["response"]["body"] for key, answer in answers.items()}
    assert report.tokens == sum(body["usage"]["completion_tokens"] for body in bodies.values())
    model, messages = gen.load("demo"), BODY["messages"]

    def told(**arguments: Any) -> Any:
        return gen.generate(model, messages, details=True, **{"seed": 5, "max_new_tokens": 20} | arguments)

    plain = told(max_new_tokens=9)
    assert bodies["plain"]["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": plain.text, "refusal": None},
            "logprobs": None,
            "finish_reason": "length" if plain.finish_reason == "length" else "stop",
        }
    ]
    read = len(model.tokenizer.encode_plain(model.tokenizer.chat_text(messages)))
    made = len(plain.token_ids)
    assert bodies["plain"]["usage"] == {
        "prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made,
    }  # fmt: skip
    assert bodies["plain"]["model"] == "demo"
    warm = gen.samplers.multinomial(2, temperature=0.3, top_p=0.9, logit_bias={7: -100})
    texts = [one.text for one in told(max_new_tokens=5, sampler=warm, stop=["."])]
    assert [choice["message"]["content"] for choice in bodies["own"]["choices"]] == texts
    typed = told(output_type=gen.json_schema(schema), seed=row_seed(1, Row(id="typed")))
    assert typed.value in schema["enum"]
    assert bodies["typed"]["choices"][0]["message"]["content"] == typed.text
    content = bodies["told"]["choices"][0]["logprobs"]["content"]
    top = told(max_new_tokens=3, top_logprobs=2).top_logprobs
    assert [token["logprob"] for token in content] == pytest.approx([one.logprob for one in top], abs=1e-4)
    assert [len(token["top_logprobs"]) for token in content] == [2] * len(top)
    assert (
        b"".join(bytes(token["bytes"]) for token in content).decode()
        == bodies["told"]["choices"][0]["message"]["content"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [{"type": "function"}]}, "gen does not support 'tools' of a body"),
        ({"stream": True}, "does not support 'stream'"),
        ({"reasoning_effort": "high"}, "does not support 'reasoning_effort'"),
        (
            {"response_format": {"type": "json_object"}},
            'supports response_format of the types "text" and "json_schema"',
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"logit_bias": {"x": 1}}, "logit_bias must have token ids for keys"),
        ({"n": 0}, "samples must be"),
        ({"max_tokens": -1}, "max_new_tokens must be"),
        ({"top_logprobs": 3}, 'told with "logprobs": true'),
        ({"seed": "x"}, "seed must be"),
        ({"messages": "text"}, "messages must be a list"),
    ],
)
def test_a_body_that_gen_cannot_answer_is_refused_by_name(change: Any, message: str, tmp_path: Path) -> None:
    row = read_row(line("x", **change), "d")
    if row.error:
        assert message in row.error
        return
    source = write_rows(tmp_path / "a.jsonl", [line("x", max_tokens=1) | {"custom_id": "y"}, line("x", **change)])
    report = gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=1)
    answer = read_parts(report.parts)[1]
    assert report.failed == 1
    assert answer["response"] is None
    assert message in answer["error"]["message"]


def test_other_urls_are_refused() -> None:
    row = read_row({"custom_id": "x", "url": "/v1/embeddings", "body": {}}, "d")
    assert (row.id, row.request) == ("x", True)
    assert "gen answers POST /v1/chat/completions alone" in row.error
