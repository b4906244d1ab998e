"""Devices on a machine that has only a CPU: which are resolved, and which are refused with which message."""

import pytest
import torch

import gen
from gen.devices import Placement, available_devices, check_same_device, resolve_device
from gen.errors import DeviceError


def test_a_device_is_resolved_from_a_name_an_index_or_a_device() -> None:
    assert (
        resolve_device("cpu") == resolve_device(torch.device("cpu")) == resolve_device("cpu:0") == torch.device("cpu")
    )
    assert resolve_device(None) == available_devices()[-1]


@pytest.mark.parametrize("device", ["cuda:64", 64, torch.device("cuda:64")])
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(device: str | int | torch.device) -> None:
    with pytest.raises(DeviceError, match="device cuda:64 does not exist; this machine has cpu"):
        resolve_device(device)


@pytest.mark.parametrize("device", ["gpu", "", -3, 1.5, True, 2**70, []])
def test_what_names_no_device_is_refused(device: str) -> None:
    with pytest.raises(DeviceError, match="this machine has cpu"):
        resolve_device(device)


def test_mps_is_refused_though_the_machine_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert torch.device("mps", 0) not in available_devices()
    for device in ("mps", "mps:0", torch.device("mps")):
        with pytest.raises(DeviceError, match=r"gen does not run on mps, .* Use device='cpu'"):
            resolve_device(device)
        with pytest.raises(DeviceError, match="gen does not run on mps"):
            gen.load("demo", device=device)
    cpu, mps = torch.device("cpu"), torch.device("mps")  # of a model that is loaded already
    for devices in ((cpu, mps, ()), (mps, cpu, ()), (cpu, cpu, (cpu, mps))):
        with pytest.raises(DeviceError, match="gen does not run on mps"):
            Placement(input_device=devices[0], logits_device=devices[1], layer_devices=devices[2])


def test_a_tensor_that_is_not_where_the_logits_are_is_named() -> None:
    logits, other = torch.zeros(2), torch.zeros(3, 4, dtype=torch.int64)
    check_same_device(logits, "mask", other)
    with pytest.raises(DeviceError) as caught:
        check_same_device(logits, "mask", other.to("meta"))
    assert str(caught.value) == (
        "expected all tensors on one device, found 2:\n"
        "  on cpu: logits (2,) float32\n"
        "  on meta: mask (3, 4) int64\n"
        "Move the others: mask = mask.to('cpu')"
    )
