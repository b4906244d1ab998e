"""Float16 weights on a CPU, packed for FBGEMM: it multiplies them with float32 activations, and sums in float32.

They take half the memory of float32, and less is read for each token; results are those of float32 but for the order of
sums. Layers of other kinds compute in float32. Example: of a layer's 576 inputs, 512 are packed, and 64 are float32. If
a model's embedding is also its head, the head is packed, and the embedding stays in the checkpoint's file.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gen.cpu_memory import available_bytes
from gen.models.transformers.mapped_weights import left_in_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("gen")

_ENGINE = "fbgemm"
_BLOCK = 512  # inputs
_LEAST = 256  # inputs; with fewer, a block takes more memory than float32


class PackedLinear(nn.Module):
    """A linear layer whose float16 weights are packed; on a CPU, for float32 activations.

    FBGEMM packs blocks of 512 inputs, and fills the last one up with zeros. If that block would be mostly zeros, its
    weights are kept in float32 instead.
    """

    def __init__(self, linear: nn.Linear, scratch: Tensor) -> None:
        """Pack a layer.

        Args:
            scratch: float32, room for its weights.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        rest = self.in_features % _BLOCK
        packed = self._packed_features = self.in_features - (rest if rest < _LEAST and rest < self.in_features else 0)
        half = linear.weight.detach()
        weight = scratch[: self.out_features * packed].view(-1, packed).copy_(half[:, :packed])
        bias = None if linear.bias is None else linear.bias.detach().float()
        with _engine():
            self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        # (inputs, outputs), as their product reads them
        self._rest = half[:, packed:].t().float().contiguous() if packed < self.in_features else None
        self.train(linear.training)

    @property
    def nbytes(self) -> int:
        """How many bytes its weights take: FBGEMM's blocks, filled up, and the rest."""
        blocks = -(-self._packed_features // _BLOCK) * _BLOCK
        columns = -(-self.out_features // 16) * 16
        return 2 * blocks * columns + (0 if self._rest is None else self._rest.nbytes)

    @property
    def weight(self) -> Tensor:
        """(out_features, in_features), float32: a copy, made at each call."""
        weight: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return weight if self._rest is None else torch.cat((weight, self._rest.t()), 1)

    @property
    def bias(self) -> Tensor | None:
        """(out_features,), float32; None without a bias."""
        bias: Tensor | None = torch.ops.quantized.linear_unpack_fp16(self._packed)[1]
        return bias

    def forward(self, states: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), float32."""
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(states[..., : self._packed_features], self._packed)
        if self._rest is None:
            return product
        rest = states[..., self._packed_features :].reshape(-1, len(self._rest))
        product.view(-1, self.out_features).addmm_(rest, self._rest)
        return product

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight.half()
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias.half()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        return self if _stays(fn) else nn.Linear._apply(self.unpack_(), fn)  # type: ignore[no-untyped-call]

    def unpack_(self) -> nn.Linear:
        """Become a plain layer of float32 weights."""
        weight, bias, plain = self.weight, self.bias, cast("nn.Linear", self)
        del self._packed, self._rest, self._packed_features
        plain.__class__ = nn.Linear
        plain.weight = nn.Parameter(weight, requires_grad=False)
        plain.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        return plain


class HalfEmbedding(nn.Embedding):
    """An embedding of float16 weights that gives float32."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """(...) to (..., embedding_dim), float32."""
        return super().forward(token_ids).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        return self if _stays(fn) else nn.Embedding._apply(self.unpack_(), fn)  # type: ignore[no-untyped-call]

    def unpack_(self) -> nn.Embedding:
        """Become a plain embedding of float32 weights."""
        plain = cast("nn.Embedding", self)
        plain.__class__ = nn.Embedding
        plain.weight.data = plain.weight.data.float()
        return plain


def _stays(fn: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function that is applied to all weights leaves those in float32 on the CPU as they are."""
    one = fn(torch.empty(0, device="cpu", dtype=torch.float32))
    return one.device.type == "cpu" and one.dtype == torch.float32


def suit_cpu_(model: "PreTrainedModel") -> bool:
    """Make a float16 model on a CPU compute in float32, since CPUs are slow in float16; log how.

    Returns:
        Whether its weights are packed; if something does not work with that, `unpack_` undoes it.
    """
    name = type(model).__name__
    if model.dtype != torch.float16:
        return False
    if _ENGINE in torch.backends.quantized.supported_engines:
        _pack_(model)
        logger.info("%s computes in float32, with its float16 weights packed; dtype='float32' unpacks them", name)
        return True
    size = sum(parameter.nbytes for parameter in model.parameters())
    available = available_bytes()
    if available is None or 2 * size <= available:
        model.float()
        logger.info("%s is turned into float32: this CPU computes slowly in float16; dtype='float16' keeps it", name)
    else:
        logger.warning("%s stays in float16, in which this CPU computes slowly: memory has no room for float32", name)
    return False


def unpack_(model: nn.Module) -> None:
    """Turn a packed model into one of plain float32 layers."""
    for part in [*model.modules()]:
        if isinstance(part, PackedLinear | HalfEmbedding):
            part.unpack_()
    model.float()


def packed_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype of packed weights, and of their embedding; None if there are none."""
    return torch.float16 if any(isinstance(part, PackedLinear | HalfEmbedding) for part in model.modules()) else None


def _pack_(model: nn.Module) -> None:
    linears = [part for part in model.modules() if type(part) is nn.Linear]
    scratch = torch.empty(max((part.weight.numel() for part in linears), default=0), device="cpu", dtype=torch.float32)
    for module in [*model.modules()]:
        for name, part in module.named_children():
            if type(part) is nn.Linear and part.in_features >= _LEAST:
                setattr(module, name, PackedLinear(part, scratch))
    for module in model.modules():
        if type(module) is nn.Embedding:
            module.__class__ = HalfEmbedding
            weight, in_file = module.weight.data, left_in_file(module.weight.data)
            module.weight.data = weight.clone() if in_file is None else in_file  # otherwise the whole file stays mapped
        else:
            for own in module.parameters(recurse=False):
                own.data = own.data.float() if own.is_floating_point() else own.data
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.float())


@contextmanager
def _engine() -> Iterator[None]:
    """Let FBGEMM pack, whichever engine is set."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
