"""Text to token ids and back: encoding, chat templates, and decoding piece by piece."""

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from functools import cached_property, partial
from hashlib import sha256
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any

from gen.arguments import check_text, read_token_ids, read_whole
from gen.errors import ArgumentError
from gen.runtime.forking import new_lock
from gen.tokens.spelling import spelled_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, object]

_OF_CHATS = frozenset({"chat_template", "add_generation_prompt", "continue_final_message"})  # transformers uses these
_OF_TEMPLATES = frozenset({"tools", "documents"})  # the templates use these
_CHARACTERS = 8  # of a token: more than those of a text have on average
_AT_A_CUT = 64  # tokens that the end of a text's beginning may have more than the same characters in the whole text
_UNFINISHED = "\ufffd"  # how tokenizers decode bytes that are not yet a character


class Tokenizer:
    """A Hugging Face tokenizer, with what generation needs of it; the caller's tokenizer is never changed.

    Args:
        chat_template: the template to use instead of the tokenizer's own; processors of vision-language models have
            one.

    Attributes:
        vocab_size: one more than the highest id that the tokenizer knows.
        added_ids: the ids of tokens that were added to its vocabulary, special ones included.
        bos_token_id: the token that begins a text; None where there is none.
        name: where the tokenizer is from; may be empty.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._token_bytes: list[bytes] | None = None
        self._reading = new_lock()
        self._decoder, backend = self._backend("decode", "_decode"), self._backend("__call__", "_encode_plus")
        if backend is not None:  # as transformers does it in each call; from then on, calls do not change the settings
            backend.no_truncation()
            backend.no_padding()
        self.vocab_size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        self.added_ids = frozenset(tokenizer.get_added_vocab().values())
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.name = str(tokenizer.name_or_path)

    def encode(self, text: str) -> list[int]:
        """Token ids with the special tokens that the tokenizer adds; an empty text is the bos token alone.

        Raises:
            ArgumentError: the text has no tokens and the tokenizer has no bos token to stand for the start.
        """
        token_ids = self._encode(text, add_special_tokens=True)
        if token_ids:
            return token_ids
        if self.bos_token_id is None:
            raise ArgumentError("the prompt is empty and the tokenizer has no bos token to start from; give some text.")
        return [self.bos_token_id]

    def encode_plain(self, text: str) -> list[int]:
        """Token ids without the special tokens that the tokenizer adds."""
        return self._encode(text, add_special_tokens=False)

    def least_tokens(self, text: str, above: int) -> int:
        """How many tokens a text has at least, of which only the beginning is encoded; 0 if it may have no more than
        `above`, as all texts of at most eight times as many characters.
        """
        most = above * _CHARACTERS
        least = len(self.encode_plain(text[:most])) - _AT_A_CUT if len(text) > most else 0
        return least if least > above else 0

    def chat_text(self, messages: Sequence[Message], template_kwargs: Mapping[str, object] | None = None) -> str:
        """The text of a conversation under the chat template, with its special tokens.

        It ends where the assistant's turn begins, or within that turn where the last message is the assistant's.

        Args:
            template_kwargs: for `apply_chat_template` of transformers: tools, documents, and variables of the template.
        Raises:
            ArgumentError: there is no chat template, it does not use one of the arguments, or it refuses the messages.
        """
        given = dict(template_kwargs or {})
        ours = signature(self._tokenizer.apply_chat_template).parameters.keys() - _OF_CHATS - _OF_TEMPLATES
        if refused := sorted(given.keys() & ours):
            raise ArgumentError(f"chat_template_kwargs cannot have {', '.join(refused)}: gen sets that itself.")
        self._check_template(given)
        goes_on = bool(messages) and messages[-1].get("role") == "assistant"
        options = {
            "chat_template": self._chat_template,
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
        } | given
        try:
            template = self.chat_template(given)
            unused = [
                name for name in given if name not in _OF_CHATS and not re.search(rf"\b{re.escape(name)}\b", template)
            ]
            text = str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
        except Exception as error:  # jinja2's errors, and those that templates raise themselves
            raise ArgumentError(f"the chat template refuses these messages: {error}") from error
        if unused:
            raise ArgumentError(f"the chat template does not use {', '.join(unused)} of chat_template_kwargs.")
        return text

    def chat_template(self, template_kwargs: Mapping[str, object] | None = None) -> str:
        """The template that `chat_text` uses for the same arguments, as it is written."""
        given: dict[str, Any] = {"chat_template": self._chat_template, **(template_kwargs or {})}
        self._check_template(given)
        template: str = self._tokenizer.get_chat_template(given["chat_template"], given.get("tools"))
        return template

    def use_chat_template(self, template: str) -> None:
        """Use this chat template from now on, instead of the tokenizer's own."""
        self._chat_template = template

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the tokenizer with the chat template that it uses into a folder, as transformers does."""
        saved = copy(self._tokenizer)
        if self._chat_template is not None:
            saved.chat_template = self._chat_template
        saved.save_pretrained(folder)

    def _check_template(self, given: Mapping[str, object]) -> None:
        if not (given.get("chat_template") or self._chat_template or self._tokenizer.chat_template):
            raise ArgumentError("this tokenizer has no chat template; give the prompt as text, without chat=True.")

    @property
    def template_for_tools(self) -> str:
        """The chat template that is used with tools, as it is written; "" where there is none."""
        has_one = self._chat_template or self._tokenizer.chat_template
        return self.chat_template({"tools": [{}]}) if has_one else ""

    @cached_property
    def digest(self) -> str:
        """A digest of the vocabulary, and of how texts are encoded where that is known."""
        backend, own = getattr(self._tokenizer, "backend_tokenizer", None), self._tokenizer
        known = json.dumps(sorted(own.get_vocab().items())) if backend is None else backend.to_str()
        return sha256(known.encode(errors="surrogatepass")).hexdigest()

    @property
    def template_digest(self) -> str | None:
        """A digest of the chat template, or of all that it has; None where there is none."""
        template = self._chat_template or self._tokenizer.chat_template
        return sha256(json.dumps(template, sort_keys=True).encode()).hexdigest() if template else None

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """The special tokens by id, as prompts write them."""
        added = self._tokenizer.added_tokens_decoder
        marked = {token_id: token.content for token_id, token in added.items() if token.special}
        known = zip(self._tokenizer.all_special_ids, self._tokenizer.all_special_tokens, strict=True)
        return {**marked, **{token_id: str(text) for token_id, text in known}}

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token spells: a part of a character, or several characters; b"" for a special token.

        Raises:
            ArgumentError: there is no such token.
            ConstraintError: the tokenizer is neither byte-level BPE nor SentencePiece with byte fallback, so the bytes
                of its tokens are not known.
        """
        [token_id] = read_token_ids("token_id", read_whole("token_id", token_id), self.vocab_size)
        return self._bytes_of_tokens()[token_id]

    def all_token_bytes(self) -> list[bytes]:
        """The `token_bytes` of each token, read once. Raises ConstraintError as `token_bytes` does."""
        return list(self._bytes_of_tokens())

    def _bytes_of_tokens(self) -> list[bytes]:
        with self._reading:
            if self._token_bytes is None:
                special = self.special_tokens.keys()
                apart = special | self.added_ids
                plain = {one: piece for piece, one in self._tokenizer.get_vocab().items() if one not in apart}
                # not by the vocabulary: a normalizer may put a space before an added token, which decoding shows
                added = {one: str(self._tokenizer.convert_ids_to_tokens(one)) for one in apart - special}
                spelled = spelled_tokens(plain, added, self.encode_plain)
                self._token_bytes = [spelled.get(token_id, b"") for token_id in range(self.vocab_size)]
            return self._token_bytes

    def hidden_in(self, stops: Sequence[str]) -> dict[int, str]:
        """The special tokens that stop strings or regexes name, by id: decoding leaves them out of the text."""
        named = {
            token_id: text
            for token_id, text in (self.special_tokens.items() if stops else ())
            if any(text in stop or re.escape(text) in stop for stop in stops)
        }
        return {token_id: text for token_id, text in named.items() if not self.decode([token_id])}

    def decode(self, token_ids: Iterable[int], shown: Set[int] = frozenset()) -> str:
        """The text of the ids, without special tokens except the shown ones; spaces stay as they are."""
        given = [one for one in token_ids if not shown or one in shown or one not in self.special_tokens]
        if self._decoder is not None:  # the same without a look at each token in Python
            return self._decoder.decode(given, skip_special_tokens=not shown)
        return str(self._tokenizer.decode(given, skip_special_tokens=not shown, clean_up_tokenization_spaces=False))

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        check_text("the text", text)  # it may be a text that a chat template has made
        # No lock, since a long text takes seconds: the settings of a fast tokenizer stay as they are from call to call.
        # verbose=False: a prompt longer than the context is the decode loop's error, not the tokenizer's warning
        encoded = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
        return self.known([int(token_id) for token_id in encoded["input_ids"]])

    def known(self, token_ids: list[int], embedded: int = 0) -> list[int]:
        """The same ids; raises an ArgumentError for one that the tokenizer did not have when it was given to gen, and
        that is none of so many `embedded` ids: a processor may write images as tokens that the tokenizer does not have.
        """
        if (highest := max(token_ids, default=0)) >= max(self.vocab_size, embedded):
            raise ArgumentError(
                f"the text has the token {highest}, and the tokenizer had ids up to {self.vocab_size - 1} when you "
                "gave it to gen; after tokenizer.add_tokens give model and tokenizer to gen again."
            )
        return token_ids

    def _backend(self, *methods: str) -> "FastTokenizer | None":
        """What does the work of these methods; None where Python code of the tokenizer's own takes part."""
        from transformers import PreTrainedTokenizerFast as Fast

        given, own = self._tokenizer, type(self._tokenizer)
        if not isinstance(given, Fast) or any(getattr(own, name) != getattr(Fast, name) for name in methods):
            return None
        backend: FastTokenizer = given.backend_tokenizer
        return backend


class Detokenizer:
    """Decodes new tokens as they come; the pieces joined are decode(prompt + new) without the prompt's part.

    A character whose bytes are spread over tokens comes out whole, with its last token. Each token is decoded together
    with some tokens before it, which begin with a whole character: otherwise some tokenizers drop a leading space.

    Args:
        shown: special tokens that stay in the text.
    Source: the prefix and read offsets of text-generation-inference.
    """

    _CONTEXT = 8  # tokens of the prompt that a decoder may look back on
    _LONGEST = 24  # tokens that are decoded at once; with more, a shorter context is chosen

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], shown: Set[int] = frozenset()) -> None:
        self._decode = partial(tokenizer.decode, shown=shown)
        start = max(0, len(prompt_ids) - self._CONTEXT)
        while start and self._decode(prompt_ids[start:]).startswith(_UNFINISHED):
            start -= 1  # the cut is within a character
        self._window = list(prompt_ids[start:])  # decoded again with each new token: a context, and the tokens after it
        self._before = self._decode(self._window)
        self._pending: list[int] = []  # the last tokens of the window, which have given no text yet

    def push(self, *token_ids: int, last: bool = False) -> str:
        """The text that these tokens complete; empty while a character is unfinished.

        Args:
            last: whether no more tokens will come: then an unfinished character shows as U+FFFD.
        """
        before = self._window, self._before, self._pending
        piece = self._push(token_ids, last)
        if len(token_ids) > 1 and (not piece or _UNFINISHED in piece):  # some decoders lose good bytes beside bad ones
            self._window, self._before, self._pending = before
            pieces = [self._push([token_id], False) for token_id in token_ids[:-1]]
            piece = "".join([*pieces, self._push(token_ids[-1:], last)])
        return piece

    def _push(self, token_ids: Sequence[int], last: bool) -> str:
        self._window, self._pending = [*self._window, *token_ids], [*self._pending, *token_ids]
        text = self._decode(self._window)
        piece = self._new(text)
        if last:
            self._window, self._before, self._pending = [], "", []
            return piece
        if not piece or piece.endswith(_UNFINISHED):
            return ""
        # a prompt may end within a character; then the context has to stay until the next piece
        if len(self._window) > self._LONGEST and text.startswith(self._before):
            self._window = self._pending
            text = self._decode(self._window)
        self._before, self._pending = text, []
        return piece

    def _new(self, text: str) -> str:
        """The part of the text after what it has in common with the text before."""
        if text.startswith(self._before):
            return text[len(self._before) :]
        pairs = enumerate(zip(self._before, text, strict=False))
        at = next((i for i, (old, new) in pairs if old != new), min(len(self._before), len(text)))
        if text[at : at + 1] == _UNFINISHED:  # new bytes are no character, and took those before with them
            return self._decode(self._pending)
        return text[at:]


class ByteDetokenizer:
    """As `Detokenizer`, for tokens whose bytes are known: what a token spells does not depend on those before it.

    Args:
        tokens: the bytes of each token.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._pending = b""  # the first bytes of an unfinished character

    def push(self, *token_ids: int, last: bool = False) -> str:
        data = self._pending + b"".join(self._tokens[token_id] for token_id in token_ids)
        piece, used = codecs.utf_8_decode(data, "replace", last)
        self._pending = data[used:]
        return piece
