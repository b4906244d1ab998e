"""Requests that a server refuses, and its messages; keys, sizes, and clients that leave."""

import asyncio
import json
import re
from typing import Any

import pytest

import gen
from gen.server.errors import told
from gen.server.protocols.chat import ChatBody
from gen.server.protocols.completions import CompletionBody
from tests.helpers.engines import GatedModel
from tests.server.client import Client, Reply, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]


def error_of(reply: Reply) -> Any:
    return reply.json["error"]


@pytest.mark.parametrize("path, body", [(CHAT, ChatBody), (TEXT, CompletionBody)])
def test_fields_that_would_change_the_text_are_refused_by_name(path: str, body: Any, client: Client) -> None:
    known = {"messages": HELLO} if path == CHAT else {"prompt": "One"}
    others = {"dry_multiplier", "ebnf", "logits_processors", "prompt_embeds", "stop_regex", "top_a"}
    assert others <= body.refused.keys()
    for name, harmless in body.refused.items():
        refused = client.post(path, {**known, name: "something"})
        assert (refused.status, error_of(refused)["param"]) == (400, name)
        if harmless is not None:
            assert client.post(path, {**known, name: harmless, "max_tokens": 0}).status == 200


@pytest.mark.parametrize(
    "fields, param, word",
    [
        ({}, "messages", "required"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": ["Hi"]}, "messages", "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages", "wizard"),
        ({"messages": [{"role": "user"}]}, "messages", "content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "input_audio"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "no text"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages", "give tool_calls"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature", "number"),
        ({"messages": HELLO, "temperature": 3}, "temperature", "less than or equal to 2"),
        ({"messages": HELLO, "n": 0}, "n", "greater than or equal to 1"),
        ({"messages": HELLO, "n": True}, "n", "integer"),
        ({"messages": HELLO, "stream": "yes"}, "stream", "boolean"),
        ({"messages": HELLO, "stop": [1]}, "stop", "string"),
        ({"messages": HELLO, "stop": ""}, None, "at least one character"),
        ({"messages": HELLO, "logit_bias": {"foo": 1}}, "logit_bias", "token ids"),
        ({"messages": HELLO, "logit_bias": {"5_0": 1}}, "logit_bias", "token ids"),
        ({"messages": HELLO, "logit_bias": {"50": 1, "050": 2}}, "logit_bias", "'050'"),
        ({"messages": HELLO, "logit_bias": {"99999": 1}}, None, "99999"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format", "no schema"),
        ({"messages": HELLO, "response_format": {"type": "text", "schema": {}}}, "response_format", "and a schema"),
        ({"messages": HELLO, "structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "one of"),
        ({"messages": HELLO, "structured_outputs": {"regex": "("}}, None, ""),
        ({"messages": HELLO, "structured_outputs": {"regex": 5}}, "structured_outputs", "str"),
        ({"messages": HELLO, "structured_outputs": {"regex": "a" * 3000}}, "structured_outputs", "KiB"),
        ({"messages": HELLO, "chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "chat_template"),
        ({"messages": HELLO, "chat_template_kwargs": {"fast": True}}, None, "fast"),
        ({"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True}, None, "set one"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, None, "context"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None, "surrogate"),
        ({"messages": HELLO, "model": "gpt"}, "model", "does not exist"),
    ],
)
def test_what_cannot_be_answered_says_why(fields: Any, param: str | None, word: str, engine: gen.Engine) -> None:
    reply = Client(gen.server.app(engine, max_schema_kb=2)).post(CHAT, fields)
    assert reply.status == (404 if param == "model" else 400)
    assert set(error_of(reply)) == {"message", "type", "param", "code"}
    assert word in error_of(reply)["message"]
    assert param is None or error_of(reply)["param"] == param
    assert (error_of(reply)["code"] == "context_length_exceeded") == (word == "context")


@pytest.mark.parametrize("depth", [50, 500, 5000, 100_000])
def test_options_that_nest_deep_are_answered_or_refused_for_their_depth(depth: int, client: Client) -> None:
    """How deep JSON may nest differs among Pythons: fifty levels are always read, a hundred thousand never."""
    asked = json.dumps({"messages": HELLO, "structured_outputs": {"choice": ["deep"]}})
    reply = client.post(CHAT, asked.replace('"deep"', "[" * depth + "]" * depth).encode())
    refused = reply.status == 400 and re.search("deep|depth", error_of(reply)["message"])
    assert (reply.status == 200 and depth < 100_000) or (refused and depth > 50), reply.body


@pytest.mark.parametrize(
    "body, status",
    [(b"{", 400), (b"[]", 400), (b'{"n": NaN}', 400), (b"\xff", 400), (b"[" * 100_000, 400), (b" " * 3000, 413)],
)
def test_bodies_are_objects_of_json_within_a_limit(body: bytes, status: int, engine: gen.Engine) -> None:
    client = Client(gen.server.app(engine, max_body_mb=0.002 if status == 413 else 8))
    assert client.post(CHAT, body).status == status


def test_bodies_that_do_not_say_that_they_are_json_are_refused(client: Client) -> None:
    assert client.post(CHAT, {"messages": HELLO}, content_type="text/plain").status == 415
    assert client.post(CHAT, {"messages": HELLO, "max_tokens": 1}, content_type="application/json; x=y").status == 200


def test_paths_and_methods(client: Client) -> None:
    assert client.get("/v1/nothing").status == 404
    assert error_of(client.get("/v1/nothing"))["type"] == "not_found_error"
    for path in ("/v1/nothing/1", "/v1/nothing/2"):
        client.get(path)
    assert b"/v1/nothing" not in (told := client.get("/metrics").body) and b'endpoint="other",status="404"' in told
    wrong = client.get(CHAT)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert [one["id"] for one in client.get("/v1/models").json["data"]] == ["demo", "other"]
    assert client.get("/v1/models/other").json["max_model_len"] == 1024
    assert client.get("/v1/models/gpt").status == 404


def test_a_key_is_asked_for_in_either_header(engine: gen.Engine) -> None:
    client = Client(gen.server.app(engine, api_key="secret"))
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x_api_key": "secret "}, {"authorization": "Basic secret"}):
        assert client.get("/v1/models", **headers).status == 401
    for headers in ({"authorization": "Bearer secret"}, {"x_api_key": "secret"}):
        assert client.get("/v1/models", **headers).status == 200
    assert client.get("/health").status == 200 and client.get("/metrics").status == 401
    assert client.get("/metrics", x_api_key="secret").status == 200
    for key in ("", "sésame", "abc ", " abc", "a\nb", "\t", "\x7f", 5):
        with pytest.raises(gen.ArgumentError, match="api_key"):
            gen.server.app(engine, api_key=key)
    for key in ("a b", "Bearer", '"a",b;c=d', "".join(map(chr, range(33, 127)))):
        client = Client(gen.server.app(engine, api_key=key))
        for headers in ({"authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key} "}, {"x_api_key": key}):
            assert client.get("/v1/models", **headers).status == 200


def test_other_origins_may_call_if_they_are_named(engine: gen.Engine) -> None:
    named = Client(gen.server.app(engine, cors_origins=["https://page"]), {"origin": "https://page"})
    assert named.get("/v1/models").headers["access-control-allow-origin"] == "https://page"
    assert "x-ignored-fields" in named.get("/v1/models").headers["access-control-expose-headers"]
    silent = Client(gen.server.app(engine), {"origin": "https://page"})
    assert "access-control-allow-origin" not in silent.get("/v1/models").headers


def test_texts_and_tokens(demo: Any, client: Client) -> None:
    token_ids = demo.tokenizer.encode("One morning")
    assert client.post("/tokenize", {"prompt": "One morning"}).json["tokens"] == token_ids
    assert client.post("/tokenize", {"prompt": "One", "add_special_tokens": False}).json["count"] == 1
    assert client.post("/tokenize", {"messages": HELLO}).json["count"] > 2
    assert client.post("/tokenize", {}).status == 400
    assert client.post("/detokenize", {"tokens": token_ids[1:]}).json == {"prompt": "One morning"}
    chat = client.post("/tokenize", {"messages": HELLO}).json["tokens"]
    text = client.post("/detokenize", {"tokens": chat}).json["prompt"]
    assert text == demo.tokenizer.chat_text(HELLO) and demo.tokenizer.encode_plain(text) == chat
    assert client.post("/detokenize", {"tokens": [99999]}).status == 400


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    ],
)
def test_a_conversation_has_the_tokens_that_chat_completions_read(more: dict[str, Any], client: Client) -> None:
    for messages in (HELLO, [*HELLO, {"role": "assistant", "content": "There"}]):
        asked = {"messages": messages, **more}
        used = client.post("/v1/chat/completions", {**asked, "max_tokens": 1})
        told = client.post("/tokenize", asked)
        if used.status == 200:
            assert told.json["count"] == used.json["usage"]["prompt_tokens"]
        else:
            assert told.json == used.json
    refused = client.post("/tokenize", {"messages": HELLO, "chat_template_kwargs": {"odd": 1}})
    assert refused.status == 400 and b"does not use odd" in refused.body


def test_errors_of_the_program_are_no_clients_business() -> None:
    assert told(KeyError("secret path")).message == "an internal error; the server's log has it."


def test_a_full_server_says_so_and_clients_that_leave_free_their_rows() -> None:
    model = GatedModel()
    with gen.Engine(model, rows=2, max_waiting=1) as engine:
        client = Client(gen.server.app(engine))

        async def crowd() -> list[Reply]:
            leaving = [asyncio.Event() for _ in range(3)]
            tasks = []
            for number, leave in enumerate(leaving):  # streamed and not, running and waiting
                fields = {"prompt": "ab", "max_tokens": 50, "stream": not number}
                tasks.append(asyncio.create_task(client.send("POST", TEXT, fields, leave=leave)))
            await until(lambda: engine.stats().running + engine.stats().waiting == 3)
            full = await client.send("POST", TEXT, {"prompt": "ab"})
            for leave in leaving:
                leave.set()
            gone = await asyncio.gather(*tasks)
            model.open()
            await until(lambda: engine.stats().running + engine.stats().waiting == 0)
            return [full, *gone]

        full, *gone = asyncio.run(crowd())
        assert (full.status, full.headers["retry-after"]) == (429, "1")
        assert [reply.status for reply in gone] == [200, 499, 499] and not gone[0].whole
        assert engine.stats().tokens < 20
