"""Virtual GPUs, and a check that the host never waits: for tests of gen, and of code that builds on it."""

from gen.testing.emulator import virtual_gpus
from gen.testing.errors import DeviceMismatchError, HostSyncError, StreamRaceError
from gen.testing.syncs.no_host_sync import allowed, no_host_sync
from gen.testing.syncs.reports import SyncReport

__all__ = [
    "DeviceMismatchError",
    "HostSyncError",
    "StreamRaceError",
    "SyncReport",
    "allowed",
    "no_host_sync",
    "virtual_gpus",
]
