"""Imports exllamav2 and exllamav3, which compile themselves, and change settings of the whole process."""

import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from threading import RLock
from typing import Any

import torch

from gen.errors import ModelError, show
from gen.runtime.forking import new_lock

_ALLOCATOR = "EXL3_EXPANDABLE_SEGMENTS"  # "0" keeps exllamav3 from changing the settings of torch's allocator
_importing = new_lock(RLock)  # without it, another thread could keep the changed settings as the ones from before


def import_exllama(name: str) -> Any:
    """Import exllamav2 or exllamav3, or a module of it; its first import on a machine compiles for minutes.

    A plain import would change torch's number of threads and the settings of its allocator, and print to stdout; here
    the settings stay as they are, and the output goes to stderr.

    Raises:
        ModelError: it is not there, or cannot be compiled.
    """
    with _importing:
        return _import(name)


def _import(name: str) -> Any:
    package = name.partition(".")[0]
    threads, chosen = torch.get_num_threads(), _ALLOCATOR in os.environ
    os.environ.setdefault(_ALLOCATOR, "0")
    try:
        with redirect_stdout(sys.stderr):
            return import_module(name)
    except Exception as error:  # not installed; no CUDA_HOME, compiler or ninja; compiled for another torch
        raise ModelError(
            f"{package} cannot be used ({type(error).__name__}: {show(str(error), 300)}). Install it with "
            f"pip install 'gen-torch[{package}]'; it compiles itself when it is first imported, which needs torch for "
            "CUDA, nvcc of the same version and CUDA_HOME, the folder where nvcc's bin is."
        ) from error
    finally:
        torch.set_num_threads(threads)
        if not chosen:
            del os.environ[_ALLOCATOR]
