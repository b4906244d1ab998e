"""Waits in gradient formulas and sparse operators; torch's CUDA sources say which ones wait."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from virtual_gpus import no_host_sync, virtual_gpus

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse .* tensor support is in beta state", "ignore:Sparse invariant checks are implicitly disabled"
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with virtual_gpus(1):
        yield


@pytest.mark.parametrize(
    ("function", "waits"),
    [
        (lambda x: x.prod(), 1),
        (lambda x: torch.prod(x, 1).sum(), 1),
        (lambda x: x.cumprod(1).sum(), 1),
        (lambda x: x[0, 0].prod(), 0),
        (lambda x: x.detach().prod() + x.sum(), 0),
    ],
    ids=["prod", "prod of a dimension", "cumprod", "prod of a number", "no gradient"],
)
def test_gradients_of_products_look_for_zeros(function: Callable[[Tensor], Tensor], waits: int) -> None:
    """See prod_backward and cumprod_backward in FunctionsManual.cpp."""
    values = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    inputs = [values.clone().requires_grad_(), values.cuda().requires_grad_()]
    with no_host_sync():
        made = function(inputs[1])
    with no_host_sync(count=True) as report:
        made.backward()  # type: ignore[no-untyped-call]
    assert report.count == waits
    function(inputs[0]).backward()  # type: ignore[no-untyped-call]
    assert inputs[0].grad is not None and inputs[1].grad is not None
    assert inputs[1].grad.tolist() == inputs[0].grad.tolist()


WAITS: dict[str, tuple[Callable[[Any], object], bool]] = {
    "COO to CSR": (lambda x: x.coo.to_sparse_csr(), False),
    "CSR to COO": (lambda x: x.csr.to_sparse(), False),
    "to_dense": (lambda x: x.coo.to_dense(), False),
    "a size that is given": (lambda x: torch.sparse_coo_tensor(x.indices, x.values, (3, 3)), False),
    "a size that is not": (lambda x: torch.sparse_coo_tensor(x.indices, x.values), True),
    "one row": (lambda x: x.coo[0], True),
    "rows": (lambda x: x.coo.index_select(0, x.rows), True),
    "a part": (lambda x: x.coo.narrow_copy(0, 0, 1), True),
    "softmax": (lambda x: torch.sparse.softmax(x.coo, 1), True),
    "sparse times dense": (lambda x: torch.sparse.mm(x.coo, x.dense), False),
    "sparse times sparse": (lambda x: torch.sparse.mm(x.coo, x.coo), True),
    "CSR times dense": (lambda x: x.csr @ x.dense, False),
    "CSR times CSR": (lambda x: x.csr @ x.csr, True),
    "CSR plus CSR": (lambda x: x.csr + x.csr, True),
    "CSR to blocks": (lambda x: x.csr.to_sparse_bsr((3, 3)), True),
    "blocks to blocks": (lambda x: x.blocks.to_sparse_bsc((3, 3)), False),
    "sparse batch times dense": (lambda x: torch.bmm(x.coo[None], x.dense[None]), True),
}


class Operands:
    def __init__(self) -> None:
        self.dense = torch.eye(3, device="cuda")
        self.coo, self.csr = self.dense.to_sparse(), self.dense.to_sparse_csr()
        self.indices, self.values = torch.zeros((2, 2), dtype=torch.int64).cuda(), torch.ones(2, device="cuda")
        self.blocks = self.dense.to_sparse_bsr((3, 3))
        self.rows = torch.zeros(1, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("case", WAITS)
def test_sparse_operators_wait_where_a_size_depends_on_values(case: str) -> None:
    call, waits = WAITS[case]
    operands = Operands()
    with no_host_sync(count=True) as report:
        call(operands)
    assert (report.count > 0) == waits
