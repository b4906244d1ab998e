"""torch.cuda.cudart(): the few functions of CUDA's runtime that torch exposes."""

import ctypes
from enum import IntEnum

from virtual_gpus.cuda.memory_api import mem_get_info
from virtual_gpus.streams.streams_and_events import create_stream


class CudaError(IntEnum):
    """cudaError_t, as far as torch names it. Source: cuda_runtime_api.h."""

    success = 0
    invalid_value = 1
    memory_allocation = 2


_MESSAGES = {
    CudaError.success: "no error",
    CudaError.invalid_value: "invalid argument",
    CudaError.memory_allocation: "out of memory",
}


class CudaRuntime:
    """Stands for torch._C._cudart. You can start and stop a profiler, but it records nothing."""

    cudaError = CudaError

    def cudaGetErrorString(self, error: CudaError) -> str:
        return _MESSAGES[error]

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return mem_get_info(device)

    def cudaStreamCreate(self, address: int) -> CudaError:
        """Write the handle of a new stream of the current device to an address."""
        ctypes.c_void_p.from_address(address).value = create_stream()
        return CudaError.success

    def cudaStreamDestroy(self, handle: int) -> CudaError:
        return CudaError.success

    def cudaProfilerStart(self) -> CudaError:
        return CudaError.success

    def cudaProfilerStop(self) -> CudaError:
        return CudaError.success
