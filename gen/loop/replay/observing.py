"""Sees which torch calls a step makes, and refuses steps that cannot be repeated without running their Python code."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from gen.loop.replay.host_calls import host_call, on_host_call
from gen.runtime.one_call import is_one_call

__tracebackhide__ = True  # reports that name lines skip this file, which passes every operation on
T = TypeVar("T")

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}  # they are tagged only because of bool masks
_QUESTIONS = {torch.Size, torch.dtype, torch.device, torch.layout, bool, int, float, str}  # results that are no tensor
_TENSORS = {Tensor, torch.nn.Parameter}
_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device}
_READING = {"tolist", "numpy", "__array__", "item", "__bool__", "__int__", "__float__", "__index__", "__contains__"}
_READING |= {"__dlpack__", "storage", "_typed_storage"}  # others may also write to what these give
_ADDRESSES = {"data_ptr", "const_data_ptr", "untyped_storage"}
_ARRAY = vars(Tensor)["__cuda_array_interface__"].__get__
# packages that may ask for addresses: Triton launches its kernels with them, which a graph captures; the others look at
# alignments and overlaps
_MAY_ASK = {"gen", "torch", "transformers", "triton", "virtual_gpus"}


class CannotReplay(Exception):
    """A step does something else from call to call, or reads on the host, so it cannot be replayed."""


class Seen(NamedTuple):
    """A torch call and its result."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: Any


class Call(NamedTuple):
    """A torch call that made or changed a tensor, or made a view of one.

    Attributes:
        given, parts: the tensors among its arguments, and in its result.
        writes: whether it changes its arguments.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: Any
    given: list[Tensor]
    parts: list[Tensor]
    writes: bool

    @property
    def views(self) -> bool:
        """Whether it only makes views of its arguments' memory."""
        if self.writes or not self.given or not all(map(is_plain, (*self.given, *self.parts))):
            return False
        memory = {storage_of(tensor) for tensor in self.given}
        return all(storage_of(part) in memory for part in self.parts)


def observe(step: Callable[[], T]) -> tuple[T, list[Seen]]:
    """Run a step, for real; return its result and its torch calls. It takes about three times as long as the step.

    Raises:
        CannotReplay: as `gen.loop.replay.recording.record`.
    """
    dispatched = _Dispatched()
    seeing = _Functions(dispatched)

    def handle(function: Callable[..., object], args: Sequence[object], results: Sequence[Tensor]) -> None:
        seeing.paused = dispatched.paused = True
        try:
            before(function, args, results)
        finally:
            seeing.paused = dispatched.paused = False
        seeing.calls.append(Seen(host_call, (function, *args), {"results": results}, None))

    with on_host_call(handle) as before, seeing, dispatched:
        result = step()
    return result, seeing.calls


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that read on the host, and operations that no torch function has called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inside = 0  # how many torch functions are under way
        self.paused = False  # whether a function runs that is no part of the recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and telling dynamo so costs as much as an operation

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return op(*args, **(kwargs or {}))
        doubt = _doubt(op)
        if doubt is not None and (reason := doubt(op._schema.name, args, kwargs or {})):
            raise CannotReplay(f"{reason}: {op._schema.name}")
        if not self.inside:
            raise CannotReplay(f"{op._schema.name} is called where torch functions do not show it")
        return op(*args, **(kwargs or {}))


@cache
def _doubt(op: Any) -> Callable[[str, Any, Any], str] | None:
    """A function that says why a call of an operator is refused, or ""; None if all its calls may be recorded."""
    name = op._schema.name
    if name in _INDEXING:
        return _selects
    if torch.Tag.nondeterministic_seeded in op.tags:
        return _draws
    if name in ("aten::copy_", "aten::_to_copy"):
        return _crosses
    if _DEPENDS_ON_DATA & set(op.tags) or name in ("aten::equal", "aten::is_nonzero"):
        return lambda *call: "it reads on the host what it has computed"
    return None


def _selects(name: str, args: Any, kwargs: Any) -> str:
    by_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return "it selects by a mask of bool, a shape that depends on data" if by_mask else ""


def _draws(name: str, args: Any, kwargs: Any) -> str:
    """Why an operator that may draw random numbers is refused; attention and dropout only draw in training."""
    in_training = "attention" in name or ("dropout" in name and (*args, *kwargs.values())[2:3] == (False,))
    return "" if in_training else "it draws random numbers of torch's"


def _crosses(name: str, args: Any, kwargs: Any) -> str:
    here = args[0].device
    there = args[1].device if name == "aten::copy_" else kwargs.get("device")
    elsewhere = there is not None and (there.type != here.type or there.index not in (None, here.index))
    return "it copies between devices" if elsewhere else ""


class _Functions(TorchFunctionMode):
    """Sees every call of a torch function, and keeps the calls in order."""

    def __init__(self, dispatched: _Dispatched) -> None:
        super().__init__()
        self.calls: list[Seen] = []
        self.paused = False
        self._dispatched = dispatched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _READING or func == _ARRAY or (name in _ADDRESSES and _asker() not in _MAY_ASK):
            raise CannotReplay(f"it reads on the host: {name}")
        if _get_current_dispatch_mode() is not self._dispatched:
            raise CannotReplay("it looks at its operations itself, in a mode of torch's")
        self._dispatched.inside += 1
        self._dispatched.paused = is_one_call(func)
        try:
            result = func(*args, **kwargs)
        finally:
            self._dispatched.inside -= 1
            self._dispatched.paused = False
        if name == "to" and result.device != args[0].device:
            raise CannotReplay("it copies between devices: to")
        if type(result) not in _QUESTIONS:
            self.calls.append(Seen(func, args, kwargs, result))
        return result


def _asker() -> str:
    """The package whose code has called the torch function that a mode sees."""
    module: str = sys._getframe(2).f_globals.get("__name__", "")
    return module.partition(".")[0]


def lasting(seen: Sequence[Seen]) -> list[Call]:
    """The calls that do something, without those that only make views of tensors that stay where they are: these views
    can stay too."""
    made_here: set[int] = set()  # tensors that a call makes, so that they are new in each step
    kept = []
    for func, args, kwargs, made in seen:
        given, parts = tensors_in(*args, *kwargs.values()), [made] if type(made) is Tensor else tensors_in(made)
        writes = func is host_call or _writes(getattr(func, "__name__", "")) or kwargs.get("out") is not None
        if not (writes or parts) or (not writes and len(parts) == 1 and any(parts[0] is one for one in given)):
            continue
        call = Call(func, args, kwargs, made, given, parts, writes)
        if not call.views or any(id(tensor) in made_here for tensor in given):
            kept.append(call)
            made_here.update(map(id, call.parts))
    return kept


@cache
def _writes(name: str) -> bool:
    """Whether a function of this name changes its arguments."""
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__")
    return in_place or augmented or name == "__setitem__"


def tensors_in(*values: object) -> list[Tensor]:
    """All tensors in values, and within their lists, tuples, dicts and slices."""
    found: list[Tensor] = []
    left = list(values)
    for one in left:  # the list grows meanwhile
        if type(one) in _PLAIN:
            continue
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, slice):
            left += (one.start, one.stop, one.step)
    return found


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory, and not of a class that does something else."""
    return type(tensor) in _TENSORS


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
