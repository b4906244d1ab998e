"""Operators on one GPU, and which of them the host waits for.

Sources: the CUDA kernels in aten/src/ATen/native/cuda, and the list in github.com/pytorch/pytorch/issues/108968. The
host waits for operators whose result's size depends on values (nonzero, unique, indexing with a mask), and for those
that give it a value. It does not wait for a single kernel or for a view.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tests.virtual_gpus.rules.op_table.cases import GPU0, Case, Operand, counts, floats, index, mask

_CHECK = "the host is told whether it has failed"
_SIZE, _VALUE, _KERNEL, _VIEW = (
    "the size of the result depends on values",
    "the host is given a value",
    "one kernel of fixed size",
    "a view",
)
_numbers, _square = floats(GPU0, 4), floats(GPU0, 2, 2)

# By name, called with the operand alone.
_FREE: dict[str, tuple[Operand, str]] = {
    "abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor "
    "frac i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not logit nan_to_num "
    "neg positive rad2deg reciprocal relu round rsqrt sgn sigmoid "
    "sign signbit sin sinc sinh sqrt square tan tanh trunc": (
        _numbers,
        _KERNEL,
    ),
    "all amax amin aminmax any argmax argmin argsort count_nonzero max mean median min msort nanmean "
    "nanmedian nansum norm prod ravel sort std sum var std_mean var_mean": (_numbers, _KERNEL),
    "clone diag diagonal fliplr flipud rot90 t trace tril triu adjoint": (_square, _VIEW),
    "ones_like zeros_like": (_numbers, _KERNEL),
    "gelu silu mish softplus relu6 elu selu celu leaky_relu hardtanh hardswish hardsigmoid tanhshrink softsign "
    "logsigmoid": (_numbers, _KERNEL),
}


def _named(name: str) -> Callable[..., Any]:
    function = getattr(torch, name, None) or getattr(functional, name)

    def run(operand: Any) -> Any:
        result = function(operand)
        return result[0] if isinstance(result, tuple) else result

    return run


def _csr(a: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):  # "in beta state"
        return a.to_sparse_csr()


def _coo(a: Any, count: int) -> Any:
    """A sparse tensor of the first numbers, all at the first place."""
    places = torch.zeros((1, count), dtype=torch.int64, device=a.device)
    return torch.sparse_coo_tensor(places, a[:count], (4,), check_invariants=False)


_more: list[tuple[str, Callable[..., Any], tuple[Operand, ...], int, str]] = [
    ("softmax", lambda a: a.softmax(-1), (_numbers,), 0, _KERNEL),
    ("log_softmax", lambda a: a.log_softmax(-1), (_numbers,), 0, _KERNEL),
    ("cumsum", lambda a: a.cumsum(0), (_numbers,), 0, _KERNEL),
    ("flip", lambda a: a.flip(0), (_numbers,), 0, _KERNEL),
    ("logcumsumexp", lambda a: a.logcumsumexp(0), (_numbers,), 0, _KERNEL),
    ("cumprod", lambda a: a.cumprod(0), (_numbers,), 0, _KERNEL),
    ("cummax", lambda a: a.cummax(0).values, (_numbers,), 0, _KERNEL),
    ("topk", lambda a: a.topk(2).values, (_numbers,), 0, _KERNEL),
    ("kthvalue", lambda a: a.kthvalue(2).values, (_numbers,), 0, _KERNEL),
    ("mode", lambda a: a.mode().values, (_numbers,), 0, _KERNEL),
    ("sort stable", lambda a: a.sort(stable=True).values, (_numbers,), 0, _KERNEL),
    ("argmax of a dimension", lambda a: a.argmax(-1), (_square,), 0, _KERNEL),
    ("quantile", lambda a: torch.quantile(a, 0.5), (_numbers,), 0, _KERNEL),
    ("nanmedian of a dimension", lambda a: a.nanmedian(0).values, (_numbers,), 0, _KERNEL),
    ("multinomial", lambda a: a.multinomial(1) * 0, (_numbers,), 0, _KERNEL),
    ("histc", lambda a: torch.histc(a, 4, 0, 3), (counts(GPU0, 4),), 0, _KERNEL),
    ("clamp", lambda a: a.clamp(0, 1), (_numbers,), 0, _KERNEL),
    ("where with numbers", lambda m: torch.where(m, 1.0, 0.0), (mask(GPU0, 4),), 0, _KERNEL),
    ("index_fill with a number", lambda a, i: a.index_fill(0, i, 0.0), (_numbers, index(GPU0, 2)), 0, _KERNEL),
    ("scatter a number", lambda a, i: a.scatter(0, i, 1.0), (_numbers, index(GPU0, 2)), 0, _KERNEL),
    ("index by indices", lambda a, i: a[i], (_numbers, index(GPU0, 2)), 0, _KERNEL),
    ("index by two", lambda a, i: a[i, i], (_square, index(GPU0, 2)), 0, _KERNEL),
    ("rms_norm", lambda a: functional.rms_norm(a, (2,)), (_square,), 0, _KERNEL),
    ("mse_loss", functional.mse_loss, (_square, _square), 0, _KERNEL),
    ("pad", lambda a: functional.pad(a, (1, 1)), (_numbers,), 0, _KERNEL),
    ("roll", lambda a: a.roll(1), (_numbers,), 0, _KERNEL),
    ("repeat", lambda a: a.repeat(2), (_numbers,), 0, _KERNEL),
    ("repeat_interleave by a number", lambda a: a.repeat_interleave(2), (_numbers,), 0, _KERNEL),
    ("one_hot of known classes", lambda i: functional.one_hot(i, 3), (index(GPU0, 2),), 0, _KERNEL),
    ("nonzero of known size", lambda a: torch.nonzero_static(a, size=2), (_numbers,), 0, _KERNEL),
    ("view", lambda a: a.view(2, 2), (_numbers,), 0, _VIEW),
    ("reshape", lambda a: a.reshape(2, 2), (_numbers,), 0, _VIEW),
    ("transpose", lambda a: a.transpose(0, 1), (_square,), 0, _VIEW),
    ("permute", lambda a: a.permute(1, 0), (_square,), 0, _VIEW),
    ("expand", lambda a: a.expand(2, 4), (_numbers,), 0, _VIEW),
    ("squeeze", lambda a: a.unsqueeze(0).squeeze(0), (_numbers,), 0, _VIEW),
    ("flatten", lambda a: a.flatten(), (_square,), 0, _VIEW),
    ("unbind", lambda a: a.unbind()[0], (_square,), 0, _VIEW),
    ("split", lambda a: a.split(2)[0], (_numbers,), 0, _VIEW),
    ("chunk", lambda a: a.chunk(2)[0], (_numbers,), 0, _VIEW),
    ("narrow", lambda a: a.narrow(0, 1, 2), (_numbers,), 0, _VIEW),
    ("slice", lambda a: a[1:3], (_numbers,), 0, _VIEW),
    ("select", lambda a: a[1], (_numbers,), 0, _VIEW),
    ("unfold", lambda a: a.unfold(0, 2, 1), (_numbers,), 0, _VIEW),
    ("meshgrid", lambda a: torch.meshgrid(a, a, indexing="ij")[0], (_numbers,), 0, _VIEW),
    ("tensor_split", lambda a: a.tensor_split(2)[0], (_numbers,), 0, _VIEW),
    ("tril_indices", lambda a: torch.tril_indices(2, 2, device=a.device), (_numbers,), 0, _KERNEL),
    ("randperm", lambda a: torch.randperm(4, device=a.device) * 0, (_numbers,), 0, _KERNEL),
    ("set by a slice", lambda a: a.__setitem__(slice(2), 0.0) or a, (_numbers,), 0, _KERNEL),
    ("set a number by a mask", lambda a, m: a.__setitem__(m, 0.0) or a, (_numbers, mask(GPU0, 4)), 0, _KERNEL),
    ("set by indices", lambda a, i: a.__setitem__(i, a[2:].clone()) or a, (_numbers, index(GPU0, 2)), 0, _KERNEL),
    ("copy_ of itself", lambda a: a.copy_(a.clone()), (_numbers,), 0, _KERNEL),
    ("to a dtype", lambda a: a.double(), (_numbers,), 0, _KERNEL),
    ("add a number", lambda a: a + 1, (_numbers,), 0, _KERNEL),
    ("compare", lambda a: a > 1, (_numbers,), 0, _KERNEL),
    ("shape", lambda a: a.new_zeros(a.shape), (_numbers,), 0, _KERNEL),
    ("interpolate", lambda a: functional.interpolate(a[None, None], scale_factor=2.0), (_numbers,), 0, _KERNEL),
    ("cholesky_ex", lambda a: torch.linalg.cholesky_ex(a @ a.T)[1] * 0, (_square,), 0, _KERNEL),
    ("bincount", torch.bincount, (index(GPU0, 4),), 1, _SIZE),
    ("nonzero", lambda a: a.nonzero(), (_numbers,), 1, _SIZE),
    ("nonzero as tuple", lambda a: a.nonzero(as_tuple=True)[0], (_numbers,), 1, _SIZE),
    ("where of a condition", lambda m: torch.where(m)[0], (mask(GPU0, 4),), 1, _SIZE),
    ("argwhere", torch.argwhere, (_numbers,), 1, _SIZE),
    ("masked_select", torch.masked_select, (_numbers, mask(GPU0, 4)), 1, _SIZE),
    ("index by a mask", lambda a, m: a[m], (_numbers, mask(GPU0, 4)), 1, _SIZE),
    ("index by a mask of rows", lambda a, m: a[m], (_square, mask(GPU0, 2)), 1, _SIZE),
    ("set a GPU scalar by a mask", lambda a, m: a.__setitem__(m, a.sum()) or a, (_numbers, mask(GPU0, 4)), 1, _SIZE),
    ("unique", torch.unique, (_numbers,), 1, _SIZE),
    ("unique with counts", lambda a: a.unique(return_counts=True)[1], (_numbers,), 1, _SIZE),
    ("unique_consecutive", torch.unique_consecutive, (_numbers,), 1, _SIZE),
    ("unique of rows", lambda a: a.unique(dim=0), (_square,), 1, _SIZE),
    ("repeat_interleave", torch.repeat_interleave, (floats(GPU0, 2), counts(GPU0, 2)), 1, _SIZE),
    (
        "segment_reduce by lengths",
        lambda a, b: torch.segment_reduce(a, "sum", lengths=b),
        (floats(GPU0, 3), counts(GPU0, 2)),
        1,
        "lengths are checked (SegmentReduce.cpp)",
    ),
    (
        "segment_reduce by lengths that are not checked",
        lambda a, b: torch.segment_reduce(a, "sum", lengths=b, unsafe=True),
        (floats(GPU0, 3), counts(GPU0, 2)),
        0,
        _KERNEL,
    ),
    ("one_hot", functional.one_hot, (index(GPU0, 2),), 1, _SIZE),
    ("isin many", torch.isin, (index(GPU0, 4), index(GPU0, 64)), 1, _SIZE),
    ("masked_fill with a GPU scalar", lambda a, m: a.masked_fill(m, a.sum()), (_numbers, mask(GPU0, 4)), 1, _VALUE),
    ("index_fill with a GPU scalar", lambda a, i: a.index_fill(0, i, a.sum()), (_numbers, index(GPU0, 2)), 1, _VALUE),
    ("slice by a GPU scalar", lambda a, i: a[: i + 1], (_numbers, index(GPU0)), 1, _VALUE),
    ("eigh", lambda a: torch.linalg.eigh(a @ a.T)[0], (_square,), 1, _CHECK),
    ("eigvalsh", lambda a: torch.linalg.eigvalsh(a @ a.T), (_square,), 1, _CHECK),
    ("svd", lambda a: torch.linalg.svd(a)[1], (_square,), 1, _CHECK),
    ("svdvals", torch.linalg.svdvals, (_square,), 1, _CHECK),
    ("eig", lambda a: torch.linalg.eig(a)[0].abs(), (_square,), 1, _CHECK),
    ("eigvals", lambda a: torch.linalg.eigvals(a).abs(), (_square,), 1, _CHECK),
    ("lstsq", lambda a: torch.linalg.lstsq(a, a[:, :1], driver="gels")[0], (_square,), 1, _CHECK),
    ("solve", lambda a: torch.linalg.solve(a, a[:, :1]), (_square,), 1, _CHECK),
    ("inv", lambda a: torch.linalg.inv(a + a), (_square,), 1, _CHECK),
    ("cholesky", lambda a: torch.linalg.cholesky(a @ a.T + 9 * a.new_ones(2).diag()), (_square,), 1, _CHECK),
    ("ldl_factor", lambda a: torch.linalg.ldl_factor(a @ a.T)[0], (_square,), 1, _CHECK),
    ("lu_factor", lambda a: torch.linalg.lu_factor(a)[0], (_square,), 1, _CHECK),
    ("lu", lambda a: torch.linalg.lu(a)[2], (_square,), 0, "errors stay on the device"),
    ("slogdet", lambda a: torch.linalg.slogdet(a)[1], (_square,), 0, "errors stay on the device"),
    ("pinv", torch.linalg.pinv, (_square,), 1, _CHECK),
    ("matrix_rank", torch.linalg.matrix_rank, (_square,), 1, _CHECK),
    ("cond", torch.linalg.cond, (_square,), 1, _CHECK),
    ("the nuclear norm", lambda a: torch.linalg.norm(a, "nuc"), (_square,), 1, _CHECK),
    ("cholesky_inverse", lambda a: torch.cholesky_inverse(a.tril() + a.new_ones(2).diag()), (_square,), 1, _CHECK),
    ("inv_ex", lambda a: torch.linalg.inv_ex(a)[0], (_square,), 0, "errors stay on the device"),
    ("inv_ex that checks", lambda a: torch.linalg.inv_ex(a + a, check_errors=True)[0], (_square,), 1, _CHECK),
    ("qr", lambda a: torch.linalg.qr(a)[1], (_square,), 0, "errors stay on the device"),
    ("det", torch.linalg.det, (_square,), 0, "errors stay on the device"),
    ("mode of a long row", lambda a: a.repeat(600).mode()[0], (_numbers,), 1, "thrust counts"),
    ("mode of a short row", lambda a: a.mode()[0], (_numbers,), 0, _KERNEL),
    ("mode of many rows", lambda a: a[:2].repeat(70_000, 1).mode()[0], (_numbers,), 1, "thrust counts"),
    ("mode of many single numbers", lambda a: a[:1].repeat(70_000, 1).mode()[0], (_numbers,), 0, _KERNEL),
    ("coalesce of one number", lambda a: _coo(a, 1).coalesce().to_dense(), (_numbers,), 0, "nothing to sort"),
    ("coalesce", lambda a: _coo(a, 2).coalesce().to_dense(), (_numbers,), 1, _SIZE),
    ("to_sparse", lambda a: a.to_sparse().to_dense(), (_square,), 1, _SIZE),
    ("to_sparse_csr", lambda a: _csr(a).to_dense(), (_square,), 1, _SIZE),
    ("matrix_exp", torch.linalg.matrix_exp, (_square,), 1, "matrices are sorted by their norms"),
    ("linspace to a GPU scalar", lambda a: torch.linspace(0, a.sum(), 3, device=a.device), (_numbers,), 1, _VALUE),
    ("full of a GPU scalar", lambda a: torch.full((2,), a.sum(), device=a.device), (_numbers,), 1, _VALUE),
    ("a list as index", lambda a: a[[0, 1]], (_numbers,), 1, "a copy from pageable memory"),
    (
        "torch.tensor of two",
        lambda a: torch.stack([torch.tensor([1.0], device=a.device), a[:1]]),
        (_numbers,),
        1,
        "a copy from pageable memory",
    ),
    (
        "add torch.tensor",
        lambda a: a + torch.tensor([1.0], device=a.device),
        (_numbers,),
        1,
        "a copy from pageable memory",
    ),
]
_HOST: list[tuple[str, Callable[..., Any], tuple[Operand, ...], int]] = [
    ("item", lambda a: a.sum().item(), (_numbers,), 1),
    ("bool", lambda a: bool(a.sum()), (_numbers,), 1),
    ("int", lambda a: int(a.sum()), (_numbers,), 1),
    ("float", lambda a: float(a.sum()), (_numbers,), 1),
    ("complex", lambda a: complex(a.sum()), (_numbers,), 1),
    ("if", lambda a: 1 if a.sum() else 0, (_numbers,), 1),
    ("not", lambda a: not a.sum(), (_numbers,), 1),
    ("and", lambda a: bool(a[0] and a[1]), (_numbers,), 2),
    ("range", lambda i: len(range(i)), (index(GPU0),), 1),
    ("index of a list", lambda i: [1, 2][i], (index(GPU0),), 1),
    ("tolist", lambda a: a.tolist(), (_numbers,), 1),
    ("equal", torch.equal, (_numbers, _numbers), 1),
    ("allclose", torch.allclose, (_numbers, _numbers), 1),
    ("is_nonzero", lambda a: torch.is_nonzero(a.sum()), (_numbers,), 1),
    ("in", lambda a: 0.5 in a, (_numbers,), 1),
    ("iterating over numbers", lambda a: [float(one) for one in a], (_numbers,), 4),
    ("format", lambda a: f"{a.sum():.1f}", (_numbers,), 1),
    ("numpy of a copy", lambda a: a.cpu().numpy().tolist(), (_numbers,), 1),
    ("max of builtins", lambda a: float(max(a[0], a[1])), (_numbers,), 2),
]

WAITING = [
    *(
        Case(f"waits: {name}", _named(name), (operand,), GPU0, 0, rule)
        for names, (operand, rule) in _FREE.items()
        for name in names.split()
    ),
    *(Case(f"waits: {name}", run, operands, GPU0, waits, rule) for name, run, operands, waits, rule in _more),
    *(Case(f"waits: {name}", run, operands, "host", waits, _VALUE) for name, run, operands, waits in _HOST),
]
