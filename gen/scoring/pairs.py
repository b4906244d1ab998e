"""Reads what is to be scored: each continuation with its context, the tokens before it.

Example: for a tokenizer that writes " dog" as one token, the prompt "a cat " with the continuation "dog" becomes the
tokens of "a cat" and of " dog": those of the whole text, as in lm-evaluation-harness.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gen.arguments import as_lists, check_text, is_whole, read_token_ids
from gen.errors import ArgumentError, show
from gen.models.base import Model
from gen.requests.prompts import Prompt, read_one_prompt, vocabulary

Continuation = str | Sequence[int]


@dataclass(frozen=True)
class Pair:
    """A continuation and its context, as token ids; each has at least one.

    Attributes:
        name: what errors call the continuation, such as "prompt 3".
    """

    name: str
    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def length(self) -> int:
        """How many tokens the model reads: all but the last one, which predicts nothing."""
        return len(self.context) + len(self.continuation) - 1


def read_pairs(
    model: Model,
    number: int,
    prompt: Prompt,
    continuations: Sequence[Continuation] | None,
    *,
    chat: bool,
    name: str = "continuation",
) -> list[Pair]:
    """The pairs of one prompt; without continuations one pair, which scores the prompt's own tokens after its first.

    Args:
        number: the prompt's number, for errors.
        name: what errors call a continuation.
    Raises:
        ArgumentError: something is neither a text nor token ids, has no tokens, or is longer than the model's context.
    """
    try:
        context, _ = read_one_prompt(model, number, prompt, (), chat=chat, template_kwargs=None)
    except ArgumentError as error:
        raise ArgumentError(f"prompt {number}: {error}") from error
    if continuations is None:
        if len(context) < 2:
            raise ArgumentError(f"prompt {number} has one token, and none after it to score; give a longer text.")
        pairs = [Pair(f"prompt {number}", tuple(context[:1]), tuple(context[1:]))]
    elif not continuations:
        raise ArgumentError(f"prompt {number} has an empty list of {name}s; give at least one.")
    else:
        text = prompt if isinstance(prompt, str) and not chat else None
        pairs = [
            _read_pair(model, f"{name} {place} of prompt {number}", text, context, one)
            for place, one in enumerate(continuations)
        ]
    for pair in pairs:
        if pair.length > model.context_length:
            raise ArgumentError(
                f"{pair.name} has {pair.length + 1} tokens with what comes before it, and the model's context is "
                f"{model.context_length}; score a shorter text."
            )
    return pairs


def refuse_equal(pairs: Sequence[Pair]) -> None:
    """Raise an ArgumentError if two continuations have the same tokens."""
    seen: dict[Pair, str] = {}
    for pair in pairs:
        other = seen.setdefault(replace(pair, name=""), pair.name)
        if other != pair.name:
            raise ArgumentError(f"{other} and {pair.name} have the same tokens; give each option once.")


def _read_pair(model: Model, name: str, text: str | None, context: list[int], continuation: Any) -> Pair:
    """One continuation.

    Args:
        text: the prompt if it is a text, which is encoded together with the continuation; else None.
        context: the prompt's token ids.
    """
    given = as_lists(continuation)
    if isinstance(given, str):
        check_text(name, given)
        token_ids = model.tokenizer.encode_plain(given)
        if text and token_ids:
            # spaces at the end of a prompt belong to the next word
            context = model.tokenizer.encode(text.rstrip()) if text.strip() else context
            token_ids = model.tokenizer.encode(text + given)[len(context) :]
    elif isinstance(given, Sequence) and all(map(is_whole, given)):
        token_ids = read_token_ids(name, given, vocabulary(model))
    else:
        raise ArgumentError(f"{name} must be a text or a list of token ids, got {show(continuation)}")
    if not token_ids:
        raise ArgumentError(f"{name}, {show(continuation)}, has no tokens of its own; give some text.")
    return Pair(name, tuple(context), tuple(token_ids))
