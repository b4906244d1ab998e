"""Reads what is to be scored: each continuation with its context, the tokens before it.

Example: a tokenizer writes "He do" as the tokens "He" and " do", and "He don't" as "He", " don" and "'t". The prompt
"He do" with the continuation "n't" becomes the context "He" and the continuation " don", "'t": the tokens of the whole
text, cut where the prompt's own tokens end to be among them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gen.arguments import as_lists, check_text, is_whole, read_token_ids
from gen.errors import ArgumentError, show
from gen.loop.prefixes.columns import common
from gen.models.base import Model
from gen.requests.prompts import Prompt, begun_message, messages_of, read_one_prompt, text_of, vocabulary
from gen.tokens.thoughts import marks_of_chat, switched
from gen.tokens.tokenizers import Tokenizer

Continuation = str | Sequence[int]


@dataclass(frozen=True)
class Pair:
    """A continuation and its context, as token ids; each has at least one.

    Attributes:
        name: what errors call the continuation, such as "prompt 3".
        start: see `gen.Score`.
    """

    name: str
    context: tuple[int, ...]
    continuation: tuple[int, ...]
    start: int | None = None

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
    template_kwargs: Mapping[str, object] | None = None,
    name: str = "continuation",
    one_cut: bool = False,
) -> list[Pair]:
    """The pairs of one prompt; without continuations one pair, which scores the prompt's own tokens after its first.

    Args:
        number: the prompt's number, for errors.
        template_kwargs: further arguments of the chat template. A chat whose template marks thoughts gets one that is
            closed at once, before its continuations.
        name: what errors call a continuation.
        one_cut: whether all pairs have the same context: the shortest one.
    Raises:
        ArgumentError: something is neither a text nor token ids, has no tokens, or is longer than the model's context;
            a prompt has images; or a continuation changes all of the prompt's tokens, and there is no bos token.
    """
    is_chat, kwargs = bool(messages_of(prompt)), template_kwargs
    try:
        if is_chat and continuations is not None:
            kwargs = switched(model.tokenizer, kwargs, False)
        context, illustrated = read_one_prompt(model, number, prompt, (), template_kwargs=kwargs)
    except ArgumentError as error:
        raise ArgumentError(f"prompt {number}: {error}") from error
    if illustrated:
        raise ArgumentError(f"prompt {number} has images; scores are of texts alone.")
    written = text_of(model.tokenizer, prompt, kwargs)
    text, encode = written or (None, model.tokenizer.encode_plain)
    if is_chat and text is not None and continuations is not None:
        _, closed = marks_of_chat(model.tokenizer, kwargs, context, begun_message(prompt, kwargs), False)
        if more := closed[len(context) :]:
            text += model.tokenizer.decode(more, shown=model.tokenizer.special_tokens.keys())
            context = encode(text)
    if continuations is None:
        if len(context) < 2:
            raise ArgumentError(f"prompt {number} has one token, and none after it to score; give a longer text.")
        first = model.tokenizer.decode(context[:1], shown=model.tokenizer.special_tokens.keys())
        start = None if text is None else len(first) if text.startswith(first) else 0
        pairs = [Pair(f"prompt {number}", tuple(context[:1]), tuple(context[1:]), start)]
    elif not continuations:
        raise ArgumentError(f"prompt {number} has an empty list of {name}s; give at least one.")
    else:
        names = [f"{name} {place} of prompt {number}" for place in range(len(continuations))]
        before, end = (context, "") if text is None else ([], text)
        if text is not None and encode == model.tokenizer.encode_plain:
            before, end = _after_special_token(model.tokenizer, context, text)
        wholes = [
            _read_whole(model, one, context, given, lambda more: [*before, *encode(end + more)])
            for one, given in zip(names, continuations, strict=True)
        ]
        cuts = [common(context, whole) for whole in wholes]
        if one_cut:
            cuts = [min(cuts)] * len(cuts)
        pairs = [_pair(model.tokenizer, *one, text, context) for one in zip(names, wholes, cuts, strict=True)]
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


def _after_special_token(tokenizer: Tokenizer, context: list[int], text: str) -> tuple[list[int], str]:
    """A chat's tokens before its last special token, which no further text changes, and its text from there on."""
    special = tokenizer.special_tokens
    place = next((place for place in reversed(range(len(context))) if context[place] in special), 0)
    end = text[text.rfind(special[context[place]]) :] if place else text
    same = place > 0 and tokenizer.encode_plain(end) == context[place:]
    return (context[:place], end) if same else ([], text)


def _read_whole(
    model: Model, name: str, context: list[int], continuation: Any, encode: Callable[[str], list[int]]
) -> list[int]:
    """The token ids of a prompt and its continuation together.

    Args:
        context: the prompt's token ids.
        encode: encodes a text as the continuation of the prompt: gives the tokens of both.
    """
    given = as_lists(continuation)
    if isinstance(given, str):
        check_text(name, given)
        whole = encode(given)
    elif isinstance(given, Sequence) and all(map(is_whole, given)):
        whole = [*context, *read_token_ids(name, given, vocabulary(model))]
    else:
        raise ArgumentError(f"{name} must be a text or a list of token ids, got {show(continuation)}")
    shared = common(context, whole)
    if shared == len(whole):
        raise ArgumentError(f"{name}, {show(continuation)}, has no tokens of its own; give some text.")
    if not shared and model.tokenizer.bos_token_id is None:
        raise ArgumentError(
            f"{name}, {show(continuation)}, changes all of the prompt's tokens, and the tokenizer has no bos token to "
            "come before them; give a longer prompt."
        )
    return whole


def _pair(tokenizer: Tokenizer, name: str, whole: list[int], cut: int, text: str | None, context: list[int]) -> Pair:
    """A whole text as a pair, whose context is its first `cut` tokens, or the bos token if there are none."""
    if not cut and tokenizer.bos_token_id is not None:
        return Pair(name, (tokenizer.bos_token_id,), tuple(whole), 0)
    start = None if text is None else len(text)
    if text is not None and cut < len(context):
        before, head = tokenizer.decode(context), tokenizer.decode(context[:cut])
        start = len(text) - len(before) + common(before, head)
    return Pair(name, tuple(whole[:cut]), tuple(whole[cut:]), start)
