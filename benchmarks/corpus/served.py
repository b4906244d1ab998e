"""Bodies that clients send to a server, and jobs of files."""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gen
from benchmarks.corpus.calls import CHATS, TEXTS
from benchmarks.corpus.later import Cases, G, S, every, later
from benchmarks.corpus.models import DATA, model
from tests.server.client import Client

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
SAYS: dict[str, Any] = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 6}
USUAL: dict[str, dict[str, Any]] = {
    CHAT: SAYS,
    TEXT: {"prompt": "Once upon a time", "max_tokens": 6},
    MESSAGES: SAYS,
    RESPONSES: {"input": "Once upon a time", "max_output_tokens": 16},
}
FIELDS: dict[str, list[Any]] = {**DATA["fields"], "messages": CHATS}
NEW = re.compile(r"\b([a-z]+[_-])[0-9a-zA-Z]{16,}")  # an id that is made for an answer
VOLATILE = {"created", "created_at", "sequence_number", "completed_at", "cached_tokens", "cache_read_input_tokens"}
KINDS = ("id", "type", "object", "model", "status", "fingerprint", "role", "name", "reason")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    MESSAGES: [{"name": "f", "input_schema": SCHEMA}],
    RESPONSES: [{"type": "function", "name": "f", "parameters": SCHEMA}],
}
ROWS = [{"id": f"r{number}", "prompt": text, "note": number} for number, text in enumerate([*TEXTS, "", "a" * 3000])]


@cache
def client() -> Client:
    from gen.server import app

    engine = gen.Engine(model("demo"), rows=4, prefix_bytes=0, speculate=False)
    return Client(app(engine, names=["demo", "other"]))


@later
def post(path: str, fields: Any) -> Any:
    """The status, and the body; the events of a stream are joined by where their texts are."""
    reply = client().post(path, {"seed": 5, **fields} if isinstance(fields, dict) and path in USUAL else fields)
    if "text/event-stream" not in reply.headers.get("content-type", ""):
        return [reply.status, plain(json.loads(reply.body or b"null"))]
    joined: dict[str, Any] = {}
    for event in reply.events:
        join(plain(event), "", joined)
    return [reply.status, joined]


@later
def get(path: str) -> Any:
    reply = client().get(path)
    return [reply.status, plain(json.loads(reply.body)) if reply.body[:1] in (b"{", b"[") else reply.body.decode()]


def plain(value: Any) -> Any:
    """A body without ids and times."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return NEW.sub("ID", value) if isinstance(value, str) else value


def join(value: Any, path: str, joined: dict[str, Any]) -> None:
    """Add an event to those before it: texts to the texts in the same places, however they were cut into events."""
    if isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            place = one.get("index", name) if isinstance(one, dict) and isinstance(value, list) else name
            join(one, f"{path}.{place}", joined)
    elif isinstance(value, str) and not path.endswith(KINDS):
        joined[path] = joined.get(path, "") + value
    else:
        joined[path] = value


@later
def job(lines: list[Any], again: int = 0, name: str = "in.jsonl", **given: Any) -> Any:
    """A job's report and its parts."""
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / name, Path(folder) / "out"
        source.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
        how: dict[str, Any] = {"model": "demo", "devices": ["cpu"], "seed": 3, "batch_size": 2, "part_rows": 3}
        for _ in range(again + 1):
            report = gen.run_batch(source, out, **(how | {"max_new_tokens": 8, "progress": False} | given))
        made = [json.loads(line) for part in report.parts for line in part.read_text().splitlines()]
        return [report.rows, report.failed, report.tokens, [part.name for part in report.parts], plain(made)]


def server() -> Cases:
    for path, (field, values) in every(USUAL, FIELDS.items()):
        for value in values:
            yield post(path, {**USUAL[path], field: value})
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
    for path, more in every(USUAL, ({}, {"stop": "."}, {"n": 2}, {"max_tokens": 40, **form})):
        yield post(path, {**USUAL[path], **more, "stream": True})
    for path, stream in every(TOOLS, (True, False)):
        choice = {"type": "any"} if path == MESSAGES else "required"
        length = {"max_output_tokens" if path == RESPONSES else "max_tokens": 60}
        yield post(path, {**USUAL[path], "tools": TOOLS[path], "tool_choice": choice, "stream": stream, **length})
    for path, body in every(USUAL, [*map(str.encode, DATA["wrong bodies"]), b"\xff", b'{"a":' * 2000]):
        yield post(path, body)
    for fields in ({"prompt": "One"}, {"messages": SAYS["messages"]}, {}):
        yield post("/tokenize", fields)
    for tokens in ([40, 41], [], [10**9], ["a"], None):
        yield post("/detokenize", {"tokens": tokens})
    for path in ("/v1/models", "/v1/models/demo", "/v1/models/nobody", "/nothing", CHAT, "/health"):
        yield get(path)
    yield post("/v1/embeddings", {"input": "a"})
    yield post(f"{MESSAGES}/count_tokens", USUAL[MESSAGES])


def refusals() -> Cases:
    for path, field, wrong in every(USUAL, [*FIELDS, "stream", "user", "metadata"], DATA["wrong fields"]):
        if (field, wrong) != ("seed", None):  # which draws a seed
            yield post(path, {**USUAL[path], field: wrong})


def jobs() -> Cases:
    yield job(ROWS)
    yield job(ROWS[:3], output_type=int, sampler=S.greedy(), shorten=True, again=1)
    yield job([SAYS | {"seed": 9}, ROWS[0] | {"prompt": [40, 41], "max_new_tokens": 2}], top_logprobs=1, stop=["a"])
    yield job(
        [{"id": "x", "a": "x"}, {"id": "y", "a": "y"}],
        prompt_template="Say {a}",
        num_return_sequences=2,
        sampler=S.beam_search(2),
    )
    lines = [{"method": "POST", "url": CHAT, "body": SAYS | more} for more in ({"seed": 1}, {"n": 2}, {"n": "x"})]
    yield job([{**line, "custom_id": str(number)} for number, line in enumerate(lines)])
    yield job(["id,prompt", "a,One morning", "b,Once"], name="in.csv", output_type=G.regex("[a-z]{3}"))
    for rows in (["{"], ["[]"], [{"x": 1}], [{"prompt": 5}], [ROWS[0], ROWS[0]], [{"prompt": "a", "seed": -1}], []):
        yield job(rows)
    for more in (
        {"batch_size": 0},
        {"executor": "x"},
        {"format": "x"},
        {"seed": -1},
        {"model": "/nowhere"},
        {"output_type": "x"},
    ):
        yield job(ROWS[:1], **more)


GROUPS = [server, refusals, jobs]
