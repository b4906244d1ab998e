"""Vocabularies for tests of constraints, and walks through them that are too simple to be wrong."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from gen.constraints.automata.dfa import Table
from tests.helpers import bytes_to_characters

WORDS = [
    *("true", "false", "null", "tru", "es", "red", "green", "the", " the", "ab", "abc", "aa", "aaa", "00", "12", "123"),
    *('{"', '"}', '":', '": ', '", "', '{"name": "', "age", ", ", "[", "]}", '"]', "\n\n", "  ", "é", "ü", "日", "😀"),
]
PARTS = [b"\xe6\x97", b"\x9f\x98", b"\xc3", b'"\xc3', b"\xa9\xa9"]  # of characters
LONG = "a" * 33


def spelled() -> list[bytes]:
    """The bytes of each token of `wordy_tokenizer`; b"" for </s>, <pad> and the token that is too long."""
    alone = [bytes([byte]) for byte in range(256)]
    words = [word.encode() for word in WORDS]
    known = dict.fromkeys([*alone, *words, *PARTS])  # "[" and b"\xc3" are bytes already
    return [*known, b"", b"", b"", b"<tool>"]


def wordy_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: all bytes, words and parts of characters, then </s>, <pad>, a long token and <tool>."""
    letters = bytes_to_characters()
    tokens = [token for token in spelled() if token and token != b"<tool>"]
    vocab = {"".join(letters[byte] for byte in token): number for number, token in enumerate(tokens)}
    vocab |= {"</s>": len(vocab), "<pad>": len(vocab) + 1, LONG: len(vocab) + 2}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")


def walk(table: Table, state: int, data: bytes) -> int:
    """The state after some bytes, 0 where they are not allowed."""
    for byte in data:
        state = int(table.next[state, table.classes[byte]])
    return state


def walk_all(table: Table, state: int, tokens: Sequence[bytes]) -> list[int]:
    """The state after each token, byte by byte through all tokens at once; 0 after one that spells nothing."""
    states = np.array([state if token else 0 for token in tokens])
    for numbers, those in _bytes_by_place(tuple(tokens)):
        states[numbers] = table.next[states[numbers], table.classes[those]]
    after: list[int] = states.tolist()
    return after


@cache
def _bytes_by_place(tokens: tuple[bytes, ...]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each place in a token: which tokens have a byte there, and these bytes."""
    places = range(max(map(len, tokens), default=0))
    having = [[number for number, token in enumerate(tokens) if len(token) > place] for place in places]
    return [
        (np.array(numbers), np.array([tokens[number][place] for number in numbers]))
        for place, numbers in zip(places, having, strict=True)
    ]


def fewest_tokens(table: Table, tokens: Sequence[bytes]) -> list[int]:
    """The fewest tokens that lead from each state to a final one, by looking at all tokens again and again; 10**6 where
    there are none.
    """
    after = [[0]] + [sorted({to for to in walk_all(table, state, tokens) if to}) for state in range(1, len(table.next))]
    fewest = [0 if final else 10**6 for final in table.final]
    changed = True
    while changed:
        better = [
            0 if table.final[state] else min([fewest[state], *(fewest[to] + 1 for to in after[state] if state and to)])
            for state in range(len(fewest))
        ]
        changed, fewest = better != fewest, better
    return fewest
