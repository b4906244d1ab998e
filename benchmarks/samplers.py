"""How long a sampler takes, as a ratio to torch.argmax on the same logits, and how much memory.

    python -m benchmarks.samplers --batch 8 --vocab 131072 --dtype float32 --kind zipf --threads 1

All cases of a shape run in turn, round by round, so that other load on the machine affects them all. None is warmed up
before it is timed, since in a decode loop the caches are cold too. With one thread times are CPU time of the thread,
else wall time. They are medians over rounds, ratios medians of each round's ratio. "read" is the time to read the
logits' bytes once. Memory is the peak of what a case allocates, as a ratio to the logits in float32. The time of "gen"
includes the log-probability; "a value each row" has parameters that are tensors. Outlines is measured only if
`benchmarks.outlines.suite` has run.
"""

import gc
import json
import os
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports its own start and stop on stderr

import torch
from torch import Tensor

from benchmarks.measuring import (
    clock_for,
    described,
    interleave,
    machine,
    markdown_table,
    publish,
    ratio,
    read_arguments,
    span,
)
from benchmarks.sampler_cases import make_logits, our_cases, outlines_cases, transformers_cases
from gen.errors import GenError

MAKERS = {"gen": our_cases, "outlines": outlines_cases, "transformers": transformers_cases}
ARGMAX, READ = "torch.argmax", "read"


def main() -> None:
    given = read_arguments(
        __doc__,
        batch=[1, 8, 64],
        vocab=[32_000, 131_072, 151_936],
        dtype=["float32", "bfloat16"],
        kind=(["zipf", "flat", "demo"], "of logits"),
        threads=([1, 2], "numbers of torch's threads"),
        cases=[*MAKERS],
        rounds=9,
        summary=(Path, "write one table of all shapes there"),
    )
    rows = []
    for kind, dtype, batch in product(given.kind, given.dtype, given.batch):
        for vocab in given.vocab if kind != "demo" else given.vocab[:1]:
            rows += _measure(kind, batch, vocab, dtype, given)
    arguments = {name: value for name, value in described(given).items() if name != "summary"}
    publish(given, arguments=arguments, rows=rows)
    if given.summary:
        given.summary.write_text(_summary(rows, arguments))


def _measure(kind: str, batch: int, vocab: int, dtype: str, given: Namespace) -> list[dict[str, Any]]:
    """A row for each number of threads and case."""
    try:
        logits = make_logits(kind, batch, vocab, getattr(torch, dtype))
    except GenError as error:
        print(f"left out: {kind}: {error}", file=sys.stderr)
        return []
    size = logits.numel() * 4
    cases: dict[str, Callable[[], object]] = {
        ARGMAX: lambda: torch.argmax(logits, -1),
        READ: lambda: _bytes(logits).amax(-1),
    }
    for name in given.cases:
        cases |= MAKERS[name](logits)
    rows = []
    with torch.inference_mode():
        memory = {name: peak / size for name, peak in _peaks(cases).items()}
        for threads in given.threads:
            torch.set_num_threads(threads)
            seconds = interleave(cases, given.rounds, clock=clock_for("cpu", threads))
            for name, times in seconds.items():
                rows.append(
                    {
                        "logits": kind,
                        "dtype": dtype,
                        "batch": batch,
                        "vocab": logits.shape[1],
                        "threads": threads,
                        "case": name,
                        **span("ms", [1000 * time for time in times]),
                        "/ argmax": round(ratio(times, seconds[ARGMAX]), 2),
                        "/ read": round(ratio(times, seconds[READ]), 1),
                        "memory": round(memory[name], 2),
                    }
                )
    return rows


def _bytes(logits: Tensor) -> Tensor:
    """The same bytes in a dtype that is read without a conversion."""
    return logits if logits.dtype == torch.float32 else logits.view(torch.int16)


def _peaks(cases: dict[str, Callable[[], object]]) -> dict[str, int]:
    """The peak of each case, without what a garbage collection would free meanwhile: older objects' memory."""
    gc.collect()
    gc.disable()
    try:
        return {name: _peak(case) for name, case in cases.items()}
    finally:
        gc.enable()


def _peak(case: Callable[[], object]) -> int:
    """The most bytes that a case had allocated at once, torch's own temporaries included."""
    case()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        case()
    kineto: Any = profile.profiler
    events = [event for event in kineto.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def _summary(found_rows: Sequence[dict[str, Any]], arguments: dict[str, Any]) -> str:
    """The rows as one Markdown table: a row for each shape and sampler, over all types and numbers of threads."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in found_rows:
        maker, _, sampler = row["case"].partition(": ")
        if maker in ("gen", "Outlines", "transformers"):
            key = (row["logits"], row["batch"], row["vocab"], sampler)
            found.setdefault(key, {}).setdefault(maker, []).append(row)
    rows = []
    for (kind, batch, vocab, sampler), makers in found.items():
        ours = [row["/ argmax"] for row in makers["gen"]]
        medians = {
            maker: f"{statistics.median(row['/ argmax'] for row in makers[maker]):.3g}" if maker in makers else ""
            for maker in ("gen", "Outlines", "transformers")
        }
        shape = {"logits": kind, "shape": f"{batch} x {vocab}", "sampler": sampler}
        memory = max(row["memory"] for row in makers["gen"])
        rows.append({**shape, **medians, "gen, slowest": f"{max(ours):.3g}", "gen, memory": f"{memory:.2f}"})
    note = """Each number is a time divided by that of `torch.argmax` on the same logits: the median over the types and
numbers of threads below, and for `gen` the slowest of them too. Memory is the most that `gen` allocates, divided by the
logits' size in float32."""
    told = {**machine(), **{name: arguments[name] for name in ("dtype", "threads", "rounds")}}
    return "\n\n".join(["# Samplers at many shapes", note, f"`{json.dumps(told)}`", markdown_table(rows)]) + "\n"


if __name__ == "__main__":
    main()
