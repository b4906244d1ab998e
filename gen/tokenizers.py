"""Text to token ids and back: encoding, chat templates, and decoding piece by piece."""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from gen.errors import ArgumentError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, object]

_UNFINISHED = "\ufffd"  # how tokenizers decode bytes that are not yet a character


class Tokenizer:
    """A Hugging Face tokenizer, seen as what generating needs; the caller's tokenizer is never changed.

    Args:
        chat_template: to use instead of the tokenizer's own, as processors of vision-language models have one.

    Attributes:
        vocab_size: one more than the highest id that the tokenizer knows.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._encoding = Lock()  # fast tokenizers set their truncation at a call, and fail if another thread does too
        self.vocab_size = 1 + max(tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Token ids with the special tokens that the tokenizer adds; an empty text is the bos token alone.

        Raises:
            ArgumentError: the text has no tokens and the tokenizer has no bos token to stand for the start.
        """
        token_ids = self._encode(text, add_special_tokens=True)
        if token_ids:
            return token_ids
        if self._tokenizer.bos_token_id is None:
            raise ArgumentError("the prompt is empty and the tokenizer has no bos token to start from; give some text.")
        return [self._tokenizer.bos_token_id]

    def encode_plain(self, text: str) -> list[int]:
        """Token ids without the special tokens that the tokenizer adds."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation under the chat template, ready for the assistant's turn; see `chat_text`."""
        return self.encode_plain(self.chat_text(messages))

    def chat_text(self, messages: Sequence[Message]) -> str:
        """The text of a conversation under the chat template, with its special tokens.

        Raises:
            ArgumentError: there is no chat template, or the template refuses the messages.
        """
        template = self._chat_template or self._tokenizer.chat_template
        if not template:
            raise ArgumentError("this tokenizer has no chat template; give the prompt as text, without chat=True.")
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), chat_template=template, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # jinja2's errors, and those that templates raise themselves
            raise ArgumentError(f"the chat template refuses these messages: {error}") from error

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of the ids without special tokens, spaces as they are."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)  # one sequence gives one text; tells mypy
        return text

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # verbose=False: a prompt longer than the context is the decode loop's error, not the tokenizer's warning
        with self._encoding:
            encoded = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
        return [int(token_id) for token_id in encoded["input_ids"]]


class Detokenizer:
    """Decodes new tokens one at a time; the pieces joined are decode(prompt + new) without the prompt's part.

    A character whose bytes are spread over tokens comes out whole, with its last token. Each token is decoded with
    those before it back to the last finished character, because some tokenizers drop a leading space otherwise.
    Source: the prefix and read offsets of text-generation-inference.
    """

    _CONTEXT = 8  # tokens of the prompt that a decoder may look back on

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        start = max(0, len(prompt_ids) - self._CONTEXT)
        while start and tokenizer.decode(prompt_ids[start:]).startswith(_UNFINISHED):
            start -= 1  # the cut is within a character
        self._context = list(prompt_ids[start:])
        self._before = tokenizer.decode(self._context)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._pending.append(token_id)
        text = self._tokenizer.decode(self._context + self._pending)
        piece = self._new(text)
        if not piece or piece.endswith(_UNFINISHED):
            return ""
        # a prompt may end within a character; then the context has to stay until the next piece
        self._context = self._pending if text.startswith(self._before) else self._context + self._pending
        self._before = self._tokenizer.decode(self._context)
        self._pending = []
        return piece

    def flush(self) -> str:
        """What is left at the end: an unfinished character shows as U+FFFD."""
        text = self._tokenizer.decode(self._context + self._pending)
        self._context, self._pending = self._context + self._pending, []
        piece, self._before = self._new(text), text
        return piece

    def _new(self, text: str) -> str:
        """The part of the text after what it has in common with the text before."""
        if text.startswith(self._before):
            return text[len(self._before) :]
        pairs = enumerate(zip(self._before, text, strict=False))
        return text[next((i for i, (old, new) in pairs if old != new), min(len(self._before), len(text))) :]
