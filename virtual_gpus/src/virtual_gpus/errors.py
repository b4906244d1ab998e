"""The errors of virtual GPUs."""


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
