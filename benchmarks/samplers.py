"""How long a sampler takes, as a ratio to torch.argmax on the same logits, and how much memory.

    python -m benchmarks.samplers --batch 8 --vocab 131072 --dtype float32 --kind zipf --threads 1

All cases of a shape run in turn, round by round, so that other load on the machine affects them all. None is warmed up
before it is timed, since in a decode loop the caches are cold too. With one thread times are CPU time of the thread,
else wall time. They are medians over rounds, ratios medians of each round's ratio. "read" is the time to read the
logits' bytes once. Memory is the peak of what a case allocates, as a ratio to the logits in float32. The time of "gen"
includes the log-probability; "a value each row" has parameters that are tensors. "torch backend" is the one for other
devices, run on this CPU. Outlines is measured only if `benchmarks.outlines.suite` has run.
"""

import argparse
import gc
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports its own start and stop on stderr

import torch
from torch import Tensor

from benchmarks.measuring import clock_for, interleave, machine, markdown_table, ratio, spread, write_json
from benchmarks.sampler_cases import (
    make_logits,
    our_cases,
    outlines_cases,
    race_cases,
    torch_backend_cases,
    transformers_cases,
)
from gen.errors import GenError

MAKERS = {
    "gen": our_cases,
    "torch-backend": torch_backend_cases,
    "outlines": outlines_cases,
    "transformers": transformers_cases,
    "race": race_cases,
}
ARGMAX, READ = "torch.argmax", "read"
OUTPUTS = ("json", "markdown", "summary", "plot")


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(max(arguments.threads))
    report: dict[str, Any] = {"machine": machine(), "arguments": _described(arguments), "rows": []}
    print(json.dumps(report["machine"]), "\n")
    for kind in arguments.kind:
        for dtype in arguments.dtype:
            for batch in arguments.batch:
                for vocab in arguments.vocab if kind != "demo" else arguments.vocab[:1]:
                    rows = _measure(kind, batch, vocab, dtype, arguments)
                    report["rows"] += rows
                    if rows:
                        print(markdown_table(rows), "\n", flush=True)
    if arguments.json:
        write_json(arguments.json, report)
    if arguments.markdown:
        arguments.markdown.write_text(_document(report))
    if arguments.summary:
        arguments.summary.write_text(_summary(report))
    if arguments.plot:
        _plot(report["rows"], arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 131_072, 151_936])
    parser.add_argument(
        "--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16", "float16"]
    )
    parser.add_argument("--kind", nargs="+", default=["zipf", "flat", "demo"], choices=["zipf", "flat", "demo"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of torch's threads")
    parser.add_argument("--cases", nargs="+", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    parser.add_argument("--summary", type=Path, help="write one table of all shapes there")
    parser.add_argument("--plot", type=Path, help="draw the ratios to argmax there, as PNG")
    return parser.parse_args()


def _described(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name not in OUTPUTS}


def _measure(kind: str, batch: int, vocab: int, dtype: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
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
    for name in arguments.cases:
        cases |= MAKERS[name](logits)
    rows = []
    with torch.inference_mode():
        memory = {name: peak / size for name, peak in _peaks(cases).items()}
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            seconds = interleave(cases, arguments.rounds, clock=clock_for("cpu", threads))
            for name, times in seconds.items():
                measured = spread([1000 * time for time in times])
                rows.append(
                    {
                        "logits": kind,
                        "dtype": dtype,
                        "batch": batch,
                        "vocab": logits.shape[1],
                        "threads": threads,
                        "case": name,
                        "ms": round(measured.median, 3),
                        "from": round(measured.fastest, 3),
                        "to": round(measured.slowest, 3),
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


def _document(report: dict[str, Any]) -> str:
    """The report as Markdown, a table for each shape."""
    shapes: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    keys = ("logits", "dtype", "batch", "vocab", "threads")
    for row in report["rows"]:
        rest = {name: value for name, value in row.items() if name not in keys}
        shapes.setdefault(tuple(row[key] for key in keys), []).append(rest)
    parts = ["# Samplers", (__doc__ or "").split("\n\n", 2)[2].strip(), f"`{json.dumps(report['machine'])}`"]
    for (kind, dtype, batch, vocab, threads), rows in shapes.items():
        parts += [f"## {kind}, {batch} x {vocab} {dtype}, {threads} thread(s)", markdown_table(rows)]
    return "\n\n".join(parts) + "\n"


def _summary(report: dict[str, Any]) -> str:
    """The report as one Markdown table: a row for each shape and sampler, over all types and numbers of threads."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in report["rows"]:
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
    told = {**report["machine"], **{name: report["arguments"][name] for name in ("dtype", "threads", "rounds")}}
    return "\n\n".join(["# Samplers at many shapes", note, f"`{json.dumps(told)}`", markdown_table(rows)]) + "\n"


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = rows[0]
    keys = ("logits", "dtype", "batch", "vocab", "threads")
    shown = [row for row in rows if all(row[key] == first[key] for key in keys)]
    shown.sort(key=lambda row: -row["/ argmax"])
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(shown) + 1))
    colours = ["tab:blue" if row["case"].startswith("gen") else "tab:grey" for row in shown]
    bars = axes.barh([row["case"] for row in shown], [row["/ argmax"] for row in shown], color=colours)
    axes.bar_label(bars, padding=3)
    title = "{logits} logits, {batch} x {vocab} {dtype}, {threads} thread(s)".format(**first)
    axes.set(xlabel="time / torch.argmax", xscale="log", title=title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
