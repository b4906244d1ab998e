"""`-p gen.testing.plugin`: any project's tests run on virtual GPUs."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest, torch

@pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs three GPUs")
def test_three_gpus():
    assert torch.ones(1, device="cuda:2").device.index == 2
    assert torch.cuda.get_device_properties(0).total_memory == 2**30

def test_always():
    pass
"""


CONFTEST = """
import torch
GPUS = torch.cuda.device_count()  # what projects decide at import: which device their tests take

def pytest_report_header():
    return f"GPUs in conftest: {GPUS}"
"""


def _run(folder: Path, *options: str) -> str:
    (folder / "test_theirs.py").write_text(TESTS)
    (folder / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_theirs.py"]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(root)})
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_plugin_opens_a_block_before_the_tests_and_their_conftest_are_read(tmp_path: Path) -> None:
    options = ("-p", "gen.testing.plugin")
    said = _run(tmp_path, *options, "--virtual-gpus", "3", "--virtual-gpu-memory", "1GiB")
    assert "2 passed" in said and "GPUs in conftest: 3" in said
    assert "1 passed, 1 skipped" in _run(tmp_path, *options)
