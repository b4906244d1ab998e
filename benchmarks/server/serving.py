"""`gen serve`, or another server, in a process of its own, for as long as a benchmark needs it."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
Process = subprocess.Popen[bytes]


@contextmanager
def serving(model: str, *options: object, log: Path | None = None) -> Iterator[tuple[str, int]]:
    """The URL of `gen serve` and its process; it is told to end afterwards, and must end with 0.

    Args:
        log: where its log goes; None for stderr.
    """
    command = [sys.executable, "-m", "gen", "serve", model, *map(str, options)]
    with nullcontext() if log is None else log.open("w") as file, listening(command, file) as (url, process):
        try:
            yield url, process.pid
        finally:
            process.terminate()
            code = process.wait()
        if code:
            raise RuntimeError(f"gen serve has ended with {code}")


@contextmanager
def listening(command: Sequence[str], stderr: object = None) -> Iterator[tuple[str, Process]]:
    """The URL of a server that takes a `--port`, on one thread, once it answers, and its process; it is killed
    afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen([*command, "--port", str(port)], env=environment, stderr=stderr) as process:  # type: ignore[call-overload]
        try:
            while not _answers(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None:
                    raise RuntimeError(f"{command[:4]} has ended with {process.returncode}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()


def cpu_seconds(process: int) -> float:
    """How much CPU time a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _answers(url: str) -> bool:
    """Whether a server says that it is there, or that it knows no such page."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == 404
    except (urllib.error.URLError, ConnectionError):
        return False
