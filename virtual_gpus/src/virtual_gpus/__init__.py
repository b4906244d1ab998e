"""Virtual GPUs for tests: torch's CUDA devices on any machine, and a check that the host never waits for one.

Each name is imported when it is first used, so neither `import virtual_gpus` nor pytest's plugin waits for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from virtual_gpus.emulator import virtual_gpus
    from virtual_gpus.errors import (
        ArgumentError,
        DeviceError,
        DeviceMismatchError,
        HostSyncError,
        StreamRaceError,
        VirtualGpuError,
    )
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

_HOMES = dict.fromkeys(("SyncReport", "allowed", "no_host_sync"), "syncs") | {"virtual_gpus": "emulator"}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in __all__:
        raise AttributeError(f"module 'virtual_gpus' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"virtual_gpus.{_HOMES.get(name, 'errors')}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
