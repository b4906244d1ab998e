"""Frequent functions in inference mode, which run at once: what they give and refuse is what they give otherwise."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.errors import DeviceError
from gen.testing import DeviceMismatchError, HostSyncError, no_host_sync, virtual_gpus
from gen.testing.calls import dispatch
from gen.testing.machine import issued


def set_at(target: Tensor, index: Any, value: Any) -> Tensor:
    """The target, after `target[index] = value`."""
    target[index] = value
    return target


CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "x + y": lambda x, y: x + y,
    "2 * x": lambda x, y: 2 * x,
    "x @ y": lambda x, y: x @ y,
    "linear": lambda x, y: torch.nn.functional.linear(x, y),
    "x.pow(2).mean(-1)": lambda x, y: x.pow(2).mean(-1, keepdim=True),
    "cat": lambda x, y: torch.cat([x, y], dim=1),
    "gather": lambda x, y: x.gather(1, (y > 0).long()),
    "x.mul_(y)": lambda x, y: x.mul_(y),
    "log": lambda x, y: torch.log(x.clamp(0.1)).nan_to_num(),
    "exp2_": lambda x, y: x.clone().exp2_().log_().nan_to_num_(),
    "silu": lambda x, y: torch.nn.functional.silu(x).amax(-1),
    "argmax": lambda x, y: x.argmax(-1).__rshift__(1),
    "bits": lambda x, y: x.argmax(-1).bitwise_and_(2).bitwise_xor_(y.argmax(-1)),
    "index_select": lambda x, y: x.index_select(0, y.argmax(-1)),
    "parts": lambda x, y: x.detach().narrow(0, 1, 2).unflatten(1, (2, 2)).unbind(0)[1],  # type: ignore[no-untyped-call]
    "where": lambda x, y: torch.where(x > y, x, y),
    "where, with a number": lambda x, y: torch.where(x > y, x, 0),
    "x[1:, 2] = y[0, 1:]": lambda x, y: set_at(x, (slice(1, None), 2), y[0, 1:]),
    "x[1:, 2] = y[0, 1]": lambda x, y: set_at(x, (slice(1, None), 2), y[0, 1]),
    "x[0] = nothing": lambda x, y: set_at(x, slice(0), y[:0]),
    "x[0] = 1": lambda x, y: set_at(x, 0, 1.0),
    "x[index] = y": lambda x, y: set_at(x, y.argmax(-1)[:1], y[:1]),
    "x[mask] = 1": lambda x, y: set_at(x, y > 0, 1.0),
    "x[[1, 2]] = y": lambda x, y: set_at(x, [1, 2], y[:2]),
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
        with pytest.raises(DeviceMismatchError):
            torch.where(x > 0, x, other)
    with pytest.raises(NotImplementedError, match="addmm_cuda"):
        x.int() @ y.int()
    with no_host_sync(), pytest.raises(HostSyncError):
        x[y > 0]
    with no_host_sync(), pytest.raises(HostSyncError):
        torch.where(x > 0)


@torch.inference_mode()
def test_a_tensor_that_stays_where_it_is_is_given_back_and_others_are_copied() -> None:
    x, _ = tensors("cuda:1")
    torch.cuda.set_device(1)
    for stays in ("cuda:1", "cuda", torch.device("cuda:1"), torch.float32):
        assert x.to(stays) is x
    assert x.to(torch.device("cuda", 1), non_blocking=True) is x
    for moves in ("cuda:0", torch.device("cuda:0"), torch.float64, "cpu"):
        moved = x.to(moves)
        assert moved is not x and torch.equal(moved.cpu().float(), x.cpu())
    assert x.to("cuda:0").device == torch.device("cuda:0") and x.to(torch.float64).device == x.device
    assert x.to("cuda:1", copy=True) is not x
    with pytest.raises(DeviceError, match="there is no cuda:2"):
        x.to("cuda:2")


@torch.inference_mode()
def test_autocast_computes_in_its_precision() -> None:
    x, y = tensors("cuda:1")
    with torch.autocast("cuda", torch.float16):
        assert (x @ y).dtype == torch.float16


@torch.inference_mode()
def test_vmap_maps_over_what_it_is_given() -> None:
    x, y = tensors("cuda:1")
    torch.testing.assert_close(torch.vmap(lambda row: row + y)(x).cpu(), (x[:, None] + y).cpu())
