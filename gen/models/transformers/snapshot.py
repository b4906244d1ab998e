"""Records what a model computes with, to compare it later: its modules, tensors and all their other attributes.

Example: after `model.set_adapter("b")`, the list of active adapters in each layer has another name in it. The snapshots
from before and after differ there, and are equal everywhere else.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as every_module

_PARTS = "_parameters", "_buffers", "_modules"
_EVERY = [*vars(Module())]  # the attributes that every module has first, hooks among them
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_LEAVES = frozenset((*_NUMBERS, type, FunctionType, BuiltinFunctionType, MethodType, torch.dtype, torch.device))
_MAPPINGS = frozenset((dict, OrderedDict))
_SEQUENCES = frozenset((list, tuple, set, frozenset, deque, torch.Size))
_LEAF, _OTHER, _FOLLOWED, _LIKE = range(4)  # see `_way`


class Snapshot:
    """A module, or a list of tensors, with all of its parts at one moment; two snapshots are equal if they found the
    same things.

    It follows modules, lists, dicts, sets, and configs (objects with a `to_dict`); it records the identity of other
    objects, such as functions. It holds what it has found, since Python uses ids again.

    Attributes:
        modules: all modules.
    """

    def __init__(self, root: Module | list[Tensor]) -> None:
        self.modules: list[Module] = []
        self._tensors: list[Tensor] = []
        self._found: list[object] = []
        self._places: list[tuple[object, ...]] = []  # of tensors
        self._seen: set[int] = set()
        self._left: list[Any] = []
        self._look_at((root,))
        for thing in self._left:  # the list grows
            if isinstance(thing, Module):
                self._take_module(thing)
            elif isinstance(thing, Tensor):
                self._tensors.append(thing)
                self._places.append(_place(thing))
            elif type(thing) in _SEQUENCES:
                self._look_at([*thing])
            else:
                state = thing if type(thing) in _MAPPINGS else vars(thing)
                self._look_at([*state, *state.values()])
        self._found += [getattr(kind, "forward", None) for kind in dict.fromkeys(map(type, self.modules))]
        del self._seen, self._left

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot) or self._places != other._places:
            return False
        same_length = len(self._found) == len(other._found)
        return same_length and (all(map(is_, self._found, other._found)) or all(map(_same, self._found, other._found)))

    __hash__ = None  # type: ignore[assignment]  # what it holds can change

    def versions(self, without: Collection[int] = ()) -> tuple[int, ...]:
        """How often the numbers of each tensor have been changed so far, as torch counts it: `tensor.data.add_()` does
        not count.

        Args:
            without: the ids of tensors that are left out.
        """
        return tuple(
            [-1 if tensor.is_inference() else tensor._version for tensor in self._tensors if id(tensor) not in without]
        )

    @property
    def hooked(self) -> bool:
        """Whether hooks run before or after a module's forward."""
        everywhere: Any = every_module
        if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
            return True
        return any(one._forward_hooks or one._forward_pre_hooks for one in self.modules)

    def difference(self, earlier: "Snapshot") -> str:
        """The first thing that has changed, in words."""
        for one, two in zip(self._found, earlier._found, strict=False):
            if not _same(one, two):
                return f"{_shown(two)} is {_shown(one)} now"
        return "a tensor is elsewhere, or there is more or less than there was"

    def _take_module(self, module: Module) -> None:
        state = vars(module)
        names, values = [*state], [*state.values()]  # copied, since a forward in another thread may change it
        own = len(_EVERY)
        if names[:own] != _EVERY:  # its class set attributes before Module.__init__
            pairs = [(name, value) for name, value in zip(names, values, strict=False) if name not in _EVERY]
            names, values, own = [name for name, _ in pairs], [value for _, value in pairs], 0
        self.modules.append(module)
        found, things = self._found, values[own:]
        found.append(type(module))
        found += names[own:]
        for part in _PARTS:
            if parts := state[part]:
                found += parts
                things += parts.values()
        self._look_at(things)

    def _look_at(self, things: Sequence[Any]) -> None:
        """Record the identity of these things; their contents are looked at later, once."""
        found, seen, left = self._found, self._seen, self._left
        for thing in things:
            kind: Any = type(thing)  # mypy takes no class for hashable
            way = _way(kind)
            if way <= _OTHER or id(thing) in seen:
                found.append(thing)
                continue
            found.append(kind if way == _LIKE else thing)
            seen.add(id(thing))
            left.append(thing)


@lru_cache(maxsize=1024)
def _way(kind: type) -> int:
    """What to do with things of a kind: record their identity; look into them, too; or only look into them, since equal
    contents are as good."""
    if kind in _LEAVES:
        return _LEAF
    if kind in _MAPPINGS or kind in _SEQUENCES or hasattr(kind, "to_dict"):
        return _LIKE
    return _FOLLOWED if issubclass(kind, (Module, Tensor)) else _OTHER


def _same(one: object, two: object) -> bool:
    return one is two or (type(one) is type(two) and isinstance(one, _NUMBERS) and one == two)


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Where a tensor's numbers are: `.half()` and `.data =` keep the tensor and change this."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # its class keeps numbers elsewhere
        address = 0
    return tensor.dtype, address, tensor.shape, tensor.stride()


def _shown(thing: object) -> str:
    return repr(thing) if isinstance(thing, _NUMBERS) else f"a {type(thing).__name__}"
