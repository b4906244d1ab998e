"""A pytest plugin that writes down when each test begins and ends, so that another run can continue one that died.

`PEER_OUTCOMES` names the file. Each line is a JSON list: the test, its outcome ("started" before it has one) and what
it said. Tests that the file already has are left out. `PEER_SECONDS` is the CPU time that one test may take.
`PEER_EVERY=3` runs one test in three, the same ones for each kind of device. `PEER_FAILED_IN` names another such file;
then only the tests that failed there are run.
"""

import json
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

Outcome = tuple[str, str]  # "passed", "failed" or "skipped", and what the test said
_NO_END = "failed", "ended the process, or took too long"


def read(file: Path) -> dict[str, Outcome]:
    """The outcome of every test that began. A test has failed if it did not end, or if its setup or teardown failed."""
    found: dict[str, Outcome] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        name, outcome, said = json.loads(line)
        if outcome == "started":
            found[name] = _NO_END
        elif found[name][0] != "failed" or found[name] is _NO_END:
            found[name] = outcome, said
    return found


def twin(test: str) -> str:
    """The name of a test for the CPU that PyTorch makes beside one for CUDA; other tests' names are their own."""
    file, _, rest = test.partition("::")
    group, _, name = rest.rpartition("::")
    if not group.endswith("CUDA"):
        return test
    head, found, tail = re.sub(r"_cuda(?=_|$)", "\0", name).rpartition("\0")
    return (
        f"{file}::{group.removesuffix('CUDA')}CPU::{(head + '_cpu' + tail).replace(chr(0), '_cuda') if found else name}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = read(_file())
    every = int(os.environ.get("PEER_EVERY", 1))
    names = {item: _name(item) for item in items}
    items[:] = [item for item, name in names.items() if name not in done and not crc32(twin(name).encode()) % every]
    if elsewhere := os.environ.get("PEER_FAILED_IN"):
        failed = {twin(name) for name, (outcome, _) in read(Path(elsewhere)).items() if outcome == "failed"}
        items[:] = [item for item in items if twin(names[item]) in failed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    seconds = float(os.environ.get("PEER_SECONDS", 60))
    _write(_name(item), "started", "")

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} seconds of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "call" or report.outcome != "passed":
        said = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            said = report.longrepr[2]
        elif call.excinfo is not None:
            said = call.excinfo.exconly()
        _write(_name(item), report.outcome, " ".join(said.split())[:300])
    return report


def _file() -> Path:
    return Path(os.environ["PEER_OUTCOMES"])


def _name(item: pytest.Item) -> str:
    parent = item.getparent(pytest.Class)
    return "::".join([item.path.name, *([parent.name] if parent else []), item.name])


def _write(name: str, outcome: str, said: str) -> None:
    with _file().open("a") as file:
        file.write(json.dumps([name, outcome, said]) + "\n")
