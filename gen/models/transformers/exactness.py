"""Whether a model's steps can give a row the same bits in any batch, and how many rows a step needs for that.

A linear layer sums in one order for few rows and in another for many. MKL has three orders in float32, for one row, for
two or three, and for four or more; oneDNN has two, for one row and for more. Within one order, a row's result does not
depend on the other rows, so a step of at least four rows, or of two, gives the same bits as any larger one. gen finds
this number on your machine, for each kind of layer that the model has, and refuses a model without such a number.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

from gen.attention.plan import Plan, whole
from gen.attention.steps import attend_rows
from gen.errors import ModelError
from gen.models.transformers.wrappers import innermost
from gen.runtime.isolation import isolated

if TYPE_CHECKING:
    from gen.models.transformers.model import TransformersModel

_MOST = 16  # rows that a step may need; prompts are padded to as many tokens
_COUNTS = (1, 2, 4, 8, 16, 32, 48, 64, 128)  # of rows; each is compared with the last one
_TRIES = 2
_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@isolated
@torch.inference_mode()
def find_step_rows(model: "TransformersModel") -> int:
    """The fewest rows whose step gives each row the same bits as a step of any multiple of this number.

    Returns:
        A power of two, at most 16.
    Raises:
        ModelError: the model cannot promise this; the message says why.
    Host sync: several; this is done once for a model and number of threads.
    """
    name = type(innermost(model.hf_model)).__name__
    if reason := _reason(model):
        raise ModelError(f"exact=True is not possible with {name}: {reason}.")
    least, reason = _try(model)
    if reason:
        raise ModelError(f"exact=True is not possible with {name} on this machine: {reason}.")
    return least


def attention_agrees(heads: int, key_heads: int, width: int, dtype: torch.dtype) -> bool:
    """Whether torch's attention gives rows and queries the same bits beside others, and with hidden columns."""
    drawn, hidden = torch.Generator().manual_seed(0), torch.finfo(dtype).min
    query = torch.randn((3, heads, 64, width), generator=drawn).to(dtype)
    keys, values = torch.randn((2, 3, key_heads, 2016, width), generator=drawn).to(dtype)
    for lengths in ((1030, 2000, 1500), (40, 924, 60)):
        shown = torch.arange(whole(max(lengths))) < torch.tensor(lengths)[:, None]
        mask = torch.where(shown, 0.0, hidden)[:, None, None].to(dtype)

        def found(rows: slice, view: int, mask: Tensor = mask) -> Tensor:
            seen = keys[rows, :, :view], values[rows, :, :view], mask[rows, ..., :view]
            return attend_rows(query[rows, :, :1], *seen, Plan(), None)

        together = found(slice(0, 3), mask.shape[3])
        for row, length in enumerate(lengths):
            if not torch.equal(found(slice(row, row + 1), whole(length)), together[row : row + 1]):
                return False
    view, shared = mask.shape[3], heads != key_heads
    keys, values, seen = keys[:, :, :view], values[:, :, :view], mask.expand(-1, -1, 64, -1)
    block = attend(query, keys, values, attn_mask=seen, enable_gqa=shared)
    few = attend(query[:1, :, 16:32], keys[:1], values[:1], attn_mask=seen[:1, :, 16:32], enable_gqa=shared)
    return torch.equal(few, block[:1, :, 16:32])


def _try(model: "TransformersModel") -> tuple[int, str]:
    """How many rows a step needs, and why no number is enough; the reason is "" if one is."""
    least = 1
    for layer in _kinds_of_layers(model):
        found = _least(layer)
        if found is None:
            assert isinstance(layer.weight, Tensor)
            counts = ", ".join(map(str, _COUNTS))
            return least, (
                f"its {type(layer).__name__} of {tuple(layer.weight.shape)} gives a row other bits with {_MOST} rows "
                f"than with more (of {counts})"
            )
        least = max(least, found)
    rows, heads = model.new_rows(1, 32), int(model.decoder_config.num_attention_heads)
    rows.prefill(slice(0, 1), [[0]])
    for key_heads, width in {(keys.shape[1], keys.shape[3]) for name, keys, _ in rows.parts() if "keys" in name}:
        if heads % key_heads or not attention_agrees(heads, key_heads, width, model.placement.dtype):
            return least, f"its attention, {heads} heads over {key_heads} of {width} numbers, depends on the batch"
    return least, ""


def _reason(model: "TransformersModel") -> str:
    """Why the model cannot promise equal bits, for reasons beside its linear layers; "" if there are none."""
    inner, placement = innermost(model.hf_model), model.placement
    if inner is not model.hf_model:
        return f"it is wrapped in a {type(model.hf_model).__name__}, whose layers are not known"
    if placement.offloaded or {device.type for device in placement.devices} != {"cpu"}:
        return "it has been shown on a CPU alone"
    if placement.packed_dtype is not None:
        return "its float16 weights are packed, for which this has not been shown"
    if any(getattr(model.decoder_config, experts, 0) > 1 for experts in _MIXTURES):
        return "its experts get other numbers of rows in every batch"
    for part in inner.modules():
        kind = type(part).__name__
        known = type(part).__module__.partition(".")[0] in ("torch", "transformers", "gen")
        buffers = () if known else part.buffers(recurse=False)  # where gptqmodel has its weights
        large = [one for one in (*part.parameters(recurse=False), *buffers) if one.dim() > 1]
        plain = isinstance(part, nn.Linear | nn.Embedding) or kind == "Conv1D"
        if large and not (plain and all(one.dtype in _FLOATS for one in large)):
            return f"it has layers of the kind {kind}, which may depend on the batch"
        if type(part).__module__.startswith("torch.") and kind.startswith(("BatchNorm", "Dropout")) and part.training:
            return f"it has a {kind} in training mode"
    return _attention(model)


_FLOATS = {torch.float32, torch.bfloat16, torch.float16, torch.float64}


def _attention(model: "TransformersModel") -> str:
    """Why its attention cannot promise equal bits; "" if gen's own runs in every layer, for prompts and for steps."""
    use = model.attention
    if use is None:
        return f"it runs {model.told_attention} attention instead of gen's own; load with attn_implementation='sdpa'"
    before, use.own, use.reasons = (use.own, use.reasons), 0, set()
    rows = model.new_rows(1, 64)
    if rows.whole_prompts:
        return "it has recurrent layers"
    rows.prefill(slice(0, 1), [[0, 0, 0]])
    rows.step(torch.zeros((1, 1), dtype=torch.int64), 64)
    layers = sum("keys" in name for name, _, _ in rows.parts())
    found, told = use.own, model.told_attention
    use.own, use.reasons = before[0] + use.own, before[1] | use.reasons
    return "" if found >= 2 * layers and told == "gen's own" else f"its attention is {told}"


def _kinds_of_layers(model: "TransformersModel") -> list[nn.Module]:
    """One layer of each shape and type."""
    kinds: dict[tuple[object, ...], nn.Module] = {}
    for part in innermost(model.hf_model).modules():
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D":
            weight = part.weight
            kinds.setdefault((type(part), weight.shape, weight.dtype, part.bias is None), part)
    return [*kinds.values()]


def _least(layer: nn.Module) -> int | None:
    """The fewest rows from which on a layer gives the first rows the same bits; None if that needs too many."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    width = weight.shape[1] if isinstance(layer, nn.Linear) else weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    least = 1
    for _ in range(_TRIES):
        given = torch.randn((_COUNTS[-1], width), generator=generator).to(weight.dtype)
        expected = layer(given)
        for count in _COUNTS:
            if not torch.equal(layer(given[:count]), expected[:count]):
                least = max(least, 2 * count)
    return least if least <= _MOST else None
