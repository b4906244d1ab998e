"""The call from Python under which operators run: what it was given, and what torch makes inside of it.

Many functions of torch are compositions that make tensors of their own, on the device of their arguments. Here those
come out on the CPU. They are told apart from the user's by the call: if it was given no CPU tensor but scalars, any
other CPU tensor within it is torch's own, and counts as being where the arguments are.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gen.testing.machine import CPU

ENGINE = -2  # `home` in a backward pass: what is not on a GPU there was made by torch's own formulas

_GIVEN_BY_CPU = {Tensor.__getitem__, Tensor.__setitem__}  # lists and numbers as indices and values are CPU tensors


class Call(threading.local):
    """The thread's current call.

    Attributes:
        home: the GPU that torch's own tensors belong to; CPU if they cannot be told apart; ENGINE for any GPU.
        scalars: the 0-dim CPU tensors that the call was given.
    """

    home: int = CPU
    scalars: tuple[Tensor, ...] = ()

    def owns(self, tensor: Tensor, home: int) -> bool:
        """Whether a tensor is one that torch made in this call for itself, beside arguments on GPU `home`."""
        if self.home == ENGINE:
            return getattr(tensor, "_gpu", None) is None
        if self.home == CPU or self.home != home or getattr(tensor, "_gpu", None) is not None:
            return False
        return not any(tensor is scalar for scalar in self.scalars)


def read_call(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, tuple[Tensor, ...]]:
    """`home` and `scalars` of a call from its arguments."""
    if func in _GIVEN_BY_CPU:
        return CPU, ()
    home = CPU
    scalars: list[Tensor] = []
    pending: list[Any] = [*args, *kwargs.values()]
    for value in pending:  # grows as it goes
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
