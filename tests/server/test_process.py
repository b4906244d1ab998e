"""The process of `gen serve`: it answers before the model is loaded, and ends in the way that a signal asks for."""

import asyncio
import gc
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gen
from gen.cli.commands import app
from gen.server.process import MOST_HEAD, Process, listen
from tests.helpers.engines import GatedModel
from tests.server.client import Client

LOADING = """
import signal, sys, threading
import gen.cli.commands
from gen.server.process import Process, listen
listening = listen("127.0.0.1", 0)
def load():
    print("torch" in sys.modules, flush=True)
    threading.Event().wait()
code = Process(load, shutdown_timeout=1).run(listening)
"""


@pytest.fixture
def signals() -> Iterator[None]:
    """Restores the process's own handlers after the test."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@contextmanager
def asked(port: int, fields: Any) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(fields), {"content-type": "application/json"})
        with connection.getresponse() as answer:
            yield answer


def answered(port: int) -> int:
    with asked(port, {"model": "no such model"}) as answer:
        return answer.status


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.usefixtures("signals")
def test_it_answers_503_while_it_loads_and_what_runs_at_a_signal_ends(number: signal.Signals, code: int) -> None:
    """A client in another thread asks; the server runs in this thread, since only this one gets signals."""
    model, loads = GatedModel("hello there"), threading.Event()
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    found: list[Any] = []

    def load() -> tuple[Any, gen.Engine]:
        assert loads.wait(60)
        engine = gen.Engine(model, rows=2)
        return gen.server.app(engine), engine

    def ask() -> None:
        fields = {"prompt": "ab", "stream": True, "temperature": 0}
        with asked(port, fields) as early:
            found.append((early.status, early.headers["retry-after"]))
        loads.set()
        while len(found) == 1:
            with asked(port, fields) as answer:
                if answer.status == 200:
                    assert model.begun.acquire(timeout=60)
                    signal.raise_signal(number)
                    signal.raise_signal(signal.SIGTERM)  # a second one changes nothing
                    model.open()
                    found.append(answer.read().decode())

    asking = threading.Thread(target=ask)
    asking.start()
    assert Process(load, shutdown_timeout=60).run(listening) == code
    asking.join()
    assert found[0] == (503, "5")
    assert "".join(re.findall('"text":"(.*?)"', found[1])) == "hello there" and found[1].endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    "numbers, seconds, code",
    [([signal.SIGINT, signal.SIGINT], 60, 130), ([signal.SIGTERM], 0, 0), ([signal.SIGINT], 0, 130)],
)
@pytest.mark.usefixtures("signals")
def test_a_second_ctrl_c_or_the_limit_cuts_what_runs_and_clients_are_told(
    numbers: list[signal.Signals],
    seconds: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stream runs, another request waits for it, and another one for a schema that takes for ever to compile."""
    model, listening, engines = GatedModel("hello there"), listen("127.0.0.1", 0), list[gen.Engine]()
    close, compiles, port = gen.Engine.close, threading.Event(), listening.getsockname()[1]

    def let_go(engine: gen.Engine) -> None:
        model.open()  # closing waits for the step that is under way
        close(engine)

    async def endless(self: object, output_type: object) -> None:
        if output_type is not None:
            compiles.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(gen.Engine, "close", let_go)
    monkeypatch.setattr("gen.server.compiling.Compiling.ready", endless)

    def load() -> tuple[Any, gen.Engine]:
        engines.append(gen.Engine(model, rows=1))
        return gen.server.app(engines[0]), engines[0]

    def ask(**fields: Any) -> tuple[int, str | None, str]:
        with asked(port, {"prompt": "ab", "temperature": 0, **fields}) as answer:
            return answer.status, answer.headers["retry-after"], answer.read().decode()

    def talk() -> None:
        while answered(port) == 503:
            pass
        with ThreadPoolExecutor(3) as pool:
            found.append(pool.submit(ask, stream=True))
            assert model.begun.acquire(timeout=60)
            found.append(pool.submit(ask))
            found.append(pool.submit(ask, structured_outputs={"regex": "a+"}))
            assert compiles.wait(60)
            while not engines[0].stats().waiting:
                pass
            for number in numbers:
                signal.raise_signal(number)
                while not process._server.should_exit:  # Python may handle two signals at once as one
                    pass

    found: list[Any] = []
    process, talking = Process(load, shutdown_timeout=seconds), threading.Thread(target=talk)
    talking.start()
    assert process.run(listening) == code
    talking.join()
    assert engines[0].stats().tokens < len("hello there")
    stream, *whole = (one.result() for one in found)
    assert stream[0] == 200 and '"code":"closed"' in stream[2].splitlines()[-2]
    for status, after, body in whole:
        assert (status, after, json.loads(body)["error"]["code"]) == (503, "5", "closed")
    assert "cut 3 requests, which had not ended in time." in caplog.messages


@pytest.mark.usefixtures("signals")
def test_a_head_without_end_is_refused() -> None:
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    engine = gen.Engine(GatedModel())
    found: list[bytes] = []

    def talk() -> None:
        while answered(port) == 503:  # a signal while it loads would end the process of the tests
            pass
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\na: " + b"x" * 2 * MOST_HEAD)
            found.append(client.recv(1000))
        signal.raise_signal(signal.SIGTERM)

    talking = threading.Thread(target=talk)
    talking.start()
    assert Process(lambda: (gen.server.app(engine), engine), shutdown_timeout=1).run(listening) == 0
    talking.join()
    assert found[0].startswith(b"HTTP/1.1 431 ")


@pytest.mark.usefixtures("signals")
def test_a_model_that_does_not_load_ends_it() -> None:
    def load() -> Any:
        raise gen.ModelError("no such model")

    with pytest.raises(gen.ModelError, match="no such model"):
        Process(load, shutdown_timeout=1).run(listen("127.0.0.1", 0))


@pytest.mark.usefixtures("signals")
def test_an_embedder_that_does_not_load_is_told_before_the_model_loads() -> None:
    result = CliRunner().invoke(app, ["serve", "/no/model", "--port", "0", "--embedder", "/no/embedder"])
    assert isinstance(result.exception, gen.ModelError) and "/no/embedder" in str(result.exception)


@pytest.mark.usefixtures("signals")
def test_a_loop_that_fails_ends_it_with_1(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(GatedModel):
        def new_rows(self, count: int, length: int) -> Any:
            raise SystemError("the device is lost")

    with gen.Engine(Failing()) as engine:
        engine._thread._error = SystemError("the device is lost")  # only a broken loop sets this
        assert Process(lambda: (gen.server.app(engine), engine), shutdown_timeout=1).run(listen("127.0.0.1", 0)) == 1
    assert "the engine has failed: SystemError: the device is lost" in caplog.messages


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_it_loads_ends_it_at_once_and_nothing_waits_for_torch(number: signal.Signals, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", LOADING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "False\n"
        process.send_signal(number)
        assert process.wait(60) == code


def test_what_cannot_begin_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = listen("127.0.0.1", 0)
    taken = str(listening.getsockname()[1])
    for arguments, said in [
        (["--port", taken], f"cannot listen on 127.0.0.1:{taken}"),
        (["--host", "256.0.0.1"], "cannot listen on 256.0.0.1"),
        (["--api-key", ""], "--api-key or GEN_API_KEY: api_key must be a text that is not empty"),
        (["--api-key", "sésame"], "printable ASCII"),
        (["--chat-template", "/nowhere"], "--chat-template '/nowhere' cannot be read"),
    ]:
        result = CliRunner().invoke(app, ["serve", "demo", *arguments])
        assert isinstance(result.exception, gen.GenError) and not isinstance(result.exception, gen.ArgumentError)
        assert said in str(result.exception) and "\n" not in str(result.exception)
    monkeypatch.setenv("GEN_API_KEY", "")
    assert "not empty" in str(CliRunner().invoke(app, ["serve", "demo"]).exception)
    listening.close()


def test_what_cannot_be_used_is_told_before_the_model_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "run", lambda self, listening: pytest.fail("it loads"))
    keys, taken = tmp_path / "keys.toml", listen("127.0.0.1", 0)
    keys.write_text('[keys.a]\nkey = "x"\n[keys.b]\nkey = "x"\n')
    for arguments, said in [
        (["--api-keys", str(keys)], "two keys have the same key"),
        (["--name", ""], "names must be a list of names"),
        (["--cors-origin", "https://a.example/"], "an origin has no slash at its end"),
        (["--port", "7", "--metrics-port", "7"], "--metrics-port must be another port"),
        (["--metrics-port", str(taken.getsockname()[1])], "cannot listen on 127.0.0.1:"),
    ]:
        result = CliRunner().invoke(app, ["serve", "demo", "--port", "0", *arguments])
        assert isinstance(result.exception, gen.GenError) and said in str(result.exception)
    taken.close()


@pytest.mark.parametrize(
    "host, key, warns", [("0.0.0.0", [], True), ("0.0.0.0", ["k"], False), ("127.0.0.1", [], False)]
)
def test_it_says_where_it_listens_and_warns_where_others_may_use_it(
    host: str, key: list[str], warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "run", lambda self, listening: listening.close() or 0)
    options = [option for one in key for option in ("--api-key", one)]
    result = CliRunner().invoke(app, ["serve", "demo", "--host", host, "--port", "0", *options])
    assert result.exit_code == 0 and f"gen: listens on http://{host}:" in result.stderr
    assert ("everybody who reaches" in result.stderr) == warns


def test_metrics_have_a_port_of_their_own_without_a_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[tuple[int, str]] = []

    def run(process: Process, listening: socket.socket) -> int:
        with listening:
            server, engine = process._load()
        with engine:
            [port] = re.findall(r"metrics on port (\d+)", caplog.text)
            answers.append((Client(server).get("/metrics").status, ""))
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            with closing(connection):
                connection.request("GET", "/metrics")
                with connection.getresponse() as answer:
                    answers.append((answer.status, answer.read().decode()))
            with pytest.raises(gen.GenError, match=f"cannot listen on 127.0.0.1:{port}: "):
                CliRunner().invoke(app, [*command[:-1], port], catch_exceptions=False)
        return 0

    command = ["serve", "demo", "--port", "0", "--api-key", "secret", "--metrics-port", "0"]
    monkeypatch.setattr(Process, "run", run)
    assert CliRunner().invoke(app, command).exit_code == 0
    gc.unfreeze()
    (refused, _), (status, text) = answers
    assert (refused, status) == (401, 200) and 'vllm:num_requests_running{model_name="demo"} 0.0' in text
