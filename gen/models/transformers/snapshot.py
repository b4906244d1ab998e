"""Records what a model computes with, to compare it later: its modules, tensors and all their other attributes.

Example: after `model.set_adapter("b")`, the list of active adapters in each layer has another name in it. The snapshots
from before and after differ there, and are equal everywhere else.
"""

from collections.abc import Collection, Iterable, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as every_module

from gen.models.transformers.contents import (
    LIKE,
    MODULE,
    TENSOR,
    is_foreign,
    is_known,
    readers,
    runs_foreign_code,
    ways,
)

_PARTS = "_parameters", "_buffers", "_modules"
_EVERY = [*vars(Module())]  # the attributes that every module has first, hooks among them
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_MOST = 10_000  # things that are followed beside modules and tensors


class Snapshot:
    """A module, or a list of tensors, with all that it reaches at one moment; two snapshots are equal if they found the
    same things.

    It follows modules, and what `gen.models.transformers.contents` says: containers, objects, closures, partials. It
    records the identity of everything else. It holds what it has found, since Python uses ids again.

    Args:
        beside: functions that the modules call, and do not hold.
        vouched: whether the user says that the modules read nothing else that changes. Then what classes of unknown
            packages hold is followed, too.

    Attributes:
        modules: all modules.
        unseen: why a forward may read what is not found here; "" if nothing speaks for it.
    """

    def __init__(self, root: Module | list[Tensor], beside: Iterable[object] = (), *, vouched: bool = False) -> None:
        self.modules: list[Module] = []
        self.unseen = ""
        self._tensors: list[Tensor] = []
        self._found: list[object] = []
        self._places: list[tuple[object, ...]] = []  # of tensors
        self._kinds: set[type] = set()  # of modules
        self._seen: set[int] = set()
        self._left: list[Any] = []
        self._vouched, others = vouched, 0
        self._look_at((root, *beside))
        with torch._C.DisableTorchFunctionSubclass():  # packed weights would answer each question in Python
            for thing in self._left:  # the list grows
                way = ways[type(thing)]
                if way == MODULE:
                    self._take_module(thing)
                elif way == TENSOR:
                    self._tensors.append(thing)
                    self._places.append(place_of(thing))
                elif others < _MOST:
                    others += 1
                    self._look_into(thing)
        if others == _MOST:
            self.unseen = f"reach more than {_MOST} objects"
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
        tensors = [tensor for tensor in self._tensors if id(tensor) not in without]
        with torch._C.DisableTorchFunctionSubclass():  # as above
            return tuple([-1 if tensor.is_inference() else tensor._version for tensor in tensors])

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
        state, kind = vars(module), type(module)
        names, values = [*state], [*state.values()]  # copied, since a forward in another thread may change it
        own = len(_EVERY)
        if names[:own] != _EVERY:  # its class set attributes before Module.__init__
            pairs = [(name, value) for name, value in zip(names, values, strict=False) if name not in _EVERY]
            names, values, own = [name for name, _ in pairs], [value for _, value in pairs], 0
        self.modules.append(module)
        found, things = self._found, values[own:]
        found.append(kind)
        found += names[own:]
        for part in _PARTS:
            if parts := state[part]:
                found += parts
                things += parts.values()
        if kind not in self._kinds:
            self._kinds.add(kind)
            things += getattr(kind, "forward", None), kind.__call__
            if not is_known(kind.__module__):
                self._note(kind, kind)
        self._look_at(things)

    def _look_into(self, thing: Any) -> None:
        """Look at what is inside of a thing that is no module or tensor."""
        if runs_foreign_code(thing) or (self._vouched and is_foreign(type(thing).__module__)):
            self._note(thing, type(thing))
        read = readers[type(thing)]
        if read is not None and (things := read(thing)):
            self._look_at(things)

    def _note(self, thing: Any, kind: type) -> None:
        """Note a thing that code of an unknown package may read; if the user vouches for it, look at its class, too."""
        if self._vouched:
            self._look_at([kind])
        elif not self.unseen:
            named = thing if hasattr(thing, "__qualname__") else kind
            self.unseen = f"run {named.__qualname__} of {named.__module__}"

    def _look_at(self, things: Sequence[Any]) -> None:
        """Record the identity of these things; their contents are looked at later, once."""
        found, seen, left = self._found, self._seen, self._left
        for thing in things:
            way = ways[type(thing)]
            if not way or (key := id(thing)) in seen:
                found.append(thing)
                continue
            found.append(type(thing) if way == LIKE else thing)
            seen.add(key)
            left.append(thing)


def _same(one: object, two: object) -> bool:
    return one is two or (type(one) is type(two) and isinstance(one, _NUMBERS) and one == two)


def place_of(tensor: Tensor) -> tuple[object, ...]:
    """Where a tensor's numbers are: `.half()` and `.data =` keep the tensor and change this."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # its class keeps numbers elsewhere
        address = 0
    return tensor.dtype, address, tensor.shape, tensor.stride()


def _shown(thing: object) -> str:
    return repr(thing) if isinstance(thing, _NUMBERS) else f"a {type(thing).__name__}"
