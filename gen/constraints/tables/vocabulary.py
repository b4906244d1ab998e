"""A model's vocabulary as bytes: what each token spells, and a trie of all tokens in the order of its levels.

Example, the tokens a, b, ab, abc: level 1 has the nodes a and b, level 2 has ab, level 3 has abc. A state of an
automaton goes through all tokens at once, level by level: a node's state is its parent's state after one byte, and one
lookup gives those of all nodes of a level.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakMethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gen.constraints.automata.arrays import begins
from gen.devices import to_device
from gen.errors import ConstraintError
from gen.models.base import Model
from gen.runtime.forking import new_lock
from gen.tokens.tokenizers import Tokenizer

MAX_BYTES = 32
NO_BYTE = 256
"""Stands behind a token's last byte in `Vocabulary.bytes`."""

_MARKS = range(0xF5, 0x100)
"""Bytes that UTF-8, and so every text, does not have: special tokens spell them."""

Encode = Callable[[str], list[int]]


def _no_encoder() -> Encode | None:
    return None


class Level(NamedTuple):
    """Nodes of one depth: the node before each, (n,) int32, and the byte that leads from there, (n,) uint8."""

    parents: npt.NDArray[np.int32]
    bytes: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PlacedVocabulary:
    """A vocabulary on a device.

    Attributes:
        levels: for each level, the parents, (n,) int32, and the bytes, (n,) int64.
        node_of: (size,) int32, where a token ends; `Vocabulary.nodes` for one that is never allowed.
        bytes: as in `Vocabulary`.
    """

    levels: Sequence[tuple[Tensor, Tensor]]
    node_of: Tensor
    bytes: Tensor


class Vocabulary:
    """The bytes of each token. Tokens that spell nothing, or more than 32 bytes, are never allowed in a text.

    A special token spells bytes that no text and no other token has, as many as every other special token: an automaton
    allows it only where the output type asks for these bytes. Example: with two special tokens, their bytes are F5 and
    F6.

    Args:
        tokens: what each spells, b"" for nothing.
        specials: the texts of special tokens, by id.
        ends: the ids of those that end texts.

    Attributes:
        size: how many tokens there are.
        tokens: what each spells; b"" for one that is never allowed.
        names: the texts of special tokens that do not end texts, by id.
        end_names: the texts of those that do.
        specials: the bytes of each token in `names`, by its text.
        end: a token that is never allowed: it stands for the end of a text where a model has none.
        levels, nodes: the trie; node 0 is the root, the others are numbered level by level.
        node_of: (size,) int32, where a token ends; `nodes` for one that is never allowed.
        bytes: (size, longest) int16, `NO_BYTE` behind the last one.
        children: (nodes + 1,) where the nodes after each node begin.
        first_token: (nodes + 2,) where the tokens that end at each node begin in `by_node`, (size,).
    """

    def __init__(
        self, tokens: Sequence[bytes], specials: Mapping[int, str] = MappingProxyType({}), ends: Collection[int] = ()
    ) -> None:
        self.size = len(tokens)
        self.tokens = [b"" if len(token) > MAX_BYTES or _marks(token) else token for token in tokens]
        self.end = _least_needed(self.tokens, specials)
        self.tokens[self.end] = b""
        self.names = {token_id: text for token_id, text in specials.items() if token_id not in (self.end, *ends)}
        self.end_names = frozenset(text for token_id, text in specials.items() if token_id in ends)
        digits = next(count for count in range(1, 9) if len(_MARKS) ** count >= len(self.names))
        for token_id, mark in zip(self.names, product(_MARKS, repeat=digits), strict=False):
            self.tokens[token_id] = bytes(mark)
        self.specials = {text: self.tokens[token_id] for token_id, text in self.names.items()}
        used = [token_id for token_id, token in enumerate(self.tokens) if token]
        if not used:
            raise ConstraintError("the tokenizer has no token that spells text; output types need one.")
        used.sort(key=self.tokens.__getitem__)
        spelled = _matrix([self.tokens[token_id] for token_id in used])
        same = np.logical_and.accumulate(spelled[1:] == spelled[:-1], axis=1)
        new = np.vstack((np.ones((1, spelled.shape[1]), np.bool_), ~same)) & (spelled != NO_BYTE)
        self.levels: list[Level] = []
        self.nodes = 1
        node = np.zeros(len(used), np.int32)  # the node of each token's first bytes
        for depth in range(spelled.shape[1]):
            first = np.flatnonzero(new[:, depth])
            self.levels.append(Level(node[first], spelled[first, depth].astype(np.uint8)))
            numbers = self.nodes - 1 + np.cumsum(new[:, depth], dtype=np.int32)
            node = np.where(spelled[:, depth] != NO_BYTE, numbers, node)
            self.nodes += len(first)
        self.node_of = np.full(self.size, self.nodes, np.int32)
        self.node_of[used] = node
        self.bytes = np.full((self.size, spelled.shape[1]), NO_BYTE, np.int16)
        self.bytes[used] = spelled
        self.is_token = np.zeros(self.nodes + 1, np.bool_)
        """Whether a token ends at a node."""
        self.is_token[node] = True
        parents = np.concatenate([level.parents for level in self.levels])
        self.children = begins(parents, self.nodes) + 1
        self.by_node = np.argsort(self.node_of, kind="stable")
        self.first_token = begins(self.node_of, self.nodes + 1)
        self._keys = parents.astype(np.int64) * 256 + np.concatenate([level.bytes for level in self.levels])
        """For each node but the root, the node before it and the byte after that; they ascend."""
        self._placed: dict[torch.device, PlacedVocabulary] = {}
        self.after_thoughts: dict[Hashable, Any] = {}
        """Automata of thoughts before any text, see `ThoughtAutomaton`, by how thoughts are marked."""
        self.encoder: Callable[[], Encode | None] = _no_encoder
        """Gives the tokenizer's `encode_plain`, or None when the tokenizer is gone."""

    def __getstate__(self) -> dict[str, object]:
        """The state for another process: without tensors on devices and without the tokenizer."""
        return {**vars(self), "_placed": {}, "after_thoughts": {}, "encoder": _no_encoder}

    def after(self, nodes: npt.NDArray[np.int32], bytes_: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The node after each of `nodes` and one more byte; `self.nodes` for none."""
        keys = nodes.astype(np.int64) * 256 + bytes_
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[found] == keys, found + 1, self.nodes).astype(np.int32)

    @property
    def longest(self) -> int:
        """How many bytes the longest token that may be allowed has."""
        return len(self.levels)

    @property
    def spells(self) -> npt.NDArray[np.bool_]:
        """(256,) whether a byte is a token by itself."""
        alone = np.zeros(256, np.bool_)
        level, nodes = self.levels[0], np.arange(1, 1 + len(self.levels[0].bytes))
        alone[level.bytes] = self.is_token[nodes]
        if self.specials:
            alone[_MARKS] = True  # a way through one of them goes through all of them
        return alone

    @cached_property
    def texts(self) -> list[bytes]:
        """The bytes of each token in a text; special tokens have those of their names."""
        return [
            self.names[token_id].encode() if token_id in self.names else token
            for token_id, token in enumerate(self.tokens)
        ]

    def written(self, token_ids: Iterable[int]) -> bytes:
        """The bytes that tokens spell; special tokens have bytes of their own, see above."""
        return b"".join(self.tokens[token_id] for token_id in token_ids)

    def on(self, device: torch.device) -> PlacedVocabulary:
        """The vocabulary on a device, made once. Host sync: none."""
        placed = self._placed.get(device)
        if placed is None:
            with torch.inference_mode(False):
                placed = PlacedVocabulary(
                    [(put(parents, device), put(bytes_.astype(np.int64), device)) for parents, bytes_ in self.levels],
                    put(self.node_of, device),
                    put(self.bytes, device),
                )
            self._placed[device] = placed
        return placed


_Key = tuple[int, tuple[int, ...]]
_known: WeakKeyDictionary[Tokenizer, dict[_Key, Vocabulary]] = WeakKeyDictionary()
_making = new_lock()


def vocabulary_of(model: Model) -> Vocabulary:
    """The vocabulary of a model, made once for its tokenizer and kept with it.

    The model's own eos tokens are never allowed in a text, whatever they spell.

    Raises:
        ConstraintError: the tokenizer is neither byte-level BPE nor SentencePiece with byte fallback.
    """
    size = min(model.vocab_size, model.tokenizer.vocab_size)
    eos_token_ids = tuple(token_id for token_id in model.eos_token_ids if token_id < size)
    key = size, eos_token_ids
    with _making:
        known = _known.setdefault(model.tokenizer, {})
        if key not in known:
            tokens = model.tokenizer.all_token_bytes()[:size]
            for token_id in eos_token_ids:
                tokens[token_id] = b""
            specials = {one: text for one, text in model.tokenizer.special_tokens.items() if one < size}
            known[key] = Vocabulary(tokens, specials, eos_token_ids)
            known[key].encoder = WeakMethod(model.tokenizer.encode_plain)
        return known[key]


def _marks(token: bytes) -> bool:
    """Whether a token has a byte that is reserved for special tokens."""
    return not token.isascii() and max(token) in _MARKS


def _least_needed(tokens: Sequence[bytes], specials: Collection[int]) -> int:
    """A token that texts can do without: one that spells nothing, if possible without a name; else the longest."""
    nothing = [token_id for token_id, token in enumerate(tokens) if not token]
    if nothing:
        return next((token_id for token_id in nothing if token_id not in specials), nothing[0])
    return max(range(len(tokens)), key=lambda token_id: len(tokens[token_id]))


def _matrix(tokens: Sequence[bytes]) -> npt.NDArray[np.int16]:
    """(tokens, longest), a token a line, `NO_BYTE` behind its last byte."""
    lengths = np.array([*map(len, tokens)])
    matrix = np.full((len(tokens), int(lengths.max())), NO_BYTE, np.int16)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = np.frombuffer(b"".join(tokens), np.uint8)
    return matrix


def put(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """An array on a device. Host sync: none."""
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)
