"""What does the server cost over `gen.generate`, in CPU time?

    python -m benchmarks.server.cost --rounds 9

Sixteen texts of 32 tokens are made by one call of `gen.generate`, and by a server that gets 16 requests at once, whole
and streamed. The cases take turns. The server's CPU time is that of its process; the clients run in another process and
do not count. One thread each.
"""

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

import gen
from benchmarks.measuring import machine, ratio, spread
from benchmarks.server.serving import cpu_seconds, serving

PROMPTS = ["Once upon a time", "One morning", "One day", "The fox"]
COUNT, TOKENS = 16, 32


def ask_all(address: str, stream: bool) -> int:
    """Send all requests at once from this process. Returns how many tokens came."""
    with ThreadPoolExecutor(COUNT) as pool:
        return sum(pool.map(lambda number: _ask(address, number, stream), range(COUNT)))


def _ask(address: str, number: int, stream: bool) -> int:
    fields = {"prompt": PROMPTS[number % 4], "seed": number, "max_tokens": TOKENS, "ignore_eos": True, "stream": stream}
    connection = http.client.HTTPConnection(address, timeout=600)
    fields["stream_options"] = {"include_usage": True}
    connection.request("POST", "/v1/completions", json.dumps(fields), {"content-type": "application/json"})
    body = connection.getresponse().read().decode()
    connection.close()
    lines = [line[6:] for line in body.splitlines() if line.startswith("data: {")] if stream else [body]
    return int(json.loads(lines[-1])["usage"]["completion_tokens"])


def rounds(model: Any, address: str, process: int, count: int, again: int) -> Iterator[dict[str, float]]:
    """Yield the CPU seconds of each case, round by round."""
    arguments: dict[str, Any] = {"max_new_tokens": TOKENS, "eos_token_id": [], "seed": [*range(COUNT)]}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
        for number in range(count + 1):
            found = {}
            began = time.process_time()
            for _ in range(again):
                gen.generate(model, PROMPTS * (COUNT // 4), **arguments)
            found["generate"] = (time.process_time() - began) / again
            for case, stream in (("whole", False), ("streamed", True)):
                before = cpu_seconds(process)
                for _ in range(again):
                    if clients.submit(ask_all, address, stream).result() != COUNT * TOKENS:
                        raise RuntimeError("the server has made other tokens")
                found[case] = (cpu_seconds(process) - before) / again
            if number:
                yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", default="demo")
    parser.add_argument(
        "--again", type=int, default=4, help="times in a round; CPU time comes in hundredths of a second"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = gen.load(arguments.model, device="cpu")
    with serving(arguments.model) as (url, process):
        found = list(rounds(model, url.removeprefix("http://"), process, arguments.rounds, arguments.again))
    seconds = {case: [one[case] for one in found] for case in found[0]}
    told: dict[str, Any] = {"machine": machine(), "model": arguments.model, "texts": COUNT, "tokens": TOKENS}
    for case, values in seconds.items():
        median = spread(values).median
        told[case] = {"seconds": round(median, 4), "over generate": round(ratio(values, seconds["generate"]), 3)}
        print(f"{case}: {median:.3f} s of CPU, {told[case]['over generate']} of generate")
    if arguments.json:
        print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
