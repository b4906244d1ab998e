"""What a change of gen changes: the results of fixed calls and types, with a commit's gen and with this checkout's.

    python -m benchmarks.corpus --against 52a800b
    python -m benchmarks.corpus --against before.jsonl --only 'search|stops'
    python -m benchmarks.corpus --out before.jsonl

The cases are those of this checkout. They call public names alone, and an error is a result like any other, so that
they run with any commit's gen. Each is printed whose result differs: its name, where, before and after. The last line
counts; the exit code is 1 if any differs. Log-probabilities may differ by 2e-4.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.corpus.telling import TOLERANCE, differences, short, told

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "benchmarks.corpus"]
SECONDS = 300  # that a case may take
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
QUIET |= {"PYTHONHASHSEED": "0", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
Results = dict[str, Any]


def cases(only: str) -> Iterator[tuple[str, Any]]:
    """The cases whose name the pattern is found in; equal ones are one."""
    from benchmarks.corpus import calls, errors, served, types

    names = set[str]()
    for group in (*types.GROUPS, *calls.GROUPS, *errors.GROUPS, *served.GROUPS):
        for case in group():
            name = f"{group.__name__}: {case.name_}"
            if name not in names and re.search(only, name):
                names.add(name)
                yield name, case


def outcomes(only: str, first: int = 0, jobs: int = 1) -> Iterator[tuple[str, Any]]:
    """The names of every so-manieth case, and what came of it, as JSON."""
    for name, case in islice(cases(only), first, None, jobs):
        signal.alarm(SECONDS)
        try:
            value = case.find_()
        except Exception as error:
            value = error
        signal.alarm(0)
        yield name, told(value, str(Path.cwd()))


def run_here(only: str, first: int, jobs: int) -> None:
    """Write these outcomes to stdout."""
    import torch

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no result
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, too_slow)
    for pair in outcomes(only, first, jobs):
        print(json.dumps(pair), file=out, flush=True)


def too_slow(*_: object) -> None:
    raise TimeoutError(f"it took more than {SECONDS} s")


def results_of(commit: str | None, only: str, jobs: int) -> Results:
    """The results of all cases, made by several processes with a copy of a commit's gen, or of this checkout's."""
    with TemporaryDirectory() as folder:
        for name in ("gen", "benchmarks", "tests"):
            if name != "gen" or commit is None:
                copytree(ROOT / name, Path(folder) / name, ignore=ignore_patterns("__pycache__"))
        if commit is not None:
            archive = subprocess.run(["git", "archive", commit, "gen"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
            with tarfile.open(fileobj=BytesIO(archive.stdout)) as packed:
                packed.extractall(folder, filter="data")
        running = []
        environment = {**os.environ, **QUIET, "PYTHONPATH": folder}
        for number in range(jobs):
            file = Path(folder) / f"{number}.out"
            command = [*PROGRAM, "--only", only, "--share", f"{number}/{jobs}"]
            with file.open("w") as out, file.with_suffix(".err").open("w") as err:
                running.append((subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err), file))
        for process, file in running:
            if process.wait():
                said = file.with_suffix(".err").read_text()
                print(f"a process ended with {process.returncode}: {said[-2000:]}", file=sys.stderr)
        return dict(json.loads(line) for _, file in running for line in file.read_text().splitlines())


def read_results(file: Path, only: str) -> Results:
    return {name: one for name, one in map(json.loads, file.read_text().splitlines()) if re.search(only, name)}


def report(before: Results, after: Results, tolerance: float) -> Counter[str]:
    """Print what differs, equal differences once; returns how many cases differ, by their group."""
    alike: dict[str, list[str]] = {}
    for name in before | after:
        found = list(differences(before.get(name, "no result"), after.get(name, "no result"), tolerance))
        lines = [f"    {path or 'all'}: {' -> '.join(short(*values))}" for path, *values in found[:3]]
        if found:
            alike.setdefault("\n".join([*lines, f"    and {len(found) - 3} more"][: len(found)]), []).append(name)
    for differing, (first, *others) in alike.items():
        print(first if len(first) < 240 else f"{first[:200]}...{first[-30:]}")
        print(*[f"    and {len(others)} more cases"] * bool(others), differing, sep="\n")
    return Counter(name.partition(":")[0] for names in alike.values() for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", help="a commit, or a file that --out has written")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regex that is in the names of the cases")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    parser.add_argument("--out", type=Path, help="where this checkout's results go, as JSON lines")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of numbers with a point, relative above 1")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share:
        return run_here(given.only, *map(int, given.share.split("/")))
    begun = time.perf_counter()
    after = results_of(None, given.only, given.jobs)
    here = time.perf_counter() - begun
    if given.out:
        given.out.write_text("".join(f"{json.dumps(pair)}\n" for pair in after.items()))
    if given.against is None:
        before = after
    elif given.against.endswith(".jsonl"):
        before = read_results(Path(given.against), given.only)
    else:
        before = results_of(given.against, given.only, given.jobs)
    differ = report(before, after, given.tolerance)
    counts = Counter(name.partition(":")[0] for name in after)
    seconds = {"here": round(here), "in all": round(time.perf_counter() - begun)}
    print(json.dumps({"cases": len(after), "of": counts, "differ": differ, "seconds": seconds}))
    raise SystemExit(bool(differ))


if __name__ == "__main__":
    main()
