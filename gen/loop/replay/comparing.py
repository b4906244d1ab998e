"""Whether two runs of a step, or recordings of two steps, do the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gen.loop.replay.observing import Call, is_plain


def same_calls(first: tuple[object, Sequence[Call]], second: tuple[object, Sequence[Call]]) -> bool:
    """Whether two runs make the same calls on the same tensors and numbers, and return the same."""
    twins: dict[int, Tensor] = {}  # the second run's tensor for each one that the first has made, by its identity
    if len(first[1]) != len(second[1]):
        return False
    for one, two in zip(first[1], second[1], strict=True):
        same = one.func is two.func or one.func == two.func
        if not (same and _same(one.args, two.args, twins) and _same(one.kwargs, two.kwargs, twins)):
            return False
        if len(one.parts) != len(two.parts):
            return False
        twins.update(zip(map(id, one.parts), two.parts, strict=True))
    return _same(first[0], second[0], twins)


def _same(one: Any, two: Any, twins: dict[int, Tensor]) -> bool:
    """Whether two values are the same number, or the same view of the same memory, or were made by the same call."""
    if one is two:
        return id(one) not in twins or twins[id(one)] is two
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return twins[id(one)] is two if id(one) in twins else is_plain(one) and _where(one) == _where(two)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(_same(a, b, twins) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(value, two[key], twins) for key, value in one.items())
    if isinstance(one, slice):
        return _same((one.start, one.stop, one.step), (two.start, two.stop, two.step), twins)
    return _equal(one, two)


def begin_alike(one: object, two: object) -> bool:
    """Whether two values are the same, or tensors that begin at the same place, with equal strides and dtypes."""
    if isinstance(one, Tensor) and isinstance(two, Tensor) and is_plain(one) and is_plain(two):
        return (one.data_ptr(), one.stride(), one.dtype) == (two.data_ptr(), two.stride(), two.dtype)
    return one is two or (type(one) is type(two) and not isinstance(one, Tensor) and _equal(one, two))


def same_values(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have the same numbers, and NaN in the same places. Host sync: one."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return torch.equal(one, two) or bool(((one == two) | ((one != one) & (two != two))).all())


def _equal(one: Any, two: Any) -> bool:
    """Whether two values of one type are equal; False if comparing them does not give a single bool."""
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    found = one == two
    return isinstance(found, bool | np.bool_) and bool(found)


def _where(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
