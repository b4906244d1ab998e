"""A request is worked on until its client leaves, its time is over, or the server ends, whatever it waits for."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

import gen
from gen.server import bodies, waiting
from gen.server.served import LARGE, Served
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import byte_tokenizer
from tests.helpers.engines import FailingModel, GatedModel
from tests.server.client import Client, Reply, until
from tests.server.test_metrics import numbers

T = TypeVar("T")
CHAT, TEXT, COUNT = "/v1/chat/completions", "/v1/completions", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def model() -> Iterator[GatedModel]:
    model = GatedModel("hello")
    yield model
    model.open()


@pytest.fixture
def engine(model: GatedModel) -> Iterator[gen.Engine]:
    with gen.Engine(model, rows=8) as engine:
        yield engine
        model.open()


class Gate:
    """Lets no text with "slow" in it be encoded until it opens; `threads` are those that wait or have waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self._open, encode = threading.Event(), Tokenizer._encode

        def waiting_encode(tokenizer: Tokenizer, text: str, **options: Any) -> list[int]:
            if "slow" in text:
                self.threads.append(threading.current_thread().name)
                assert self._open.wait(60)
            return encode(tokenizer, text, **options)

        monkeypatch.setattr(Tokenizer, "_encode", waiting_encode)
        self.open = self._open.set


@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/responses", "/v1/messages", COUNT, "/tokenize"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_request_counts_while_its_prompt_is_encoded_and_others_go_on(
    path: str, stream: bool, engine: gen.Engine, model: GatedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, model.tokenizer = Gate(monkeypatch), Tokenizer(byte_tokenizer(chat=True))
    name = {"/v1/responses": "input", TEXT: "prompt", "/tokenize": "prompt"}.get(path, "messages")
    asked = {name: [{"role": "user", "content": "slow"}] if name == "messages" else "slow", "max_tokens": 3}
    late, other = Client(gen.server.app(engine, request_timeout=0.001)), Client(gen.server.app(engine))
    model.open()

    async def run() -> tuple[Reply, Reply]:
        slow = await late.send("POST", path, {**asked, "stream": stream})
        beside = await other.send("POST", TEXT, {"prompt": "a"})
        gate.open()
        return slow, beside

    slow, beside = asyncio.run(run())
    assert (slow.status, slow.json["error"]["type"]) == (504, "timeout_error")
    assert beside.json["choices"][0]["text"] == "hello" and gate.threads


def test_large_requests_share_one_thread(engine: gen.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, client = Gate(monkeypatch), Client(gen.server.app(engine))
    large = {"prompt": "slow" + " " * LARGE, "max_tokens": 1}

    async def run() -> None:
        leave = asyncio.Event()
        paths = [TEXT, TEXT, "/tokenize"] * 20
        tasks = [asyncio.create_task(client.send("POST", path, large, leave=leave)) for path in paths]
        await until(lambda: bool(gate.threads))
        assert (await client.send("POST", "/tokenize", {"prompt": "ab"})).json["count"] == 2
        leave.set()
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {499}
        gate.open()

    asyncio.run(run())
    assert gate.threads == ["gen large requests_0"]  # those that have left do not run at all


@pytest.mark.parametrize("stream", [False, True])
def test_time_and_leaving_count_while_a_type_is_compiled(
    stream: bool, engine: gen.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen.server.compiling.Compiling.ready", ready_unless_typed)
    fields = {"prompt": "a", "stream": stream, "structured_outputs": {"regex": "a+"}}
    assert Client(gen.server.app(engine, request_timeout=0.001)).post(TEXT, fields).status == 504
    app = gen.server.app(engine)

    async def run() -> Reply:
        leave = asyncio.Event()
        asking = asyncio.create_task(Client(app).send("POST", TEXT, fields, leave=leave))
        await asyncio.sleep(0)
        leave.set()
        return await asking

    assert asyncio.run(run()).status == 499
    assert numbers(app)["gen_requests_total completions 499"] == 1


def test_a_body_that_does_not_come_is_given_up(
    engine: gen.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def half(app: Any, leave: bool) -> Reply:
        left = asyncio.Event()
        if leave:
            left.set()
        return await Client(app).send("POST", TEXT, b'{"prompt": ', half=True, leave=left)

    assert asyncio.run(half(gen.server.app(engine), leave=True)).status == 499
    assert asyncio.run(half(gen.server.app(engine, request_timeout=0.001), leave=False)).status == 504
    monkeypatch.setattr(bodies, "PATIENCE", 0.001)
    app = gen.server.app(engine)
    assert asyncio.run(half(app, leave=False)).status == 408
    assert numbers(app)["gen_requests_total completions 408"] == 1
    assert not caplog.records


def test_what_the_server_cuts_at_its_end_is_503_or_an_event(
    engine: gen.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, app = Gate(monkeypatch), gen.server.app(engine)
    client, served = Client(app), app.state.served
    assert isinstance(served, Served)
    monkeypatch.setattr("gen.server.compiling.Compiling.ready", ready_unless_typed)
    asked: list[dict[str, Any]] = [
        {"prompt": "a"},
        {"prompt": "a", "stream": True},
        {"prompt": ["a", "b"], "n": 2, "stream": True},
        {"prompt": "slow"},
        {"prompt": "slow", "stream": True},
        {"prompt": "a", "structured_outputs": {"regex": "a+"}},
    ]

    async def run() -> tuple[list[Reply], Reply]:
        replies = [Reply() for _ in [*asked, "half"]]
        sent = [*(client.send("POST", TEXT, one, reply=reply) for one, reply in zip(asked, replies, strict=False))]
        sent.append(client.send("POST", TEXT, b"{", half=True, reply=replies[-1]))
        tasks = [asyncio.create_task(one) for one in sent]
        await until(lambda: [reply.status for reply in replies[1:3]] == [200, 200] and len(gate.threads) == 2)
        await until(lambda: engine.stats().running + engine.stats().waiting == 6)
        assert served.end() == len(asked) + 1
        replies = await asyncio.gather(*tasks)
        gate.open()
        return replies, await client.send("POST", TEXT, {"prompt": "a"})

    replies, after = asyncio.run(run())
    for reply in [*replies[:1], *replies[3:], after]:
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert reply.json["error"]["code"] == "closed"
    for reply in replies[1:3]:
        assert reply.whole and reply.events[-1]["error"]["code"] == "closed"
    told = numbers(app)
    assert told["gen_requests_total completions 503"] == len(asked) + 2
    assert "gen_requests_total completions 200" not in told


async def ready_unless_typed(self: object, output_type: object) -> None:
    if output_type is not None:
        await asyncio.Event().wait()


class Impatient(waiting.Wanted):
    """The time of a request is over when its stream has begun."""

    _calls = 0

    async def result(self, work: Coroutine[Any, Any, T], receive: Any = None) -> T:
        self._calls += 1
        if self._calls == 3:  # after the body and the texts' beginning
            self._deadline = 0
        return await super().result(work, receive)


@pytest.mark.parametrize(
    "path, asked", [(TEXT, {"prompt": "a"}), ("/v1/responses", {"input": "a"}), ("/v1/messages", {"messages": HELLO})]
)
def test_a_stream_is_counted_by_how_it_ends(
    path: str, asked: dict[str, Any], engine: gen.Engine, model: GatedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = path.removeprefix("/v1/")
    failing = FailingModel()
    failing.open()
    model.tokenizer = failing.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    asked = {**asked, "stream": True}
    app = gen.server.app(engine)

    async def leaving() -> None:
        leave, reply = asyncio.Event(), Reply()
        asking = asyncio.create_task(Client(app).send("POST", path, asked, leave=leave, reply=reply))
        await until(lambda: reply.status == 200)
        assert f"gen_requests_total {name} 200" not in numbers(app)
        leave.set()
        await asking

    asyncio.run(leaving())
    with monkeypatch.context() as patch:
        patch.setattr(waiting.UnderWay, "request", lambda self, seconds: Impatient(self, float("inf")))
        late = Client(app).post(path, asked)
    assert late.status == 200 and late.whole and "timeout" in json.dumps(late.events[-1])
    model.open()
    assert Client(app).post(path, asked).status == 200
    told = numbers(app)
    assert {one: told[f"gen_requests_total {name} {one}"] for one in (200, 499, 504)} == {200: 1, 499: 1, 504: 1}
    with gen.Engine(failing) as broken:
        app = gen.server.app(broken)
        assert "error" in json.dumps(Client(app).post(path, asked).events[-1])
        assert numbers(app)[f"gen_requests_total {name} 500"] == 1
