"""Tensors of custom classes beside virtual ones, and functions that torch would compile or trace."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.attention import flex_attention as flex
from torch.utils._pytree import tree_map_only

from virtual_gpus import DeviceError, no_host_sync, virtual_gpus


class Doubled(Tensor):
    """A class that handles its operators itself: each result is doubled."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values: Tensor) -> None:
        self.values_inside = values

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args = tree_map_only(Doubled, lambda tensor: tensor.values_inside, args)
        return func(*args, **(kwargs or {})) * 2


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_fake_tensor_beside_a_virtual_one_is_refused(allow: bool, inside: bool) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=allow)
    with virtual_gpus(2):
        numbers = torch.randn(4, device="cuda")
        with mode:
            index, scalar = torch.zeros(2, dtype=torch.long), torch.tensor(1.0)
        mixes: Any = (
            lambda: numbers[index],
            lambda: numbers + scalar,
            lambda: scalar + numbers,
            lambda: numbers.copy_(scalar),
            lambda: torch.cat([numbers, index]),
        )
        for mix in mixes:
            with pytest.raises((DeviceError, AssertionError, TypeError)):
                if inside:
                    with mode:
                        mix()
                else:
                    mix()


def test_a_class_that_handles_its_operators_does_so_beside_virtual_tensors() -> None:
    with virtual_gpus(2):
        weight: Any = Doubled(torch.ones(2, device="cuda:1"))
        numbers = torch.ones(2, device="cuda:1")
        assert (numbers * weight).tolist() == [2, 2]
        assert (weight + numbers).device == torch.device("cuda:1")


def _scores(query: Tensor, bias: Tensor) -> Tensor:
    """flex_attention with a bias, written out."""
    scores = query @ query.transpose(-2, -1) / query.shape[-1] ** 0.5 + bias
    return scores.softmax(-1) @ query  # type: ignore[no-any-return]


def test_flex_attention_runs_with_a_score_mod_a_mask_and_gradients() -> None:
    torch.manual_seed(0)
    plain, plain_bias = torch.randn(1, 2, 8, 16, requires_grad=True), torch.randn(8, 8)
    expected = _scores(plain, plain_bias.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf))
    (gradient,) = torch.autograd.grad(expected.sum(), plain)
    with virtual_gpus(2):
        query = plain.detach().to("cuda:1").requires_grad_()
        bias = plain_bias.to("cuda:1")
        mask = flex.create_block_mask(lambda b, h, q, k: q >= k, 1, 2, 8, 8, device="cuda:1")
        out: Any = flex.flex_attention(query, query, query, lambda s, b, h, q, k: s + bias[q, k], block_mask=mask)
        assert out.device == torch.device("cuda:1")
        out.sum().backward()
        assert query.grad is not None
        torch.testing.assert_close(out.detach().cpu(), expected.detach())
        torch.testing.assert_close(query.grad.cpu(), gradient)


def test_cond_runs_the_branch_and_waits_for_its_condition() -> None:
    with virtual_gpus(1):
        numbers = torch.ones(2, device="cuda")
        with no_host_sync(count=True) as report:
            result: Any = torch.cond(numbers.sum() > 5, lambda x: x + 1, lambda x: x - 1, (numbers,))
        assert report.count == 1
        assert result.tolist() == [0, 0]


def test_compiled_modules_have_their_wrapper_and_functions_stay() -> None:
    with virtual_gpus(1):
        layer = nn.Linear(2, 2).to("cuda")
        compiled: Any = torch.compile(layer)
        assert compiled._orig_mod is layer
        assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
        numbers = torch.ones(1, 2, device="cuda")
        assert torch.equal(compiled(numbers), layer(numbers))
        assert torch.compile(len) is len
        assert torch.compile(mode="reduce-overhead")(len) is len


def _with_a_constant(x: Tensor) -> Tensor:
    return x * 2 + torch.ones(2, device=x.device)


def _sum_of_zeros(x: Tensor) -> Tensor:
    return x + torch.zeros(2)


def _sum_of_ones(x: Tensor) -> Tensor:
    return x + torch.ones(2)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_trace_makes_its_constants_on_the_gpu() -> None:
    with virtual_gpus(2):
        numbers = torch.ones(1, 2, device="cuda:1")
        traced: Any = torch.jit.trace(_with_a_constant, numbers)  # type: ignore[no-untyped-call]
        assert traced(numbers).device == torch.device("cuda:1")
        assert traced(numbers).tolist() == [[3, 3]]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_knows_torchs_functions_in_a_block_and_after_it() -> None:
    with virtual_gpus(1):
        inside: Any = torch.jit.script(_sum_of_zeros)
        assert inside(torch.ones(2)).tolist() == [1, 1]
    after: Any = torch.jit.script(_sum_of_ones)
    assert after(torch.ones(2)).tolist() == [2, 2]
