"""Virtual GPUs are a package of their own now: `virtual_gpus`, from the distribution virtual-gpus.

This module stays as an alias: it has the public names of `virtual_gpus`, so import them from there. Parts that are not
public are in `virtual_gpus` alone. The fixtures and the options of pytest come by themselves where virtual-gpus is
installed.
"""

try:
    from virtual_gpus import (
        DeviceMismatchError,
        HostSyncError,
        StreamRaceError,
        SyncReport,
        allowed,
        no_host_sync,
        virtual_gpus,
    )
except ImportError as error:
    if error.name != "virtual_gpus":
        raise
    raise ImportError(
        "gen.testing is the package virtual_gpus now, which is not installed: pip install virtual-gpus.",
        name=error.name,
    ) from error

__all__ = [
    "DeviceMismatchError",
    "HostSyncError",
    "StreamRaceError",
    "SyncReport",
    "allowed",
    "no_host_sync",
    "virtual_gpus",
]
