"""No value of a wrong type in any place of a body makes an endpoint fail: it is refused, or does not matter."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import gen
from gen.server.routes import OTHERS, TEXTS
from tests.helpers import encoder_tokenizer, tiny_encoder
from tests.server.client import Client

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": "x", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "2"},
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": CHAT,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 0,
        "stop": ["."],
        "logit_bias": {"5": 1},
        "stream_options": {"include_usage": True},
        "metadata": {"a": "b"},
    },
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "text"}},
        "max_output_tokens": 1,
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "2"}]},
        ],
        "system": [{"type": "text", "text": "Be kind."}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "text"}},
        "max_tokens": 1,
    },
    "/v1/completions": {"prompt": ["Hi"], "max_tokens": 0, "stop": ["."], "logit_bias": {"5": 1}},
    "/tokenize": {"messages": CHAT},
    "/detokenize": {"tokens": [5, 60]},
    "/v1/embeddings": {"input": ["Hi"], "dimensions": 5, "encoding_format": "base64", "normalize": True},
    "/v1/rerank": {"query": "Hi", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True},
    "/v1/score": {"text_1": ["Hi"], "text_2": ["a"]},
}
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
WRONG: list[Any] = [[], {}, [["text"]], {"type": ["x"]}, "x", 1, -1, 10**30, 1.5, True, [1], ["text"]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place of a body, as keys and numbers that lead to it."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


@pytest.fixture(scope="module")
def client(engine: gen.Engine) -> Client:
    embedder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    return Client(gen.server.app(engine, embedder=embedder, max_new_tokens=4))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("path", [path for path, *_ in (*TEXTS, *OTHERS)])
def test_a_wrong_type_in_any_place_is_no_fault_of_the_server(path: str, client: Client) -> None:
    assert client.post(path, BODIES[path]).status in (200, 400)  # a call has no room in 0 tokens
    for place in places(BODIES[path]):
        for wrong in WRONG:
            body = copy.deepcopy(BODIES[path])
            there: Any = body
            for key in place[:-1]:
                there = there[key]
            there[place[-1]] = wrong
            reply = client.post(path, body)
            assert reply.status < 500, (place, wrong, reply.body[:200])
