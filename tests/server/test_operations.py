"""What an operator sees and sets: lines in the log, ids, keys, health, the description, and fields without effect."""

import asyncio
import json
import logging
import math
import re
import shutil
import subprocess
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import gen
from gen.server import accounts
from gen.server.keys import Key, read_keys
from gen.server.process import Process
from gen.server.ray import _split as split
from gen.server.routes import OTHERS, TEXTS
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import byte_tokenizer, encoder_tokenizer, tiny_encoder
from tests.helpers.engines import GatedModel
from tests.server.client import Client, Reply, until

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]
FAILED = {"type": "tool_result", "tool_use_id": "c", "content": "no such file", "is_error": True}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [told for one in caplog.records if (told := getattr(one, "told", None)) is not None]


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_has_one_line(stream: bool, engine: gen.Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gen.server")
    client = Client(gen.server.app(engine, keys=[Key(name="alice", key="secret")]), {"x_api_key": "secret"})
    asked = {"prompt": ["One", "Two"], "n": 2, "max_tokens": 3, "ignore_eos": True, "temperature": 1, "stream": stream}
    reply = client.post(TEXT, asked, x_request_id="mine")
    assert (reply.status, reply.headers["x-request-id"]) == (200, "mine")
    [told] = lines(caplog)
    count = sum(len(engine.model.tokenizer.encode(prompt)) for prompt in ("One", "Two"))
    expected = {"id": "mine", "endpoint": "completions", "method": "POST", "status": 200, "key": "alice"}
    assert told.items() >= {**expected, "prompt_tokens": count, "completion_tokens": 12}.items()
    assert 0 <= told["queue"] <= told["first_token"] <= told["seconds"]
    assert "One" not in str(told)


@pytest.mark.parametrize("sent", ["a b", "", "é", "a" * 129])
def test_an_id_that_cannot_be_used_is_replaced(sent: str, engine: gen.Engine) -> None:
    found = Client(gen.server.app(engine)).get("/v1/models", x_request_id=sent).headers["x-request-id"]
    assert found.startswith("req_")


def test_errors_have_an_id_and_a_line_and_looks_have_none(engine: gen.Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gen.server")
    client = Client(gen.server.app(engine, api_key="k"), {"x_api_key": "k"})
    for path in ("/health", "/health/live", "/health/ready", "/metrics", "/openapi.json"):
        assert client.get(path).headers["x-request-id"]
    assert not lines(caplog)
    replies = [client.get("/nothing"), client.get(TEXT), client.post(TEXT, b"{"), client.post(TEXT, {}, x_api_key="x")]
    assert [one["status"] for one in lines(caplog)] == [one.status for one in replies] == [404, 405, 400, 401]
    assert [one["id"] for one in lines(caplog)] == [one.headers["x-request-id"] for one in replies]
    assert [one.get("key") for one in lines(caplog)] == [None, None, "api_key", None]


def test_texts_are_logged_only_where_the_operator_says_so(engine: gen.Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gen.server")
    fields = {"prompt": "One", "max_tokens": 4, "seed": 1}
    made = Client(gen.server.app(engine, log_texts=True)).post(TEXT, fields).json["choices"][0]["text"]
    Client(gen.server.app(engine)).post(TEXT, fields)
    assert [one.get("texts") for one in lines(caplog)] == [[made], None]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_is_written_line_by_line(form: Any, engine: gen.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    accounts.write_logs(form, "INFO")
    Client(gen.server.app(engine)).post(TEXT, {"prompt": "a\nb", "max_tokens": 1, "wizard\n": 1}, x_request_id="1")
    accounts.LOG.error("it\nfails", exc_info=ZeroDivisionError("no"))
    written = capsys.readouterr().err.splitlines()
    if form == "json":
        asked, failed = map(json.loads, written)
        assert (asked["endpoint"], asked["id"], asked["status"], asked["level"]) == ("completions", "1", 200, "INFO")
        assert "ZeroDivisionError" in failed["traceback"]
    else:
        assert " gen: POST completions 200 id=1 " in written[0] and written[0].endswith("ignored=wizard%0A")
        assert written[1].endswith(" ERROR: it") and "Traceback" not in written[0]


def test_keys_have_names_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[keys.alice]\nkey = "a"\nmost_running = 1\n[keys.bob]\nkey = "b"\n')
    keys = read_keys(file)
    assert keys == [Key(name="alice", key="a", most_running=1), Key(name="bob", key="b")]
    model = GatedModel("hello")
    with gen.Engine(model, rows=4) as engine:
        client = Client(gen.server.app(engine, keys=keys, api_key="main"))

        async def run() -> list[Reply]:
            first = asyncio.create_task(client.send("POST", TEXT, {"prompt": "a"}, headers={"x_api_key": "a"}))
            await until(lambda: engine.stats().running == 1)
            refused = await client.send("POST", TEXT, {"prompt": "a"}, headers={"x_api_key": "a"})
            others = [
                asyncio.create_task(client.send("POST", TEXT, {"prompt": "a"}, headers={"x_api_key": key}))
                for key in ("b", "b", "main")
            ]
            await until(lambda: engine.stats().running + engine.stats().waiting == 4)
            model.open()
            again = await asyncio.gather(first, *others)
            looks = [await client.send("GET", "/metrics", headers={"x_api_key": "a"}) for _ in range(2)]
            return [
                refused,
                *again,
                *looks,
                await client.send("POST", TEXT, {"prompt": "a"}, headers={"x_api_key": "a"}),
            ]

        refused, *answered = asyncio.run(run())
    assert (refused.status, refused.headers["retry-after"], refused.json["error"]["code"]) == (429, "1", "key_limit")
    assert [one.status for one in answered] == [200] * 7


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "must have tables"),
        ("[keys]", "must have tables"),
        ("keys = 1", "must have tables"),
        ('[keys.a]\nkey = "x"\n[key.b]\nkey = "y"', "and nothing else"),
        ("[keys.a]", "must have a key"),
        ('[keys]\na = "sesame"', "is no table$"),
        ('[[keys.a]]\nkey = "sesame"', "is no table$"),
        ('[keys.a]\nkey = "x"\nmost = 1', "must have a key"),
        ("[keys.a]\nkey = 1", "must be a text"),
        ('[keys.a]\nkey = "é"', "printable ASCII"),
        ('[keys.a]\nkey = "x"\nmost_running = 0', "most_running"),
        ("[keys.a", "cannot be used"),
        (None, "cannot be used"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_says_why(text: str | None, word: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(gen.GenError, match=word):
        read_keys(file)


def test_two_keys_are_two(engine: gen.Engine) -> None:
    for one, what in [(Key(name="a", key="y"), "name"), (Key(name="b", key="x"), "key")]:
        with pytest.raises(gen.ArgumentError, match=f"the same {what}"):
            gen.server.app(engine, keys=[Key(name="a", key="x"), one])


def test_a_server_that_ends_is_alive_and_not_ready(engine: gen.Engine) -> None:
    app = gen.server.app(engine)
    client = Client(app)
    assert [client.get(path).status for path in ("/health", "/health/live", "/health/ready")] == [200] * 3
    app.state.served.draining = True
    assert [client.get(path).status for path in ("/health/live", "/health/ready")] == [200, 503]
    assert client.get("/health/ready").json == {"status": "draining"}


def test_a_file_of_keys_may_begin_with_the_mark_of_windows(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_bytes(b'\xef\xbb\xbf[keys.a]\r\nkey = "x"\r\n')
    assert read_keys(file) == [Key(name="a", key="x")]


def test_a_slash_at_the_end_of_a_path_is_no_redirect(engine: gen.Engine) -> None:
    """Its address would have http where a proxy has https, and the client would send its body there."""
    client = Client(gen.server.app(engine))
    paths = ("/health/", "/v1/models/", "/v1/models/gen/")
    assert [client.get(path).status for path in paths] == [200] * 3
    assert client.post(f"{TEXT}/", {"prompt": "One", "max_tokens": 1}).status == 200
    assert client.get("/").status == 404


def test_a_server_that_loads_is_alive_and_not_ready() -> None:
    process = Process(lambda: pytest.fail("nothing loads here"), shutdown_timeout=1)
    client = Client(process._answer)
    assert client.post("/v1/messages", {}).json["error"]["type"] == "overloaded_error"
    assert [client.get(path).status for path in ("/health/live", "/health/ready", "/health")] == [200, 503, 503]


def test_the_description_has_each_path_and_takes_what_the_server_takes(engine: gen.Engine) -> None:
    found = Client(gen.server.app(engine)).get("/openapi.json").json
    assert found["openapi"] == "3.1.0"
    assert {path for path, *_ in (*TEXTS, *OTHERS)} <= found["paths"].keys()
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": HELLO, "temperature": 0.5, "stop": ["a"], "logit_bias": {"5": 1}}),
        (TEXT, {"prompt": "One", "n": 2, "max_tokens": 1}),
        ("/v1/responses", {"input": "One", "truncation": "auto"}),
    ]
    for path, asked in bodies:
        schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        checked = Draft202012Validator({**schema, "components": found["components"]})
        checked.validate(asked)
        assert list(checked.iter_errors({**asked, "temperature": "hot"}))


def test_fields_without_effect_are_named_and_refused_by_a_strict_server(engine: gen.Engine) -> None:
    lenient, strict = Client(gen.server.app(engine)), Client(gen.server.app(engine, strict=True))
    asked = {"prompt": "One", "max_tokens": 1, "max_token": 5, "é\x1f,\x7f": 1}
    reply = lenient.post(TEXT, asked)
    assert (reply.status, reply.headers["x-ignored-fields"]) == (200, "max_token,%C3%A9%1F%2C%7F")
    assert b'gen_ignored_fields_total{endpoint="completions"} 2.0' in lenient.get("/metrics").body
    many = lenient.post(TEXT, {"prompt": "One", "max_tokens": 1, **dict.fromkeys(map(str, range(9999)))})
    assert (
        len(lenient.post(TEXT, {**asked, **dict.fromkeys(map(str, range(9999)), 1)}).headers["x-ignored-fields"])
        == 1024
    )
    assert "x-ignored-fields" not in many.headers  # null counts as not given
    refused = strict.post(TEXT, asked)
    assert refused.status == 400 and refused.json["error"]["param"] == "max_token"
    within = strict.post(CHAT, {"messages": HELLO, "stream_options": {"include_usag": 1}})
    assert within.status == 400 and "stream_options.include_usag" in within.json["error"]["message"]
    harmless = strict.post(TEXT, {"prompt": "One", "max_tokens": 1, "user": "me"})
    assert (harmless.status, harmless.headers["x-ignored-fields"]) == (200, "user")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("path", "asked", "ignored"),
    [
        ("/v1/messages", {"messages": HELLO, "context_management": {"edits": []}}, "context_management"),
        ("/v1/messages", {"messages": HELLO, "output_config": {"effort": "low"}}, "output_config.effort"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [FAILED]}]}, "messages.is_error"),
        (CHAT, {"messages": [{**HELLO[0], "weight": 1, "prefix": None}]}, "messages.weight"),
        ("/v1/messages", {"messages": HELLO, "metadata": {"user_id": "me"}}, "metadata"),
        (CHAT, {"messages": HELLO, "store": True, "service_tier": "auto"}, "store"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]}, "messages.b"),
        ("/v1/responses", {"input": [{**HELLO[0], "weight": 1, "id": "msg_1", "status": "completed"}]}, "input.weight"),
        (
            "/v1/responses",
            {"input": [{"type": "reasoning", "encrypted_content": "a"}, HELLO[0]]},
            "input.encrypted_content",
        ),
        ("/v1/responses", {"input": "Hi", "truncation": "auto"}, "truncation"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ("/v1/responses", {"input": "Hi", "include": ["reasoning.encrypted_content"]}, "include"),
    ],
)
def test_what_agents_send_without_effect_is_taken_and_named(
    path: str, asked: dict[str, Any], ignored: str, strict: bool
) -> None:
    model = GatedModel("hello")
    model.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    model.open()
    with gen.Engine(model, rows=1) as own:
        reply = Client(gen.server.app(own, strict=strict)).post(path, asked)
    assert (reply.status, reply.headers["x-ignored-fields"]) == (200, ignored)


@pytest.fixture(scope="module")
def similar(engine: gen.Engine) -> Client:
    embedder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    return Client(gen.server.app(engine, embedder=embedder))


def test_documents_come_by_their_cosine(similar: Client) -> None:
    documents = ["a cat", "the query", {"text": "two dogs"}, "the query"]
    texts = ["the query", "a cat", "the query", "two dogs", "the query"]
    vectors = [one["embedding"] for one in similar.post("/v1/embeddings", {"input": texts}).json["data"]]
    expected = [cosine(vectors[0], one) for one in vectors[1:]]
    found = similar.post("/v1/rerank", {"query": "the query", "documents": documents}).json
    assert [one["index"] for one in found["results"]] == sorted(
        range(4), key=lambda number: -round(expected[number], 5)
    )
    for one in found["results"]:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-5)
        assert one["document"] == {"text": texts[1:][one["index"]]}
    few = {"query": "the query", "documents": documents, "top_n": 2, "return_documents": False}
    assert [one.keys() for one in similar.post("/v1/rerank", few).json["results"]] == [{"index", "relevance_score"}] * 2


def test_pairs_are_scored_by_their_cosine(similar: Client) -> None:
    one = similar.post("/v1/score", {"text_1": "a cat", "text_2": ["a cat", "two dogs"]}).json
    pairs = similar.post("/v1/score", {"text_1": ["a cat"] * 2, "text_2": ["a cat", "two dogs"]}).json
    assert [each["score"] for each in one["data"]] == pytest.approx([each["score"] for each in pairs["data"]], abs=1e-6)
    assert one["data"][0]["score"] == pytest.approx(1, abs=1e-5) and one["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("prompts", "default", "query", "document"),
    [
        ({"query": "two ", "document": "a "}, "query", "two ", "a "),
        ({"query": "two ", "corpus": "the ", "passage": "a "}, None, "two ", "a "),
        ({"query": "two ", "corpus": "a "}, None, "two ", "a "),
        ({"query": "two "}, "query", "two ", ""),
        ({"mine": "two "}, "mine", "", ""),
    ],
)
def test_queries_and_documents_are_compared_after_prompts_of_their_own(
    prompts: dict[str, str], default: str | None, query: str, document: str, engine: gen.Engine, similar: Client
) -> None:
    embedder = gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer())
    embedder.recipe = replace(embedder.recipe, prompts=prompts, default_prompt_name=default)
    client = Client(gen.server.app(engine, embedder=embedder))
    texts = [f"{query}the query", f"{document}a cat", f"{document}dogs"]
    read = similar.post("/v1/embeddings", {"input": texts}).json
    first, *others = [one["embedding"] for one in read["data"]]
    expected = pytest.approx([cosine(first, one) for one in others], abs=1e-5)
    ranked = client.post("/v1/rerank", {"query": "the query", "documents": ["a cat", "dogs"]}).json
    assert [one["relevance_score"] for one in sorted(ranked["results"], key=itemgetter("index"))] == expected
    scored = client.post("/v1/score", {"text_1": "the query", "text_2": ["a cat", "dogs"]}).json
    assert [one["score"] for one in scored["data"]] == expected
    assert ranked["usage"]["total_tokens"] == scored["usage"]["total_tokens"] == read["usage"]["total_tokens"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/v1/rerank", {"query": "a", "documents": [{"image": "a"}]}),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}),
        ("/v1/rerank", {"documents": ["a"]}),
        ("/v1/score", {"text_1": [], "text_2": "a"}),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "a"}),
        ("/v1/score", {"text_1": "a"}),
    ],
)
def test_what_cannot_be_compared_is_refused(path: str, fields: dict[str, Any], similar: Client) -> None:
    assert similar.post(path, fields).status == 400
    assert similar.post(path, {**fields, "model": "other"}).status in (400, 404)


def cosine(one: list[float], other: list[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def test_the_page_and_the_dashboard_name_numbers_that_the_server_has(engine: gen.Engine) -> None:
    client = Client(gen.server.app(engine))
    client.post(TEXT, {"prompt": "One", "max_tokens": 2, "wizard": 1})
    told = client.get("/metrics").body.decode()
    guides = Path(__file__).parents[2] / "docs" / "guides"
    for name in ("gen-dashboard.json", "operate.md"):
        named = set(re.findall(r"(?:vllm:|gen_|process_)[a-z0-9_]{4,}", (guides / name).read_text()))
        assert len(named) > 8 and not [one for one in named if one not in told]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "operate.md").read_text()
    [written] = re.findall(r"^```ini.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    unit = tmp_path / "gen@0.service"
    unit.write_text(written.replace("/opt/gen/bin/gen", "/bin/sh"))  # a path that has no space
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert checked.returncode == 0 and "gen@0" not in checked.stdout + checked.stderr, checked


def test_memory_is_told_in_bytes_of_weights_rows_and_prefixes(demo: Any) -> None:
    config = demo.hf_model.config
    with gen.Engine(demo, rows=2, prefix_bytes=1000) as engine:
        found = gen.server.app(engine).state.served.memory()
    with gen.Engine(demo, rows=2, max_batch_tokens=70) as engine:
        bounded = gen.server.app(engine).state.served.memory()
    width = config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * 4  # keys and values, float32
    assert found["weights"] >= sum(one.numel() * one.element_size() for one in demo.hf_model.parameters())
    assert found["rows"] == pytest.approx(2 * demo.context_length * token, rel=1e-3) and found["prefixes"] == 1000
    assert bounded["rows"] == pytest.approx(70 * token, rel=1e-3) and bounded["prefixes"] > 1000


def test_keys_of_a_cluster_have_names_and_limits_as_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEN_API_KEY", raising=False)
    alice: dict[str, Any] = {"key": "a", "most_running": 4}
    *_, server = split({"model": "demo", "keys": {"alice": alice, "bob": {"key": "b"}}})
    with pytest.raises(
        gen.ArgumentError, match=r"args need a model, .* got \['keys'\]$"
    ):  # without the keys themselves
        split({"keys": {"alice": alice}})
    assert gen.server.Settings(**server).keys == (Key(name="alice", **alice), Key(name="bob", key="b"))
    with pytest.raises(gen.ArgumentError, match=r"\[keys.eve\] must have a key"):
        split({"model": "demo", "keys": {"eve": {"kye": "a"}}})


def test_an_application_of_a_model_is_refused(engine: gen.Engine) -> None:
    with pytest.raises(gen.ArgumentError, match=r"app takes an engine, as gen.Engine\(model\), got "):
        gen.server.app(engine.model)  # type: ignore[arg-type]
    settings: list[tuple[dict[str, Any], str]] = [
        ({"strict": "no"}, "strict must be True or False, got 'no'"),
        ({"max_prompt": 4}, "got 'max_prompt'; did you mean 'max_prompts'\\?"),
        ({"names": None}, "names must be a list of names, got None"),
        ({"embedder": "vectors"}, "embedder must be an encoder, as from gen.load_encoder, got 'vectors'"),
        ({"keys": ["secret"]}, r"keys must be a list of keys, as \[gen.server.keys.Key\(.*\)\].$"),  # without them
    ]
    for given, message in settings:
        with pytest.raises(gen.ArgumentError, match=message):
            gen.server.app(engine, **given)
