"""What does the server cost over `gen.generate`, in CPU time?

    python -m benchmarks.server.cost --rounds 9

Sixteen texts of 32 tokens are made by one call of `gen.generate`, and by a server that gets 16 requests at once, whole
and streamed. The cases take turns. The server's CPU time is that of its process; the clients run in another process and
do not count. One thread each.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import gen
from benchmarks.measuring import publish, ratio, read_arguments
from benchmarks.server.asking import COMPLETIONS, ask
from benchmarks.server.serving import cpu_seconds, serving

PROMPTS = ["Once upon a time", "One morning", "One day", "The fox"]
COUNT, TOKENS = 16, 32


def ask_all(url: str, stream: bool) -> int:
    """Send all requests at once from this process. Returns how many tokens came."""

    def one(number: int) -> int:
        fields = {"prompt": PROMPTS[number % 4], "seed": number, "max_tokens": TOKENS, "ignore_eos": True}
        fields |= {"stream": stream, "stream_options": {"include_usage": True}}
        return int(ask(url, COMPLETIONS, fields).events[-1]["usage"]["completion_tokens"])

    with ThreadPoolExecutor(COUNT) as pool:
        return sum(pool.map(one, range(COUNT)))


def measure(model: Any, url: str, process: int, rounds: int, again: int) -> dict[str, list[float]]:
    """The CPU seconds of each case, round by round."""

    def generate() -> None:
        gen.generate(model, PROMPTS * (COUNT // 4), max_new_tokens=TOKENS, eos_token_id=[], seed=[*range(COUNT)])

    def served(stream: bool) -> None:
        if clients.submit(ask_all, url, stream).result() != COUNT * TOKENS:
            raise RuntimeError("the server has made other tokens")

    def of_server() -> float:
        return cpu_seconds(process)

    cases: dict[str, tuple[Callable[[], None], Callable[[], float]]] = {
        "generate": (generate, time.process_time),
        "whole": (lambda: served(False), of_server),
        "streamed": (lambda: served(True), of_server),
    }
    found: dict[str, list[float]] = {case: [] for case in cases}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
        for _ in range(rounds + 1):
            for case, (run, clock) in cases.items():
                began = clock()
                for _ in range(again):
                    run()
                found[case].append((clock() - began) / again)
    return {case: seconds[1:] for case, seconds in found.items()}  # the first round warms up


def main() -> None:
    given = read_arguments(
        __doc__, rounds=9, model="demo", again=(4, "times in a round; CPU time comes in hundredths of a second")
    )
    model = gen.load(given.model, device="cpu")
    with serving(given.model) as (url, process):
        seconds = measure(model, url, process, given.rounds, given.again)
    told = {
        case: {"seconds": round(median(one), 4), "over generate": round(ratio(one, seconds["generate"]), 3)}
        for case, one in seconds.items()
    }
    publish(given, model=given.model, texts=COUNT, tokens=TOKENS, **told)


if __name__ == "__main__":
    main()
