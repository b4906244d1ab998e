"""torch.cuda's number of devices, the current one, their properties, and synchronize."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from torch import Tensor

from virtual_gpus.cuda import memory
from virtual_gpus.machine import CPU, gpu_index, machine
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.streams import races
from virtual_gpus.syncs.reports import report_sync


@dataclass(frozen=True)
class DeviceProperties:
    """torch.cuda.get_device_properties of a virtual GPU."""

    name: str = "Virtual GPU"
    major: int = 8
    minor: int = 0
    total_memory: int = memory.DEFAULT
    multi_processor_count: int = 108
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 166912
    shared_memory_per_multiprocessor: int = 167936
    L2_cache_size: int = 40 * 2**20
    clock_rate: int = 1410000
    memory_clock_rate: int = 1593000
    memory_bus_width: int = 5120
    gcnArchName: str = "Virtual GPU"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: UUID | None = None


class DeviceGuard:
    """torch.cuda.device: the block's current device; None or -1 changes nothing."""

    def __init__(self, device: Any) -> None:
        keep = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if keep else gpu_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = machine().current
        if self.idx >= 0:
            machine().current = self.idx

    def __exit__(self, *exception: object) -> None:
        machine().current = self.prev_idx


class TensorDeviceGuard(DeviceGuard):
    """torch.cuda.device_of: the block's current device is a tensor's, if that is on a GPU."""

    def __init__(self, tensor: Tensor) -> None:
        place = place_of(tensor)
        super().__init__(None if place == CPU else place)


def set_device(device: Any) -> None:
    machine().current = gpu_index(device)


def exchange_device(device: int) -> int:
    """Change the current device; returns the one before. A negative number changes nothing."""
    before = machine().current
    if device >= 0:
        machine().current = gpu_index(device)
    return before


def synchronize(device: Any = None) -> None:
    """Host sync: waits for all work that was issued."""
    gpu = gpu_index(device)
    report_sync("torch.cuda.synchronize")
    races.host_waits_for_gpu(gpu)


def get_device_properties(device: Any = None) -> DeviceProperties:
    index = gpu_index(device)
    return DeviceProperties(total_memory=machine().memory, pci_bus_id=index, uuid=UUID(int=index))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "init": lambda: None,
    "_lazy_init": lambda: None,
    "device_count": lambda: machine().gpus,
    "current_device": lambda: machine().current,
    "set_device": set_device,
    "device": DeviceGuard,
    "device_of": TensorDeviceGuard,
    "synchronize": synchronize,
    "get_device_name": lambda device=None: get_device_properties(device).name,
    "get_device_capability": lambda device=None: (get_device_properties(device).major, 0),
    "get_device_properties": get_device_properties,
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": exchange_device,
}
