"""`gen serve` in a process of its own, for as long as a benchmark needs it."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: str, *options: str, port: int = 8199, log: Path | None = None) -> Iterator[tuple[str, int]]:
    """The server's URL and its process, once it answers; it is told to end afterwards, and must end with 0.

    Args:
        log: where its log goes; None for stderr.
    """
    command = [sys.executable, "-m", "gen", "serve", model, "--port", str(port), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (
        nullcontext() if log is None else log.open("w") as file,
        subprocess.Popen(command, env=environment, stderr=file) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        try:
            while not _answers(url):
                if process.poll() is not None:
                    raise RuntimeError(f"gen serve has ended with {process.returncode}")
                time.sleep(0.2)
            yield url, process.pid
        finally:
            process.terminate()
        if code := process.wait():
            raise RuntimeError(f"gen serve has ended with {code}")


def cpu_seconds(process: int) -> float:
    """How much CPU time a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
