"""`python -m virtual_gpus run`: a program runs on virtual GPUs as `python` would run it."""

import sys
from pathlib import Path

import pytest

from tests.helpers.forked import Forked
from virtual_gpus.__main__ import main

PROGRAM = """
import subprocess, sys
import torch
from beside import NAME
COUNT = "import torch; print(torch.cuda.device_count())"
print(__name__, NAME, sys.argv[1:], torch.cuda.device_count(), torch.cuda.mem_get_info(2)[1])
if sys.argv[1] == "starts":
    print(subprocess.check_output([sys.executable, "-c", COUNT], text=True).strip())
torch.ones(1, device="cuda:2") + torch.ones(1)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_program_and_what_it_starts_have_the_gpus_and_its_mistake_is_found(
    as_module: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    monkeypatch.chdir(tmp_path if as_module else "/")
    starts, counted = ("alone", "") if as_module else ("starts", "3\n")
    program = ["-m", "program"] if as_module else [str(tmp_path / "program.py")]
    monkeypatch.setattr(
        sys, "argv", ["virtual_gpus", "run", "--gpus", "3", "--memory", "2GiB", *program, starts, "--gpus", "x"]
    )
    code, out, err = Forked(main).end()
    assert out == f"__main__ beside ['{starts}', '--gpus', 'x'] 3 {2**31}\n{counted}"
    assert code == 1 and "DeviceMismatchError: Expected all tensors to be on the same device" in err
