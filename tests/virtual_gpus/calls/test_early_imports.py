"""Functions that were imported from torch before the block, and functions that take a device but are no factories."""

from typing import Any

import pytest
import torch
from torch import arange, as_tensor, full, rand, randn, tensor, zeros

from virtual_gpus import no_host_sync, virtual_gpus

MAKERS: dict[str, Any] = {
    "zeros": lambda device: zeros(2, device=device),
    "full": lambda device: full((2,), 3.0, device=device),
    "arange": lambda device: arange(3, device=device),
    "rand": lambda device: rand(2, device=device),
    "randn": lambda device: randn(2, device=device, requires_grad=True),
    "tensor": lambda device: tensor([1.0], device=device),
    "as_tensor": lambda device: as_tensor([1.0], device=device),
    "fftfreq": lambda device: torch.fft.fftfreq(4, device=device),
    "nested": lambda device: torch.nn.utils.rnn.pad_sequence([zeros(2, device=device)]),
    "signal": lambda device: torch.signal.windows.hann(4, device=device),
    "sparse": lambda device: torch.cartesian_prod(arange(2, device=device), arange(2, device=device)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_function_from_before_the_block_knows_its_devices(name: str) -> None:
    expected = MAKERS[name]("cpu")
    with virtual_gpus(2):
        for device, index in (("cuda:1", 1), ("cuda", 0)):
            made = MAKERS[name](device)
            assert made.device == torch.device("cuda", index)
            assert made.shape == expected.shape and made.dtype == expected.dtype
            assert (made + zeros((), device=made.device)).device == made.device


def test_factories_of_torch_from_before_the_block_do_not_wait() -> None:
    with virtual_gpus(1), no_host_sync():
        zeros(2, device="cuda").add_(arange(2, device="cuda"))


def test_tensors_are_moved_to_the_device_of_a_context() -> None:
    host = torch.ones(2)
    with virtual_gpus(2), torch.device("cuda:1"):
        assert torch.as_tensor(host).device == torch.asarray(host).device == torch.device("cuda:1")
