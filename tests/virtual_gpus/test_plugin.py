"""pytest's plugin: any project's tests run on virtual GPUs, and one that does not ask for them loads no torch."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import virtual_gpus
from tests.helpers.forked import Forked

ROOT = Path(__file__).parents[2]
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
from multiprocessing import get_context
PROGRAM = "import sitecustomize, sys; print('torch' in sys.modules); import torch; print(torch.cuda.device_count())"
CHECKED = "from virtual_gpus import no_host_sync; import torch; print(no_host_sync, torch.cuda.device_count())"

def count(results):
    import torch
    results.put(torch.cuda.device_count())

def test_a_program():
    assert subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).split() == ["False", "3"]

def test_a_check():
    assert subprocess.check_output([sys.executable, "-c", CHECKED], text=True).split()[-1] == "3"

def test_a_spawned_child():
    results = get_context("spawn").SimpleQueue()
    child = get_context("spawn").Process(target=count, args=(results,))
    child.start()
    child.join()
    assert child.exitcode == 0 and results.get() == 3
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
    monkeypatch.setenv("PYTHONPATH", str(Path(virtual_gpus.__file__).parents[1]))
    arguments = ["-p", "no:cacheprovider", *options, "test_theirs.py"]
    code, out, err = Forked(lambda: sys.exit(pytest.main(arguments))).end()
    assert code == 0, out + err
    return out


def test_the_plugin_opens_a_block_before_the_tests_and_their_conftest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-p", "virtual_gpus.plugin")
    said = _run(tmp_path, monkeypatch, *options, "--virtual-gpus", "3", "--virtual-gpu-memory", "1GiB")
    assert "2 passed" in said and "GPUs in conftest: 3" in said
    assert "1 passed, 1 skipped" in _run(tmp_path, monkeypatch, *options)


def test_programs_that_the_tests_start_have_the_gpus_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-p", "virtual_gpus.plugin", "--virtual-gpus", "3", "--virtual-gpus-in-commands")
    assert "2 passed" in _run(tmp_path, monkeypatch, *options, "-k", "not check", tests=COMMAND)
    assert "1 passed" in _run(tmp_path, monkeypatch, *options, "-k", "check", "-p", "xdist", "-n1", tests=COMMAND)


def test_pytest_finds_the_plugin_by_itself_under_its_own_name() -> None:
    """So that `-p virtual_gpus.plugin` beside the entry point names a plugin that is there, and not a second one."""
    project = tomllib.loads((ROOT / "virtual_gpus" / "pyproject.toml").read_text())["project"]
    [(name, value)] = project["entry-points"]["pytest11"].items()
    assert name == value and import_module(value).gen_virtual_gpus


def test_neither_the_package_nor_the_plugin_loads_torch_before_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\nimport virtual_gpus\n\ndef test_no_torch():\n    assert 'torch' not in sys.modules\n"
    )
    options = ["-q", "-p", "virtual_gpus.plugin", "-p", "no:cacheprovider", "--disable-plugin-autoload"]
    command = [sys.executable, "-m", "pytest", *options, "test_theirs.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
