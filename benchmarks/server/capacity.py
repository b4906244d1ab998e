"""How many clients can a server take, and what does each of them get?

    python -m benchmarks.server.capacity --model models/SmolLM2-135M-Instruct --json capacity.json

So many clients ask at once, each for one streamed chat after the other, with a prompt that is new each time. For each
number of clients it prints how many tokens all of them get a second, how long a client waits for the first token
(median and 95 %), the time between tokens, and the memory of the server. Requests count whose first token comes within
the measurement.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.measuring import machine, markdown_table, write_json
from benchmarks.server.serving import serving
from benchmarks.server.soak import look

WORDS = ["the", "fox", "who", "liked", "sea", "and", "a", "morning", "when", "nobody", "had", "slept", "told", "rain"]
TOKENS = 32  # of each answer
WORDS_ASKED = 40  # of each prompt, about as many tokens
WARM = 5.0  # seconds before the measurement


def ask(address: str, number: int) -> tuple[float, float, float, int]:
    """When one chat began, when its first and its last token came, and how many tokens it has."""
    draw = random.Random(number)
    content = " ".join([str(number), *draw.choices(WORDS, k=WORDS_ASKED)])
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS}
    fields |= {"ignore_eos": True, "stream": True, "seed": number}
    connection = http.client.HTTPConnection(address, timeout=600)
    began, first, last = time.monotonic(), 0.0, 0.0
    connection.request("POST", "/v1/chat/completions", json.dumps(fields), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {reply.read()!r}")
    for line in reply:
        if line.startswith(b"data: {") and b'"content":""' not in line and b'"content"' in line:
            last = time.monotonic()
            first = first or last
    connection.close()
    return began, first, last, TOKENS


def level(address: str, clients: int, seconds: float) -> dict[str, Any]:
    """What so many clients get."""
    start = time.monotonic() + WARM
    end = start + seconds

    def client(number: int) -> list[tuple[float, float, float, int]]:
        made, turn = [], 0
        while time.monotonic() < end:
            made.append(ask(address, (clients * 1000 + number) * 1000 + turn))
            turn += 1
        return made

    with ThreadPoolExecutor(clients) as pool:
        found = [one for some in pool.map(client, range(clients)) for one in some]
    # a text counts as far as it was made within the time
    tokens = sum(
        count * max(0.0, min(end, last) - max(start, first)) / (last - first) for _, first, last, count in found
    )
    counted = [one for one in found if start <= one[1] < end]
    waits = sorted(first - began for began, first, _, _ in counted)
    between = [(last - first) / (count - 1) for _, first, last, count in counted]
    return {
        "clients": clients,
        "requests": len(counted),
        "tokens a second": round(tokens / seconds, 1),
        "first token, median (s)": round(statistics.median(waits), 2),
        "first token, 95 % (s)": round(waits[min(len(waits) - 1, int(0.95 * len(waits)))], 2),
        "between tokens (ms)": round(1000 * statistics.median(between), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=8196)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = []
    options = ["--threads", str(arguments.threads), "--log-level", "warning"]
    with serving(arguments.model, *options, port=arguments.port) as (url, process):
        for clients in arguments.clients:
            found.append(level(urlsplit(url).netloc, clients, arguments.seconds))
            found[-1]["memory (MB)"] = look(process)["rss_mb"]
            print(json.dumps(found[-1]), flush=True)
    print(markdown_table(found))
    if arguments.json is not None:
        told = {"machine": machine(), "model": Path(arguments.model).name, "threads": arguments.threads}
        write_json(arguments.json, told | {"tokens": TOKENS, "words": WORDS_ASKED, "levels": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
