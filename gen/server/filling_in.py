"""Prompts that ask for the text between two others, in the forms of models that were trained to fill in the middle."""

from typing import Any

from gen.server.errors import refused
from gen.tokens.tokenizers import Tokenizer

_MARKS = (  # special tokens: before the first text, before the last one, and before the text between them
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001  # DeepSeek
)


def fill_in(tokenizer: Tokenizer, prompt: Any, suffix: str) -> str:
    """The prompt that asks for the text between `prompt` and `suffix`.

    Source: Bavarian et al. 2022, arXiv:2207.14255, with the suffix before the middle.
    Raises:
        ApiError: the prompt is no text, or the model's vocabulary has no tokens for it.
    """
    known = {*tokenizer.special_tokens.values()}
    marks = next((marks for marks in _MARKS if known.issuperset(marks)), None)
    if marks is None or not isinstance(prompt, str):
        why = "this model has no special tokens for filling in" if marks is None else "the prompt must be a text"
        raise refused(f"suffix: {why}; leave it out.", "suffix")
    return f"{marks[0]}{prompt}{marks[1]}{suffix}{marks[2]}"
