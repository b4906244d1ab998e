"""The fields that all protocols share: how tokens are drawn, and when a text ends."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gen.errors import show
from gen.models.base import Model
from gen.requests.prompts import ends_of
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler, Sampler
from gen.samplers.penalties import Penalties
from gen.server.bodies import Body
from gen.server.errors import refused

Number = Annotated[float, Field(allow_inf_nan=False)]
_SEEDS = 2**63
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,18}")

# Fields that this server does not support and that would change the text, each with the value that changes nothing.
NOT_SUPPORTED: Mapping[str, object] = {
    "add_special_tokens": False,  # beside those that a chat template writes
    "allowed_token_ids": None,
    "best_of": 1,
    "chat_template": None,
    "documents": None,
    "dry_multiplier": 0,
    "dynatemp_range": 0,
    "ebnf": None,
    "grammar": None,
    "guided_choice": None,
    "guided_grammar": None,
    "guided_json": None,
    "guided_regex": None,
    "json_schema": None,
    "length_penalty": 1.0,
    "logits_processors": None,
    "mirostat": 0,
    "mirostat_mode": 0,
    "mm_processor_kwargs": None,
    "prompt_embeds": None,
    "prompt_logprobs": None,
    "regex": None,
    "repeat_penalty": 1.0,
    "stop_regex": None,
    "tfs_z": 1.0,
    "top_a": 0,
    "truncate_prompt_tokens": None,
    "typical_p": 1.0,
    "use_beam_search": False,
    "xtc_probability": 0,
}

OF_ONE_TEXT: Mapping[str, object] = {**NOT_SUPPORTED, "n": 1, "structured_outputs": None, "response_format": None}
"""The same for protocols whose requests are for one text, with output types by names of their own."""


class SamplingFields(Body):
    """OpenAI's fields, and further ones of vLLM."""

    refused: ClassVar[Mapping[str, object]] = NOT_SUPPORTED
    renamed: ClassVar[dict[str, tuple[str, ...]]] = {
        "max_new_tokens": ("max_tokens",),
        "min_new_tokens": ("min_tokens",),
        "include_stop": ("include_stop_str_in_output",),
        "eos_token_id": ("stop_token_ids", "ignore_eos"),
    }

    model: str | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0)] | None = None
    logit_bias: dict[str, Number] | None = None
    bad_words: list[str] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    seed: int | None = None
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    cache_salt: str | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    stream: bool = False

    @property
    def cap(self) -> int | None:
        """How many tokens a text may have; None if the client does not say."""
        given = (getattr(self, name) for name in self.renamed["max_new_tokens"])
        cap: int | None = next((one for one in given if one is not None), None)
        return cap

    def sampler(self, model: Model, usual: Sampler | None = None) -> Sampler:
        """The sampler that the checkpoint recommends, changed by the given fields.

        Args:
            usual: the sampler to change instead of the recommended one; None for that one.
        """
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "bad_words": self.bad_words,
            "min_new_tokens": self.min_tokens,
            "logit_bias": self._bias(),
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.top_k is not None:
            given["top_k"] = self.top_k if self.top_k > 0 else None  # other servers write 0 or -1 for no top-k
        base: Any = usual or model.recommended_sampler
        if given and isinstance(base, BeamSearchSampler):
            raise refused(f"{', '.join(given)}: not for beam search, which is the sampler here.", next(iter(given)))
        if isinstance(base, GreedySampler) and any(one in given for one in ("temperature", "top_p", "min_p", "top_k")):
            kept = {name: getattr(base, name) for name in Penalties.__dataclass_fields__}
            base = MultinomialSampler(**kept)
        changed: Sampler = replace(base, **given) if given else base
        return changed

    def arguments(self, model: Model) -> dict[str, Any]:
        """Further arguments of `Engine.submit`: where a text ends, and what is left out of it."""
        ends: list[int] | None = None
        if self.stop_token_ids or self.ignore_eos:
            ends = [*(() if self.ignore_eos else ends_of(model)), *(self.stop_token_ids or ())]
        return {
            "stop": self.stop,
            "include_stop": self.include_stop_str_in_output,
            "eos_token_id": ends,
            "skip_special_tokens": self.skip_special_tokens,
            "cache_salt": self.cache_salt,
            "priority": self.priority,
        }

    @property
    def seed_of_gen(self) -> int | None:
        """The seed as `gen.generate` takes it: not negative."""
        return None if self.seed is None else self.seed % _SEEDS

    def _bias(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        given = {name: bias for name, bias in self.logit_bias.items() if bias}
        for name in given:
            if not _TOKEN_ID.fullmatch(name):  # int() also reads "5_0", " 50" and "050"
                raise refused(f"logit_bias: the keys must be token ids, got {show(name)}", "logit_bias")
        return {int(name): bias for name, bias in given.items()}
