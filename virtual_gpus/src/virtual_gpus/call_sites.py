"""Finds the place in the user's code where something happened: the innermost frame outside torch and this package."""

import dis
import os
import sys
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType

import torch

_HERE = os.path.dirname(__file__)
_INTERNAL = (os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep, warnings.__file__)
_is_internal: dict[str, bool] = {}  # by file name, since every new tensor walks through frames

CallSite = tuple[CodeType, int]  # a code object and an offset in it: much cheaper to take than a line number


def call_site() -> CallSite | None:
    """The innermost frame outside torch and virtual_gpus; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        internal = _is_internal.get(code.co_filename)  # a function less: this runs for every new tensor
        if internal is None:
            internal = _internal(frame)
        if not internal:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def _internal(frame: FrameType) -> bool:
    """Whether a file is torch's or virtual_gpus's own, or hides itself as from pytest: by `__tracebackhide__ = True`."""
    name = frame.f_code.co_filename
    internal = _is_internal.get(name)
    if internal is None:
        hidden = name.startswith(_INTERNAL) or name.startswith("<frozen ")
        internal = _is_internal[name] = hidden or frame.f_globals.get("__tracebackhide__") is True
    return internal


def assignment(value: object) -> str | None:
    """The variable that holds a value, in the innermost frame that has one, and the lines that assign to it.

    Returns:
        For example "`mask` at file:12 or 15 in function"; None if no variable holds it, or only arguments do.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not _internal(frame):
            for name in [name for name, held in frame.f_locals.items() if held is value]:
                lines = dict.fromkeys(_assigned(code, name))
                if lines:
                    return f"`{name}` at {_short(code.co_filename)}:{' or '.join(map(str, lines))} in {code.co_name}"
        frame = frame.f_back
    return None


def _assigned(code: CodeType, name: str) -> Iterator[int]:
    """The lines of a function that assign to a variable."""
    for step in dis.get_instructions(code):
        if step.opname.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # newer Pythons join two
            if name in names and step.positions is not None and step.positions.lineno is not None:
                yield step.positions.lineno


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
