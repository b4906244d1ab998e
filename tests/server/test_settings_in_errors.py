"""A refusal names a setting as the client does: by the field of its protocol, and not by gen's own word."""

import pickle
from dataclasses import fields
from typing import Any

import pytest

import gen
from gen.errors import in_python, own, setting, show
from gen.requests.settings import Settings
from gen.samplers import BeamSearchSampler, MultinomialSampler
from gen.server.errors import told
from gen.server.protocols.chat import ChatBody
from gen.server.protocols.completions import CompletionBody
from gen.server.protocols.messages import MessagesBody
from gen.server.protocols.responses import ResponsesBody
from gen.server.sampling import SamplingFields
from tests.server.client import Client

HELLO = [{"role": "user", "content": "Hi"}]
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TYPE = {"type": "json_schema", "schema": {"enum": ["a long value, of many tokens"]}}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": TYPE}},
    TEXT: {"prompt": "Hi", "response_format": {"type": "json_schema", "json_schema": TYPE}},
    RESPONSES: {"input": "Hi", "text": {"format": TYPE}},
    MESSAGES: {"messages": HELLO, "output_format": TYPE},
}
CAPS = [
    (CHAT, "max_tokens"),
    (CHAT, "max_completion_tokens"),
    (TEXT, "max_tokens"),
    (RESPONSES, "max_output_tokens"),
    (MESSAGES, "max_tokens"),
]
# of calls in Python, which a server sets by itself, or does not have
NO_FIELDS = {"images", "chat", "describe", "draft", "limits_thoughts", "local_files", "logits_processors", "max_time"}
NO_FIELDS |= {"sampler", "samples", "shorten", "truncate", "beams", "early_stopping", "length_penalty", "parameters"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path, cap", CAPS)
def test_too_small_a_limit_is_told_by_the_field_that_was_sent(
    path: str, cap: str, stream: bool, client: Client
) -> None:
    refused = client.post(path, {**ASKED[path], cap: 2, "stream": stream})
    told = refused.json["error"]
    assert refused.status == 400
    assert f"{cap} is 2; give at least" in told["message"] and "max_new_tokens" not in told["message"]
    assert path == MESSAGES or told["param"] == cap


@pytest.mark.parametrize("path, cap", CAPS)
def test_the_servers_own_limit_is_told_as_such(path: str, cap: str, engine: gen.Engine) -> None:
    client = Client(gen.server.app(engine, max_new_tokens=2))
    for more in ({}, {cap: 100}):
        told = client.post(path, {**ASKED[path], **more}).json["error"]
        assert "the server's max_new_tokens is 2" in told["message"] and told.get("param") is None
    odd = client.post("/tokenize", {"prompt": "Hi", "cap": "x"})  # a field that nobody knows
    assert odd.status == 200
    assert f", {cap} is 1;" in client.post(path, {**ASKED[path], cap: 1}).json["error"]["message"]


@pytest.mark.parametrize(
    "path, fields, field",
    [
        (CHAT, {"min_tokens": 10**30}, "min_tokens"),
        (CHAT, {"stop_token_ids": [10**6]}, "stop_token_ids"),
        (TEXT, {"stop_token_ids": [-1]}, "stop_token_ids"),
        (RESPONSES, {"min_tokens": 10**30}, "min_tokens"),
        (MESSAGES, {"stop_sequences": [""]}, "stop_sequences"),
    ],
)
def test_other_settings_have_the_clients_names_too(path: str, fields: Any, field: str, client: Client) -> None:
    known = {name: value for name, value in ASKED[path].items() if name in ("messages", "prompt", "input")}
    refused = client.post(path, {**known, **fields})
    told = refused.json["error"]
    assert refused.status == 400 and field in told["message"] and "new_tokens" not in told["message"]
    assert "eos_token_id" not in told["message"] and "gen." not in told["message"]
    assert path == MESSAGES or told["param"] == field


def test_a_refusal_says_nothing_of_calls_in_python(client: Client) -> None:
    told = client.post(TEXT, {"prompt": "a" * 5000}).json["error"]
    assert (told["code"], "gen." in told["message"]) == ("context_length_exceeded", False)


@pytest.mark.parametrize(
    "body, lacks",
    [
        (ChatBody, set()),
        (CompletionBody, {"thinking", "chat_template_kwargs"}),
        (ResponsesBody, {"prompt_logprobs"}),
        (MessagesBody, {"prompt_logprobs", "top_logprobs", "chat_template_kwargs"}),
    ],
)
def test_every_setting_of_gen_has_a_word_in_every_protocol(body: type[SamplingFields], lacks: set[str]) -> None:
    samplers = {one.name for kind in (MultinomialSampler, BeamSearchSampler) for one in fields(kind)}
    settings = {*Settings.__annotations__, *samplers} - NO_FIELDS - lacks
    assert settings <= {*body.model_fields, *body.renamed}


@pytest.mark.parametrize(
    "asked",
    [
        {"json": {"type": "object", "properties": {"max_new_tokens": {"$ref": "#/none"}}}},
        {"json": {"type": "object", "properties": {"max_new_tokens": {"type": "string", "pattern": "a(?=b)"}}}},
        {"grammar": "start: max_new_tokens"},
    ],
    ids=["ref", "pattern", "grammar"],
)
def test_what_the_client_wrote_is_quoted_as_it_wrote_it(asked: Any, client: Client) -> None:
    fields = {"prompt": "Hi", "max_tokens": 9, "structured_outputs": asked}
    message = client.post(TEXT, fields).json["error"]["message"]
    assert "max_new_tokens" in message and "max_tokens" not in message


def test_one_message_has_the_clients_name_and_the_clients_text() -> None:
    quoted = "thinking; gen.load(3), max_new_tokens"
    error = gen.ArgumentError(f"{setting('max_new_tokens')} is 2 for {show(quoted)}{in_python(', as gen.text()')}.")
    assert str(error) == f"max_new_tokens is 2 for {quoted!r}, as gen.text()."
    for one in (error, own(error), pickle.loads(pickle.dumps(error))):
        refusal = told(one, {"max_new_tokens": "max_tokens", "thinking": "reasoning"})
        assert (refusal.message, refusal.param) == (f"max_tokens is 2 for {quoted!r}.", "max_tokens")
    assert told(error).message == f"max_new_tokens is 2 for {quoted!r}."
