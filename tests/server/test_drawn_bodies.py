"""Whatever a body combines, the server answers or refuses it: no request is an error of the server's."""

import json
import random
from typing import Any

import pytest

from tests.server.client import Client

SCHEMAS: list[Any] = [
    {},
    {"type": "object"},
    {"type": "integer", "minimum": 10**400},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"enum": ["a", 1, None]},
    {"type": "string", "pattern": "(a{9}){3}"},
    {"$ref": "#/nowhere"},
    {"anyOf": []},
]
FORMATS: list[Any] = [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "odd"}]
FORMATS += [{"type": "json_schema", "json_schema": {"name": "a", "schema": schema}} for schema in SCHEMAS]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in SCHEMAS[:4]]
FIELDS: dict[str, list[Any]] = {
    "temperature": [0, 0.7, 2, 3, -1, 1e-9, 10**400],
    "top_p": [0, 1e-9, 0.5, 1],
    "top_k": [-1, 0, 1, 10**12],
    "min_p": [0, 0.5, 1],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "repetition_penalty": [1e-30, 1, 1e30, 0],
    "no_repeat_ngram_size": [0, 1, 2, 10**6],
    "logit_bias": [{}, {"5": -100}, {"5": 1e308}, {"-1": 1}, {"100000": 1}, {"x": 1}],
    "bad_words": [[], ["a"], [""], list("abcdefghijklmnopqrstuvwxyz .,\n"), ["\x00"]],
    "min_tokens": [0, 1, 8, 10**9],
    "max_tokens": [0, 1, 8, -1, 10**9],
    "seed": [0, -1, 2**64],
    "ignore_eos": [True],
    "stop": ["a", ["a", ""], [], ["\U0001f600"]],
    "stop_token_ids": [[5], [], [-1], list(range(256))],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "cache_salt": ["", "a"],
    "priority": [0, -(2**31), 2**31],
    "stream": [True],
    "n": [0, 1, 2, 10**9],
    "logprobs": [True, 0, 3],
    "top_logprobs": [0, 3, 10**6],
    "response_format": FORMATS,
    "structured_outputs": [{"choice": ["a", "b"]}, {"regex": "[a"}, {"regex": "[ab]{2}"}, {"json": SCHEMAS[2]}, {}],
    "tools": [[], TOOLS[:1], TOOLS],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}],
    "chat_template_kwargs": [{}, {"enable_thinking": False}, {"messages": 1}],
    "echo": [True],
    "reasoning_effort": ["none", "high", "odd"],
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_combination_of_fields_is_an_error_of_the_server(path: str, client: Client) -> None:
    draw, answered = random.Random(path), 0
    for _ in range(100):
        drawn = {name: draw.choice(FIELDS[name]) for name in draw.sample(list(FIELDS), draw.randint(0, 5))}
        body = (
            {"prompt": draw.choice(["Hi", "", ["a", "b"]])}
            if path == "/v1/completions"
            else {"messages": [{"role": "user", "content": draw.choice(["Hi", ""])}]}
        )
        body |= {"max_tokens": 4} | drawn
        reply = client.post(path, body)
        assert reply.status < 500, (json.dumps(body)[:2000], reply.body[:500])
        answered += reply.status == 200
    assert answered > 15


def test_settings_that_ban_every_token_are_named(client: Client) -> None:
    body = {"prompt": "Hi", "max_tokens": 4, "min_tokens": 4, "bad_words": ["a", "b"]}
    reply = client.post("/v1/completions", body | {"structured_outputs": {"choice": ["a", "b"]}})
    assert reply.status == 400 and b"bad_words" in reply.body


@pytest.mark.parametrize("depth", [50, 1500, 100_000])
def test_calls_with_arguments_that_nest_deep_are_no_error_of_the_server(depth: int, client: Client) -> None:
    function = {"name": "f", "arguments": '{"a":' + "[" * depth + "]" * depth + "}"}
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    asked = {"messages": [called, {"role": "tool", "tool_call_id": "c", "content": "2"}], "max_tokens": 1}
    reply = client.post("/v1/chat/completions", asked)
    too_deep = reply.status == 400 and b"nests too deep" in reply.body
    too_long = reply.status == 400 and b"context_length_exceeded" in reply.body  # where Python reads so deep
    assert {50: reply.status == 200, 1500: too_deep or too_long, 100_000: too_deep}[depth], reply.body


@pytest.mark.parametrize("written", ['"\\ud800"', "1e999", "-1e999", "NaN"])
@pytest.mark.parametrize("field", ["prompt", "user", "metadata"])
def test_what_json_cannot_write_again_is_refused_in_any_field(field: str, written: str, client: Client) -> None:
    reply = client.post("/v1/completions", f'{{"prompt": "Hi", "{field}": {written}}}'.encode())
    assert reply.status == 400
