"""Log-probabilities as OpenAI's protocols write them: the model's own, before temperature, penalties and cuts."""

from collections.abc import Iterable
from typing import Any

from gen.completions import StreamEvent, TopLogprobs
from gen.errors import ConstraintError
from gen.tokenizers import Tokenizer

_LEAST = -9999.0  # stands for minus infinity, which JSON has not

Likely = tuple[int, TopLogprobs]  # a token, and how likely it was


def likely_tokens(new: StreamEvent) -> list[Likely]:
    """The tokens of an event, each with its log-probabilities."""
    return list(zip(new.token_ids, new.top_logprobs or [], strict=False))


def in_chat_form(tokenizer: Tokenizer, tokens: Iterable[Likely]) -> dict[str, Any]:
    """As chat completions have them."""
    content = [
        {
            **_token(tokenizer, token_id, told.logprob),
            "top_logprobs": [
                _token(tokenizer, other, logprob) for other, logprob in zip(told.token_ids, told.logprobs, strict=True)
            ],
        }
        for token_id, told in tokens
    ]
    return {"content": content, "refusal": None}


def in_text_form(tokenizer: Tokenizer, tokens: Iterable[Likely], offset: int) -> dict[str, Any]:
    """As completions have them.

    Args:
        offset: how many characters stand before the first token.
    """
    names, own, top, offsets = [], [], [], []
    for token_id, told in tokens:
        names.append(_text(tokenizer, token_id))
        own.append(max(told.logprob, _LEAST))
        pairs = zip(told.token_ids, told.logprobs, strict=True)
        likely = {_text(tokenizer, other): max(logprob, _LEAST) for other, logprob in pairs}
        top.append({names[-1]: own[-1]} | likely)
        offsets.append(offset)
        offset += len(names[-1])
    return {"tokens": names, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets}


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": _text(tokenizer, token_id),
        "logprob": max(logprob, _LEAST),
        "bytes": [*_bytes(tokenizer, token_id)],
    }


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return _bytes(tokenizer, token_id).decode(errors="replace")


def _bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What a token spells; of a special token its name."""
    if token_id in tokenizer.special_tokens:
        return tokenizer.special_tokens[token_id].encode()
    try:
        return tokenizer.token_bytes(token_id)
    except ConstraintError:  # a tokenizer whose bytes are not known
        return tokenizer.decode([token_id]).encode()
