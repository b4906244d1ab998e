"""The Triton kernels: under Triton's interpreter where triton is installed, and on a GPU where there is one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("triton_cases.py")


def run_cases(environment: dict[str, str]) -> None:
    """In a process of its own: triton decides at its import whether it interprets."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)]
    # the interpreter computes with numpy, which warns of overflows that are meant
    done = subprocess.run(
        [*command, "-W", "ignore::RuntimeWarning"], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_under_the_interpreter() -> None:
    run_cases({"TRITON_INTERPRET": "1"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_kernels_on_a_gpu() -> None:
    run_cases({"TRITON_INTERPRET": "0"})
