"""Triton's interpreter, with the functions of the language swapped once a process.

Triton swaps them at each launch and at each call of a kernel's function, and looks through the language to do so; that
takes most of the time of small kernels. No kernel is compiled in a process that interprets, so they can stay swapped.
"""

import functools
from typing import Any

from triton.runtime import interpreter as _interpreter

interpreter: Any = _interpreter


def swap_once() -> None:
    """Swap the functions that a kernel's function sees at its first call, and leave them swapped."""
    interpreter._patch_lang = functools.cache(interpreter._patch_lang)
    interpreter._LangPatchScope.restore = lambda scope: None
