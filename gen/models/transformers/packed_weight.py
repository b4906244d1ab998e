"""The weights of packed layers as tensors: they can be read like any parameter, and refuse to be changed.

Their numbers are in a layout that torch cannot write to (see `gen.models.transformers.cpu_layouts`), and reading them
unpacks a copy. A change of that copy would change no text. So each write raises here, and views are read-only, too.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only

from gen.errors import ModelError
from gen.models.transformers.cpu_layouts import Layout, layout_of

_DATA = vars(torch._C.TensorBase)["data"]
_DATA = _DATA.__get__, _DATA.__set__
# what writes to memory, or gives it to others, where operators do not show it
_MEMORY = {Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.share_memory_}
_MEMORY |= {Tensor.apply_, Tensor.map_, Tensor.map2_}
_OWN_MEMORY = {Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage, Tensor._typed_storage}
_LAYERS = {functional.embedding, functional.linear}  # with gradients they need a plain weight
_EDITORS = {"peft", "transformers"}  # whose code merges adapters, resizes embeddings and compares addresses


class ReadOnly(Tensor):
    """Numbers that torch cannot change: neither in place nor by `out=` nor through a view, in any mode."""

    _numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "ReadOnly":
        made: ReadOnly = Tensor._make_subclass(cls, numbers)
        made._numbers = numbers
        return made

    def read(self) -> Tensor:
        """The numbers in a plain tensor."""
        return self._numbers

    def tolist(self) -> Any:
        """See `torch.Tensor.tolist`, which takes no subclasses."""
        return self.read().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.read()!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.read().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.read().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MEMORY or (func == _DATA[1] and isinstance(args[0], ReadOnly)):
            raise _refused(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for number, known in enumerate(op._schema.arguments):
            given = args[number] if number < len(args) else kwargs.get(known.name)
            writes = known.alias_info is not None and known.alias_info.is_write
            if writes and any(isinstance(one, ReadOnly) for one in tree_leaves(given)):
                raise _refused(op)
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in op._schema.returns)
        # a view belongs to inference mode if what it views does, wherever it is made
        with torch.inference_mode(False) if views else nullcontext():
            made = op(*tree_map_only(ReadOnly, _read, args), **tree_map_only(ReadOnly, _read, kwargs))
            return tree_map_only(Tensor, ReadOnly, made) if views else made


class PackedWeight(ReadOnly):
    """The weight of a packed linear layer, of an embedding, or of both if they are tied.

    Attributes:
        packed: the numbers as the linear layer multiplies with them; None without one.
        rows: the numbers as the embedding looks them up; None without one.
        computes: the dtype in which its layers compute. Its own dtype is that of the rows if it has any.
        stored: the dtype of the numbers in the checkpoint.
    """

    packed: Layout | None
    rows: Tensor | None
    computes: torch.dtype
    stored: torch.dtype

    @staticmethod
    def __new__(cls, packed: Layout | None, rows: Tensor | None, requires_grad: bool = False) -> "PackedWeight":
        known: Any = packed if rows is None else rows
        made: PackedWeight = Tensor._make_wrapper_subclass(
            cls, known.shape, dtype=known.dtype, device=torch.device("cpu"), requires_grad=requires_grad
        )
        made.packed, made.rows = packed, rows
        made.computes = torch.float32 if known.dtype == torch.float16 else known.dtype
        made.stored = known.dtype if packed is None else packed.stored
        return made

    def read(self) -> Tensor:
        """(outputs, inputs), in its own dtype: a copy, made at each call, unless it has rows."""
        if self.rows is not None:
            return self.rows
        assert self.packed is not None
        return self.packed.unpacked()

    def stays(self, fn: Callable[[Tensor], Tensor]) -> bool:
        """Whether a function that is applied to all weights of a model leaves these as they are."""
        one = fn(torch.empty(0, device="cpu", dtype=self.computes))
        return one.device.type == "cpu" and one.dtype == self.computes

    def unpack_(self) -> None:
        """Become a plain parameter, in the layers that have it and wherever else it is held, as by an optimiser."""
        with torch.inference_mode(False), torch.no_grad():
            plain = nn.Parameter(self.read().to(self.computes), self.requires_grad)
            exchange(self, plain)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PackedWeight":
        rows = None if self.rows is None else self.rows.clone()
        memo[id(self)] = made = PackedWeight(self.packed, rows, self.requires_grad)
        vars(made).update(_is_param=vars(self).get("_is_param", False))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        rows = None if self.rows is None else self.rows.dtype
        return packed_parameter, (self.read().to(self.stored), self.packed is not None, rows, self.requires_grad)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._has_compatible_shallow_copy_type:
            return False  # a conversion by a module that is not packed itself then makes another parameter
        packed = next((one for one in args if isinstance(one, PackedWeight)), None)
        if packed is not None and isinstance(packed, nn.Parameter):
            edits = (func in _OWN_MEMORY or func in _DATA) and _asker() in _EDITORS
            if edits or (func in _LAYERS and packed.requires_grad and torch.is_grad_enabled()):
                packed.unpack_()
                return func(*args, **(kwargs or {}))
        if packed is not None and func in _OWN_MEMORY:
            raise _refused(func)
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if op is torch.ops.aten.detach.default:
            with torch.inference_mode(False):  # as views
                return PackedWeight(args[0].packed, args[0].rows)
        return super().__torch_dispatch__(op, types, args, kwargs)


def packed_parameter(weight: Tensor, linear: bool, rows: torch.dtype | None, requires_grad: bool) -> PackedWeight:
    """A parameter of the numbers of a weight.

    Args:
        linear: whether linear layers have it.
        rows: the dtype for the embeddings that have it; None without any.
    """
    table = None if rows is None else weight.to(rows, copy=True)  # otherwise a file stays mapped as a whole
    made = PackedWeight(layout_of(weight.contiguous()) if linear else None, table, requires_grad)
    vars(made).update(_is_param=True)
    return made


def exchange(one: Tensor, two: Tensor) -> None:
    """Let two tensors take each other's place wherever they are held.

    Raises:
        ModelError: torch itself still holds one of them, as in the graph of a forward without its backward.
    """
    try:
        torch.utils.swap_tensors(one, two)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ModelError(
            f"the weights are in use ({error}); drop what holds them, such as the results of a forward with gradients"
        ) from error


def _read(tensor: ReadOnly) -> Tensor:
    return tensor.read()


def _refused(func: Any) -> ModelError:
    return ModelError(
        f"a packed weight cannot be changed ({getattr(func, '__name__', func)}): this CPU reads it in another layout. "
        "To change weights, load them unpacked, with gen.load(..., pack=False), or with transformers and "
        "gen.from_transformers; .clone() gives a copy to read."
    )


def _asker() -> str:
    """The package whose code calls torch: outside of torch, and of blocks of virtual GPUs."""
    frame: Any = sys._getframe(2)
    while (name := frame.f_globals.get("__name__", "").partition(".")[0]) in ("torch", "gen", "virtual_gpus"):
        frame = frame.f_back
    return str(name)
