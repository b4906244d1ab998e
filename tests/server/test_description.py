"""Requests that schemathesis draws from the server's own description are no errors of the server."""

import json
from typing import Any

import pytest

import gen
from gen.server.routes import OTHERS, TEXTS
from tests.helpers import encoder_tokenizer, tiny_encoder
from tests.server.client import Client

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install '.[dev]'")
hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install '.[dev]'")

CASES = 25  # of each path


@pytest.fixture(scope="module")
def described(engine: gen.Engine) -> Client:
    embedder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    return Client(gen.server.app(engine, embedder=embedder, max_new_tokens=4, max_prompts=4))


@pytest.mark.parametrize("path", [path for path, *_ in (*TEXTS, *OTHERS)])
def test_no_body_that_the_description_allows_is_an_error_of_the_server(path: str, described: Client) -> None:
    schema = schemathesis.openapi.from_dict(described.get("/openapi.json").json)
    statuses: list[int] = []

    def ask(case: Any) -> None:
        reply = described.post(path, json.dumps(case.body).encode())
        statuses.append(reply.status)
        assert reply.status < 500, reply.body

    few = hypothesis.settings(max_examples=CASES, derandomize=True, database=None, deadline=None)
    few(hypothesis.given(schema[path]["POST"].as_strategy())(ask))()
    assert len(statuses) >= CASES / 2
