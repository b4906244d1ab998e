"""Results as parquet, and answers in OpenAI's form."""

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import BaseModel, Field

import gen
from gen.offline.folder import Manifest, write_manifest, write_part
from gen.offline.rows import Row, read_row, row_seed
from gen.offline.status import merge
from gen.offline.worker import schema_of_type
from gen.server import app
from tests.offline.helpers import read_parts, write_rows
from tests.server.client import Client

pytestmark = pytest.mark.usefixtures("workers_here")


class Address(BaseModel):
    street: str
    number: int | None


class Person(BaseModel):
    name: str
    height: float
    kind: Literal["child", "adult"]
    addresses: list[Address]


ROWS: list[dict[str, Any]] = [
    {"prompt": "Describe Ada as JSON.\n", "n": 1, "text": "clash", "any": [1], "x": 1, "far": 2**60 + 1, "only": None},
    {"prompt": "Describe Bob as JSON.\n", "n": None, "any": "a", "x": 1.5, "far": 0.5, "large": 3},
    {"prompt": 7, "text": "of a row with an error", "flag": True, "large": 2**70},
    {"prompt": "Describe Cleo as JSON.\n", "flag": None},
]
KINDS = {
    "n": "int64", "text": "string", "any": "string", "x": "double", "far": "string",
    "only": "string", "large": "string", "flag": "bool",
}  # fmt: skip


def merged(folder: Path, output_type: Any, **more: Any) -> tuple[list[dict[str, Any]], Any]:
    """The results of a job, and the same ones as a table that was read from parquet."""
    source = write_rows(folder / "a.jsonl", ROWS)
    report = gen.run_batch(
        source, folder / "out", model="demo", output_type=output_type, seed=3, part_rows=2, progress=False, **more
    )
    report.merge(folder / "all.jsonl")
    assert (folder / "all.jsonl").read_bytes() == b"".join(part.read_bytes() for part in report.parts)
    report.merge(folder / "all.parquet")
    return read_parts(report.parts), pyarrow.parquet.read_table(folder / "all.parquet")


def test_a_value_of_a_class_is_a_struct_and_columns_have_the_types_of_all_rows(tmp_path: Path) -> None:
    results, table = merged(tmp_path, Person, max_new_tokens=400, sampler=gen.samplers.greedy())
    address = pyarrow.struct([("street", pyarrow.string()), ("number", pyarrow.int64())])
    value = [("name", pyarrow.string()), ("height", pyarrow.float64()), ("kind", pyarrow.string())]
    assert table.schema.field("value").type == pyarrow.struct([*value, ("addresses", pyarrow.list_(address))])
    names = ["id", "text", "value", "finish_reason", "tokens", "seed", "error"]
    assert table.schema.names[:7] == names
    assert {name[6:]: str(table.schema.field(name).type) for name in table.schema.names[7:]} == KINDS
    rows = table.to_pylist()
    for row, result in zip(rows, results, strict=True):
        assert {name: row[name] for name in names} == {name: result.get(name) for name in names}
    assert [row["input_text"] for row in rows] == ["clash", None, "of a row with an error", None]
    assert [row["input_any"] for row in rows] == ["[1]", '"a"', None, None]
    assert [row["input_x"] for row in rows] == [1.0, 1.5, None, None]
    assert [row["input_large"] for row in rows] == [None, "3", str(2**70), None]
    assert rows[0]["value"] == Person.model_validate_json(rows[0]["text"]).model_dump()


@pytest.mark.parametrize("output_type", [int | bool, gen.json_schema({"enum": [1, "a"]})])
def test_values_of_no_fixed_form_are_json_and_several_texts_are_lists(output_type: Any, tmp_path: Path) -> None:
    results, table = merged(tmp_path, output_type, sampler=gen.samplers.multinomial(2, temperature=0.5))
    for row, result in zip(table.to_pylist(), results, strict=True):
        assert row["texts"] == result.get("texts")
        assert row["values"] == (None if "error" in result else [*map(json.dumps, result["values"])])
        assert "text" not in row


class Named(BaseModel):
    name: str = Field(validation_alias="Name")


OPEN = gen.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}, closed=False)


@pytest.mark.parametrize(
    ("output_type", "values", "kind"),
    [
        (OPEN, [{"a": 1}], "struct<a: int64>"),
        (OPEN, [{"a": 1, "b": 2}], "string"),
        (gen.json_schema(True), [{"a": 1}, "b"], "string"),
        (list[Named], [[{"name": "x"}]], "string"),
        (gen.json_schema({"type": ["string", "null"]}), ["a", None], "string"),
        (int, [1, 10**25], "string"),
        (float, [1, 2.5], "double"),
        (float, [2**60 + 1, 1.5], "string"),
    ],
)
def test_no_part_of_a_value_is_lost(output_type: Any, values: list[Any], kind: str, tmp_path: Path) -> None:
    settings: Any = {"sampler": None, "num_return_sequences": 1, "output_type": {}}
    told: Any = {"inputs": [], "fingerprint": {}, "sources": {}, "batch_size": 1, "part_rows": 9, "threads": 1}
    told["schema"] = schema_of_type(output_type)
    write_manifest(tmp_path, Manifest(settings=settings, parts=[(0, len(values))], **told))
    write_part(tmp_path, 0, [{"id": "x", "text": "", "value": value} for value in values], {})
    merge(tmp_path, tmp_path / "all.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "all.parquet")
    assert str(table.schema.field("value").type) == kind
    read = table["value"].to_pylist()
    assert [json.loads(one) for one in read] == values if kind == "string" else read == values


def test_the_table_has_all_that_results_have(tmp_path: Path) -> None:
    more: Any = {"max_new_tokens": 2, "top_logprobs": 1, "receipts": True, "retries": 1, "chat": True, "shorten": True}
    results, table = merged(tmp_path, int, **more)
    for row, result in zip(table.to_pylist(), results, strict=True):
        for name in ("attempts", "top_logprobs", "receipt"):
            read = json.loads(row[name]) if isinstance(row[name], str) else row[name]
            assert read == result.get(name)
    assert table.schema.names[-1].startswith("input_")


def test_what_is_there_can_be_merged_and_other_files_are_refused(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", ROWS)
    report = gen.run_batch(source, tmp_path / "out", model="demo", max_new_tokens=2, part_rows=1, progress=False)
    kept = report.parts[0].read_bytes() + report.parts[3].read_bytes()
    for part in report.parts[1:3]:
        part.unlink()
    with pytest.raises(
        gen.GenError, match=r"2 of 4 parts are missing; run the job to its end first, or ask for an inc"
    ):
        report.merge(tmp_path / "all.jsonl")
    merge(tmp_path / "out", tmp_path / "all.jsonl", incomplete=True)
    assert (tmp_path / "all.jsonl").read_bytes() == kept
    merge(tmp_path / "out", tmp_path / "all.parquet", incomplete=True)
    assert pyarrow.parquet.read_table(tmp_path / "all.parquet").num_rows == 2
    with pytest.raises(gen.GenError, match=r"give a file \*\.jsonl or \*\.parquet, got '.*all\.csv'"):
        report.merge(tmp_path / "all.csv")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for name in ("part-00000.jsonl", "part-00001.jsonl", "manifest.rows.jsonl"):
        with pytest.raises(gen.GenError, match="is a file of the job itself"):
            merge(tmp_path / "out", tmp_path / "link" / name, incomplete=True)
    with pytest.raises(gen.GenError, match="is an input of the job; give another name"):
        merge(tmp_path / "out", source, incomplete=True)
    (tmp_path / "elsewhere.jsonl").write_bytes(source.read_bytes())  # its name is one of another folder
    with pytest.raises(gen.GenError, match="is an input of the job; give another name"):
        merge(tmp_path / "out", tmp_path / "elsewhere.jsonl", incomplete=True)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "all.jsonl")
    (tmp_path / "all.jsonl").write_text("old")
    merge(tmp_path / "out", tmp_path / "link.jsonl", incomplete=True)
    assert (tmp_path / "all.jsonl").read_bytes() == kept and (tmp_path / "link.jsonl").is_symlink()
    assert gen.run_batch(source, tmp_path / "other", model="demo", dry_run=True).parts == []


BODY: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "Describe Ada as JSON."}], "seed": 5}


def line(key: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": BODY | body}


WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"days": {"enum": [1, 2]}}}}
COLOR = {"type": "json_schema", "json_schema": {"name": "color", "schema": {"enum": ["red", "green"]}, "strict": True}}
LINES = [
    line("plain", max_completion_tokens=9, user="somebody", stream=False, tools=None),
    line("own", max_tokens=5, temperature=0.3, top_p=0.9, logit_bias={"7": -100}, stop=["."], n=2),
    line("typed", response_format=COLOR, max_tokens=20),
    line("cut", response_format={"type": "json_object"}, max_tokens=7),
    line("told", max_tokens=3, logprobs=True, top_logprobs=2),
    line(
        "called", tools=[{"type": "function", "function": WEATHER}], tool_choice="required", parallel_tool_calls=False
    ),
    line("stopped", tools=[{"type": "function", "function": WEATHER}], tool_choice="required", stop=["}"]),
    line("several", temperature=0, n=2, max_tokens=4, seed=-3, min_tokens=2, newer="field"),
]
WRONG: list[tuple[Any, str]] = [
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"functions": [WEATHER]}, "functions is not supported by this server"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"response_format": {"type": "grammar"}}, "response_format: the types are text, json_object and json_schema"),
    ({"temperature": "hot"}, "temperature"),
    ({"logit_bias": {"x": 1}}, "logit_bias: the keys must be token ids"),
    ({"n": 0}, "n: "),
    ({"max_tokens": -1}, "max_tokens: "),
    ({"top_logprobs": 3}, "need logprobs=true"),
    ({"seed": "x"}, "seed: "),
    ({"messages": "text"}, "messages: "),
]


def test_lines_of_the_batch_format_get_the_answers_of_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [line(f"wrong {number}", **change) for number, (change, _) in enumerate(WRONG)]
    source = write_rows(tmp_path / "a.jsonl", [*LINES, *wrong])
    report = gen.run_batch(source, tmp_path / "out", model="demo", seed=1, progress=False)
    assert (report.rows, report.failed) == (len(LINES) + len(WRONG), len(WRONG))
    assert capsys.readouterr().err.count("bodies have a field 'newer', which changes nothing; it is left out") == 1
    answers = read_parts(report.parts)
    assert [answer["custom_id"] for answer in answers] == [one["custom_id"] for one in [*LINES, *wrong]]
    assert all(answer["error"] is None for answer in answers)
    with gen.Engine(gen.load("demo", device="cpu"), rows=4) as engine:
        client = Client(app(engine, names=["demo", "gpt-x"]))
        replies = client.posts([("/v1/chat/completions", one["body"]) for one in [*LINES, *wrong]])
    for answer, reply in zip(answers, replies, strict=True):
        response = answer["response"]
        assert response["status_code"] == reply.status
        assert without_names(response["body"]) == without_names(reply.json)
    for answer, (_, message) in zip(answers[len(LINES) :], WRONG, strict=True):
        assert message in answer["response"]["body"]["error"]["message"]
    bodies = {answer["custom_id"]: answer["response"]["body"] for answer in answers}
    assert bodies["cut"]["choices"][0]["finish_reason"] == "length"
    called = bodies["called"]["choices"][0]
    assert (called["finish_reason"], called["message"]["tool_calls"][0]["function"]["name"]) == (
        "tool_calls",
        "weather",
    )
    assert report.tokens == sum(body["usage"]["completion_tokens"] for body in bodies.values() if "usage" in body)


def without_names(body: Any) -> Any:
    """An answer without the fields that differ each time, or in a job; numbers without what rounding changes."""
    if "error" in body:
        return body
    for call in body["choices"][0]["message"].get("tool_calls", ()):
        assert call.pop("id").startswith("call_")
    body["usage"].pop("prompt_tokens_details", None)
    kept = {name: value for name, value in body.items() if name not in ("id", "created", "model")}
    return json.loads(json.dumps(kept), parse_float=lambda number: round(float(number), 4))


def test_a_body_takes_from_the_job_what_it_does_not_say(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [line("a", seed=None), line("b", max_tokens=9, temperature=0.1)])
    sampler = gen.samplers.multinomial(2, top_k=3)
    type_: Any = {"output_type": gen.regex("[a-z]{4}"), "sampler": sampler, "stop": ["q"]}
    report = gen.run_batch(source, tmp_path / "out", model="demo", seed=1, max_new_tokens=20, **type_)
    bodies = [answer["response"]["body"] for answer in read_parts(report.parts)]
    found = [[one["message"]["content"] for one in body["choices"]] for body in bodies]
    model, messages = gen.load("demo"), BODY["messages"]
    assert found[0] == gen.generate(
        model, messages, type_["output_type"], sampler=sampler, stop=["q"], seed=row_seed(1, Row(id="a"))
    )
    assert [len(texts) for texts in found] == [2, 2]
    report = gen.run_batch(source, tmp_path / "beams", model="demo", sampler=gen.samplers.beam_search(2))
    plain, changed = (answer["response"]["body"] for answer in read_parts(report.parts))
    assert len(plain["choices"]) == 1
    assert "temperature: not for beam search" in changed["error"]["message"]


@pytest.mark.parametrize(
    ("job", "body"),
    [
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, {"add_generation_prompt": False}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ],
)
def test_what_the_job_says_and_what_a_body_says_are_the_same_beside_tools(job: Any, body: Any, tmp_path: Path) -> None:
    tools = {"tools": [{"type": "function", "function": WEATHER}], "max_tokens": 30}
    said = []
    for name, settings, fields in (("job", job, tools), ("body", {}, tools | body), ("neither", {}, tools)):
        source = write_rows(tmp_path / f"{name}.jsonl", [line("a", **fields)])
        [answer] = read_parts(gen.run_batch(source, tmp_path / name, model="demo", **settings).parts)
        said.append(answer["response"]["body"] | {"created": None})
    assert said[0] == said[1] != said[2]
    assert said[0]["model"] == "demo"


def test_what_a_body_says_counts_where_it_is_the_default_and_null_says_nothing(tmp_path: Path) -> None:
    said: list[Any] = [{"include_stop_str_in_output": value} for value in (False, None)]
    source = write_rows(
        tmp_path / "a.jsonl", [line("a", stop=["e"]), *(line(str(one), stop=["e"], **one) for one in said)]
    )
    report = gen.run_batch(source, tmp_path / "out", model="demo", include_stop=True)
    answers = [one["response"]["body"]["choices"][0] for one in read_parts(report.parts)]
    left_out, usual, null = [one["message"]["content"] for one in answers]
    assert left_out == null == f"{usual}e"


def test_answers_are_json_lines_alone_without_receipts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path / "a.jsonl", [line("a"), line("b", priority=1)])
    report = gen.run_batch(
        source, tmp_path / "out", model="demo", max_new_tokens=1, receipts=True, prompt_template="{url}"
    )
    said = capsys.readouterr().err
    for one in (
        "OpenAI's format get no receipts",
        "get no prompt of the template",
        "a field 'priority', which changes",
    ):
        assert said.count(one) == 1
    report.merge(tmp_path / "all.jsonl")
    with pytest.raises(gen.GenError, match=r"answers in OpenAI's format are JSON lines; give a file \*\.jsonl"):
        report.merge(tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_what_only_a_server_answers_is_refused(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = [{"stream": True}, {"prompt_logprobs": 0}, {"return_receipt": True}]
    source = write_rows(tmp_path / "a.jsonl", [line(*one, **one) for one in asked])
    answers = read_parts(gen.run_batch(source, tmp_path / "out", model="demo", progress=False).parts)
    told = [answer["response"]["body"]["error"]["message"] for answer in answers]
    assert [one.partition(" is for gen serve")[0] for one in told] == [*map("".join, asked)]


def test_other_urls_are_refused() -> None:
    row = read_row({"custom_id": "x", "url": "/v1/embeddings", "body": {}}, "d")
    assert (row.id, row.body) == ("x", {})
    assert "gen answers POST /v1/chat/completions alone" in row.error
