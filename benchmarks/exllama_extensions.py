"""Builds what exllamav2 and exllamav3 compile when they are first imported, and prints a line about each.

    python -m benchmarks.exllama_extensions --seconds 280

A build that is not done in time is ended, and goes on where it was when this is run again.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from torch.utils import cpp_extension

PACKAGES = ("exllamav2", "exllamav3")


def build(package: str, seconds: float) -> str:
    """Import a package, in at most `seconds`. Returns a line that says whether it worked."""
    if find_spec(package) is None:
        return "is not installed"
    begin = time.monotonic()
    command = [sys.executable, "-c", f"import {package}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        told, _ = process.communicate(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compilers too
        process.communicate()
        folder = Path(cpp_extension._get_build_directory(f"{package}_ext", False))
        (folder / "lock").unlink(missing_ok=True)  # otherwise the next import would wait for ever
        return f"is not built after {time.monotonic() - begin:.0f} s; run this again, it goes on where it was"
    if process.returncode:
        return f"cannot be built: {(told.strip().splitlines() or ['no reason given'])[-1][:300]}"
    return f"is built, imported in {time.monotonic() - begin:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=280, help="time for both builds together")
    end = time.monotonic() + parser.parse_args().seconds
    if shutil.which("nvcc") is None and not os.environ.get("CUDA_HOME"):
        print("without nvcc nothing can be compiled: set CUDA_HOME")
    for package in PACKAGES:
        print(f"{package} {build(package, end - time.monotonic())}", flush=True)


if __name__ == "__main__":
    main()
