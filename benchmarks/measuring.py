"""What the benchmarks share: their command line, sides in turns, random cases, the machine's description, the report.

A benchmark is its inputs and its sides. Example:

    given = read_arguments(__doc__, rounds=7, batch=([1, 8], "texts at once"))
    seconds = interleave({"gen": ours, "transformers": theirs}, given.rounds)
    publish(given, rows=[{"ratio": ratio(seconds["gen"], seconds["transformers"])}])
"""

import argparse
import inspect
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

REAL = Path("models", "SmolLM2-135M-Instruct")
"""The real model, as `make real` leaves it in the root of a checkout."""

Name = TypeVar("Name")


def read_arguments(description: str | None, **options: Any) -> argparse.Namespace:
    """The command line of a benchmark, which has `--json` too. torch gets as many threads as `--threads` says, or one.

    Args:
        description: the module's docstring.
        options: by name, a default, or a default and what the help says. A list takes several values of its first
            one's type, False is a switch, a type takes one value and is None without it. A dict is what
            `ArgumentParser.add_argument` takes. A name that ends in "_" is of an argument without dashes.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in {**options, "json": (Path, "write the report there")}.items():
        default, told = option if isinstance(option, tuple) else (option, None)
        how: dict[str, Any] = {"default": default, "type": type(default)}
        if isinstance(default, dict):
            how = default
        elif default is False:
            how = {"action": "store_true"}
        elif isinstance(default, type):
            how = {"type": default}
        elif isinstance(default, list):
            how = {"default": default, "type": type(default[0]) if default else int, "nargs": "*"}
        elif isinstance(default, Path):
            how["type"] = Path
        parser.add_argument(name[:-1] if name.endswith("_") else f"--{name.replace('_', '-')}", help=told, **how)
    given = parser.parse_args()
    torch.set_num_threads(max(threads) if isinstance(threads := getattr(given, "threads", 1), list) else threads)
    return given


def described(given: argparse.Namespace) -> dict[str, Any]:
    """The arguments for a report, without names of a person's folders."""
    named = {name: value.name if isinstance(value, Path) else value for name, value in vars(given).items()}
    return {name: value for name, value in named.items() if name != "json"}


def publish(given: argparse.Namespace, **report: Any) -> None:
    """Print a report after the machine's description, its rows as tables, and write it to the file of `--json`."""
    report = {"machine": machine(), **report}
    rows = {name: value for name, value in report.items() if is_table(value)}
    print(json.dumps({name: value for name, value in report.items() if name not in rows}))
    for value in rows.values():
        print(f"\n{markdown_table(value)}", flush=True)
    if given.json:
        write_json(given.json, report)


def is_table(value: object) -> bool:
    """Whether a value is a list of rows with equal names."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, dict) and row.keys() == value[0].keys() for row in value)
    )


def check_cases(
    cases: range, check: Callable[[int], tuple[Mapping[str, int], Sequence[object]]], work: Path | None = None
) -> dict[str, Any]:
    """Sum up what random cases count, and print each difference that they find.

    Args:
        check: gives the counts and the differences of a case, by its number, which is its seed; an error is a
            difference too.
        work: as for `work_on`.
    """

    def found(case: int) -> dict[str, Any]:
        counts: Mapping[str, int] = {}
        try:
            counts, differences = check(case)
        except Exception:
            differences = [traceback.format_exc()]
        for difference in differences:
            print(f"case {case}: {difference}", flush=True)
        return {"counts": {**counts, "different": len(differences)}}

    total = Counter[str]()
    for record in work_on(work, cases, found):
        total.update(record["counts"])
    return {"cases": f"{cases.start} to {cases.stop - 1}", **total}


def work_on(file: Path | None, cases: Iterable[Any], find: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """What is found for each case, which is a number or a name. With a file, which gets a line of JSON for each case,
    a run that is begun again goes on behind the lines that are there."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    known = {line["case"]: line for line in map(json.loads, lines)}
    records = []
    for number, case in enumerate(cases, start=1):
        if case not in known:
            known[case] = json.loads(json.dumps({"case": case, **find(case)}))
            if file is not None:
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"{json.dumps(known[case])}\n")
        records.append(known[case])
        if file is not None and number % 500 == 0:
            print(f"{number} cases are done", file=sys.stderr)
    return records


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
    return next(names, "") or platform.processor() or platform.machine()


def clock_for(device: str | torch.device, threads: int) -> Callable[[], float]:
    """The thread's CPU time if that is all the work, since other programs disturb it less; otherwise wall time."""
    return time.thread_time if torch.device(device).type == "cpu" and threads == 1 else time.perf_counter


def interleave(
    cases: Mapping[Name, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    warm: int = 1,
) -> dict[Name, list[float]]:
    """Seconds of every case in every round, by a clock. A round runs each case once; `warm` rounds come before them."""
    seconds: dict[Name, list[float]] = {name: [] for name in cases}
    for number in range(-warm, rounds):
        for name, case in cases.items():
            begin = clock()
            case()
            if number >= 0:
                seconds[name].append(clock() - begin)
    return seconds


def span(
    name: str, numbers: Sequence[float], digits: int = 3, ends: tuple[str, str] = ("from", "to")
) -> dict[str, Any]:
    """The median of some numbers under a name, then the least and the largest one."""
    found = statistics.median(numbers), min(numbers), max(numbers)
    return {key: round(number, digits) for key, number in zip((name, *ends), found, strict=True)}


def ratios(seconds: Sequence[float], peer: Sequence[float]) -> list[float]:
    """One case's time against its peer's, round by round."""
    return [mine / theirs for mine, theirs in zip(seconds, peer, strict=True)]


def ratio(seconds: Sequence[float], peer: Sequence[float]) -> float:
    """The median of these."""
    return statistics.median(ratios(seconds, peer))


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


def write_json(path: Path, report: Mapping[str, object]) -> None:
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


def for_cache(cache: Any) -> dict[str, Any]:
    """The argument of a transformers model for its cache: `past_key_values` is its name before transformers 5.24."""
    from transformers import LlamaForCausalLM

    new = "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    return {"cache" if new else "past_key_values": cache}
