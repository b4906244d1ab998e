"""Processors: what changes the logits by looking at the tokens so far. The decode loop runs them before any sampler.

All functions take logits (rows, vocab), floating, and `seen`, the tokens so far: (rows, length) int64 on the logits'
device, -1 where there is none (padding on the left, and what is yet to come). They return new logits in float32, leave
their arguments alone and have no host sync; shapes are static.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self, TypedDict

import torch
from torch import Tensor

from gen.arguments import as_lists, check_text, is_whole, read_whole
from gen.errors import ArgumentError, check_number, refuse_unknown, show

LARGEST_FLOAT = torch.finfo(torch.float32).max


class ProcessorSettings(TypedDict, total=False):
    """The keyword arguments of `Processors`, which every sampler takes too."""

    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_new_tokens: int
    bad_words: Sequence[str | Sequence[int]] | None
    no_repeat_ngram_size: int


@dataclass(frozen=True, kw_only=True)
class Processors:
    """What a sampler asks the loop to do to the logits, in this order.

    Attributes:
        logit_bias: added to the logits of these token ids.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or the text; above
            0, 1 for none. Source: Keskar et al. 2019, arXiv:1909.05858.
        frequency_penalty: taken off a token's logit for each time that it is in the new text.
        presence_penalty: taken off once for a token that is in the new text at all. Source, of both: the OpenAI API.
        no_repeat_ngram_size: no run of so many tokens comes twice, prompt included; 0 for no limit. Source: Paulus et
            al. 2017, arXiv:1705.04304.
        bad_words: texts, or lists of token ids, that never come. A text is kept out as the tokenizer writes it, with
            and without a space before it.
        min_new_tokens: no eos before so many new tokens.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_new_tokens: int = 0
    bad_words: Sequence[str | Sequence[int]] | None = None
    no_repeat_ngram_size: int = 0

    def __post_init__(self) -> None:
        check_number("repetition_penalty", self.repetition_penalty, above=0, maximum=LARGEST_FLOAT)
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), minimum=-LARGEST_FLOAT, maximum=LARGEST_FLOAT)
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))
        check_number("min_new_tokens", self.min_new_tokens, minimum=0, whole=True)
        check_number("no_repeat_ngram_size", self.no_repeat_ngram_size, minimum=0, whole=True)
        object.__setattr__(self, "logit_bias", _read_bias(self.logit_bias))
        object.__setattr__(self, "bad_words", _read_words(self.bad_words))

    @classmethod
    def read(cls, function: str, settings: Mapping[str, object], own: Sequence[str]) -> Self | None:
        """From a sampler's keyword arguments; None if there are none.

        Args:
            function: the sampler's name, for the error.
            own: names that the sampler takes itself.
        Raises:
            ArgumentError: an unknown name, or an unusable value.
        """
        names = [field.name for field in fields(cls)]
        refuse_unknown(function, [name for name in settings if name not in names], [*own, *names])
        return cls(**settings) if settings else None  # type: ignore[arg-type]


def _read_bias(given: object) -> dict[int, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentError(f"logit_bias must be a dict of token ids and biases, as {{13: -5.0}}, got {show(given)}")
    for bias in given.values():
        check_number("a bias of logit_bias", bias, minimum=-LARGEST_FLOAT, maximum=LARGEST_FLOAT)
    return {read_whole("a token id of logit_bias", key): float(bias) for key, bias in given.items()}


def _read_words(given: object) -> tuple[str | tuple[int, ...], ...]:
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
    return tuple(words)


def add_bias(logits: Tensor, bias: Tensor) -> Tensor:
    """Add bias (vocab,) float32 to every row."""
    return logits.float() + bias


def penalize_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """See `Processors.repetition_penalty`."""
    logits = logits.float()
    penalized = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(_counts(seen, logits.shape[1]) > 0, penalized, logits)


def penalize_presence(logits: Tensor, new: Tensor, presence: float, frequency: float) -> Tensor:
    """See `Processors.presence_penalty` and `frequency_penalty`; `new` is the part of `seen` after the prompt."""
    counts = _counts(new, logits.shape[1])
    return logits.float() - counts * frequency - (counts > 0) * presence


def ban_repeated_ngrams(logits: Tensor, seen: Tensor, position: Tensor, size: int) -> Tensor:
    """See `Processors.no_repeat_ngram_size`.

    Args:
        position: (1,), int64: the column of `seen` where the next token goes.
    """
    if seen.shape[1] < size:
        return logits.float()
    windows = seen.unfold(1, size, 1)  # (rows, length - size + 1, size)
    same = (windows[..., :-1] == _last(seen, position, size - 1).unsqueeze(1)).all(-1)
    return _ban(logits, torch.where(same, windows[..., -1], -1))


def ban_sequence(logits: Tensor, seen: Tensor, position: Tensor, token_ids: Tensor) -> Tensor:
    """Ban the last of token_ids (n,) where those before it are what came last."""
    last = _last(seen, position, len(token_ids) - 1)
    follows = (last == token_ids[:-1]).all(-1, keepdim=True)
    return _ban(logits, torch.where(follows, token_ids[-1:], -1))


def ban_until(logits: Tensor, token_ids: Tensor, reached: Tensor) -> Tensor:
    """Ban token_ids (n,) until `reached` (1,) bool is true."""
    return _ban(logits, torch.where(reached, -1, token_ids).expand(len(logits), -1))


def _last(seen: Tensor, position: Tensor, count: int) -> Tensor:
    """The `count` tokens before a position, (rows, count); -2, equal to nothing, where there are none."""
    columns = position + torch.arange(-count, 0, device=seen.device)
    tokens = seen.index_select(1, columns.clamp(min=0))
    return torch.where((columns < 0) | (tokens < 0), -2, tokens)


def _counts(tokens: Tensor, vocab: int) -> Tensor:
    """How often each row has each token: (rows, vocab) float32; -1 is not counted."""
    counts = torch.zeros((len(tokens), vocab + 1), dtype=torch.float32, device=tokens.device)
    places = torch.where(tokens < 0, vocab, tokens)
    return counts.scatter_add_(1, places, torch.ones_like(places, dtype=torch.float32))[:, :vocab]


def _ban(logits: Tensor, tokens: Tensor) -> Tensor:
    """Logits with -inf at each row's tokens (rows, n); -1 bans nothing."""
    return logits.float().masked_fill(_counts(tokens, logits.shape[1]) > 0, -math.inf)
