"""Where something happens: the place in the user's code, and the call of a torch function.

A place is the innermost frame outside torch and this package. A call from Python has the tensors that it was given, and
those that torch makes inside of it: many torch functions are compositions that make tensors of their own, on the device
of their arguments. Here these come out on the CPU. The call tells them apart from the user's tensors: if its only CPU
tensors are scalars, then any other CPU tensor within it is torch's own, and counts as being where the arguments are.
"""

import dis
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.machine import CPU

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
            internal = is_internal(frame)
        if not internal:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def is_internal(frame: FrameType) -> bool:
    """Whether a file is torch's or virtual_gpus's own, or hides itself as from pytest, by `__tracebackhide__`."""
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
        if not is_internal(frame):
            for name in [name for name, held in frame.f_locals.items() if held is value]:
                lines = dict.fromkeys(_assigned(code, name))
                if lines:
                    at = f"{short_name(code.co_filename)}:{' or '.join(map(str, lines))}"
                    return f"`{name}` at {at} in {code.co_name}"
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
    return f"{short_name(code.co_filename)}:{line} in {code.co_name}"


def short_name(filename: str) -> str:
    _, packages, rest = filename.rpartition(f"site-packages{os.sep}")
    if packages:
        return rest
    here = os.getcwd() + os.sep
    return filename.removeprefix(here)


ENGINE = -2  # `home` in a backward pass: there, torch's own formulas made every tensor that is on no GPU

_GIVEN_BY_CPU = {Tensor.__getitem__, Tensor.__setitem__}  # lists and numbers as indices and values become CPU tensors


class Call(threading.local):
    """The thread's current call.

    Attributes:
        given: the GPU that torch's own tensors belong to, CPU if they cannot be told apart, or ENGINE for any GPU; and
            the 0-dim CPU tensors that the call was given.
    """

    given: tuple[int, tuple[Tensor, ...]] = (CPU, ())

    @property
    def home(self) -> int:
        """The first part of `given`."""
        return self.given[0]

    def owns(self, tensor: Tensor, home: int) -> bool:
        """Whether torch made a tensor for itself in this call, beside arguments on GPU `home`."""
        own, scalars = self.given
        if own == ENGINE:
            return getattr(tensor, "_gpu", None) is None
        if own == CPU or own != home or getattr(tensor, "_gpu", None) is not None:
            return False
        return not any(tensor is scalar or _same_memory(tensor, scalar) for scalar in scalars)


def _same_memory(tensor: Tensor, other: Tensor) -> bool:
    """Whether one is a view of the other."""
    dense = tensor.layout == other.layout == torch.strided
    return dense and bool(torch._C._is_alias_of(tensor, other))  # type: ignore[attr-defined]


def read_call(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, tuple[Tensor, ...]]:
    """`Call.given` of a call, from its arguments."""
    if func in _GIVEN_BY_CPU:
        return CPU, ()
    home = CPU
    scalars: list[Tensor] = []
    pending: list[Any] = [*args, *kwargs.values()]
    for value in pending:  # grows on the way
        if isinstance(value, Tensor):
            gpu = getattr(value, "_gpu", None)
            if gpu is None:
                if value.dim():
                    return CPU, ()
                scalars.append(value)
            elif home == CPU:
                home = gpu
            elif home != gpu:
                return CPU, ()
        elif isinstance(value, list | tuple):
            pending.extend(value)
        elif isinstance(value, FunctionType):  # of the user's, whose tensors are no one else's
            return CPU, ()
    return home, tuple(scalars)


current_call = Call()
