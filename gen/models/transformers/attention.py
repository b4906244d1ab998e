"""Runs gen's own attention inside of a transformers model, but only for keys from gen's own cache.

The cache marks its keys with the attention to use. The function that transformers has registered as "sdpa" is wrapped
once: marked keys get that attention, and all others get transformers' own. So a model's own forward, in any thread,
gets the same bits from the same function, and its config stays as it is.

This module imports transformers: import it only where a transformers model is at hand.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from gen.attention.plan import Plan
from gen.attention.prompts import attend_blocks, attend_groups
from gen.attention.steps import Apart, attend_rows
from gen.errors import ModelError

_NAME, _MARK = "sdpa", "gen_attention"


class Use:
    """What was seen of a model's attention while it was watched.

    Attributes:
        own: how often gen's own attention ran.
        reasons: why transformers' attention ran at other times.
        alters: whether a layer selects the columns that it attends to, or makes values of its own of the cache's:
            then a row's own memory cannot stand for what attention gets.
    """

    def __init__(self) -> None:
        self.own = 0
        self.reasons: set[str] = set()
        self.alters = False

    @property
    def alone(self) -> bool:
        """Whether only gen's own attention has run."""
        return self.own > 0 and not self.reasons and not self.alters


class Marks:
    """The keys that a forward has marked, until attention gets them."""

    def __init__(self, use: Use) -> None:
        self.use = use
        self._waiting: list[Tensor] = []

    def add(self, keys: Tensor) -> None:
        """Note keys that were marked."""
        self._waiting.append(keys)

    def reached(self, keys: Tensor) -> None:
        """Note that attention has got marked keys; a layer may use those of another one again."""
        self._waiting = [one for one in self._waiting if one is not keys]

    def end(self) -> None:
        """Call this after a forward: keys that attention never got have lost their mark."""
        if self._waiting:
            self.use.reasons.add("keys without gen's mark")
            self._waiting = []


class StepAttention:
    """The attention of a step: each row attends to its own columns.

    Args:
        apart: rows whose columns are not in the keys and values of a call.
    """

    def __init__(self, plan: Plan, marks: Marks, apart: Apart = ()) -> None:
        self.plan, self.marks, self.apart = plan, marks, apart

    def beside(self, apart: Apart) -> "StepAttention":
        """The same attention for a layer with these rows apart."""
        return StepAttention(self.plan, self.marks, apart) if apart else self

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        return attend_rows(query, keys, values, mask, self.plan, scale, self.apart)


class PromptAttention:
    """The attention of prompts; in blocks on a CPU if the first tokens of all have the same column, `start`."""

    apart: Apart = ()

    def __init__(self, start: int | None, use: Use) -> None:
        self.start, self.marks = start, Marks(use)

    def beside(self, apart: Apart) -> "PromptAttention":
        """The same: a prompt's row with memory of its own is read alone, and its keys are this memory's."""
        return self

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        if self.start is not None and query.device.type == "cpu":
            return attend_blocks(query, keys, values, mask, self.start, scale)
        return attend_groups(query, keys, values, mask, scale)


def mark(keys: Tensor, values: Tensor, attention: "StepAttention | PromptAttention | None") -> tuple[Tensor, Tensor]:
    """Mark keys and values of the cache with the attention to use; None leaves them to transformers."""
    if attention is not None and not torch.compiler.is_compiling():
        setattr(keys, _MARK, attention)
        setattr(values, _MARK, attention)
        attention.marks.add(keys)
    return keys, values


def may_serve(model: Any) -> bool:
    """Whether a model runs the function that transformers has registered, as far as its class and config say."""
    text = model.config.get_text_config(decoder=True)
    return bool(getattr(model, "_supports_attention_backend", False)) and text._attn_implementation == _NAME


def called_by_name(config: Any) -> list[object]:
    """The functions that layers find by a name in their config, where users register functions of their own."""
    attention = ALL_ATTENTION_FUNCTIONS.get(config._attn_implementation)
    return [attention, ALL_EXPERTS_FUNCTIONS.get(getattr(config, "_experts_implementation", None))]


def install() -> None:
    """Wrap transformers' "sdpa", so that it looks for marked keys; does nothing if it is wrapped already."""
    theirs = ALL_ATTENTION_FUNCTIONS[_NAME]
    if not isinstance(theirs, _Sdpa):
        AttentionInterface.register(_NAME, _Sdpa(theirs))


class _Sdpa:
    """transformers' function for all keys except marked ones."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        attention = None if torch.compiler.is_compiling() else getattr(key, _MARK, None)
        if attention is not None:
            attention.marks.reached(key)
            altered = getattr(value, _MARK, None) is not attention
            attention.marks.use.alters |= altered
            reason = _refused(query, key, attention_mask, dropout, options, attention)
            if reason := reason or ("values of a layer's own" if altered and attention.apart else ""):
                attention.marks.use.reasons.add(reason)
                if attention.apart:  # the columns of some rows are elsewhere
                    raise ModelError(f"the model's attention has changed since gen took the model over: {reason}.")
                attention = None
        if attention is None or attention_mask is None:
            made: tuple[Tensor, Tensor | None] = self.theirs(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
            )
            return made
        attention.marks.use.own += 1
        return attention(query, key, value, attention_mask, scaling), None


def _refused(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    dropout: float,
    options: dict[str, Any],
    attention: StepAttention | PromptAttention,
) -> str:
    """Why these arguments are left to transformers; "" if gen's own attention takes them."""
    if mask is None:
        return "no mask"
    for name in ("softcap", "position_bias", "s_aux", "cache"):
        if options.get(name) is not None:
            return name
    if dropout:
        return "dropout"
    columns = mask.shape[-1] if attention.apart else key.shape[2]
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2:] != (query.shape[2], columns):
        return f"a mask {tuple(mask.shape)}"
    if mask.dtype != query.dtype or query.dtype != key.dtype:
        return "several dtypes"
    return "other heads" if query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3] else ""
