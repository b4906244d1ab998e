"""torch.func's transforms and lazy modules on virtual GPUs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from virtual_gpus import DeviceMismatchError, virtual_gpus

GPU1 = torch.device("cuda:1")
TRANSFORMS: dict[str, Any] = {
    "grad": lambda x: torch.func.grad(lambda a: (a * torch.ones(4, device=a.device)).sum())(x),
    "vmap": lambda x: torch.vmap(lambda a: a * torch.ones(2, device=a.device).sum())(x),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda a: (a * a).sum()))(x.expand(2, 4)),
    "jvp": lambda x: torch.func.jvp(lambda a: (a**2).sum(), (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda x: torch.func.jacrev(lambda a: a**2)(x),
    "jacfwd": lambda x: torch.func.jacfwd(lambda a: a**2)(x),
    "jacobian in one go": lambda x: torch.autograd.functional.jacobian(lambda a: a**2, x, vectorize=True),  # type: ignore[no-untyped-call]
    "hessian": lambda x: torch.autograd.functional.hessian(lambda a: (a**3).sum(), x),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_compute_what_the_cpu_computes_on_their_device(name: str) -> None:
    numbers = torch.arange(4.0)
    expected = TRANSFORMS[name](numbers)
    with virtual_gpus(2):
        result = TRANSFORMS[name](numbers.to("cuda:1"))
        assert result.device == GPU1
        torch.testing.assert_close(result.detach().cpu(), expected)


def test_a_mix_within_a_transform_is_refused() -> None:
    with virtual_gpus(2), pytest.raises(DeviceMismatchError):
        torch.vmap(lambda a: a + torch.ones(3))(torch.ones(4, 3, device="cuda:1"))


def test_lazy_modules_are_made_on_their_device() -> None:
    moved: list[Any] = [
        lambda: nn.LazyLinear(3).to("cuda:1"),
        lambda: nn.LazyLinear(3).cuda(1),
        lambda: nn.LazyLinear(3, device="cuda:1"),
    ]
    with virtual_gpus(2):
        for make in moved:
            layer = make()
            assert layer(torch.ones(1, 4, device="cuda:1")).device == GPU1
            assert type(layer) is nn.Linear and layer.weight.device == GPU1
        norm = nn.LazyBatchNorm1d().to("cuda:1")
        assert norm(torch.ones(2, 4, device="cuda:1")).device == GPU1
        assert isinstance(norm.running_mean, Tensor) and norm.running_mean.device == GPU1


def test_pinned_memory_keeps_gradients() -> None:
    with virtual_gpus(1):
        leaf = torch.ones(2, requires_grad=True)
        leaf.pin_memory().to("cuda", non_blocking=True).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None and leaf.grad.tolist() == [1, 1]


def test_forward_derivatives_ask_for_shapes_on_meta() -> None:
    """Torch's formulas do so for tangents that are zero; finite differences are the oracle."""
    with virtual_gpus(1):
        point = torch.tensor([1 + 2j], dtype=torch.complex128, device="cuda", requires_grad=True)
        assert torch.autograd.gradcheck(torch.cosh, point, check_forward_ad=True, fast_mode=True)
