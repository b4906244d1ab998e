"""How soon does a client see its first token, and how many tokens a second come, compared with other servers?

    python -m benchmarks.server.first_tokens models/SmolLM2-135M-Instruct --gguf models/SmolLM2-135M-Instruct.Q4_1.gguf

All clients ask at once, each for a stream of a chat with a prompt of its own, which is new in each round. A round asks
each server once, one after the other; the servers stay loaded. The peers run in an environment of their own, in
build/clients, with the same weights in float32: `transformers serve`, with and without its continuous batching, which
takes torch and transformers from here; and llama_cpp.server, which takes a GGUF file and answers one client at a time.
One thread each.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import machine, markdown_table
from benchmarks.server.serving import serving

CLIENTS = Path(__file__).parents[2] / "build" / "clients"
SUBJECTS = ["the sea", "a fox", "winter", "bread", "a clock", "a bridge", "rain", "the moon"]


def ask(address: str, model: str, number: int, tokens: int) -> tuple[float, int]:
    """Seconds to the first piece of a text, and how many characters come."""
    prompt = f"Number {number}: tell me a long story about {SUBJECTS[number % len(SUBJECTS)]}, with a beginning. "
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": prompt * 3}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    connection = http.client.HTTPConnection(address, timeout=600)
    begin, first, text = time.monotonic(), 0.0, ""
    connection.request("POST", "/v1/chat/completions", json.dumps(fields), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{address} answers {answer.status}: {answer.read()[:300]!r}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            if piece := choice["delta"].get("content"):
                first, text = first or time.monotonic() - begin, text + piece
    connection.close()
    if not text:
        raise RuntimeError(f"{address} has said nothing")
    return first, len(text)


def ask_all(address: str, model: str, clients: int, tokens: int, first: int) -> dict[str, float]:
    """All clients at once."""
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda number: ask(address, model, number, tokens), range(first, first + clients)))
    wall = time.monotonic() - begin
    firsts = sorted(first for first, _ in found)
    return {"first": median(firsts), "last": firsts[-1], "characters/s": sum(new for _, new in found) / wall}


@contextmanager
def peer(command: list[str], port: int) -> Iterator[str]:
    """A peer's server, once it listens."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not _listens(port):
                if process.poll() is not None:
                    raise RuntimeError(f"{command[:4]} has ended with {process.returncode}")
                time.sleep(0.5)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            return True
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--gguf", help="the GGUF file that llama_cpp.server serves")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = str(Path(args.model).resolve())
    serve = [str(CLIENTS / "transformers_serve" / "bin" / "python"), "-m", "transformers.cli.transformers", "serve"]
    serve += [folder, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
    with ExitStack() as stack:
        url, _ = stack.enter_context(serving(folder, "--name", folder))
        servers = {"gen serve": url.removeprefix("http://")}
        servers["transformers serve"] = stack.enter_context(peer([*serve, "--port", "8211"], 8211))
        batching = [*serve, "--port", "8212", "--continuous-batching"]
        servers["transformers serve, continuous"] = stack.enter_context(peer(batching, 8212))
        if args.gguf:
            llama = [str(CLIENTS / "llama_cpp" / "bin" / "python"), "-m", "llama_cpp.server", "--model", args.gguf]
            llama += ["--port", "8213", "--n_threads", "1", "--n_ctx", "2048"]
            llama += ["--interrupt_requests", "False"]  # otherwise a new request ends the text of the one before
            servers["llama_cpp.server"] = stack.enter_context(peer(llama, 8213))
        found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for number in range(args.rounds + 1):
            for name, address in servers.items():
                told = ask_all(address, folder, args.clients, args.tokens, 1 + number * args.clients)
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
    print(markdown_table(rows))
    if args.json:
        print(json.dumps({"machine": machine(), "clients": args.clients, "tokens": args.tokens, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
