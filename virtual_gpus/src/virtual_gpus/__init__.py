"""Virtual GPUs for tests: torch's CUDA devices on any machine, and a check that the host never waits for one.

What needs torch is imported when it is first used, so neither `import virtual_gpus` nor pytest's plugin waits for it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from virtual_gpus.emulator import virtual_gpus
    from virtual_gpus.syncs import SyncReport, allowed, no_host_sync

__all__ = [
    "ArgumentError",
    "DeviceError",
    "DeviceMismatchError",
    "HostSyncError",
    "StreamRaceError",
    "SyncReport",
    "VirtualGpuError",
    "allowed",
    "no_host_sync",
    "virtual_gpus",
]


class VirtualGpuError(Exception):
    """Base of all errors that virtual GPUs add to torch's own."""


class ArgumentError(VirtualGpuError, ValueError):
    """An argument that cannot be used."""


class DeviceError(VirtualGpuError, RuntimeError):
    """A device that does not exist, or something that virtual GPUs cannot do with one."""


class DeviceMismatchError(DeviceError):
    """An operation on tensors of different devices. It is a RuntimeError, like CUDA's own."""


class HostSyncError(VirtualGpuError, RuntimeError):
    """The host waited for the device where it may not."""


class StreamRaceError(VirtualGpuError, RuntimeError):
    """Work on one stream touches memory that another stream, or the host, may still be using."""


_HOMES = dict.fromkeys(("SyncReport", "allowed", "no_host_sync"), "syncs") | {"virtual_gpus": "emulator"}
if "VIRTUAL_GPUS" in os.environ:  # torch comes first: it opens this program's block, for which modules must be whole
    import_module("torch")


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'virtual_gpus' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"virtual_gpus.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
