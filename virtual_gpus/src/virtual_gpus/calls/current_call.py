"""The call from Python under which operators run: the tensors it was given, and those that torch makes inside of it.

Many torch functions are compositions that make tensors of their own, on the device of their arguments. Here these come
out on the CPU. The call tells them apart from the user's tensors: if its only CPU tensors are scalars, then any other
CPU tensor within it is torch's own, and counts as being where the arguments are.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from virtual_gpus.machine import CPU

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
        return not any(tensor is scalar for scalar in scalars)


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
    return home, tuple(scalars)


current_call = Call()
