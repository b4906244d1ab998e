"""How many clients can a server take, and what does each of them get?

    python -m benchmarks.server.capacity --model models/SmolLM2-135M-Instruct --json capacity.json

So many clients ask at once, each for one streamed chat after the other, with a prompt that is new each time. For each
number of clients it prints how many tokens all of them get a second, how long a client waits for the first token
(median and 95 %), the time between tokens, and the memory of the server. Requests count whose first token comes within
the measurement.
"""

import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import publish, read_arguments
from benchmarks.server.asking import CHAT, ask
from benchmarks.server.serving import serving
from benchmarks.server.soak import look

WORDS = ["the", "fox", "who", "liked", "sea", "and", "a", "morning", "when", "nobody", "had", "slept", "told", "rain"]
TOKENS = 32  # of each answer
WORDS_ASKED = 40  # of each prompt, about as many tokens
WARM = 5.0  # seconds before the measurement


def chat(url: str, number: int) -> tuple[float, float, float]:
    """When one chat began, and when its first and its last token came."""
    draw = random.Random(number)
    content = " ".join([str(number), *draw.choices(WORDS, k=WORDS_ASKED)])
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS}
    answer = ask(url, CHAT, fields | {"ignore_eos": True, "stream": True, "seed": number})
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.events}")
    pieces = answer.pieces()
    return answer.begun, pieces[0][0], pieces[-1][0]


def level(url: str, clients: int, seconds: float) -> dict[str, Any]:
    """What so many clients get."""
    start = time.monotonic() + WARM
    end = start + seconds

    def client(number: int) -> list[tuple[float, float, float]]:
        made = list[tuple[float, float, float]]()
        while time.monotonic() < end:
            made.append(chat(url, (clients * 1000 + number) * 1000 + len(made)))
        return made

    with ThreadPoolExecutor(clients) as pool:
        found = [one for some in pool.map(client, range(clients)) for one in some]
    # a text counts as far as it was made within the time
    shares = [max(0.0, min(end, last) - max(start, first)) / (last - first) for _, first, last in found]
    counted = [one for one in found if start <= one[1] < end]
    waits = sorted(first - began for began, first, _ in counted)
    between = [(last - first) / (TOKENS - 1) for _, first, last in counted]
    return {
        "clients": clients,
        "requests": len(counted),
        "tokens a second": round(TOKENS * sum(shares) / seconds, 1),
        "first token, median (s)": round(statistics.median(waits), 2),
        "first token, 95 % (s)": round(waits[min(len(waits) - 1, int(0.95 * len(waits)))], 2),
        "between tokens (ms)": round(1000 * statistics.median(between), 1),
    }


def main() -> None:
    given = read_arguments(__doc__, model="demo", clients=[1, 4, 8, 16, 32], seconds=30.0, threads=2)
    found = []
    with serving(given.model, "--threads", given.threads, "--log-level", "warning") as (url, process):
        for clients in given.clients:
            found.append(level(url, clients, given.seconds))
            found[-1]["memory (MB)"] = look(process)["rss_mb"]
            print(json.dumps(found[-1]), flush=True)
    told = {"model": Path(given.model).name, "threads": given.threads, "tokens": TOKENS, "words": WORDS_ASKED}
    publish(given, **told, levels=found)


if __name__ == "__main__":
    main()
