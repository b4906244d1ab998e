"""The sampler that a checkpoint recommends in its generation config."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gen.errors import ArgumentError, ModelError, show
from gen.samplers import GreedySampler, MultinomialSampler, Sampler

if TYPE_CHECKING:
    from transformers import GenerationConfig

_CUTS = ("temperature", "top_k", "top_p", "min_p")
_PENALTIES = {"repetition_penalty": 1, "no_repeat_ngram_size": 0, "min_new_tokens": 0}  # and their neutral values
_LEFT_OUT_CUTS = {"typical_p": 1, "top_h": None, "epsilon_cutoff": 0, "eta_cutoff": 0}
_LEFT_OUT = {
    "num_beams": 1,
    "penalty_alpha": 0,
    "dola_layers": None,
    "guidance_scale": 1,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "min_length": 0,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "force_words_ids": None,
    "constraints": None,
    "stop_strings": None,
    "token_healing": False,
    "watermarking_config": None,
}

_log = logging.getLogger(__name__)


def recommended_sampler(config: "GenerationConfig | None", vocab_size: int, eos_token_ids: Sequence[int]) -> Sampler:
    """The sampler that a checkpoint's generation config describes.

    It is greedy if the config says `do_sample: false`; otherwise it draws with the config's temperature, top-k, top-p
    and min-p, at temperature 1 if the config has none. Either has the config's repetition penalty, n-grams, minimum of
    new tokens, bad words, suppressed tokens and biases of single tokens. The defaults of transformers for settings that
    the checkpoint does not have (such as a top-k of 50) are no recommendation, and are not used. Settings that no
    sampler of gen has, such as beams, are left out, and named in one logged warning.

    Args:
        config: of transformers; None if the model has none.
        vocab_size: how many token ids can come; bans of other ids are dropped.
        eos_token_ids: never banned as bad words of one token, as in transformers.
    Raises:
        ModelError: a setting has a value that no sampler takes.
    """
    settings: dict[str, Any] = config.to_dict() if config is not None else {}
    greedy = settings.get("do_sample") is False
    penalties: dict[str, Any] = {name: settings[name] for name in _set(settings, _PENALTIES)}
    banned = [[token_id] for token_id in settings.get("suppress_tokens") or ()]
    banned += [word for word in settings.get("bad_words_ids") or () if word not in [[eos] for eos in eos_token_ids]]
    if words := [word for word in banned if max(word, default=0) < vocab_size]:
        penalties["bad_words"] = words
    left_out = _LEFT_OUT if greedy else _LEFT_OUT_CUTS | _LEFT_OUT
    biases = _biases(settings.get("sequence_bias"))
    if any(len(token_ids) > 1 for token_ids in biases):
        left_out = left_out | {"sequence_bias": None}
    elif known := {token_id: bias for [token_id], bias in biases.items() if token_id < vocab_size}:
        penalties["logit_bias"] = known
    if unknown := _set(settings, left_out):
        named = ", ".join(f"{name}={show(settings[name])}" for name in unknown)
        _log.warning("left out of the checkpoint's recommended sampler, since gen has no such setting: %s", named)
    cuts = {name: settings[name] for name in _CUTS if settings.get(name) is not None}
    if cuts.get("top_k") == 0:  # off, as transformers writes it
        del cuts["top_k"]
    try:
        return GreedySampler(**penalties) if greedy else MultinomialSampler(**cuts, **penalties)
    except ArgumentError as error:
        raise ModelError(
            f"the checkpoint's generation config cannot be used: {error}; give a sampler, such as "
            "gen.samplers.multinomial()."
        ) from error


def eos_of_config(*configs: Any) -> object:
    """The eos that the first of several configs of a model names, as it is written there; None if none does."""
    named = (getattr(config, "eos_token_id", None) for config in configs)
    return next((eos for eos in named if eos is not None), None)


def read_eos(eos: object) -> tuple[int, ...]:
    """The ids that end a text, from a config's `eos_token_id`: one id, several, or None; -1 stands for none, too.

    Raises:
        ModelError: it is something else.
    """
    ids = () if eos is None else (eos,) if isinstance(eos, int) else eos
    if not isinstance(ids, list | tuple) or not all(isinstance(one, int) for one in ids):
        raise ModelError(f"the generation config's eos_token_id must be a token id or a list of them, got {show(eos)}")
    return tuple(token_id for token_id in ids if token_id >= 0)


def _set(settings: dict[str, Any], neutral: dict[str, Any]) -> list[str]:
    """Which of the names have a value that changes something."""
    return [name for name, nothing in neutral.items() if settings.get(name) not in (None, [], nothing)]


def _biases(given: Any) -> dict[tuple[int, ...], float]:
    """Transformers' sequence_bias, a dict of tuples or a list of pairs as JSON has it."""
    pairs = given.items() if isinstance(given, dict) else given or ()
    return {tuple(token_ids): bias for token_ids, bias in pairs}
