"""Where in the user's code something happened: the innermost frame that is not torch's or this package's own."""

import os
import sys
import warnings
from types import CodeType

import torch

_HERE = os.path.dirname(__file__)
_OBSERVING = os.path.join(os.path.dirname(_HERE), "loop", "replay", "observing.py")  # which hands every operation on
_INTERNAL = (os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep, warnings.__file__, _OBSERVING)
_is_internal: dict[str, bool] = {}  # by file name: frames are walked for every tensor that is made

CallSite = tuple[CodeType, int]  # a code object and an offset in it: much cheaper to take than a line number


def call_site() -> CallSite | None:
    """The innermost frame outside torch and gen.testing; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        internal = _is_internal.get(name)
        if internal is None:
            internal = _is_internal[name] = name.startswith(_INTERNAL) or name.startswith("<frozen ")
        if not internal:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


def describe(site: CallSite | None) -> str:
    """A call site as "file:line in function", the file relative to the working directory or to site-packages."""
    if site is None:
        return "an unknown place"
    code, offset = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end and number is not None:
            line = number
    return f"{_short(code.co_filename)}:{line} in {code.co_name}"


def _short(filename: str) -> str:
    _, packages, rest = filename.rpartition(f"site-packages{os.sep}")
    if packages:
        return rest
    here = os.getcwd() + os.sep
    return filename.removeprefix(here)
