"""Linear layers whose weights are in a layout that this CPU reads fastest, in place of a model's own.

A step's product has few rows, and takes as long as it takes to read its weights. torch leaves them as they are: with
one row MKL waits for memory, and with more it first copies them into another layout, at each step. Packed layers do so
once. Example: in the linear layers of SmolLM2-135M in float32, on an AMD CPU, one row takes 45 ms with torch and 31 ms
here, eight rows 73 and 41 ms, a prompt of 64 tokens 225 and 167 ms.

`gen.load` packs where that is faster on this kind of CPU, with one row, with eight and with 64: never by a measurement,
so that the same call gives the same bits in every process. A weight that an embedding shares with the head is packed
for the head, and kept as it is for the embedding, so it takes memory twice.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gen.errors import ModelError
from gen.models.transformers.cpu_layouts import can_pack, multiply
from gen.models.transformers.packed_weight import PackedWeight, ReadOnly, exchange, packed_parameter
from gen.runtime.cpu_memory import available_bytes, give_back

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("gen")

_LARGE = 2**16  # numbers of a layer; with fewer, the call costs more than it gains
_BEYOND_CACHES = 2**25  # numbers of all of them
_AT_ONCE = 2**26  # bytes of weights that are replaced before their memory is given back
_FASTER = {("AuthenticAMD", "AVX512"): (torch.float32, torch.bfloat16)}  # by the maker of the CPU and its instructions


class _Packed(nn.Module):
    """What layers with a packed weight do besides their forward; without one they are what they were before."""

    weight: Tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        if isinstance(self.weight, PackedWeight):
            if self.weight.stays(fn):
                return self
            self.weight.unpack_()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if isinstance(self.weight, PackedWeight) and not keep_vars:
            destination[f"{prefix}weight"] = ReadOnly(self.weight.read().to(self.weight.stored))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if isinstance(self.weight, PackedWeight) and f"{prefix}weight" in state_dict:
            self.weight.unpack_()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _made_again, (type(self).__bases__[1],), vars(self)


class PackedLinear(_Packed, nn.Linear):
    """A linear layer on a CPU that multiplies with a packed weight.

    Where gradients are recorded it first unpacks its weight, for good.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        weight, bias = self.weight, self.bias
        if isinstance(weight, PackedWeight) and weight.packed is not None:
            if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (input, weight, bias)):
                weight.unpack_()
            elif input.is_cpu and input.dtype == weight.packed.dtype and not torch.is_autocast_enabled("cpu"):
                return multiply(input, weight.packed, bias)
        return super().forward(input)


class PackedEmbedding(_Packed, nn.Embedding):
    """An embedding whose weight is packed for a linear layer too, or in float16 for layers of float32."""

    def forward(self, input: Tensor) -> Tensor:
        """(...) to (..., embedding_dim)."""
        weight, found = self.weight, super().forward(input)
        return found.to(weight.computes) if isinstance(weight, PackedWeight) else found


@torch.inference_mode(False)
def pack_(model: nn.Module) -> int:
    """Pack the large linear layers of a model on a CPU; if their weights are float16, it computes in float32.

    A layer stays as it is if another kind of module has its weight too, or if its forward has been replaced.

    Returns:
        How many weights are packed for linear layers; if none can be, nothing is changed.
    """
    holders: dict[int, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders[id(weight)].append(module)
    weights = [weight for weight in model.parameters() if all(map(_can_hold_packed, holders[id(weight)]))]
    linear = [one for one in weights if _pays(one) and any(isinstance(part, nn.Linear) for part in holders[id(one)])]
    half = any(weight.dtype == torch.float16 for weight in linear)
    replaced = 0
    for weight in linear:
        _pack_(weight, holders[id(weight)], linear=True)
        replaced += weight.nbytes
        if replaced >= _AT_ONCE or weight is linear[-1]:
            give_back()
            replaced = 0
    for module in model.modules() if linear else ():
        if half and type(module) is nn.Embedding and module.weight.dtype == torch.float16:
            _pack_(module.weight, holders[id(module.weight)], linear=False)
        for weight in module.parameters(recurse=False):
            if not isinstance(weight, PackedWeight):  # a copy, since otherwise the whole file stays mapped
                weight.data = weight.data.float() if half and weight.is_floating_point() else weight.data.clone()
        for name, buffer in module.named_buffers(recurse=False):
            if half and buffer.is_floating_point():
                setattr(module, name, buffer.float())
    return len(linear)


def faster_packed(model: nn.Module) -> bool:
    """Whether layers are faster packed on this kind of CPU: with float16 weights always, with others where it has been
    measured, and not if all of them fit into caches."""
    known = {torch.float16, *_FASTER.get((_maker(), torch.backends.cpu.get_cpu_capability()), ())}
    layers = (part.weight for part in model.modules() if isinstance(part, nn.Linear))
    sizes = {id(one): (one.numel(), one.dtype) for one in layers if one.dtype in known and _pays(one)}
    half = any(dtype == torch.float16 for _, dtype in sizes.values())
    return half or sum(size for size, _ in sizes.values()) >= _BEYOND_CACHES


def suit_cpu_(model: "PreTrainedModel", *, pack: bool | None, widen: bool) -> None:
    """Pack a model on a CPU, or let a float16 model compute in float32, since CPUs are slow in float16; log which.

    Args:
        pack: None packs where that is faster.
        widen: whether a float16 model may compute in float32 even if it is not packed.
    Raises:
        ModelError: pack is True, and no layer can be packed.
    """
    name, half = type(model).__name__, model.dtype == torch.float16
    if pack or (pack is None and (widen or not half) and faster_packed(model)):
        if not pack_(model):
            raise ModelError(f"pack=True: {name} has no linear layers that this machine can pack.")
        how = "computes in float32, with its float16 weights packed" if half else "has its weights packed"
        logger.info("%s %s, which a CPU reads faster, until gradients are recorded; pack=False keeps them", name, how)
    elif half and widen:
        size = sum(parameter.nbytes for parameter in model.parameters())
        available = available_bytes()
        if available is None or 2 * size <= available:
            model.float()
            logger.info(
                "%s is turned into float32: this CPU computes slowly in float16; dtype='float16' keeps it", name
            )
        else:
            logger.warning(
                "%s stays in float16, in which this CPU computes slowly: memory has no room for float32", name
            )


def is_on_cpu(model: nn.Module) -> bool:
    """Whether a model is on a CPU as a whole, and not quantised."""
    hooked = any(getattr(getattr(module, "_hf_hook", None), "offload", False) for module in model.modules())
    return not hooked and not hasattr(model, "hf_quantizer") and all(one.is_cpu for one in model.parameters())


def packed_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype of packed weights if they compute in another one; None otherwise."""
    packed = (weight for weight in model.parameters() if isinstance(weight, PackedWeight))
    return next((weight.stored for weight in packed if weight.stored != weight.computes), None)


def _can_hold_packed(module: nn.Module) -> bool:
    """Whether a module computes the same with a packed weight."""
    if "forward" in vars(module):
        return False
    return type(module) in (nn.Linear, PackedLinear) or (isinstance(module, nn.Embedding) and module.max_norm is None)


def _pays(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.numel() >= _LARGE and can_pack(weight)


def _pack_(weight: Tensor, holders: list[nn.Module], *, linear: bool) -> None:
    """Let all layers that hold a weight hold it packed."""
    embeddings = {type(part) for part in holders if isinstance(part, nn.Embedding)}
    plain = embeddings <= {nn.Embedding, PackedEmbedding}  # others may compute with the dtype of their weight
    rows = weight.dtype if plain or weight.dtype != torch.float16 else torch.float32
    made = packed_parameter(weight.detach(), linear, rows if embeddings else None, weight.requires_grad)
    exchange(weight, made)
    for part in holders:
        kind: Any = type(part)  # mypy takes no class for hashable
        part.__class__ = _packed(kind)


@cache
def _packed(plain: Any) -> Any:
    """The class of packed layers of a class."""
    if issubclass(plain, _Packed):
        return plain
    return {nn.Linear: PackedLinear, nn.Embedding: PackedEmbedding}.get(plain) or type(
        f"Packed{plain.__name__}", (_Packed, plain), {}
    )


def _made_again(plain: Any) -> nn.Module:
    """A packed layer without its state, as pickle and copy need it."""
    made: nn.Module = plain.__new__(plain)
    made.__class__ = _packed(plain)
    return made


@cache
def _maker() -> str:
    """Who made this CPU; "" if that is not known."""
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return next((maker for maker, _ in _FASTER if maker in about), "")
