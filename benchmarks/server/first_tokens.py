"""How soon does a client see its first token, and how many tokens a second come, compared with other servers?

    python -m benchmarks.server.first_tokens models/SmolLM2-135M-Instruct --gguf models/SmolLM2-135M-Instruct.Q4_1.gguf

All clients ask at once, each for a stream of a chat with a prompt of its own, which is new in each round. A round asks
each server once, one after the other; the servers stay loaded. The peers run in an environment of their own, in
build/clients, with the same weights in float32: `transformers serve`, with and without its continuous batching, which
takes torch and transformers from here; and llama_cpp.server, which takes a GGUF file and answers one client at a time.
One thread each.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import publish, read_arguments
from benchmarks.server.asking import CHAT, ask
from benchmarks.server.serving import listening, serving

CLIENTS = Path(__file__).parents[2] / "build" / "clients"
SUBJECTS = ["the sea", "a fox", "winter", "bread", "a clock", "a bridge", "rain", "the moon"]


def chat(url: str, model: str, number: int, tokens: int) -> tuple[float, int]:
    """Seconds to the first piece of a text, and how many characters come."""
    prompt = f"Number {number}: tell me a long story about {SUBJECTS[number % len(SUBJECTS)]}, with a beginning. "
    messages = [{"role": "user", "content": prompt * 3}]
    fields = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    answer = ask(url, CHAT, fields)
    if answer.status != 200 or not answer.pieces():
        raise RuntimeError(f"{url} answers {answer.status}: {str(answer.events)[:300]}")
    return answer.pieces()[0][0] - answer.begun, sum(len(text) for _, text in answer.pieces())


def ask_all(url: str, model: str, clients: int, tokens: int, first: int) -> dict[str, float]:
    """All clients at once."""
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda number: chat(url, model, number, tokens), range(first, first + clients)))
    wall = time.monotonic() - begin
    firsts = sorted(first for first, _ in found)
    return {"first": median(firsts), "last": firsts[-1], "characters/s": sum(new for _, new in found) / wall}


def main() -> None:
    given = read_arguments(
        __doc__,
        model_={},
        gguf=(str, "the GGUF file that llama_cpp.server serves"),
        clients=16,
        tokens=32,
        rounds=3,
    )
    folder = str(Path(given.model).resolve())
    serve = [str(CLIENTS / "transformers_serve" / "bin" / "python"), "-m", "transformers.cli.transformers", "serve"]
    serve += [folder, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
    peers = {"transformers serve": serve, "transformers serve, continuous": [*serve, "--continuous-batching"]}
    if given.gguf:
        llama = [str(CLIENTS / "llama_cpp" / "bin" / "python"), "-m", "llama_cpp.server", "--model", given.gguf]
        llama += ["--n_threads", "1", "--n_ctx", "2048"]
        llama += ["--interrupt_requests", "False"]  # otherwise a new request ends the text of the one before
        peers["llama_cpp.server"] = llama
    with ExitStack() as stack:
        servers = {"gen serve": stack.enter_context(serving(folder, "--name", folder))[0]}
        servers |= {name: stack.enter_context(listening(command))[0] for name, command in peers.items()}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for number in range(given.rounds + 1):
            for name, url in servers.items():
                told = ask_all(url, folder, given.clients, given.tokens, 1 + number * given.clients)
                print(f"round {number}, {name}: {json.dumps(told)}", flush=True)
                if number:
                    found[name].append(told)
    rows = []
    for name, rounds in found.items():
        row: dict[str, Any] = {"server": name}
        row |= {case: round(median(one[case] for one in rounds), 3) for case in rounds[0]}
        pairs = zip(found["gen serve"], rounds, strict=True)
        row["gen's first / this"] = round(median(own["first"] / one["first"] for own, one in pairs), 3)
        rows.append(row)
    publish(given, clients=given.clients, tokens=given.tokens, rows=rows)


if __name__ == "__main__":
    main()
