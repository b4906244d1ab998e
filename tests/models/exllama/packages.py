"""exllamav2 and exllamav3 as the tests import them: their own Python code, with stubs of what they compile."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

from gen.models.exllama import shared
from gen.models.exllama.shared import Turns, import_exllama, own_streams
from tests.models.exllama import exl2_ext, exllamav2_ext, exllamav3_ext
from virtual_gpus import virtual_gpus


@cache
def exllamav2_stub() -> ModuleType:
    """The stub of exllamav2's extension, in one module."""
    stub = ModuleType("exllamav2_ext")
    for part in (exllamav2_ext, exl2_ext):
        vars(stub).update({name: value for name, value in vars(part).items() if not name.startswith("__")})
    return stub


def exllamav2() -> Any:
    _put("exllamav2_ext", exllamav2_stub())
    return import_exllama("exllamav2")


def exllamav3() -> Any:
    _put("exllamav3_ext", exllamav3_ext)
    with patch.dict(os.environ, EXL3_BC_ATTN="0", EXL3_QKV_SLICE="0"):  # turns off kernels that take addresses
        return import_exllama("exllamav3")


def _put(name: str, stub: ModuleType) -> None:
    if sys.modules.setdefault(name, stub) is not stub:
        raise RuntimeError(f"the real {name} is loaded; tests with a stub of it need a process of their own")


@contextmanager
def two_gpus() -> Iterator[None]:
    """Two virtual GPUs for both packages with stubs; afterwards the packages keep none of these GPUs' streams."""
    exl3 = exllamav3()
    config, dispatch = sys.modules["exllamav3.model.config"], sys.modules["exllamav3.modules.attention_fn.dispatch"]
    collection: Any = config.SafetensorsCollection

    def read(directory: str, method: str | None, fixes: dict[str, str]) -> Any:
        return collection(directory, method or "python", fixes)

    with ExitStack() as stack:
        stack.enter_context(patch.object(config, "SafetensorsCollection", read))
        stack.enter_context(patch.object(config.InferParams, "use_mgemm", lambda *settings: False))  # takes addresses
        for functions in ("attn_fns", "_fns_qc"):  # the second is for quantised caches
            stack.enter_context(patch.object(dispatch, functions, [exllamav3_ext.paged_attention]))
        stack.enter_context(patch.object(shared, "EXLLAMAV3", Turns(own_streams())))
        stack.enter_context(two_gpus_of_exllamav2())
        for module in ("model.model", "model.model_ls"):  # these collect the garbage of all tests at each load
            stack.enter_context(patch.object(sys.modules[f"exllamav3.{module}"], "free_mem", lambda: None))
        stack.enter_context(patch.object(sys.modules["exllamav3.model.model"], "gc", Mock()))
        exl3.util.tensor.g_tensor_cache.drop_all()
        yield


@contextmanager
def two_gpus_of_exllamav2() -> Iterator[None]:
    """The same for exllamav2 alone."""
    exl2 = exllamav2()
    with (
        patch.dict(exl2.device.global_streams, clear=True),
        patch.object(exl2.compat, "tested_peer_copy", None),
        virtual_gpus(2),
    ):
        yield
