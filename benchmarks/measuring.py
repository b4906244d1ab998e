"""What the benchmarks share: the machine's description, interleaved timing, tables."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


def machine() -> dict[str, str | int]:
    """Hardware and versions, but nothing that identifies a person's machine."""
    import transformers

    described: dict[str, str | int] = {
        "cpu": _cpu_name(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    for index in range(torch.cuda.device_count()):
        described[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    return described


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@dataclass(frozen=True)
class Spread:
    """Times of one case: the median, the fastest and the slowest round."""

    median: float
    fastest: float
    slowest: float


def clock_for(device: str | torch.device, threads: int) -> Callable[[], float]:
    """The thread's CPU time if that is all the work, since other programs disturb it less; otherwise wall time."""
    return time.thread_time if torch.device(device).type == "cpu" and threads == 1 else time.perf_counter


def interleave(
    cases: Mapping[str, Callable[[], object]], rounds: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every case in every round, by a clock. A round runs each case once; an extra round comes first."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            begin = clock()
            case()
            if number:
                seconds[name].append(clock() - begin)
    return seconds


def spread(seconds: Sequence[float]) -> Spread:
    return Spread(statistics.median(seconds), min(seconds), max(seconds))


def ratio(seconds: Sequence[float], peer: Sequence[float]) -> float:
    """The median over rounds of one case's time against its peer's in the same round."""
    return statistics.median(mine / theirs for mine, theirs in zip(seconds, peer, strict=True))


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of equal keys as a Markdown table, padded so that it reads as plain text too."""
    header = list(rows[0])
    cells = [header, *([str(row[name]) for name in header] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def write_json(path: Path, report: Mapping[str, object] | Sequence[object]) -> None:
    """Write a report as JSON with one record a line, so that two reports can be compared line by line."""
    path.write_text(_lines(report, 0) + "\n", encoding="utf-8")


def _lines(value: object, depth: int) -> str:
    """JSON with a line for each entry; an entry that holds objects has a line for each of them."""
    entries = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if depth > 1 or (depth == 1 and not any(isinstance(entry, dict) for entry in entries)):
        return json.dumps(value)
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(entries)
    inner = " " * (depth + 1)
    texts = [f"{inner}{name}{_lines(entry, depth + 1)}" for name, entry in zip(names, entries, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(texts), f"{' ' * depth}{closing}"])
