"""Runs a function or an operator that is given a virtual tensor: where, after which checks, and with which result.

Functions are torch's, as a program calls them, and may be compositions of operators. Each operator runs on the CPU,
after a check of all devices; its results are on its arguments' GPU. Some move single numbers, or have Python kernels.
Sources: aten/src/ATen/native/TensorAdvancedIndexing.cpp (_index_put_impl_), TensorCompare.cpp (where_self_out),
TensorShape.cpp (slice_scatter and the like), ForeachUtils.h (can_use_fast_route).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from virtual_gpus import faults
from virtual_gpus.call_sites import ENGINE, current_call, read_call
from virtual_gpus.calls import operators
from virtual_gpus.cuda import races
from virtual_gpus.cuda.generators import drawing_from, is_virtual_generator, refuse_generator
from virtual_gpus.cuda.races import report_transfer
from virtual_gpus.machine import CPU, device_type, issued
from virtual_gpus.plain_tensors import directly, has_foreign, on_the_cpu, plain
from virtual_gpus.rules import autocast
from virtual_gpus.rules.op_rule import Kind, OpRule, rule_of
from virtual_gpus.rules.same_device import check_other_gpus, check_strangers, place_of
from virtual_gpus.rules.waiting_operators import fills
from virtual_gpus.syncs import report_sync
from virtual_gpus.virtual_tensor import VirtualTensor, adopt, handlers, mark, on_gpu, pinned

Special = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
SPECIAL: dict[object, Special] = {}  # replacements for some functions of torch, see `function_overrides`
Kernel = Callable[[OpRule, Sequence[Any], Mapping[str, Any]], Any]
BY_NAME: dict[str, Kernel] = {}  # replacements for some operators, see the end of this file
BY_KIND: dict[Kind, Kernel] = {}
_KEYS = torch._C.DispatchKey


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given a virtual tensor."""
    return SPECIAL.get(func, call_plainly)(func, args, kwargs)


def call_plainly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given a virtual tensor and needs nothing special."""
    outer = current_call.given
    home, scalars = current_call.given = read_call(func, args, kwargs)
    try:
        with directly():
            if torch.is_autocast_enabled(device_type()):
                with autocast.casting():
                    out = func(*args, **kwargs)
            else:
                out = func(*args, **kwargs)
    finally:
        current_call.given = outer
    return out if type(out) is VirtualTensor or home == CPU or scalars else adopt(out, home)


def execute(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator on tensors of which at least one is virtual or pinned.

    Raises:
        DeviceMismatchError: CUDA would refuse the mix of devices.
        HostSyncError: the host would wait, and a listener does not allow it.
    """
    rule = rule_of(func)
    if rule.kind is not Kind.KERNEL:
        if rule.kind is Kind.COMPOSITE:
            seen = torch._C._SetExcludeDispatchKeyGuard
            with seen(_KEYS.Conjugate, False), seen(_KEYS.Negative, False):  # of what the composition itself conjugates
                return func._op_dk(_KEYS.CompositeImplicitAutograd, *args, **kwargs)  # torch's Python formulas differ
        return BY_KIND[rule.kind](rule, args, kwargs)
    return BY_NAME.get(rule.name, run_kernel)(rule, args, kwargs)


def run_kernel(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator that computes on one device."""
    home = CPU
    strangers = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is VirtualTensor:
            items: Sequence[Any] = (value,)
        elif kind is list or kind is tuple:
            items = value
        elif isinstance(value, Tensor):
            strangers = True
            continue
        else:
            continue
        for item in items:
            if type(item) is VirtualTensor:
                if home == CPU:
                    home = item._gpu
                elif item._gpu != home:
                    check_other_gpus(rule, args, kwargs, home)
            elif isinstance(item, Tensor):
                strangers = True
    if strangers and has_foreign(args, kwargs):
        return NotImplemented
    if home == CPU:
        if races.state.on and not rule.view:
            races.run_by_host(rule, args, kwargs)
        with directly(), on_the_cpu():
            out = rule.run(*args, **kwargs)
            return _mark_pinned(out) if rule.view else out
    if strangers:
        check_strangers(rule, args, kwargs, home)
    if rule.check is not None:
        rule.check(rule.named(args, kwargs))
    if waits := rule.sync is not None and rule.sync(rule.named(args, kwargs)):
        report_sync(rule.shown)
    if races.state.on and not rule.view and current_call.home != ENGINE:
        races.run_by_gpu(rule, args, kwargs, home, waits)
    if rule.launches:
        issued[home] += 1
    if rule.seeded and rule.named(args, kwargs).get("dropout_p", "attention" not in rule.name):
        return _drawn(rule, args, kwargs, home)
    with directly(), on_the_cpu():
        out = rule.run(*args, **kwargs)
        if rule.host_results:
            return tuple(item if index in rule.host_results else mark(item, home) for index, item in enumerate(out))
        return _changed(out, home, args, kwargs) if rule.written else mark(out, home)


def _changed(out: Any, home: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Put an operator's new tensors on a GPU, but leave what it changed in place as it is."""
    if isinstance(out, tuple):
        return tuple(_changed(item, home, args, kwargs) for item in out)
    return out if any(out is given for given in (*args, *kwargs.values())) else mark(out, home)


def _mark_pinned(out: Any) -> Any:
    if type(out) is Tensor:
        return pinned(out)
    return type(out)(map(_mark_pinned, out)) if isinstance(out, tuple | list) else out


def _drawn(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any], home: int) -> Any:
    """Run an operator that draws random numbers, from the given generator or from the GPU's own."""
    generator = kwargs.get("generator")
    if generator is not None and not is_virtual_generator(generator):
        refuse_generator(device_type(), generator.device.type)
    if generator is not None:
        with directly(), on_the_cpu():
            return _changed(rule.run(*args, **kwargs), home, args, kwargs)
    with directly(), on_the_cpu(), drawing_from(home, rule.generator) as own:
        return _changed(rule.run(*args, **{**kwargs, **own}), home, args, kwargs)


_MAKING = (
    "_to_copy", "empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
    "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
)  # fmt: skip


def _moved(tensor: Tensor, place: int) -> Tensor:
    """A tensor on another device, of the same memory, since it is only read there."""
    report_transfer(tensor, place, False, False)
    return plain(tensor) if place == CPU else on_gpu(plain(tensor), place)


def _with_value_moved(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """index_put: indices and a number on another GPU are moved to the device of the target tensor, masks there as what
    they name; numbers on the CPU are checked later. A mask takes a CPU tensor of one number, of any shape."""
    named = rule.named(args, kwargs)
    target, value = place_of(named["self"]), named["values"]
    named["indices"] = [part for index in named["indices"] for part in _index_moved(index, target)]
    if value.dim() and fills(named) and place_of(value) == CPU != target:
        named["values"] = value = value.reshape(())
    if value.dim() == 0 and place_of(value) not in (CPU, target):
        named["values"] = _moved(value, target)
    return run_kernel(rule, (), named)


def _index_moved(index: Tensor | None, target: int) -> Sequence[Tensor | None]:
    if index is None or place_of(index) in (CPU, target):
        return (index,)
    parts = index.nonzero().unbind(1) if index.dtype in (torch.bool, torch.uint8) else (index,)
    return [_moved(part, target) for part in parts]


def _from_numbers(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """linspace and logspace: the host reads the bounds, and the result is on the device that is named, or the CPU."""
    numbers = [value.item() if isinstance(value, Tensor) else value for value in args]
    return getattr(torch.ops.aten, rule.name.partition(".")[0])(*numbers, **kwargs)


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
    return run_kernel(rule, (), named)


def _perhaps_elsewhere(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator that makes tensors, maybe on neither a GPU nor the CPU: torch's formulas use "meta" for shapes."""
    device = kwargs.get("device")
    if device is None or device.type in ("cpu", device_type()):
        return run_kernel(rule, args, kwargs)
    return _on_shapes(rule, args, kwargs)


def _with_chances_copied(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """bernoulli copies its probabilities to the device. Source: cuda/DistributionTemplates.h (bernoulli_kernel)."""
    named = rule.named(args, kwargs)
    home = place_of(named["self"])
    if CPU != home != place_of(named["p"]):
        named["p"] = _moved(named["p"], home)
    return run_kernel(rule, (), named)


def _on_shapes(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator on shapes alone, of tensors on any devices."""
    with directly(), on_the_cpu():
        return rule.run(*args, **kwargs)


def _foreach(rule: OpRule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    operators.check_scalars(rule, args, kwargs)
    if operators.in_one_piece(rule, args, kwargs):
        try:
            return run_kernel(rule, args, kwargs)
        except NotImplementedError:  # the plain operator may have a stand-in on the CPU
            if rule.written:
                raise
    return operators.one_by_one(rule, args, kwargs)


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
        report_transfer(source, place, non_blocking, races.pinned(source, target))
        if races.state.on:
            races.copied(source, target, non_blocking)
    with on_the_cpu():
        before = target.clone() if faults.active else None
        rule.run(target, source, non_blocking)
        if before is not None:
            faults.arrive(plain(target), place_of(source), place, before)
    return target


BY_KIND.update({Kind.COPY: _copy_, Kind.FOREACH: _foreach, Kind.PYTHON: operators.run_in_python})
BY_NAME.update(dict.fromkeys(["index_put", "index_put_", "_index_put_impl_"], _with_value_moved))
BY_NAME.update(dict.fromkeys(["where.self"], _with_numbers_moved))
_BOUNDS = [f"{bounds}{out}" for bounds in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor") for out in ("", "_out")]
BY_NAME.update({f"{name}.{bounds}": _from_numbers for name in ("linspace", "logspace") for bounds in _BOUNDS})
BY_NAME.update(dict.fromkeys(["is_same_size", "_has_same_storage_numel", "resize_as_"], _on_shapes))
BY_NAME.update(dict.fromkeys(["bernoulli.Tensor", "bernoulli_.Tensor"], _with_chances_copied))
BY_NAME.update(dict.fromkeys(_MAKING, _perhaps_elsewhere))
BY_NAME.update(
    dict.fromkeys(["slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"], _with_source_copied)
)
handlers.function, handlers.operator = call, execute
