"""`-p gen.testing.plugin`: any project's tests run on virtual GPUs."""

import sys
from pathlib import Path

import pytest

from tests.helpers.forked import Forked

TESTS = """
import pytest, torch

@pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs three GPUs")
def test_three_gpus():
    assert torch.ones(1, device="cuda:2").device.index == 2
    assert torch.cuda.get_device_properties(0).total_memory == 2**30

def test_always():
    pass
"""
COMMAND = """
import subprocess, sys
PROGRAM = "import sitecustomize, sys; print('torch' in sys.modules); import torch; print(torch.cuda.device_count())"

def test_program():
    assert subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split() == ["False", "3"]
"""


CONFTEST = """
import torch
GPUS = torch.cuda.device_count()  # what projects decide at import: which device their tests take

def pytest_report_header():
    return f"GPUs in conftest: {GPUS}"
"""


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, tests: str = TESTS) -> str:
    """What pytest says of tests in a folder; it runs in a fork."""
    (folder / "test_theirs.py").write_text(tests)
    (folder / "conftest.py").write_text(CONFTEST)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    arguments = ["-p", "no:cacheprovider", *options, "test_theirs.py"]
    code, out, err = Forked(lambda: sys.exit(pytest.main(arguments))).end()
    assert code == 0, out + err
    return out


def test_the_plugin_opens_a_block_before_the_tests_and_their_conftest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-p", "gen.testing.plugin")
    said = _run(tmp_path, monkeypatch, *options, "--virtual-gpus", "3", "--virtual-gpu-memory", "1GiB")
    assert "2 passed" in said and "GPUs in conftest: 3" in said
    assert "1 passed, 1 skipped" in _run(tmp_path, monkeypatch, *options)


def test_programs_that_the_tests_start_have_the_gpus_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-p", "gen.testing.plugin", "--virtual-gpus", "3", "--virtual-gpus-in-commands")
    assert "1 passed" in _run(tmp_path, monkeypatch, *options, tests=COMMAND)
