"""On every device that there is."""

import pytest
import torch
from smoothing import Smooth

DEVICES = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


@pytest.mark.parametrize("device", DEVICES)
def test_a_constant_stays(device: str) -> None:
    smooth = Smooth().to(device)
    signal = torch.ones(2, 8, device=device)
    assert torch.allclose(smooth(signal), signal)
