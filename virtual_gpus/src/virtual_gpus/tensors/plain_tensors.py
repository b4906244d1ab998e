"""Virtual and pinned tensors as the ordinary CPU tensors that they are underneath."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

on_the_cpu = torch._C._DisableTorchDispatch  # operators in its block see ordinary tensors
directly = torch._C.DisableTorchFunctionSubclass  # functions in its block do not ask the tensors' class


@contextmanager
def as_plain() -> Iterator[None]:
    """In the block, virtual and pinned tensors are ordinary CPU tensors, and so are results computed from them."""
    with directly(), on_the_cpu():
        yield


def plain(tensor: Tensor) -> Tensor:
    """A tensor as an ordinary CPU tensor of the same memory."""
    with directly(), on_the_cpu():
        return tensor.as_subclass(Tensor)
