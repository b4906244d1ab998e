"""A line of the table: an operation, where its tensors are, and what CUDA does with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

GPU0, GPU1, HOST = "cuda:0", "cuda:1", "cpu"
REFUSED = "refused"


class _Names(TorchDispatchMode):
    """Which operators are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _waits_of_a_number() -> int:
    """How often the host waits in `x[indices] = 0.0`: newer torch fills, older torch gives the number to the device."""
    target, indices = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    with _Names() as names:
        target[indices] = 0.0
    return int("index_fill_" not in names.seen)


WAITS_OF_A_NUMBER = _waits_of_a_number()


@dataclass(frozen=True)
class Operand:
    """A tensor to make: its kind, its place and its shape."""

    kind: str
    place: str
    shape: tuple[int, ...]

    def make(self, place: str | None = None) -> Tensor:
        """The tensor, in `place` if that is given, else in its own place."""
        count = int(torch.Size(self.shape).numel())
        numbers = torch.arange(count).reshape(self.shape)
        values = {"float": numbers / 8 + 0.5, "index": numbers % 2, "mask": numbers % 2 == 0, "count": numbers + 1}
        return values[self.kind].to(place or self.place)


def floats(place: str, *shape: int) -> Operand:
    return Operand("float", place, shape)


def index(place: str, *shape: int) -> Operand:
    return Operand("index", place, shape)


def mask(place: str, *shape: int) -> Operand:
    return Operand("mask", place, shape)


def counts(place: str, *shape: int) -> Operand:
    return Operand("count", place, shape)


@dataclass(frozen=True)
class Case:
    """One operation on one mix of devices.

    Attributes:
        name: the test's name.
        run: the operation, on tensors.
        operands: its arguments.
        expected: the device of its result, or REFUSED.
        waits: how often the host waits for a device during it.
        rule: the source in torch.
    """

    name: str
    run: Callable[..., Any]
    operands: tuple[Operand, ...]
    expected: str
    waits: int = 0
    rule: str = ""

    @property
    def gpus(self) -> int:
        """How many GPUs it needs."""
        places = {operand.place for operand in self.operands} | {self.expected}
        return 2 if GPU1 in places else 1
