"""Log-probabilities in the form of OpenAI's protocols: the model's own, before temperature, penalties and cuts."""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gen.completions import StreamEvent, TopLogprobs
from gen.errors import ConstraintError
from gen.tokens.tokenizers import Tokenizer

_LEAST = -9999.0  # stands for minus infinity, which JSON does not have

Likely = tuple[int, TopLogprobs | None]  # a token and its log-probabilities; None for a prompt's first token


def likely_tokens(new: StreamEvent) -> list[Likely]:
    """The tokens of an event, each with its log-probabilities."""
    return list(zip(new.token_ids, new.top_logprobs or [], strict=False))


def likely_prompt(prompt_ids: Sequence[int], told: Sequence[TopLogprobs], top: int) -> list[Likely]:
    """The tokens of a prompt with their log-probabilities and the `top` likeliest tokens; the first one has none."""
    cut = [replace(one, token_ids=one.token_ids[:top], logprobs=one.logprobs[:top]) for one in told]
    return list(zip(prompt_ids, [None, *cut], strict=True))


def in_chat_form(tokenizer: Tokenizer, tokens: Iterable[Likely]) -> dict[str, Any]:
    """Log-probabilities in the form of chat completions."""
    content = [
        {
            **_token(tokenizer, token_id, told.logprob),
            "top_logprobs": [
                _token(tokenizer, other, logprob) for other, logprob in zip(told.token_ids, told.logprobs, strict=True)
            ],
        }
        for token_id, told in tokens
        if told is not None
    ]
    return {"content": content, "refusal": None}


class Places:
    """Where tokens begin in a text, in characters, as they come; one within a character begins where that one does.

    Args:
        begin: where the first token begins.
        shown: whether special tokens are part of the text.
        first: whether no text comes before; some decoders leave out the first token's space there.

    Attributes:
        end: where the next token begins.
    """

    def __init__(self, tokenizer: Tokenizer, begin: int, *, shown: bool, first: bool = False) -> None:
        self._tokenizer, self.end, self._shown, self._first = tokenizer, begin, shown, first
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def take(self, tokens: Iterable[Likely]) -> list[int]:
        """Where each of these tokens begins, which come next."""
        found = []
        for token_id, _ in tokens:
            found.append(self.end)
            if self._shown or token_id not in self._tokenizer.special_tokens:
                text = self._decoder.decode(_bytes(self._tokenizer, token_id))
                if self._first and not self._tokenizer.decode([token_id]).startswith(" "):
                    text = text.removeprefix(" ")
                self._first = False
                self.end += len(text)
        return found


def in_text_form(tokenizer: Tokenizer, tokens: Sequence[Likely], places: Sequence[int]) -> dict[str, Any]:
    """Log-probabilities in the form of completions. Of tokens with the same text, the likeliest is told: of those that
    are not chosen.

    Args:
        places: where each token begins in the text.
    """
    told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [*places]}
    for token_id, found in tokens:
        name, own, top = text_of(tokenizer, token_id), None, None
        if found is not None:
            own = max(found.logprob, _LEAST)
            top = {name: own}
            for other, logprob in zip(found.token_ids, found.logprobs, strict=True):
                top.setdefault(text_of(tokenizer, other), max(logprob, _LEAST))
        told["tokens"].append(name)
        told["token_logprobs"].append(own)
        told["top_logprobs"].append(top)
    return told


def in_prompt_form(tokenizer: Tokenizer, tokens: Iterable[Likely]) -> list[dict[str, Any] | None]:
    """Log-probabilities in the form of vLLM's prompt_logprobs: for each place, those of its token and of the likeliest
    ones, by token id.

    If the token is not among the likeliest ones, its rank is not known.
    """
    found: list[dict[str, Any] | None] = []
    for token_id, told in tokens:
        if told is None:
            found.append(None)
            continue
        ranks = {other: rank for rank, other in enumerate(told.token_ids, 1)}
        likely = {token_id: told.logprob} | dict(zip(told.token_ids, told.logprobs, strict=True))
        found.append(
            {
                str(one): {
                    "logprob": max(logprob, _LEAST),
                    "rank": ranks.get(one),
                    "decoded_token": text_of(tokenizer, one),
                }
                for one, logprob in likely.items()
            }
        )
    return found


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": text_of(tokenizer, token_id),
        "logprob": max(logprob, _LEAST),
        "bytes": [*_bytes(tokenizer, token_id)],
    }


def text_of(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token by itself."""
    return _bytes(tokenizer, token_id).decode(errors="replace")


def _bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes that a token spells; for a special token, those of its name."""
    if token_id in tokenizer.special_tokens:
        return tokenizer.special_tokens[token_id].encode()
    try:
        return tokenizer.token_bytes(token_id)
    except ConstraintError:  # gen does not know the bytes of this tokenizer's tokens
        return tokenizer.decode([token_id]).encode()
