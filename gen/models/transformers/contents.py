"""What is inside of the things that a model reads: how far a `gen.models.transformers.snapshot.Snapshot` looks.

A forward can read whatever Python lets it reach. Lists, dicts, the attributes and slots of objects, the variables that
a function keeps, and the arguments of partials can be followed. Global variables cannot: what a function of an unknown
package rests on, only its user knows.
"""

import functools
import sys
from argparse import Namespace
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import cached_property, lru_cache, partial, partialmethod
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor
from torch.nn import Module

T = TypeVar("T")
LEAF, LIKE, OBJECT, MODULE, TENSOR = range(5)  # see `ways`

# packages whose forwards read only what their modules reach: torch, those of Hugging Face, gen, and those from which
# transformers takes layers, for quantised weights and for images, or functions, whose objects are not looked into
_FUNCTIONS = frozenset(
    ("torch", "triton", "apex", "causal_conv1d", "fla", "flash_attn", "liger_kernel", "mamba_ssm", "natten", "xlstm")
)
_KNOWN = _FUNCTIONS | {
    *("transformers", "accelerate", "peft", "gen", "timm", "aqlm", "auto_round", "awq", "bitsandbytes"),
    *("compressed_tensors", "exllamav3", "fbgemm_gpu", "flute", "fouroversix", "fp_quant", "gptqmodel", "hqq"),
    *("optimum", "quark", "sinq", "spqr_quant", "torchao", "virtual_gpus", "vptq"),
}
_PYTHON = frozenset((*sys.stdlib_module_names, "numpy"))
_HOLDERS = (Namespace, SimpleNamespace, UserDict, UserList)  # classes of Python's whose objects only hold others
_MOST_BYTES = 4096  # of an array whose numbers are compared


@lru_cache(maxsize=1024)
def is_known(module: object) -> bool:
    """Whether the forwards of a Python module, given by its name, read only what their torch modules reach."""
    return str(module).partition(".")[0] in _KNOWN


@lru_cache(maxsize=1024)
def is_foreign(module: object) -> bool:
    """Whether a Python module, given by its name, is of an unknown package."""
    package = str(module).partition(".")[0]
    return package not in _KNOWN and package not in _PYTHON


def runs_foreign_code(thing: Any) -> bool:
    """Whether it is a function of an unknown package, or an object that code of such a package makes callable."""
    kind: Any = type(thing)
    return is_foreign(thing.__globals__.get("__name__")) if kind is FunctionType else _is_called(kind)


@lru_cache(maxsize=1024)
def _is_called(kind: Any) -> bool:
    """Whether code of an unknown package makes objects of a kind callable."""
    called = getattr(kind, "__call__", None)  # noqa: B004
    return type(called) is FunctionType and (runs_foreign_code(called) or is_foreign(kind.__module__))


class _Table(dict[type, T]):
    """What is known of each kind of things, made when a kind first comes."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __missing__(self, kind: type) -> T:
        if len(self) >= 1024:  # some programs make classes for ever
            self.clear()
        found = self[kind] = self._make(kind)
        return found


def _way(kind: Any) -> int:
    """What to do with things of a kind: record their identity (LEAF); look into them (LIKE), since equal contents are
    as good; or do both (the others)."""
    if issubclass(kind, (Module, Tensor)):
        return MODULE if issubclass(kind, Module) else TENSOR
    if hasattr(kind, "to_dict") or issubclass(kind, _LIKE):
        return LIKE
    return LEAF if readers[kind] is None else OBJECT


def _reader(kind: Any) -> Callable[[Any], list[Any]] | None:
    """A function that lists what is inside of things of a kind; None if nothing is to be found there."""
    items = next((_ITEMS[one] for one in kind.__mro__ if one in _ITEMS), None)
    if kind in _ITEMS or issubclass(kind, type):
        return items
    package = str(kind.__module__).partition(".")[0]
    holds = package not in _FUNCTIONS and package not in _PYTHON
    if not (items or holds or issubclass(kind, _HOLDERS) or hasattr(kind, "to_dict")):
        return None
    own = [vars(one) for one in kind.__mro__ if "__slots__" in vars(one)]
    slots = [name for space in own for name, value in space.items() if isinstance(value, MemberDescriptorType)]

    def read(thing: Any) -> list[Any]:
        state = getattr(thing, "__dict__", {})
        found = [*state, *state.values(), *(getattr(thing, name) for name in slots if hasattr(thing, name))]
        return found if items is None else found + items(thing)

    return read if items or slots or kind.__dictoffset__ else None


ways = _Table(_way)
readers = _Table(_reader)


def _of_mapping(thing: Any) -> list[Any]:
    kind: Any = dict if isinstance(thing, dict) else MappingProxyType
    return [*kind.keys(thing), *kind.values(thing)]


def _of_function(thing: Any) -> list[Any]:
    found = []
    if thing.__defaults__:
        found += thing.__defaults__
    if thing.__kwdefaults__:
        found += thing.__kwdefaults__.values()
    if attributes := thing.__dict__:
        found += attributes.values()
    for cell in thing.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is empty
            found.append(None)
    return found


def _of_partial(thing: Any) -> list[Any]:
    return [thing.func, *thing.args, *thing.keywords, *thing.keywords.values()]


def _of_class(thing: Any) -> list[Any]:
    """The attributes of a class of an unknown package."""
    spaces = [vars(one) for one in type.mro(thing) if is_foreign(one.__module__)]
    return [part for space in spaces for part in (*space, *space.values())]


def _of_variable(thing: Any) -> list[Any]:
    try:
        return [thing.get()]
    except LookupError:  # it has no value here
        return []


_ITEMS: dict[Any, Callable[[Any], list[Any]]] = {
    **dict.fromkeys((list, tuple, set, frozenset, deque), lambda thing: [*thing]),
    **dict.fromkeys((dict, OrderedDict, MappingProxyType), _of_mapping),
    **dict.fromkeys((partial, partialmethod), _of_partial),
    FunctionType: _of_function,
    MethodType: lambda thing: [thing.__func__, thing.__self__],
    BuiltinFunctionType: lambda thing: [thing.__self__],
    **dict.fromkeys((staticmethod, classmethod), lambda thing: [thing.__func__]),
    property: lambda thing: [thing.fget],
    cached_property: lambda thing: [thing.func],
    functools._lru_cache_wrapper: lambda thing: [thing.__wrapped__],
    type: _of_class,
    ContextVar: _of_variable,
    np.ndarray: lambda thing: [thing.tobytes()] if thing.nbytes <= _MOST_BYTES else [],
}
_LIKE = (list, tuple, set, frozenset, deque, dict, MappingProxyType)
