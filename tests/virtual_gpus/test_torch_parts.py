"""Private parts of torch: all that virtual_gpus uses are listed, and if one is missing, the error names it."""

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.forked import Forked
from virtual_gpus import DeviceError, torch_parts, virtual_gpus

ROOT = Path(__file__).parents[2]
SENTENCE = r"virtual GPUs rest on private parts of torch and were tried up to torch 2\.15; this torch, .*, lacks {}\. "
TREES = [ast.parse(path.read_text()) for path in Path(torch_parts.__file__).parent.rglob("*.py")]
REMOVABLE = ["torch:_C._swap_tensor_impl", "torch:_GLOBAL_DEVICE_CONTEXT", "torch.utils._device:DeviceContext"]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported() -> Iterator[str]:
    """All imports from private modules of torch, as "module:name"."""
    for node in (node for tree in TREES for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
            for alias in node.names:
                if any(map(is_private, [*node.module.split("."), alias.name])):
                    yield f"{node.module}:{alias.name}"


def foreign_attributes() -> Iterator[str]:
    """Private attributes that virtual_gpus reads but does not define itself."""
    nodes = [node for tree in TREES for node in ast.walk(tree)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and is_private(node.attr)]
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    yield from {node.attr for node in attributes if ast.unparse(node.value) not in ("self", "sys")} - own


def test_every_private_part_that_is_used_is_listed() -> None:
    assert set(imported()) - {"torch._ops:OpOverload", "torch._ops:OpOverloadPacket"} <= {
        *torch_parts.PARTS,
        *torch_parts.LATE_PARTS,
    }
    assert any(part.startswith("torch._ops:OpOverload.") for part in torch_parts.PARTS)
    listed = {name for part in (*torch_parts.PARTS, *torch_parts.LATE_PARTS) for name in re.split("[.:]", part)}
    used = set(foreign_attributes())
    assert {"_C", "_schema", "_cdata", "_make_subclass"} <= used, "the search finds less than there is"
    assert used <= listed


@pytest.mark.parametrize("part", REMOVABLE)
def test_a_missing_part_is_an_error_that_names_it(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpus(1):
        assert torch.zeros(1, device="cuda").is_cuda
    dotted = part.replace(":", ".")
    monkeypatch.delattr(dotted)
    with pytest.raises(DeviceError, match=SENTENCE.format(re.escape(dotted))), virtual_gpus(1):
        pass
    monkeypatch.undo()
    with virtual_gpus(1):
        assert torch.zeros(1, device="cuda").is_cuda


def without(part: str) -> None:
    """Import virtual_gpus anew after a part of torch is gone, and print what it says of virtual GPUs."""
    owner, name = part.rsplit(".", 1)
    delattr(pkgutil.resolve_name(owner), name)
    for module in [name for name in sys.modules if name.split(".")[0] == "virtual_gpus"]:
        del sys.modules[module]
    testing: Any = importlib.import_module("virtual_gpus")
    assert testing.no_host_sync and testing.allowed  # on real CUDA they rest on nothing private
    try:
        with testing.virtual_gpus():
            pass
    except testing.VirtualGpuError as error:
        print(type(error).__name__, error)


@pytest.mark.parametrize("part", ["torch._C._DisableTorchDispatch", "torch.utils._device._device_constructors"])
def test_the_package_is_imported_by_a_torch_that_lacks_a_part(part: str) -> None:
    code, out, err = Forked(partial(without, part)).end()
    assert code == 0, err
    assert re.match("DeviceError " + SENTENCE.format(re.escape(part)), out)


def test_an_unknown_newer_torch_with_all_parts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.0.0")
    with virtual_gpus(1):
        assert torch.zeros(1, device="cuda").is_cuda


def test_the_version_that_is_named_is_no_older_than_the_one_that_the_tests_run_with() -> None:
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned and (int(pinned[1]), int(pinned[2])) <= tuple(map(int, torch_parts.TRIED_TORCH.split(".")))
    assert f"tried up to torch {torch_parts.TRIED_TORCH}" in (ROOT / "docs" / "virtual_gpus.md").read_text()
