"""Which operators make the host wait on CUDA: those that must know a value before they can go on.

Source: the CUDA kernels in aten/src/ATen/native, and the list in github.com/pytorch/pytorch/issues/108968.
`multinomial` does not wait: it checks its probabilities on the device, with `_assert_async`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from virtual_gpus.plain_tensors import directly

Arguments = dict[str, Any]


def sync_test(name: str) -> Callable[[Arguments], bool] | None:
    """A function that tells from a call's arguments, by name, whether the host waits; None if it never does.

    Args:
        name: an aten operator, such as "masked_fill.Tensor".
    """
    return _TESTS.get(name.removesuffix(".out"))


def on_gpu(value: object) -> bool:
    """Whether a value is a tensor on a virtual GPU."""
    return getattr(value, "_gpu", None) is not None


def _always(arguments: Arguments) -> bool:
    return True


def _size_unknown(arguments: Arguments) -> bool:
    """repeat_interleave: the size of the result is the sum of the repeats, unless it is given."""
    return arguments.get("output_size") is None


def _classes_unknown(arguments: Arguments) -> bool:
    return bool(arguments.get("num_classes", -1) == -1)


def _value_on_gpu(arguments: Arguments) -> bool:
    """masked_fill and index_fill read a value tensor with item()."""
    return on_gpu(arguments["value"])


def _value_on_other_gpu(arguments: Arguments) -> bool:
    """fill_ copies a value of its own device, and reads one of another GPU with item()."""
    value = arguments["value"]
    return on_gpu(value) and bool(value.device != arguments["self"].device)


def _sorts(arguments: Arguments) -> bool:
    """isin compares directly with few elements, and with unique() for many."""
    few = 10.0 * arguments["elements"].numel() ** 0.145
    return not arguments.get("assume_unique", False) and bool(arguments["test_elements"].numel() >= few)


def _masks(arguments: Arguments) -> bool:
    """Indexing with a mask counts its ones. CPU indices are copied, which is reported elsewhere."""
    masks = [index for index in arguments["indices"] if _is_mask(index) and on_gpu(index)]
    return bool(masks) and not fills(arguments)


def fills(arguments: Arguments) -> bool:
    """x[mask] = number is a masked_fill: one mask, no other index, one value that is known on the host."""
    values = arguments.get("values")
    if not isinstance(values, Tensor) or on_gpu(values) or values.numel() != 1 or arguments.get("accumulate", False):
        return False
    indices = [index for index in arguments["indices"] if index is not None]
    return len(indices) == 1 and _is_mask(indices[0]) and on_gpu(indices[0])


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _bounds_unknown(arguments: Arguments) -> bool:
    return bool(arguments.get("min", 0) == arguments.get("max", 0))


def _checks_errors(arguments: Arguments) -> bool:
    """The `_ex` functions leave errors on the device, unless they must raise."""
    return bool(arguments.get("check_errors", False))


def _many_values(arguments: Arguments) -> bool:
    """mode uses one kernel for up to 65535 rows of up to 2048 values; it sorts and counts others with thrust, which
    waits. Source: cuda/TensorModeKernel.cpp."""
    values = arguments["self"]
    length = values.shape[arguments.get("dim", -1)] if values.dim() else 1
    return bool(length > 2048 or (length > 1 and values.numel() // length > 65535))


def _many_numbers(arguments: Arguments) -> bool:
    """coalesce sorts by index, and counts, unless there is nothing to sort."""
    return bool(arguments["self"]._nnz() > 1)


def _dense(arguments: Arguments) -> bool:
    """The numbers other than zero are counted in dense tensors; sparse ones know the count."""
    return bool(arguments["self"].layout is torch.strided)


def _not_in_blocks(arguments: Arguments) -> bool:
    """Rows and columns become blocks on the CPU. Source: TensorConversions.cpp (sparse_compressed_to_sparse_bsr)."""
    return arguments["self"].layout not in (torch.sparse_bsr, torch.sparse_bsc)


def _in_sparse_part(arguments: Arguments) -> bool:
    """A part of a sparse tensor is found by a search for its indices, unless the dimension is dense."""
    tensor = arguments["self"]
    return bool(tensor.layout is torch.sparse_coo and arguments["dim"] % tensor.dim() < tensor.sparse_dim())


def _both_compressed(arguments: Arguments) -> bool:
    """cuSPARSE tells the host how many numbers the sum, or product, of two compressed tensors has."""
    with directly():
        layouts = [value.layout for value in arguments.values() if isinstance(value, Tensor)]
    return sum(layout in (torch.sparse_csr, torch.sparse_csc) for layout in layouts) > 1


_TESTS: dict[str, Callable[[Arguments], bool]] = {
    **dict.fromkeys(("_local_scalar_dense", "equal", "allclose", "_linalg_check_errors"), _always),  # a value
    **dict.fromkeys(("nonzero", "masked_select", "bincount", "embedding_renorm_"), _always),  # a size
    **dict.fromkeys(("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"), _always),
    # these check for errors within, as _linalg_check_errors does
    **dict.fromkeys(("_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_eigvals"), _always),
    **dict.fromkeys(("linalg_lstsq", "linalg_pinv.atol_rtol_tensor", "cholesky", "cholesky_inverse"), _always),
    **dict.fromkeys(("linalg_inv_ex", "linalg_cholesky_ex", "linalg_ldl_factor_ex"), _checks_errors),
    **dict.fromkeys(("linalg_lu_factor_ex", "_linalg_solve_ex"), _checks_errors),
    "linalg_matrix_exp": _always,  # sorts the matrices by their norms on the host
    "mode": _many_values,
    **dict.fromkeys(("_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc"), _dense),
    **dict.fromkeys(("_to_sparse_bsr", "_to_sparse_bsc"), _not_in_blocks),
    "_coalesce": _many_numbers,
    "select.int": _in_sparse_part,
    "index_select": _in_sparse_part,
    "narrow_copy": _in_sparse_part,
    **dict.fromkeys(("_sparse_softmax", "_sparse_log_softmax"), _always),  # thrust gathers their rows
    "_sparse_sparse_matmul": _always,
    "bmm": lambda arguments: arguments["self"].layout is torch.sparse_coo,  # thrust finds where each matrix ends
    "segment_reduce": lambda arguments: arguments.get("lengths") is not None and not arguments.get("unsafe", False),
    **dict.fromkeys(("add.Tensor", "mm", "addmm", "_sparse_addmm"), _both_compressed),
    "normal.Tensor_Tensor": _always,
    "normal.float_Tensor": _always,
    "histc": _bounds_unknown,
    "repeat_interleave.Tensor": _size_unknown,
    "one_hot": _classes_unknown,
    "isin.Tensor_Tensor": _sorts,
    "masked_fill.Tensor": _value_on_gpu,
    "masked_fill_.Tensor": _value_on_gpu,
    "index_fill.int_Tensor": _value_on_gpu,
    "index_fill_.int_Tensor": _value_on_gpu,
    **dict.fromkeys(("fill.Tensor", "fill_.Tensor"), _value_on_other_gpu),
    "index.Tensor": _masks,
    "index_put": _masks,
    "index_put_": _masks,
    "_index_put_impl_": _masks,
}
