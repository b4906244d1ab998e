"""Training loops and modules on virtual GPUs: calls that group tensors by device, or read their arguments in C++."""

from typing import Any
from unittest import mock

import pytest
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]
from torch import Tensor, nn

from virtual_gpus import DeviceMismatchError, no_host_sync, virtual_gpus

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")
OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "lr": 0.1}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.9, "lr": 0.1}),
    (torch.optim.AdamW, {"foreach": True, "lr": 0.1}),
    (torch.optim.AdamW, {"fused": True, "lr": 0.1}),
    (torch.optim.Adam, {"foreach": True, "lr": 0.1, "capturable": True}),
    (torch.optim.Adagrad, {"foreach": True, "lr": 0.1}),
    (torch.optim.RMSprop, {"foreach": True, "lr": 0.1}),
]


def _parameters(places: list[str]) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.arange(3.0, device=place) + 1) for place in places]
    for parameter in made:
        parameter.grad = parameter.detach() / 2
    return made


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_optimizers_step_over_two_gpus_as_on_the_cpu(optimizer: Any, options: dict[str, Any]) -> None:
    plain_options = {**options, "capturable": False} if "capturable" in options else options
    plain = _parameters(["cpu", "cpu"])
    stepping = optimizer(plain, **plain_options)
    for _ in range(2):
        stepping.step()
    with virtual_gpus(2):
        placed = _parameters(["cuda:0", "cuda:1"])
        optimizing = optimizer(placed, **options)
        for _ in range(2):
            optimizing.step()
        assert [parameter.device for parameter in placed] == [GPU0, GPU1]
        for ours, theirs in zip(placed, plain, strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_clipping_over_one_gpu_does_not_wait() -> None:
    with virtual_gpus(2):
        parameters = _parameters(["cuda:0", "cuda:0"])
        with no_host_sync():
            norm = nn.utils.clip_grad_norm_(parameters, 0.1)
        assert norm.device == GPU0
        assert nn.utils.clip_grad_norm_(_parameters(["cuda:0", "cuda:1"]), 0.1).device == GPU0


def test_a_scaled_fused_step_runs() -> None:
    with virtual_gpus(2):
        layer = nn.Linear(2, 2, device="cuda:1")
        before = layer.weight.detach().clone()
        optimizer, scaler = torch.optim.AdamW(layer.parameters(), fused=True), torch.amp.GradScaler("cuda")
        scaler.scale(layer(torch.ones(1, 2, device="cuda:1")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert not torch.equal(layer.weight, before)


def test_foreach_works_one_by_one_over_several_devices_and_refuses_mixes() -> None:
    with virtual_gpus(2):
        ones = [torch.ones(2, device=place) for place in ("cuda:0", "cuda:1", "cpu")]
        doubled = torch._foreach_mul(ones, 2.0)
        assert [tensor.device for tensor in doubled] == [tensor.device for tensor in ones]
        torch._foreach_add_(ones, doubled, alpha=2)
        assert [tensor.tolist() for tensor in ones] == [[5.0, 5.0]] * 3
        assert [norm.item() for norm in torch._foreach_norm(doubled, 1)] == [4.0] * 3
        torch._foreach_addcmul_(ones, doubled, doubled, [1.0, 2.0, 3.0])
        assert [tensor[0].item() for tensor in ones] == [9, 13, 17]
        torch._foreach_maximum_(ones, 10.0)
        assert [tensor[0].item() for tensor in ones] == [10, 13, 17]
        host = [torch.zeros(2)]
        with no_host_sync(count=True) as report:
            torch._foreach_copy_(host, [torch.ones(2, device="cuda")])
        assert report.count == 1 and host[0].tolist() == [1, 1]
        with pytest.raises(DeviceMismatchError):
            torch._foreach_add(ones, ones[::-1])


def test_modules_go_to_an_index_and_to_the_place_of_a_tensor() -> None:
    with virtual_gpus(2):
        like = torch.ones(1, device="cuda:1", dtype=torch.float64)
        moves: list[Any] = [
            lambda layer: layer.to(1),
            lambda layer: layer.to(device=1),
            lambda layer: layer.to(1, torch.float64),
            lambda layer: layer.to(like),
            lambda layer: layer.to(torch.device("cuda:1"), non_blocking=True),
        ]
        for move in moves:
            assert move(nn.Linear(2, 2)).weight.device == GPU1
        assert nn.Linear(2, 2).to(like).weight.dtype == torch.float64
        assert nn.Linear(2, 2).to(torch.float64).weight.device.type == "cpu"
        with pytest.raises(RuntimeError, match="cuda:0, cuda:1"):
            nn.Linear(2, 2).to(5)
        assert dispatch_model(nn.Sequential(nn.Linear(2, 2)), {"": 1})[0].weight.device == GPU1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_modules_move_and_run() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("scale", torch.ones(2))

        def forward(self, numbers: Tensor) -> Tensor:
            return self.layer(numbers) * self.scale  # type: ignore[no-any-return]

    eager = Scaled()
    expected = eager(torch.ones(1, 2))
    with virtual_gpus(2):
        scripted: Any = torch.jit.script(eager).to("cuda:1")
        assert scripted.layer.weight.device == scripted.scale.device == GPU1
        result = scripted(torch.ones(1, 2, device="cuda:1"))
        assert result.device == GPU1
        torch.testing.assert_close(result.cpu(), expected)
        result.sum().backward()
        assert scripted.layer.weight.grad.device == GPU1
        with pytest.raises(RuntimeError, match="failed in the TorchScript interpreter"):
            scripted(torch.ones(1, 2, device="cuda:0"))


@pytest.mark.parametrize("first", ["cpu", "cuda:0"])
@pytest.mark.parametrize("second", ["cpu", "cuda:1"])
def test_a_module_that_has_gradients_is_moved_with_them(first: str, second: str) -> None:
    with virtual_gpus(2):
        layer = nn.Linear(2, 2).to(first)
        layer(torch.ones(1, 2, device=first)).sum().backward()
        assert layer.weight.grad is not None
        before = layer.weight.grad.cpu().clone()
        layer.to(second)
        assert layer.weight.grad is not None
        assert layer.weight.device == layer.weight.grad.device == torch.device(second)
        assert torch.equal(layer.weight.grad.cpu(), before)
        layer(torch.ones(1, 2, device=second)).sum().backward()
        assert torch.equal(layer.weight.grad.cpu(), 2 * before)


def test_optimizers_update_tensors_of_gpus_in_groups_by_default() -> None:
    """As on CUDA; see the optimizers' documentation of `foreach`."""
    with virtual_gpus(1):
        weights = nn.Linear(2, 2, device="cuda").weight
        weights.grad = torch.ones_like(weights)
        with mock.patch("torch.optim.adam._multi_tensor_adam") as in_groups:
            torch.optim.Adam([weights]).step()
        assert in_groups.called


def test_what_works_in_place_on_a_list_gives_that_list() -> None:
    """Torch does so on every device."""
    on_cpu = [torch.ones(2), torch.ones(3)]
    assert torch._foreach_add_(on_cpu, 1) is on_cpu
    with virtual_gpus(2):
        for devices in (("cuda:0", "cuda:0"), ("cuda:0", "cuda:1")):
            numbers = [torch.ones(2, device=device) for device in devices]
            assert torch._foreach_add_(numbers, 1) is numbers
            assert [item.tolist() for item in numbers] == [[2, 2], [2, 2]]


def test_foreach_refuses_numbers_where_cuda_does_not_read_them() -> None:
    with virtual_gpus(2):
        ones = [torch.ones(2, device="cuda:1") for _ in range(2)]
        numbers = torch.ones(2, device="cuda:1")
        for call in (torch._foreach_addcmul, torch._foreach_addcdiv):
            call(ones, ones, ones, numbers.cpu())
            with pytest.raises(DeviceMismatchError, match="Expected scalars to be on CPU, got cuda:1 instead"):
                call(ones, ones, ones, numbers)
        with pytest.raises(DeviceMismatchError, match="scalar tensor expected to be on cuda:1 but is on cpu"):
            torch._foreach_add(ones, torch.tensor(1.0), alpha=1.0)  # without alpha the tensor is read as a number
        assert torch._foreach_add(ones, torch.tensor(1.0, device="cuda:1"))[0].tolist() == [2, 2]
        assert torch._foreach_add([ones[0].int()], torch.tensor(1.0), alpha=1)[0].tolist() == [2, 2]
        with pytest.raises(
            RuntimeError, match="scalar tensor expected to be 0 dim but it has 1 dimensions and 2 elements"
        ):
            torch._foreach_mul([ones[0], torch.ones(2)], numbers)
        assert torch._foreach_mul(ones, torch.tensor(3.0))[0].tolist() == [3, 3]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_foreach_runs_in_half_precision_what_the_cpu_has_not() -> None:
    with virtual_gpus(1):
        (power,) = torch._foreach_pow([torch.tensor([2.0], device="cuda", dtype=torch.float16)], 1 + 0j)
        assert power.dtype == torch.complex32 and power.is_cuda
        assert power.to(torch.complex64).tolist() == [2]
