"""A client of `gen serve` that asks one thing, and may leave before it is answered."""

import http.client
import json
import re
import urllib.request
from typing import Any
from urllib.parse import urlsplit


def ask(url: str, fields: dict[str, Any], *, leave: bool = False) -> tuple[int, Any]:
    """The status and the answer of one completion; the answer is None if the client has left after the first event.

    Args:
        leave: ask for a stream, and disconnect when it has begun.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    try:
        body = json.dumps(fields | {"stream": leave})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if leave and reply.status == 200:
            reply.readline()
            return 200, None
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def metric(url: str, name: str) -> float:
    """A number of the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the server has no metric {name}")
    return float(found[1])
