"""Frequent functions in inference mode, which run at once: what they give and refuse is what they give otherwise."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.testing import DeviceMismatchError, HostSyncError, no_host_sync, virtual_gpus
from gen.testing.calls import dispatch
from gen.testing.machine import issued

CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "x + y": lambda x, y: x + y,
    "2 * x": lambda x, y: 2 * x,
    "x @ y": lambda x, y: x @ y,
    "linear": lambda x, y: torch.nn.functional.linear(x, y),
    "x.pow(2).mean(-1)": lambda x, y: x.pow(2).mean(-1, keepdim=True),
    "cat": lambda x, y: torch.cat([x, y], dim=1),
    "gather": lambda x, y: x.gather(1, (y > 0).long()),
    "x.mul_(y)": lambda x, y: x.mul_(y),
    "x == y": lambda x, y: x == y,
    "x[1:, None, ..., 0]": lambda x, y: x[1:, None, ..., 0],
    "x[mask]": lambda x, y: x[x > 0],
    "view": lambda x, y: x.view(2, 8).transpose(0, 1).contiguous(),
    "float": lambda x, y: x.double().float(),
    "what the CPU lacks": lambda x, y: x.to(torch.complex32).cos().to(torch.complex64),
}


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with virtual_gpus(2):
        yield


def tensors(device: str) -> tuple[Tensor, Tensor]:
    made = torch.randn((2, 4, 4), generator=torch.Generator().manual_seed(0)).to(device)
    return made[0], made[1]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", CALLS)
@torch.inference_mode()
def test_values_and_the_work_of_the_device_are_those_of_operator_by_operator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[Tensor, int]:
        x, y = tensors("cuda:1")
        before = issued[1]
        result: Tensor = CALLS[name](x, y)
        assert result.device == torch.device("cuda:1")
        return result, issued[1] - before

    result, work = made()
    monkeypatch.setattr(dispatch, "_AT_ONCE", frozenset())
    expected, usual = made()
    assert torch.equal(result, expected)
    assert work == usual


@torch.inference_mode()
def test_what_cuda_refuses_is_refused() -> None:
    x, y = tensors("cuda:1")
    for other in (y.to("cuda:0"), y.cpu()):
        with pytest.raises(DeviceMismatchError):
            x + other
    with pytest.raises(NotImplementedError, match="addmm_cuda"):
        x.int() @ y.int()
    with no_host_sync(), pytest.raises(HostSyncError):
        x[y > 0]


@torch.inference_mode()
def test_autocast_computes_in_its_precision() -> None:
    x, y = tensors("cuda:1")
    with torch.autocast("cuda", torch.float16):
        assert (x @ y).dtype == torch.float16


@torch.inference_mode()
def test_vmap_maps_over_what_it_is_given() -> None:
    x, y = tensors("cuda:1")
    torch.testing.assert_close(torch.vmap(lambda row: row + y)(x).cpu(), (x[:, None] + y).cpu())
