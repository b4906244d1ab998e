"""A compiled output type: which texts it allows, which engine enforces it, and which value a text stands for."""

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from gen.errors import ConstraintError, show

if TYPE_CHECKING:
    from gen.constraints.composing.splitting import Splitter
    from gen.constraints.composing.trees import Calls, Tree
    from gen.constraints.host_engine import Grammar, HostWalker
    from gen.constraints.tables.token_automaton import TokenAutomaton
    from gen.constraints.tables.vocabulary import Vocabulary

EngineName = Literal["device", "host"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraint:
    """An output type compiled for a vocabulary, as `gen.compile` makes it; for any number of calls and threads.

    Attributes:
        engine: "device": an automaton on the model's device; "host": llguidance, with an exchange per token.
        states: of the automaton; None on the host engine.
        least_tokens: the fewest new tokens that suffice for a whole text; None on the host engine, which cannot know.
        reason: why it is on the host engine; "" where it is not.
        vocabulary: whose tokens it allows.
        automaton: the automaton with this vocabulary; None on the host engine. Equal constraints share it.
        grammar: llguidance's; None on the device engine. Equal constraints share it.
        splitter: splits a text into the pieces of its parts; None for a type that is not made of others.
        special_ids: the special tokens that the strings of its parts name.
        tree: what it was compiled from; it reads values.
    """

    engine: EngineName
    states: int | None
    least_tokens: int | None
    reason: str = ""
    vocabulary: "Vocabulary" = field(repr=False)
    automaton: "TokenAutomaton | None" = field(default=None, repr=False)
    grammar: "Grammar | None" = field(default=None, repr=False)
    splitter: "Splitter | None" = field(default=None, repr=False)
    special_ids: frozenset[int] = field(default=frozenset(), repr=False)
    tree: "Tree | Calls" = field(repr=False)

    def accepts(self, text: str | bytes) -> bool:
        """Whether a text is a full match. Bytes show special tokens, which a str does not; see `written`.

        Raises:
            ConstraintError: on the host engine, where llguidance cannot follow the text.
        """
        return self.matched(text) is not None

    def matched(self, text: str | bytes) -> Any:
        """What `value` takes for a text: the pieces of its parts, or its bytes; None if it is no full match."""
        data = _data(text)
        if self.splitter is not None:
            return self.splitter.split(data)
        if self.automaton is not None:
            return data if self.automaton.accepts(data) else None
        assert self.grammar is not None  # one of the two is there; tells mypy
        return data if self.grammar.accepts(data) else None

    def ends(self, text: str | bytes) -> bool:
        """Whether a text that its limit has ended may be whole: on the host engine, only if nothing can follow it."""
        return self.grammar is None or self.grammar.ends(_data(text))

    def value(self, pieces: Any) -> Any:
        """The value of what `matched` gives. Raises ValueError where the type refuses it."""
        return self.tree.value(pieces)

    def written(self, text: str, token_ids: Sequence[int], *, cut: bool) -> str | bytes:
        """A text, or its tokens as bytes if these say more: they show special tokens.

        Args:
            token_ids: the tokens, perhaps behind those of a thought.
            cut: whether a stop string has ended the text, so that its tokens have more in them.
        """
        if cut or not self.special_ids:
            return text
        left, pieces = len(text.encode()), list[bytes]()
        for token_id in reversed(token_ids):
            if left <= 0:
                break
            shown, spelled = self.vocabulary.texts[token_id], self.vocabulary.tokens[token_id]
            pieces.append(spelled[-left:] if shown == spelled else spelled)
            left -= len(shown)
        return b"".join(reversed(pieces))

    def read(self, text: str) -> Any:
        """The value of a text.

        Raises:
            ValueError: it is no full match, or its type refuses the value.
        """
        found = self.matched(text)
        if found is None:
            raise ValueError(f"no full match of the output type: {show(text)}")
        return self.value(found)

    def __copy__(self) -> Self:
        """Itself: nothing changes it."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise ConstraintError(
            "a constraint cannot be pickled: it has the tables of a model's vocabulary. Pickle its output type, and "
            "compile it where the model is, as gen.compile(model, output_type)."
        )

    @property
    def key(self) -> Hashable:
        """The form of its output type, of texts, numbers and tuples; equal for types with equal texts."""
        return self.tree.key

    def walker(self) -> "DeviceWalker | HostWalker":
        """A walker at the start of a text."""
        if self.automaton is not None:
            return DeviceWalker(self.automaton)
        assert self.grammar is not None  # as above
        return self.grammar.walker()

    @property
    def limits(self) -> Mapping[str, int]:
        """What bounds its texts beside the output type. "depth": how deep values of any type nest on the device; of 4,
        with a fifth level where at most one is an array."""
        depth = None if self.automaton is None else self.automaton.table.depth
        return {} if depth is None else {"depth": depth}

    @property
    def most_tokens(self) -> int:
        """The limit may change the next token when at most this many are left: as many as suffice to end a text from
        any state, and at least 1, since the last one ends it.
        """
        return 1 if self.automaton is None else max(1, self.automaton.most_tokens)


def _data(text: str | bytes) -> bytes:
    """A text as bytes; those of a lone surrogate are no UTF-8, so no type that is a text accepts them."""
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


class DeviceWalker:
    """Follows one text of an automaton on the host, token by token; `HostWalker` does it for llguidance.

    Attributes:
        state: the automaton's.
        complete: whether the text is a full match that nothing can follow: it has ended.
    """

    def __init__(self, automaton: "TokenAutomaton") -> None:
        self._automaton = automaton
        self.state = automaton.start

    @property
    def complete(self) -> bool:
        return self._automaton.is_complete(self.state)

    def push(self, token_id: int) -> bool:
        """Take a token; returns whether it was allowed."""
        self.state = self._automaton.next_state(self.state, token_id)
        return self.state != 0

    def short(self, left: int, ahead: int) -> bool:
        """Whether a token that may come next may leave too few tokens to end the text.

        Args:
            left: how many tokens may still come.
            ahead: how many unknown tokens come before those.
        """
        if left > 1 and left > self._automaton.most_after(self.state):
            return False
        return ahead > 0 or left <= max(1, self._automaton.worst(self.state))

    def problem(self) -> str:
        """Why nothing can follow, where the engine itself has failed; else "", as always for an automaton."""
        return ""

    def copy(self) -> Self:
        """An independent walker at the same place."""
        return copy(self)
