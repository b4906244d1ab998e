"""The host engine: llguidance follows each text on the host and says which tokens may come next.

llguidance never raises: after every call, ask its matchers whether they have failed.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError
from gen.runtime.forking import new_lock

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

T = TypeVar("T")
_MOST_IN_ROW = 20_000  # ways to write a text that llguidance follows at once: ten times as many as it does by itself
_FUEL = 4_000_000  # work of the lexer in a step; without enough, llguidance forbids tokens before it fails
_FIRST_FUEL = 5_000_000  # and before a text
_STACK = 2**28  # bytes that a thread may use; only those that it uses take memory


class Grammar:
    """A grammar of llguidance's for a vocabulary.

    Args:
        text: in llguidance's variant of Lark, or several such grammars as its JSON.
    Raises:
        ConstraintError: llguidance refuses it.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        from llguidance import LLMatcher, LLParserLimits

        tokenizer, self._bytes = _tokenizer_of(vocabulary)
        limits = LLParserLimits(
            max_items_in_row=_MOST_IN_ROW,
            step_max_items=25 * _MOST_IN_ROW,
            initial_lexer_fuel=_FIRST_FUEL,
            step_lexer_fuel=_FUEL,
        )
        grammar = text if text.startswith("{") else LLMatcher.grammar_from_lark(text)
        self._make = lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        self._start = _on_a_large_stack(self._make)
        if problem := problem_of(self._start):
            raise ConstraintError(problem)
        self.try_out(1, 1)

    def try_out(self, texts: int = 3, tokens: int = 40) -> None:
        """Follow some texts, to find out whether llguidance can: one of the longest tokens that are allowed, others of
        any tokens.

        Raises:
            ConstraintError: llguidance fails on one of them.
        """
        chance = np.random.default_rng(0)
        for number in range(texts):
            matcher = self.matcher()
            for _ in range(tokens):
                bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
                allowed = np.flatnonzero(bits[: len(self._bytes.lengths)])
                if matcher.is_stopped() or not len(allowed):
                    break
                longest = self._bytes.lengths[allowed].argmax()
                matcher.consume_token(int(chance.choice(allowed) if number else allowed[longest]))
            if problem := problem_of(matcher):
                raise ConstraintError(f"{problem}. Take a simpler output type.")

    def matcher(self) -> "LLMatcher":
        """A matcher at the start of a text."""
        return self._start.deep_copy()

    def first_token(self) -> int:
        """The token that begins every text; -1 where several may."""
        bits = np.unpackbits(np.frombuffer(self.matcher().compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        return int(allowed[0]) if len(allowed) == 1 else -1

    def renew(self) -> None:
        """Begin later texts with a new lexer: all matchers share one, and fail once it has too many states."""
        self._start = _on_a_large_stack(self._make)

    def walker(self, matcher: "LLMatcher | None" = None) -> "HostWalker":
        """A walker at the start of a text, or where a matcher is."""
        return HostWalker(self.matcher() if matcher is None else matcher, self.renew)

    def accepts(self, text: bytes) -> bool:
        """Whether a text is a full match that the vocabulary's tokens can spell.

        Raises:
            ConstraintError: llguidance cannot follow it.
        """
        matcher = self._after(text)
        return matcher is not None and matcher.is_accepting()

    def ends(self, text: bytes) -> bool:
        """Whether a text is a full match that nothing can follow."""
        matcher = self._after(text)
        return matcher is not None and is_complete(matcher)

    def _after(self, text: bytes) -> "LLMatcher | None":
        """A matcher at the end of a text; None if it cannot get there. Raises ConstraintError if llguidance fails."""
        token_ids, matcher = self._bytes.spell(text), self.matcher()
        if token_ids is None:
            return None
        taken = matcher.try_consume_tokens(token_ids)
        while taken < len(token_ids) and take(matcher, token_ids[taken]):
            if problem := problem_of(matcher):
                self.renew()
                raise ConstraintError(f"{problem}. Take a simpler output type.")
            taken += 1 + matcher.try_consume_tokens(token_ids[taken + 1 :])
        return matcher if taken == len(token_ids) else None


def _on_a_large_stack(make: Callable[[], T]) -> T:
    """Call a function in a thread with a large stack: llguidance calls itself for each rule that follows on another
    one, and a stack overflow would end the process."""
    made: list[T] = []
    with _making:
        before = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=lambda: made.append(make()), daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return made[0]


class HostWalker:
    """Follows one text as `gen.constraints.constraint.DeviceWalker` does."""

    def __init__(self, matcher: "LLMatcher", renew: Callable[[], None]) -> None:
        self._matcher, self._renew = matcher, renew

    @property
    def complete(self) -> bool:
        return is_complete(self._matcher)

    def push(self, token_id: int) -> bool:
        return take(self._matcher, token_id)

    def short(self, left: int, ahead: int) -> bool:
        return left <= 1  # no limit changes a token

    def problem(self) -> str:
        if not self._matcher.is_error():
            self._matcher.compute_bitmask()  # fails now if the text has no next token
        problem = problem_of(self._matcher)
        if problem:
            self._renew()
        return problem

    def copy(self) -> Self:
        return type(self)(self._matcher.deep_copy(), self._renew)


def take(matcher: "LLMatcher", token_id: int) -> bool:
    """Let a matcher take a token; returns whether it may come. If the matcher itself fails, `problem_of` says so later.

    A lexer without fuel refuses tokens in silence. A mask gives it new fuel, and fails where that is not enough.
    """
    if matcher.try_consume_tokens([token_id]) == 1 or matcher.is_error():
        return True
    matcher.compute_bitmask()
    return matcher.is_error() or matcher.try_consume_tokens([token_id]) == 1


def is_complete(matcher: "LLMatcher") -> bool:
    """Whether a text is whole and nothing can follow."""
    return matcher.is_stopped() and not matcher.is_error() and matcher.is_accepting()


def problem_of(matcher: "LLMatcher") -> str:
    """Why a matcher has failed, in one line; "" if it has not."""
    if not matcher.is_error():
        return ""
    said = next(iter(matcher.get_error().splitlines()), "")[:300]
    return f"llguidance: {said if said and 'panic' not in said else 'an error of its own, since it is too complex'}"


class _Bytes:
    """A vocabulary in llguidance's form, with an extra token for the end, since each row has end tokens of its own.

    At every step llguidance asks for the tokens of the bytes that must come: one of a grammar's few strings, or the end
    of one. The answers are kept: to find them anew would take half of the time of a mask.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = {*vocabulary.specials.values()}
        tokens = [b"" if token in special else token for token in vocabulary.tokens]
        self._ids: dict[bytes, int] = {}
        for token_id, token in enumerate(tokens):
            if token:
                self._ids.setdefault(token, token_id)
        self._longest = max(map(len, self._ids), default=1)
        self.lengths = np.array([len(token) for token in tokens])
        self._known = lru_cache(maxsize=1024)(self.spell)
        self.eos_token_id, self.bos_token_id = len(tokens), None
        self.special_token_ids = [token_id for token_id, token in enumerate(tokens) if not token]
        # no text holds the byte 255, so these tokens are never allowed
        self.tokens = [token or b"\xff[%d]" % token_id for token_id, token in enumerate([*tokens, b""])]

    def __call__(self, data: bytes | str) -> list[int]:
        """The tokens of some bytes. It must not raise: there are none for bytes that no tokens spell."""
        return self._known(data.encode() if isinstance(data, str) else data) or []

    def spell(self, data: bytes) -> list[int] | None:
        """The tokens of some bytes, each the longest after which the rest has tokens too; None if there are none."""
        borders, dead = [0], set[int]()
        while borders and borders[-1] < len(data):
            at = borders[-1]
            ends = range(min(at + self._longest, len(data)), at, -1)
            end = next((end for end in ends if end not in dead and data[at:end] in self._ids), None)
            if end is None:
                dead.add(borders.pop())
            else:
                borders.append(end)
        return [self._ids[data[at:end]] for at, end in pairwise(borders)] if borders else None


_tokenizers: WeakKeyDictionary[Vocabulary, tuple[Any, _Bytes]] = WeakKeyDictionary()
_making = new_lock()


def _tokenizer_of(vocabulary: Vocabulary) -> "tuple[LLTokenizer, _Bytes]":
    """llguidance's tables of a vocabulary, and what they are made of, made once."""
    from llguidance import LLTokenizer, TokenizerWrapper

    with _making:
        if vocabulary not in _tokenizers:
            own, size = _Bytes(vocabulary), len(vocabulary.tokens) + 1
            made = LLTokenizer(TokenizerWrapper(own), n_vocab=size, eos_token=[size - 1])
            _tokenizers[vocabulary] = made, own
        return _tokenizers[vocabulary]
