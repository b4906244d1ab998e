"""Operators that need more than a run on the CPU: they move single numbers, take lists, or have Python kernels.

Sources: aten/src/ATen/native/TensorAdvancedIndexing.cpp (_index_put_impl_), TensorCompare.cpp (where_self_out),
TensorShape.cpp (slice_scatter and the like), ForeachUtils.h (can_use_fast_route).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from virtual_gpus.calls import custom_ops, foreach
from virtual_gpus.calls.current_call import ENGINE, current_call
from virtual_gpus.calls.dispatch import BY_KIND, BY_NAME, run_kernel
from virtual_gpus.machine import CPU
from virtual_gpus.rules.op_rule import Kind, OpRule
from virtual_gpus.rules.same_device import place_of
from virtual_gpus.streams import accesses, races
from virtual_gpus.syncs.waiting_copies import report_transfer
from virtual_gpus.tensors.foreign_tensors import has_foreign
from virtual_gpus.tensors.plain_tensors import directly, on_the_cpu, plain
from virtual_gpus.tensors.virtual_tensor import on_gpu

_MAKING = (
    "_to_copy", "empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
    "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
)  # fmt: skip


def _moved(tensor: Tensor, place: int) -> Tensor:
    """A tensor on another device, of the same memory, since it is only read there."""
    report_transfer(tensor, place, False, False)
    return plain(tensor) if place == CPU else on_gpu(plain(tensor), place)


def _with_value_moved(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """index_put: a number on another GPU is moved to the device of the target tensor; numbers on the CPU are checked
    later."""
    named = rule.named(args, kwargs)
    target, value = place_of(named["self"]), named["values"]
    if value.dim() == 0 and place_of(value) not in (CPU, target):
        named["values"] = _moved(value, target)
        if target == CPU and all(place_of(index) == CPU for index in named["indices"] if index is not None):
            with on_the_cpu():
                return rule.run(**named)
    return run_kernel(rule, (), named)


def _with_numbers_moved(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """where: single numbers on other GPUs are moved to the first GPU among the operands."""
    named = rule.named(args, kwargs)
    operands = ("condition", "self", "other")
    home = next(place for place in (place_of(named[name]) for name in operands) if place != CPU)
    for name in operands:
        if named[name].dim() == 0 and place_of(named[name]) not in (CPU, home):
            named[name] = _moved(named[name], home)
    return run_kernel(rule, (), named)


def _with_source_copied(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """slice_scatter and the like copy `src`, from any device, into a copy of `self`."""
    named = rule.named(args, kwargs)
    home = place_of(named["self"])
    if place_of(named["src"]) != home:
        named["src"] = _moved(named["src"], home)
    if home == CPU:
        with on_the_cpu():
            return rule.run(**named)
    return run_kernel(rule, (), named)


def _perhaps_elsewhere(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator that makes tensors, maybe on neither a GPU nor the CPU: torch's formulas use "meta" for shapes."""
    device = kwargs.get("device")
    if device is None or device.type in ("cpu", "cuda"):
        return run_kernel(rule, args, kwargs)
    with directly(), on_the_cpu():
        return rule.run(*args, **kwargs)


def _on_shapes(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator that compares shapes, of tensors on any devices."""
    with directly(), on_the_cpu():
        return rule.run(*args, **kwargs)


def _foreach(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    foreach.check_scalars(rule, args, kwargs)
    if foreach.in_one_piece(rule, args, kwargs):
        try:
            return run_kernel(rule, args, kwargs)
        except NotImplementedError:  # the plain operator may have a stand-in on the CPU
            if rule.written:
                raise
    return foreach.one_by_one(rule, args, kwargs)


def _copy_(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`Tensor.copy_`, between any two devices."""
    if has_foreign(args, kwargs):
        return NotImplemented
    named = {"non_blocking": False, **rule.named(args, kwargs)}
    target, source, non_blocking = named["self"], named["src"], named["non_blocking"]
    home = current_call.home
    if home == ENGINE:  # within a backward pass
        with on_the_cpu():
            rule.run(target, source, non_blocking)
        return target
    place = home if current_call.owns(target, home) else place_of(target)
    if not current_call.owns(source, home):
        report_transfer(source, place, non_blocking, target.is_pinned())
        if races.state.on:
            accesses.copied(source, target, non_blocking)
    with on_the_cpu():
        rule.run(target, source, non_blocking)
    return target


BY_KIND.update({Kind.COPY: _copy_, Kind.FOREACH: _foreach, Kind.PYTHON: custom_ops.run_in_python})
BY_NAME.update(dict.fromkeys(["index_put", "index_put_", "_index_put_impl_"], _with_value_moved))
BY_NAME.update(dict.fromkeys(["where.self"], _with_numbers_moved))
BY_NAME.update(dict.fromkeys(["is_same_size", "_has_same_storage_numel"], _on_shapes))
BY_NAME.update(dict.fromkeys(_MAKING, _perhaps_elsewhere))
BY_NAME.update(
    dict.fromkeys(["slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"], _with_source_copied)
)
