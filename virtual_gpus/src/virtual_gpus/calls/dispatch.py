"""Runs a function or an operator that is given a virtual tensor: where, after which checks, and with which result.

Functions are torch's, as a program calls them, and may be compositions of operators. Each operator runs on the CPU,
after a check of all devices, and its results are on the GPU of its arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from virtual_gpus.calls.current_call import ENGINE, current_call, read_call
from virtual_gpus.cuda.generators import drawing_from, is_virtual_generator, refuse_generator
from virtual_gpus.machine import CPU, issued
from virtual_gpus.rules import autocast
from virtual_gpus.rules.op_rule import Kind, OpRule, rule_of
from virtual_gpus.rules.same_device import check_other_gpus, check_strangers
from virtual_gpus.streams import accesses, races
from virtual_gpus.syncs.reports import report_sync
from virtual_gpus.tensors.foreign_tensors import has_foreign
from virtual_gpus.tensors.plain_tensors import directly, on_the_cpu
from virtual_gpus.tensors.virtual_tensor import VirtualTensor, adopt, handlers, mark, pinned

Special = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
SPECIAL: dict[object, Special] = {}  # replacements for some functions of torch, see `function_overrides`
Kernel = Callable[[OpRule, Sequence[Any], Mapping[str, Any]], Any]
BY_NAME: dict[str, Kernel] = {}  # replacements for some operators, see `operator_overrides`
BY_KIND: dict[Kind, Kernel] = {}


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given a virtual tensor."""
    special = SPECIAL.get(func)
    return call_plainly(func, args, kwargs) if special is None else special(func, args, kwargs)


def call_plainly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given a virtual tensor and needs nothing special."""
    outer = current_call.given
    home, scalars = current_call.given = read_call(func, args, kwargs)
    try:
        with directly():
            if torch.is_autocast_enabled("cuda"):
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
            return func.decompose(*args, **kwargs)
        return BY_KIND[rule.kind](rule, args, kwargs)
    special = BY_NAME.get(rule.name)
    return run_kernel(rule, args, kwargs) if special is None else special(rule, args, kwargs)


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
            accesses.run_by_host(rule, args, kwargs)
        with directly(), on_the_cpu():
            out = rule.run(*args, **kwargs)
            return _mark_pinned(out) if rule.view else out
    if strangers:
        check_strangers(rule, args, kwargs, home)
    if rule.check is not None:
        rule.check(rule.named(args, kwargs))
    waits = rule.sync is not None and rule.sync(rule.named(args, kwargs))
    if waits:
        report_sync(rule.shown)
    if races.state.on and not rule.view and current_call.home != ENGINE:
        accesses.run_by_gpu(rule, args, kwargs, home, waits)
    if rule.launches:
        issued[home] += 1
    if rule.seeded:
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
        refuse_generator("cuda", generator.device.type)
    if generator is not None:
        with directly(), on_the_cpu():
            return _changed(rule.run(*args, **kwargs), home, args, kwargs)
    with directly(), on_the_cpu(), drawing_from(home, rule.generator) as own:
        return _changed(rule.run(*args, **{**kwargs, **own}), home, args, kwargs)


handlers.function, handlers.operator = call, execute
