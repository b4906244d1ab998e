"""Does the server stay as it is, however many requests it has answered?

    python -m benchmarks.server.soak --requests 20000

Short requests, 1 in 10 left early, 1 in 50 with a schema that the server has not seen. After each tenth of them, while
no request runs, the server's memory, threads and open files are measured. Prints a line of JSON for each, and whether
the numbers after the last tenth are those after the first: memory at most 5 % more. Exits with 1 if they are not.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.server.asking import ask, metric
from benchmarks.server.serving import serving

PARTS, MORE = 10, 1.05
PROMPTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n", "There was a fox"]


def request(number: int) -> tuple[dict[str, Any], bool]:
    """A client's request, and whether the client leaves early."""
    draw = random.Random(number)
    fields: dict[str, Any] = {"prompt": draw.choice(PROMPTS), "max_tokens": draw.randint(1, 8), "seed": number}
    if number % 50 == 0:
        names = [f"name {number} {place}" for place in range(3)]
        schema = {"type": "object", "properties": {"name": {"enum": names}}, "required": ["name"]}
        fields |= {"structured_outputs": {"json": schema}, "max_tokens": 60}
    return fields, number % 10 == 7


def look(process: int) -> dict[str, float]:
    """The memory, threads and open files of the server's process."""
    folder = Path(f"/proc/{process}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    return {
        "rss_mb": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "threads": int(status["Threads"]),
        "files": len([*(folder / "fd").iterdir()]),
    }


def ask_all(url: str, numbers: range, at_once: int) -> Counter[int]:
    """The requests' statuses, once the engine is idle."""

    def one(number: int) -> int:
        fields, leaves = request(number)
        return ask(url, fields, leave=leaves)[0]

    with ThreadPoolExecutor(at_once) as pool:
        statuses = Counter(pool.map(one, numbers))
    while metric(url, "vllm:num_requests_running") + metric(url, "vllm:num_requests_waiting"):
        time.sleep(0.05)
    time.sleep(0.5)  # for connections that are being closed
    return statuses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--port", type=int, default=8197)
    args = parser.parse_args()
    seen: list[dict[str, float]] = []
    statuses: Counter[int] = Counter()
    size = args.requests // PARTS
    with serving(args.model, port=args.port) as (url, process):
        for part in range(PARTS):
            statuses += ask_all(url, range(part * size, (part + 1) * size), args.at_once)
            seen.append(look(process))
            print(json.dumps({"requests": (part + 1) * size, **seen[-1]}), flush=True)
    first, last = seen[0], seen[-1]
    alike = last["threads"] <= first["threads"] and last["files"] <= first["files"]
    steady = last["rss_mb"] <= first["rss_mb"] * MORE and alike and {*statuses} == {200}
    print(json.dumps({"statuses": dict(statuses), "rss": round(last["rss_mb"] / first["rss_mb"], 3), "steady": steady}))
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
