"""How fast a CPU decodes beside busy programs, by how threads and their spinning were chosen.

    make real
    python -m benchmarks.busy --busy 0 1 2 --batch 1 8 --json busy.json

Each case is a process of its own, since threads are chosen before torch is loaded. It calls again and again, 16 tokens
each time, until its seconds are over, after one call that warms up. Cases take turns, round by round, beside so many
programs that compute all the time. "command line" is what `gen`'s commands, jobs and servers choose. With
`--spins 1000 3000` there are programs that set GOMP_SPINCOUNT to each of these numbers too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, markdown_table, write_json
from gen.runtime import cpu_threads

MODEL = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"
CHOSEN = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
ONE = {"OMP_NUM_THREADS": "1"}
TOKENS = 16
CASES: dict[str, tuple[str, dict[str, str] | None]] = {  # which library, and what is in the environment
    "gen, command line": ("gen", None),
    "gen, in a program": ("gen", {}),
    "gen, one thread": ("gen", ONE),
    "transformers, by default": ("transformers", {}),
    "transformers, one thread": ("transformers", ONE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="programs that compute all the time")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--spins", type=int, nargs="+", default=[], help="more cases: each is a GOMP_SPINCOUNT")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--alone", nargs=2, metavar=("LIBRARY", "BATCH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        library, batch = arguments.alone
        print(json.dumps(_measure(library, int(batch), arguments.model, arguments.seconds)))
        return
    spinning = {f"gen, {spins} spins": ("gen", {"GOMP_SPINCOUNT": str(spins)}) for spins in arguments.spins}
    CASES.update(spinning)
    rows: list[dict[str, Any]] = []
    for busy in arguments.busy:
        for batch in arguments.batch:
            speeds: dict[str, list[dict[str, Any]]] = {name: [] for name in [*arguments.cases, *spinning]}
            for _ in range(arguments.rounds):
                for name in speeds:
                    with _busy(busy):
                        speeds[name].append(_run(name, batch, arguments))
            rows += [{"busy programs": busy, "batch": batch, **_row(name, found)} for name, found in speeds.items()]
    described = machine()
    print(json.dumps(described), "\n")
    print(markdown_table(rows))
    if arguments.json:
        settings = {"model": Path(arguments.model).name, "seconds": arguments.seconds, "rounds": arguments.rounds}
        write_json(arguments.json, {"machine": described, "arguments": settings, "rows": rows})


def _row(name: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    speeds = [one["tokens/s"] for one in found]
    return {
        "program": name,
        "threads": found[0]["threads"],
        "tokens/s": round(statistics.median(speeds), 1),
        "from": min(speeds),
        "to": max(speeds),
        "cpu s a token": round(statistics.median(one["cpu s a token"] for one in found), 3),
    }


def _run(name: str, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    library, chosen = CASES[name]
    clean = {variable: value for variable, value in os.environ.items() if variable not in CHOSEN}
    environment = clean | (cpu_threads.variables(None) if chosen is None else chosen) | {"HF_HUB_OFFLINE": "1"}
    alone = ["--alone", library, str(batch), "--model", arguments.model, "--seconds", str(arguments.seconds)]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.busy", *alone], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Programs that compute until the block ends."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _measure(library: str, batch: int, path: str, seconds: float) -> dict[str, Any]:
    import torch

    import gen
    from benchmarks.programs import ours, theirs

    prompts = ["Tell me a story about a lighthouse."] * batch
    model = gen.load(path) if library == "gen" else gen.from_transformers(*_loaded(path))
    if library == "gen":
        call = ours(model, prompts, gen.samplers.greedy(), TOKENS)
    else:
        call = theirs(model, prompts, TOKENS, do_sample=False)
    call()
    calls, begin, begin_cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        call()
        calls += 1
    made, took = calls * batch * TOKENS, time.perf_counter() - begin
    cpu = (time.process_time() - begin_cpu) / made
    return {"threads": torch.get_num_threads(), "tokens/s": round(made / took, 2), "cpu s a token": round(cpu, 4)}


def _loaded(path: str) -> tuple[Any, Any]:
    """The model as transformers loads it, whose linear layers are torch's own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)


if __name__ == "__main__":
    main()
