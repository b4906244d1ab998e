"""A client of a server that asks one thing, and may leave before it is answered."""

import http.client
import json
import time
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Answer:
    """What came.

    Attributes:
        begun: when it was asked, by `time.monotonic`.
        events: the body, or each event of a stream; none for a client that has left.
        times: when each of them came.
    """

    status: int
    begun: float
    events: list[Any]
    times: list[float]

    def pieces(self) -> list[tuple[float, str]]:
        """The pieces of a streamed chat's text, and when they came."""
        deltas = [
            (when, choice["delta"].get("content"))
            for when, event in zip(self.times, self.events, strict=True)
            for choice in event["choices"]
        ]
        return [(when, text) for when, text in deltas if text]


def ask(url: str, path: str, fields: dict[str, Any], *, leave: bool = False) -> Answer:
    """Ask a server at a path.

    Args:
        leave: ask for a stream, and disconnect after its first event.
    """
    events, times = list[Any](), list[float]()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    try:
        begun, body = time.monotonic(), json.dumps(fields | {"stream": True} if leave else fields)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if leave and reply.status == 200:
            reply.readline()
        elif "event-stream" in reply.headers.get("content-type", ""):
            for line in reply:
                if line.startswith(b"data: {"):
                    events.append(json.loads(line[6:]))
                    times.append(time.monotonic())
        else:
            events.append(json.loads(reply.read()))
            times.append(time.monotonic())
        return Answer(reply.status, begun, events, times)
    finally:
        connection.close()


def metrics(url: str) -> Numbers:
    """All samples of the server's metrics, by name and labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(one.name, tuple(one.labels.items())): one.value for family in families for one in family.samples}


def metric(url: str, name: str) -> float:
    """A number of the server's metrics."""
    return next(value for (known, _), value in metrics(url).items() if known == name)


def wait_until_idle(url: str) -> float:
    """Wait until no request runs or waits; returns the seconds that it took."""
    begun = time.monotonic()
    while metric(url, "vllm:num_requests_running") + metric(url, "vllm:num_requests_waiting"):
        time.sleep(0.01)
    return time.monotonic() - begun
