"""The three errors that gen.testing adds: tensors on different devices, a host that waits, and races of streams."""

from gen.errors import DeviceError, GenError


class DeviceMismatchError(DeviceError):
    """An operation on tensors of different devices. It is a RuntimeError, like CUDA's own."""


class HostSyncError(GenError, RuntimeError):
    """The host waited for the device where it may not."""


class StreamRaceError(GenError, RuntimeError):
    """Work on one stream touches memory that another stream, or the host, may still be using."""
