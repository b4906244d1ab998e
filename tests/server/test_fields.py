"""No field is ignored in silence: it changes what is asked of the engine, or the answer; or it is named, or refused.

The oracle is the server's behaviour: each field of each body is sent beside a request that has none of it.
"""

import copy
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gen
from gen.server.bodies import Body, Known
from gen.server.routes import OTHERS, TEXTS
from tests.helpers import encoder_tokenizer, tiny_encoder
from tests.server.client import Client, Reply

BODIES = {path: body for path, _, body, *_ in (*TEXTS, *OTHERS)}
HELLO = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
CHAT, TEXT, RESPONSES, MESSAGES = (path for path, *_ in TEXTS)
COUNT, EMBEDDINGS, RERANK, SCORE, TOKENIZE, DETOKENIZE = (path for path, *_ in OTHERS)

Cases = dict[str, Any]
"""For each field a value; or a call that returns it, with other fields that the request then has in both cases."""


def beside(value: Any, **others: Any) -> Any:
    return lambda: (value, others)


SAMPLING: Cases = {
    "model": "other",
    "temperature": 0,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.5,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 2,
    "no_repeat_ngram_size": 2,
    "logit_bias": {"5": 1},
    "bad_words": ["a"],
    "min_tokens": 2,
    "seed": 5,
    "ignore_eos": True,
    "stop": "a",
    "stop_token_ids": [5],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "cache_salt": "a",
    "priority": 1,
    "stream": True,
}
CHUNKED: Cases = SAMPLING | {
    "n": 2,
    "max_tokens": 2,
    "prompt_logprobs": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "structured_outputs": {"choice": ["a", "b"]},
    "stream_options.include_usage": beside(True, stream=True),
    "return_receipt": True,
}
ASKED_BY_CHATS: Cases = {
    "tools": [FUNCTION],
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "high",
    "thinking_token_budget": 5,
}
CASES: dict[str, Cases] = {
    CHAT: CHUNKED
    | ASKED_BY_CHATS
    | {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Ho"}]}],
        "max_completion_tokens": 2,
        "logprobs": True,
        "top_logprobs": beside(2, logprobs=True),
        "tool_choice": beside({"type": "function", "function": {"name": "f"}}, tools=[FUNCTION]),
        "parallel_tool_calls": beside(False, tools=[FUNCTION]),
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    TEXT: CHUNKED
    | {"prompt": "Two", "best_of": 2, "echo": True, "suffix": "b", "logprobs": 1, "max_tokens": 2, "seed": 5},
    RESPONSES: SAMPLING
    | {
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Ho"}]}],
        "instructions": "Be brief.",
        "max_output_tokens": 2,
        "tools": [{"type": "function", **FUNCTION["function"]}],  # type: ignore[dict-item]
        "tool_choice": beside("required", tools=[FUNCTION]),
        "parallel_tool_calls": beside(False, tools=[FUNCTION]),
        "text.format": {"type": "json_schema", "name": "a", "schema": SCHEMA},
        "text.verbosity": "low",
        "reasoning.effort": "high",
        "top_logprobs": 2,
        "include": ["reasoning.encrypted_content"],
        "metadata": {"a": "b"},
        "chat_template_kwargs": {"enable_thinking": False},
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "prompt": {"id": "pmpt_1"},
    },
    MESSAGES: SAMPLING
    | {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Ho"}]}],
        "max_tokens": 2,
        "system": [{"type": "text", "text": "Be brief."}],
        "stop_sequences": ["a"],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice.type": beside("any", tools=[{"name": "f", "input_schema": SCHEMA}]),
        "tool_choice.name": "f",
        "tool_choice.disable_parallel_tool_use": beside(True, tools=[{"name": "f", "input_schema": SCHEMA}]),
        "thinking.type": "enabled",
        "thinking.budget_tokens": 5,
        "output_format": {"type": "json_schema", "schema": SCHEMA},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    EMBEDDINGS: {"model": "other", "input": "a cat", "encoding_format": "base64", "dimensions": 2},
    RERANK: {"model": "other", "query": "a", "documents": [{"text": "c"}], "top_n": 1, "return_documents": False},
    SCORE: {"model": "other", "text_1": "b", "text_2": "c"},
    TOKENIZE: ASKED_BY_CHATS
    | {
        "model": "absent",
        "prompt": "Two",
        "messages": beside([{"role": "user", "content": [{"type": "text", "text": "Ho"}]}], prompt=None),
        "add_special_tokens": False,
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    DETOKENIZE: {"model": "absent", "tokens": [8]},
}
CASES[COUNT] = CASES[MESSAGES]  # the body of a request, whatever of it shapes the prompt
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_completion_tokens": 8, "seed": 1},
    TEXT: {"prompt": "One", "max_tokens": 8, "seed": 1},
    RESPONSES: {"input": "Hi", "max_output_tokens": 8, "seed": 1},
    MESSAGES: {"messages": HELLO, "max_tokens": 8, "seed": 1},
    EMBEDDINGS: {"input": "two dogs"},
    RERANK: {"query": "the query", "documents": ["a cat", "two dogs"]},
    SCORE: {"text_1": "a cat", "text_2": "two dogs"},
    TOKENIZE: {"prompt": "One"},
    DETOKENIZE: {"tokens": [5]},
}
NOT_LOOKED_INTO = {  # fields with values of any form, which one of the others checks as a whole
    "prompt",
    "input",
    "logit_bias",
    "structured_outputs",
    "chat_template_kwargs",
    "metadata",
    "previous_response_id",
    "conversation",
}


def names_of(body: type[Body], before: str = "") -> Iterator[str]:
    """The fields of a body, with those of the models within it."""
    for name, field in body.model_fields.items():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, Body):
            yield from names_of(field.annotation, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def with_field(base: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return {**base, outer: {inner: value} if inner else value}


class Listening:
    """A server that keeps what the last request has asked of its engine."""

    def __init__(self, engine: gen.Engine) -> None:
        embedder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
        app = gen.server.app(engine, names=["demo", "other"], embedder=embedder, embedder_names=["embedder", "other"])
        self.client, self._submit, self.asked = Client(app), engine.submit_all, list[Any]()
        engine.submit_all = self._listen  # type: ignore[method-assign]

    def _listen(self, *given: Any, **more: Any) -> Any:
        self.asked.append((given, more))
        return self._submit(*given, **more)

    def effects(self, path: str, body: dict[str, Any]) -> tuple[Reply, Any]:
        self.asked = []
        reply = self.client.post(path, body)
        asked = re.sub(" at 0x[0-9a-f]+", "", repr(self.asked))
        answer = json.loads(reply.body) if reply.body[:1] == b"{" else [*reply.events[-2]]
        return reply, (reply.status, asked, told(answer))


def told(answer: Any) -> Any:
    """An answer without what differs from one to the next."""
    if isinstance(answer, dict):
        own = ("id", "call_id", "item_id", "created", "created_at")
        return {name: told(value) for name, value in answer.items() if name not in own and "cache" not in name}
    return [*map(told, answer)] if isinstance(answer, list) else answer


@pytest.fixture(scope="module")
def listening(demo: Any) -> Iterator[Listening]:
    with gen.Engine(demo, rows=8, prefix_bytes=0, speculate=False) as own:  # which changes the last bits of logprobs
        yield Listening(own)


@pytest.mark.parametrize("path", BODIES)
def test_each_field_of_each_body_has_a_case(path: str) -> None:
    assert {*CASES[path]} == {*names_of(BODIES[path])}


@pytest.mark.parametrize("path", BASE)
def test_each_field_acts_or_is_named_or_refused(path: str, listening: Listening) -> None:
    for name, given in CASES[path].items():
        value, others = given() if callable(given) else (given, {})
        base = {**BASE[path], **others}
        _, once = listening.effects(path, base)
        _, twice = listening.effects(path, base)
        assert once == twice  # else a difference would show nothing
        reply, effects = listening.effects(path, with_field(base, name, value))
        named = name in reply.headers.get("x-ignored-fields", "").split(",")
        assert named or effects != once, f"{name} of {path} is ignored in silence"
        assert not (named and effects != once), f"{name} of {path} is named, and it acts: {effects}"


@pytest.mark.parametrize("path", BASE)
def test_what_no_model_knows_is_named_at_any_depth(path: str, listening: Listening) -> None:
    """Within each field whose values may have any form, too."""
    body = BODIES[path]
    free = {name for name, field in body.model_fields.items() if "Any" in str(field.annotation)}
    assert free - body.inner.keys() <= NOT_LOOKED_INTO
    for name, known in body.inner.items():
        given = CASES[path][name]
        value, others = given() if callable(given) else (given, {})
        for odd in with_surprises(value, known):
            reply = listening.client.post(path, {**BASE[path], **others, name: odd})
            named = reply.headers.get("x-ignored-fields", "").split(",")
            assert reply.status == 400 or f"{name}.surprise" in named, (name, odd)
    models = sorted({name.partition(".")[0] for name in CASES[path] if "." in name})
    for name in ("surprise", *(f"{model}.surprise" for model in models)):
        assert listening.client.post(path, with_field(BASE[path], name, 1)).headers["x-ignored-fields"] == name


@pytest.mark.parametrize("path", BASE)
def test_null_is_as_if_a_field_were_not_there(path: str, listening: Listening) -> None:
    body = BODIES[path]
    nulls = dict.fromkeys({*body.model_fields, *body.refused, *body.harmless} - BASE[path].keys())
    tool = {"name": "f", "input_schema": SCHEMA}
    others: dict[str, Any] = (
        {"tools": [tool], "tool_choice": {"type": "auto"}, "max_tokens": 80} if path == MESSAGES else {}
    )
    odd: dict[str, Any] = {"tools": [{**tool, "type": None}], "tool_choice": {"type": "auto", "name": None}}
    odd |= {"max_tokens": 80, "output_config": {"task_budget": None}, "thinking": {"type": None}}
    _, without = listening.effects(path, {**BASE[path], **others})
    reply, effects = listening.effects(path, {**BASE[path], **nulls, **(odd if others else {})})
    assert effects == without and "x-ignored-fields" not in reply.headers


def with_surprises(value: Any, known: Known | None) -> Iterator[Any]:
    """The value with one more field, at each place where fields are known."""
    if isinstance(value, list):
        for place, one in enumerate(value):
            for odd in with_surprises(one, known):
                yield [*value[:place], odd, *value[place + 1 :]]
    elif isinstance(value, dict) and known is not None:
        yield {**value, "surprise": 1}
        for name, one in value.items():
            for odd in with_surprises(one, known.get(name)):
                yield {**copy.deepcopy(value), name: odd}
