"""The tests that need a GPU, a process for each file, several at once. A file that fails runs once more, alone, with
CUDA_LAUNCH_BLOCKING=1: then the error is raised where it was caused.

Each run has a log and a junit file in the folder `tests`.
"""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu import running
from benchmarks.gpu.reporting import read
from benchmarks.gpu.running import ROOT, Step

_NEEDS_GPU = re.compile(r"mark\.gpu|\(gpu: torch\.device|, gpu: torch\.device|two_gpus: None")
_WITH_TRITON = ("tests/loop", "tests/samplers", "tests/attention")  # run once more with its kernels
_PYTEST = ("-m", "pytest", "-q", "-rs", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:xdist")
_SMALL = ("tests/virtual_gpus/streams/test_graphs.py", "tests/virtual_gpus/syncs/test_no_host_sync.py")
_AT_ONCE, _SECONDS = 4, 170.0
_NOTHING_TO_RUN = 5  # pytest's exit code


def gpu_tests() -> list[str]:
    """The files with tests that need a GPU, except those of exllama; other files import what may be missing."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [file.relative_to(ROOT).as_posix() for file in files if _NEEDS_GPU.search(file.read_text(encoding="utf-8"))]
    return [path for path in found if not path.startswith("tests/models/exllama")]


def main() -> int:
    given = read(__doc__)
    folder, end = given.out / "tests", time.monotonic() + _SECONDS
    folder.mkdir(exist_ok=True)
    files = list(_SMALL) if given.small else gpu_tests()
    runs: list[tuple[str, dict[str, str]]] = [(path, {}) for path in files]
    if not given.small:
        runs += [(path, {"GEN_TRITON": "1"}) for path in files if path.startswith(_WITH_TRITON)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        codes = list(pool.map(lambda one: run(one[0], one[1], folder, end), runs))
    for (path, settings), code in zip(runs, codes, strict=True):
        name = path + "".join(f" {key}={value}" for key, value in settings.items())
        given.report.add(name, lambda code=code: {"code": code})  # type: ignore[misc]
        if code not in (0, _NOTHING_TO_RUN):
            given.report.failed = True
            blocking = {**settings, "CUDA_LAUNCH_BLOCKING": "1"}
            given.report.add(f"{name}, blocking", lambda: {"code": run(path, blocking, folder, end)})  # noqa: B023
    return given.report.failed


def run(path: str, settings: dict[str, str], folder: Path, end: float) -> int | None:
    """Run a file's tests; None if time ran out."""
    name = "-".join([*Path(path).with_suffix("").parts[1:], *map(str.lower, settings)])
    step = Step(name, (*_PYTEST, f"--junitxml={folder / name}.xml", path), _SECONDS)
    return running.run(step, folder, end - time.monotonic(), **settings).code


if __name__ == "__main__":
    sys.exit(main())
