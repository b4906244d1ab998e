"""The bytes that each token of a tokenizer spells, from the ways byte-level BPE and SentencePiece write tokens."""

from collections.abc import Callable, Mapping, Sequence

from gen.errors import ConstraintError

_SAMPLES = (
    '{"name": "Ada Lovelace", "age": 36, "tags": ["x", null], "ok": true}\n',
    "The quick brown fox can't jump 1234567890 times.",
    "one\n  two\n\n    three\tfour",
    "!#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "Müller, Łukasz und señor Ñandú: 12 €",
    "日本語 русский العربية 😀",
)


def spelled_tokens(
    pieces: Mapping[int, str], added: Mapping[int, str], encode: Callable[[str], Sequence[int]]
) -> dict[int, bytes]:
    """The bytes of each token.

    Args:
        pieces: tokens as the tokenizer writes them, by id, without special ones.
        added: tokens that were added to its vocabulary, as texts contain them; those of SentencePiece, such as Gemma's,
            may have its mark for a space.
        encode: gives a text's tokens; a few texts are encoded to check that the bytes are right.
    Raises:
        ConstraintError: the tokenizer is neither byte-level BPE nor SentencePiece with byte fallback.
    """
    for read in (_read_byte_level, _read_sentence_pieces):
        spelled = read(pieces, added)
        if all(_spells(spelled, added, encode(text), text.encode()) for text in _SAMPLES):
            return spelled
    raise ConstraintError(
        "output types need a tokenizer whose tokens spell the bytes of a text: byte-level BPE, or SentencePiece with "
        "byte fallback. With this tokenizer, the tokens of a text do not spell that text."
    )


def _spells(spelled: Mapping[int, bytes], added: Mapping[int, str], token_ids: Sequence[int], text: bytes) -> bool:
    """Whether tokens spell a text. Tokenizers of both kinds may put a space before it, and put or lose some beside an
    added token."""
    made = b"".join(spelled.get(token_id, b"") for token_id in token_ids)
    if added.keys() & {*token_ids}:
        return b"".join(made.split()) == b"".join(text.split())
    return made in (text, b" " + text)


def letters_of_bytes() -> list[str]:
    """How byte-level BPE writes each byte, as in GPT-2: printable ones as themselves, the others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _read_byte_level(pieces: Mapping[int, str], added: Mapping[int, str]) -> dict[int, bytes]:
    letters = {letter: byte for byte, letter in enumerate(letters_of_bytes())}
    spelled = {token_id: piece.encode() for token_id, piece in added.items()}
    for token_id, piece in pieces.items():
        try:
            spelled[token_id] = bytes(map(letters.__getitem__, piece))
        except KeyError:
            spelled[token_id] = b""
    return spelled


def _read_sentence_pieces(pieces: Mapping[int, str], added: Mapping[int, str]) -> dict[int, bytes]:
    every_byte = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
    return {
        token_id: every_byte.get(piece) or piece.replace("\u2581", " ").encode()
        for token_id, piece in {**pieces, **added}.items()
    }
