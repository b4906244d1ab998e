"""A tensor that computes on the CPU and says that it is on a virtual GPU.

It holds its values itself, as an ordinary CPU tensor does: views, in-place operations, `out=` and autograd are torch's
own. What is added is a place, which every result inherits, and a check of all places before each operation.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MethodWrapperType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter
from torch.overrides import handle_torch_function

from gen.testing.call_sites import CallSite, call_site
from gen.testing.calls.current_call import ENGINE, current_call, read_call
from gen.testing.cuda import memory
from gen.testing.cuda.generators import drawing_from, is_virtual_generator, refuse_generator
from gen.testing.machine import CPU, DEVICES, issued
from gen.testing.rules import autocast
from gen.testing.rules.op_rule import Kind, OpRule, rule_of
from gen.testing.rules.same_device import check_other_gpus, check_strangers, place_of
from gen.testing.streams import accesses, races
from gen.testing.syncs.reports import report_sync
from gen.testing.syncs.waiting_copies import report_transfer
from gen.testing.tensors.foreign_tensors import has_foreign
from gen.testing.tensors.functorch_wrappers import inside, wrapped
from gen.testing.tensors.host_access import HostAccess
from gen.testing.tensors.plain_tensors import directly, on_the_cpu, plain

_make_subclass = Tensor._make_subclass

Special = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
SPECIAL: dict[object, Special] = {}  # what to do instead for some functions of torch, see `function_overrides`
Kernel = Callable[[OpRule, Sequence[Any], Mapping[str, Any]], Any]
BY_NAME: dict[str, Kernel] = {}  # and for some operators, see `operator_overrides`
BY_KIND: dict[Kind, Kernel] = {}


class VirtualTensor(HostAccess):
    """A tensor on a virtual GPU. Made by `on_gpu`; calling the class makes a parameter, as accelerate does."""

    in_host_memory = True  # its values are an ordinary CPU tensor's, see `foreign_tensors`
    _gpu: int
    _made_at: CallSite | None

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Any:
        return Parameter(data, bool(requires_grad))

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if type(func) is MethodWrapperType:  # an attribute
            with directly():
                return func(*args, **(kwargs or {}))
        return call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return execute(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICES[self._gpu]

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return self._gpu

    def is_pinned(self, device: object = None) -> bool:
        return False

    def record_stream(self, stream: Any) -> None:
        """Nothing is freed too early here, but told to those who check."""
        history = races.history_of(self) if races.state.on else None
        if history is not None:
            history.recorded.add(stream.key)


class PinnedTensor(Tensor):
    """A CPU tensor in memory that counts as pinned; so are its views."""

    in_host_memory = True

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return execute(func, args, kwargs or {})

    def is_pinned(self, device: object = None) -> bool:
        return True

    def pin_memory(self, device: object = None) -> Tensor:
        return self

    def numpy(self, *, force: bool = False) -> Any:
        accesses.read_by_host(self)
        return plain(self).numpy(force=force)

    def tolist(self) -> Any:
        accesses.read_by_host(self)
        return plain(self).tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(plain(self))


def on_gpu(tensor: Tensor, gpu: int) -> Tensor:
    """An ordinary CPU tensor as a leaf tensor on a virtual GPU; they share memory. Fake tensors stay what they are."""
    if type(tensor) is not Tensor:
        return tensor
    if torch._C._is_torch_function_mode_enabled():
        seen: Tensor = handle_torch_function(on_gpu, (), tensor, gpu)
        return seen
    if wrapped(tensor):  # made within torch.func, a constant there
        with torch._C._DisableFuncTorch():
            return on_gpu(inside(tensor), gpu)
    memory.count(tensor, gpu)
    return _placed(_make_subclass(VirtualTensor, tensor, tensor.requires_grad), gpu)


def _placed(tensor: Any, gpu: int) -> VirtualTensor:
    """A new tensor with its place, and where it was made."""
    tensor._gpu = gpu
    tensor._made_at = call_site()
    made: VirtualTensor = tensor
    return made


def pinned(tensor: Tensor) -> PinnedTensor:
    """An ordinary CPU tensor as one in pinned memory; they share memory."""
    made: PinnedTensor = _make_subclass(PinnedTensor, tensor)
    return made


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given a virtual tensor."""
    special = SPECIAL.get(func)
    return call_plainly(func, args, kwargs) if special is None else special(func, args, kwargs)


def call_plainly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given a virtual tensor and needs nothing special."""
    outer = current_call.home, current_call.scalars
    home, scalars = current_call.home, current_call.scalars = read_call(func, args, kwargs)
    try:
        with directly():
            if torch.is_autocast_enabled("cuda"):
                with autocast.casting():
                    out = func(*args, **kwargs)
            else:
                out = func(*args, **kwargs)
    finally:
        current_call.home, current_call.scalars = outer
    return out if type(out) is VirtualTensor or home == CPU or scalars else adopt(out, home)


def adopt(out: Any, home: int) -> Any:
    """Put ordinary tensors that torch made itself on a GPU; they share memory."""
    if type(out) is Tensor:
        if wrapped(out):
            return out
        memory.count(out, home)
        return _placed(out.as_subclass(VirtualTensor), home)
    if type(out) is tuple or type(out) is list:
        return type(out)(adopt(item, home) for item in out)
    return out


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
        if rule.kind is Kind.COPY:
            return NotImplemented if has_foreign(args, kwargs) else _copy_(rule, *args, **kwargs)
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
        with on_the_cpu():
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
    with on_the_cpu():
        out = rule.run(*args, **kwargs)
        if rule.host_results:
            return tuple(item if index in rule.host_results else _mark(item, home) for index, item in enumerate(out))
        return _changed(out, home, args, kwargs) if rule.written else _mark(out, home)


def _changed(out: Any, home: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Put an operator's new tensors on a GPU, but leave what it changed in place as it is."""
    if isinstance(out, tuple):
        return tuple(_changed(item, home, args, kwargs) for item in out)
    return out if any(out is given for given in (*args, *kwargs.values())) else _mark(out, home)


def _mark(out: Any, home: int) -> Any:
    """Put an operator's new tensors on a GPU."""
    kind = type(out)
    if kind is Tensor:
        memory.count(out, home)
        return _placed(_make_subclass(VirtualTensor, out), home)
    if kind is tuple or kind is list:
        return kind(_mark(item, home) for item in out)
    return out


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
        with on_the_cpu():
            return _changed(rule.run(*args, **kwargs), home, args, kwargs)
    with on_the_cpu(), drawing_from(home, rule.generator) as own:
        return _changed(rule.run(*args, **{**kwargs, **own}), home, args, kwargs)


def _copy_(rule: OpRule, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    home = current_call.home
    if home == ENGINE:  # a gradient's
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
