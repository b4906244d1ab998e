"""Virtual GPUs through DLPack: what torch's `Tensor.__dlpack__` and NumPy refuse on CUDA, and which share memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from virtual_gpus import no_host_sync

pytestmark = pytest.mark.usefixtures("gen_virtual_gpus")
dlpack: Any = torch.utils.dlpack


@pytest.mark.parametrize("versioned", [True, False])
def test_a_capsule_keeps_the_gpu_and_the_memory(versioned: bool) -> None:
    numbers = torch.arange(4, device="cuda:1")
    with torch.cuda.device(1):
        capsule = numbers.__dlpack__(max_version=(1, 0)) if versioned else dlpack.to_dlpack(numbers)
    shared: Any = dlpack.from_dlpack(capsule)
    assert shared.device == torch.device("cuda:1")
    shared[0] = 7
    assert numbers.tolist() == [7, 1, 2, 3]
    assert dlpack.from_dlpack(dlpack.to_dlpack(torch.ones(2))).device == torch.device("cpu")


def test_a_tensor_that_is_not_on_the_current_gpu_is_refused() -> None:
    numbers = torch.ones(2, device="cuda:1")
    exports: list[Callable[[], Any]] = [numbers.__dlpack__, lambda: dlpack.from_dlpack(numbers)]
    for export in exports:
        with pytest.raises(BufferError, match=r"different CUDA device index. Expected: 1. Current device: 0"):
            export()
    with torch.cuda.device(1):
        assert dlpack.from_dlpack(numbers).device == numbers.device
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(2, device="cuda", requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="layout"):
        torch.ones(2, 2, device="cuda").to_sparse().__dlpack__()


def test_numpy_takes_no_gpu_memory_and_waits_for_a_copy() -> None:
    numbers = torch.arange(3, device="cuda")
    with pytest.raises(RuntimeError, match="Unsupported device"):
        np.from_dlpack(numbers)
    with no_host_sync(count=True) as report:
        copied = np.from_dlpack(numbers, device="cpu")
    assert report.count == 1
    numbers[0] = 9
    assert copied.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="without copying"):
        np.from_dlpack(numbers, device="cpu", copy=False)
