"""Operations for which CUDA has no kernel are refused as on CUDA, and those for which it has one run."""

import importlib
from typing import Any

import pytest
import torch
from torch.nn import functional

from virtual_gpus import virtual_gpus
from virtual_gpus.rules.missing_kernels import LACKING

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REFUSED: dict[str, Any] = {
    "matmul": lambda x: x @ x,
    "vectors": lambda x: x[0] @ x[0],
    "rows": lambda x: x @ x[0],
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "linear": lambda x: functional.linear(x, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, 1),
    "max_pool2d": lambda x: functional.max_pool2d(x[None], 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_integers_are_not_multiplied_as_matrices(name: str) -> None:
    for dtype in INTEGERS:
        REFUSED[name](torch.ones(2, 2, dtype=dtype))
        with virtual_gpus(1):
            with pytest.raises(NotImplementedError, match=r"\" not implemented for '(Byte|Char|Short|Int|Long)'"):
                REFUSED[name](torch.ones(2, 2, dtype=dtype, device="cuda"))
            REFUSED[name](torch.ones(2, 2, device="cuda"))


def test_other_kernels_that_cuda_lacks() -> None:
    with virtual_gpus(1):
        whole, half = torch.ones(1, 1, 4, 4, dtype=torch.long, device="cuda"), torch.ones(4, device="cuda").half()
        calls: list[Any] = [
            lambda: functional.conv2d(whole, whole),
            lambda: functional.avg_pool2d(whole, 2),
            lambda: functional.interpolate(whole.byte(), scale_factor=2, mode="bilinear"),
            lambda: torch.igamma(half, half),
            lambda: torch.angle(half),
            lambda: torch.histc(half),
            lambda: whole[0, 0].bool().scatter_reduce(0, whole[0, 0] - 1, whole[0, 0].bool(), "amax"),
            lambda: half.to(torch.complex64).scatter_(0, half.long(), half.to(torch.complex64), reduce="multiply"),
            lambda: torch._foreach_mm([whole[0, 0]], [whole[0, 0]]),
            lambda: torch.histogram(torch.ones(4, device="cuda"), 3),
        ]
        for call in calls:
            with pytest.raises(NotImplementedError):
                call()
        assert (
            torch.ones(2, 0, dtype=torch.long, device="cuda") @ torch.ones(0, 2, dtype=torch.long, device="cuda")
        ).shape == (2, 2)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_half_precision_runs_where_the_cpu_has_none() -> None:
    with virtual_gpus(1):
        half = torch.arange(8.0, device="cuda").half()
        spectrum = torch.fft.fft(half)
        assert spectrum.dtype == torch.complex32 and spectrum.is_cuda
        torch.testing.assert_close(
            spectrum.to(torch.complex64).cpu(), torch.fft.fft(torch.arange(8.0)), atol=0.05, rtol=0
        )
        assert torch.fft.irfft(torch.fft.rfft(half)).dtype == torch.float16
        with pytest.raises(RuntimeError, match="powers of two"):
            torch.fft.fft(half[:7])
        assert torch.sin(spectrum).dtype == torch.complex32
        assert functional.avg_pool3d(half.reshape(1, 2, 2, 2), 2).dtype == torch.float16


def test_what_has_no_deterministic_kernel_is_refused_if_that_is_asked_for() -> None:
    calls: list[Any] = [
        lambda x: x.kthvalue(1),
        lambda x: torch.bincount(x.long(), x),
        lambda x: x.median(0),
        lambda x: torch.histc(x),
        lambda x: x.put(x.long(), x, accumulate=True),
        lambda x: torch.median(x, 0, out=(x.new_empty(0), x.long()[:0])),
        lambda x: torch.ops.aten.replication_pad2d_backward(x.view(1, 1, 2, 2), x.view(1, 1, 2, 2), [0, 0, 0, 0]),
        lambda x: torch.ops.aten.upsample_bilinear2d_backward(x.view(1, 1, 2, 2), [2, 2], [1, 1, 1, 1], False),
    ]
    with virtual_gpus(1):
        numbers = torch.ones(4, device="cuda")
        torch.use_deterministic_algorithms(True)
        try:
            for call in calls:
                with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                    call(numbers)
                call(torch.ones(4))
            torch.bincount(numbers.long())
            table = torch.ones(4, 3, device="cuda", requires_grad=True)
            functional.embedding_bag(numbers.long()[None], table, mode="sum").sum().backward()  # type: ignore[no-untyped-call]
            with pytest.raises(RuntimeError, match="embedding_bag_backward_cuda_max does not have"):
                functional.embedding_bag(numbers.long()[None], table, mode="max").sum().backward()  # type: ignore[no-untyped-call]
            torch.use_deterministic_algorithms(True, warn_only=True)
            with pytest.warns(UserWarning, match="kthvalue CUDA does not have"):
                numbers.kthvalue(1)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_the_table_is_that_of_torchs_own_test_data() -> None:
    if importlib.util.find_spec("expecttest") is None:
        pytest.skip("torch's test data needs the package expecttest")
    data: Any = importlib.import_module("torch.testing._internal.common_methods_invocations")
    listed: dict[str, set[torch.dtype]] = {}  # of several variants those of each
    for op in data.op_db:
        listed.setdefault(op.name.removeprefix("nn.functional."), set()).update({*op.dtypes} - {*op.dtypesIfCUDA})
    for name, (dtypes, _) in LACKING.items():
        if name in listed:
            assert dtypes == listed[name] - {torch.bfloat16} or dtypes == listed[name], name
