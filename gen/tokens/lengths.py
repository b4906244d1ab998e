"""How much text a token can stand for: a text that is longer than a context's tokens need not be encoded to be refused.

Whitespace does not count: normalizers fold it, pre-tokenizers drop it, and added tokens take it with them. Of all other
characters, a token stands for as many as it is written with, if the tokenizer knows every byte, drops no character, and
at most composes some. Of "e", U+0301, "a", NFC makes "é", "a": with tokens of one character, these are two.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gen.tokens.spelling import letters_of_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_COMPOSED = 4  # characters of which NFC and NFKC make one, at most, as of U+1F82
_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_KEEPING = {"ByteLevel", "Digits", "Lowercase", "Metaspace", "Prepend", "Strip", "UnicodeScripts", "WhitespaceSplit"}
_NO_TEXT = {0xC0, 0xC1, *range(0xF5, 0x100)}  # bytes that no UTF-8 has
_CONTROLS = {*range(0x20), 0x7F}
_FIRSTS = {*range(0xC2, 0xF5)}  # bytes that begin a character; if they are unknown, those that follow are tokens


def least_tokens(backend: "Tokenizer", longest: int, text: str) -> int:
    """How many tokens a text has at least; 0 if the tokenizer does not let that be known.

    Args:
        longest: how many characters its longest token is written with.
    """
    try:
        parts = [*_parts(backend.normalizer), *_parts(backend.pre_tokenizer)]
    except Exception:  # parts of the user, in Python: tokenizers says by a plain Exception that it cannot show them
        return 0
    kinds = [part["type"] for part in parts]
    dropped = _dropped(backend, "ByteLevel" in kinds)
    if dropped is None or not all(map(_keeps, parts)):
        return 0
    counted = len(text) - sum(map(text.count, SPACES + dropped))
    of_one = longest * _COMPOSED ** sum(kind in _FORMS for kind in kinds)
    return int(-(-counted // of_one))


def _dropped(backend: "Tokenizer", byte_level: bool) -> str | None:
    """The control characters that the tokenizer does not know and drops; None where it may drop others."""
    if type(backend.model).__name__ not in ("BPE", "Unigram"):
        return None
    if not byte_level:
        known = all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
        return "" if known and len(backend.model.tokenize("\U0010fffd")) == 4 else None  # a token for each byte
    unknown = {byte for byte, letter in enumerate(letters_of_bytes()) if backend.token_to_id(letter) is None}
    controls = unknown & _CONTROLS
    return (
        "".join(map(chr, controls.difference(map(ord, SPACES)))) if unknown <= _CONTROLS | _FIRSTS | _NO_TEXT else None
    )


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """What a normalizer or a pre-tokenizer does, step by step."""
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        part = waiting.pop()
        if part["type"] == "Sequence":
            waiting += [*part.get("normalizers", ()), *part.get("pretokenizers", ())]
        else:
            yield part


def _keeps(part: dict[str, Any]) -> bool:
    """Whether a step keeps each character that is no whitespace, or makes at least one of it."""
    kind = part["type"]
    if kind in ("Punctuation", "Split"):
        return bool(part["behavior"] != "Removed")
    if kind == "Replace":
        pattern = part["pattern"].get("String")
        return pattern is not None and len(pattern.strip(SPACES)) <= len(part["content"].strip(SPACES))
    return kind in _KEEPING or kind in _FORMS
