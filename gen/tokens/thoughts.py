"""How a chat's template marks what a model thinks before it answers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gen.arguments import check_flag, read_whole
from gen.errors import ArgumentError, setting, show
from gen.tokens.tokenizers import Tokenizer

_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>")
"""The special tokens of gpt-oss's form, Harmony."""

ANSWER = "<|channel|>final<|message|>"
"""What comes before the answer in that form."""

_SWITCHES = {
    "enable_thinking": r"\benable_thinking\b",
    "thinking": r"\b(if|not) thinking\b|\bthinking is (not )?defined",
}
"""Variables of templates that turn thoughts on and off, and how a template reads them."""

Thinking = bool | int | None
"""See `gen.generate`."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How thoughts are marked.

    Attributes:
        kind: with "tags", a thought stands between two strings at the beginning of a text; with "channels", it stands
            in the messages of a channel, as gpt-oss writes them.
        opens, closes: the two strings; "" with channels.
        begun: whether the prompt ends within a thought, which the text continues.
        ending: how the template ends a thought, with the line breaks around it; "" if it has none.
    """

    kind: Literal["tags", "channels"]
    opens: str = ""
    closes: str = ""
    begun: bool = False
    ending: str = ""

    @property
    def written(self) -> tuple[str, str, str]:
        """What opens a thought, what closes it, and how the template writes the latter."""
        if self.kind == "channels":
            return "<|channel|>analysis<|message|>", "<|end|><|start|>assistant", "<|end|><|start|>assistant"
        return self.opens, self.closes, self.ending or self.closes

    @property
    def closed(self) -> str:
        """What a prompt writes for a thought that is closed at once, or ends the one that it has begun with."""
        if self.kind == "channels":
            return ANSWER
        opens, closes, ending = self.written
        if self.begun:
            return ending
        return opens + ("\n" if ending != closes else "") + ending

    @property
    def names(self) -> tuple[str, ...]:
        """The strings that may be special tokens."""
        return (self.opens, self.closes) if self.kind == "tags" else CHANNELS


def marks_of(template: str) -> Marks | None:
    """How a chat template marks thoughts; None where it does not."""
    if all(name in template for name in CHANNELS[:3]):
        return Marks(kind="channels")
    for opens, closes in _TAGS:
        if closes in template:
            return Marks(kind="tags", opens=opens, closes=closes, ending=_ending(template, opens, closes))
    return None


def _ending(template: str, opens: str, closes: str) -> str:
    """How a template ends a thought, with the most line breaks that it has there; "" without any."""
    found = []
    for match in re.finditer(rf"({re.escape(opens)})?((?:\\n)*){re.escape(closes)}((?:\\n)*)", template):
        before, after = len(match[2]) // 2, len(match[3]) // 2
        found.append((max(0, before - 1) if match[1] else before, after))
    before, after = max(found, key=sum, default=(0, 0))
    if not before + after and rf"{opens}\n" in template:
        before, after = 1, 2
    return "\n" * before + closes + "\n" * after if before + after else ""


def read_thinking(given: object) -> Thinking:
    """The argument `thinking` of one prompt.

    Raises:
        ArgumentError: it is neither None nor a flag nor a whole number.
    """
    if given is None or isinstance(given, bool):
        return given
    try:
        return read_whole("thinking", given) or False
    except ArgumentError:
        raise ArgumentError(
            f"{setting('thinking')} must be None, True, False or the most tokens of a thought, got {show(given)}"
        ) from None


def switched(
    tokenizer: Tokenizer, template_kwargs: Mapping[str, object] | None, thinking: Thinking
) -> Mapping[str, object] | None:
    """The arguments of a template with the one that turns thoughts on or off, where the template has one."""
    if thinking is None:
        return template_kwargs
    return {**dict.fromkeys(_switches(tokenizer, template_kwargs), thinking is not False), **(template_kwargs or {})}


def _switches(tokenizer: Tokenizer, template_kwargs: Mapping[str, object] | None) -> list[str]:
    template = tokenizer.chat_template(template_kwargs)
    return [name for name, read in _SWITCHES.items() if re.search(read, template)]


def marks_of_chat(
    tokenizer: Tokenizer,
    template_kwargs: Mapping[str, object] | None,
    prompt_ids: Sequence[int],
    begun: str = "",
    thinking: Thinking = None,
) -> tuple[Marks | None, list[int]]:
    """How thoughts are marked in the text that continues a chat, and the tokens of the prompt for it.

    Args:
        begun: what the assistant's message has that the text continues.
    Returns:
        None where no thought can come: the template marks none, or the prompt has closed it, as with thinking=False.
    """
    marks, token_ids = marks_of(tokenizer.chat_template(template_kwargs)), list(prompt_ids)
    if marks is None:
        return None, token_ids
    opens, closes, _ = marks.written
    end = tokenizer.decode(token_ids[-16:], shown=frozenset(tokenizer.special_tokens)).rstrip()
    if marks.kind == "channels":
        closed = not end.endswith("<|start|>assistant")
    else:
        opened = begun.rfind(opens) > begun.rfind(closes) if begun else end.endswith(opens)
        closed = not opened and bool(begun or end.endswith(closes))
        marks = replace(marks, begun=opened)
    if closed:
        return None, token_ids
    if thinking is not False:
        return marks, token_ids
    switches = _switches(tokenizer, template_kwargs)
    if marks.begun or not switches or any((template_kwargs or {}).get(name) for name in switches):
        token_ids += tokenizer.encode_plain(marks.closed)
    return None, token_ids


def without_begun_thought(tokenizer: Tokenizer, template_kwargs: Mapping[str, object] | None, begun: str) -> str:
    """What the assistant's message has of an answer, without a thought that it has begun and not closed."""
    marks = marks_of(tokenizer.chat_template(template_kwargs))
    opened = marks is not None and begun.rfind(marks.opens) > begun.rfind(marks.closes)
    return begun[: begun.rfind(marks.opens)] if marks is not None and opened else begun


def read_shown(tokenizer: Tokenizer, given: object) -> frozenset[int]:
    """The ids of the special tokens that stay in a text, from the argument skip_special_tokens.

    Raises:
        ArgumentError: it is neither True nor False nor a list of special tokens.
    """
    if isinstance(given, list | tuple | set | frozenset):
        known = set(tokenizer.special_tokens.values())
        for one in given:
            if not isinstance(one, str) or one not in known:
                raise ArgumentError(f"skip_special_tokens has {show(one)}, which is no special token of the tokenizer.")
        return frozenset(token_id for token_id, text in tokenizer.special_tokens.items() if text not in given)
    check_flag("skip_special_tokens", given)
    return frozenset() if given else frozenset(tokenizer.special_tokens)
