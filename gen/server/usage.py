"""How many tokens a request took, and how its texts were made."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gen.completions import Completion
from gen.errors import GenError
from gen.tokens.tokenizers import Tokenizer


def usage_of(made: Sequence[Completion], prompt_tokens: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The usage in the form of OpenAI's completions and chat completions."""
    new = sum(len(one.token_ids) for one in made)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new,
        "total_tokens": prompt_tokens + new,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(made, prompt_tokens)},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens(made, tokenizer)},
    }


def cached_tokens(made: Sequence[Completion], prompt_tokens: int) -> int:
    """How many tokens of prompts were in the KV cache already; a prompt of several texts counts once."""
    return min(sum(one.cached_tokens for one in made), prompt_tokens)


def reasoning_tokens(made: Sequence[Completion], tokenizer: Tokenizer) -> int:
    """How many tokens the thoughts have."""
    return sum(one.reasoning_tokens or len(tokenizer.encode_plain(one.reasoning)) for one in made if one.reasoning)


def receipt_of(completion: Completion, *, asked: bool) -> dict[str, Any]:
    """The fields that say how a text was made, if they are asked for: its receipt, or why it has none."""
    if not asked:
        return {}
    try:
        return {"receipt": asdict(completion.receipt)}
    except GenError as error:
        return {"receipt": None, "receipt_error": str(error)}
