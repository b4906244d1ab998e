"""Does the server stay as it is, however many requests it has answered?

    python -m benchmarks.server.soak --requests 20000
    python -m benchmarks.server.soak --requests 2000 --new-prompts --prefix-bytes 100000000

Short requests, 1 in 10 left early, 1 in 50 with a schema that the server has not seen. After each tenth of them, while
no request runs, the server's memory, threads and open files are measured. Prints each, and whether
the numbers after the last tenth are those after the first: memory at most 5 % more. Exits with 1 if they are not.

With --new-prompts each prompt is new and long, and each fourth schema is new. Then memory has to stay below what it was
before the first request, and what the server has said for rows and prefixes, and 300 MB for all else.
"""

import json
import random
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import publish, read_arguments
from benchmarks.server.asking import COMPLETIONS, ask, wait_until_idle
from benchmarks.server.serving import serving

PARTS, MORE = 10, 1.05
OTHERS = 300  # MB for what libraries, steps and compiled schemas take
PROMPTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n", "There was a fox"]


def request(number: int, new: bool) -> tuple[dict[str, Any], bool]:
    """A client's request, perhaps with a new and long prompt, and whether the client leaves early."""
    draw = random.Random(number)
    fields: dict[str, Any] = {"prompt": draw.choice(PROMPTS), "max_tokens": draw.randint(1, 8), "seed": number}
    if new:
        fields["prompt"] = " ".join([str(number), *draw.choices(PROMPTS, k=draw.randint(1, 60))])
    if number % (4 if new else 50) == 0:
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


def ask_all(url: str, numbers: range, at_once: int, new: bool) -> Counter[int]:
    """The requests' statuses, once the engine is idle."""

    def one(number: int) -> int:
        fields, leaves = request(number, new)
        return ask(url, COMPLETIONS, fields, leave=leaves).status

    with ThreadPoolExecutor(at_once) as pool:
        statuses = Counter(pool.map(one, numbers))
    wait_until_idle(url)
    time.sleep(0.5)  # for connections that are being closed
    return statuses


def main() -> int:
    given = read_arguments(
        __doc__, model="demo", requests=20_000, at_once=32, new_prompts=False, prefix_bytes=(int, "of the server")
    )
    options = [] if given.prefix_bytes is None else ["--prefix-bytes", given.prefix_bytes]
    seen: list[dict[str, float]] = []
    statuses: Counter[int] = Counter()
    size = given.requests // PARTS
    with (
        TemporaryDirectory() as folder,
        serving(given.model, *options, log=Path(folder) / "log") as (url, process),
    ):
        before = look(process)["rss_mb"]
        told = sum(map(int, re.findall(r"(\d+) MB for (?:rows|prefixes)", (Path(folder) / "log").read_text())))
        for part in range(PARTS):
            statuses += ask_all(url, range(part * size, (part + 1) * size), given.at_once, given.new_prompts)
            seen.append({"requests": (part + 1) * size, **look(process)})
            print(json.dumps(seen[-1]), flush=True)
    first, last = seen[0], seen[-1]
    most = before + told + OTHERS if given.new_prompts else first["rss_mb"] * MORE
    alike = last["threads"] <= first["threads"] and last["files"] <= first["files"]
    steady = last["rss_mb"] <= most and alike and {*statuses} == {200}
    memory = {"before_mb": before, "told_mb": told, "most_mb": round(most, 1), "last_mb": last["rss_mb"]}
    publish(given, soak=seen, statuses=dict(statuses), **memory, steady=steady)
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
