"""A compiled output type: what a text may be, on which engine it is held to that, and which value it stands for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

if TYPE_CHECKING:
    from gen.constraints.compiled import Compiled
    from gen.constraints.host import Grammar
    from gen.constraints.vocabulary import Vocabulary

EngineName = Literal["device", "host"]


class Walker(Protocol):
    """Follows one text on the host, token by token.

    Attributes:
        whole: whether the text so far is a full match.
        complete: whether it is, and nothing can come after it: the text has ended.
    """

    @property
    def whole(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    def push(self, token_id: int) -> None:
        """Take a token."""

    def copy(self) -> "Walker":
        """Another one, which goes on by itself from here."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraint:
    """An output type compiled for a vocabulary; see `gen.compile`, which makes it. For any number of calls and threads.

    Attributes:
        engine: "device": an automaton on the model's device; "host": llguidance, with an exchange a token.
        states: of the automaton; None on the host engine.
        least_tokens: the fewest new tokens that suffice for a whole text; None on the host engine, which cannot know.
        reason: why it is on the host engine; "" where it is not.
        vocabulary: whose tokens it allows.
        compiled: the automaton with this vocabulary; None on the host engine. Equal constraints share it.
        grammar: llguidance's; None on the device engine. Equal constraints share it.
    """

    engine: EngineName
    states: int | None
    least_tokens: int | None
    reason: str = ""
    vocabulary: "Vocabulary" = field(repr=False)
    compiled: "Compiled | None" = field(repr=False)
    grammar: "Grammar | None" = field(repr=False)
    _parse: Callable[[str], Any] = field(repr=False)

    def read(self, text: str) -> Any:
        """The value of a text that is a full match.

        Raises:
            ValueError: it is none.
        """
        return self._parse(text)

    def walker(self) -> Walker:
        """A walker at the start of a text."""
        if self.compiled is not None:
            return DeviceWalker(self.compiled)
        assert self.grammar is not None  # one of the two is there; tells mypy
        return self.grammar.walker()


class DeviceWalker:
    """See `Walker`: walks the automaton."""

    def __init__(self, compiled: "Compiled", state: int = 1) -> None:
        self._compiled, self._state = compiled, state

    @property
    def whole(self) -> bool:
        """See `Walker`."""
        return bool(self._compiled.table.final[self._state])

    @property
    def complete(self) -> bool:
        """See `Walker`."""
        return self._compiled.is_complete(self._state)

    def push(self, token_id: int) -> None:
        """See `Walker`."""
        self._state = self._compiled.next_state(self._state, token_id)

    def copy(self) -> Self:
        """See `Walker`."""
        return type(self)(self._compiled, self._state)
