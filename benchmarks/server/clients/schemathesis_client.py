"""Requests that schemathesis draws from the server's own description: none may be an error of the server."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.server.clients.running import run_all

EXAMPLES = 25  # of each operation


def draw(url: str, seed: int) -> bool:
    how = ["--max-examples", str(EXAMPLES), "--checks", "not_a_server_error", "--seed", str(seed), "--no-color"]
    program = str(Path(sys.executable).with_name("schemathesis"))
    command = [program, "run", f"{url}/openapi.json", *how]
    with TemporaryDirectory() as folder:  # where it keeps what it has found
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise AssertionError(done.stdout[-300:] + done.stderr[-300:])
    return True


def one_seed(url: str) -> bool:
    return draw(url, 1)


def another_seed(url: str) -> bool:
    return draw(url, 2)


if __name__ == "__main__":
    run_all("schemathesis")
