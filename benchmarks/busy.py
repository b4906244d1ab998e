"""How fast a CPU decodes beside busy programs, by how threads and their spinning were chosen.

    make real
    python -m benchmarks.busy --busy 0 1 2 --batch 1 8 --json busy.json

Each case is a process of its own, since threads are chosen before torch is loaded. It calls again and again, 16 tokens
each time, until its seconds are over, after one call that warms up. Cases take turns, round by round, beside so many
programs that compute all the time. "command line" is what `gen`'s commands, jobs and servers choose. With
`--spins 1000 3000` there are programs that set GOMP_SPINCOUNT to each of these numbers too.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import REAL, publish, read_arguments, span
from gen.runtime import cpu_threads

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
    given = read_arguments(
        __doc__,
        model=str(REAL),
        busy=([0, 1, 2], "programs that compute all the time"),
        batch=[1, 8],
        cases={"nargs": "+", "default": [*CASES], "choices": [*CASES]},
        spins=([], "more cases: each is a GOMP_SPINCOUNT"),
        seconds=8.0,
        rounds=3,
    )
    programs = {name: CASES[name] for name in given.cases}
    programs |= {f"gen, {spins} spins": ("gen", {"GOMP_SPINCOUNT": str(spins)}) for spins in given.spins}
    rows: list[dict[str, Any]] = []
    for busy, batch in product(given.busy, given.batch):
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
        for _ in range(given.rounds):
            for name, (library, chosen) in programs.items():
                with _busy(busy):
                    found[name].append(_run(library, chosen, batch, given.model, given.seconds))
        rows += [{"busy programs": busy, "batch": batch, **_row(name, some)} for name, some in found.items()]
    settings = {"model": Path(given.model).name, "seconds": given.seconds, "rounds": given.rounds}
    publish(given, arguments=settings, rows=rows)


def _row(name: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    speeds = [one["tokens/s"] for one in found]
    return {
        "program": name,
        "threads": found[0]["threads"],
        **span("tokens/s", speeds, 1),
        "cpu s a token": round(statistics.median(one["cpu s a token"] for one in found), 3),
    }


def _run(library: str, chosen: dict[str, str] | None, batch: int, path: str, seconds: float) -> dict[str, Any]:
    """What a process of its own measures."""
    clean = {variable: value for variable, value in os.environ.items() if variable not in CHOSEN}
    environment = clean | (cpu_threads.variables(None) if chosen is None else chosen) | {"HF_HUB_OFFLINE": "1"}
    program = f"from benchmarks import busy; busy.measure({library!r}, {batch}, {path!r}, {seconds})"
    told = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
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


def measure(library: str, batch: int, path: str, seconds: float) -> None:
    """Print how fast this process is."""
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
    speed = {"threads": torch.get_num_threads(), "tokens/s": round(made / took, 2), "cpu s a token": round(cpu, 4)}
    print(json.dumps(speed))


def _loaded(path: str) -> tuple[Any, Any]:
    """The model as transformers loads it, whose linear layers are torch's own."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)


if __name__ == "__main__":
    main()
