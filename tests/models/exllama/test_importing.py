"""The import of exllamav2 and exllamav3: what it must not change, and the error if it fails."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gen
from gen.models.exllama.shared import import_exllama
from tests.helpers.forked import Forked
from tests.models.exllama import packages
from virtual_gpus import virtual_gpus


def imports() -> None:
    """Import both packages and tell what that has changed, in a process of its own."""
    warnings.simplefilter("error")
    for name in list(sys.modules):  # another test may have imported them
        if name.startswith("exllamav"):
            del sys.modules[name]
    torch.set_num_threads(2)
    set_by_import: list[str] = []
    vars(torch._C)["_accelerator_setAllocatorSettings"] = set_by_import.append
    packages.exllamav2(), packages.exllamav3()
    print(torch.get_num_threads(), set_by_import, "EXL3_EXPANDABLE_SEGMENTS" in os.environ)


def test_the_real_packages_change_no_threads_no_allocator_and_print_nothing_to_stdout() -> None:
    assert Forked(imports).end()[:2] == (0, "2 [] False\n")


def test_a_package_that_is_not_there_is_an_error_with_the_command(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, load in (("exllamav2", gen.from_exllamav2), ("exllamav3", gen.from_exllamav3)):
        monkeypatch.setitem(sys.modules, name, None)
        with (
            virtual_gpus(2),
            pytest.raises(gen.ModelError, match=rf"{name} cannot be used .*pip install 'gen-torch\[{name}\]'"),
        ):
            load(folders("llama"), device="cuda:1")


def test_a_package_that_cannot_be_compiled_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["import torch", "torch.set_num_threads(2)", "print('compiling')", "raise OSError('CUDA_HOME is not set')"]
    (tmp_path / "exllama_of_the_test.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(gen.ModelError, match=r"OSError: 'CUDA_HOME is not set'.*nvcc of the same version"):
        import_exllama("exllama_of_the_test")
    assert torch.get_num_threads() == 1
    assert "EXL3_EXPANDABLE_SEGMENTS" not in os.environ
    assert capsys.readouterr() == ("", "compiling\n")
