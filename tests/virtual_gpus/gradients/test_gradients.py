"""Backward passes on virtual GPUs: what CUDA refuses, where the host waits, and on which device gradients are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from virtual_gpus import DeviceMismatchError, no_host_sync, virtual_gpus

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


def _leaf(device: Any = "cuda:0") -> Tensor:
    return torch.ones(3, device=device, requires_grad=True)


def _function(backward: Callable[[Tensor], Any]) -> Any:
    """An autograd.Function that doubles, with a backward of its own."""

    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, numbers: Tensor) -> Tensor:
            return numbers * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return backward(gradient)

    return Doubling.apply


def test_mixes_in_hooks_and_functions_are_refused() -> None:
    weight = torch.ones(3)
    with virtual_gpus(2):
        with pytest.raises(DeviceMismatchError, match="other"):
            _function(lambda g: g * torch.ones(3))(_leaf()).sum().backward()
        for mix in (lambda g: g * weight, lambda g: g + torch.ones(3, device="cuda:1")):
            doubled = _leaf() * 2
            doubled.register_hook(mix)  # type: ignore[no-untyped-call]
            with pytest.raises(DeviceMismatchError):
                doubled.sum().backward()  # type: ignore[no-untyped-call]


def test_syncs_in_hooks_and_functions_are_found() -> None:
    buffer, index = torch.zeros(3), torch.tensor([0, 1])
    reads: list[Callable[[Tensor], Any]] = [
        lambda g: (buffer.copy_(g), None)[1],
        lambda g: (g[index], None)[1],
        lambda g: (g.sum().item(), None)[1],
    ]
    with virtual_gpus(2):
        for read in reads:
            doubled = _leaf() * 2
            doubled.register_hook(read)  # type: ignore[no-untyped-call]
            total = doubled.sum()
            with no_host_sync(count=True) as report:
                total.backward()  # type: ignore[no-untyped-call]
            assert report.count == 1
            total = _function(lambda g, read=read: (read(g), g * 2)[1])(_leaf()).sum()  # type: ignore[misc]
            with no_host_sync(count=True) as report:
                total.backward()
            assert report.count == 1


def test_a_plain_backward_pass_does_not_wait() -> None:
    with virtual_gpus(2):
        layer = nn.LSTM(4, 3).to("cuda:1")
        total = layer(torch.ones(2, 1, 4, device="cuda:1"))[0].sum()
        with no_host_sync():
            total.backward()


def test_gradients_for_another_device_are_refused_and_numbers_are_moved() -> None:
    with virtual_gpus(2):
        for other in (torch.ones(3), torch.ones(3, device="cuda:1")):
            with pytest.raises(DeviceMismatchError, match="invalid gradient at index 0 - expected device cuda:0"):
                (_leaf() * 2).backward(other)  # type: ignore[no-untyped-call]
            numbers = _leaf()
            with pytest.raises(DeviceMismatchError, match="expected device cuda:0"):
                torch.autograd.grad(numbers * 2, numbers, other)
            with pytest.raises(DeviceMismatchError, match="DoublingBackward returned an invalid gradient at index 0"):
                _function(lambda g, other=other: other)(_leaf()).sum().backward()  # type: ignore[misc]
        leaf = _leaf()
        leaf.sum().backward(torch.tensor(2.0))  # type: ignore[no-untyped-call]
        assert leaf.grad is not None and leaf.grad.device == GPU0
        assert leaf.grad.tolist() == [2, 2, 2]


def test_a_gradient_is_assigned_on_its_tensors_device_only() -> None:
    with virtual_gpus(2):
        leaf, plain = _leaf(), torch.ones(3, requires_grad=True)
        with pytest.raises(DeviceMismatchError, match="device type 'cpu' to a tensor with device type 'cuda'"):
            leaf.grad = torch.ones(3)
        with pytest.raises(DeviceMismatchError, match="device with index '1' to a tensor located on device with index"):
            leaf.grad = torch.ones(3, device="cuda:1")
        with pytest.raises(DeviceMismatchError, match="device type 'cuda' to a tensor with device type 'cpu'"):
            plain.grad = torch.ones(3, device="cuda")
        kept = torch.ones(3, device="cuda")
        leaf.grad = kept
        assert leaf.grad is kept
        leaf.grad = None
        assert leaf.grad is None


def test_a_hook_may_not_change_the_kind_of_device() -> None:
    with virtual_gpus(2):
        doubled = _leaf() * 2
        doubled.register_hook(lambda g: torch.ones(3))  # type: ignore[no-untyped-call]
        with pytest.raises(DeviceMismatchError, match=r"was torch.cuda.FloatTensor got torch.FloatTensor"):
            doubled.sum().backward()  # type: ignore[no-untyped-call]


def test_gradients_that_torch_makes_lie_where_their_tensors_are() -> None:
    seen = []
    with virtual_gpus(2):
        leaf = _leaf("cuda:1")
        leaf.register_hook(lambda g: seen.append(g.device))  # type: ignore[no-untyped-call]
        torch.sgn(leaf).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None and leaf.grad.device == GPU1 and leaf.grad is leaf.grad
        (gradient,) = torch.autograd.grad(torch.sgn(leaf).sum(), leaf)
        assert gradient.device == GPU1
        assert seen == [GPU1, GPU1]


def test_gradients_that_no_one_gave_reach_a_function_on_its_device() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, numbers: Tensor) -> tuple[Tensor, Tensor]:
            return numbers * 2, numbers * 3

        @staticmethod
        def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
            assert second.device == GPU1
            return first * 2 + second * torch.ones(3, device="cuda:1")

    with virtual_gpus(2):
        leaf = _leaf("cuda:1")
        Two.apply(leaf)[0].sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None and leaf.grad.tolist() == [2, 2, 2]


def test_gradients_go_back_through_copies_to_the_device_they_came_from() -> None:
    with virtual_gpus(2):
        for source, target in (("cpu", "cuda:1"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1")):
            for put in (
                lambda t, s: t.copy_(s),
                lambda t, s: t.__setitem__(slice(3), s),
                lambda t, s: t.__setitem__(0, s[0]),
            ):
                seen: list[torch.device] = []
                leaf = _leaf(source)
                middle = leaf * 1
                middle.register_hook(lambda g, seen=seen: seen.append(g.device))  # type: ignore[no-untyped-call]
                buffer = torch.zeros(3, device=target) * 1
                put(buffer, middle)  # type: ignore[no-untyped-call]
                buffer.sum().backward()  # type: ignore[no-untyped-call]
                assert seen == [torch.device(source)]
                assert leaf.grad is not None and leaf.grad.device == torch.device(source)


def test_a_scalar_parameter_on_the_cpu_keeps_its_gradient_there() -> None:
    with virtual_gpus(1):
        scale = torch.tensor(2.0, requires_grad=True)
        (torch.ones(3, device="cuda") * scale).sum().backward()  # type: ignore[no-untyped-call]
        assert scale.grad is not None and scale.grad.device.type == "cpu"
        assert type(scale.grad) is Tensor
        assert scale.grad.item() == 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_layer_draws_the_same_numbers_again(reentrant: bool) -> None:
    with virtual_gpus(2):
        numbers = torch.ones(64, device="cuda:1", requires_grad=True)
        out = checkpoint(lambda x: nn.functional.dropout(x * 3), numbers, use_reentrant=reentrant)
        out.sum().backward()
        assert numbers.grad is not None and torch.equal(numbers.grad, out.detach())


def test_batched_gradients_lie_where_their_tensors_lie() -> None:
    def changed(root: Tensor, factors: Tensor) -> Tensor:
        made = root.clone()
        made.narrow(1, 1, 2).mul_(factors)
        return made

    with virtual_gpus(2):
        root = torch.rand(2, 4, device="cuda:1", dtype=torch.float64)
        factors = torch.rand(2, 2, device="cuda:1", dtype=torch.float64, requires_grad=True)
        outer = torch.rand(2, 4, device="cuda:1", dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(changed, (root, factors), check_batched_grad=True)
        assert torch.autograd.gradgradcheck(changed, (root, factors), (outer,), check_batched_grad=True)


def test_a_functions_backward_runs_on_the_stream_of_its_forward() -> None:
    seen: list[object] = []

    def backward(gradient: Tensor) -> Tensor:
        seen.append(torch.cuda.current_stream())
        return gradient * 2

    with virtual_gpus(2, check_streams=True):
        side, ambient = torch.cuda.Stream(1), torch.cuda.Stream(1)  # type: ignore[no-untyped-call]
        leaf = torch.ones(3, device="cuda:1", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream(1))
        with torch.cuda.stream(side):
            result = _function(backward)(leaf)
        ambient.wait_stream(side)
        with torch.cuda.stream(ambient):
            result.sum().backward()
            assert leaf.grad is not None and (leaf.grad + 1).tolist() == [3.0] * 3
            assert torch.cuda.current_stream() == ambient
        assert seen == [side]


def test_a_gradient_is_deleted_and_shapes_are_compared_across_devices() -> None:
    with virtual_gpus(1):
        leaf = _leaf()
        leaf.sum().backward()  # type: ignore[no-untyped-call]
        del leaf.grad
        assert leaf.grad is None
        assert torch.ops.aten.is_same_size(leaf, torch.ones(3)) and not torch.ops.aten.is_same_size(leaf, torch.ones(2))
        with pytest.raises(RuntimeError, match="Deleting tensor data is not allowed"):
            del leaf.data
        assert torch.ops.aten._has_same_storage_numel(leaf, torch.ones(3))
