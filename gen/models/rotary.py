"""How long a model's texts may be, where its rotation of positions depends on how long they are.

transformers chooses some frequencies anew at each forward, by the largest position in it: longrope has short and long
factors, dynamic scaling a base that grows. A text would then depend on what is read beside it, or was read before. gen
chooses once a model, by its context length.

Example: Phi-4-mini was trained on 4096 tokens, and has long factors for up to 131072. By default its context is 4096
tokens, with short factors. With `context_length=20000` all its texts get long factors, short ones too, as in vLLM.
"""

import copy
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from gen.arguments import read_whole
from gen.errors import ArgumentError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TWO_SETS = {"longrope", "su"}  # of factors: short and long ones
_CHOSEN = _TWO_SETS | {"dynamic"}  # by the length of texts
_FIXED = "gen_context_length"  # of a module whose frequencies gen has chosen: for texts of up to so many tokens
_POSITIONS = "max_position_embeddings", "max_seq_len", "max_target_positions"  # the last two are MPT's and Whisper's
_SCALES = "short_mscale", "long_mscale"  # PhiMoE's, which its forward chooses by positions, too

logger = logging.getLogger("gen")


@dataclass(frozen=True, kw_only=True)
class Context:
    """How many tokens a text may have, prompt and new ones.

    Attributes:
        length: the limit; sys.maxsize if there is none.
        usual: the longest context of the frequencies that short texts get; texts of more tokens need others.
        most: the largest limit that the config allows.
        two_sets: whether there are short and long factors.
    """

    length: int
    usual: int
    most: int
    two_sets: bool

    @property
    def stretched(self) -> bool:
        """Whether texts get other frequencies than short ones usually have."""
        return self.length > self.usual

    def log(self, name: str) -> None:
        """Log which factors a model of this name has, if there are two sets."""
        if self.two_sets:
            logger.info(
                "%s rotates positions with its %s factors in all texts of up to %d tokens; a context of more than %d, "
                "and at most %d, takes the long factors",
                name,
                "long" if self.stretched else "short",
                self.length,
                self.usual,
                self.most,
            )


def read_context(
    config: object, positions: int | None, asked: int | None, *, argument: str = "context_length"
) -> Context:
    """Read a limit that a user gives, or the one of a config.

    Args:
        config: with rope_parameters or rope_scaling as its attributes, if it rotates positions.
        positions: how many positions the model has by its config; None, or less than 1, if there is no limit.
        asked: what the user gives; None takes the context for which the model was trained.
    Raises:
        ArgumentError: more tokens than the config allows.
    """
    limit = positions if positions is not None and positions > 0 else sys.maxsize  # some say -1 for none
    usual, allowed, two_sets = limit, [], False
    for rope in _ropes(config):
        original = rope.get("original_max_position_embeddings")
        original = original or getattr(config, "original_max_position_embeddings", None) or limit
        if _kind(rope) in _TWO_SETS:
            two_sets, usual = True, min(usual, original)
        factor = rope.get("factor") or 1.0
        allowed.append(limit if factor == 1.0 else max(limit, int(factor * original)))
    most = min(allowed, default=limit)
    if asked is None:
        return Context(length=usual, usual=usual, most=most, two_sets=two_sets)
    length = read_whole(argument, asked, minimum=2)
    if length > most:
        raise ArgumentError(
            f"{argument} must be at most {most}, since the model's config knows no more positions, got {length}; for "
            "longer texts give a checkpoint whose config scales them, by its rope_parameters."
        )
    return Context(length=length, usual=usual, most=most, two_sets=two_sets)


class Rotary:
    """The rotary embeddings of a model of transformers that choose frequencies by the largest position.

    Attributes:
        context: how many tokens texts may have.
    """

    def __init__(self, model: nn.Module, config: "PreTrainedConfig", asked: int | None, *, own: bool) -> None:
        """Choose, and set the model to the choice if nobody else has it, or its forward would choose otherwise.

        Args:
            config: of the text part.
            asked: the context_length that the user gives.
            own: whether nobody but gen has the model.
        Raises:
            ArgumentError: see `read_context`; or the model was set to another choice before.
        """
        self._model = model
        self._parts = [module for module in model.modules() if _FIXED in vars(module) or [*_choosing(module)]]
        named = (getattr(config, name, None) for name in _POSITIONS)
        positions = next((number for number in named if number is not None), None)
        found = self._fixed()
        self.context = read_context(config, positions, found if asked is None else asked)
        if found is not None and (found > self.context.usual) != self.context.stretched:
            raise ArgumentError(
                f"{type(model).__name__} was set to a context of {found} tokens when it was loaded, with the "
                "frequencies for that; load it again for a context_length with others."
            )
        if self.context.stretched and not self._parts and any(_kind(rope) in _CHOSEN for rope in _ropes(config)):
            raise ArgumentError(
                f"context_length must be at most {self.context.usual}, got {self.context.length}: "
                f"{type(model).__name__} chooses frequencies for longer texts in code of its own, by the longest text "
                "of a batch."
            )
        if (own or self.context.stretched) and found is None:
            self._fix_()
        self._expected = self._fixed()
        self.context.log(type(model).__name__)

    @property
    def rewritten(self) -> frozenset[int]:
        """The ids of tensors that each forward of gen's fills with the same numbers; `.half()` makes others."""
        choosing = [(module, before) for module in self._parts for before, _, _ in _choosing(module)]
        return frozenset(id(getattr(module, f"{before}inv_freq")) for module, before in choosing)

    def _fix_(self) -> None:
        """Give the rotary embeddings the frequencies of the choice, and let their forwards choose no more."""
        for module in self._parts:
            for before, layer, kind in [*_choosing(module)]:
                _fix_(module, before, layer, kind, self.context)
            setattr(module, _FIXED, self.context.length)

    def check(self) -> None:
        """Undo what the caller's forwards of longer texts leave behind, as a short forward of the caller's would.

        Raises:
            ModelError: the model was set to another choice since.
        """
        if self._parts and self._fixed() != self._expected:
            raise ModelError(
                f"{type(self._model).__name__} was set to another context_length after you gave it to gen; load the "
                "model twice for two."
            )
        for module in self._parts:
            for before, _, kind in _choosing(module):
                grown: Any = vars(module).get(f"{before}max_seq_len_cached", 0)
                if kind == "dynamic" and grown > module.original_max_seq_len:
                    original: Any = getattr(module, f"{before}original_inv_freq")
                    setattr(module, f"{before}inv_freq", original.to(getattr(module, f"{before}inv_freq").device))
                    setattr(module, f"{before}max_seq_len_cached", module.original_max_seq_len)

    def _fixed(self) -> int | None:
        """The context for which gen has chosen the frequencies, if it has set the model to them."""
        return next((vars(module)[_FIXED] for module in self._parts if _FIXED in vars(module)), None)


def _choosing(module: nn.Module) -> Iterator[tuple[str, str | None, str]]:
    """The sets of frequencies that a module's forward chooses: the prefix of their attributes, kind of layer, type."""
    kinds = vars(module).get("rope_type")
    for layer, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
        before = "" if layer is None else f"{layer}_"
        if kind in _CHOSEN and f"{before}inv_freq" in module._buffers:
            yield before, layer, kind


def _fix_(module: Any, before: str, layer: str | None, kind: str, context: Context) -> None:
    """Give a rotary embedding the frequencies of texts of this length, for all texts; those that it has are for short
    ones, and in some models from a rule of their own (HunYuan's alpha, which older transformers call dynamic)."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if context.stretched:
        make = ROPE_INIT_FUNCTIONS[kind]
        for name in (f"{before}inv_freq", f"{before}original_inv_freq"):
            own = getattr(module, name)
            frequencies, _ = make(module.config, own.device, seq_len=context.length, layer_type=layer)
            setattr(module, name, frequencies.to(own.dtype))
    module.rope_type = "default" if layer is None else module.rope_type | {layer: "default"}  # chooses nothing
    rope = module.config.rope_parameters
    if all(name in rope for name in _SCALES):
        module.config = copy.deepcopy(module.config)
        scale = rope[_SCALES[context.stretched]]
        module.config.rope_parameters |= dict.fromkeys(_SCALES, scale)


def has_two_sets(config: object) -> bool:
    """Whether positions are rotated with short or long factors, by the longest text that is read."""
    return any(_kind(rope) in _TWO_SETS for rope in _ropes(config))


def _ropes(config: object) -> list[Mapping[str, Any]]:
    """The parameters of each rotation: one, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [one for one in rope.values() if isinstance(one, Mapping)]
    return nested or [rope]


def _kind(rope: Mapping[str, Any]) -> object:
    return rope.get("rope_type") or rope.get("type")
