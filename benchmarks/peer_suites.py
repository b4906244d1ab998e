"""Do other projects' own tests pass on virtual GPUs?

    python -m benchmarks.peer_suites accelerate=path/to/tests --files test_hooks.py test_big_modeling.py
    python -m benchmarks.peer_suites pytorch=path/to/test --files test_indexing.py --every 3 --pytest=-pno:logging
    python -m benchmarks.peer_suites transformers=path/to/tests --files models/{llama,bert}/test_modeling_*.py --failed
    python -m benchmarks.peer_suites accelerate=path/to/tests --json benchmarks/results/peer-suites.json

Fetches nothing: give it the folders of tests, as `name=folder`. Every file runs in a process of its own, without
virtual GPUs and with two (`-p virtual_gpus.plugin --virtual-gpus 2`). A test that ends the process has failed, and the
next one goes on; so does a later run with the same `--keep` folder. PyTorch turns a test into one for each kind of
device: the one for CUDA, on virtual GPUs, is compared with the one for the CPU, without them.

Prints how many tests passed, failed and were skipped in both runs; how many of those that pass without virtual GPUs
pass with them, not counting those skipped there; and each test that fails only with them.
"""

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gpu.running import environment
from benchmarks.measuring import publish, read_arguments
from benchmarks.peer_outcomes import Outcome, read, twin

QUIETLY = ["-p", "no:cacheprovider", "--disable-warnings"]  # tests of warnings need the warnings that -W would hide
VIRTUAL = ["-p", "virtual_gpus.plugin", "--virtual-gpus", "2", "--virtual-gpus-in-commands", "--virtual-gpu-memory"]
CPU_TESTS, CUDA_TESTS = ({"PYTORCH_TESTING_DEVICE_ONLY_FOR": kind} for kind in ("cpu", "cuda"))
Results = dict[str, Outcome]


def main() -> None:
    arguments = read_arguments(
        __doc__,
        suites_=({"nargs": "+", "metavar": "NAME=FOLDER"}, "a folder of tests, and its name"),
        files=({"nargs": "*", "default": []}, "files in the folder; default: all"),
        every=(1, "run every N-th test of a file"),
        seconds=(60.0, "CPU time that one test may take"),
        memory=("4GiB", "memory of each virtual GPU"),
        minutes=(10.0, "time that one process may take"),
        failed=(False, "without virtual GPUs, run only tests that failed there"),
        keep=(Path, "keep outcomes in this folder; a later run skips their tests"),
        pytest=({"nargs": "*", "default": []}, "further options of pytest"),
    )
    rows, report = [], {}
    for name, folder in (suite.split("=", 1) for suite in arguments.suites):
        files = [Path(folder, file) for file in arguments.files] or sorted(Path(folder).rglob("test_*.py"))
        without: Results = {}
        virtual: Results = {}
        with ExitStack() as stack:
            keep = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            keep.mkdir(parents=True, exist_ok=True)
            for file in files:
                kept = keep.absolute() / "-".join([name, *file.relative_to(folder).with_suffix("").parts])
                with_them, without_them = kept.with_suffix(".virtual"), kept.with_suffix(".without")
                of_file = _run(file, Path(folder), with_them, [*VIRTUAL, arguments.memory], CUDA_TESTS, arguments)
                virtual |= of_file
                which = CPU_TESTS | ({"PEER_FAILED_IN": str(with_them)} if arguments.failed else {})
                if not arguments.failed or any(outcome == "failed" for outcome, _ in of_file.values()):
                    without |= _run(file, Path(folder), without_them, [], which, arguments)
        for title, results in (("without", without), ("2 virtual GPUs", virtual)):
            counts = Counter(outcome for outcome, _ in results.values())
            rows.append(
                {"suite": name, "run": title, **{word: counts[word] for word in ("passed", "failed", "skipped")}}
            )
        report[name] = {"files": [str(file.relative_to(folder)) for file in files], **compared(without, virtual)}
    for name, found in report.items():
        print(f"{name}: {found['pass']} of {found['pass without, and run']} that pass without pass on virtual GPUs")
        for test, said in found["fails with virtual GPUs alone"].items():  # type: ignore[attr-defined]
            print(f"{name}: {test}: {said}")
    publish(arguments, runs=rows, suites=report)


def compared(without: Results, virtual: Results) -> dict[str, object]:
    """What virtual GPUs change, test by test."""
    pairs = {test: (without.get(twin(test), ("", ""))[0], outcome) for test, (outcome, _) in virtual.items()}
    asked = [outcome for before, outcome in pairs.values() if before == "passed" and outcome != "skipped"]
    return {
        "pass without, and run": len(asked),
        "pass": asked.count("passed"),
        "fails with virtual GPUs alone": {
            test: virtual[test][1]
            for test, (before, outcome) in pairs.items()
            if outcome == "failed" and (before != "failed" or test.endswith("::"))  # this one: none of a file's began
        },
    }


def _run(
    file: Path,
    folder: Path,
    outcomes: Path,
    options: list[str],
    which: dict[str, str],
    arguments: Namespace,
) -> Results:
    """Run a file's tests, and run again after a test that ends the process."""
    outcomes = outcomes.absolute()
    command = [sys.executable, "-m", "pytest", "-q", *QUIETLY, "-p", "benchmarks.peer_outcomes"]
    known = environment(
        TOKENIZERS_PARALLELISM="false",
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        PEER_OUTCOMES=str(outcomes),
        PEER_SECONDS=str(arguments.seconds),
        PEER_EVERY=str(arguments.every),
        **which,
    )
    found = read(outcomes)
    while True:
        try:
            ended = subprocess.run(
                [*command, *options, *arguments.pytest, str(file.absolute())],
                cwd=folder.absolute().parent,  # as these projects run their tests
                env=known,
                capture_output=True,
                text=True,
                timeout=60 * arguments.minutes,
            )
        except subprocess.TimeoutExpired:
            return read(outcomes) | {f"{file.name}::": ("failed", f"took more than {arguments.minutes:g} minutes")}
        before, found = found, read(outcomes)
        if ended.returncode in (0, 5) or (ended.returncode == 1 and found != before):  # passed, none left, or failed
            return found
        if found == before:
            said = " ".join((ended.stdout[-1000:] + ended.stderr[-1000:]).split())
            return found | {f"{file.name}::": ("failed", f"the process ended before its tests did: {said}")}


if __name__ == "__main__":
    main()
