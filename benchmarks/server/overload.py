"""Does the server answer every request that it has accepted, and drop those whose clients have left?

    python -m benchmarks.server.overload

First twice as many clients ask at once as may run and wait; a client that gets a 429 asks again. In the end every
request must have a whole answer, and 429 must be the only refusal before. Then 32 clients ask for long texts and leave:
the engine must soon be idle. Exits with 1 if something is lost, or if the engine is still busy
after 2 seconds.
"""

import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.measuring import publish, read_arguments
from benchmarks.server.asking import COMPLETIONS, ask, metric, wait_until_idle
from benchmarks.server.serving import serving

ROWS, WAITING, LEAVING = 8, 24, 32
MOST_SECONDS = 2.0


def overload(url: str, requests: int, at_once: int, tokens: int) -> dict[str, Any]:
    """Ask until all are answered."""
    statuses: Counter[int] = Counter()

    def one(number: int) -> bool:
        fields = {"prompt": f"Number {number}:", "max_tokens": tokens, "ignore_eos": True, "seed": number}
        while True:
            answer = ask(url, COMPLETIONS, fields)
            statuses[answer.status] += 1
            if answer.status != 429:
                return answer.status == 200 and bool(answer.events[0]["usage"]["completion_tokens"] == tokens)
            time.sleep(0.05)

    with ThreadPoolExecutor(at_once) as pool:
        whole = sum(pool.map(one, range(requests)))
    return {"requests": requests, "at_once": at_once, "whole": whole, "statuses": dict(statuses)}


def leaving(url: str, tokens: int) -> dict[str, Any]:
    """Let clients leave, and see how long the engine goes on."""
    before = metric(url, "vllm:generation_tokens_total")

    def one(number: int) -> int:
        fields = {"prompt": f"Once {number}", "max_tokens": tokens, "ignore_eos": True, "seed": number}
        return ask(url, COMPLETIONS, fields, leave=True).status

    with ThreadPoolExecutor(LEAVING) as pool:
        statuses = Counter(pool.map(one, range(LEAVING)))
    seconds = wait_until_idle(url)
    made = metric(url, "vllm:generation_tokens_total") - before
    share = round(made / (LEAVING * tokens), 3)
    return {"clients": LEAVING, "statuses": dict(statuses), "idle_after": round(seconds, 2), "share_of_tokens": share}


def main() -> int:
    given = read_arguments(__doc__, model="demo", requests=256, tokens=32)
    with serving(given.model, "--rows", ROWS, "--max-waiting", WAITING) as (url, _):
        found = overload(url, given.requests, 2 * (ROWS + WAITING), given.tokens)
        left = leaving(url, 400)
    publish(given, overload=found, leaving=left)
    kept = found["whole"] == given.requests and {*found["statuses"]} <= {200, 429}
    return 0 if kept and left["idle_after"] <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
