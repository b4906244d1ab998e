"""The two errors that testing adds: tensors on different devices, and a host that waits."""

from gen.errors import DeviceError, GenError


class DeviceMismatchError(DeviceError):
    """An operation on tensors of different devices. A RuntimeError, as CUDA's own."""


class HostSyncError(GenError, RuntimeError):
    """The host waited for the device where it may not."""
