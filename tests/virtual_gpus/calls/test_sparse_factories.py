"""Sparse tensors on virtual GPUs. Oracle: for values the CPU's own tensors, for devices torch's documentation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from virtual_gpus import DeviceMismatchError, no_host_sync

INDICES, VALUES = [[0, 1], [1, 0]], [1.0, 2.0]
COMPRESSED = ([0, 1, 2], [0, 1], VALUES)
BLOCKS = ([0, 1, 2], [0, 1], [[[1.0]], [[2.0]]])
pytestmark = [
    pytest.mark.usefixtures("gen_virtual_gpus"),
    pytest.mark.filterwarnings(
        "ignore:Sparse .* tensor support is in beta state", "ignore:Sparse invariant checks are implicitly disabled"
    ),
]
CASES: list[tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]] = [
    (torch.sparse_coo_tensor, (INDICES, VALUES), {}),
    (torch.sparse_csr_tensor, COMPRESSED, {}),
    (torch.sparse_csc_tensor, COMPRESSED, {}),
    (torch.sparse_bsr_tensor, BLOCKS, {}),
    (torch.sparse_bsc_tensor, BLOCKS, {}),
    (torch.sparse_compressed_tensor, COMPRESSED, {"layout": torch.sparse_csr}),
]
IDS = [case[0].__name__ for case in CASES]


def _coo(*args: Any, **kwargs: Any) -> Tensor:
    factory: Any = torch.sparse_coo_tensor  # its annotations say that indices are a tensor
    made: Tensor = factory(*args, **kwargs)
    return made


def _same(made: Tensor, factory: str, parts: tuple[Any, ...], options: dict[str, Any], device: str) -> None:
    expected = getattr(torch, factory)(*parts, (2, 2), **options)
    assert made.device == torch.device(device)
    assert made.layout == expected.layout
    torch.testing.assert_close(made.to_dense().cpu(), expected.to_dense())


@pytest.mark.parametrize(("factory", "parts", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("source", ["lists", "cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize(("device", "where"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), (None, None)])
def test_a_sparse_tensor_is_where_it_was_asked_for_or_where_its_values_are(
    factory: Callable[..., Tensor],
    parts: tuple[Any, ...],
    options: dict[str, Any],
    source: str,
    device: str,
    where: str,
) -> None:
    given = parts if source == "lists" else tuple(torch.tensor(part, device=source) for part in parts)
    asked = {} if device is None else {"device": device}
    made = getattr(torch, factory.__name__)(*given, (2, 2), **options, **asked)
    _same(made, factory.__name__, parts, options, where or ("cpu" if source == "lists" else source))


def test_other_ways_to_give_parts_and_device() -> None:
    values = torch.tensor(VALUES, device="cuda:1")
    _same(_coo(INDICES, values, (2, 2)), "sparse_coo_tensor", (INDICES, VALUES), {}, "cuda:1")
    named = _coo(indices=INDICES, values=VALUES, size=(2, 2), device="cuda:1")
    _same(named, "sparse_coo_tensor", (INDICES, VALUES), {}, "cuda:1")
    with torch.device("cuda:1"):
        assert torch.sparse_csr_tensor(*COMPRESSED).device == torch.device("cuda:1")
    assert _coo((2, 3), device="cuda:1").device == torch.device("cuda:1")
    assert _coo(INDICES, values, (2, 2), device="cpu").device.type == "cpu"


def test_indices_and_values_on_two_devices_are_refused() -> None:
    indices, values = torch.tensor(INDICES), torch.tensor(VALUES, device="cuda:1")
    with pytest.raises(DeviceMismatchError):
        _coo(indices, values, (2, 2))


def test_numbers_for_a_sparse_tensor_are_copied_while_the_host_waits() -> None:
    indices, values = torch.tensor(INDICES, device="cuda:1"), torch.tensor(VALUES, device="cuda:1")
    with no_host_sync(count=True) as report:
        _coo(indices, values, (2, 2), device="cuda:1", check_invariants=False)
    assert report.count == 0
    with no_host_sync(count=True) as report:
        _coo(INDICES, VALUES, (2, 2), device="cuda:1", check_invariants=False)
    assert report.count == 2


def test_an_embedding_has_sparse_gradients_on_its_gpu() -> None:
    table = nn.Embedding(3, 2, sparse=True, device="cuda:1")
    table(torch.tensor([1], device="cuda:1")).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None and gradient.is_sparse and gradient.device == torch.device("cuda:1")
    assert gradient.to_dense().tolist() == [[0, 0], [1, 1], [0, 0]]


def test_a_sparse_tensor_has_gradients_of_its_values() -> None:
    values = torch.tensor(VALUES, device="cuda:1", requires_grad=True)
    _coo(torch.tensor(INDICES, device="cuda:1"), values, (2, 2)).to_dense().sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None and values.grad.device == torch.device("cuda:1")
    assert values.grad.tolist() == [1, 1]
