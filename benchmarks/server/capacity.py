"""How many clients can a server take, what does each of them get, and how soon, compared with other servers?

    python -m benchmarks.server.capacity --model models/SmolLM2-135M-Instruct --json capacity.json
    python -m benchmarks.server.capacity --model models/SmolLM2-135M-Instruct --peers --threads 1 --clients 16 \\
        --gguf models/SmolLM2-135M-Instruct.Q4_1.gguf

So many clients ask at once, each for one streamed chat after the other, with a prompt that is new each time. For each
number of clients it prints how many tokens all of them get a second, how long a client waits for the first token
(median and 95 %), the time between tokens, and the memory of the server. Requests count whose first token comes within
the measurement.

With --peers all clients ask once at the same time, and a round asks each server, one after the other; the servers stay
loaded. The peers run in an environment of their own, in build/clients, with the same weights in float32: `transformers
serve`, with and without its continuous batching, which takes torch and transformers from here; and llama_cpp.server,
which takes a GGUF file and answers one client at a time.
"""

import json
import random
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import publish, read_arguments
from benchmarks.server.asking import CHAT, ask
from benchmarks.server.serving import listening, serving
from benchmarks.server.soak import look

PEERS = Path(__file__).parents[2] / "build" / "clients"
WORDS = ["the", "fox", "who", "liked", "sea", "and", "a", "morning", "when", "nobody", "had", "slept", "told", "rain"]
TOKENS = 32  # of each answer
WORDS_ASKED = 40  # of each prompt, about as many tokens
WARM = 5.0  # seconds before the measurement


def chat(url: str, number: int, **fields: Any) -> tuple[float, list[tuple[float, str]]]:
    """When one chat began, and when its pieces came."""
    content = " ".join([str(number), *random.Random(number).choices(WORDS, k=WORDS_ASKED)])
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, "stream": True}
    answer = ask(url, CHAT, asked | fields)
    if answer.status != 200 or not (pieces := answer.pieces()):
        raise RuntimeError(f"{url} answers {answer.status}: {str(answer.events)[:300]}")
    return answer.begun, pieces


def level(url: str, clients: int, seconds: float) -> dict[str, Any]:
    """What so many clients get."""
    start = time.monotonic() + WARM
    end = start + seconds

    def client(number: int) -> list[tuple[float, float, float]]:
        made = list[tuple[float, float, float]]()
        while time.monotonic() < end:
            seed = (clients * 1000 + number) * 1000 + len(made)
            begun, pieces = chat(url, seed, seed=seed, ignore_eos=True)
            made.append((begun, pieces[0][0], pieces[-1][0]))
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
        "first token, median (s)": round(median(waits), 2),
        "first token, 95 % (s)": round(waits[min(len(waits) - 1, int(0.95 * len(waits)))], 2),
        "between tokens (ms)": round(1000 * median(between), 1),
    }


def levels(given: Namespace) -> list[dict[str, Any]]:
    found = []
    with serving(given.model, "--threads", given.threads, "--log-level", "warning") as (url, process):
        for clients in given.clients:
            found.append(level(url, clients, given.seconds))
            found[-1]["memory (MB)"] = look(process)["rss_mb"]
            print(json.dumps(found[-1]), flush=True)
    return found


def ask_all(url: str, model: str, clients: int, first: int) -> dict[str, float]:
    """All clients at once: seconds to a first token, and how many characters come a second."""
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        numbers = range(first, first + clients)
        found = list(pool.map(lambda number: chat(url, number, model=model, temperature=0), numbers))
    wall = time.monotonic() - begin
    firsts = sorted(pieces[0][0] - begun for begun, pieces in found)
    characters = sum(len(text) for _, pieces in found for _, text in pieces)
    return {"first": median(firsts), "last": firsts[-1], "characters/s": characters / wall}


def compared(given: Namespace) -> list[dict[str, Any]]:
    """A row for each server; the first round warms up."""
    folder = str(Path(given.model).resolve())
    serve = [str(PEERS / "transformers_serve" / "bin" / "python"), "-m", "transformers.cli.transformers", "serve"]
    serve += [folder, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
    peers = {"transformers serve": serve, "transformers serve, continuous": [*serve, "--continuous-batching"]}
    if given.gguf:
        llama = [str(PEERS / "llama_cpp" / "bin" / "python"), "-m", "llama_cpp.server", "--model", given.gguf]
        llama += ["--n_threads", "1", "--n_ctx", "2048"]
        llama += ["--interrupt_requests", "False"]  # otherwise a new request ends the text of the one before
        peers["llama_cpp.server"] = llama
    with ExitStack() as stack:
        servers = {"gen serve": stack.enter_context(serving(folder, "--name", folder))[0]}
        servers |= {name: stack.enter_context(listening(command))[0] for name, command in peers.items()}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for number in range(given.rounds + 1):
            for name, url in servers.items():
                found[name].append(ask_all(url, folder, given.clients[0], 1 + number * given.clients[0]))
                print(f"round {number}, {name}: {json.dumps(found[name][-1])}", flush=True)
    rows = []
    for name, (_, *rounds) in found.items():
        row: dict[str, Any] = {"server": name}
        row |= {case: round(median(one[case] for one in rounds), 3) for case in rounds[0]}
        pairs = zip(found["gen serve"][1:], rounds, strict=True)
        row["gen's first / this"] = round(median(own["first"] / one["first"] for own, one in pairs), 3)
        rows.append(row)
    return rows


def main() -> None:
    given = read_arguments(
        __doc__,
        model="demo",
        clients=([1, 4, 8, 16, 32], "numbers of clients; with --peers only the first"),
        seconds=30.0,
        threads=2,
        peers=(False, "compare with other servers"),
        gguf=(str, "the GGUF file that llama_cpp.server serves"),
        rounds=(3, "of all servers"),
    )
    found = {"peers": compared(given)} if given.peers else {"levels": levels(given)}
    told = {"model": Path(given.model).name, "threads": given.threads, "tokens": TOKENS, "words": WORDS_ASKED}
    publish(given, **told, **found)


if __name__ == "__main__":
    main()
