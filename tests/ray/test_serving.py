"""`gen.server.ray` on a cluster of two nodes with a CPU each, started as the page on serving says."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Semaphore
from typing import Any

import pytest
import ray
import yaml  # type: ignore[import-untyped]

import gen
from gen.server.ray import Replica, build

with warnings.catch_warnings(action="ignore"):  # Ray's warnings about itself
    from ray import serve
    from ray.serve.schema import ServeDeploySchema

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "serve.md"
EACH = 4  # how many requests a replica takes
LONG = 900  # tokens


@pytest.fixture
def connected(cluster: Any) -> Iterator[str]:
    """The address of the cluster; the test's process is connected to it."""
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster.address
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
def config() -> dict[str, Any]:
    """The page's config for `serve run`, with the demo model and another port."""
    [text] = re.findall(r'```yaml title="serve.yaml"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    read: dict[str, Any] = yaml.safe_load(text)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        read["http_options"]["port"] = free.getsockname()[1]
    read["applications"][0]["args"]["model"] = "demo"
    read["applications"][0]["deployments"][0]["max_ongoing_requests"] = EACH
    return read


def replicas() -> dict[str, int]:
    """How many replicas there are in each state."""
    found = serve.status().applications.get("gen")
    deployment = found and found.deployments.get("gen")  # an application that starts has none yet
    return {str(state): count for state, count in deployment.replica_states.items()} if deployment else {}


def processes() -> list[int]:
    """The replicas' processes."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands[int(path.parent.name)] = path.read_bytes()
        except OSError:  # it has ended
            continue
    return [pid for pid, command in commands.items() if command.startswith(b"ray::ServeReplica:gen:gen")]


class Asked:
    """Simultaneous requests for long texts, as many as two replicas take.

    Attributes:
        ends: the result of each, by its seed.
    """

    def __init__(self, port: int, threads: ThreadPoolExecutor) -> None:
        self._port, self._begun = port, Semaphore(0)
        self.ends: list[Future[tuple[int, bytes | None]]] = [
            threads.submit(self._ask, seed) for seed in range(2 * EACH)
        ]
        for _ in self.ends[::2]:
            self._begun.acquire()

    def _ask(self, seed: int) -> tuple[int, bytes | None]:
        """The status and the body of an answer, streamed if the seed is even; the body is None if it was cut."""
        fields = {"prompt": "Once", "seed": seed, "max_tokens": LONG, "ignore_eos": True, "stream": seed % 2 == 0}
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(fields), HEADERS)
            answer = connection.getresponse()
            try:
                body = answer.read1(1)
                if fields["stream"]:
                    self._begun.release()
                return answer.status, body + answer.read()
            except http.client.IncompleteRead:
                return answer.status, None


HEADERS = {"content-type": "application/json", "authorization": "Bearer secret"}


def text_of(body: bytes) -> str:
    """The text of an answer, streamed or not."""
    if not body.startswith(b"data: "):
        return str(json.loads(body)["choices"][0]["text"])
    *events, end = body.decode().split("\n\n")[:-1]
    assert end == "data: [DONE]"
    return "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)


def test_a_killed_replica_fails_what_it_was_answering_and_one_that_ends_answers_it(
    connected: str, config: dict[str, Any], tmp_path: Path
) -> None:
    port = config["http_options"]["port"]
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    command = [
        str(Path(sys.executable).with_name("serve")),
        "run",
        "serve.yaml",
        "--address",
        connected,
        "--non-blocking",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    model = gen.load("demo", device="cpu")
    texts = gen.generate(model, ["Once"] * 2 * EACH, seed=[*range(2 * EACH)], max_new_tokens=LONG, eos_token_id=[])
    with ThreadPoolExecutor(2 * EACH) as threads:
        wait_for({"RUNNING": 2})
        asked = Asked(port, threads)
        os.kill(processes()[0], signal.SIGKILL)
        ends = [end.result() for end in asked.ends]
        whole = [seed for seed, (status, body) in enumerate(ends) if status == 200 and body is not None]
        assert [text_of(ends[seed][1] or b"") for seed in whole] == [texts[seed] for seed in whole]
        others = [end for seed, end in enumerate(ends) if seed not in whole]
        assert 1 <= len(others) <= EACH
        assert {*others} <= {(200, None), (500, b"Internal Server Error")}

        wait_for({"RUNNING": 2})  # another replica has started
        asked = Asked(port, threads)
        config["applications"][0]["deployments"][0]["num_replicas"] = 1
        serve.context._get_global_client().deploy_apps(ServeDeploySchema(**config))
        wait_for({"RUNNING": 1, "STOPPING": 1})
        assert not all(end.done() for end in asked.ends)
        ends = [end.result() for end in asked.ends]
        assert [text_of(body or b"") for _, body in ends] == texts
        wait_for({"RUNNING": 1})


def wait_for(states: dict[str, int]) -> None:
    while (found := replicas()) != states:
        assert "UNHEALTHY" not in found


@pytest.mark.usefixtures("connected")
def test_a_replica_whose_engine_has_ended_is_not_well_and_wrong_arguments_are_named() -> None:
    replica = Replica({"model": "demo", "rows": 2})
    replica.check_health()
    vars(replica)["_engine"].close()
    with pytest.raises(gen.GenError, match="the engine is not well: closed"):
        replica.check_health()
    with pytest.raises(gen.ArgumentError, match="args need a model"):
        build({})
    with pytest.raises(gen.ArgumentError, match="embedder, modle: no such argument"):
        build({"model": "demo", "embedder": "x", "modle": "y"})
