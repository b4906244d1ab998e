"""Operations for which CUDA has a kernel and the CPU has none run on virtual GPUs."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from virtual_gpus import virtual_gpus

HALVES = (torch.float16, torch.bfloat16)
BACKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool3d": lambda x: functional.avg_pool3d(x.reshape(1, 1, 2, 2, 2), 2),
    "interpolate": lambda x: functional.interpolate(
        x.reshape(1, 1, 2, 4), scale_factor=2, mode="bilinear", antialias=True
    ),
    "multi_margin_loss": lambda x: functional.multi_margin_loss(x.reshape(2, 4), x.new_tensor([0, 1]).long()),
    "multilabel_margin_loss": lambda x: functional.multilabel_margin_loss(x, x.new_zeros(8).long() - 1),
}


@pytest.fixture(autouse=True)
def a_gpu() -> Iterator[None]:
    with virtual_gpus(1):
        yield


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_in_half_precision_are_those_of_single_precision(name: str) -> None:
    for dtype in HALVES:
        half = torch.linspace(-1, 1, 8, device="cuda").to(dtype).requires_grad_()
        single = half.detach().float().requires_grad_()
        for numbers in (half, single):
            BACKWARD[name](numbers).sum().backward()  # type: ignore[no-untyped-call]
        assert half.grad is not None and single.grad is not None
        assert half.grad.dtype == dtype and half.grad.is_cuda
        torch.testing.assert_close(half.grad.float(), single.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_numbers_in_half_precision_have_gradients() -> None:
    for function in (torch.tanh, torch.sigmoid):
        half = torch.tensor([0.5 + 0.25j, -1j], device="cuda").to(torch.complex32).requires_grad_()
        whole = half.detach().to(torch.complex64).requires_grad_()
        for numbers in (half, whole):
            torch.view_as_real(function(numbers)).sum().backward()  # type: ignore[no-untyped-call]
        assert half.grad is not None and whole.grad is not None
        torch.testing.assert_close(half.grad.to(torch.complex64), whole.grad, rtol=1e-2, atol=1e-2)


def test_truth_values_have_an_absolute_value_and_a_trace() -> None:
    square = torch.tensor([[True, False], [True, True]], device="cuda")
    assert square.abs().tolist() == square.tolist() and square.abs().dtype == torch.bool
    assert square.trace().item() == 2 and square.trace().dtype == torch.int64


def test_least_squares_have_cudas_only_driver() -> None:
    """See get_default_lstsq_driver in BatchLinearAlgebra.cpp; `gels` leaves the rank empty."""
    matrix, sides = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]]), torch.ones(3, 1)
    found = torch.linalg.lstsq(matrix.cuda(), sides.cuda())
    torch.testing.assert_close(found.solution.cpu(), torch.linalg.lstsq(matrix, sides).solution)
    assert found.rank.numel() == found.singular_values.numel() == 0
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(matrix.cuda(), sides.cuda(), driver="gelsd")


def test_complex_sums_leave_out_what_is_no_number() -> None:
    numbers = torch.tensor([[1 + 1j, complex(float("nan"), 1)], [2j, complex(0, float("nan"))]], device="cuda")
    assert numbers.nansum().item() == 1 + 3j
    assert numbers.nansum(0, keepdim=True).tolist() == [[1 + 3j, 0]]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_all_fourier_transforms_take_half_precision() -> None:
    for name in ("hfft2", "hfftn", "ihfft2", "ihfftn", "fft2", "rfftn"):
        transform = getattr(torch.fft, name)
        numbers = torch.rand(4, 3 if name.startswith("hfft") else 4, device="cuda").half()  # sizes are powers of two
        made = transform(numbers)
        assert made.dtype in (torch.float16, torch.complex32), name
        wide = made.to(torch.complex64 if made.is_complex() else torch.float32)
        torch.testing.assert_close(wide, transform(numbers.float()), rtol=1e-2, atol=1e-2, msg=name)


LEFT_OUT = {
    "torch.ops.aten._flash_attention_forward": "a kernel that has no counterpart on the CPU",
    "torch.ops.aten._efficient_attention_forward": "a kernel that has no counterpart on the CPU",
    "nn.functional.batch_norm.without_cudnn": "the sample's running mean would need a gradient",
    "to_sparse": "ones_like of a sparse tensor has no kernel on the CPU",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_dtype_of_torchs_own_test_data_that_cuda_alone_has_runs() -> None:
    if importlib.util.find_spec("expecttest") is None:
        pytest.skip("torch's test data needs the package expecttest")
    data: Any = importlib.import_module("torch.testing._internal.common_methods_invocations")
    narrow = {*HALVES, torch.complex32}
    failed: dict[str, str] = {}
    for op in data.op_db:
        if op.full_name in LEFT_OUT:
            continue
        back = set()
        if op.supports_autograd:
            back = narrow & (set(op.supported_backward_dtypes("cuda")) - set(op.supported_backward_dtypes("cpu")))
        for dtype in back | (set(op.dtypesIfCUDA) - set(op.dtypes)):
            sample = next(iter(op.sample_inputs("cpu", dtype)))
            try:
                _run(op, sample, dtype in back)
            except Exception as error:
                failed[f"{op.full_name} {dtype}"] = str(error)[:200]
    assert not failed


def _run(op: Any, sample: Any, backward: bool) -> None:
    def on_gpu(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        differentiable = backward and (value.is_floating_point() or value.is_complex())
        return value.detach().cuda().requires_grad_(differentiable)

    arguments, options = tree_map(on_gpu, ((sample.input, *sample.args), sample.kwargs))
    made = op(*arguments, **options)
    if backward and isinstance(made, Tensor) and made.requires_grad:
        made.backward(torch.ones_like(made))  # type: ignore[no-untyped-call]


def test_half_precision_changes_in_place() -> None:
    single = torch.tensor([0.5, -1.0], device="cuda").to(torch.complex64)
    half = single.to(torch.complex32)
    assert half.sin_() is half
    torch.testing.assert_close(half.to(torch.complex64).cpu(), single.sin().cpu(), atol=1e-3, rtol=0)


def test_sparse_gradients_in_half_precision_add_up() -> None:
    words = torch.tensor([1, 2, 1], device="cuda")
    for padding in (None, 1):
        table = torch.ones(4, 2, device="cuda", dtype=torch.float16, requires_grad=True)
        for _ in range(2):
            functional.embedding(words, table, padding_idx=padding, sparse=True).sum().backward()  # type: ignore[no-untyped-call]
        assert table.grad is not None and table.grad.is_cuda and table.grad.is_sparse
        assert table.grad.to_dense()[:, 0].tolist() == [0, 0 if padding else 4, 2, 0]
    table = torch.ones(4, 2, device="cuda", dtype=torch.float16, requires_grad=True)
    functional.embedding(words[:1], table, padding_idx=1, sparse=True).sum().backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None and table.grad.is_cuda and not table.grad.to_dense().any()


@pytest.mark.parametrize("product", [torch.mm, lambda a, b, **options: torch.bmm(a[None], b[None], **options)[0]])
def test_products_of_half_precision_can_stay_in_float32(product: Any) -> None:
    first = torch.tensor([[1.0, 2.0**-8]]).bfloat16()
    with torch.no_grad():
        made = product(first.to("cuda:0"), first.T.to("cuda:0"), out_dtype=torch.float32)
    assert made.device == torch.device("cuda:0")
    assert made.item() == 1 + 2.0**-16  # which bfloat16 would round to 1
