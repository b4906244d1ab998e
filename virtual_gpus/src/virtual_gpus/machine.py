"""The machine of virtual GPUs: how many there are, and each thread's current one."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from virtual_gpus import DeviceError

if TYPE_CHECKING:
    from virtual_gpus.cuda.cuda_graphs import VirtualGraph

MAX_GPUS = 64
CPU = -1  # the place of a tensor on no virtual GPU; a GPU's place is its index

# The names that virtual GPUs can have, and what torch calls their kernels; it has one name for types that it lacks.
BACKENDS = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "hpu": "HPU", "npu": "PrivateUse1"}
DEVICES = [torch.device("cuda", index) for index in range(MAX_GPUS)]  # those of the newest block

issued = [0] * (MAX_GPUS + 1)  # how many kernels and copies each GPU was given; the last number is the CPU's


@dataclass(kw_only=True)
class Machine:
    """The state of one `virtual_gpus` block.

    Attributes:
        gpus: how many devices there are: cuda:0 to cuda:gpus-1, or of the block's other type.
        memory: bytes that each GPU has.
        generators: each GPU's own random state.
        streams: by GPU and priority, the handles of the streams that torch hands out in turn.
        local: each thread's current device and streams, and the graph that it captures.
        stuck: GPUs whose generator is still in a capture that failed.
    """

    gpus: int
    memory: int = 80 * 2**30
    generators: tuple[torch.Generator, ...] = ()
    streams: dict[tuple[int, int], Iterator[int]] = field(default_factory=dict)
    local: threading.local = field(default_factory=threading.local)
    stuck: set[int] = field(default_factory=set)

    @property
    def current(self) -> int:
        """The calling thread's current device: 0 until the thread sets another."""
        return getattr(self.local, "current", 0)

    @current.setter
    def current(self, index: int) -> None:
        self.local.current = index

    @property
    def captured(self) -> "VirtualGraph | None":
        """The graph that the calling thread captures now."""
        return getattr(self.local, "captured", None)

    @captured.setter
    def captured(self, graph: "VirtualGraph | None") -> None:
        self.local.captured = graph

    def refuse_capture(self, what: str) -> None:
        """Raise if the calling thread captures a graph: CUDA refuses `what` then, and the capture is broken."""
        if self.captured is not None:
            self.captured.broken = True
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")

    def index(self, device: object) -> int | None:
        """The virtual GPU that a device names; None if it names something else, such as the CPU.

        Args:
            device: what torch takes as a device: a name, an index, a torch.device. A bare "cuda" is the calling
                thread's current device.
        Raises:
            DeviceError: there is no such GPU.
        """
        if isinstance(device, int):
            index: int | None = device
        else:
            if isinstance(device, str):
                if not device.startswith(device_type()):
                    return None
                device = torch.device(device)
            if not isinstance(device, torch.device) or device.type != device_type():
                return None
            index = device.index
        if index is None or index == -1:
            return self.current
        if not 0 <= index < self.gpus:
            have = ", ".join(map(str, DEVICES[: self.gpus]))
            raise DeviceError(f"CUDA error: invalid device ordinal: there is no {device_type()}:{index}, only {have}.")
        return index


_active: list[Machine] = []


def device_type() -> str:
    """The type of the virtual GPUs of the newest block."""
    return DEVICES[0].type


def active_machine() -> Machine | None:
    """The machine of the open `virtual_gpus` block, of any thread; None outside."""
    return _active[0] if _active else None


def gpu_count() -> int:
    """How many virtual GPUs there are now."""
    return _active[0].gpus if _active else 0


def machine() -> Machine:
    """The machine of the open block.

    Raises:
        DeviceError: no block is open.
    """
    if not _active:
        raise DeviceError("virtual GPUs exist only within `with virtual_gpus.virtual_gpus(n):`, which has ended.")
    return _active[0]


def gpu_index(device: object) -> int:
    """The GPU that an argument `device` means; None is the current one."""
    index = machine().index(device_type() if device is None else device)
    if index is None:
        raise ValueError(f"Expected a {device_type()} device, but got: {device}")
    return index


def start(new: Machine, device: str) -> None:
    """Make a machine the active one, of devices of a type.

    Raises:
        DeviceError: there is an active machine already.
    """
    if _active:
        raise DeviceError(
            f"virtual_gpus is in use already, with {_active[0].gpus} devices: blocks do not nest, and all threads "
            "share one. Use that block's devices, or leave it first."
        )
    if device == "npu" and torch._C._get_privateuse1_backend_name() != device:
        rename_privateuse1_backend(device)  # once in a process, for good
    DEVICES[:] = [torch.device(device, index) for index in range(MAX_GPUS)]
    _active.append(new)


def stop() -> None:
    """Leave no machine active."""
    _active.clear()
