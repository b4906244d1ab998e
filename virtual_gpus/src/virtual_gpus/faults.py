"""Faults to inject: what broken machines, drivers and hooks do without an error.

    from virtual_gpus import faults
    with virtual_gpus(3, faults=[faults.PartialCopy(source=0, target=1)]):

A program under a fault must raise, or be right all the same. Each fault counts how often it has happened, so that a
test can tell that it did. Children of the process have no faults.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from virtual_gpus import ArgumentError
from virtual_gpus.machine import CPU, DEVICES


@dataclass(kw_only=True)
class Fault:
    """Base of all faults.

    Attributes:
        happened: how often it has happened in the newest block.
    """

    happened: int = field(default=0, init=False)
    _count: int = field(default=0, init=False, repr=False)  # of what the fault could have happened to


@dataclass(kw_only=True)
class PartialCopy(Fault):
    """Copies between two GPUs of which only the first part arrives.

    The rest of the target keeps what was there: old numbers, or zeros in a new tensor. Copies to and from the host are
    right. All conditions that are given must hold.

    Attributes:
        source, target: the index of the GPU; None is any.
        chain: only where the source has itself received a copy from a third GPU since the host last waited. Then each
            pair of GPUs passes a test of its own.
        at_least: only of so many bytes.
        busy: only if so many copies between GPUs were issued before it since the host last waited.
        part: the share that arrives.
    """

    source: int | None = None
    target: int | None = None
    chain: bool = False
    at_least: int = 0
    busy: int = 0
    part: float = 0.5


@dataclass(kw_only=True)
class _Numbered(Fault):
    number: int


@dataclass(kw_only=True)
class FailedAllocation(_Numbered):
    """The allocation of this number raises torch.OutOfMemoryError, though there is memory; 1 is the block's first one.

    Attributes:
        gpu: only allocations of this GPU count; None is any.
    """

    gpu: int | None = None


@dataclass(kw_only=True)
class Placeholder(_Numbered):
    """The copy of this number from the host to a GPU leaves a tensor on meta, as a hook that loads no weight does."""


@dataclass(kw_only=True)
class MissingWait(_Numbered):
    """The wait of this number is left out: `wait_stream`, `wait_event` and `synchronize` of a stream or an event.

    Values stay right, since work is done when it is issued: `virtual_gpus(check_streams=True)` shows the race.
    """


active: list[Fault] = []  # those of the open block
_received: dict[int, set[int]] = {}  # by GPU, from which others it has received since the host last waited
_busy = [0]  # how many copies between GPUs there were since then


def start(faults: Sequence[Fault], check_streams: bool) -> None:
    """Begin with these faults, none of which has happened.

    Raises:
        ArgumentError: one is no fault, or would not show.
    """
    for fault in faults:
        if not isinstance(fault, Fault):
            raise ArgumentError(f"faults= takes faults of virtual_gpus.faults, got {fault!r}")
        if isinstance(fault, MissingWait) and not check_streams:
            raise ArgumentError("a MissingWait shows only with virtual_gpus(check_streams=True)")
        fault.happened = fault._count = 0
    active[:] = faults
    host_waited()


def host_waited() -> None:
    """Note that the host has waited: all copies have come to an end."""
    _received.clear()
    _busy[0] = 0


def arrive(arrived: Tensor, source: int, target: int, before: Tensor | None = None) -> None:
    """Damage what a copy has brought, if a fault says so.

    Args:
        arrived: the target of the copy, as an ordinary CPU tensor; changed in place.
        before: its values before the copy; None if it is new.
    """
    if source == target or CPU in (source, target):
        return
    for fault in active:
        if (
            isinstance(fault, PartialCopy)
            and fault.source in (None, source)
            and fault.target in (None, target)
            and not (fault.chain and not _received.get(source, set()) - {target})
            and arrived.nbytes >= fault.at_least
            and _busy[0] >= fault.busy
            and arrived.layout is torch.strided
            and arrived.numel()
        ):
            fault.happened += 1
            numbers, kept = arrived.flatten(), int(arrived.numel() * fault.part)
            rest = torch.zeros_like(numbers) if before is None else before.flatten()
            arrived.copy_(torch.cat([numbers[:kept], rest[kept:]]).view(arrived.shape))
    _received.setdefault(target, set()).add(source)
    _busy[0] += 1


def allocate(gpu: int) -> None:
    """Raise OutOfMemoryError if a fault says so."""
    for fault in active:
        if isinstance(fault, FailedAllocation) and fault.gpu in (None, gpu) and _is_its_turn(fault):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. ({DEVICES[gpu]} is a virtual GPU: this is allocation {fault.number} of a "
                "FailedAllocation)"
            )


def leaves_placeholder(source: int, target: int) -> bool:
    """Whether a copy leaves a tensor on meta."""
    if source != CPU or target == CPU:
        return False
    return any([_is_its_turn(fault) for fault in active if isinstance(fault, Placeholder)])


def misses_wait() -> bool:
    """Whether a wait is left out."""
    return any([_is_its_turn(fault) for fault in active if isinstance(fault, MissingWait)])


def _is_its_turn(fault: _Numbered) -> bool:
    """Count one more; whether it is the one that the fault is about."""
    fault._count += 1
    turn = fault._count == fault.number
    fault.happened += turn
    return turn
