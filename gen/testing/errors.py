"""The two errors that testing adds: tensors on different devices, and a host that waits."""

from gen.errors import DeviceError, GenError


class DeviceMismatchError(DeviceError):
    """An operation on tensors of different devices. A RuntimeError, as CUDA's own."""


class HostSyncError(GenError, RuntimeError):
    """The host waited for the device where it may not."""


class StreamRaceError(GenError, RuntimeError):
    """Work on one stream that touches what another stream, or the host, may still be at work on."""
