"""Penalties: the changes that a sampler asks the loop to make to the logits; `gen/stages/penalties.py` makes them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from gen.arguments import as_lists, check_text, is_whole, read_whole
from gen.errors import ArgumentError, show
from gen.samplers.settings import immutable, read_number

_LARGEST = 1e30  # the largest bias, penalty or factor: usual logits stay within float32


@immutable("Penalties")
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Penalties:
    """The changes that a sampler asks the loop to make to the logits, in this order; every sampler takes them. In a
    beam search the loop makes them to the log-probabilities, as transformers does.

    Attributes:
        logit_bias: added to the logits of these token ids; -inf bans one.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or the text; above
            0; 1 changes nothing. Source: Keskar et al. 2019, arXiv:1909.05858.
        frequency_penalty: subtracted from a token's logit for each time that the new text has the token. No penalty or
            bias may be beyond 1e30.
        presence_penalty: subtracted once if the new text has the token. Source of both: the OpenAI API.
        no_repeat_ngram_size: no sequence of this many tokens comes twice, prompt included; 0 for no limit. Source:
            Paulus et al. 2017, arXiv:1705.04304.
        bad_words: texts, or lists of token ids, that never come. A text is excluded in two forms: as the tokenizer
            encodes it with and without a space before it.
        min_new_tokens: no eos before this many new tokens; max_new_tokens and the context may end a text earlier.
    Raises:
        ArgumentError: a value is unusable, or a name unknown; an attribute is set.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_new_tokens: int = 0
    bad_words: Sequence[str | Sequence[int]] | None = None
    no_repeat_ngram_size: int = 0

    def __post_init__(self) -> None:
        read: dict[str, Any] = {
            "repetition_penalty": read_number("repetition_penalty", self.repetition_penalty, above=0, maximum=_LARGEST),
            "logit_bias": _read_bias(self.logit_bias),
            "bad_words": _read_words(self.bad_words),
        }
        for name in ("presence_penalty", "frequency_penalty"):
            read[name] = read_number(name, getattr(self, name), minimum=-_LARGEST, maximum=_LARGEST)
        for name in ("min_new_tokens", "no_repeat_ngram_size"):
            read[name] = read_whole(name, getattr(self, name))
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @property
    def penalties(self) -> "Penalties | None":
        """These settings without the sampler's own, for the loop; None if they change nothing."""
        given = {field.name: getattr(self, field.name) for field in fields(Penalties)}
        changes = any(given[field.name] != field.default for field in fields(Penalties))
        return Penalties(**given) if changes else None


def _read_bias(given: object) -> dict[int, float] | None:
    """A copy, in the order of the token ids; None if it is empty."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ArgumentError(f"logit_bias must be a dict of token ids and biases, as {{13: -5.0}}, got {show(given)}")
    read = {read_whole("a token id of logit_bias", key): _read_one_bias(bias) for key, bias in given.items()}
    return dict(sorted(read.items())) or None


def _read_one_bias(bias: object) -> float:
    if isinstance(bias, Real) and bias == -math.inf:
        return -math.inf
    return read_number("a bias of logit_bias", bias, minimum=-_LARGEST, maximum=_LARGEST)


def _read_words(given: object) -> tuple[str | tuple[int, ...], ...] | None:
    """A copy; None if it is empty."""
    wanted = "bad_words takes a list of texts or of lists of token ids"
    if not isinstance(given, Sequence | None) or isinstance(given, str | bytes | bytearray | memoryview):
        raise ArgumentError(f"{wanted}, got {show(given)}")
    words: list[str | tuple[int, ...]] = []
    for number, word in enumerate(map(as_lists, given or ())):
        if isinstance(word, str) and word:
            check_text(f"bad word {number}", word)
            words.append(word)
        elif isinstance(word, list | tuple) and word and all(map(is_whole, word)):
            words.append(tuple(read_whole(f"a token id of bad word {number}", token_id) for token_id in word))
        else:
            raise ArgumentError(f"{wanted}, got {show(word)} as bad word {number}")
    return tuple(words) or None
