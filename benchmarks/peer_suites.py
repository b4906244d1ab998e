"""Do other projects' own tests pass on virtual GPUs?

    python -m benchmarks.peer_suites accelerate=path/to/tests --files test_hooks.py test_big_modeling.py
    python -m benchmarks.peer_suites accelerate=path/to/tests --json benchmarks/results/peer-suites.json

Fetches nothing: give it the folders of tests, as `name=folder`. Every file runs in a process of its own, without
virtual GPUs and with two (`-p gen.testing.plugin --virtual-gpus 2`). Prints passed, failed and skipped of both, and
each test that fails with them and not without, those that were skipped without among them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.measuring import machine, markdown_table, write_json

ROOT = Path(__file__).parents[1]
WITH = ["-p", "gen.testing.plugin", "--virtual-gpus", "2", "--virtual-gpu-memory", "4GiB"]
Results = dict[str, tuple[str, str]]  # a test's outcome, and the first line of what it said


def main() -> None:
    arguments = _arguments()
    rows, report = [], {}
    for name, folder in (suite.split("=", 1) for suite in arguments.suites):
        files = [Path(folder, file) for file in arguments.files] or sorted(Path(folder).rglob("test_*.py"))
        without: Results = {}
        virtual: Results = {}
        for file in files:
            without |= _run(file, [], arguments.minutes)
            virtual |= _run(file, WITH, arguments.minutes)
        for title, results in (("without", without), ("2 virtual GPUs", virtual)):
            counts = Counter(outcome for outcome, _ in results.values())
            rows.append(
                {"suite": name, "run": title, **{word: counts[word] for word in ("passed", "failed", "skipped")}}
            )
        broken = {
            test: said
            for test, (outcome, said) in virtual.items()
            if outcome == "failed" and without.get(test, ("", ""))[0] != "failed"
        }
        report[name] = {"files": [file.name for file in files], "fails with virtual GPUs alone": broken}
    print(markdown_table(rows))
    for name, found in report.items():
        for test, said in found["fails with virtual GPUs alone"].items():  # type: ignore[attr-defined]
            print(f"{name}: {test}: {said}")
    if arguments.json:
        whole = {"machine": machine(), "torch": torch.__version__, "runs": rows, "suites": report}
        write_json(arguments.json, whole)


def _run(file: Path, options: list[str], minutes: float) -> Results:
    """Every test of a file: how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *options]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        try:
            subprocess.run(
                [*command, f"--junitxml={output}", str(file.absolute())],
                cwd=file.parent.parent,
                env=environment,
                capture_output=True,
                timeout=60 * minutes,
            )
        except subprocess.TimeoutExpired:
            return {file.name: ("failed", f"took more than {minutes:g} minutes")}
        if not output.exists():
            return {file.name: ("failed", "the process ended before its tests did")}
        return dict(_outcome(case, file) for case in ElementTree.parse(output).iter("testcase"))


def _outcome(case: ElementTree.Element, file: Path) -> tuple[str, tuple[str, str]]:
    name = f"{file.name}::{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            return name, (outcome, (found.get("message") or "").splitlines()[0][:200] if found.get("message") else "")
    return name, ("passed", "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="NAME=FOLDER", help="a folder of tests, and what to call it")
    parser.add_argument("--files", nargs="*", default=[], help="files in it, else all")
    parser.add_argument("--minutes", type=float, default=10, help="what one file may take")
    parser.add_argument("--json", type=Path, help="write the results there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
