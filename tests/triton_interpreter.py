"""Triton's interpreter, without what it does again and again and what shows nothing.

Triton swaps the functions of the language at each launch and at each call of a kernel's function, and looks through the
language to do so. No kernel is compiled in a process that interprets, so they can stay swapped. For each operation it
makes types and shapes anew, and looks whether integers overflow, of which it says nothing unless it debugs; compiled
kernels do not look either. All that takes most of the time of small kernels.
"""

import functools
from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter as _interpreter

interpreter: Any = _interpreter


def swap_once() -> None:
    """Swap the functions that a kernel's function sees at its first call, and leave them swapped; keep types."""
    interpreter._patch_lang = functools.cache(interpreter._patch_lang)
    interpreter._LangPatchScope.restore = lambda scope: None
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter._get_np_dtype = _kept(interpreter._get_np_dtype, lambda type: type.name)
    core = interpreter.tl.core
    core.block_type.with_element_ty = _kept(core.block_type.with_element_ty, lambda type, of: (type.shape, of.name))
    core.tensor.__init__ = _with_kept_shapes(core)
    semantic = interpreter.TritonSemantic
    semantic.broadcast_impl_value = _unless_alike(semantic.broadcast_impl_value)


def _kept(function: Callable[..., Any], key: Callable[..., object]) -> Callable[..., Any]:
    """A function whose results are kept by a key that its arguments have; Triton's types have no hash."""
    results: dict[object, Any] = {}

    def kept(*arguments: Any) -> Any:
        found = key(*arguments)
        if found not in results:
            results[found] = function(*arguments)
        return results[found]

    return kept


def _unless_alike(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """A broadcast that leaves tensors of one shape as they are, without looking at their shapes number by number."""

    def broadcast_impl_value(semantic: Any, one: Any, other: Any) -> Any:
        return (one, other) if one.shape is other.shape else broadcast(semantic, one, other)

    return broadcast_impl_value


def _with_kept_shapes(core: Any) -> Callable[..., None]:
    """What makes a tensor as `core.tensor` does, but all tensors of a shape have the same tuple as theirs."""
    make = core.tensor.__init__

    @functools.cache
    def kept(shape: tuple[int, ...]) -> tuple[Any, Any]:
        made = core.tensor.__new__(core.tensor)
        make(made, None, core.block_type(core.int1, shape) if shape else core.int1)
        return made.shape, made.numel

    def init(tensor: Any, handle: Any, type: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = kept(type.shape if type.is_block() else ())

    return init
