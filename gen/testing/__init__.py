"""Virtual GPUs, and a check that the host never waits: for tests of gen, and of what its users build on it."""

from gen.testing.emulator import virtual_gpus
from gen.testing.errors import DeviceMismatchError, HostSyncError, StreamRaceError
from gen.testing.syncs.listeners import SyncReport
from gen.testing.syncs.sanitizer import allowed, no_host_sync

__all__ = [
    "DeviceMismatchError",
    "HostSyncError",
    "StreamRaceError",
    "SyncReport",
    "allowed",
    "no_host_sync",
    "virtual_gpus",
]
