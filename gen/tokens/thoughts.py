"""How a chat's template marks what a model thinks before it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gen.arguments import check_flag
from gen.errors import ArgumentError, show
from gen.tokens.tokenizers import Tokenizer

_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>")
"""The special tokens of gpt-oss's form, Harmony."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How thoughts are marked.

    Attributes:
        kind: with "tags", a thought stands between two strings at the beginning of a text; with "channels", it stands
            in the messages of a channel, as gpt-oss writes them.
        opens, closes: the two strings; "" with channels.
        begun: whether the prompt ends within a thought, which the text continues.
    """

    kind: Literal["tags", "channels"]
    opens: str = ""
    closes: str = ""
    begun: bool = False

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
            return Marks(kind="tags", opens=opens, closes=closes)
    return None


def marks_of_chat(
    tokenizer: Tokenizer, template_kwargs: Mapping[str, object] | None, prompt_ids: list[int]
) -> Marks | None:
    """How thoughts are marked in the text that continues a chat."""
    marks = marks_of(tokenizer.chat_template(template_kwargs))
    if marks is None or marks.kind == "channels":
        return marks
    end = tokenizer.decode(prompt_ids[-16:], shown=frozenset(tokenizer.special_tokens)).rstrip()
    return Marks(kind="tags", opens=marks.opens, closes=marks.closes, begun=end.endswith(marks.opens))


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
